"""The mean of a sigmoid under a Gaussian, to 1e-10 and with relative precision in both tails.

    E sigmoid(f),  f ~ N(mean, var);   with a logistic L it is also  P(f + L > 0)

Trapezoids converge exponentially where the integrand is smooth on the grid's scale: over ``f`` where its
standard deviation is below 4, over ``L`` above (the distribution function of the Gaussian is then the smooth
part). Both grids have about 200 nodes.

References:
    Trefethen and Weideman 2014, "The exponentially convergent trapezoidal rule", SIAM Review 56, section 5.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

__all__ = ["log_mean_sigmoid"]

_NARROW = 4.0
_STEP_F, _REACH_F = 0.13, 13.0  # in standard deviations: the sigmoid's poles are pi / 4 away or more
_STEP_L, _REACH_L = 0.5, 45.0  # the logistic density's poles are pi away


def log_mean_sigmoid(mean: Float[Tensor, " B"], var: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
    """``log E sigmoid(f)`` for ``f ~ N(mean, var)``, elementwise, in nats.

    Args:
        mean: in nats.
        var: in squared nats, 0 or positive.

    Example:
        >>> round(log_mean_sigmoid(torch.zeros(1), torch.ones(1)).exp().item(), 8)
        0.5
    """
    wide, std = mean.double(), var.double().clamp_min(0).sqrt()
    narrow = _over_outputs(wide, std.clamp_max(_NARROW))
    return torch.where(std <= _NARROW, narrow, _over_noise(wide, std.clamp_min(_NARROW))).to(mean.dtype)


def _over_outputs(mean: Tensor, std: Tensor) -> Tensor:
    z = _grid(_REACH_F, _STEP_F, mean)
    weights = -0.5 * z.square() + math.log(_STEP_F / math.sqrt(2 * math.pi))
    return torch.logsumexp(F.logsigmoid(mean.unsqueeze(-1) + std.unsqueeze(-1) * z) + weights, -1)


def _over_noise(mean: Tensor, std: Tensor) -> Tensor:
    noise = _grid(_REACH_L, _STEP_L, mean)
    weights = F.logsigmoid(noise) + F.logsigmoid(-noise) + math.log(_STEP_L)
    above = torch.special.log_ndtr((mean.unsqueeze(-1) + noise) / std.unsqueeze(-1))
    return torch.logsumexp(above + weights, -1)


def _grid(reach: float, step: float, like: Tensor) -> Tensor:
    half = math.ceil(reach / step)
    return step * torch.arange(-half, half + 1, dtype=like.dtype, device=like.device)
