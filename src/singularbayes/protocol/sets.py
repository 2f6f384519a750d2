"""Builders of out-of-distribution (OOD) sets from data at hand: classes, groups and tails held out, noise.

Each keeps its rows as they are or draws them from a generator of its own: the same seed gives the same set,
and the global random state is not touched. Rows that are held out belong into no other set: hold out first,
then divide the rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .findings import listed

__all__ = [
    "HeldOut",
    "biased_sample",
    "gaussian_noise",
    "hold_out_classes",
    "hold_out_groups",
    "hold_out_tail",
    "permuted_features",
    "uniform_noise",
]

Array = NDArray[Any]


@dataclass(frozen=True)
class HeldOut:
    """A data set in two: the rows that stay, and those that are out-of-distribution.

    Args:
        inside: ``(X, y)`` to divide into train, validation and test.
        outside: ``(X, y)`` of the OOD set, with the labels that it came with.
        inside_rows: row numbers of ``inside`` in the data given.
        outside_rows: those of ``outside``.
    """

    inside: tuple[Array, Array]
    outside: tuple[Array, Array]
    inside_rows: NDArray[np.int64]
    outside_rows: NDArray[np.int64]


def _divided(x: ArrayLike, y: ArrayLike, outside: NDArray[np.bool_]) -> HeldOut:
    rows, labels = np.asarray(x), np.asarray(y)
    if len(rows) != len(labels) or len(rows) != len(outside):
        raise ValueError(
            f"got {len(rows)} rows, {len(labels)} labels and {len(outside)} values to divide by; "
            f"expected as many of each"
        )
    for name, chosen in (("outside", outside), ("inside", ~outside)):
        if not chosen.any():
            raise ValueError(f"no row is {name}; hold out some of the rows, not none and not all")
    out, kept = np.flatnonzero(outside), np.flatnonzero(~outside)
    return HeldOut((rows[kept], labels[kept]), (rows[out], labels[out]), kept, out)


def _known(what: str, wanted: Iterable[Any], values: NDArray[Any]) -> list[Any]:
    asked, known = list(wanted), set(values.tolist())
    missing = [value for value in asked if value not in known]
    if missing:
        raise ValueError(
            f"no row has the {what} {listed(map(repr, missing))}; there are "
            f"{listed(map(repr, sorted(known)), 20)}"
        )
    return asked


def hold_out_classes(x: ArrayLike, y: ArrayLike, classes: Iterable[int]) -> HeldOut:
    """Some classes as the OOD set: new kinds of case, near in look (semantic shift).

    The labels that stay are numbered 0, 1, ... in the order of the old numbers; those outside keep theirs and
    are of no class of the network, so pass ``outside[0]`` alone to ``evaluate``.

    Args:
        x: ``(n, *features)``.
        y: ``(n,)`` class numbers.
        classes: those to hold out.

    Raises:
        ValueError: a class that no row has, or nothing left on a side.

    Example:
        >>> held = hold_out_classes([[0.0], [1.0], [2.0], [3.0]], [5, 7, 8, 7], classes=[7])
        >>> held.inside[1], held.outside[1]
        (array([0, 1]), array([7, 7]))
    """
    labels = np.asarray(y)
    held = _divided(x, labels, np.isin(labels, _known("class", classes, labels)))
    fresh = np.unique(held.inside[1], return_inverse=True)[1]
    return HeldOut((held.inside[0], fresh), held.outside, held.inside_rows, held.outside_rows)


def hold_out_groups(x: ArrayLike, y: ArrayLike, groups: ArrayLike, outside: Iterable[Any]) -> HeldOut:
    """Some groups as the OOD set: other cities, hospitals, seasons or years (domain shift).

    Labels keep their meaning, so calibration can be measured there too.

    Args:
        x: ``(n, *features)``; leave the group's own column out, or the shift is told by the answer.
        y: ``(n,)`` or ``(n, k)`` labels.
        groups: ``(n,)`` what each row belongs to: names or numbers.
        outside: the groups to hold out.

    Raises:
        ValueError: a group that no row has, or nothing left on a side.

    Example:
        >>> held = hold_out_groups([[0.0], [1.0], [2.0]], [0, 1, 0], ["Rome", "Oslo", "Rome"], ["Oslo"])
        >>> held.outside_rows
        array([1])
    """
    values = np.asarray(groups)
    return _divided(x, y, np.isin(values, _known("group", outside, values)))


def _covariate(by: ArrayLike) -> NDArray[np.float64]:
    values = np.asarray(by, np.float64).reshape(-1)
    if not np.isfinite(values).all():
        row = np.flatnonzero(~np.isfinite(values))[0]
        raise ValueError(f"the covariate is {values[row]} in row {row}; expected finite numbers")
    return values


def hold_out_tail(
    x: ArrayLike, y: ArrayLike, by: ArrayLike, share: float = 0.1, *, lower: bool = False
) -> HeldOut:
    """The rows with the largest values of a covariate as the OOD set (shifted covariates, other support).

    What is learned on the rest has to be extrapolated; p(y | x) stays as it is.

    Args:
        x: ``(n, *features)``.
        y: ``(n,)`` or ``(n, k)`` labels.
        by: ``(n,)`` the covariate, such as an age or a column of ``x``. Rows of equal value stay together.
        share: of the rows to hold out, at most.
        lower: hold out the smallest values instead.

    Raises:
        ValueError: a share outside (0, 1), or so many equal values that no row can be held out.

    Example:
        >>> hold_out_tail(
        ...     [[3.0], [1.0], [2.0], [9.0]], [0, 1, 0, 1], by=[3, 1, 2, 9], share=0.25
        ... ).outside_rows
        array([3])
    """
    if not 0 < share < 1:
        raise ValueError(f"share must lie strictly between 0 and 1, got {share}")
    values = -_covariate(by) if lower else _covariate(by)
    wanted = int(np.floor(share * len(values)))
    cut = np.sort(values)[len(values) - wanted - 1]
    return _divided(x, y, values > cut)


def biased_sample(
    x: ArrayLike, y: ArrayLike, by: ArrayLike, strength: float, count: int, seed: int = 0
) -> tuple[Array, Array]:
    """Rows drawn with weights ``exp(strength z)`` (shifted covariates, same support): a graded near set.

    ``z`` is the covariate in standard deviations from its mean; for a Gaussian one the mean moves by
    ``strength`` standard deviations. Rows are drawn WITHOUT repeats, which weakens the shift as
    ``count`` comes near n.

    Args:
        x: ``(n, *features)``, rows of which none is in train.
        y: labels.
        by: ``(n,)`` the covariate.
        strength: 0 for no shift; negative for towards small values.
        count: rows to draw.
        seed: of the draw.

    Raises:
        ValueError: more rows than there are, or a covariate that does not vary.
    """
    rows, labels, values = np.asarray(x), np.asarray(y), _covariate(by)
    if not 0 < count <= len(rows):
        raise ValueError(f"count must lie in 1..{len(rows)} (the rows given), got {count}")
    if not len(rows) == len(labels) == len(values):
        raise ValueError(
            f"got {len(rows)} rows, {len(labels)} labels and {len(values)} values; expected as many"
        )
    if not values.std() > 0:
        raise ValueError("the covariate is the same in every row, so nothing can be shifted along it")
    z = (values - values.mean()) / values.std()
    race = strength * z + np.random.default_rng(seed).gumbel(size=len(z))  # Gumbel top-k: weights, no repeats
    chosen = np.argsort(-race, kind="stable")[:count]
    return rows[chosen], labels[chosen]


def permuted_features(x: ArrayLike, seed: int = 0) -> Array:
    """Every feature shuffled among the rows by itself: same marginals, no dependence (far for a joint model).

    A score that looks at one feature at a time cannot see it; one that looks at how they go together can.

    Args:
        x: ``(n, *features)``, rows of which none is in train.
        seed: of the permutations.

    Raises:
        ValueError: fewer than two rows or two features.
    """
    rows = np.asarray(x)
    flat = rows.reshape(len(rows), -1)
    if min(flat.shape) < 2:
        raise ValueError(f"got X of shape {rows.shape}; expected at least two rows and two features")
    return np.random.default_rng(seed).permuted(flat, axis=0).reshape(rows.shape)


def gaussian_noise(train: ArrayLike, count: int, seed: int = 0) -> Array:
    """Independent Gaussian features with train's means and standard deviations: a far set.

    Args:
        train: ``(n, *features)``.
        count: rows to make.
        seed: of the noise.

    Returns:
        ``(count, *features)`` of train's dtype.
    """
    rows = _numbers(train, count)
    noise = np.random.default_rng(seed).normal(size=(count, *rows.shape[1:]))
    return (rows.mean(axis=0) + rows.std(axis=0) * noise).astype(rows.dtype)


def uniform_noise(train: ArrayLike, count: int, seed: int = 0) -> Array:
    """Independent features, uniform between train's smallest and largest value of each: a far set.

    Args:
        train: ``(n, *features)``.
        count: rows to make.
        seed: of the noise.

    Returns:
        ``(count, *features)`` of train's dtype.
    """
    rows = _numbers(train, count)
    noise = np.random.default_rng(seed).random((count, *rows.shape[1:]))
    low, high = rows.min(axis=0), rows.max(axis=0)
    return (low + (high - low) * noise).astype(rows.dtype)


def _numbers(train: ArrayLike, count: int) -> Array:
    rows = np.asarray(train)
    if rows.dtype.kind != "f" or len(rows) == 0:
        raise ValueError(
            f"train has {len(rows)} rows of {rows.dtype}; expected floating point, at least one row"
        )
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    return rows
