"""Stratified bootstrap intervals from counts: sort once, draw how often each row is taken, sum with weights.

Rows are resampled with replacement within each stratum (ID and OOD apart; test rows by class), so the size of
every stratum is fixed. Replicates come in blocks of bounded memory; their numbers do not depend on the size
of a block.

References:
    Efron and Tibshirani 1993, section 13.3 (percentile interval).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from . import calibration, ranking, regression, risk
from .inputs import Floats, Ints, class_labels, class_probabilities, numbers, vector
from .weighted import Counts, Statistic, mean_of, once

LEVEL = 0.95
BLOCK = 2**20  # counts held at once: 4 MB, and a few times that in sums


@dataclass(frozen=True)
class Interval:
    """A value with the ends of its interval; nan means undefined (or, for the ends, not asked for).

    Example:
        >>> print(Interval(0.8024, 0.79, 0.815), Interval(float("nan"), float("nan"), float("nan")))
        0.802 [0.790, 0.815] undefined
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if math.isnan(self.value):
            return "undefined"
        if math.isnan(self.low):
            return f"{self.value:.3f}"
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def resample_counts(strata: ArrayLike, replicates: int, seed: int, block: int = BLOCK) -> Iterator[Counts]:
    """Blocks of counts ``(r, N)``: how often each row is drawn in each replicate.

    Each stratum has its own random stream, in the order of the strata's sorted values: adding a stratum at
    the end leaves the resamples of the others as they were.

    Args:
        strata: ``(N,)`` labels; rows are resampled among those with the same label.
        replicates: number of replicates in all.
        seed: of a private generator; the global one is not touched.
        block: most counts to hold at once.
    """
    values, index = np.unique(np.asarray(strata), return_inverse=True)
    members = [np.flatnonzero(index == k) for k in range(len(values))]
    streams = [np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(len(values))]
    step = max(1, block // len(index))
    for start in range(0, replicates, step):
        rows = min(step, replicates - start)
        counts = np.empty((rows, len(index)), np.int32)
        for member, stream in zip(members, streams, strict=True):
            size = len(member)
            drawn = stream.integers(size, size=(rows, size))
            drawn += size * np.arange(rows)[:, None]
            counts[:, member] = np.bincount(drawn.ravel(), minlength=rows * size).reshape(rows, size)
        yield counts


def bootstrap_replicates(
    statistics: Mapping[str, Statistic], strata: ArrayLike, replicates: int, seed: int
) -> dict[str, dict[str, Floats]]:
    """Every statistic on the SAME resamples: name -> measure -> ``(1 + replicates,)``; first the sample."""
    rows = len(np.asarray(strata))
    parts = [{name: statistic(once(rows)) for name, statistic in statistics.items()}]
    parts += [
        {name: statistic(counts) for name, statistic in statistics.items()}
        for counts in resample_counts(strata, replicates, seed)
    ]
    return {
        name: {key: np.concatenate([part[name][key] for part in parts]) for key in parts[0][name]}
        for name in statistics
    }


def percentile_interval(values: Floats, level: float = LEVEL) -> Interval:
    """The interval of a sample's value (first entry) from its replicates (the rest).

    Undefined replicates are left out. The interval is widened to hold the value itself, which a statistic
    with a bias (the calibration error) can otherwise leave.
    """
    value, replicates = float(values[0]), values[1:][~np.isnan(values[1:])]
    if math.isnan(value) or not len(replicates):
        return Interval(value, math.nan, math.nan)
    low, high = np.quantile(replicates, [(1 - level) / 2, (1 + level) / 2], method="inverted_cdf")
    return Interval(value, min(float(low), value), max(float(high), value))


def _probabilistic(per_row: Callable[[Floats, Ints], Floats]) -> Callable[..., Statistic]:
    def build(probs: ArrayLike, labels: ArrayLike) -> Statistic:
        checked = class_probabilities(probs)
        return mean_of({"value": per_row(checked, class_labels(labels, checked))})

    return build


def _calibration(probs: ArrayLike, labels: ArrayLike, bins: int = calibration.BINS) -> Statistic:
    checked = class_probabilities(probs)
    pair = calibration.confidence_of(checked, class_labels(labels, checked))
    return calibration.calibration_error_of(*pair, bins)


def _adaptive(probs: ArrayLike, labels: ArrayLike, bins: int = calibration.BINS) -> Statistic:
    checked = class_probabilities(probs)
    return calibration.adaptive_error_of(
        *calibration.confidence_of(checked, class_labels(labels, checked)), bins
    )


# Weighted forms of metrics: the same numbers as resampling the rows, hundreds of times faster.
_WEIGHTED: dict[Callable[..., float], Callable[..., Statistic]] = {
    ranking.auroc: lambda s, p: ranking.auroc_of(*ranking.checked_ranking(s, p)),
    ranking.average_precision: lambda s, p: ranking.average_precision_of(*ranking.checked_ranking(s, p)),
    ranking.fpr_at_tpr: lambda s, p: ranking.fpr_at_tpr_of(*ranking.checked_ranking(s, p)),
    risk.error_average_precision: lambda u, e: risk.error_precision_of(*risk.checked(u, e)),
    risk.success_average_precision: lambda u, e: risk.success_precision_of(*risk.checked(u, e)),
    risk.selective_risk_area: lambda u, e: risk.risk_area_of(vector(u, "uncertainty"), vector(e, "loss")),
    calibration.accuracy: _probabilistic(lambda p, y: 1 - calibration.errors_of(p, y)),
    calibration.negative_log_likelihood: _probabilistic(calibration.log_losses_of),
    calibration.brier: _probabilistic(calibration.brier_of),
    calibration.expected_calibration_error: _calibration,
    calibration.adaptive_calibration_error: _adaptive,
    regression.regression_calibration_error: lambda cdf: regression.calibration_error_of(numbers(cdf, "cdf")),
}


def _row_by_row(metric: Callable[..., float], arrays: list[np.ndarray]) -> Statistic:
    """Any metric, by copying the drawn rows: slow, and right by definition."""

    def statistic(counts: Counts) -> dict[str, Floats]:
        values = np.empty(len(counts))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a replicate may be undefined; the sample's own value has warned
            for r, row in enumerate(counts):
                drawn = np.repeat(np.arange(len(row)), row)
                values[r] = metric(*(array[drawn] for array in arrays))
        return {"value": values}

    return statistic


def bootstrap_interval(
    metric: Callable[..., float],
    *arrays: ArrayLike,
    strata: ArrayLike | None = None,
    replicates: int = 1000,
    level: float = LEVEL,
    seed: int = 0,
) -> Interval:
    """A metric with its stratified percentile bootstrap interval.

    The ranking, calibration and probability metrics of this package are computed from counts (1000 replicates
    on 8000 rows in a fraction of a second); any other function of arrays is called on every resample.

    Args:
        metric: function of the arrays, returning one number.
        arrays: the metric's arguments, each with one entry per row along axis 0.
        strata: ``(N,)`` labels; rows are resampled within each (pass ``positive`` to keep the class sizes).
        replicates: number of resamples; 0 gives the value alone.
        level: of the interval.
        seed: of a private generator.

    Returns:
        The metric of the sample and the ends of its interval; nan where undefined.

    Raises:
        ValueError: lengths differ, no rows, or a level outside (0, 1).

    Example:
        >>> from singularbayes import metrics
        >>> scores, out = [0.1, 0.2, 0.3, 0.4, 0.9, 0.35, 0.5, 0.6, 0.7, 0.95], [0] * 5 + [1] * 5
        >>> interval = bootstrap_interval(metrics.auroc, scores, out, strata=out)
        >>> interval.low <= interval.value <= interval.high
        True
    """
    if not arrays:
        raise ValueError(
            "bootstrap_interval got a metric but no arrays; pass the metric's arguments after it"
        )
    if not 0 < level < 1:
        raise ValueError(f"level must lie strictly between 0 and 1, got {level}")
    check_count("replicates", replicates, least=0)
    columns = [np.asarray(array) for array in arrays]
    groups = np.zeros(len(columns[0]), np.int64) if strata is None else np.asarray(strata).reshape(-1)
    lengths = [len(column) for column in columns] + [len(groups)]
    if len(set(lengths)) > 1 or lengths[0] == 0:
        raise ValueError(f"arrays and strata have {lengths} rows, expected the same number, at least one")
    value = float(metric(*columns))
    build = _WEIGHTED.get(metric)
    statistic = _row_by_row(metric, columns) if build is None else build(*columns)
    draws = bootstrap_replicates({"metric": statistic}, groups, replicates, seed)["metric"]
    (measured,) = draws.values()
    return percentile_interval(np.concatenate([[value], measured[1:]]), level)


def check_count(name: str, value: Any, least: int) -> None:
    """Raise unless ``value`` is an integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
