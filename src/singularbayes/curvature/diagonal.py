"""The diagonal of the Gauss-Newton matrix, exactly.

    h_i = sum_n sum_c (R_n^T J_n)_ci^2

Not the diagonal of Fisher's empirical matrix (squared gradients of the observed labels).

References:
    MacKay 1992, "A practical Bayesian framework for backpropagation networks" (the approximation).
    Ritter et al. 2018, "A scalable Laplace approximation for neural networks", section 3.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..distributions import DiagonalGaussian
from ..parameters import Slot
from .expansion import Expansion, Measured, Tally, finite, spread
from .jacobian import bent_jacobians
from .linear_head import is_linear_head, linear_head_diagonal

__all__ = ["Diagonal", "DiagonalCurvature"]


@dataclass(frozen=True, eq=False)
class Diagonal:
    """The diagonal ``h (n,)`` of chosen tensors."""

    h: Float[Tensor, " n"]
    slots: tuple[Slot, ...]

    def log_determinant(self, precision: Tensor, scale: Tensor) -> Tensor:
        return (scale * self.h + spread(precision, self.slots)).log().sum()

    def gaussian(self, row: Tensor, precision: Tensor, scale: Tensor) -> DiagonalGaussian:
        std = torch.zeros_like(row)
        values = (scale * self.h + spread(precision, self.slots)).rsqrt().to(row)
        sizes = [slot.size for slot in self.slots]
        for slot, part in zip(self.slots, values.split(sizes), strict=True):
            std[slot.start : slot.stop] = part
        return DiagonalGaussian(row, std)

    def jitter(self, precision: Tensor, scale: Tensor) -> float:
        return 0.0


@dataclass(frozen=True)
class DiagonalCurvature:
    """Keep the diagonal: ``n`` numbers, for any network; it costs a Jacobian for every datum."""

    def check(self, expansion: Expansion) -> None:
        return None

    def measure(self, expansion: Expansion) -> Measured:
        tally = Tally()
        h = torch.zeros(expansion.size, dtype=torch.float64, device=expansion.leaves[0].device)
        for x, bent in expansion.bends(tally):
            if is_linear_head(expansion, x):
                h += linear_head_diagonal(expansion, x, bent.root)
                continue
            for rows in bent_jacobians(expansion, x, bent.root):
                h += rows.square().sum((0, 1))
        return Measured(Diagonal(finite(h), expansion.slots), tally)
