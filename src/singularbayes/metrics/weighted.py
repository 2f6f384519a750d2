"""Statistics of resampled rows, computed from how often each row was drawn, not from copies of rows.

A ``Statistic`` maps counts ``(R, N)`` (R replicates of N rows) to named values ``(R,)``. With all counts 1 it
is the plain metric; each metric is defined once, here or beside its plain form, and both uses share that
definition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from .inputs import Floats

Counts = NDArray[np.int32]
Statistic = Callable[[Counts], dict[str, Floats]]


def once(rows: int) -> Counts:
    """Counts ``(1, N)`` of the sample itself: every row once."""
    return np.ones((1, rows), np.int32)


def running_total(counts: Counts, order: NDArray[np.intp]) -> Counts:
    """``total[:, k]``: how often the first ``k`` rows of ``order`` were drawn; ``(R, len(order) + 1)``."""
    total = np.zeros((len(counts), len(order) + 1), np.int32)
    np.cumsum(counts[:, order], axis=1, out=total[:, 1:])
    return total


def groups_of(keys: Floats, values: Floats) -> Callable[[Counts], tuple[Floats, Floats]]:
    """Groups of rows with equal keys, ascending: counts -> rows drawn and sums of values, ``(R, G)``."""
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.diff(keys[order], prepend=-np.inf) > 0)
    ordered = values[order]

    def sums(counts: Counts) -> tuple[Floats, Floats]:
        drawn = counts[:, order].astype(np.float64)
        return np.add.reduceat(drawn, starts, axis=1), np.add.reduceat(drawn * ordered, starts, axis=1)

    return sums


def mean_of(columns: Mapping[str, Floats]) -> Statistic:
    """Means of several per-row columns ``(N,)`` at once; a drawn infinite entry makes its mean infinite."""
    names = list(columns)
    values = np.stack([columns[name] for name in names], 1)
    finite = np.isfinite(values)
    broken = ~finite.all(0)

    def statistic(counts: Counts) -> dict[str, Floats]:
        weights = counts.astype(np.float64)
        means = weights @ np.where(finite, values, 0.0) / weights.sum(1, keepdims=True)
        for j in np.flatnonzero(broken):
            rows = ~finite[:, j]
            means[counts[:, rows].any(1), j] = values[rows, j][0]
        return {name: means[:, j] for j, name in enumerate(names)}

    return statistic


def median_of(columns: Mapping[str, Floats]) -> Statistic:
    """Medians of several per-row columns, as ``np.median`` of the repeated rows."""
    orders = {name: np.argsort(values, kind="stable") for name, values in columns.items()}

    def statistic(counts: Counts) -> dict[str, Floats]:
        medians = {}
        for name, order in orders.items():
            ordered, total = columns[name][order], running_total(counts, order)[:, 1:]
            drawn = total[:, -1:]
            lower = (total < (drawn + 1) // 2).sum(
                1
            )  # index of the middle row, or of the two around the middle
            upper = (total < drawn // 2 + 1).sum(1)
            medians[name] = (ordered[lower] + ordered[upper]) / 2
        return medians

    return statistic
