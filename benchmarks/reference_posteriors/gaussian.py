"""Correlated Gaussians whose moments are known exactly."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .comparison import Expectations


@dataclass(frozen=True, kw_only=True, eq=False)
class CorrelatedGaussian:
    """``N(mean, covariance)``, eigenvectors in the columns of ``axes``, ``variances`` along them."""

    mean: Tensor
    axes: Tensor
    variances: Tensor

    @property
    def dimension(self) -> int:
        return len(self.mean)

    @property
    def covariance(self) -> Tensor:
        return (self.axes * self.variances) @ self.axes.T

    def log_density(self, position: Tensor) -> Tensor:
        """``(C, d)`` to ``(C,)``, nats, up to a constant."""
        return -0.5 * ((position - self.mean) @ (self.axes / self.variances.sqrt())).square().sum(1)

    def values(self, position: Tensor) -> Tensor:
        """What is compared, ``(..., 2 d)``: the coordinates, and the deviations along the eigenvectors.

        A sampler can be right in every coordinate and wrong in their correlation: along the eigenvectors it
        shows.
        """
        return torch.cat([position, (position - self.mean) @ self.axes], -1)

    def expectations(self) -> Expectations:
        mean = torch.cat([self.mean, torch.zeros_like(self.mean)]).numpy()
        variance = torch.cat([self.covariance.diagonal(), self.variances]).numpy()
        d, exact = self.dimension, np.zeros_like(mean)
        return Expectations(
            names=(*(f"x[{i + 1}]" for i in range(d)), *(f"axis[{i + 1}]" for i in range(d))),
            mean=mean,
            mean_error=exact,
            square=mean**2 + variance,
            square_error=exact,
        )

    def start(self, chains: int, source: torch.Generator) -> Tensor:
        """Twice as spread as the Gaussian, and without its correlation."""
        noise = torch.randn(chains, self.dimension, generator=source, dtype=torch.float64)
        return self.mean + 2 * self.covariance.diagonal().sqrt() * noise

    def exact(self, chains: int, draws: int, source: torch.Generator) -> Tensor:
        """Independent draws, ``(chains, draws, d)``."""
        noise = torch.randn(chains, draws, self.dimension, generator=source, dtype=torch.float64)
        return self.mean + noise * self.variances.sqrt() @ self.axes.T


def correlated_gaussian(dimension: int, condition: float = 1e3, seed: int = 0) -> CorrelatedGaussian:
    """Random axes, variances spread evenly in their logarithm over ``condition``, a random mean."""
    source = torch.Generator().manual_seed(seed)
    noise = torch.randn(dimension, dimension + 1, generator=source, dtype=torch.float64)
    axes, _ = torch.linalg.qr(noise[:, :dimension])
    variances = condition ** torch.linspace(-1, 0, dimension, dtype=torch.float64)
    return CorrelatedGaussian(mean=noise[:, dimension], axes=axes, variances=variances)
