"""Log densities of known families, elementwise, up to constants that depend on data alone.

Families restricted to positive values (half-normal, half-Cauchy) differ by a constant from the whole ones.
"""

import torch
from torch import Tensor


def normal(value: Tensor, mean: Tensor | float, std: Tensor | float) -> Tensor:
    """``N(mean, std)``; ``std`` is a standard deviation."""
    std = torch.as_tensor(std, dtype=value.dtype)
    return -0.5 * ((value - mean) / std).square() - std.log()


def cauchy(value: Tensor, scale: float) -> Tensor:
    return -torch.log1p((value / scale).square())


def gamma(value: Tensor, shape: float, rate: float) -> Tensor:
    return (shape - 1) * value.log() - rate * value


def log_normal(value: Tensor, log_mean: Tensor | float, std: Tensor | float) -> Tensor:
    """The density of ``value``, not of its logarithm."""
    return normal(value.log(), log_mean, std) - value.log()


def poisson(count: Tensor, log_rate: Tensor) -> Tensor:
    return count * log_rate - log_rate.exp()
