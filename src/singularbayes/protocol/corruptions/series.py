"""Corruptions of series: what sensors and records do over time.

Series are ``(n, T)`` or ``(n, T, features)``. Sizes are in units of ``scale``: give train's
standard deviations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .corruption import Change, Levels, changed, unit_of

__all__ = ["Drift", "Gaps", "SensorNoise", "Spikes", "StuckSensor", "TimeWarp"]

Array = NDArray[Any]
Series = NDArray[np.float64]
SPIKE = 5.0  # units of scale


def _changed(x: ArrayLike, severity: int, seed: int, levels: Levels, change: Change) -> Array:
    """``x`` with ``change(series (n, T, features), generator, level)`` made to it."""

    def with_features(rows: Series, rng: np.random.Generator, level: float) -> Series:
        if rows.shape[1] < 2:
            raise ValueError(f"X has shape {rows.shape}; expected at least two points in time along axis 1")
        return change(rows.reshape(*rows.shape[:2], -1), rng, level)

    return changed(x, severity, seed, levels, (2, 3), "(n, T) or (n, T, features)", with_features)


@dataclass(frozen=True, kw_only=True)
class SensorNoise:
    """Gaussian noise on every reading, independent over time.

    Args:
        scale: unit of each feature, one number or ``(features,)``.
        levels: standard deviations at severity 1 to 5, in units of ``scale``.

    Example:
        >>> import numpy as np
        >>> SensorNoise(scale=2.0).apply(np.zeros((3, 24, 2)), severity=5, seed=1).shape
        (3, 24, 2)
    """

    scale: float | tuple[float, ...] = 1.0
    levels: Levels = (0.1, 0.2, 0.4, 0.7, 1.0)

    def apply(self, x: ArrayLike, severity: int, seed: int = 0) -> Array:
        def change(series: Series, rng: np.random.Generator, std: float) -> Series:
            return series + std * unit_of(self.scale, series.shape[2]) * rng.normal(size=series.shape)

        return _changed(x, severity, seed, self.levels, change)


@dataclass(frozen=True, kw_only=True)
class Drift:
    """A straight line added, from 0 at the start, up or down for each series and feature: an ageing sensor.

    Args:
        scale: unit of each feature, one number or ``(features,)``.
        levels: what is reached at the end at severity 1 to 5, in units of ``scale``.
    """

    scale: float | tuple[float, ...] = 1.0
    levels: Levels = (0.25, 0.5, 1.0, 2.0, 3.0)

    def apply(self, x: ArrayLike, severity: int, seed: int = 0) -> Array:
        def change(series: Series, rng: np.random.Generator, end: float) -> Series:
            count, length, features = series.shape
            sign = rng.choice([-1.0, 1.0], (count, 1, features))
            return series + end * unit_of(self.scale, features) * sign * np.linspace(0, 1, length)[:, None]

        return _changed(x, severity, seed, self.levels, change)


@dataclass(frozen=True, kw_only=True)
class StuckSensor:
    """The last part of every series repeats the reading before it: a sensor that hangs.

    Args:
        levels: shares of the time at severity 1 to 5.
    """

    levels: Levels = (0.1, 0.2, 0.4, 0.6, 0.9)

    def apply(self, x: ArrayLike, severity: int, seed: int = 0) -> Array:
        def change(series: Series, _rng: np.random.Generator, share: float) -> Series:
            last = max(0, series.shape[1] - 1 - max(1, round(share * series.shape[1])))
            return series[:, np.minimum(np.arange(series.shape[1]), last)]

        return _changed(x, severity, seed, self.levels, change)


@dataclass(frozen=True, kw_only=True)
class Spikes:
    """Single readings five units too high or too low: transmission errors.

    Args:
        scale: unit of each feature, one number or ``(features,)``.
        levels: shares of the readings at severity 1 to 5.
    """

    scale: float | tuple[float, ...] = 1.0
    levels: Levels = (0.01, 0.02, 0.05, 0.1, 0.2)

    def apply(self, x: ArrayLike, severity: int, seed: int = 0) -> Array:
        def change(series: Series, rng: np.random.Generator, share: float) -> Series:
            hit, sign = rng.random(series.shape) < share, rng.choice([-1.0, 1.0], series.shape)
            return series + hit * sign * SPIKE * unit_of(self.scale, series.shape[2])

        return _changed(x, severity, seed, self.levels, change)


@dataclass(frozen=True, kw_only=True)
class Gaps:
    """One gap in each series and feature, filled with the reading before it: readings that never came.

    A gap at the start is filled with the first reading after it.

    Args:
        levels: lengths of the gap at severity 1 to 5, in shares of the time.
    """

    levels: Levels = (0.1, 0.2, 0.35, 0.5, 0.75)

    def apply(self, x: ArrayLike, severity: int, seed: int = 0) -> Array:
        def change(series: Series, rng: np.random.Generator, share: float) -> Series:
            count, length, features = series.shape
            gap = min(length - 1, max(1, round(share * length)))
            start = np.rint(rng.random((count, 1, features)) * (length - gap)).astype(int)
            place = np.broadcast_to(np.arange(length)[:, None], series.shape)
            missing = (place >= start) & (place < start + gap)
            source = np.where(start > 0, start - 1, start + gap)
            return np.take_along_axis(series, np.where(missing, source, place), axis=1)

        return _changed(x, severity, seed, self.levels, change)


@dataclass(frozen=True, kw_only=True)
class TimeWarp:
    """Time runs slowly first and fast later, or the reverse; both ends stay: other dynamics.

    The series at time t in [0, 1] is read at ``t^(1 + level)``, or at ``1 - (1 - t)^(1 + level)``.

    Args:
        levels: exponents less one at severity 1 to 5.
    """

    levels: Levels = (0.1, 0.25, 0.5, 1.0, 2.0)

    def apply(self, x: ArrayLike, severity: int, seed: int = 0) -> Array:
        def change(series: Series, rng: np.random.Generator, level: float) -> Series:
            count, length, _ = series.shape
            time = np.linspace(0, 1, length)
            late = time ** (1 + level)
            read = np.where(rng.random((count, 1)) < 0.5, late, 1 - late[::-1]) * (length - 1)
            low = np.minimum(read.astype(int), length - 2)
            part = (read - low)[:, :, None]
            rows = np.arange(count)[:, None]
            return (1 - part) * series[rows, low] + part * series[rows, low + 1]

        return _changed(x, severity, seed, self.levels, change)
