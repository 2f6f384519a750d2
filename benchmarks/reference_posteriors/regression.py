"""Seven linear regressions with unknown noise: autoregression, earnings, test scores, synthetic ones.

y ~ N(X beta, sigma),  flat or normal priors on beta, a flat, half-Cauchy or half-normal prior on sigma > 0
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from . import log_densities as log_p
from .posterior import ReferencePosterior, tensor, unpacked


class Regression:
    """The joint density of a regression, by its sufficient statistics.

    With ``X = Q R`` and least squares ``b``, ``|y - X beta|^2 = |y - X b|^2 + |R (beta - b)|^2``: exact, and
    as quick for a thousand rows as for ten.

    Args:
        design: ``X (N, k)``.
        outcome: ``y (N,)``.
        coefficients: log prior of ``beta``, elementwise.
        noise: log prior of ``sigma``, elementwise.
    """

    def __init__(
        self,
        design: Tensor,
        outcome: Tensor,
        coefficients: Callable[[Tensor], Tensor] = torch.zeros_like,
        noise: Callable[[Tensor], Tensor] = torch.zeros_like,
    ) -> None:
        orthogonal, self.root = torch.linalg.qr(design)
        self.solution = torch.linalg.solve_triangular(
            self.root, (orthogonal.T @ outcome)[:, None], upper=True
        )[:, 0]
        self.residual = (outcome - design @ self.solution).square().sum()
        self.rows = len(outcome)
        self.coefficients, self.noise = coefficients, noise

    def log_joint(self, own: Tensor) -> Tensor:
        """``(C, k + 1)``, coefficients and then sigma, to ``(C,)``."""
        beta, sigma = own[:, :-1], own[:, -1]
        squares = self.residual + ((beta - self.solution) @ self.root.T).square().sum(1)
        likelihood = -0.5 * squares / sigma.square() - self.rows * sigma.log()
        return likelihood + self.coefficients(beta).sum(1) + self.noise(sigma)

    def start(self, chains: int, source: torch.Generator) -> Tensor:
        """Around least squares, with twice its standard errors and their correlation."""
        columns = len(self.solution)
        sigma = (self.residual / (self.rows - columns)).sqrt()
        noise = torch.randn(chains, columns + 1, generator=source, dtype=torch.float64)
        spread = torch.linalg.solve_triangular(self.root, noise[:, :-1].T, upper=True).T
        beta = self.solution + 2 * sigma * spread
        return torch.cat([beta, sigma.log() + 2 * noise[:, -1:] / (2 * self.rows) ** 0.5], 1)


def posterior(name: str, coefficients: tuple[str, ...], model: Regression) -> ReferencePosterior:
    return ReferencePosterior(
        name=name,
        parameters=(*coefficients, "sigma"),
        positive=(*(False for _ in coefficients), True),
        log_joint=model.log_joint,
        start=model.start,
    )


def betas(count: int) -> tuple[str, ...]:
    return tuple(f"beta[{k + 1}]" for k in range(count))


def autoregression(folder: Path) -> ReferencePosterior:
    data = unpacked(folder / "data" / "arK.json.zip")
    y, lags = tensor(data["y"]), data["K"]
    columns = [torch.ones(len(y) - lags).to(y), *(y[lags - k : len(y) - k] for k in range(1, lags + 1))]
    model = Regression(
        design=torch.stack(columns, 1),
        outcome=y[lags:],
        coefficients=lambda beta: log_p.normal(beta, 0, 10),
        noise=lambda sigma: log_p.cauchy(sigma, 2.5),
    )
    return posterior("arK-arK", ("alpha", *betas(lags)), model)


def earnings(folder: Path, *, log: bool) -> ReferencePosterior:
    data = unpacked(folder / "data" / "earnings.json.zip")
    height, earned = tensor(data["height"]), tensor(data["earn"])
    design = torch.stack([torch.ones_like(height), height], 1)
    model = Regression(design=design, outcome=earned.log() if log else earned)
    return posterior(f"earnings-{'logearn' if log else 'earn'}_height", betas(2), model)


def kidscore(folder: Path, *, interaction: bool) -> ReferencePosterior:
    data = unpacked(folder / "data" / "kidiq.json.zip")
    school, iq = tensor(data["mom_hs"]), tensor(data["mom_iq"])
    columns = [torch.ones_like(iq), school, iq] + [school * iq] * interaction
    model = Regression(
        design=torch.stack(columns, 1),
        outcome=tensor(data["kid_score"]),
        noise=lambda sigma: log_p.cauchy(sigma, 2.5),
    )
    name = "kidiq-kidscore_interaction" if interaction else "kidiq-kidscore_momhsiq"
    return posterior(name, betas(len(columns)), model)


def synthetic(folder: Path, *, correlated: bool) -> ReferencePosterior:
    name = "sblrc" if correlated else "sblri"
    data = unpacked(folder / "data" / f"{name}.json.zip")
    model = Regression(
        design=tensor(data["X"]),
        outcome=tensor(data["y"]),
        coefficients=lambda beta: log_p.normal(beta, 0, 10),
        noise=lambda sigma: log_p.normal(sigma, 0, 10),
    )
    return posterior(f"{name}-blr", betas(data["D"]), model)
