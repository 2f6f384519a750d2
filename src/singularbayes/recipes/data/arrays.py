"""Arrays of a NumPy archive in a folder of the user's, with errors that name the file."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["find", "read"]


def find(folder: str | Path, subfolder: str, name: str, how_to_get: str) -> Path:
    """The file in ``folder``, or in its subfolder of the data set's name.

    Raises:
        FileNotFoundError: neither is there; one line with both paths and how to get the data.
    """
    base = Path(folder).expanduser()
    places = [base / name, base / subfolder / name]
    for place in places:
        if place.is_file():
            return place
    raise FileNotFoundError(
        f"{name} not found: looked for {places[0]} and {places[1]}; to get it: {how_to_get}"
    )


def read(path: Path, names: Sequence[str]) -> dict[str, NDArray[np.generic]]:
    """The named arrays of an archive; nothing in it is run (no pickle).

    Raises:
        ValueError: the file is damaged, or lacks an array; the message names both.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            missing = [name for name in names if name not in archive]
            if not missing:
                return {name: archive[name] for name in names}
            found = ", ".join(archive)
    except (ValueError, TypeError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} is no archive of arrays, or is damaged ({error}); get it again") from None
    raise ValueError(f"{path} has no array {missing[0]!r}; expected {', '.join(names)}, found {found}")
