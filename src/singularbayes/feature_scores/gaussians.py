"""Gaussians of features with one shared covariance: means of classes, and whitened distances to them.

    mu_c = mean of class c,   e_i = f_i - mu_(y_i),   S = 1/N sum_i e_i e_i^T
    d_c(f)^2 = (f - mu_c)^T S^-1 (f - mu_c)

Features are divided by their spread within classes first; there ``S`` is a correlation ``R``, and the shrunk
one is ``(1 - a) R + a I``. So units of features do not matter, and with ``a > 0`` the matrix is not singular.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from sklearn.covariance import ledoit_wolf_shrinkage
from torch import Tensor

__all__ = ["Gaussians"]


@dataclass(frozen=True, eq=False)
class Gaussians:
    """Class means and a shared covariance, whitened.

    Args:
        kept: which features vary within classes ``(F,)``; the others have no spread to measure with.
        std: spread of the kept features within classes ``(F',)``.
        factor: Cholesky factor of the shrunk correlation ``(F', F')``.
        means: whitened class means ``(C, F')``.
        shrinkage: the share ``a`` of the identity.
    """

    kept: Tensor
    std: Tensor
    factor: Tensor
    means: Tensor
    shrinkage: float

    @property
    def dropped(self) -> int:
        """Number of features that were left out, as they are constant within every class."""
        return int((~self.kept).sum())

    @classmethod
    def of(
        cls,
        features: Float[Tensor, "N F"],
        classes: Tensor,
        shrinkage: float | None,
        kept: Tensor | None = None,
    ) -> Gaussians:
        """Estimate them.

        Args:
            features: float64.
            classes: ``(N,)`` whole numbers from 0; all 0 for one Gaussian.
            shrinkage: in [0, 1]; ``None`` for Ledoit and Wolf's.
            kept: the features to use; by default those that vary within classes.

        Raises:
            ValueError: nothing varies; or a singular covariance without shrinkage.
        """
        found, index = classes.unique(return_inverse=True)
        sums = features.new_zeros(len(found), features.shape[1]).index_add_(0, index, features)
        centres = sums / torch.bincount(index).unsqueeze(1)
        inner = features - centres[index]
        std = inner.square().mean(0).sqrt()
        if kept is None:
            kept = std > 1e-10 * features.abs().amax(0)  # rounding of a constant is no spread
        if not bool(kept.any()):
            raise ValueError("no feature varies within the classes; give more rows, or other features")
        inner, std = inner[:, kept] / std[kept], std[kept]
        amount = (
            float(ledoit_wolf_shrinkage(inner.numpy(), assume_centered=True))
            if shrinkage is None
            else shrinkage
        )
        correlation = inner.T @ inner / len(inner)
        shrunk = (1 - amount) * correlation + amount * torch.eye(len(std), dtype=std.dtype)
        values = torch.linalg.eigvalsh(shrunk)
        if values[0] <= len(std) * torch.finfo(std.dtype).eps * values[-1]:
            raise ValueError(
                f"the covariance of {len(std)} features from {len(inner)} rows is singular (smallest over "
                f"largest eigenvalue {float(values[0] / values[-1]):.1g}) at shrinkage {amount:g}; use "
                f"shrinkage=None (Ledoit and Wolf's) or one above 0"
            )
        factor = torch.linalg.cholesky(shrunk)
        means = torch.linalg.solve_triangular(factor, (centres[:, kept] / std).T, upper=False).T
        return cls(kept, std, factor, means, amount)

    def distances(self, features: Float[Tensor, "B F"]) -> Float[Tensor, "B C"]:
        """Squared Mahalanobis distances to every mean."""
        if features.shape[1] != len(self.kept):
            raise ValueError(f"got {features.shape[1]} features, fitted on {len(self.kept)}")
        white = torch.linalg.solve_triangular(
            self.factor, (features[:, self.kept] / self.std).T, upper=False
        ).T
        return torch.stack([(white - mean).square().sum(1) for mean in self.means], 1)
