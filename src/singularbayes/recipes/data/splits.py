"""The one shape in which every recipe hands over its data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

Features = NDArray[np.float32]
Labelled = tuple[Features, NDArray[np.number]]
MaybeLabelled = tuple[Features, NDArray[np.number] | None]


@dataclass(frozen=True)
class Units:
    """What a standardised y stands for: ``zero + one * y``, in units of a name.

    Args:
        name: of the units, for notes and headings.
        zero: what 0 stands for.
        one: the length of 1; positive.

    Raises:
        ValueError: a length that is not positive and finite, or a zero that is not finite.
    """

    name: str
    zero: float
    one: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.zero) and math.isfinite(self.one) and self.one > 0):
            raise ValueError(f"got zero={self.zero}, one={self.one}, expected finite numbers, one above 0")


@dataclass(frozen=True)
class Splits:
    """Train, validation and test rows of one task, with its out-of-distribution (OOD) sets.

    `train` alone fixes every statistic (scale, medians, limits). Choices are made on `validation` and
    `ood_validation`; `test` and `ood` are scored once.

    Args:
        train: `(X, y)`, X of shape (n, *features) in float32, in the units that the notes state.
        validation: `(X, y)` for early stopping, temperature and the choice of settings.
        test: `(X, y)`.
        ood: name -> `(X, y)`, or `(X, None)` where a set has no labels of this task.
        ood_validation: name -> the same, for choices; it shares no row with `ood`.
        feature_names: one name per entry of a flat row of X.
        class_names: one name per class, empty for a regression.
        notes: plain sentences: counts, what was imputed, what was fitted on train only, licences.
        label_units: of a y that is standardised; results are then stated in them.

    Raises:
        ValueError: rows and labels differ in number, a set is empty, X is not finite float32, or a set has
            another number of features than there are names.
    """

    train: Labelled
    validation: Labelled
    test: Labelled
    ood: Mapping[str, MaybeLabelled]
    ood_validation: Mapping[str, MaybeLabelled] = field(default_factory=dict)
    feature_names: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    label_units: Units | None = None

    def __post_init__(self) -> None:
        for name, (features, labels) in self.named_sets().items():
            _check(name, features, labels, len(self.feature_names))
        object.__setattr__(self, "ood", MappingProxyType(dict(self.ood)))
        object.__setattr__(self, "ood_validation", MappingProxyType(dict(self.ood_validation)))

    def __reduce__(self) -> tuple[type[Splits], tuple[object, ...]]:
        """Pickle and deep-copy through the constructor: read-only mappings do neither by themselves."""
        sets = (self.train, self.validation, self.test, dict(self.ood), dict(self.ood_validation))
        return Splits, (*sets, self.feature_names, self.class_names, self.notes, self.label_units)

    def named_sets(self) -> dict[str, MaybeLabelled]:
        """Every set under one name: "train", "validation", "test", "ood/NAME", "ood_validation/NAME"."""
        sets: dict[str, MaybeLabelled] = {
            "train": self.train,
            "validation": self.validation,
            "test": self.test,
        }
        sets |= {f"ood/{name}": pair for name, pair in self.ood.items()}
        sets |= {f"ood_validation/{name}": pair for name, pair in self.ood_validation.items()}
        return sets

    @property
    def train_and_validation(self) -> Labelled:
        """Both sets in one, train first: for a method that chooses nothing."""
        (x, y), (more_x, more_y) = self.train, self.validation
        return np.concatenate([x, more_x]), np.concatenate([y, more_y])


def _check(name: str, features: Features, labels: NDArray[np.number] | None, width: int) -> None:
    if features.dtype != np.float32 or features.ndim < 2:
        raise ValueError(
            f"{name}: got X of {features.dtype} with shape {features.shape}, expected float32 (n, features)"
        )
    if len(features) == 0:
        raise ValueError(f"{name}: got no rows, expected at least one; check how the data were divided")
    if features[0].size != width:
        raise ValueError(
            f"{name}: got {features[0].size} features a row, expected {width}, one for each feature name"
        )
    bad = np.argwhere(~np.isfinite(features))
    if len(bad):
        column = ", ".join(map(str, bad[0][1:]))
        raise ValueError(
            f"{name}: got nan or inf in row {bad[0][0]}, column {column}; impute or drop it first"
        )
    if labels is not None and len(labels) != len(features):
        raise ValueError(
            f"{name}: got {len(features)} rows and {len(labels)} labels, expected as many of both"
        )
