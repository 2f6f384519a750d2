"""Averages over posterior draws (axis 0), equal or weighted: mean, variance, mixture density, quantiles.

Weights ``None`` are equal weights. A draw of weight 0 counts for nothing, whatever its values.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["check_weights", "counting", "log_mixture", "mean", "quantiles", "variance"]

_ROUNDING = 1e-5  # of a sum of weights in float32
_QUANTILE_ENTRIES = 2**24  # torch.quantile of some versions refuses more


def check_weights(weights: Tensor | None, draws: int) -> None:
    """Weights ``(S,)`` of ``S`` draws must be finite, not negative and sum to 1.

    Raises:
        ValueError: naming the first weight that is wrong, or the sum.
    """
    if weights is None:
        return
    if tuple(weights.shape) != (draws,):
        raise ValueError(
            f"weights have shape {tuple(weights.shape)}, expected ({draws},): one for each of {draws} draws"
        )
    wrong = (~(torch.isfinite(weights) & (weights >= 0))).nonzero()
    if len(wrong):
        place = int(wrong[0])
        raise ValueError(
            f"the weight of draw {place} is {weights[place].item():g}; weights must be finite and 0 or more"
        )
    total = weights.double().sum().item()
    if abs(total - 1) > _ROUNDING:
        raise ValueError(f"the weights sum to {total:g}, expected 1; divide them by their sum")


def counting(values: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The draws whose weight is not 0, and these weights in the dtype of the values."""
    weights = weights.to(values)
    keep = weights > 0
    return (values, weights) if bool(keep.all()) else (values[keep], weights[keep])


def mean(values: Tensor, weights: Tensor | None) -> Tensor:
    """``sum_s w_s values_s``; of equal draws exactly their value, though rounded weights sum to 1 + 1e-7.

    Example:
        >>> mean(torch.tensor([0.0, 4.0]), torch.tensor([0.25, 0.75])).item()
        3.0
    """
    if weights is None:
        return values.mean(0)
    values, weights = counting(values, weights)
    return values[0] + torch.tensordot(weights, values - values[:1], 1)


def variance(values: Tensor, weights: Tensor | None) -> Tensor:
    """``sum_s w_s (values_s - mean)^2``; exactly 0 for equal draws, whatever their size."""
    if weights is not None:
        values, weights = counting(values, weights)
    shifted = values - values[:1]
    return mean((shifted - mean(shifted, weights)).square(), weights)


def log_mixture(log_densities: Tensor, weights: Tensor | None) -> Tensor:
    """``log sum_s w_s exp(log_densities_s)``: the mixture's density, never the mean of log densities."""
    if weights is None:
        return torch.logsumexp(log_densities, 0) - math.log(log_densities.shape[0])
    log_densities, weights = counting(log_densities, weights)
    return torch.logsumexp(log_densities + weights.log().view(-1, *[1] * (log_densities.dim() - 1)), 0)


def quantiles(values: Tensor, probabilities: tuple[float, ...], weights: Tensor | None) -> Tensor:
    """Quantiles over the draws ``(Q, *event)``, linear between neighbours as ``torch.quantile``'s.

    With weights: those of an equal-weight set in which the draw of least weight stands once and every other
    one in proportion, also where the proportion is no whole number.

    References:
        Hyndman and Fan 1996, definition 7 (equal weights).
    """
    shares = torch.tensor(probabilities, dtype=values.dtype, device=values.device)
    if weights is None:
        rows = max(1, _QUANTILE_ENTRIES * values.shape[1] // max(1, values.numel()))
        return torch.cat([torch.quantile(part, shares, dim=0) for part in values.split(rows, 1)], 1)
    values, weights = counting(values, weights)
    ordered, order = values.flatten(1).sort(0)  # (S, entries)
    copies = weights.double() / weights.double().min()
    ends = copies[order].cumsum(0)  # draw i stands at the places from ends[i - 1] to ends[i] - 1
    places = shares.double().unsqueeze(-1) * (ends[-1] - 1)  # (Q, entries)
    last = len(ordered) - 1
    below = torch.stack([(ends <= place).sum(0) for place in places]).clamp_max(last)
    left, right = ordered.gather(0, below), ordered.gather(0, (below + 1).clamp_max(last))
    between = (places - (ends.gather(0, below) - 1)).clamp(0, 1).to(values)
    found = torch.lerp(left, right, between).where(~ordered[-1].isnan(), torch.nan)  # NaN is sorted last
    return found.view(len(shares), *values.shape[1:])
