"""IVON: mean-field variational inference by natural gradients, at the price of Adam.

    q = prod_i Normal(m_i, 1 / (N/T (h_i + wd_i))),    wd_i = T / (N std_i^2) for the prior Normal(0, std_i^2)

One step, with ``w = m + n`` drawn from ``q`` and ``g`` the gradient of the mean NLL at ``w``:

    f   = N/T (h + wd) mean(n g)                                      (an unbiased estimate of the curvature)
    mom = b1 mom + (1 - b1) mean(g)
    h   = h + (1 - b2) (f - h) + (1 - b2)^2 (h - f)^2 / (2 (h + wd))  (h + wd stays positive)
    m   = m - lr (h0 + wd) clip((mom / (1 - b1^t) + wd m) / (h + wd), +-radius)

At the optimum ``h`` is the mean NLL's curvature averaged over ``q``, and ``q`` that of ``MeanField`` with the
closed KL. What of the network is a point estimate has no noise, so nothing measures its curvature: it moves
by ``-lr mom / (1 - b1^t)``, the same update with ``h`` held at ``h0`` and no prior.

References:
    Shen et al. 2024, arXiv 2402.17641, algorithm 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..distributions import DiagonalGaussian
from ..divergence import Family, closed
from ..model import Model, check_model
from ..posterior import Posterior
from ..priors import Normal
from .learner import Bound, warn_if_collapsed
from .settings import check_whole
from .training import Training, fit_learner

__all__ = ["IVON"]


class Update(torch.optim.Optimizer):
    """The step above on the flat vector ``[means | point estimates | h]``; state: ``momentum``, ``step``.

    The vector's gradient is ``[mean gradient of the draws | f]``: what several processes average.

    Args:
        vector: see above; ``h`` has one entry for each mean.
        beliefs: number of means.
        decay: ``wd``, a number or one for each mean.
        method: the hyper-parameters.
        learning_rate: ``lr``; the loop moves the group's.
    """

    def __init__(
        self, vector: Tensor, beliefs: int, decay: float | Tensor, method: IVON, learning_rate: float
    ) -> None:
        super().__init__([vector], {"lr": learning_rate})
        self.vector, self.beliefs, self.decay, self.method = vector, beliefs, decay, method
        trained = len(vector) - beliefs
        self.mean, self.points, self.hessian = vector.split([beliefs, trained - beliefs, beliefs])
        self.width, self.change = torch.empty_like(self.mean), torch.empty_like(self.mean)
        self.state[vector] = {
            "momentum": torch.zeros_like(vector[:trained]),
            "step": torch.zeros((), dtype=vector.dtype, device=vector.device),
        }

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update from the vector's gradient, whose ``f`` is overwritten."""
        state, method, h, width, change = (
            self.state[self.vector], self.method, self.hessian, self.width, self.change
        )  # fmt: skip
        if self.vector.grad is None:
            return
        momentum, beliefs = state["momentum"], self.beliefs
        gradient, f = self.vector.grad[: len(momentum)], self.vector.grad[len(momentum) :]
        state["step"] += 1
        unbiased = 1 / (1 - method.beta1 ** state["step"])
        rate, lr = 1 - method.beta2, self.param_groups[0]["lr"]
        momentum.lerp_(gradient, 1 - method.beta1)
        f.sub_(h)
        torch.add(h, self.decay, out=width)
        torch.div(f, width, out=change).mul_(f)
        h.add_(f, alpha=rate).add_(change, alpha=0.5 * rate**2)
        torch.add(h, self.decay, out=width)
        torch.mul(momentum[:beliefs], unbiased, out=change)
        if isinstance(self.decay, Tensor):
            change.addcmul_(self.decay, self.mean).div_(width)
        else:
            change.add_(self.mean, alpha=self.decay).div_(width)
        if method.clip_radius < math.inf:
            change.clamp_(-method.clip_radius, method.clip_radius)
        if isinstance(self.decay, Tensor):
            self.mean.addcmul_(change, self.decay + method.hessian_init, value=-lr)
        else:
            self.mean.add_(change, alpha=-lr * (method.hessian_init + self.decay))
        if len(self.points):
            change = momentum[beliefs:] * unbiased
            if method.clip_radius < math.inf:
                bound = method.clip_radius * method.hessian_init
                change.clamp_(-bound, bound)
            self.points.sub_(change, alpha=lr)


class IVONLearner:
    """The trained vector is ``[mean | point estimates | h]``."""

    def __init__(self, method: IVON, bound: Bound, start: Tensor, gradient: Tensor) -> None:
        layout = bound.layout
        self.method, self.bound, self.gradient, self.draws = method, bound, gradient, method.draws
        self.beliefs, self.trained = layout.belief, layout.trained
        self.vector = torch.full_like(gradient, method.hessian_init)
        self.vector[: self.trained] = start[: self.trained]
        self.mean, self.g, self.weights = (t[: self.beliefs] for t in (self.vector, gradient, bound.w))
        self.g_trained = gradient[: self.trained]
        self.estimate = gradient[self.trained :]
        self.count = bound.num_data / method.temperature
        self.noise, self.scale = torch.empty_like(self.mean), torch.empty_like(self.mean)
        sums = torch.zeros_like(self.g_trained), torch.zeros_like(self.mean)
        self.sums = sums if self.draws > 1 else None
        self.drawn = 0
        self.update = Update(self.vector, self.beliefs, self._decay(), method, method.learning_rate)

    def _decay(self) -> float | Tensor:
        """``wd``: one number for one prior, else one for each entry."""
        decays = [(block, 1 / (self.count * prior.std**2)) for block, prior in self._priors()]
        if len(decays) == 1:
            return decays[0][1]
        decay = torch.empty_like(self.mean)
        for block, value in decays:
            decay[block] = value
        return decay

    def _priors(self) -> list[tuple[slice, Normal]]:
        return [(block, _normal(prior)) for block, prior in self.bound.model.prior_blocks]

    def _std(self, out: Tensor | None = None) -> Tensor:
        """Standard deviations of ``q``."""
        return torch.add(self.update.hessian, self.update.decay, out=out).mul_(self.count).rsqrt_()

    @torch.no_grad()
    def draw(self, noise: torch.Generator) -> None:
        if self.drawn == 0:
            self._std(self.scale)
            if self.trained > self.beliefs:
                self.bound.w[self.beliefs :].copy_(self.vector[self.beliefs : self.trained])
        else:
            self._add()
        self.drawn += 1
        self.noise.normal_(generator=noise)
        torch.addcmul(self.mean, self.scale, self.noise, out=self.weights)

    def _add(self) -> None:
        """Add the gradient of the draw before this one, and its product with the noise, to the sums."""
        if self.sums is not None:
            self.sums[0].add_(self.g_trained)
            self.sums[1].addcmul_(self.g, self.noise)

    @torch.no_grad()
    def finish(self, weight: float, progress: float) -> None:
        if self.sums is None:
            torch.mul(self.g, self.noise, out=self.estimate)
        else:
            self._add()
            torch.div(self.sums[0], self.draws, out=self.g_trained)
            torch.div(self.sums[1], self.draws, out=self.estimate)
            for total in self.sums:
                total.zero_()
        self.estimate.div_(self.scale)  # N/T (h + wd) n g, with n = scale * noise
        self.drawn = 0

    def optimizer(self, learning_rate: float) -> torch.optim.Optimizer:
        self.update.param_groups[0]["lr"] = learning_rate
        return self.update

    @torch.no_grad()
    def regulariser(self) -> float:
        """The exact KL, in nats, summed in float64."""
        mean, std = self.mean.double(), self._std().double()
        kls = [closed(Family.GAUSSIAN, prior, mean[b], std[b]).sum() for b, prior in self._priors()]
        return sum(kl.item() for kl in kls)

    def facts(self) -> dict[str, Any]:
        return {}

    @torch.no_grad()
    def distribution(self) -> DiagonalGaussian:
        row = self.bound.row(self.vector[: self.trained].clone())
        return DiagonalGaussian(row, F.pad(self._std(), (0, len(row) - self.beliefs)))


def _normal(prior: Any) -> Normal:
    if not isinstance(prior, Normal):
        raise ValueError(
            f"IVON's weight decay is a Normal prior's precision, got {type(prior).__name__}; use "
            f"prior=sb.Normal(std), or MeanField, which takes any prior"
        )
    return prior


@dataclass(frozen=True)
class BuildIVON:
    """Makes an :class:`IVONLearner`."""

    method: IVON

    def size(self, model: Model) -> int:
        return model.layout.trained + model.layout.belief

    def __call__(self, bound: Bound, start: Tensor, gradient: Tensor) -> IVONLearner:
        return IVONLearner(self.method, bound, start, gradient)


@dataclass(frozen=True, kw_only=True)
class IVON(Training):
    """Variational online Newton: mean-field VI with one extra vector, on any network or its factors.

    It starts at the weights of ``model.network``, fresh or trained, and needs ``sb.Normal`` priors
    (``PerParameter`` of them too): they are its weight decay. Other fields: see ``Training``; ``schedule``
    moves the learning rate.

    Args:
        learning_rate: of the scaled natural gradient: about what SGD with momentum takes on the same network,
            some hundred times Adam's.
        beta1: of the momentum.
        beta2: of the curvature; ``1 / (1 - beta2)`` steps is its memory. Small problems want .99 to .9999.
        hessian_init: ``h0``, the curvature at the start, in nats per squared weight: the first draws have
            standard deviation ``1 / sqrt(N h0)``. To be tuned; too small, and the first draws drown the
            weights.
        clip_radius: largest entry of the scaled gradient; infinity does not clip.
        draws: draws a step, each with a forward and backward pass.
        validation_draws: posterior draws of the validation NLL.

    Example:
        >>> import singularbayes as sb
        >>> x = torch.linspace(-1, 1, 32).unsqueeze(1)
        >>> layers = torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)
        >>> net = sb.factorize(torch.nn.Sequential(*layers), rank={"2": 2})
        >>> posterior = IVON(epochs=2).fit(sb.Model(net, sb.Gaussian(noise=0.5)), (x, x))
        >>> posterior.predict(x, draws=16).epistemic.shape
        torch.Size([32])
    """

    learning_rate: float = 0.1
    beta1: float = 0.9
    beta2: float = 1 - 1e-5
    hessian_init: float = 1.0
    clip_radius: float = math.inf
    draws: int = 1
    validation_draws: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.temperature > 0:
            raise ValueError("IVON needs a temperature above 0: at 0 its posterior has no width; use MAP")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must lie in [0, 1), got {getattr(self, name)!r}")
        if not (self.hessian_init > 0 and math.isfinite(self.hessian_init)):
            raise ValueError(f"hessian_init must be positive and finite, got {self.hessian_init!r}")
        if not self.clip_radius > 0:
            raise ValueError(
                f"clip_radius must be positive (infinity: no clipping), got {self.clip_radius!r}"
            )
        check_whole(draws=self.draws, validation_draws=self.validation_draws)

    def fit(
        self,
        model: Model,
        train: Any,
        validation: Any = None,
        *,
        seed: int = 0,
        checkpoint: str | Path | None = None,
        progress: bool | None = None,
    ) -> Posterior:
        """Fit the variational posterior. Arguments, returns and errors: see ``MAP.fit``.

        Raises:
            ValueError: also for a prior that is not ``Normal``.
        """
        check_model(model)
        for _, prior in model.prior_blocks:
            _normal(prior)  # refused before any work
        layout = model.layout
        posterior = fit_learner(
            model,
            self,
            BuildIVON(self),
            train,
            validation,
            seed=seed,
            checkpoint=checkpoint,
            progress=progress,
            validation_draws=self.validation_draws,
            facts={"method": type(self).__name__, "numbers": layout.trained + layout.belief},
        )
        warn_if_collapsed(posterior, "raise temperature or lower hessian_init")
        return posterior
