"""Covariances that ``StructuredVI`` can be given: which entries of the vector vary together, and how.

All are ``C = S (I + F^T F) S^T`` with a root ``S`` made of blocks (:mod:`.roots`) and ``F (rank, d)``, one
low-rank part across all layers, in units of ``S``:

    LowRankPlusDiagonal(rank)      S = diag(s):         diag(s^2) + U U^T,       U = diag(s) F^T
    Kronecker()                    S = L kron R in each matrix, F = 0
    KroneckerPlusLowRank(rank)     both
    FullCovariance()               S = L, Cholesky's factor of everything, F = 0

References:
    Ong et al. 2018, arXiv 1701.03208 (low rank plus diagonal). Louizos and Welling 2016, arXiv 1603.04733,
    section 3.1 (Kronecker: the matrix normal). Titsias and Lazaro-Gredilla 2014, algorithm 1 (Cholesky).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from ..distributions import FullGaussian, KroneckerGaussian, LowRankGaussian
from ..parameters import Slot
from .roots import Independent, Matrix, Root, Site, Triangular
from .settings import check_whole

__all__ = ["Covariance", "FullCovariance", "Kronecker", "KroneckerPlusLowRank", "LowRankPlusDiagonal"]

_FULL_LIMIT = 2000


@runtime_checkable
class Covariance(Protocol):
    """What ``StructuredVI`` asks its covariance."""

    @property
    def rank(self) -> int:
        """Of the part across all layers; 0 for none."""
        ...

    def sites(self, slots: Sequence[Slot]) -> list[Site]:
        """The blocks of the root for the believed tensors, in order, without gaps.

        Raises:
            ValueError: a network that this covariance does not suit, and what to use.
        """
        ...

    def distribution(self, mean: Tensor, root: Root, factor: Tensor) -> Any:
        """``N(mean, C)``: ``mean (D,)`` of the whole vector, ``factor (D, rank)``; beyond ``S`` points."""
        ...

    def facts(self, slots: Sequence[Slot]) -> dict[str, Any]:
        """What the posterior's ``info`` should say, in plain types."""
        ...


def _entries(slots: Sequence[Slot]) -> int:
    return slots[-1].stop


def _check_rank(rank: int, slots: Sequence[Slot]) -> None:
    if rank > _entries(slots):
        raise ValueError(
            f"rank={rank} is above the {_entries(slots)} believed entries of this network; use at most "
            f"that many"
        )


@dataclass(frozen=True, kw_only=True)
class LowRankPlusDiagonal:
    """``diag(s^2) + U U^T``: standard deviations, and ``rank`` directions that all layers share.

    ``(rank + 1) d`` numbers; a draw, its gradient and the variances take ``O(d rank)``, the log det
    ``O(d rank^2)``. On a factorised network it is low rank on low rank.

    Args:
        rank: columns of ``U``.
    """

    rank: int = 10

    def __post_init__(self) -> None:
        check_whole(rank=self.rank)

    def sites(self, slots: Sequence[Slot]) -> list[Site]:
        _check_rank(self.rank, slots)
        return [Site(slice(0, _entries(slots)))]

    def distribution(self, mean: Tensor, root: Root, factor: Tensor) -> LowRankGaussian:
        return LowRankGaussian(mean, _padded(_std(root), mean), factor)

    def facts(self, slots: Sequence[Slot]) -> dict[str, Any]:
        return {}


@dataclass(frozen=True, kw_only=True)
class Kronecker:
    """Each weight's covariance is ``(L L^T) kron (R R^T)``: one factor for outputs, one for inputs.

    Weights of more than two axes count as ``(first, product of the rest)``. Vectors (biases), and weights
    with a side above ``longest_side``, keep standard deviations alone (``info["independent"]`` names the
    weights). No covariance between tensors. ``(m (m + 1) + n (n + 1)) / 2`` numbers for ``m x n`` weights, a
    step takes ``O(m n (m + n))``: more than a thin factor ``(m, r)`` itself has, so on a factorised network
    :class:`LowRankPlusDiagonal` is the smaller.

    Args:
        longest_side: of a weight that has factors; each takes its square in memory.
    """

    longest_side: int = 2048

    def __post_init__(self) -> None:
        check_whole(longest_side=self.longest_side)

    @property
    def rank(self) -> int:
        return 0

    def sites(self, slots: Sequence[Slot]) -> list[Site]:
        return _by_matrix(self.longest_side, slots)

    def distribution(self, mean: Tensor, root: Root, factor: Tensor) -> KroneckerGaussian:
        return _kronecker(mean, root, factor)

    def facts(self, slots: Sequence[Slot]) -> dict[str, Any]:
        return {"independent": _too_long(self.longest_side, slots)}


@dataclass(frozen=True, kw_only=True)
class KroneckerPlusLowRank:
    """:class:`Kronecker`, and ``rank`` directions that all layers share.

    A draw costs what :class:`Kronecker`'s does; the exact variances that the KL to a prior needs cost it once
    more for each direction (``StructuredVI(kl=sb.KL.MONTE_CARLO)`` does without them).

    Args:
        rank: of the part across all layers.
        longest_side: see :class:`Kronecker`.
    """

    rank: int = 2
    longest_side: int = 2048

    def __post_init__(self) -> None:
        check_whole(rank=self.rank, longest_side=self.longest_side)

    def sites(self, slots: Sequence[Slot]) -> list[Site]:
        _check_rank(self.rank, slots)
        return _by_matrix(self.longest_side, slots)

    def distribution(self, mean: Tensor, root: Root, factor: Tensor) -> KroneckerGaussian:
        return _kronecker(mean, root, factor)

    def facts(self, slots: Sequence[Slot]) -> dict[str, Any]:
        return {"independent": _too_long(self.longest_side, slots)}


@dataclass(frozen=True, kw_only=True)
class FullCovariance:
    """Any covariance, by its Cholesky factor: up to 2,000 believed entries, ``d (d + 1) / 2`` numbers."""

    @property
    def rank(self) -> int:
        return 0

    def sites(self, slots: Sequence[Slot]) -> list[Site]:
        size = _entries(slots)
        if size > _FULL_LIMIT:
            raise ValueError(
                f"FullCovariance is for up to {_FULL_LIMIT:,} believed entries, and this network has "
                f"{size:,}; use LowRankPlusDiagonal(rank=10) or Kronecker(), or believe in fewer: "
                f"sb.Model(..., bayesian=...) with the last layer's name"
            )
        return [Site(slice(0, size), (size,))]

    def distribution(self, mean: Tensor, root: Root, factor: Tensor) -> FullGaussian:
        (piece,) = root.pieces
        assert isinstance(piece, Triangular)  # noqa: S101 - the one site above
        own = piece.factor.matrix
        return FullGaussian(mean, own.to(mean.dtype), torch.arange(len(own), device=mean.device))

    def facts(self, slots: Sequence[Slot]) -> dict[str, Any]:
        return {}


def _padded(entries: Tensor, mean: Tensor) -> Tensor:
    """Zeros for the points and statistics that follow the belief."""
    return F.pad(entries.to(mean.dtype), (0, len(mean) - len(entries)))


def _std(root: Root) -> Tensor:
    """Standard deviations of independent entries; 1 in sites that have factors."""
    parts = []
    for site, piece in zip(root.sites, root.pieces, strict=True):
        if isinstance(piece, Independent):
            parts.append(piece.std)
        else:
            parts.append(torch.ones_like(root.numbers[:1]).expand(site.entries.stop - site.entries.start))
    return torch.cat(parts)


# Kronecker factors: which weights have them, and the distribution


def _matrix(slot: Slot) -> tuple[int, ...]:
    """The sides above 1 of a weight as a matrix; none for a vector."""
    if len(slot.shape) < 2:
        return ()
    return tuple(side for side in (slot.shape[0], slot.size // slot.shape[0]) if side > 1)


def _too_long(limit: int, slots: Sequence[Slot]) -> list[str]:
    return [slot.name for slot in slots if max(_matrix(slot), default=0) > limit]


def _by_matrix(limit: int, slots: Sequence[Slot]) -> list[Site]:
    found: list[Site] = []
    for slot in slots:
        sides = _matrix(slot)
        if sides and max(sides) <= limit:
            found.append(Site(slice(slot.start, slot.stop), sides))
        elif found and not found[-1].sides:  # neighbours without factors are one site
            found[-1] = Site(slice(found[-1].entries.start, slot.stop))
        else:
            found.append(Site(slice(slot.start, slot.stop)))
    if not any(site.sides for site in found):
        long = _too_long(limit, slots)
        raise ValueError(
            f"no believed tensor has Kronecker factors here: "
            f"{f'{long[0]} has a side above longest_side={limit}' if long else 'all are vectors'}; use "
            f"LowRankPlusDiagonal(){', or raise longest_side' if long else ''}"
        )
    return found


def _kronecker(mean: Tensor, root: Root, factor: Tensor) -> KroneckerGaussian:
    blocks: list[tuple[int, int, int]] = []
    left, right = [], []
    for site, piece in zip(root.sites, root.pieces, strict=True):
        if isinstance(piece, Matrix):
            one, two = piece.left.matrix, piece.right.matrix
        elif isinstance(piece, Triangular):
            one = piece.factor.matrix
            two = torch.ones_like(one[:1, :1])
        else:
            continue
        blocks.append((site.entries.start, len(one), len(two)))
        left.append(one.to(mean.dtype).flatten())
        right.append(two.to(mean.dtype).flatten())
    return KroneckerGaussian(
        mean,
        _padded(_std(root), mean),
        torch.tensor(blocks, device=mean.device),
        torch.cat(left),
        torch.cat(right),
        factor,
    )
