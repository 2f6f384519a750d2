"""Does uncertainty find the errors: average precision of errors and successes, and selective risk.

References:
    Hendrycks and Gimpel 2017, arXiv 1610.02136 (AUPR-Error, AUPR-Success); Geifman and El-Yaniv 2017,
    arXiv 1705.08500 (selective risk).
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import digamma

from .inputs import Bools, Floats, flags, same_shape, vector
from .ranking import average_precision_of, one_class
from .weighted import Statistic, groups_of, once


class SelectiveRisk(NamedTuple):
    """Risk against coverage when the most uncertain rows are left out.

    Attributes:
        coverage: shares of rows kept, ``1/N .. 1``.
        risk: mean loss of the rows kept.
        area: mean of ``risk``; lower is better.
    """

    coverage: Floats
    risk: Floats
    area: float


def error_precision_of(uncertainty: Floats, error: Bools) -> Statistic:
    """The weighted form of :func:`error_average_precision`."""
    inner = average_precision_of(uncertainty, error)
    return lambda counts: {"error_average_precision": inner(counts)["average_precision"]}


def success_precision_of(uncertainty: Floats, error: Bools) -> Statistic:
    """The weighted form of :func:`success_average_precision`."""
    inner = average_precision_of(-uncertainty, ~error)
    return lambda counts: {"success_average_precision": inner(counts)["average_precision"]}


def risk_area(rows: Floats, loss: Floats) -> Floats:
    """Area under the risk-coverage curve of groups of rows, in closed form: ``(R,)``.

    Row k of all T enters with the mean loss m of its group; after ``n`` rows with a loss of ``L`` in sum,

        sum_{k = n+1 .. n+c} (L + (k - n) m) / k = c m + (L - n m) (H(n + c) - H(n)),   H harmonic numbers

    Args:
        rows: ``(R, G)`` number of rows of every group, the most certain group first.
        loss: ``(R, G)`` sum of their losses.
    """
    ends, sums = np.cumsum(rows, axis=1), np.cumsum(loss, axis=1)
    before, lost = ends - rows, sums - loss
    mean = loss / np.where(rows > 0, rows, 1.0)
    harmonic = digamma(ends + 1.0) - digamma(before + 1.0)
    return (loss + (lost - before * mean) * harmonic).sum(1) / ends[:, -1]


def risk_area_of(uncertainty: Floats, loss: Floats) -> Statistic:
    """The weighted form of the area of :func:`selective_risk`."""
    groups = groups_of(uncertainty, loss)
    return lambda counts: {"selective_risk_area": risk_area(*groups(counts))}


def checked(uncertainty: ArrayLike, error: ArrayLike) -> tuple[Floats, Bools]:
    """Uncertainties and error flags of equal length."""
    values, wrong = vector(uncertainty, "uncertainty"), flags(error, "error")
    same_shape(uncertainty=values, error=wrong)
    return values, wrong


def error_average_precision(uncertainty: ArrayLike, error: ArrayLike) -> float:
    """Average precision with ERRORS as the positive class, ranked by uncertainty (AUPR-Err).

    Without signal it equals the error rate. Nan, with a warning, if all rows are right or all are wrong.

    Args:
        uncertainty: ``(N,)``, higher is less certain.
        error: ``(N,)``, 1 where the prediction was wrong.
    """
    values, wrong = checked(uncertainty, error)
    if one_class("error_average_precision", wrong):
        return float("nan")
    return float(error_precision_of(values, wrong)(once(len(values)))["error_average_precision"][0])


def success_average_precision(uncertainty: ArrayLike, error: ArrayLike) -> float:
    """Average precision with SUCCESSES as the positive class, ranked by certainty (AUPR-Succ).

    Without signal it equals the accuracy. Nan, with a warning, if all rows are right or all are wrong.

    Args:
        uncertainty: ``(N,)``, higher is less certain.
        error: ``(N,)``, 1 where the prediction was wrong.
    """
    values, wrong = checked(uncertainty, error)
    if one_class("success_average_precision", ~wrong):
        return float("nan")
    return float(success_precision_of(values, wrong)(once(len(values)))["success_average_precision"][0])


def selective_risk(uncertainty: ArrayLike, loss: ArrayLike) -> SelectiveRisk:
    """The risk-coverage curve: mean loss of the most certain rows, for every share of rows kept.

    Rows with equal uncertainty enter with the mean loss of their group, so that their order does not matter.

    Args:
        uncertainty: ``(N,)``, higher is less certain.
        loss: ``(N,)``, any loss: 0-1 errors, squared errors.

    Example:
        >>> selective_risk([0.1, 0.2, 0.3, 0.4], [0, 0, 0, 1]).risk.tolist()
        [0.0, 0.0, 0.0, 0.25]
    """
    values, losses = vector(uncertainty, "uncertainty"), vector(loss, "loss")
    same_shape(uncertainty=values, loss=losses)
    _, group = np.unique(values, return_inverse=True)
    if len(values) > 1 and group.max() == 0:
        warnings.warn(
            "all uncertainties are equal: the selective risk is the same at every coverage", stacklevel=2
        )
    expected = (np.bincount(group, losses) / np.bincount(group))[np.sort(group)]
    kept = np.arange(1, len(values) + 1)
    risk = np.cumsum(expected) / kept
    return SelectiveRisk(kept / len(values), risk, selective_risk_area(values, losses))


def selective_risk_area(uncertainty: ArrayLike, loss: ArrayLike) -> float:
    """Area under the risk-coverage curve: the mean of :func:`selective_risk` over all shares of rows kept.

    Lower is better. Without signal it is the mean loss in expectation; even the best order of losses that
    are not all 0 is above 0.

    Args:
        uncertainty: ``(N,)``, higher is less certain.
        loss: ``(N,)``, any loss: 0-1 errors, absolute errors.

    Returns:
        The area, in the units of the loss.

    Example:
        >>> selective_risk_area([0.1, 0.2, 0.3, 0.4], [0, 0, 0, 1])
        0.0625
    """
    values, losses = vector(uncertainty, "uncertainty"), vector(loss, "loss")
    same_shape(uncertainty=values, loss=losses)
    return float(risk_area_of(values, losses)(once(len(values)))["selective_risk_area"][0])
