"""Variational inference with a Gaussian whose covariance joins the weights.

    minimise  E_q[mean batch NLL] + (T / N) KL(q || p),    q = Normal(m, C),    C = S (I + F^T F) S^T

``S`` and ``F (k, d)``: :mod:`.covariances`. With ``z (d)`` and ``zeta (k)`` standard normal, one draw a step
and the gradient ``g`` of the mean NLL at it, pulled back by hand:

    w = m + S y,   y = z + F^T zeta
    g_m = g,   g_F = zeta (S^T g)^T,   g_S from the pair (y, g)

The KL to independent priors needs the marginal variances ``v = diag C`` and the entropy alone:

    KL(q || p) = sum_i -E log p_i(w_i) - H(q),     H(q) = d/2 log 2 pi e + log det S + 1/2 log det(I + F F^T)
    v = diag(S S^T) + sum_k (S F_k)^2,             d/dF 1/2 log det(I + F F^T) = (I + F F^T)^-1 F

``-E log p_i`` is that of ``Normal(m_i, v_i)``: exact for Normal and Laplace priors; for the scale mixture the
bound of :mod:`singularbayes.divergence`, or its value at the step's draw. The entropy is exact in each case,
so Monte Carlo concerns ``-log p`` alone. Embedding tables are drawn whole.

References:
    Titsias and Lazaro-Gredilla 2014, "Doubly stochastic variational Bayes", eq. 10 (the Cholesky factor).
    Ong et al. 2018, arXiv 1701.03208, eq. 5-8. Louizos and Welling 2016, arXiv 1603.04733, section 3.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..divergence import KL, Family, cross_entropy, cross_entropy_gradient, estimator_for
from ..model import BlockPrior, Model, check_model
from ..posterior import Posterior
from ..priors import Normal
from ..random import generator
from .covariances import Covariance, LowRankPlusDiagonal
from .diagonal import initial_scales, is_learned
from .learner import Bound, adam, warn_if_collapsed
from .roots import Root
from .settings import check_whole
from .training import Training, fit_learner
from .warm_up import check_warm_up, share_of_kl

__all__ = ["StructuredVI"]

_START_SHARE = 0.1  # of the own variance, in the low-rank part at the start: at 0 it would have no gradient
_TINY = 1e-30  # a standard deviation whose square has underflown


class StructuredLearner:
    """The trained vector is ``[means | point estimates | numbers of S | F]``."""

    def __init__(
        self, method: StructuredVI, seed: int, bound: Bound, start: Tensor, gradient: Tensor
    ) -> None:
        layout, covariance = bound.layout, method.covariance
        self.method, self.bound, self.gradient = method, bound, gradient
        self.beliefs, self.trained = layout.belief, layout.trained
        self.slots = layout.of_kind("belief")
        sites = covariance.sites(self.slots)
        cut = self.trained + sum(site.storage for site in sites)
        self.vector = torch.zeros_like(gradient)
        self.vector[: self.trained] = start[: self.trained]
        self.root = Root(sites, self.vector[self.trained : cut], gradient[self.trained : cut])
        self.root.start(initial_scales(bound.model, start, method.initial_std))
        self.rank = covariance.rank
        self.factor = self.vector[cut:].view(self.rank, self.beliefs)
        self.by_factor = gradient[cut:].view(self.rank, self.beliefs)
        if self.rank:
            source = generator(seed, "low rank", device=bound.device)
            self.factor.normal_(std=math.sqrt(_START_SHARE / self.rank), generator=source)
        self.mean, self.weights = self.vector[: self.beliefs], bound.w[: self.beliefs]
        self.noise = torch.zeros(self.beliefs + self.rank, dtype=start.dtype, device=start.device)
        self.whitened = torch.zeros_like(self.mean)
        self.priors = [(b, prior, method.estimator(prior)) for b, prior in bound.model.prior_blocks]
        self.one_by_one = all(kl is KL.MONTE_CARLO for _, _, kl in self.priors)

    # A step

    @torch.no_grad()
    def draw(self, noise: torch.Generator) -> None:
        self.noise.normal_(generator=noise)
        self.place()
        self.bound.w[self.beliefs :].copy_(self.vector[self.beliefs : self.trained])

    def place(self) -> None:
        """Write the weights of the present noise."""
        self.root.read()
        own, shared = self.noise.split([self.beliefs, self.rank])
        self.whitened = torch.addmv(own, self.factor.T, shared) if self.rank else own
        torch.add(self.mean, self.root.times(self.whitened.unsqueeze(0))[0], out=self.weights)

    @torch.no_grad()
    def finish(self, weight: float, progress: float) -> None:
        weight *= self.method.warm_up(progress)
        g = self.gradient[: self.beliefs]
        if weight:
            for block, prior, kl in self.priors:
                if kl is KL.MONTE_CARLO:
                    g[block].add_(prior.negative_score(self.weights[block]), alpha=weight)
        back = self.root.pull(self.whitened.unsqueeze(0), g.unsqueeze(0))[0]
        if self.rank:
            torch.outer(self.noise[self.beliefs :], back, out=self.by_factor)
        if weight and not self.one_by_one:
            self._expect(g, weight)
        if weight and self.rank:
            inverse = torch.linalg.inv(self._capacity()).to(self.factor.dtype)
            self.by_factor.addmm_(inverse, self.factor, alpha=-weight)
        self.root.finish(weight)

    def _capacity(self) -> Tensor:
        """``I + F F^T (k, k)``, in float64."""
        gram = (self.factor @ self.factor.T).double()
        return gram.add_(torch.eye(self.rank, dtype=gram.dtype, device=gram.device))

    def _expect(self, g: Tensor, weight: float) -> None:
        """Add the gradient of the blocks' expected ``-log p``, for means and through the variances."""
        spread = self.root.times(self.factor) if self.rank else None  # S F_k
        std: Tensor | None = None
        by_variance = torch.zeros_like(g)
        for block, prior, kl in self.priors:
            if kl is KL.MONTE_CARLO:
                continue
            if isinstance(prior, Normal):  # whose expectation is linear in the variance
                by_variance[block] = 0.5 * weight * prior.std**-2
                g[block].add_(self.mean[block], alpha=weight * prior.std**-2)
                continue
            std = self._variance(spread).sqrt_().clamp_min_(_TINY) if std is None else std
            by_mean, by_std = cross_entropy_gradient(Family.GAUSSIAN, prior, self.mean[block], std[block])
            by_variance[block] = by_std.div_(std[block]).mul_(0.5 * weight)
            g[block].add_(by_mean, alpha=weight)
        self.root.pull_variance(by_variance)
        if spread is not None:
            self.by_factor.add_(self.root.pull(self.factor, spread.mul_(by_variance).mul_(2)))

    def _variance(self, spread: Tensor | None) -> Tensor:
        variance = self.root.variance()
        return variance if spread is None else variance + spread.square().sum(0)

    def optimizer(self, learning_rate: float) -> torch.optim.Optimizer:
        return adam(self.vector, learning_rate)

    # The present state

    @torch.no_grad()
    def regulariser(self) -> float:
        """KL in nats, as training has it: exact, the bound, or ``-log p`` at the last draw; in float64."""
        self.place()
        spread = self.root.times(self.factor) if self.rank else None
        std = self._variance(spread).double().sqrt().clamp_min(_TINY)
        mean = self.mean.double()
        total = -self._entropy()
        for block, prior, kl in self.priors:
            if kl is KL.MONTE_CARLO:
                total -= prior.log_prob(self.weights[block].double()).sum().item()
            else:
                total += cross_entropy(Family.GAUSSIAN, prior, mean[block], std[block]).sum().item()
        return total

    def _entropy(self) -> float:
        shared = 0.5 * torch.linalg.slogdet(self._capacity())[1].item() if self.rank else 0.0
        return 0.5 * self.beliefs * math.log(2 * math.pi * math.e) + self.root.log_det() + shared

    def facts(self) -> dict[str, Any]:
        return self.method.covariance.facts(self.slots)

    @torch.no_grad()
    def distribution(self) -> Any:
        self.root.read()
        row = self.bound.row(self.vector[: self.trained].clone())
        factor = row.new_zeros(len(row), self.rank)
        if self.rank:
            factor[: self.beliefs] = self.root.times(self.factor).T
        return self.method.covariance.distribution(row, self.root, factor)


@dataclass(frozen=True)
class BuildStructured:
    """Makes a :class:`StructuredLearner`."""

    method: StructuredVI
    seed: int

    def size(self, model: Model) -> int:
        covariance = self.method.covariance
        sites = covariance.sites(model.layout.of_kind("belief"))
        root = sum(site.storage for site in sites)
        return model.layout.trained + root + covariance.rank * model.layout.belief

    def __call__(self, bound: Bound, start: Tensor, gradient: Tensor) -> StructuredLearner:
        return StructuredLearner(self.method, self.seed, bound, start, gradient)


@dataclass(frozen=True, kw_only=True)
class StructuredVI(Training):
    """Gaussian VI with a structured covariance: on any network or its factors, trained from the start.

    It starts at the weights of ``model.network`` with independent entries (and a random low-rank part of a
    tenth of their variance, where there is one). Not a Laplace approximation: nothing is assumed of the
    curvature at one point. Other fields: see ``Training``.

    Args:
        covariance: ``sb.LowRankPlusDiagonal(rank=...)``, ``sb.Kronecker()``,
            ``sb.KroneckerPlusLowRank(rank=...)`` or ``sb.FullCovariance()`` (up to 2,000 believed entries).
        kl: estimator of the expected ``-log p`` in the KL: ``closed`` (Normal and Laplace priors),
            ``monte_carlo`` (at the step's draw; any prior), ``bound`` (deterministic upper bound). ``None``:
            closed where it exists, else Monte Carlo. A learned ``ScaleMixture`` needs ``MeanField``.
        kl_start: epochs without KL at the start.
        kl_full: epoch at which the KL's weight has grown to its full size, in a line from ``kl_start``.
        initial_std: start standard deviation in units of each tensor's own root mean square.
        validation_draws: posterior draws of the validation NLL.

    Example:
        >>> import torch, singularbayes as sb
        >>> x = torch.linspace(-1, 1, 32).unsqueeze(1)
        >>> net = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        >>> method = StructuredVI(epochs=2, covariance=sb.LowRankPlusDiagonal(rank=3))
        >>> posterior = method.fit(sb.Model(net, sb.Gaussian(noise=0.1)), (x, x))
        >>> posterior.distribution.factor.shape
        torch.Size([25, 3])
    """

    covariance: Covariance = field(default_factory=LowRankPlusDiagonal)
    kl: KL | None = None
    kl_start: float = 0.0
    kl_full: float = 0.0
    initial_std: float = 0.1
    validation_draws: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.covariance, type) or not isinstance(self.covariance, Covariance):
            raise TypeError(
                f"covariance must be an object such as LowRankPlusDiagonal(rank=10), Kronecker(), "
                f"KroneckerPlusLowRank(rank=2) or FullCovariance(), got {self.covariance!r}"
            )
        object.__setattr__(self, "kl", None if self.kl is None else KL(self.kl))
        if not (self.initial_std > 0 and math.isfinite(self.initial_std)):
            raise ValueError(f"initial_std must be positive and finite, got {self.initial_std}")
        check_warm_up(self.kl_start, self.kl_full)
        check_whole(validation_draws=self.validation_draws)

    def warm_up(self, progress: float) -> float:
        """Share of the KL's weight after ``progress`` epochs."""
        return share_of_kl(progress, self.kl_start, self.kl_full)

    def estimator(self, prior: BlockPrior) -> KL:
        """The estimator for one block's prior.

        Raises:
            ValueError: a learned prior, or a closed form that does not exist.
        """
        if is_learned(prior):
            raise ValueError(
                "StructuredVI does not learn a prior's numbers; use sb.ScaleMixture(learned=False), or "
                "MeanField, which fits them"
            )
        return estimator_for(prior, self.kl)

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
            ValueError: also for a network that the covariance does not suit (too many entries for
                ``FullCovariance``, a rank above them), and for a learned prior.
        """
        check_model(model)
        for _, prior in model.prior_blocks:
            self.estimator(prior)  # refused before any work
        layout = model.layout
        sites = self.covariance.sites(layout.of_kind("belief"))
        numbers = sum(site.numbers for site in sites) + self.covariance.rank * layout.belief
        posterior = fit_learner(
            model,
            self,
            BuildStructured(self, seed),
            train,
            validation,
            seed=seed,
            checkpoint=checkpoint,
            progress=progress,
            validation_draws=self.validation_draws,
            facts={"method": type(self).__name__, "numbers": layout.trained + numbers},
        )
        warn_if_collapsed(
            posterior, "raise temperature or initial_std, or check that the KL is on (kl_start)"
        )
        return posterior
