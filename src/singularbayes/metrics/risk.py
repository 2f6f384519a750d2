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

from .inputs import Bools, Floats, flags, same_shape, vector
from .ranking import average_precision_of, one_class
from .weighted import Statistic, once


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
    return SelectiveRisk(kept / len(values), risk, float(risk.mean()))
