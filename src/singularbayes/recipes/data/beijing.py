"""PM2.5 of the next hour in Beijing from the last 24 hours; Guangzhou and Shanghai are other cities (OOD).

    X_i = rows i .. i + 23 (24 x 15),    y_i = PM2.5 of row i + 24,    i = 0 .. n - 25

The rows are the hours with PM2.5, in order: 41,757 of 2010 to 2014, so 41,733 windows, divided in time order
into 29,213 / 6,260 / 6,260 (70 / 15 / 15 %) as in arXiv 2602.00387. Hours without PM2.5 are skipped, not
filled: one window in ten jumps over some (`consecutive=True` leaves those out). Neighbouring windows share
rows, so the first 24 windows of validation and of test begin with hours that are in the set before; no target
is in two sets.

The paper's Guangzhou set has 20,050 windows: the rows of that file in which no cell is empty, minus 24. Of
Shanghai the earlier half serves for choices and the later half is scored; of Guangzhou nothing serves for
choices.

The data are not in the package: see `pm25_files.HOW_TO_GET`.

References:
    X. Liang et al. (2015), Proc. R. Soc. A 471:20150257; X. Liang et al. (2016), J. Geophys. Res. Atmos.
    121:10220-10236.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from singularbayes.recipes.data import pm25_files
from singularbayes.recipes.data.pm25_files import Hours
from singularbayes.recipes.data.splits import Features, Labelled, Splits, Units

__all__ = ["FEATURES", "HOURS", "HOW_TO_GET", "Statistics", "encode", "fit", "from_hours", "load", "windows"]

FEATURES = (
    "PM2.5", "DEWP", "TEMP", "PRES", "Iws", "Is", "Ir", "NW", "NE", "SE", "cv",
    "hour_sin", "hour_cos", "month_sin", "month_cos",
)  # fmt: skip
"""The 15 inputs of an hour: PM2.5 (ug/m3), dew point and temperature (deg C), pressure (hPa), cumulated wind
(m/s), cumulated hours of snow and of rain, wind direction as one of four, hour and month on their circles."""

HOURS = 24
HOW_TO_GET = pm25_files.HOW_TO_GET
SHARES = (0.7, 0.15)


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Mean and standard deviation of each feature over the training rows; arrays of shape (15,)."""

    mean: NDArray[np.float64]
    std: NDArray[np.float64]


def load(folder: str | Path, *, consecutive: bool = False) -> Splits:
    """The splits: X (n, 24, 15) and y (n,) float32, in standard deviations of the training rows.

    Args:
        folder: holds the three files, itself or in subfolders named after the data sets.
        consecutive: keep only windows whose 24 hours and target follow each other without a gap: 37,596.

    Returns:
        Splits with `ood` sets "Guangzhou" and "Shanghai", and "Shanghai" (its earlier half) in
        `ood_validation`, all with y. The windows of a set are views of its rows, so that they need no memory.

    Raises:
        FileNotFoundError: a file is not there; the line says where it was looked for and how to get it.
        ValueError: a file is broken; the line says file, row and column.
    """
    paths = {name: pm25_files.find(folder, file) for name, file in pm25_files.CITIES.items()}
    beijing = pm25_files.read_beijing(pm25_files.find(folder, pm25_files.BEIJING))
    cities = {name: pm25_files.read_city(path, name) for name, path in paths.items()}
    return from_hours(beijing, cities["Guangzhou"], cities["Shanghai"], consecutive=consecutive)


def from_hours(beijing: Hours, guangzhou: Hours, shanghai: Hours, *, consecutive: bool = False) -> Splits:
    """Divide, standardise with the training rows of Beijing alone, and cut into windows.

    Raises:
        ValueError: a set has no windows, or a feature has no spread in the training rows.
    """
    home, far, near = (_sequence(station) for station in (beijing, guangzhou, shanghai))
    for station, rows in ((beijing, home), (guangzhou, far), (shanghai, near)):
        if len(rows.raw) < 8 * HOURS:
            raise ValueError(
                f"{station.name}: got {len(rows.raw)} rows with PM2.5, expected at least {8 * HOURS}: "
                f"windows of {HOURS} hours for every set"
            )
    total = len(home.raw) - HOURS
    first, second = round(SHARES[0] * total), round(SHARES[1] * total)
    statistics = fit(home.raw[: first + HOURS])
    bounds = {
        "train": (0, first), "validation": (first, first + second), "test": (first + second, total)
    }  # fmt: skip
    own = _cut(home, statistics, consecutive)
    sets = {name: _between(own, *pair) for name, pair in bounds.items()}
    half = len(near.raw) // 2
    other = {
        "Guangzhou": _all(_cut(far, statistics, consecutive)),
        "Shanghai": _all(_cut(near.part(half, len(near.raw)), statistics, consecutive)),
        "Shanghai for choices": _all(_cut(near.part(0, half), statistics, consecutive)),
    }
    for name, (x, _) in {**sets, **other}.items():
        if not len(x):
            raise ValueError(f"{name}: got no window of {HOURS + 1} hours without a gap, expected some")
    return Splits(
        train=sets["train"],
        validation=sets["validation"],
        test=sets["test"],
        ood={name: other[name] for name in ("Guangzhou", "Shanghai")},
        ood_validation={"Shanghai": other["Shanghai for choices"]},
        feature_names=tuple(f"{name}, {HOURS - step} h before" for step in range(HOURS) for name in FEATURES),
        label_units=Units(name="ug/m3", zero=float(statistics.mean[0]), one=float(statistics.std[0])),
        notes=_notes(sets, other, own, (beijing, guangzhou, shanghai), statistics, consecutive),
    )


def encode(table: pd.DataFrame) -> NDArray[np.float64]:
    """The features of every hour of an `Hours.table`, (hours, 15), in the source's units."""
    clock = pd.DatetimeIndex(table.index)
    hour, month = 2 * np.pi * clock.hour.to_numpy() / 24, 2 * np.pi * (clock.month.to_numpy() - 1) / 12
    numbers = [table[name].to_numpy(np.float64) for name in FEATURES[:7]]
    winds = [(table["wind"] == name).to_numpy(np.float64) for name in pm25_files.WINDS]
    return np.stack([*numbers, *winds, np.sin(hour), np.cos(hour), np.sin(month), np.cos(month)], axis=1)


def fit(train: NDArray[np.float64]) -> Statistics:
    """Mean and standard deviation of the training rows (n, 15).

    Raises:
        ValueError: a feature has a single value there.
    """
    constant = train.min(axis=0) == train.max(axis=0)
    if constant.any():
        name = FEATURES[int(np.argmax(constant))]
        raise ValueError(
            f"feature {name}: got one value in all training rows, expected a spread; the file of Beijing is "
            "cut short or its column is broken"
        )
    return Statistics(mean=train.mean(axis=0), std=train.std(axis=0))


def windows(rows: Features, hours: int = HOURS) -> Labelled:
    """Views of every `hours` rows on end, (n - hours, hours, features), and column 0 of the row after each.

    Args:
        rows: (n, features) with what is predicted in column 0.
        hours: length of a window.
    """
    views = np.lib.stride_tricks.sliding_window_view(rows, hours, axis=0, writeable=True)
    return views[:-1].swapaxes(1, 2), rows[hours:, 0]


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """The sequence that windows are cut from: features (n, 15), and the hour of each row since 1970."""

    raw: NDArray[np.float64]
    hour: NDArray[np.int64]

    def part(self, start: int, stop: int) -> _Rows:
        return _Rows(raw=self.raw[start:stop], hour=self.hour[start:stop])


@dataclass(frozen=True, kw_only=True)
class _Windows:
    """All windows of one sequence, and whether each is wanted and is without a gap."""

    x: Features
    y: NDArray[np.float32]
    whole: NDArray[np.bool_]
    wanted: NDArray[np.bool_]


def _sequence(station: Hours) -> _Rows:
    table = station.table.loc[station.kept]
    hour = pd.DatetimeIndex(table.index).to_numpy().astype("datetime64[h]").astype(np.int64)
    return _Rows(raw=encode(table), hour=hour)


def _cut(rows: _Rows, statistics: Statistics, consecutive: bool) -> _Windows:
    scaled = ((rows.raw - statistics.mean) / statistics.std).astype(np.float32)
    x, y = windows(scaled)[0], scaled[HOURS:, 0]
    whole = rows.hour[HOURS:] - rows.hour[:-HOURS] == HOURS
    return _Windows(x=x, y=y, whole=whole, wanted=whole if consecutive else np.ones_like(whole))


def _between(found: _Windows, start: int, stop: int) -> Labelled:
    """The wanted windows of a stretch; views where all are wanted."""
    x, y, wanted = found.x[start:stop], found.y[start:stop], found.wanted[start:stop]
    return (x, y) if wanted.all() else (x[wanted], y[wanted])


def _all(found: _Windows) -> Labelled:
    return _between(found, 0, len(found.y))


def _notes(
    sets: Mapping[str, Labelled],
    other: Mapping[str, Labelled],
    own: _Windows,
    stations: tuple[Hours, ...],
    statistics: Statistics,
    consecutive: bool,
) -> tuple[str, ...]:
    def persistence(pair: Labelled) -> str:
        x, y = pair
        error = float(np.abs(x[:, -1, 0] - y).mean()) * statistics.std[0]
        return f"{len(y):,} windows, 'as in the hour before' is off by {error:.2f} ug/m3"

    gaps = "left out" if consecutive else "kept, as in the paper"
    return (
        "PM2.5, MAE, RMSE, CRPS and widths of intervals are in ug/m3 (variances in its square).",
        "In time order: " + "; ".join(f"{name} {persistence(pair)}" for name, pair in sets.items()) + ".",
        "Other cities: " + "; ".join(f"{name} {persistence(pair)}" for name, pair in other.items()) + ".",
        (
            f"Of Beijing's {len(own.whole):,} windows {int((~own.whole).sum()):,} jump over hours without "
            f"PM2.5; they are {gaps}."
        ),
        (
            "Training rows alone fixed the mean and the standard deviation of the 15 features and of y "
            f"({statistics.mean[0]:.1f} and {statistics.std[0]:.1f} ug/m3)."
        ),
        (
            "The cities' PM2.5 is moved on by one hour, as the Beijing file has it, and their precipitation "
            f"in mm is counted in hours, as snow up to {pm25_files.SNOW_UP_TO:g} deg C."
        ),
        *(
            f"{s.name}: {int(s.kept.sum()):,} of {len(s.kept):,} hours are rows; {s.carried:,} missing cells "
            "of weather are those of the hour before; "
            f"{s.impossible:,} cells held impossible values; wind from "
            f"SW, which Beijing's file does not know, counts as cv in {s.southwest:,} rows."
            for s in stations
        ),
        (
            "The earlier half of Shanghai serves for choices, the later half is scored: results there are "
            "those of someone who knows the kind of shift. Nothing of Guangzhou serves for choices."
        ),
        (
            "Licence of both sources: CC BY 4.0. Cite Liang et al., Proc. R. Soc. A 471 (2015) 20150257, and "
            "Liang et al., J. Geophys. Res. Atmos. 121 (2016)."
        ),
    )
