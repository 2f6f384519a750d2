"""Tables of predictions on disk, in chunks: CSV, Parquet, npz. What cannot be read is named with its place.

Cells come as they stand; what they mean is the business of :mod:`.predictions`.
"""

from __future__ import annotations

import csv
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..metrics.inputs import Floats

__all__ = ["TEXT", "Table", "open_table"]

CHUNK = 2**17  # rows at a time
TEXT = ("model", "set")
_MISSING = ["", "NA", "NaN", "nan", "null"]
_COMMA = re.compile(r"[-+]?\d+,\d+([eE][-+]?\d+)?")
_DELIMITERS = ",;\t"
_UNREADABLE = (OSError, UnicodeError, ValueError, zipfile.BadZipFile)


@dataclass(frozen=True)
class Table:
    """A file of predictions.

    Args:
        path: of the file.
        columns: names, in the order of the file.
        first: number of the first row as the messages count it: 2 in CSV, whose line of names is row 1.
        encoding: of a CSV file.
        delimiter: of a CSV file.
        shapes: of the arrays of an npz file.
    """

    path: Path
    columns: tuple[str, ...]
    first: int = 0
    encoding: str = ""
    delimiter: str = ""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def chunks(self, wanted: Sequence[str]) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """The wanted columns, some rows at a time, with the number of each chunk's first row."""
        reading = {".csv": self._csv, ".parquet": self._parquet, ".npz": self._npz}
        start = self.first
        try:
            for frame in reading[self.path.suffix.lower()](list(wanted)):
                cells = {name: self._cells(frame[name], name, start) for name in wanted}
                yield start, cells
                start += len(frame[wanted[0]])
        except PlacedError:
            raise
        except _UNREADABLE as error:
            raise ValueError(f"{self.path}: can't be read ({' '.join(str(error).split())})") from error

    def rows_of(self, name: str) -> int:
        """Rows of an array of an npz file; draws stand before them."""
        return self.shapes[name][1 if name.startswith("draws_") else 0]

    def _csv(self, wanted: list[str]) -> Iterator[Any]:
        yield from pd.read_csv(
            self.path,
            sep=self.delimiter,
            encoding=self.encoding,
            header=0,
            names=list(self.columns),
            index_col=False,
            usecols=wanted,
            dtype={name: str for name in TEXT if name in wanted},
            keep_default_na=False,
            na_values={name: _MISSING for name in wanted if name not in TEXT},
            chunksize=CHUNK,
            skip_blank_lines=False,
            low_memory=False,
        )

    def _parquet(self, wanted: list[str]) -> Iterator[Any]:
        for batch in _parquet_file(self.path).iter_batches(batch_size=CHUNK, columns=wanted):
            yield batch.to_pandas()

    def _npz(self, wanted: list[str]) -> Iterator[dict[str, np.ndarray]]:
        with self.path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            held = {name: arrays[name] for name in wanted}
        for start in range(0, self.rows_of(wanted[0]), CHUNK):
            rows = slice(start, start + CHUNK)
            yield {n: v[:, rows] if n.startswith("draws_") else v[rows] for n, v in held.items()}

    def _cells(self, column: Any, name: str, start: int) -> np.ndarray:
        if name in TEXT:
            names = np.asarray(column)
            return np.where(pd.isna(names), "", names.astype(str)).astype(object)
        values = np.asarray(column)
        return values.astype(np.float64) if values.dtype.kind in "fiub" else self._parsed(values, name, start)

    def _parsed(self, values: np.ndarray, name: str, start: int) -> Floats:
        """Numbers from text: a decimal comma is one where there is no point beside it."""
        text = np.array(["" if cell is None else str(cell).strip() for cell in values], object)
        known = ~np.isin(text, _MISSING)
        point = [cell.replace(",", ".") if _COMMA.fullmatch(cell) else cell for cell in text]
        found = np.asarray(pd.to_numeric(pd.Series(point, dtype=object), errors="coerce"), np.float64)
        wrong = np.flatnonzero(known & np.isnan(found))
        if wrong.size:
            raise PlacedError(
                f"{self.path}: row {start + wrong[0]}, column {name}: got {values[wrong[0]]!r}, expected a "
                "number"
            )
        return found


class PlacedError(ValueError):
    """An error that already names its place."""


def open_table(path: str | Path) -> Table:
    """A file by its suffix; only its names are read yet.

    Raises:
        FileNotFoundError: no such file.
        ValueError: another kind of file, no names, a name there twice, or an encoding that is not Unicode.
        ImportError: a Parquet file without pyarrow.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path} is no file; expected predictions as .csv, .parquet or .npz")
    kind = path.suffix.lower()
    if kind == ".csv":
        return _csv_table(path)
    try:
        if kind == ".parquet":
            return Table(path, tuple(_parquet_file(path).schema_arrow.names))
        if kind == ".npz":
            shapes = _npz_shapes(path)
            return Table(path, tuple(shapes), shapes=shapes)
    except _UNREADABLE as error:
        raise ValueError(f"{path}: can't be read ({' '.join(str(error).split())})") from error
    raise ValueError(f"{path} ends in {kind or 'nothing'!r}; expected .csv, .parquet or .npz")


def _csv_table(path: Path) -> Table:
    with path.open("rb") as file:
        head = file.read(4)
    encoding = "utf-16" if head[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        with path.open(encoding=encoding, newline="") as file:
            line, first = (file.readline().strip("\r\n") for _ in range(2))
    except UnicodeError as error:
        raise ValueError(
            f"{path}: the names are not UTF-8 or UTF-16 ({error}); save the file as UTF-8"
        ) from None
    delimiter = max(_DELIMITERS, key=line.count)
    names = [name.strip().strip('"') for name in line.split(delimiter)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if not line.strip() or twice:
        raise ValueError(f"{path}: row 1 has {'no names' if not twice else f'the name {twice[0]!r} twice'}")
    cells = next(csv.reader([first], delimiter=delimiter), [])
    if len(cells) > len(names):
        raise ValueError(
            f"{path}: row 2 has {len(cells)} cells for {len(names)} names; where numbers have a decimal "
            f"comma, separate the cells by a semicolon"
        )
    return Table(path, tuple(names), 2, encoding, delimiter)


def _npz_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Name -> shape of the arrays of a file, from their headers alone."""
    shapes = {}
    with zipfile.ZipFile(path) as held:
        for entry in held.namelist():
            with held.open(entry) as file:
                old = np.lib.format.read_magic(file) == (1, 0)
                read = np.lib.format.read_array_header_1_0 if old else np.lib.format.read_array_header_2_0
                shapes[entry.removesuffix(".npy")] = read(file)[0]
    return shapes


def _parquet_file(path: Path) -> Any:
    try:
        from pyarrow.parquet import ParquetFile  # noqa: PLC0415  # pyright: ignore[reportMissingImports] - an extra
    except ImportError:
        raise ImportError(f"reading {path} needs pyarrow: pip install pyarrow, or save it as .csv") from None
    return ParquetFile(path)
