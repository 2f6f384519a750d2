"""The whole Gauss-Newton matrix of chosen tensors, dense: for small networks, or a last layer.

    H = sum_n J_n^T H_n J_n,        draws  theta + L^-T z  with  H + P = L L^T

``L^-T`` and not ``L^-1``: ``L^-T L^-1`` is the inverse of ``L L^T``.

References:
    MacKay 1992, "Bayesian interpolation", section 3.
"""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..gaussians import FullGaussian
from ..parameters import Slot
from .cholesky import cholesky
from .expansion import Expansion, Measured, Tally, finite, spread
from .jacobian import bent_jacobians
from .linear_head import is_linear_head, linear_head_matrix

__all__ = ["Full", "FullCurvature"]


@dataclass(frozen=True, eq=False)
class Full:
    """The matrix ``H (n, n)`` of chosen tensors, float64."""

    H: Float[Tensor, "n n"]
    slots: tuple[Slot, ...]
    positions: Tensor

    def _factor(self, precision: Tensor, scale: Tensor) -> tuple[Tensor, float]:
        return cholesky(scale * self.H + torch.diag(spread(precision, self.slots)))

    @functools.cached_property
    def _values(self) -> Tensor:
        """Eigenvalues; what is negative is rounding."""
        return torch.linalg.eigvalsh(self.H).clamp(min=0)

    def log_determinant(self, precision: Tensor, scale: Tensor) -> Tensor:
        if len(precision) == 1:  # one decomposition for a whole search
            return (scale * self._values + precision).log().sum()
        return 2 * self._factor(precision, scale)[0].diagonal().log().sum()

    def gaussian(self, row: Tensor, precision: Tensor, scale: Tensor) -> FullGaussian:
        factor, jitter = self._factor(precision, scale)
        if jitter:
            warnings.warn(
                f"the posterior precision is singular to rounding: {jitter:.2g} was added to its diagonal "
                f"(info['jitter']); the prior is too wide to decide what the data leave open, use a smaller "
                f"prior std or a prior_precision that is fitted",
                stacklevel=2,
            )
        identity = torch.eye(len(factor), dtype=factor.dtype, device=factor.device)
        root = torch.linalg.solve_triangular(factor.T, identity, upper=True)
        return FullGaussian(row, root.to(row).contiguous(), self.positions)  # as a file has it

    def jitter(self, precision: Tensor, scale: Tensor) -> float:
        return self._factor(precision, scale)[1]


@dataclass(frozen=True)
class FullCurvature:
    """Keep all ``n^2`` numbers.

    Args:
        limit: more entries than this are refused: 4,000 take 128 MB and some seconds for each evidence.
    """

    limit: int = 4000

    def __post_init__(self) -> None:
        if isinstance(self.limit, bool) or not isinstance(self.limit, int) or self.limit < 1:
            raise ValueError(f"limit must be a whole number of at least 1, got {self.limit!r}")

    def check(self, expansion: Expansion) -> None:
        if expansion.size > self.limit:
            raise ValueError(
                f"FullCurvature of {expansion.size:,} entries is a matrix of {expansion.size**2:.1e} "
                f"numbers, above limit={self.limit:,} entries; use KroneckerCurvature() or "
                f"DiagonalCurvature(), subset=LastLayer(), or raise the limit"
            )

    def measure(self, expansion: Expansion) -> Measured:
        tally, device = Tally(), expansion.leaves[0].device
        matrix = torch.zeros(expansion.size, expansion.size, dtype=torch.float64, device=device)
        for x, bent in expansion.bends(tally):
            if is_linear_head(expansion, x):
                matrix += linear_head_matrix(expansion, x, bent.root)
                continue
            for rows in bent_jacobians(expansion, x, bent.root):
                flat = rows.flatten(0, 1)
                matrix.addmm_(flat.T, flat)
        return Measured(Full(finite(matrix), expansion.slots, expansion.positions.to(device)), tally)
