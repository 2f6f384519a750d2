"""Read the table of ICU stays, one row a stay, and refuse what is broken with file, row and column."""

from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

FILE_NAME = "summary.csv.xz"
SUBFOLDER = "icu_physionet2012"
HOW_TO_GET = (
    "download set-a, set-b, set-c (unpacked) and Outcomes-a.txt, Outcomes-b.txt, Outcomes-c.txt from "
    "https://physionet.org/content/challenge-2012/1.0.0/ into one folder (open, ODC-BY 1.0), then run "
    "python -m singularbayes.recipes.data.icu_summary FOLDER"
)
KEYS = ("record_id", "set", "ICUType", "death")
_MISSING = ("", "NA", "NaN", "nan")
_UNREADABLE = (
    lzma.LZMAError,
    EOFError,
    OSError,
    UnicodeError,
    pd.errors.ParserError,
    pd.errors.EmptyDataError,
)


def find(folder: str | Path) -> Path:
    """The table in `folder` or in its subfolder `icu_physionet2012`.

    Raises:
        FileNotFoundError: neither is there; one line with both paths and how to get the data.
    """
    places = [Path(folder).expanduser() / FILE_NAME, Path(folder).expanduser() / SUBFOLDER / FILE_NAME]
    for place in places:
        if place.is_file():
            return place
    raise FileNotFoundError(
        f"ICU data not found: looked for {places[0]} and {places[1]}, expected the table of 12,000 ICU "
        f"stays; to get it: {HOW_TO_GET}"
    )


def read(path: Path, features: tuple[str, ...]) -> pd.DataFrame:
    """Read the keys and the named features of every stay; all other columns are dropped unread.

    Args:
        path: a comma-separated table with a header, UTF-8 with or without BOM, perhaps compressed.
        features: columns to keep beside `record_id`, `set`, `ICUType` and `death`.

    Returns:
        One row a stay: `record_id`, `ICUType` and `death` integers, `set` "a", "b" or "c", features float64
        with nan for an empty cell. The index is the row in the file, counted from 1 with the header as row 1.

    Raises:
        ValueError: the file is cut off or no such table, a column is absent, or a cell is not what it should
            be; one line with the file, and with row and column where there is one.
    """
    wanted = [*KEYS, *features]
    try:
        text = pd.read_csv(
            path,
            header=None,  # so that every row, the first one too, must be as long as the line of names
            dtype=str,
            encoding="utf-8-sig",
            keep_default_na=False,
            na_values=list(_MISSING),
            skip_blank_lines=False,
        )
    except _UNREADABLE as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(
            f"{path}: can't be read ({reason}), expected a comma-separated UTF-8 table compressed with xz; "
            f"the file is cut off or of another kind; to make it anew: {HOW_TO_GET}"
        ) from error
    names = text.iloc[0].tolist()
    not_once = [name for name in wanted if names.count(name) != 1]
    if not_once:
        raise ValueError(
            f"{path}: got no column, or several, of the name {', '.join(not_once[:5])} ({len(not_once)} of "
            f"{len(wanted)}), expected a comma-separated table with a line of names; to make it anew: "
            f"{HOW_TO_GET}"
        )
    text = text.set_axis(names, axis=1)[wanted]
    text.index = pd.RangeIndex(1, len(text) + 1)
    text = text.iloc[1:].dropna(how="all")

    cells = {name: text[name].to_numpy(dtype=object) for name in wanted}
    rows = text.index.to_numpy()
    numbers = {name: _numbers(path, name, rows, cells[name]) for name in wanted if name != "set"}
    for name, allowed in (("set", ("a", "b", "c")), ("ICUType", (1, 2, 3, 4)), ("death", (0, 1))):
        values = cells[name] if name == "set" else numbers[name]
        others = ~pd.Series(values).isin(allowed).to_numpy()
        _refuse(path, name, rows, cells[name], others, f"one of {', '.join(map(str, allowed))}")
    stay = numbers["record_id"]
    _refuse(path, "record_id", rows, cells["record_id"], stay % 1 != 0, "a whole number")
    again = pd.Series(stay).duplicated().to_numpy()
    _refuse(path, "record_id", rows, cells["record_id"], again, "a record_id that no row above has")
    table = pd.DataFrame({"record_id": stay, "set": cells["set"], **numbers}, index=rows)
    return table.astype({"record_id": np.int64, "set": str, "ICUType": np.int64, "death": np.int64})


def _numbers(
    path: Path, name: str, rows: NDArray[np.int64], cells: NDArray[np.object_]
) -> NDArray[np.float64]:
    """Turn cells into numbers, nan for empty ones; anything else that is no finite number is refused."""
    numbers = np.asarray(pd.to_numeric(pd.Series(cells), errors="coerce"), dtype=np.float64)
    wrong = ~pd.isna(cells) & ~np.isfinite(numbers)
    _refuse(path, name, rows, cells, wrong, "a finite number with a decimal point, or an empty cell")
    return numbers


def _refuse(
    path: Path,
    name: str,
    rows: NDArray[np.int64],
    cells: NDArray[np.object_],
    wrong: NDArray[np.bool_],
    expected: str,
) -> None:
    if wrong.any():
        first = int(wrong.argmax())
        got = "an empty cell" if pd.isna(cells[first]) else repr(cells[first])
        raise ValueError(
            f"{path}: row {rows[first]}, column {name}: got {got}, expected {expected}; mend the file or "
            "make it anew"
        )
