"""The temperature that a validation set asks for: the minimum of its NLL, found without gradients.

References:
    Guo et al. 2017, arXiv 1706.04599, section 4.2.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import numpy as np

__all__ = ["best_temperature", "search_temperature"]

_WIDEST = {"gaussian": 1e4}  # of the temperature, up and down; that of classes is _WIDEST_CLASSES
_WIDEST_CLASSES = 50.0


def search_temperature(nll: Callable[[float], float], task: str) -> tuple[float, bool]:
    """The temperature of the least NLL, and whether it lies inside the bounds.

    Args:
        nll: mean NLL at a temperature.
        task: of the likelihood: variances have a wider range than logits.

    Raises:
        ValueError: an NLL that is nan.
    """
    low, high = (sign * math.log(_WIDEST.get(task, _WIDEST_CLASSES)) for sign in (-1, 1))
    best = _golden(lambda log_temperature: nll(math.exp(log_temperature)), low, high)
    return math.exp(best), min(best - low, high - best) >= 1e-3


def best_temperature(nll: Callable[[float], float], task: str, stacklevel: int) -> float:
    """The temperature of least validation NLL; 1, with a warning, where the data do not tell it.

    Args:
        nll: mean NLL at a temperature.
        task: of the likelihood.
        stacklevel: of the warning.

    Warns:
        UserWarning: the best temperature lies at the bound (1/50 or 50; 1e-4 or 1e4 for regression): every
            label right, or no signal.
    """
    temperature, inside = search_temperature(nll, task)
    if inside:
        return temperature
    warnings.warn(
        f"the calibration temperature ran to its bound {temperature:.3g} and stays at 1: the validation "
        f"labels are all predicted right, or the model has no signal; use more validation data",
        stacklevel=stacklevel,
    )
    return 1.0


def _golden(function: Callable[[float], float], low: float, high: float) -> float:
    """Minimum of a function with one valley: a coarse grid, then golden sections."""
    grid = np.linspace(low, high, 25)
    values = [function(float(point)) for point in grid]
    if any(map(math.isnan, values)):
        raise ValueError("the validation NLL is nan: predictions of some rows are not finite; the network "
                         "has diverged or overflows on these inputs")  # fmt: skip
    best = int(np.argmin(values))
    a, b = float(grid[max(best - 1, 0)]), float(grid[min(best + 1, len(grid) - 1)])
    ratio = (math.sqrt(5) - 1) / 2
    c, d = b - ratio * (b - a), a + ratio * (b - a)
    at_c, at_d = function(c), function(d)
    while b - a > 1e-8:
        if at_c <= at_d:
            b, d, at_d = d, c, at_c
            c = b - ratio * (b - a)
            at_c = function(c)
        else:
            a, c, at_c = c, d, at_d
            d = a + ratio * (b - a)
            at_d = function(d)
    return (a + b) / 2
