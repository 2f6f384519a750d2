"""Gaussian processes on eleven points: regression, and counts with a latent process.

K_ij = alpha^2 exp(-(x_i - x_j)^2 / (2 rho^2)),  rho ~ Gamma(25, rate 4),  alpha ~ half-N(0, 2)
regression:  y ~ N(0, K + sigma I),  sigma ~ half-N(0, 1): a variance
counts:      k_i ~ Poisson(exp f_i),  f = chol(K + 1e-10 I) z,  z ~ N(0, 1)
"""

from pathlib import Path

import torch
from torch import Tensor

from . import log_densities as log_p
from .posterior import ReferencePosterior, around_zero, tensor, unpacked

JITTER = 1e-10


def root(own: Tensor, x: Tensor, variance: Tensor) -> Tensor:
    """Cholesky factor ``(C, n, n)`` of ``K + variance I``; nan where rounding leaves no factor."""
    rho, alpha = own[:, 0, None, None], own[:, 1, None, None]
    kernel = alpha.square() * torch.exp(-0.5 * ((x[:, None] - x) / rho).square())
    factor, failed = torch.linalg.cholesky_ex(kernel + variance[:, None, None] * torch.eye(len(x)).to(x))
    return torch.where(failed[:, None, None] == 0, factor, torch.nan)


def kernel_prior(own: Tensor) -> Tensor:
    return log_p.gamma(own[:, 0], 25, 4) + log_p.normal(own[:, 1], 0, 2)


def regression_log_joint(own: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Own parameters are ``rho, alpha, sigma``."""
    sigma = own[:, 2]
    factor = root(own, x, sigma)
    white = torch.linalg.solve_triangular(factor, y.expand(len(own), -1)[..., None], upper=False)[..., 0]
    log_determinant = factor.diagonal(dim1=1, dim2=2).log().sum(1)
    return -0.5 * white.square().sum(1) - log_determinant + kernel_prior(own) + log_p.normal(sigma, 0, 1)


def latent(own: Tensor, x: Tensor) -> Tensor:
    """``rho, alpha, z`` to ``rho, alpha, f``."""
    f = root(own, x, own.new_full((len(own),), JITTER)) @ own[:, 2:, None]
    return torch.cat([own[:, :2], f[..., 0]], 1)


def whitened(values: Tensor, x: Tensor) -> Tensor:
    """The inverse of ``latent``."""
    factor = root(values, x, values.new_full((len(values),), JITTER))
    z = torch.linalg.solve_triangular(factor, values[:, 2:, None], upper=False)
    return torch.cat([values[:, :2], z[..., 0]], 1)


def counts_log_joint(own: Tensor, x: Tensor, count: Tensor) -> Tensor:
    """Own parameters are ``rho, alpha, z``."""
    likelihood = log_p.poisson(count, latent(own, x)[:, 2:]).sum(1)
    return likelihood + log_p.normal(own[:, 2:], 0, 1).sum(1) + kernel_prior(own)


def regression(folder: Path) -> ReferencePosterior:
    data = unpacked(folder / "data" / "gp_pois_regr.json.zip")
    x, y = tensor(data["x"]), tensor(data["y"])
    return ReferencePosterior(
        name="gp_pois_regr-gp_regr",
        parameters=("rho", "alpha", "sigma"),
        positive=(True, True, True),
        log_joint=lambda own: regression_log_joint(own, x, y),
        start=around_zero(3),
    )


def counts(folder: Path) -> ReferencePosterior:
    data = unpacked(folder / "data" / "gp_pois_regr.json.zip")
    x, count = tensor(data["x"]), tensor(data["k"])
    return ReferencePosterior(
        name="gp_pois_regr-gp_pois_regr",
        parameters=("rho", "alpha", *(f"f[{i + 1}]" for i in range(len(x)))),
        positive=(True, True, *(False for _ in x)),
        log_joint=lambda own: counts_log_joint(own, x, count),
        start=around_zero(2 + len(x)),
        to_database=lambda own: latent(own, x),
        from_database=lambda values: whitened(values, x),
    )
