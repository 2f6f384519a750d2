"""Paths of weights between two networks: each point a combination of a few control points.

    w_t = sum_i c_i(t) p_i,    sum_i c_i(t) = 1,    p_0 and p_last the two networks,    0 <= t <= 1

References:
    Garipov et al. 2018, arXiv 1802.10026, section 3.2 (polygonal chain, Bezier curve).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["Bezier", "Curve", "Polychain", "slerp", "speed"]


@runtime_checkable
class Curve(Protocol):
    """A path whose ends are fixed and whose other control points (bends) can be trained."""

    @property
    def bends(self) -> int:
        """Number of control points between the ends."""
        ...

    def weights(self, t: Float[Tensor, " G"]) -> Float[Tensor, "G P"]:
        """``c(t)`` of the ``P = bends + 2`` control points, for places in [0, 1]."""
        ...

    def slopes(self, t: Float[Tensor, " G"]) -> Float[Tensor, "G P"]:
        """``dc / dt``; where the path has a corner, that of the part that begins there."""
        ...


def _check_bends(curve: Curve) -> None:
    if isinstance(curve.bends, bool) or not isinstance(curve.bends, int) or curve.bends < 1:
        name = type(curve).__name__
        raise ValueError(f"{name}(bends) must be a whole number of at least 1, got {curve.bends!r}")


@dataclass(frozen=True)
class Bezier:
    """``(1 - t)^2 w_0 + 2 t (1 - t) bend + t^2 w_1``; with more bends the Bezier curve of that degree.

    Args:
        bends: control points between the ends; the degree is one more.

    Example:
        >>> Bezier().weights(torch.tensor([0.0, 0.5]))
        tensor([[1.0000, 0.0000, 0.0000],
                [0.2500, 0.5000, 0.2500]])
    """

    bends: int = 1

    def __post_init__(self) -> None:
        _check_bends(self)

    def weights(self, t: Tensor) -> Tensor:
        return _bernstein(self.bends + 1, t)

    def slopes(self, t: Tensor) -> Tensor:
        lower = (self.bends + 1) * _bernstein(self.bends, t)
        nothing = torch.zeros_like(t).unsqueeze(1)
        return torch.cat([nothing, lower], 1) - torch.cat([lower, nothing], 1)


def _bernstein(degree: int, t: Tensor) -> Tensor:
    columns = [math.comb(degree, i) * t**i * (1 - t) ** (degree - i) for i in range(degree + 1)]
    return torch.stack(columns, 1)


@dataclass(frozen=True)
class Polychain:
    """Straight pieces from end to end over the bends, each passed in the same time.

    Args:
        bends: corners between the ends.

    Example:
        >>> Polychain().weights(torch.tensor([0.25, 0.5]))
        tensor([[0.5000, 0.5000, 0.0000],
                [0.0000, 1.0000, 0.0000]])
    """

    bends: int = 1

    def __post_init__(self) -> None:
        _check_bends(self)

    def weights(self, t: Tensor) -> Tensor:
        knots = torch.arange(self.bends + 2, dtype=t.dtype, device=t.device)
        return (1 - (t.unsqueeze(1) * (self.bends + 1) - knots).abs()).clamp_min(0)

    def slopes(self, t: Tensor) -> Tensor:
        pieces = self.bends + 1
        piece = (t * pieces).floor().long().clamp(0, pieces - 1).unsqueeze(1)
        rates = torch.zeros(len(t), self.bends + 2, dtype=t.dtype, device=t.device)
        return rates.scatter_(1, piece, -float(pieces)).scatter_(1, piece + 1, float(pieces))


def slerp(t: Float[Tensor, " G"], ends: Float[Tensor, "2 n"]) -> Float[Tensor, "G 2"]:
    """Coefficients of the two ends along the arc between them about the origin.

        sin((1 - t) a) / sin a,    sin(t a) / sin a,    a the angle between the ends

    The straight line where the ends are parallel. Opposite ends have no one arc: also the straight line.
    """
    first, last = ends.double()
    cosine = (first @ last) / (first.norm() * last.norm()).clamp_min(1e-300)
    angle = torch.acos(cosine.clamp(-1, 1))
    if torch.sin(angle) < 1e-7:
        return torch.stack([1 - t, t], 1)
    places = t.double()
    both = torch.stack([torch.sin((1 - places) * angle), torch.sin(places * angle)], 1) / torch.sin(angle)
    return both.to(t.dtype)


def speed(curve: Curve, t: Float[Tensor, " G"], control: Float[Tensor, "P n"]) -> Float[Tensor, " G"]:
    """``|dw_t / dt|`` in float64, from the control points' inner products alone: no ``(G, n)`` in memory."""
    steps = (control[1:] - control[:1]).double()  # from the first: slopes sum to 0, and nothing cancels
    gram = steps @ steps.T
    rates = curve.slopes(t.double())[:, 1:]
    return torch.einsum("gi,ij,gj->g", rates, gram, rates).clamp_min(0).sqrt()
