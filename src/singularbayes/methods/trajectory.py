"""What a walk through weight space leaves behind: its mean, its variance, and its last deviations.

    mean_n   = mean_{n-1} + (w_n - mean_{n-1}) / n
    sum_n    = sum_{n-1} + (w_n - mean_{n-1}) (w_n - mean_n),     variance_n = sum_n / n
    column_n = w_n - mean_n,                                      the last ``rank`` of them are kept

The variance is never a difference of two large moments, so it stays right in float32 where the weights are
far from 0. A step allocates one block of a vector.

References:
    Welford 1962, "Note on a method for calculating corrected sums of squares and products". Maddox et al.
    2019, arXiv 1902.02476, section 3 (the deviations).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["Trajectory"]

_BLOCK = 2**18  # entries at a time: what a step needs beside what it keeps


class Trajectory:
    """Running moments of vectors ``(d,)`` and their last deviations from the mean of their time.

    Args:
        rank: how many deviations are kept; 0 keeps none.
        spread: of how many leading entries variance and deviations are kept (``None``: all); those of the
            others are 0, and only their mean is taken.

    Example:
        >>> walk = Trajectory(rank=2)
        >>> for w in ([1.0, 2.0], [3.0, 1.0], [2.0, 4.0], [4.0, 3.0], [5.0, 5.0]):
        ...     walk.add(torch.tensor(w))
        >>> walk.count, walk.mean, walk.variance
        (5, tensor([3., 3.]), tensor([2., 2.]))
        >>> walk.deviations.sum(0)  # of the last two: (4, 3) - (2.5, 2.5) and (5, 5) - (3, 3)
        tensor([3.5000, 2.5000])
    """

    def __init__(self, rank: int = 20, spread: int | None = None) -> None:
        if rank < 0 or (spread is not None and spread < 0):
            raise ValueError(f"rank and spread must be 0 or more, got {rank} and {spread}")
        self.rank, self.spread = rank, spread
        self.count = 0
        self._mean = self._sum = self._columns = torch.empty(0)
        self._scale, self._lent = 1.0, False

    def __repr__(self) -> str:
        return f"Trajectory({self.count} vectors, {self.kept} of at most {self.rank} deviations)"

    @property
    def kept(self) -> int:
        """Number ``k`` of the deviations that are kept."""
        return min(self.count, self.rank)

    @torch.no_grad()
    def add(self, w: Float[Tensor, " d"] | Sequence[Tensor]) -> None:
        """Take in one vector; it is not kept.

        Args:
            w: the vector, or pieces that make it up in this order, each of any shape.

        Raises:
            ValueError: another length than before, or entries that are not finite.
        """
        pieces = [piece.detach().reshape(-1) for piece in ([w] if isinstance(w, Tensor) else w)]
        size = sum(map(len, pieces))
        if self.count and size != len(self._mean):
            raise ValueError(
                f"the vectors before had {len(self._mean)} entries, this one has {size}: they must be of one "
                f"network"
            )
        if not all(_is_finite(piece) for piece in pieces):
            raise ValueError(
                f"vector {self.count + 1} has entries that are nan or infinite: the training that it comes "
                f"from went wrong; lower its learning rate"
            )
        self._begin(size, pieces[0])
        self._own()
        self.count += 1
        start = 0
        for piece in pieces:
            for block in piece.split(_BLOCK):
                self._add_block(block.to(self._mean.dtype), slice(start, start + len(block)))
                start += len(block)

    def _add_block(self, w: Tensor, part: slice) -> None:
        mean = self._mean[part]
        change = w - mean
        mean.add_(change, alpha=1 / self.count)
        spread = slice(part.start, min(part.stop, len(self._sum)))
        inside = spread.stop - spread.start
        if inside <= 0:
            return
        if self.rank:
            after = self._columns[(self.count - 1) % self.rank, spread]
        else:
            after = torch.empty_like(change[:inside])
        torch.sub(w[:inside], mean[:inside], out=after)
        self._sum[spread].addcmul_(change[:inside], after)

    def _begin(self, size: int, like: Tensor) -> None:
        """Make room at the first vector."""
        if self.count == 0:
            dtype = like.dtype if like.dtype in (torch.float32, torch.float64) else torch.float32
            spread = size if self.spread is None else min(self.spread, size)
            self._mean, self._sum = (like.new_zeros(n, dtype=dtype) for n in (size, spread))
            # no page of it is touched before it is needed
            self._columns = like.new_empty(self.rank, size, dtype=dtype)
            self._columns[:, spread:] = 0
            self._scale, self._lent = 1.0, False

    def _own(self) -> None:
        """Before a change: what was lent stays with the borrower, and the columns are plain again."""
        if self._lent:
            plain = torch.empty_like(self._columns)
            torch.div(self._columns[: self.kept], self._scale, out=plain[: self.kept])
            plain[self.kept :, len(self._sum) :] = 0
            self._columns, self._mean = plain, self._mean.clone()
            self._scale, self._lent = 1.0, False

    def _check(self) -> None:
        if self.count == 0:
            raise ValueError("nothing was collected: a mean needs at least one vector")

    @property
    def mean(self) -> Float[Tensor, " d"]:
        """Mean of all vectors; it moves with the next one.

        Raises:
            ValueError: no vector yet.
        """
        self._check()
        return self._mean

    @property
    def variance(self) -> Float[Tensor, " d"]:
        """The population's variance (divided by ``n``) of all vectors.

        Raises:
            ValueError: no vector yet.
        """
        self._check()
        variance = torch.zeros_like(self._mean)
        torch.div(self._sum, self.count, out=variance[: len(self._sum)])
        return variance

    @property
    def deviations(self) -> Float[Tensor, "k d"]:
        """The last deviations, one a row; the oldest is row ``count % rank`` once there are ``rank``."""
        self._own()
        return self._columns[: self.kept]

    @torch.no_grad()
    def factor(self, scale: float) -> Float[Tensor, "d k"]:
        """The deviations times ``scale``, one a column, in the memory in which they are kept.

        Nothing is copied now. The result and :attr:`mean` stay as they are; if another vector is added or a
        factor with another scale is asked for, the trajectory copies what it needs.
        """
        if scale != self._scale:
            self._own()
            self._columns[: self.kept].mul_(scale)
            self._scale = scale
        self._lent = True
        return self._columns[: self.kept].T

    def tensors(self) -> dict[str, Tensor]:
        """The state by name, not copied: ``count``, then ``mean``, ``sum`` and ``columns`` if there are."""
        count = torch.tensor(self.count)
        if self.count == 0:
            return {"count": count}
        return {"count": count, "mean": self._mean, "sum": self._sum, "columns": self.deviations}

    def load(self, tensors: Mapping[str, Tensor], device: torch.device | None = None) -> None:
        """Go on from what :meth:`tensors` gave; the tensors are taken over.

        Args:
            tensors: by name.
            device: where to keep them; by default where they are.
        """
        self.count = int(tensors["count"])
        if self.count == 0:
            return
        mean, total, columns = (tensors[name].to(device) for name in ("mean", "sum", "columns"))
        self._scale, self._lent = 1.0, False
        self._mean, self._sum = mean, total
        if self._columns.shape == (self.rank, len(mean)) and columns.data_ptr() == self._columns.data_ptr():
            return  # our own
        if len(columns) < self.rank:
            room = columns.new_empty(self.rank, len(mean))
            room[:, len(total) :] = 0
            room[: len(columns)] = columns
            columns = room
        self._columns = columns


def _is_finite(w: Tensor) -> bool:
    """Without a copy of ``w``."""
    return len(w) == 0 or all(math.isfinite(end) for end in torch.stack(torch.aminmax(w)).tolist())
