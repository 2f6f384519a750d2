"""An evaluation of standardised numbers, stated in the units they came from.

    y' = zero + one y,  one > 0:    errors, CRPS and widths x one,   variances x one^2,   NLL + log one

Coverage, calibration and everything that ranks cases do not change; nothing is predicted or resampled again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from ..metrics import Interval
from ..metrics.inputs import Floats
from .record import Evaluation, SetArrays

__all__ = ["in_units"]

Value = TypeVar("Value", float, Floats)

_LENGTHS = ("rmse", "mae", "crps", "interval_width", "selective_risk_area")
_LOGS = ("negative_log_likelihood", "entropy")
_SQUARES = ("squared_error", "epistemic_variance", "total_variance")


def in_units(evaluation: Evaluation, zero: float, one: float) -> Evaluation:
    """The same evaluation for ``zero + one * y`` in place of ``y``.

    Args:
        evaluation: of a task with numbers.
        zero: what 0 stands for.
        one: the length of 1, positive.

    Raises:
        ValueError: the task has classes, ``one`` is not positive, or y has several outputs (whose metrics are
            means over outputs, and whose NLL is a sum).
    """
    if evaluation.task != "gaussian":
        raise ValueError(
            f"got an evaluation of task {evaluation.task!r}, expected 'gaussian': classes have no units"
        )
    if not (math.isfinite(zero) and math.isfinite(one) and one > 0):
        raise ValueError(f"got zero={zero}, one={one}, expected finite numbers, one above 0")
    wide = [name for name, arrays in evaluation.sets.items() if arrays.mean.ndim > 1]
    if wide:
        raise ValueError(f"set {wide[0]!r} has several outputs a case; expected one: units are those of one")
    return replace(
        evaluation,
        metrics=_metrics(evaluation.metrics, one),
        ood_metrics={name: _metrics(metrics, one) for name, metrics in evaluation.ood_metrics.items()},
        sets={name: _arrays(arrays, zero, one) for name, arrays in evaluation.sets.items()},
    )


def _metrics(metrics: Mapping[str, Interval], one: float) -> dict[str, Interval]:
    return {
        name: Interval(*(_moved(name, end, one) for end in (cell.value, cell.low, cell.high)))
        for name, cell in metrics.items()
    }


def _arrays(arrays: SetArrays, zero: float, one: float) -> SetArrays:
    return SetArrays(
        scores={name: _moved(name, values, one) for name, values in arrays.scores.items()},
        labels=None if arrays.labels is None else zero + one * arrays.labels,
        mean=zero + one * arrays.mean,
        variance=None if arrays.variance is None else one**2 * arrays.variance,
        error=None if arrays.error is None else one * arrays.error,
        rows={name: _moved(name, values, one) for name, values in arrays.rows.items()},
    )


def _moved(name: str, value: Value, one: float) -> Value:
    if name in _LENGTHS:
        return value * one
    if name in _SQUARES:
        return value * one**2
    return value + math.log(one) if name in _LOGS else value
