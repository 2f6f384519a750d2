"""Corruptions of tables ``(n, features)``: noise, missing entries, mixed-up columns, other units, a shift."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .corruption import Change, Levels, changed, per_feature, unit_of

__all__ = ["FeatureNoise", "MissingFeatures", "PermutedFeatures", "Translation", "WrongUnits"]

Array = NDArray[Any]
Table = NDArray[np.float64]
SHARES: Levels = (0.2, 0.4, 0.6, 0.8, 1.0)


def _changed(x: ArrayLike, severity: int, seed: int, levels: Levels, change: Change) -> Array:
    return changed(x, severity, seed, levels, (2,), "(n, features)", change)


def _some(features: int, share: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """A share of the features, at least one; a larger share holds the smaller."""
    return rng.permutation(features)[: max(1, round(share * features))]


@dataclass(frozen=True, kw_only=True)
class FeatureNoise:
    """Gaussian noise on every entry: worse measurements.

    Args:
        scale: unit of each feature, one number or ``(features,)``: train's standard deviations.
        levels: standard deviations at severity 1 to 5, in units of ``scale``.

    Example:
        >>> import numpy as np
        >>> FeatureNoise(scale=(1.0, 50.0)).apply(np.zeros((4, 2)), severity=2).shape
        (4, 2)
    """

    scale: float | tuple[float, ...] = 1.0
    levels: Levels = (0.1, 0.25, 0.5, 1.0, 2.0)

    def apply(self, x: ArrayLike, severity: int, seed: int = 0) -> Array:
        def change(rows: Table, rng: np.random.Generator, std: float) -> Table:
            return rows + std * unit_of(self.scale, rows.shape[1]) * rng.normal(size=rows.shape)

        return _changed(x, severity, seed, self.levels, change)


@dataclass(frozen=True, kw_only=True)
class MissingFeatures:
    """Single entries lost and imputed: what a model sees where forms are filled in badly.

    Args:
        fill: what is imputed, one number or ``(features,)``: train's means or medians.
        levels: shares of the entries at severity 1 to 5.
    """

    fill: float | tuple[float, ...] = 0.0
    levels: Levels = (0.1, 0.2, 0.35, 0.5, 0.8)

    def apply(self, x: ArrayLike, severity: int, seed: int = 0) -> Array:
        def change(rows: Table, rng: np.random.Generator, share: float) -> Table:
            fill = per_feature("fill", self.fill, rows.shape[1])
            return np.where(rng.random(rows.shape) < share, fill, rows)

        return _changed(x, severity, seed, self.levels, change)


@dataclass(frozen=True, kw_only=True)
class PermutedFeatures:
    """Some features shuffled among the rows of the set: same marginals, broken dependence.

    Args:
        levels: shares of the features at severity 1 to 5; at least one feature.
    """

    levels: Levels = SHARES

    def apply(self, x: ArrayLike, severity: int, seed: int = 0) -> Array:
        def change(rows: Table, rng: np.random.Generator, share: float) -> Table:
            chosen = _some(rows.shape[1], share, rng)
            damaged = rows.copy()
            for feature in chosen:
                damaged[:, feature] = rows[rng.permutation(len(rows)), feature]
            return damaged

        return _changed(x, severity, seed, self.levels, change)


@dataclass(frozen=True, kw_only=True)
class WrongUnits:
    """Some features in another unit, ten times as large by default: another laboratory's export.

    Args:
        factor: of the wrong unit.
        zero: what 0 of the right unit is in the network's units, one number or ``(features,)``; for
            standardised features ``-mean / std`` of train.
        levels: shares of the features at severity 1 to 5; at least one feature.
    """

    factor: float = 10.0
    zero: float | tuple[float, ...] = 0.0
    levels: Levels = SHARES

    def apply(self, x: ArrayLike, severity: int, seed: int = 0) -> Array:
        def change(rows: Table, rng: np.random.Generator, share: float) -> Table:
            zero = per_feature("zero", self.zero, rows.shape[1])
            wrong = np.isin(np.arange(rows.shape[1]), _some(rows.shape[1], share, rng))
            return np.where(wrong, zero + self.factor * (rows - zero), rows)

        return _changed(x, severity, seed, self.levels, change)


@dataclass(frozen=True, kw_only=True)
class Translation:
    """All rows moved by one vector in a random direction: shifted covariates, another population.

    Args:
        scale: unit of each feature, one number or ``(features,)``: train's standard deviations.
        levels: lengths of the vector at severity 1 to 5: root mean square over features, in units of
            ``scale``.
    """

    scale: float | tuple[float, ...] = 1.0
    levels: Levels = (0.25, 0.5, 1.0, 2.0, 4.0)

    def apply(self, x: ArrayLike, severity: int, seed: int = 0) -> Array:
        def change(rows: Table, rng: np.random.Generator, length: float) -> Table:
            direction = rng.normal(size=rows.shape[1])
            direction /= np.sqrt((direction**2).mean())
            return rows + length * unit_of(self.scale, rows.shape[1]) * direction

        return _changed(x, severity, seed, self.levels, change)
