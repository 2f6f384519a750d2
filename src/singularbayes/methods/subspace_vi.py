"""Variational inference in a subspace: a Gaussian over its coordinates, trained by the ELBO.

    q(z) = N(m, L L^T),    z = m + L eps,    w = centre + P z
    loss = mean batch NLL + (T / N) KL,    KL = 1/2 (|m|^2 + |L|_F^2 - k) - sum_i log L_ii

with one draw of ``eps`` a batch; ``L_ii = softplus(rho_i)``. The likelihood's gradients in ``m`` and ``L``
are ``P^T g`` and ``P^T g eps^T``, ``g`` the network's.

References:
    Izmailov et al. 2019, arXiv 1907.07504 (variational inference in the subspace).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ..distributions import LowRankGaussian, StoredDraws, positive
from ..model import Model
from ..posterior import Posterior
from .learner import Bound, adam
from .plane import Plane, Problem
from .resume import digest_of
from .settings import OneOfSeveral, check_whole
from .training import Training, fit_learner

__all__ = ["SubspaceVI"]


class PlaneLearner:
    """The trained vector is ``[m | rho | entries of L below the diagonal]``."""

    def __init__(self, plane: Plane, settings: SubspaceVI, bound: Bound, gradient: Tensor) -> None:
        self.plane, self.bound, k = plane, bound, plane.dimension
        trained = len(bound.w)
        # The network's own gradient lies before the vector's, which is all that the optimiser sees.
        self.network_gradient, self.gradient = gradient[:trained], gradient[trained:]
        self.below = torch.tril_indices(k, k, -1, device=gradient.device)
        self.vector = torch.zeros_like(self.gradient)
        self.vector[k : 2 * k] = math.log(math.expm1(settings.initial_std))
        self.noise = torch.zeros(k, dtype=gradient.dtype, device=gradient.device)
        bound.w.copy_(plane.center[:trained])

    @property
    def mean(self) -> Tensor:
        return self.vector[: self.plane.dimension]

    @property
    def factor(self) -> Float[Tensor, "k k"]:
        """``L``."""
        k = self.plane.dimension
        factor = torch.diag(positive(self.vector[k : 2 * k]))
        if len(self.vector) > 2 * k:
            factor[self.below[0], self.below[1]] = self.vector[2 * k :]
        return factor

    @torch.no_grad()
    def draw(self, noise: torch.Generator) -> None:
        self.network_gradient.zero_()
        self.noise.normal_(generator=noise)
        z = self.mean + self.factor @ self.noise
        beliefs = len(self.plane.directions)
        torch.addmv(self.plane.center[:beliefs], self.plane.directions, z, out=self.bound.w[:beliefs])

    @torch.no_grad()
    def finish(self, weight: float, progress: float) -> None:
        k, factor = self.plane.dimension, self.factor
        pulled = self.plane.directions.T @ self.network_gradient[: len(self.plane.directions)]
        of_factor = torch.outer(pulled, self.noise) + weight * factor
        self.gradient[:k] = pulled + weight * self.mean
        of_std = of_factor.diagonal() - weight / factor.diagonal()
        self.gradient[k : 2 * k] = of_std * torch.sigmoid(self.vector[k : 2 * k])
        if len(self.vector) > 2 * k:
            self.gradient[2 * k :] = of_factor[self.below[0], self.below[1]]

    def optimizer(self, learning_rate: float) -> torch.optim.Optimizer:
        return adam(self.vector, learning_rate)

    @torch.no_grad()
    def regulariser(self) -> float:
        """The exact KL, in nats."""
        mean, factor = self.mean.double(), self.factor.double()
        squares = mean.square().sum() + factor.square().sum() - len(mean)
        return (0.5 * squares - factor.diagonal().log().sum()).item()

    def facts(self) -> dict[str, Any]:
        return {}

    @torch.no_grad()
    def distribution(self) -> LowRankGaussian:
        plane = self.plane
        factor = plane.directions @ self.factor
        trained = plane.rows(self.mean.unsqueeze(0))[0, : len(self.bound.w)]
        mean = self.bound.row(trained)  # with statistics from along the way, not the centre's
        after = len(mean) - len(factor)
        return LowRankGaussian(mean, torch.zeros_like(mean), F.pad(factor, (0, 0, 0, after)))


class BuildPlane:
    """Makes a :class:`PlaneLearner` and keeps it, for its Gaussian in the coordinates."""

    def __init__(self, plane: Plane, settings: SubspaceVI) -> None:
        self.plane, self.settings = plane, settings
        self.learner: PlaneLearner | None = None

    def size(self, model: Model) -> int:
        k = self.plane.dimension
        below = 0 if self.settings.diagonal else k * (k - 1) // 2
        return model.layout.trained + 2 * k + below

    def __call__(self, bound: Bound, start: Tensor, gradient: Tensor) -> PlaneLearner:
        self.learner = PlaneLearner(self.plane, self.settings, bound, gradient)
        return self.learner


@dataclass(frozen=True, kw_only=True)
class SubspaceVI(Training):
    """Inference in a subspace by a Gaussian over its coordinates. Other fields: see ``Training``.

    Args:
        diagonal: independent coordinates, instead of a full covariance of them.
        initial_std: of every coordinate at the start; the prior's is 1.
        stored_draws: for networks whose normalisation layers have running statistics: so many draws are
            stored, each with statistics of its own. Other posteriors are a Gaussian.
        temperature: ``T`` of the likelihood, which is the weight of the KL; see ``EllipticalSlice``.
    """

    epochs: int = 30
    learning_rate: float = 0.03
    diagonal: bool = False
    initial_std: float = 0.1
    stored_draws: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(stored_draws=self.stored_draws)
        if not (self.initial_std > 0 and math.isfinite(self.initial_std)):
            raise ValueError(f"initial_std must be positive and finite, got {self.initial_std!r}")
        if not self.temperature > 0:
            raise ValueError(
                f"temperature must be above 0, got {self.temperature}: at 0 the Gaussian has no width"
            )
        if self.device is not None:
            raise ValueError(
                f"SubspaceVI works where the subspace lies and takes no device, got {self.device!r}; give it "
                f"to the run, Collection(device=...), or move the model's network"
            )

    def infer(self, problem: Problem) -> tuple[LowRankGaussian | StoredDraws, dict[str, Any]]:
        """See ``Inference``."""
        plane, build = problem.plane, BuildPlane(problem.plane, self)
        of_plane = digest_of(plane.center, plane.directions)
        settings = OneOfSeveral.of(self, self.diagonal, self.initial_std, of_plane)
        fitted: Posterior = fit_learner(
            problem.model,
            replace(settings, device=str(plane.center.device)),
            build,
            problem.train,
            problem.validation,
            seed=problem.seed,
            checkpoint=problem.checkpoint,
            progress=problem.progress,
            validation_draws=8,
            facts={"method": type(self).__name__},
        )
        gaussian, learner = fitted.distribution, build.learner
        if learner is None:  # pragma: no cover - the loop always builds it
            raise RuntimeError("the training loop built no learner")
        trained = problem.model.layout.trained
        facts = {
            "z_mean": learner.mean.tolist(),
            "z_std": learner.factor.square().sum(1).sqrt().tolist(),
            "numbers": len(learner.vector) + plane.directions.numel() + trained,
            "inference_history": fitted.info["history"],
        }
        if not problem.data.settles:
            return gaussian, facts
        rows = problem.data.settled(fitted.draw(self.stored_draws, problem.seed))
        return StoredDraws(rows), {**facts, "numbers": len(rows) * trained}
