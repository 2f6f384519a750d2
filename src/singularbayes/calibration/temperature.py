"""One temperature, by the validation NLL of the mixture over draws.

    classes:  logits / T, each draw's, before averaging        numbers:  predictive variance * T

References:
    Guo et al. 2017, arXiv 1706.04599, section 4.2.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ..likelihoods import Likelihood

__all__ = ["Temperature", "best_temperature"]

_WIDEST = 50.0
_WIDEST_VARIANCE = 1e4


@dataclass(frozen=True, kw_only=True)
class Temperature:
    """The temperature that minimises the validation NLL of the mixture.

    For classification logits are divided by it (each draw's, before averaging). For regression it is the
    variance scale: the predictive variance, epistemic and noise alike, is multiplied by it.

    Warns:
        UserWarning: the best temperature lies at the bound (1/50 or 50; 1e-4 or 1e4 for regression): every
            label right, or no signal. The data then do not tell it, and it stays at 1.

    Example:
        >>> import torch, singularbayes as sb
        >>> logits, y = torch.tensor([[2.0, 0.0]] * 10), torch.tensor([0] * 7 + [1] * 3)
        >>> found = Temperature().fit(sb.Categorical(), logits.double().unsqueeze(0), {}, y)
        >>> round(found.temperature, 6)
        2.360445
    """

    def fit(
        self, likelihood: Likelihood, outputs: Tensor, numbers: Mapping[str, Tensor], labels: Tensor
    ) -> Likelihood:
        """The likelihood at the temperature found; see :class:`.Calibration`."""
        temperature, inside = best_temperature(likelihood, outputs, numbers, labels)
        if not inside:
            warnings.warn(
                f"the calibration temperature ran to its bound {temperature:.3g} and stays at 1: the "
                f"validation labels are all predicted right, or the model has no signal; use more "
                f"validation data",
                stacklevel=3,
            )
            temperature = 1.0
        return likelihood.with_temperature(temperature)


def best_temperature(
    likelihood: Likelihood, outputs: Tensor, numbers: Mapping[str, Tensor], labels: Tensor
) -> tuple[float, bool]:
    """The temperature of the least NLL, and whether it lies inside the bounds."""

    def nll(log_temperature: float) -> float:
        tempered = likelihood.with_temperature(math.exp(log_temperature))
        return -tempered.predictive(outputs, numbers).log_prob(labels).double().mean().item()

    widest = _WIDEST_VARIANCE if likelihood.task == "gaussian" else _WIDEST
    low, high = -math.log(widest), math.log(widest)
    best = _golden(nll, low, high)
    return math.exp(best), min(best - low, high - best) >= 1e-3


def _golden(function: Callable[[float], float], low: float, high: float) -> float:
    """Minimum of a function with one valley: a coarse grid, then golden sections."""
    grid = np.linspace(low, high, 25)
    values = [function(float(point)) for point in grid]
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
