"""Tables of text cells: read whole, turned into numbers, refused with file, row and column."""

from __future__ import annotations

import lzma
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

__all__ = ["numbers", "read_cells", "refuse"]

_MISSING = ("", "NA", "NaN", "nan")
_UNREADABLE = (
    lzma.LZMAError,
    EOFError,
    OSError,
    UnicodeError,
    pd.errors.ParserError,
    pd.errors.EmptyDataError,
)


def read_cells(path: Path, wanted: Sequence[str], how_to_get: str, *, prefix: str = "") -> pd.DataFrame:
    """Read the wanted columns as text; all other columns are dropped.

    Args:
        path: a comma-separated table with a line of names, UTF-8 with or without BOM, perhaps compressed.
        wanted: names of columns, each of which must be there once.
        how_to_get: ends the messages: how to get or make the file.
        prefix: all columns whose names begin so are read too; none if empty.

    Returns:
        One row for each line that is not empty; cells are text, nan where empty or "NA". The index is the row
        in the file, counted from 1 with the line of names as row 1.

    Raises:
        ValueError: the file is cut off or no such table, or a column is absent or there twice.
    """
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
            f"{path}: can't be read ({reason}), expected a comma-separated UTF-8 table, plain or compressed "
            f"with xz; the file is cut off or of another kind; to make it anew: {how_to_get}"
        ) from error
    names = text.iloc[0].tolist()
    not_once = [name for name in wanted if names.count(name) != 1]
    if not_once:
        raise ValueError(
            f"{path}: got no column, or several, of the name {', '.join(not_once[:5])} ({len(not_once)} of "
            f"{len(wanted)}), expected a comma-separated table with a line of names; to make it anew: "
            f"{how_to_get}"
        )
    more = [name for name in names if prefix and str(name).startswith(prefix) and name not in wanted]
    text = text.set_axis(names, axis=1)[[*wanted, *more]]
    text.index = pd.RangeIndex(1, len(text) + 1)
    return text.iloc[1:].dropna(how="all")


def numbers(
    path: Path, name: str, rows: NDArray[np.int64], cells: NDArray[np.object_]
) -> NDArray[np.float64]:
    """Cells as numbers, nan for empty ones.

    Raises:
        ValueError: a cell is no finite number: a decimal comma, a word, an infinity.
    """
    found = np.asarray(pd.to_numeric(pd.Series(cells), errors="coerce"), dtype=np.float64)
    wrong = ~pd.isna(cells) & ~np.isfinite(found)
    refuse(path, name, rows, cells, wrong, "a finite number with a decimal point, or an empty cell")
    return found


def refuse(
    path: Path,
    name: str,
    rows: NDArray[np.int64],
    cells: NDArray[np.object_],
    wrong: NDArray[np.bool_],
    expected: str,
) -> None:
    """Name the first wrong cell of a column, if there is one.

    Raises:
        ValueError: there is one; the line has file, row, column, what was got and what was expected.
    """
    if wrong.any():
        first = int(wrong.argmax())
        got = "an empty cell" if pd.isna(cells[first]) else repr(cells[first])
        raise ValueError(
            f"{path}: row {rows[first]}, column {name}: got {got}, expected {expected}; mend the file or "
            "make it anew"
        )
