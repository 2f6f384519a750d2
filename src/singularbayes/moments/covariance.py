"""``J Sigma J^T`` for Gaussians over the flat vector, from rows of ``J`` and a square root of ``Sigma``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..distributions import DiagonalGaussian, FullGaussian, KroneckerGaussian, LowRankGaussian

__all__ = ["GAUSSIANS", "through_root"]


def _diagonal(distribution: DiagonalGaussian, rows: Tensor, entries: Tensor) -> Tensor:
    return rows * distribution.std[entries]


def _low_rank(distribution: LowRankGaussian, rows: Tensor, entries: Tensor) -> Tensor:
    return torch.cat([rows * distribution.std[entries], rows @ distribution.factor[entries]], 1)


def _full(distribution: FullGaussian, rows: Tensor, entries: Tensor) -> Tensor:
    return _columns(rows, entries, distribution.positions, distribution.size) @ distribution.factor


def _kronecker(distribution: KroneckerGaussian, rows: Tensor, entries: Tensor) -> Tensor:
    alone = rows * distribution.std[entries]
    parts = [rows @ distribution.factor[entries]]
    for block in distribution.each_block():
        start, stop = block.entries.start, block.entries.stop
        alone[:, (entries >= start) & (entries < stop)] = 0
        places = torch.arange(start, stop, device=rows.device)
        own = _columns(rows, entries, places, distribution.size).view(-1, *block.shape)
        live = own.flatten(1).any(1)  # of a head whose blocks are classes, one row in K
        turned = torch.zeros_like(own)
        turned[live] = block.left.T @ own[live] @ block.right
        parts.append(turned.flatten(1) * distribution.std[block.entries])
    return torch.cat([alone, *parts], 1)


def _columns(rows: Tensor, entries: Tensor, places: Tensor, size: int) -> Tensor:
    """The columns of ``J`` for these places of the vector; 0 for those that are no entries."""
    lookup = torch.full((size,), rows.shape[1], dtype=torch.long, device=rows.device)
    lookup[entries] = torch.arange(rows.shape[1], device=rows.device)
    return torch.cat([rows, rows.new_zeros(len(rows), 1)], 1)[:, lookup[places]]


_ROOTS: dict[type[Any], Callable[[Any, Tensor, Tensor], Tensor]] = {
    DiagonalGaussian: _diagonal,
    LowRankGaussian: _low_rank,
    FullGaussian: _full,
    KroneckerGaussian: _kronecker,
}
GAUSSIANS = tuple(_ROOTS)


def through_root(
    distribution: Any, rows: Float[Tensor, "n v"], entries: Int[Tensor, " v"]
) -> Float[Tensor, "n q"]:
    """``J R`` for rows of ``J`` and a square root ``R R^T = Sigma``.

    Args:
        distribution: one of ``GAUSSIANS``.
        rows: of ``J``, its columns for ``entries`` alone; all other entries of the vector are points.
        entries: places in the flat vector, in order.
    """
    return _ROOTS[type(distribution)](distribution, rows, entries)
