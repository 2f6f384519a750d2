"""Read the table of ICU stays, one row a stay, and refuse what is broken with file, row and column."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from .cells import numbers as as_numbers
from .cells import read_cells, refuse

FILE_NAME = "summary.csv.xz"
SUBFOLDER = "icu_physionet2012"
HOW_TO_GET = (
    "download set-a, set-b, set-c (unpacked) and Outcomes-a.txt, Outcomes-b.txt, Outcomes-c.txt from "
    "https://physionet.org/content/challenge-2012/1.0.0/ into one folder (open, ODC-BY 1.0), then run "
    "python -m singularbayes.recipes.data.icu_summary FOLDER"
)
KEYS = ("record_id", "set", "ICUType", "death")


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
    text = read_cells(path, wanted, HOW_TO_GET)
    cells = {name: text[name].to_numpy(dtype=object) for name in wanted}
    rows = text.index.to_numpy()
    numbers = {name: as_numbers(path, name, rows, cells[name]) for name in wanted if name != "set"}
    for name, allowed in (("set", ("a", "b", "c")), ("ICUType", (1, 2, 3, 4)), ("death", (0, 1))):
        values = cells[name] if name == "set" else numbers[name]
        others = ~pd.Series(values).isin(allowed).to_numpy()
        refuse(path, name, rows, cells[name], others, f"one of {', '.join(map(str, allowed))}")
    stay = numbers["record_id"]
    refuse(path, "record_id", rows, cells["record_id"], stay % 1 != 0, "a whole number")
    again = pd.Series(stay).duplicated().to_numpy()
    refuse(path, "record_id", rows, cells["record_id"], again, "a record_id that no row above has")
    table = pd.DataFrame({"record_id": stay, "set": cells["set"], **numbers}, index=rows)
    return table.astype({"record_id": np.int64, "set": str, "ICUType": np.int64, "death": np.int64})
