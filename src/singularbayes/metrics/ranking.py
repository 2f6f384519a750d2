"""How well a score ranks one class above another: AUROC, average precision, false alarms, Spearman.

Every function states which class is positive through its argument ``positive``; a higher score means "more
positive". Tied scores count as one threshold, so the order of the rows never matters.

References:
    Fawcett 2006, "An introduction to ROC analysis"; Davis and Goadrich 2006 (step-wise precision-recall).
"""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import ArrayLike

from .inputs import Bools, Floats, flags, same_shape, vector
from .weighted import Counts, Statistic, once, running_total


class Ranking:
    """Rows sorted once, so that any number of resamples is measured by cumulative sums.

    Args:
        scores: ``(N,)``, higher is more positive.
        positive: ``(N,)`` booleans.
    """

    def __init__(self, scores: Floats, positive: Bools) -> None:
        rows = np.arange(len(scores))
        above, below = scores[positive], scores[~positive]
        self.positives = rows[positive][np.argsort(-above, kind="stable")]  # highest score first
        self.negatives = rows[~positive][np.argsort(-below, kind="stable")]
        above, below = np.sort(above), np.sort(below)
        at = above[::-1]  # the score of each positive, in the order of self.positives
        self.positives_at_or_above = len(above) - np.searchsorted(above, at, "left")
        self.negatives_at_or_above = len(below) - np.searchsorted(below, at, "left")
        self.negatives_above = len(below) - np.searchsorted(below, at, "right")

    def resample(self, counts: Counts) -> Resample:
        """The ranking with row ``i`` taken ``counts[r, i]`` times in replicate ``r``."""
        return Resample(self, counts)


class Resample:
    """Cumulative hits and false alarms of ``R`` replicates of a ranking; undefined values are nan."""

    def __init__(self, ranking: Ranking, counts: Counts) -> None:
        self.ranking = ranking
        self.hits = running_total(counts, ranking.positives)  # (R, P + 1)
        self.alarms = running_total(counts, ranking.negatives)  # (R, N + 1)
        self.drawn = counts[:, ranking.positives]  # (R, P)
        self.total_hits = self.hits[:, -1].astype(np.float64)
        self.total_alarms = self.alarms[:, -1].astype(np.float64)
        self.undefined = (self.total_hits == 0) | (self.total_alarms == 0)

    def auroc(self) -> Floats:
        """P(positive scores above negative) + P(tie) / 2."""
        below = 2.0 * self.total_alarms[:, None] - self.alarms[:, self.ranking.negatives_at_or_above]
        below -= self.alarms[:, self.ranking.negatives_above]
        wins = np.einsum("ri,ri->r", self.drawn, below) / 2
        return self._mask(wins, self.total_hits * self.total_alarms)

    def average_precision(self) -> Floats:
        """Step-wise sum of precision times the increase in recall."""
        hits = self.hits[:, self.ranking.positives_at_or_above]
        precision = hits / np.maximum(hits + self.alarms[:, self.ranking.negatives_at_or_above], 1)
        return self._mask(np.einsum("ri,ri->r", self.drawn, precision), self.total_hits)

    def fpr_at_tpr(self, tpr: float) -> Floats:
        """False positive rate at the highest threshold whose true positive rate reaches ``tpr``."""
        needed = tpr * self.total_hits - 1e-9  # .95 * 20 must not ask for 20 of 20
        first = (self.hits[:, 1:] < needed[:, None]).sum(1)
        first = np.minimum(first, max(len(self.ranking.positives) - 1, 0))
        if not len(self.ranking.positives):
            return np.full(len(self.hits), np.nan)
        alarms = self.alarms[np.arange(len(first)), self.ranking.negatives_at_or_above[first]]
        return self._mask(alarms.astype(np.float64), self.total_alarms)

    def _mask(self, numerator: Floats, denominator: Floats) -> Floats:
        return np.where(self.undefined, np.nan, numerator / np.where(self.undefined, 1.0, denominator))


def ood_ranking(scores: Floats, out: Bools, tpr: float = 0.95) -> Statistic:
    """The four measures of out-of-distribution detection, from one sort.

    ``auroc``, ``fpr95`` and ``average_precision_out`` have OOD as the positive class;
    ``average_precision_in`` has the in-distribution rows as positive and the score negated.
    """
    outwards, inwards = Ranking(scores, out), Ranking(-scores, ~out)

    def statistic(counts: Counts) -> dict[str, Floats]:
        resample = outwards.resample(counts)
        return {
            "auroc": resample.auroc(),
            "average_precision_out": resample.average_precision(),
            "average_precision_in": inwards.resample(counts).average_precision(),
            "fpr95": resample.fpr_at_tpr(tpr),
        }

    return statistic


def auroc_of(scores: Floats, positive: Bools) -> Statistic:
    """The weighted form of :func:`auroc`."""
    ranking = Ranking(scores, positive)
    return lambda counts: {"auroc": ranking.resample(counts).auroc()}


def average_precision_of(scores: Floats, positive: Bools) -> Statistic:
    """The weighted form of :func:`average_precision`."""
    ranking = Ranking(scores, positive)
    return lambda counts: {"average_precision": ranking.resample(counts).average_precision()}


def fpr_at_tpr_of(scores: Floats, positive: Bools, tpr: float = 0.95) -> Statistic:
    """The weighted form of :func:`fpr_at_tpr`."""
    if not 0 < tpr <= 1:
        raise ValueError(f"tpr must lie in (0, 1], got {tpr}; 0.95 asks for the false alarms at 95% hits")
    ranking = Ranking(scores, positive)
    return lambda counts: {"fpr_at_tpr": ranking.resample(counts).fpr_at_tpr(tpr)}


def spearman_of(first: Floats, second: Floats) -> Statistic:
    """The weighted form of :func:`spearman`: Pearson's correlation of the mid-ranks of the repeated rows."""
    columns = [(np.argsort(values, kind="stable"), np.sort(values)) for values in (first, second)]

    def ranks(counts: Counts, order: np.ndarray, ordered: Floats) -> Floats:
        total = running_total(counts, order)
        left, right = np.searchsorted(ordered, ordered, "left"), np.searchsorted(ordered, ordered, "right")
        centred = (total[:, left] + total[:, right] - total[:, -1:]) / 2.0  # mid-rank minus the mean rank
        back = np.empty_like(centred)
        back[:, order] = centred
        return back

    def statistic(counts: Counts) -> dict[str, Floats]:
        a, b = (ranks(counts, order, ordered) for order, ordered in columns)
        weights = counts.astype(np.float64)
        covariance = np.einsum("ri,ri,ri->r", weights, a, b)
        scale = np.sqrt(np.einsum("ri,ri,ri->r", weights, a, a) * np.einsum("ri,ri,ri->r", weights, b, b))
        return {"spearman": np.where(scale > 0, covariance / np.where(scale > 0, scale, 1.0), np.nan)}

    return statistic


def checked_ranking(scores: ArrayLike, positive: ArrayLike) -> tuple[Floats, Bools]:
    """Scores and flags of equal length."""
    values, is_positive = vector(scores, "scores"), flags(positive, "positive")
    same_shape(scores=values, positive=is_positive)
    return values, is_positive


def one_class(name: str, positive: Bools) -> bool:
    """Whether only one class is present; if so, warn that the metric ``name`` is undefined (nan)."""
    if positive.any() and not positive.all():
        return False
    which = "positive" if positive.any() else "negative"
    warnings.warn(
        f"{name} is undefined (nan): all {len(positive)} rows are {which}, and it needs both classes",
        stacklevel=3,
    )
    return True


def auroc(scores: ArrayLike, positive: ArrayLike) -> float:
    """Area under the ROC curve: the chance that a positive row scores above a negative one, ties half.

    Args:
        scores: ``(N,)``, higher is more positive.
        positive: ``(N,)``, 1 for the positive class.

    Returns:
        A number in [0, 1]; .5 is no signal, below .5 the order is inverted; nan, with a warning, for one
        class.

    Example:
        >>> auroc([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1])
        0.75
    """
    values, is_positive = checked_ranking(scores, positive)
    if one_class("auroc", is_positive):
        return float("nan")
    return float(auroc_of(values, is_positive)(once(len(values)))["auroc"][0])


def average_precision(scores: ArrayLike, positive: ArrayLike) -> float:
    """Area under the precision-recall curve by steps: ``sum_k (R_k - R_(k-1)) P_k`` over distinct thresholds.

    Its value for a score without signal is the share of positives, so print that share beside it.

    Args:
        scores: ``(N,)``, higher is more positive.
        positive: ``(N,)``, 1 for the positive class.

    Returns:
        A number in [0, 1]; nan, with a warning, for one class.

    Example:
        >>> round(average_precision([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1]), 6)
        0.833333
    """
    values, is_positive = checked_ranking(scores, positive)
    if one_class("average_precision", is_positive):
        return float("nan")
    return float(average_precision_of(values, is_positive)(once(len(values)))["average_precision"][0])


def fpr_at_tpr(scores: ArrayLike, positive: ArrayLike, tpr: float = 0.95) -> float:
    """False positive rate at the highest threshold that still finds a share ``tpr`` of the positives.

    Args:
        scores: ``(N,)``, higher is more positive.
        positive: ``(N,)``, 1 for the positive class (OOD, for OOD detection).
        tpr: share of positives that must be found.

    Returns:
        A number in [0, 1], lower is better; nan, with a warning, for one class.

    Example:
        >>> fpr_at_tpr([0.1, 0.2, 0.3, 0.4, 0.9, 0.35, 0.5, 0.6, 0.7, 0.95], [0] * 5 + [1] * 5)
        0.4
    """
    values, is_positive = checked_ranking(scores, positive)
    statistic = fpr_at_tpr_of(values, is_positive, tpr)
    if one_class("fpr_at_tpr", is_positive):
        return float("nan")
    return float(statistic(once(len(values)))["fpr_at_tpr"][0])


def spearman(first: ArrayLike, second: ArrayLike) -> float:
    """Rank correlation of two columns ``(N,)``, ties at mid-rank; nan, with a warning, if one is constant."""
    a, b = vector(first, "first"), vector(second, "second")
    same_shape(first=a, second=b)
    value = float(spearman_of(a, b)(once(len(a)))["spearman"][0])
    if np.isnan(value):
        warnings.warn("spearman is undefined (nan): one of the two columns is constant", stacklevel=2)
    return value
