"""Effective number of draws of one chain, for tuning: all chains and coordinates at once.

    tau = -1 + 2 sum_j P_j,    P_j = rho(2 j) + rho(2 j + 1),    effective draws = n / tau

The sum ends before the first ``P_j <= 0``, and no ``P_j`` counts for more than the one before it. It is not
the split, rank-normalised measure of :mod:`singularbayes.chains`, which is for reports.

References:
    Geyer 1992, "Practical Markov chain Monte Carlo", section 3.3 (initial monotone sequence).
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["effective_draws"]


def effective_draws(draws: Float[Tensor, "C n k"]) -> Float[Tensor, "C k"]:
    """Effective draws of each chain and coordinate, for the mean.

    Args:
        draws: of ``C`` chains that are looked at one by one, at least 4 each.

    Returns:
        In float64, at most ``n log10(n)``; nan where a coordinate never moved or is not finite.

    Example:
        >>> noise = torch.randn(2, 1000, 3, generator=torch.Generator().manual_seed(0))
        >>> bool((effective_draws(noise) > 500).all())
        True
    """
    n = draws.shape[1]
    if n < 4:
        raise ValueError(f"effective draws need at least 4 draws a chain, got {n}")
    x = draws.double()
    x = x - x.mean(1, keepdim=True)
    padded = torch.fft.rfft(x, n=1 << (2 * n - 1).bit_length(), dim=1)
    covariance = torch.fft.irfft(padded.abs().square(), dim=1)[:, :n]
    correlation = covariance / covariance[:, :1]  # nan where nothing moved
    pairs = correlation[:, : n // 2 * 2].unflatten(1, (-1, 2)).sum(2)
    before_the_end = (pairs > 0).long().cumprod(1)
    tau = 2 * (pairs.cummin(1).values * before_the_end).sum(1) - 1
    still = x.abs().amax(1) == 0  # rounding leaves no exact 0 of the transform
    return torch.where(still, math.nan, n / tau.clamp_min(1 / math.log10(n)))
