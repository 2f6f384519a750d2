"""Targets of the samplers' tests: correlated and badly scaled, with exact moments."""

import math

import pytest
import torch

ROOT = torch.tensor([[0.2, 0.0, 0.0], [-3.0, 1.0, 0.0], [4.0, 1.5, 8.0]], dtype=torch.float64)
MEAN = torch.tensor([0.2, -1.0, 30.0], dtype=torch.float64)
COVARIANCE = ROOT @ ROOT.T
PRECISION = torch.linalg.inv(COVARIANCE)


class Gaussian:
    """``N(MEAN, ROOT ROOT^T)`` as a log density of rows."""

    mean, covariance, root = MEAN, COVARIANCE, ROOT

    def __call__(self, q):
        gap = q.double() - MEAN
        return -0.5 * (gap @ PRECISION * gap).sum(1)

    def exact(self, chains, seed=0):
        noise = torch.randn(chains, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        return MEAN + noise @ ROOT.T

    def gap(self, draws):
        """Largest gap of mean and covariance in standard errors, from independent chains ``(C, N, 3)``.

        Of the whitened draws: also the narrowest direction, a hundredth of the widest, counts.
        """
        off = torch.linalg.solve_triangular(ROOT, (draws.double() - MEAN).mT, upper=False).mT
        products = torch.einsum("cni,cnj->cnij", off, off)[..., *torch.tril_indices(3, 3)]
        found = torch.cat([off, products], -1).mean(1)
        right = torch.tensor([0, 0, 0, 1, 0, 1, 0, 0, 1])
        return ((found.mean(0) - right).abs() / (found.std(0) / math.sqrt(len(draws)))).max().item()


@pytest.fixture
def gaussian():
    return Gaussian()
