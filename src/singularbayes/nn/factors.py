"""The pair of factors that every low-rank structure holds: ``W = A B^T``, or ``W = A diag(s) B^T``.

References:
    arXiv 2602.00387, section 3 and appendix (LR-SVD start). arXiv 2506.21408 (a belief about ``s`` alone).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

__all__ = [
    "check_rank",
    "check_stock",
    "fill_layer",
    "freeze_as",
    "new_factors",
    "product",
    "quiet_ranks",
    "reset_factors",
    "set_factors",
]


def check_rank(
    rank: int, out_features: int, in_features: int, where: str = "LowRankLinear", stacklevel: int = 3
) -> None:
    """A rank must lie in ``1..min(m, n)``; from ``m n / (m + n)`` on it saves nothing: a warning."""
    if isinstance(rank, bool) or not isinstance(rank, Integral):
        raise TypeError(f"{where}: rank must be an integer, got {type(rank).__name__} {rank!r}")
    limit = min(out_features, in_features)
    if not 1 <= rank <= limit:
        raise ValueError(
            f"{where}: rank {rank} is outside 1..{limit}, the smaller side of the "
            f"{out_features} x {in_features} weight"
        )
    if rank * (out_features + in_features) >= out_features * in_features:
        warnings.warn(
            f"{where}: rank {rank} saves no parameters for a {out_features} x {in_features} weight; it does "
            f"below {out_features * in_features / (out_features + in_features):.1f}",
            stacklevel=stacklevel,
        )


def check_stock(where: str, stock: type[nn.Module], layer: nn.Module) -> None:
    """A structure is made from the stock layer that it replaces, or a subclass; else a ``TypeError``."""
    if not isinstance(layer, stock):
        raise TypeError(f"{where} replaces nn.{stock.__name__}, got {type(layer).__name__}")


@contextmanager
def quiet_ranks() -> Iterator[None]:
    """Without :func:`check_rank`'s warning: for callers that say it in words of their own."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*saves no parameters")
        yield


def new_factors(
    out_features: int,
    in_features: int,
    rank: int,
    diagonal: bool,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> tuple[nn.Parameter, nn.Parameter, nn.Parameter | None]:
    """``A (out, r)``, ``B (in, r)`` and ``s (r,)`` (``None`` without ``diagonal``), not yet initialised."""

    def empty(*shape: int) -> nn.Parameter:
        return nn.Parameter(torch.empty(*shape, device=device, dtype=dtype))

    return empty(out_features, rank), empty(in_features, rank), empty(rank) if diagonal else None


def product(a: Tensor, b: Tensor, s: Tensor | None) -> Tensor:
    """``A diag(s) B^T``, also with leading axes."""
    return (a if s is None else a * s.unsqueeze(-2)) @ b.mT


@torch.no_grad()
def reset_factors(a: Tensor, b: Tensor, s: Tensor | None, variance: float) -> None:
    """Gaussian factors whose product has entries of this variance, each column at its expected length.

    Each factor's entries have std ``(variance / r) ** (1/4)``, and ``s`` is 1. A column that happened to be
    short, as happens where a factor has a single row, would start its component at a saddle that training
    hardly leaves.
    """
    std = (variance / a.shape[1]) ** 0.25
    for factor in (a, b):
        factor.normal_()
        factor.mul_(std * math.sqrt(len(factor)) / factor.norm(dim=0).clamp_min(1e-30))
    if s is not None:
        s.fill_(1.0)


@torch.no_grad()
def set_factors(a: Tensor, b: Tensor, s: Tensor | None, weight: Tensor) -> None:
    """The best rank-``r`` approximation ``U S V^T`` of a dense ``weight (out, in)``.

    Split evenly, ``A = U sqrt(S)`` and ``B = V sqrt(S)``; with a diagonal ``A = U``, ``s = S``, ``B = V``.
    """
    rank = a.shape[1]
    u, values, vh = torch.linalg.svd(weight.detach().double(), full_matrices=False)
    u, values, v = u[:, :rank], values[:rank], vh[:rank].T
    if s is None:
        a.copy_(u * values.sqrt())
        b.copy_(v * values.sqrt())
    else:
        a.copy_(u)
        b.copy_(v)
        s.copy_(values)


def freeze_as(low: Any, weight: Tensor, bias: Tensor | None) -> None:
    """Factors ``A``, ``B``, ``s`` are trained as the dense ``weight`` was, the bias as the ``bias`` was."""
    for factor in (low.A, low.B, low.s):
        if factor is not None:
            factor.requires_grad_(weight.requires_grad)
    if low.bias is not None and bias is not None:
        low.bias.requires_grad_(bias.requires_grad)


@torch.no_grad()
def fill_layer(stock: Any, weight: Tensor, bias: Tensor | None, *, trained: bool) -> None:
    """Give a stock layer its weight and bias; ``trained`` says whether the weight requires a gradient."""
    stock.weight.copy_(weight)
    stock.weight.requires_grad_(trained)
    if bias is not None:
        stock.bias.copy_(bias)
        stock.bias.requires_grad_(bias.requires_grad)
