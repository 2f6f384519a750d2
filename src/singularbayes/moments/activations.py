"""Moments of a function of one Gaussian variable: in closed form where a ReLU, else by trapezoids.

    relu:   E y = m Phi(a) + s phi(a),   E y^2 = (m^2 + s^2) Phi(a) + m s phi(a),   a = m / s
    max:    Clark's formulas for the larger of two correlated Gaussians

The trapezoids have 19 nodes, half a standard deviation apart. For tanh the error of the mean (the variance)
is below 1e-5 for standard deviations up to 1, 3e-3 (2e-2) up to 3, .07 (.13) at 10; for ELU, which has a kink
in its slope, 3e-4 up to 1.

References:
    Clark 1961, "The greatest of a finite set of random variables", Operations Research 9. Frey and Hinton
    1999, "Variational learning in nonlinear Gaussian belief networks" (rectified units).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .random_tensor import RandomTensor, rule

__all__ = ["larger", "rectified", "through"]

_STEP, _REACH = 0.5, 9  # standard deviations, nodes on either side
_FAR = 12.0  # standard deviations: beyond, all is 0 or 1 to rounding, and exp slow among denormal numbers
_ROOT_HALF = math.sqrt(0.5)
_INVERSE_ROOT = 1 / math.sqrt(2 * math.pi)


def rectified(expected: Tensor, variance: Tensor, slope: float = 0.0) -> tuple[Tensor, Tensor]:
    """Mean and variance of ``max(t, slope t)`` for Gaussian ``t``, of any variance from 0.

    Args:
        expected: mean of ``t``.
        variance: of ``t``.
        slope: below 0, at most 1.
    """
    std = variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()
    ratio = (expected / std).clamp_(-_FAR, _FAR)
    above = torch.erfc(ratio * -_ROOT_HALF).mul_(0.5)  # Phi
    density = ratio.square().mul_(-0.5).exp_().mul_(_INVERSE_ROOT * std)  # s phi
    mean = torch.addcmul(density, expected, above)
    # Var = v Phi + (m Phi + s phi) (m (1 - Phi) - s phi), in which nothing large cancels far from 0
    var = torch.addcmul(variance * above, mean, torch.addcmul(expected - density, expected, above, value=-1))
    if slope == 0:
        return mean, var.clamp_min_(0)
    # max(t, 0) + slope min(t, 0) = slope t + (1 - slope) relu(t), Cov(t, relu(t)) = v Phi
    rest = 1 - slope
    total = slope**2 * variance + rest**2 * var + 2 * slope * rest * variance * above
    return slope * expected + rest * mean, total.clamp_min(0)


def through(
    function: Callable[[Tensor], Tensor], expected: Tensor, variance: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean and variance of a smooth function of a Gaussian, entry by entry."""
    std = variance.clamp_min(0).sqrt()
    nodes = [_STEP * n for n in range(-_REACH, _REACH + 1)]
    weights = torch.tensor([math.exp(-0.5 * z * z) for z in nodes], dtype=torch.float64)
    weights = (weights / weights.sum()).tolist()
    centre = function(expected)  # what varies is summed about it, so that small variances keep their digits
    first, second = torch.zeros_like(expected), torch.zeros_like(expected)
    for z, weight in zip(nodes, weights, strict=True):
        moved = function(expected + z * std) - centre
        first.add_(moved, alpha=weight)
        second.addcmul_(moved, moved, value=weight)
    return centre + first, (second - first.square()).clamp_min(0)


def larger(
    left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor], correlation: float
) -> tuple[Tensor, Tensor]:
    """Mean and variance of the larger of two Gaussians of this correlation."""
    (m1, v1), (m2, v2) = left, right
    together = 2 * correlation * (v1.clamp_min(0) * v2.clamp_min(0)).sqrt()
    # max(a, b) = b + relu(a - b)
    gap, spread = m1 - m2, (v1 + v2 - together).clamp_min(0)
    mean, _ = rectified(gap, spread)
    std = spread.clamp_min(torch.finfo(spread.dtype).tiny).sqrt()
    above = torch.erfc(gap / std * -_ROOT_HALF) / 2
    # about the larger mean, so that nothing large cancels
    top = torch.maximum(m1, m2)
    a, b = m1 - top, m2 - top
    density = (-0.5 * (gap / std).square()).exp() * _INVERSE_ROOT * std
    second = (a.square() + v1) * above + (b.square() + v2) * (1 - above) + (a + b) * density
    shift = mean + m2 - top
    return m2 + mean, (second - shift.square()).clamp_min(0)


def _apply(x: Any, moments: tuple[Tensor, Tensor], inplace: bool) -> RandomTensor:
    result = RandomTensor(*moments, weight=x.weight)
    return x.become(result) if inplace else result


@rule("relu", "relu_")
def relu(x: RandomTensor, inplace: bool = False) -> RandomTensor:
    return _apply(x, rectified(x.expected, x.variance), inplace)


@rule("leaky_relu", "leaky_relu_")
def leaky_relu(x: RandomTensor, negative_slope: float = 0.01, inplace: bool = False) -> RandomTensor:
    return _apply(x, rectified(x.expected, x.variance, negative_slope), inplace)


def _register(name: str, function: Callable[..., Tensor]) -> None:
    def run(x: RandomTensor, inplace: bool = False, **settings: Any) -> RandomTensor:
        moments = through(lambda t: function(t, **settings), x.expected, x.variance)
        return _apply(x, moments, inplace)

    rule(name)(run)


for _name, _function in {
    "tanh": torch.tanh, "sigmoid": torch.sigmoid, "gelu": F.gelu, "silu": F.silu, "softplus": F.softplus,
    "mish": F.mish, "softsign": F.softsign, "logsigmoid": F.logsigmoid, "sin": torch.sin, "cos": torch.cos,
}.items():  # fmt: skip
    _register(_name, _function)


@rule("elu")
def elu(x: RandomTensor, alpha: float = 1.0, inplace: bool = False) -> RandomTensor:
    return _apply(x, through(lambda t: F.elu(t, alpha), x.expected, x.variance), inplace)
