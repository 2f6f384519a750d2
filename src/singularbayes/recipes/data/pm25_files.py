"""Read the hourly PM2.5 files of Beijing (UCI 381) and of other cities (UCI 394) into one form.

The two sources differ, and a model of the one may be asked about the other only after this:

* **One hour.** PM2.5 of a row in the Beijing file is ``PM_US Post`` of the row BEFORE in the cities' file of
  Beijing (the weather of both agrees row by row). So the cities' PM2.5 moves on by one hour.
* **Rain and snow.** Beijing has cumulated hours of snow (Is) and of rain (Ir), the cities millimetres. Hours
  with precipitation are counted as Beijing counts them, as snow up to 1 deg C (in Beijing's file all hours of
  snow, 1 % of those of rain) and as rain above; an empty cell is a dry hour.
* **Wind.** Beijing knows NW, NE, SE and cv (calm or variable), so that cv holds all that is none of the
  three; SW of the cities counts as cv: as a fifth direction it would be an input that training never saw.
* **The impossible.** Values outside of `LIMITS` (-9999, 999990) count as missing. Missing weather is that of
  the hour before.
* **The same column twice.** Guangzhou's ``PM_City Station`` is its ``PM_US Post``; only the latter is an
  input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from .cells import numbers, read_cells, refuse

__all__ = ["BEIJING", "CITIES", "Hours", "find", "read_beijing", "read_city"]

BEIJING = "PRSA_data_2010.1.1-2014.12.31.csv"
CITIES = {
    "Guangzhou": "GuangzhouPM20100101_20151231.csv",
    "Shanghai": "ShanghaiPM20100101_20151231.csv",
}
HOW_TO_GET = (
    f"download {BEIJING} ('Beijing PM2.5', id 381) and {CITIES['Guangzhou']} and {CITIES['Shanghai']} "
    "('PM2.5 Data of Five Chinese Cities', id 394) from the UCI Machine Learning Repository (CC BY 4.0) into "
    "one folder; plain or packed with xz"
)
LIMITS = {
    "PM2.5": (0, 2000), "DEWP": (-60, 40), "TEMP": (-60, 60), "PRES": (850, 1100), "Iws": (0, 5000),
    "precipitation": (0, 500), "Is": (0, 1000), "Ir": (0, 1000),
}  # fmt: skip
"""Closed range of the possible, in the source's units: ug/m3, deg C, deg C, hPa, m/s cumulated, mm, hours."""

SNOW_UP_TO = 1.0
WINDS = ("NW", "NE", "SE", "cv")
_SUBFOLDERS = ("", "beijing_pm25_2010_2014", "five_cities_pm25")
_CLOCK = ("year", "month", "day", "hour")
_WEATHER = ("DEWP", "TEMP", "PRES", "Iws")


@dataclass(frozen=True, kw_only=True)
class Hours:
    """One station, hour by hour without a gap: what both sources have, as the Beijing file has it.

    Args:
        name: of the city.
        table: one row an hour, index the hour (`DatetimeIndex`), columns `PM2.5` (nan where missing), `DEWP`,
            `TEMP`, `PRES`, `Iws`, `Is`, `Ir` (no nan) and `wind`, one of `WINDS`.
        kept: (hours,) whether the row is in the sequence of the windows: PM2.5 is there, and for a city all
            other cells of the row that PM2.5 stands in too.
        carried: number of weather cells that are those of the hour before.
        impossible: number of cells outside of `LIMITS`.
        southwest: number of kept hours with wind from SW, counted as cv.
    """

    name: str
    table: pd.DataFrame
    kept: NDArray[np.bool_]
    carried: int
    impossible: int
    southwest: int


def find(folder: str | Path, name: str) -> Path:
    """The file `name`, plain or with `.xz`, in `folder` or in a subfolder of the name of its data set.

    Raises:
        FileNotFoundError: it is not there; one line with the places and how to get the data.
    """
    root = Path(folder).expanduser()
    for place in [root / sub / f"{name}{end}" for sub in _SUBFOLDERS for end in ("", ".xz")]:
        if place.is_file():
            return place
    subfolders = " or ".join(_SUBFOLDERS[1:])
    raise FileNotFoundError(
        f"{name} not found: looked in {root} and in its subfolders {subfolders}, for the name as it is and "
        f"with .xz; to get it: {HOW_TO_GET}"
    )


def read_beijing(path: Path) -> Hours:
    """Beijing 2010 to 2014; the sequence has every row with PM2.5.

    Raises:
        ValueError: the file is broken; the line says file, row and column.
    """
    names = {"PM2.5": "pm2.5", **{key: key for key in (*_WEATHER, "Is", "Ir")}}
    raw = _Raw.read(path, names, more=())
    wind = raw.wind((*WINDS,))
    table, impossible = _possible(raw.values)
    table, carried = _carried(path, raw.rows, table.assign(wind=wind))
    return Hours(
        name="Beijing",
        table=table.set_axis(raw.clock, axis=0),
        kept=table["PM2.5"].notna().to_numpy(),
        carried=carried,
        impossible=impossible,
        southwest=0,
    )


def read_city(path: Path, name: str) -> Hours:
    """Another city; the sequence has the rows in which no cell is empty, as arXiv 2602.00387 counts them.

    Raises:
        ValueError: the file is broken; the line says file, row and column.
    """
    names = {"PM2.5": "PM_US Post", **{key: key for key in (*_WEATHER, "precipitation")}}
    raw = _Raw.read(path, names, more=("HUMI", "Iprec"), prefix="PM_")
    wind = raw.wind((*WINDS, "SW"))
    table, impossible = _possible(raw.values)
    table, carried = _carried(path, raw.rows, table.assign(wind=wind))
    wet = table.pop("precipitation").to_numpy() > 0
    snow = table["TEMP"].to_numpy() <= SNOW_UP_TO
    table = table.assign(Is=_hours_on_end(wet & snow), Ir=_hours_on_end(wet & ~snow))
    kept = raw.complete & table["PM2.5"].notna().to_numpy()
    table["PM2.5"], kept = table["PM2.5"].shift(1), np.r_[False, kept[:-1]]
    southwest = int((kept & (table["wind"] == "SW").to_numpy()).sum())
    table["wind"] = table["wind"].replace("SW", "cv")
    order = ["PM2.5", *_WEATHER, "Is", "Ir", "wind"]
    return Hours(
        name=name,
        table=table.loc[:, order].set_axis(raw.clock, axis=0),
        kept=kept,
        carried=carried,
        impossible=impossible,
        southwest=southwest,
    )


@dataclass(frozen=True, kw_only=True)
class _Raw:
    """The cells of one file, as numbers and as text, with the rows they stand in."""

    path: Path
    rows: NDArray[np.int64]
    clock: pd.DatetimeIndex
    values: pd.DataFrame
    directions: NDArray[np.object_]
    complete: NDArray[np.bool_]

    @staticmethod
    def read(path: Path, names: dict[str, str], more: Sequence[str], prefix: str = "") -> _Raw:
        """Read what `names` maps our names to; for `complete` also `more` and all columns with `prefix`."""
        text = read_cells(path, [*_CLOCK, *names.values(), *more, "cbwd"], HOW_TO_GET, prefix=prefix)
        rows = text.index.to_numpy()
        cells = {name: text[name].to_numpy(dtype=object) for name in text.columns}
        columns = {name: numbers(path, name, rows, cells[name]) for name in cells if name != "cbwd"}
        values = pd.DataFrame({ours: columns[theirs] for ours, theirs in names.items()})
        return _Raw(
            path=path,
            rows=rows,
            clock=_clock(path, rows, cells, columns),
            values=values,
            directions=cells["cbwd"],
            complete=text.notna().all(axis=1).to_numpy(),
        )

    def wind(self, known: Sequence[str]) -> NDArray[np.object_]:
        """The directions, nan where missing; others than the known ones are refused."""
        other = ~pd.isna(self.directions) & ~pd.Series(self.directions).isin(known).to_numpy()
        expected = f"one of {', '.join(known)}, or an empty cell"
        refuse(self.path, "cbwd", self.rows, self.directions, other, expected)
        return self.directions


def _clock(
    path: Path, rows: NDArray[np.int64], cells: dict[str, NDArray], columns: dict[str, NDArray[np.float64]]
) -> pd.DatetimeIndex:
    """The hours of the rows; each must follow the one above."""
    for name in _CLOCK:
        wrong = ~(columns[name] % 1 == 0)
        refuse(path, name, rows, cells[name], wrong, "a whole number")
    parts = pd.DataFrame({name: columns[name].astype(np.int64) for name in _CLOCK})
    clock = pd.Series(pd.to_datetime(parts, errors="coerce"))
    texts = (parts["year"].astype(str) + "-" + parts["month"].astype(str) + "-" + parts["day"].astype(str)
             + " " + parts["hour"].astype(str) + ":00").to_numpy(dtype=object)  # fmt: skip
    after = np.r_[False, (clock.diff() != pd.Timedelta(hours=1)).to_numpy()[1:]]
    refuse(path, "year to hour", rows, texts, np.asarray(pd.isna(clock)), "an hour of the calendar")
    refuse(path, "year to hour", rows, texts, after, "the hour after that of the row above")
    return pd.DatetimeIndex(clock)


def _possible(values: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Nan for what lies outside of `LIMITS`, and how many cells that are."""
    inside = pd.DataFrame({name: values[name].between(*LIMITS[name]) for name in values.columns})
    return values.where(inside), int((values.notna() & ~inside).to_numpy().sum())


def _carried(path: Path, rows: NDArray[np.int64], table: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Missing weather is that of the hour before (never of one after); missing precipitation is none."""
    if "precipitation" in table:
        table = table.assign(precipitation=table["precipitation"].fillna(0.0))
    weather = [name for name in table.columns if name != "PM2.5"]
    filled = table.loc[:, weather].ffill()
    for name in weather:
        if pd.isna(filled[name].to_numpy()[0]):
            raise ValueError(
                f"{path}: row {rows[0]}, column {name}: got no possible value, expected one in the first "
                "row: what is missing later is carried on from it"
            )
    carried = int(table[weather].isna().to_numpy().sum())
    return pd.concat([table[["PM2.5"]], filled], axis=1), carried


def _hours_on_end(on: NDArray[np.bool_]) -> NDArray[np.float64]:
    """How many hours on end it has been so, this one included; 0 where it is not."""
    count = np.cumsum(on)
    return (count - np.maximum.accumulate(np.where(on, 0, count))).astype(np.float64)
