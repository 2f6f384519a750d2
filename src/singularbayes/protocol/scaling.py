"""Statistics that more than train fixed: found from scaled data, from data before and after, or a transform.

A set of rows that a scaler was fitted on shows it: its mean is 0 and its standard deviation 1 to the last
digits (or its range [0, 1], or median 0 and interquartile range 1). Where train does not show it and train
together with other sets does, the scaler saw them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from .findings import Finding, listed

__all__ = ["map_findings", "scaled_findings", "transform_findings"]

Matrix = NDArray[np.float64]
EXACT = 1e-5  # of a statistic that the scaler itself made 0 or 1; float32 leaves 1e-7
OFF = 1e-4  # from here on it did not
SAME = 1e-4  # relative: a centre or a width read off a map in float32


def unions(sets: Mapping[str, Matrix]) -> Iterator[tuple[str, ...]]:
    """Train with further sets: one or two ID sets, then all of them with OOD sets."""
    inside = [name for name in ("validation", "test") if name in sets]
    outside = [name for name in sets if name not in ("train", *inside)]
    for size in range(1, len(inside) + 1):
        yield from (("train", *chosen) for chosen in combinations(inside, size))
    for name in outside:
        yield ("train", name)
        yield ("train", *inside, name)
    if len(outside) > 1:
        yield ("train", *inside, *outside)


def _pooled(sets: Mapping[str, Matrix], names: Sequence[str]) -> Matrix:
    return np.concatenate([sets[name] for name in names])


def _centres(rows: Matrix) -> dict[str, tuple[Matrix, Matrix]]:
    """What scalers take: name -> centre and width of every feature ``(k,)``."""
    low, high, fewer = rows.min(axis=0), rows.max(axis=0), min(1, len(rows) - 1)
    lower, middle, upper = np.quantile(rows, [0.25, 0.5, 0.75], axis=0)
    ones = np.ones(rows.shape[1])
    return {
        "mean and standard deviation": (rows.mean(axis=0), rows.std(axis=0)),
        "mean and standard deviation (n - 1)": (rows.mean(axis=0), rows.std(axis=0, ddof=fewer)),
        "minimum and range": (low, high - low),
        "median and interquartile range": (middle, upper - lower),
        "largest absolute value": (0 * ones, np.abs(rows).max(axis=0)),
        "one mean and one standard deviation": (rows.mean() * ones, rows.std() * ones),
        "one minimum and one range": (low.min() * ones, (high.max() - low.min()) * ones),
    }  # fmt: skip


_MADE = tuple(name for name in _centres(np.zeros((2, 1))) if name != "largest absolute value")


def scaled_findings(sets: Mapping[str, Matrix]) -> list[Finding]:
    """Leaks that scaled data show by themselves.

    Args:
        sets: set -> rows ``(n, k)`` as the network sees them, "train" among them.

    Returns:
        At most one finding for train with other sets, and one for each other set that was scaled by itself.
    """
    train = sets["train"]
    continuous = np.array([len(np.unique(column)) > len(train) / 2 for column in train.T])
    off = {name: _away(rows) for name, rows in sets.items()}
    found = []
    for names in unions(sets):
        pooled = _away(_pooled(sets, names))
        for made in _MADE:
            hits = (pooled[made] < EXACT) & (off["train"][made] > OFF)
            if "range" in made:  # categories and grey levels have exact ends of their own
                hits &= continuous
            if hits.any():
                found.append(_leak(names, made, int(hits.sum()), train.shape[1]))
                break
        if found:
            break
    for name in sets:
        if name == "train":
            continue
        for made in _MADE[:2]:
            hits = off[name][made] < EXACT
            if hits.any():
                message = (
                    f"{made} of {name} by itself are 0 and 1 in {hits.sum()} of {train.shape[1]} features, "
                    f"so {name} was scaled with its own; scale it with those of train"
                )
                found.append(Finding(kind="scaling", sets=(name,), leak=True, message=message))
                break
    return found


def _away(rows: Matrix) -> dict[str, Matrix]:
    """How far every feature's centre is from 0 and its width from 1, by kind of scaler."""
    return {
        name: np.maximum(np.abs(centre), np.abs(width - 1))
        for name, (centre, width) in _centres(rows).items()
    }


def _leak(names: Sequence[str], made: str, features: int, of: int) -> Finding:
    others = " and ".join(names[1:])
    message = (
        f"{made} of {' + '.join(names)} together fixed the scale of {features} of {of} features, so the "
        f"scaler saw {others}; fit it on train alone"
    )
    return Finding(kind="scaling", sets=tuple(names), leak=True, message=message)


def map_findings(raw: Mapping[str, Matrix], scaled: Mapping[str, Matrix]) -> list[Finding]:
    """Leaks that show in the map from the data before scaling to those after it.

    The map ``after = (before - centre) / width`` is read off train, feature by feature; its centre and width
    are then looked for among the statistics of train, and of train with other sets.

    Args:
        raw: set -> rows ``(n, k)`` before.
        scaled: the same sets and rows after.

    Raises:
        ValueError: other sets, rows or features before than after.
    """
    for name in scaled:
        if name not in raw or raw[name].shape != scaled[name].shape:
            got = raw[name].shape if name in raw else "no such set"
            raise ValueError(
                f"raw data of set {name!r}: got {got}, expected {scaled[name].shape}; give the same rows "
                f"and features before scaling"
            )
    before, after = raw["train"], scaled["train"]
    middle = before.mean(axis=0)
    moving = (before - middle).std(axis=0) > 0
    variance = np.where(moving, before.var(axis=0), 1)
    slope = ((before - middle) * (after - after.mean(axis=0))).mean(axis=0) / variance
    moving &= slope != 0
    fitted = (before - middle) * slope + after.mean(axis=0)
    spread = np.where(moving, after.std(axis=0), 1)
    straight = np.abs(fitted - after).max(axis=0) <= 1e-3 * spread
    if not straight[moving].all():
        bent = np.flatnonzero(moving & ~straight)
        message = (
            f"features {listed(bent)} are no shifted and scaled copies of the raw ones, so their statistics "
            f"cannot be read off; pass the transform itself"
        )
        return [Finding(kind="scaling", sets=("train",), leak=False, message=message)]
    if not moving.any():
        return []
    width = 1 / np.where(moving, slope, 1)
    centre = middle - after.mean(axis=0) * width

    def made_by(names: Sequence[str]) -> str | None:
        for made, (its_centre, its_width) in _centres(_pooled(raw, names)).items():
            close = np.abs(np.stack([its_centre - centre, its_width - width]))[:, moving]
            if (close <= SAME * np.abs(width[moving])).all():
                return made
        return None

    if made_by(("train",)) is not None:
        return []
    for names in unions(raw):
        if (made := made_by(names)) is not None:
            return [_leak(names, made, int(moving.sum()), before.shape[1])]
    return []  # constants, such as grey levels over 255


def transform_findings(transform: Any, raw: Mapping[str, Any]) -> list[Finding]:
    """Whether a fitted transform of scikit-learn's kind is what it becomes when fitted on train alone.

    Args:
        transform: fitted, with ``fit``, ``transform`` and ``get_params``: a scaler, an imputer, a pipeline.
        raw: set -> rows before the transform, in the form that it takes.

    Raises:
        TypeError: no such transform.
    """
    if isinstance(transform, type) or not all(
        callable(getattr(transform, name, None)) for name in ("fit", "transform", "get_params")
    ):
        raise TypeError(
            f"transform is {transform!r}; expected a fitted object with fit, transform and get_params, as "
            f"scikit-learn's are; for any other scaling pass raw="
        )
    given = np.asarray(transform.transform(raw["train"]), np.float64)
    spread = np.where(given.std(axis=0) > 0, given.std(axis=0), 1)

    def same(names: Sequence[str]) -> bool:
        fresh: Any = clone(transform)
        fresh.fit(_pooled(raw, names))
        again = np.asarray(fresh.transform(raw["train"]), np.float64)
        return again.shape == given.shape and bool((np.abs(again - given) <= 1e-6 * spread).all())

    if same(("train",)):
        return []
    for names in unions(raw):
        if same(names):
            message = (
                f"{type(transform).__name__} was fitted on {' + '.join(names)}, so it saw "
                f"{' and '.join(names[1:])}; fit it on train alone"
            )
            return [Finding(kind="scaling", sets=tuple(names), leak=True, message=message)]
    message = (
        f"{type(transform).__name__} was fitted neither on train nor on train with other sets of this "
        f"protocol; fit it on train alone"
    )
    return [Finding(kind="scaling", sets=("train",), leak=True, message=message)]
