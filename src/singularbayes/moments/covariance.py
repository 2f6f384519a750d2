"""``J Sigma J^T`` for Gaussians over the flat vector, from rows of ``J`` and a square root of ``Sigma``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..distributions import DiagonalGaussian, FullGaussian, KroneckerGaussian, LowRankGaussian

__all__ = ["GAUSSIANS", "output_covariance"]


def _diagonal(distribution: DiagonalGaussian, rows: Tensor, entries: Tensor) -> Tensor:
    return _gram(rows * distribution.std[entries])


def _low_rank(distribution: LowRankGaussian, rows: Tensor, entries: Tensor) -> Tensor:
    return _gram(rows * distribution.std[entries]) + _gram(rows @ distribution.factor[entries])


def _full(distribution: FullGaussian, rows: Tensor, entries: Tensor) -> Tensor:
    return _gram(_columns(rows, entries, distribution.positions, distribution.size) @ distribution.factor)


def _kronecker(distribution: KroneckerGaussian, rows: Tensor, entries: Tensor) -> Tensor:
    total = _gram(rows @ distribution.factor[entries])
    std = distribution.std.clone()
    for block in distribution.each_block():
        places = torch.arange(block.entries.start, block.entries.stop, device=rows.device)
        own = _columns(rows, entries, places, distribution.size)
        live = own.any(2).any(0)  # of a head whose blocks are classes, one output has this block
        shaped = own[:, live].unflatten(2, block.shape)
        turned = (block.left.T @ shaped @ block.right).flatten(2) * std[block.entries]
        places = live.nonzero().squeeze(1)
        total[:, places.unsqueeze(1), places] += _gram(turned)
        std[block.entries] = 0
    alone = std[entries]
    return total + _gram(rows * alone) if bool(alone.any()) else total


def _gram(columns: Tensor) -> Tensor:
    """``C C^T`` of each row, in float64."""
    wide = columns.double()
    return wide @ wide.mT


def _columns(rows: Tensor, entries: Tensor, places: Tensor, size: int) -> Tensor:
    """The columns of ``J`` for these places of the vector; 0 for those that are no entries."""
    count = rows.shape[2]
    lookup = torch.full((size,), count, dtype=torch.long, device=rows.device)
    lookup[entries] = torch.arange(count, device=rows.device)
    index = lookup[places]
    start, stop = int(index[0]), int(index[-1]) + 1
    if stop - start == len(index) and stop <= count and bool((index.diff() == 1).all()):
        return rows[..., start:stop]
    return torch.cat([rows, torch.zeros_like(rows[..., :1])], 2)[..., index]


_COVARIANCES: dict[type[Any], Callable[[Any, Tensor, Tensor], Tensor]] = {
    DiagonalGaussian: _diagonal,
    LowRankGaussian: _low_rank,
    FullGaussian: _full,
    KroneckerGaussian: _kronecker,
}
GAUSSIANS = tuple(_COVARIANCES)


def output_covariance(
    distribution: Any, rows: Float[Tensor, "b K v"], entries: Int[Tensor, " v"]
) -> Float[Tensor, "b K K"]:
    """``J Sigma J^T`` at each input, in float64.

    Args:
        distribution: one of ``GAUSSIANS``.
        rows: of ``J``, its columns for ``entries`` alone; all other entries of the vector are points.
        entries: places in the flat vector, in order.
    """
    return _COVARIANCES[type(distribution)](distribution, rows, entries)
