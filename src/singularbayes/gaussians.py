"""Gaussians over the flat vector whose covariance joins entries: full, and Kronecker-factored by blocks.

Entries that no block covers are independent, with a standard deviation of their own (0 for a point).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

__all__ = ["FullGaussian", "KroneckerGaussian"]


@dataclass(frozen=True, eq=False)
class FullGaussian:
    """``N(mean, C)`` with any covariance ``C = factor factor^T`` among ``n`` chosen entries; the rest points.

    Args:
        mean: ``(D,)``.
        factor: ``(n, n)``, a square root of the covariance: its Cholesky factor, or of a precision ``L L^T``
            the transposed inverse ``L^-T``.
        positions: whole numbers ``(n,)``, which entries of the vector the factor's rows are.

    Example:
        >>> gaussian = FullGaussian(torch.zeros(2), torch.tensor([[2.0, 0.0], [1.0, 1.0]]), torch.arange(2))
        >>> gaussian.variance.tolist()
        [4.0, 2.0]
    """

    mean: Float[Tensor, " D"]
    factor: Float[Tensor, "n n"]
    positions: Int[Tensor, " n"]
    kind: ClassVar[str] = "full_gaussian"
    support: ClassVar[None] = None

    def __post_init__(self) -> None:
        n = len(self.positions)
        if self.factor.shape != (n, n):
            raise ValueError(
                f"FullGaussian: {n} positions need a factor ({n}, {n}), got {tuple(self.factor.shape)}"
            )
        if n and not (int(self.positions.min()) >= 0 and int(self.positions.max()) < len(self.mean)):
            raise ValueError(f"FullGaussian: positions must lie in 0..{len(self.mean) - 1}")
        if len(self.positions.unique()) != n:
            raise ValueError("FullGaussian: a position is named twice")

    @property
    def size(self) -> int:
        return len(self.mean)

    @property
    def covariance(self) -> Float[Tensor, "n n"]:
        """Covariance of the chosen entries."""
        return self.factor @ self.factor.T

    @property
    def variance(self) -> Tensor:
        variance = torch.zeros_like(self.mean)
        variance[self.positions] = self.factor.square().sum(1).to(variance)
        return variance

    @property
    def noise_size(self) -> int:
        return len(self.positions)

    def noise(self, row: Tensor, generator: torch.Generator, index: int, total: int) -> None:
        row.normal_(generator=generator)

    def sample(self, noise: Tensor) -> Tensor:
        wide = torch.promote_types(self.mean.dtype, noise.dtype)
        rows = self.mean.to(wide).repeat(len(noise), 1)
        rows[:, self.positions] += noise.to(wide) @ self.factor.T.to(wide)
        return rows

    def tensors(self) -> dict[str, Tensor]:
        return {"mean": self.mean, "factor": self.factor, "positions": self.positions}


class Block(NamedTuple):
    """A block of a :class:`KroneckerGaussian`: its entries of the vector, its shape, its ``L`` and ``R``."""

    entries: slice
    shape: tuple[int, int]
    left: Tensor
    right: Tensor


@dataclass(frozen=True, eq=False)
class KroneckerGaussian:
    """By blocks ``W = M + L (S o Z) R^T``, ``Z`` standard normal; all else independent ``N(mean, std^2)``.

    With ``S = 1`` a block's covariance is ``(L L^T) kron (R R^T)`` in row-major order. With orthonormal ``L``
    and ``R`` it is what a Kronecker-factored precision plus a multiple of the identity inverts to, ``S`` the
    inverse roots of the eigenvalues. An optional ``factor`` adds one low-rank noise for the whole vector.

    Args:
        mean: ``(D,)``.
        std: ``S`` of the blocks, each at its block's entries; standard deviations elsewhere ``(D,)``.
        blocks: whole numbers ``(n, 3)``: where a block starts in the vector, and its ``m`` and ``n``; it
            covers ``m n`` entries, row by row.
        left: the ``L (m, m)`` of all blocks, flattened, one after the other.
        right: the ``R (n, n)``, likewise.
        factor: ``(D, k)``; ``k`` may be 0.

    References:
        Gupta and Nagar 1999, "Matrix variate distributions", theorem 2.3.1.
    """

    mean: Float[Tensor, " D"]
    std: Float[Tensor, " D"]
    blocks: Int[Tensor, "n 3"]
    left: Float[Tensor, " p"]
    right: Float[Tensor, " q"]
    factor: Float[Tensor, "D k"]
    kind: ClassVar[str] = "kronecker_gaussian"
    support: ClassVar[None] = None

    def __post_init__(self) -> None:
        size = len(self.mean)
        if self.std.shape != (size,) or self.factor.dim() != 2 or len(self.factor) != size:
            raise ValueError(
                f"KroneckerGaussian: a mean of {size} entries needs std ({size},) and factor ({size}, k), "
                f"got {tuple(self.std.shape)} and {tuple(self.factor.shape)}"
            )
        if not bool((self.std >= 0).all()):
            raise ValueError("KroneckerGaussian: scales are standard deviations and must be 0 or positive")
        wanted = tuple(int(self.blocks[:, i].square().sum()) for i in (1, 2))
        if (self.left.numel(), self.right.numel()) != wanted:
            raise ValueError(
                f"KroneckerGaussian: these blocks need {wanted[0]} and {wanted[1]} entries of left and "
                f"right, got {self.left.numel()} and {self.right.numel()}"
            )
        end = 0
        for start, m, n in sorted(self.blocks.tolist()):
            if start < end or start + m * n > size:
                raise ValueError(
                    f"KroneckerGaussian: the block ({m} x {n}) at {start} overlaps another or ends "
                    f"beyond {size}"
                )
            end = start + m * n

    @property
    def size(self) -> int:
        return len(self.mean)

    def each_block(self) -> Iterator[Block]:
        """The blocks, one after the other."""
        p = q = 0
        for start, m, n in self.blocks.tolist():
            left, right = self.left[p : p + m * m].view(m, m), self.right[q : q + n * n].view(n, n)
            yield Block(slice(start, start + m * n), (m, n), left, right)
            p, q = p + m * m, q + n * n

    @property
    def variance(self) -> Tensor:
        variance = self.std.square()
        for block in self.each_block():
            scale = variance[block.entries].view(block.shape)
            variance[block.entries] = (block.left.square() @ scale @ block.right.square().T).flatten()
        return variance + self.factor.square().sum(1)

    @property
    def noise_size(self) -> int:
        return self.size + self.factor.shape[1]

    def noise(self, row: Tensor, generator: torch.Generator, index: int, total: int) -> None:
        row.normal_(generator=generator)

    def sample(self, noise: Tensor) -> Tensor:
        wide = torch.promote_types(self.mean.dtype, noise.dtype)
        own, shared = noise[:, : self.size].to(wide), noise[:, self.size :].to(wide)
        shifts = own * self.std.to(wide)
        for block in self.each_block():
            matrices = shifts[:, block.entries].view(-1, *block.shape)
            turned = block.left.to(wide) @ matrices @ block.right.T.to(wide)
            shifts[:, block.entries] = turned.flatten(1)
        return self.mean.to(wide) + shifts + shared @ self.factor.T.to(wide)

    def tensors(self) -> dict[str, Tensor]:
        return {
            "mean": self.mean,
            "std": self.std,
            "blocks": self.blocks,
            "left": self.left,
            "right": self.right,
            "factor": self.factor,
        }
