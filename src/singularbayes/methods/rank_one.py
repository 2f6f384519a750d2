"""Rank-one Bayesian networks: a belief over two vectors a layer, point estimates of everything else.

    W = W0 o ((1 + s)(1 + t)^T),        q(s, t) = 1/K sum_k prod_i Normal(mean_ki, softplus(rho_ki)^2)

on the ``RankOneLinear`` layers of the network, all K components sharing ``W0`` and the rest. Minimised is

    1/K sum_k { E_{q_k}[mean batch NLL] + (T / N) KL(q_k || p) },

for K = 1 the negative ELBO, for K > 1 an upper bound of it that is loose by at most ``(T / N) log K`` (KL is
convex). A step is an unbiased estimate of it: one draw of one component for the whole batch, or, with
``per_example``, a draw for each example with the examples dealt to all components.

With ``initial_std=0`` the components are points, ``q = 1/K sum_k delta(s_k, t_k)``, and there is no KL: what
is minimised is ``1/K sum_k mean batch NLL_k``, BatchEnsemble.

References:
    Dusenberry et al. 2020, arXiv 2005.07186, sections 3 and 4 (mixtures; a draw for each example).
    Wen et al. 2020, arXiv 2002.06715, section 3 (BatchEnsemble).
    arXiv 2602.00387, section 5 (the rank-1 baseline: K = 1, scale mixture prior).
"""

from __future__ import annotations

import functools
import glob
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..distributions import DiagonalGaussian, MixtureDistribution, StoredDraws, positive
from ..divergence import KL, Family, bound_gradient, estimator_for, log_density
from ..divergence import bound as kl_bound
from ..model import BlockPrior, Model, check_model
from ..nn.rank_one import RankOneLinear
from ..parameters import Slot, owner
from ..posterior import Posterior
from ..priors import ScaleMixture
from ..random import generator
from .learner import Bound, adam, warn_if_collapsed
from .settings import check_whole
from .training import Training, fit_learner
from .warm_up import check_warm_up, share_of_kl

__all__ = ["RankOne"]


def restricted(model: Model) -> Model:
    """The model with a belief over ``s`` and ``t`` alone; what else was believed becomes a point estimate.

    Raises:
        ValueError: no ``RankOneLinear`` layer whose ``s`` or ``t`` is believed about; a prior pattern that
            matches neither.
    """
    believed, points = [], []
    for slot in model.layout.of_kind("belief", "point"):
        module, leaf = owner(model.network, slot.name)
        perturbs = slot.kind == "belief" and isinstance(module, RankOneLinear) and leaf in ("s", "t")
        (believed if perturbs else points).append(glob.escape(slot.name))
    if not believed:
        raise ValueError(
            "RankOne needs RankOneLinear layers with a belief over their s or t, and this model has none; "
            "convert its linear layers with sb.nn.rank_one(network, layers=...). Convolution, recurrent and "
            "attention layers have no rank-one form here: use MeanField (low rank: sb.factorize(network))"
        )
    return Model(model.network, model.likelihood, prior=model.prior, bayesian=[*believed, *points],
                 deterministic=points, normalization=True)  # fmt: skip


class ExampleDraws:
    """A draw for each example of a batch, each from one component: what ``per_example`` layers see in a step.

    ``mean`` and ``sigma`` are ``(K, belief)`` leaves, so their gradients sum over the examples by autograd.
    """

    def __init__(self, mean: Tensor, sigma: Tensor, noise: torch.Generator) -> None:
        self.mean, self.sigma, self._noise = mean.requires_grad_(), sigma.requires_grad_(), noise
        self._component: Tensor | None = None
        self._drawn: dict[str, Tensor] = {}

    def rows(self, slot: Slot, x: Tensor) -> Tensor:
        """One tensor's draws ``(B, 1, ..., n)`` for inputs ``(B, ..., features)``; the same at every call."""
        if self._component is None:  # dealt evenly, from a random first one
            first = torch.randint(len(self.mean), (1,), generator=self._noise, device=x.device)
            self._component = (torch.arange(len(x), device=x.device) + first) % len(self.mean)
        if x.dim() < 2 or len(x) != len(self._component):
            raise ValueError(
                f"per_example=True needs the batch as the first axis of every rank-one layer's input; one "
                f"sees shape {tuple(x.shape)}, the step has {len(self._component)} examples. Use "
                f"per_example=False, one draw for the whole batch"
            )
        if slot.name not in self._drawn:
            mean, sigma = (part[self._component, slot.start : slot.stop] for part in (self.mean, self.sigma))
            noise = torch.empty_like(mean).normal_(generator=self._noise)
            self._drawn[slot.name] = torch.addcmul(mean, sigma, noise)
        drawn = self._drawn[slot.name]
        return drawn.view(len(x), *[1] * (x.dim() - 2), drawn.shape[1])


class RankOneLearner:
    """The trained vector is ``[mean of component 0 | points | means of the others | rho of all]``.

    Components that are points have no rho.
    """

    draws = 1

    def __init__(self, method: RankOne, seed: int, bound: Bound, start: Tensor, gradient: Tensor) -> None:
        layout, count = bound.layout, method.components
        self.method, self.bound, self.gradient = method, bound, gradient
        self.beliefs, self.trained = layout.belief, layout.trained
        self.vector = torch.zeros_like(gradient)
        self.vector[: self.trained] = start[: self.trained]
        self.means, self.rho = self._parts(self.vector)
        self.g_means, self.g_rho = self._parts(gradient)
        source = generator(seed, "components", device=start.device)
        for mean in self.means:
            mean.copy_(start[: self.beliefs])
            if count > 1:
                self._move_apart(mean, source)
        self.points = method.initial_std == 0
        if not self.points:
            self.rho.fill_(method.initial_std + math.log(-math.expm1(-method.initial_std)))
        self.noise = torch.zeros(count, self.beliefs, dtype=start.dtype, device=start.device)
        self.sigma = self._widths()
        self.active = list(range(count))
        self.examples: ExampleDraws | None = None
        blocks = () if self.points else bound.model.prior_blocks
        self.estimators = [(b, prior, method.estimator(prior)) for b, prior in blocks]
        if method.per_example:
            self._draw_for_each_example()

    def _parts(self, flat: Tensor) -> tuple[list[Tensor], Tensor]:
        """Views of a flat vector: the mean of each component, and the rhos ``(K, belief)``, if any."""
        first, rest = flat[: self.beliefs], flat[self.trained :].view(-1, self.beliefs)
        others = self.method.components - 1
        return [first, *rest[:others]], rest[others:]

    def _move_apart(self, mean: Tensor, source: torch.Generator) -> None:
        """A start of its own for one component: noise, or a random sign of every ``1 + s`` and ``1 + t``."""
        noise = torch.empty_like(mean).normal_(generator=source)
        if self.method.spread is None:
            mean.copy_((1 + mean) * noise.sign() - 1)
        else:
            mean.add_(noise, alpha=self.method.spread)

    def _widths(self) -> Tensor:
        """Standard deviations ``(K, belief)``, 0 of points."""
        return torch.zeros_like(self.noise) if self.points else positive(self.rho)

    def _draw_for_each_example(self) -> None:
        """Let the private copy's layers see a draw for each example in training."""
        slots = {name: slot for slot in self.bound.layout.of_kind("belief") for name in slot.aliases}
        for path, module in self.bound.network.named_modules():
            if isinstance(module, RankOneLinear):
                own = {leaf: slots.get(f"{path}.{leaf}" if path else leaf) for leaf in ("s", "t")}
                module.forward = functools.partial(self._forward, module, own["s"], own["t"])

    def _forward(self, module: RankOneLinear, s: Slot | None, t: Slot | None, x: Tensor) -> Tensor:
        if not module.training or self.examples is None:
            return RankOneLinear.forward(module, x)
        rows = [
            own if slot is None else self.examples.rows(slot, x)
            for own, slot in ((module.s, s), (module.t, t))
        ]
        return module.perturbed(x, rows[0], rows[1], module.bias)

    @torch.no_grad()
    def draw(self, noise: torch.Generator) -> None:
        self.sigma = self._widths()
        own, count = self.bound.w[: self.beliefs], len(self.means)
        if self.trained > self.beliefs:
            self.bound.w[self.beliefs :].copy_(self.vector[self.beliefs : self.trained])
        if self.method.per_example:
            self.noise.normal_(generator=noise)  # of the KL: it needs a draw of its own
            self.examples = ExampleDraws(torch.stack(self.means), self.sigma.to(own.dtype), noise)
            own.copy_(self.means[0])
            return
        k = int(torch.randint(count, (1,), generator=noise, device=noise.device)) if count > 1 else 0
        self.active = [k]
        self.noise[k].normal_(generator=noise)
        torch.addcmul(self.means[k], self.sigma[k], self.noise[k], out=own)

    @torch.no_grad()
    def finish(self, weight: float, progress: float) -> None:
        weight *= self.method.warm_up(progress) / len(self.active)
        by_mean, by_sigma = self._of_the_data()
        for k in self.active:
            for block, prior, kl in self.estimators:
                mean, sigma, noise = (part[k][block] for part in (self.means, self.sigma, self.noise))
                if kl is KL.MONTE_CARLO:
                    pull = prior.negative_score(torch.addcmul(mean, sigma, noise))
                    pulls = pull, pull * noise - sigma.reciprocal()
                else:
                    pulls = bound_gradient(Family.GAUSSIAN, prior, mean, sigma)
                by_mean[k][block].add_(pulls[0], alpha=weight)
                by_sigma[k][block].add_(pulls[1], alpha=weight)
            self.g_means[k].copy_(by_mean[k])
            if self.points:
                continue
            torch.mul(by_sigma[k], -torch.expm1(-self.sigma[k]), out=self.g_rho[k])

    def _of_the_data(self) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
        """The NLL's gradients for mean and sigma of every active component."""
        own = self.gradient[: self.beliefs]  # of the weights that the network saw, whatever the component
        seen = own.clone()
        own.zero_()
        if self.examples is None:
            return dict.fromkeys(self.active, seen), {k: seen * self.noise[k] for k in self.active}
        if bool(seen.any()):
            raise ValueError(
                "the network reads s, t or weight of a rank-one layer itself, beside calling the layer; with "
                "per_example=True there is no single value to read: use per_example=False"
            )
        of_mean, of_sigma = (
            torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            for leaf in (self.examples.mean, self.examples.sigma)
        )
        return dict(enumerate(of_mean)), dict(enumerate(of_sigma))

    def optimizer(self, learning_rate: float) -> torch.optim.Optimizer:
        return adam(self.vector, learning_rate)

    @torch.no_grad()
    def regulariser(self) -> float:
        """Mean over the components of the KL in nats, at their last draws where it is estimated."""
        total, sigma = 0.0, self._widths().double()
        for block, prior, kl in self.estimators:
            mean, scale = torch.stack(self.means)[:, block].double(), sigma[:, block]
            if kl is KL.MONTE_CARLO:
                noise = self.noise[:, block].double()
                value = log_density(Family.GAUSSIAN, noise, scale) - prior.log_prob(mean + scale * noise)
            else:
                value = kl_bound(Family.GAUSSIAN, prior, mean, scale)
            total += value.sum().item()
        return total / len(self.means)

    def facts(self) -> dict[str, Any]:
        return {}

    def distribution(self) -> DiagonalGaussian | MixtureDistribution | StoredDraws:
        rest = self.vector[self.beliefs : self.trained]
        rows = [self.bound.row(torch.cat([mean, rest]).detach()) for mean in self.means]
        if self.points:
            return StoredDraws(torch.stack(rows))
        parts = []
        for row, rho in zip(rows, self.rho, strict=True):
            std = F.pad(positive(rho).to(row.dtype), (0, len(row) - self.beliefs))
            parts.append(DiagonalGaussian(row, std))
        return parts[0] if len(parts) == 1 else MixtureDistribution(tuple(parts))


@dataclass(frozen=True)
class BuildRankOne:
    """Makes a :class:`RankOneLearner`."""

    method: RankOne
    seed: int

    def size(self, model: Model) -> int:
        vectors = (1 if self.method.initial_std == 0 else 2) * self.method.components  # means, rhos
        return model.layout.trained + (vectors - 1) * model.layout.belief

    def __call__(self, bound: Bound, start: Tensor, gradient: Tensor) -> RankOneLearner:
        return RankOneLearner(self.method, self.seed, bound, start, gradient)


@dataclass(frozen=True, kw_only=True)
class RankOne(Training):
    """Rank-one VI on a network with ``RankOneLinear`` layers (``sb.nn.rank_one`` makes them).

    The prior of the model is on ``s`` and ``t``: ``ScaleMixture()`` with one component is the baseline of
    arXiv 2602.00387; ``Normal(0.1)`` with ``components=4, per_example=True`` is Dusenberry's;
    ``components=4, initial_std=0, per_example=True`` is BatchEnsemble: every step moves all members, each by
    its share of the batch, and the posterior is the ``K`` members. Everything else that the model trains is a
    point estimate without a prior; ``Model(bayesian=["*.s", "*.t"])`` leaves it frozen.

    In prediction one draw is one function, whatever ``per_example``; draws go round the components. It is not
    a low-rank weight (``W`` has the rank of ``W0``), and statistics of normalisation layers are shared by the
    components. Other fields: see ``Training``.

    Args:
        components: ``K`` Gaussians in the mixture.
        per_example: in training, a draw for each example: gradients of less variance, the authors' way. Needs
            the batch as the first axis at each rank-one layer.
        initial_std: start standard deviation of ``s`` and ``t``, that is relative to the weights. 0 makes
            them points that stay points, without noise, prior and KL.
        spread: standard deviation of the components' starts about the network's own ``s`` and ``t``; ``None``
            gives every ``1 + s`` and ``1 + t`` a random sign instead. One component starts there exactly.
        kl: estimator of the KL: ``closed`` (Normal and Laplace priors), ``monte_carlo`` (one sample; any
            prior), ``bound`` (deterministic upper bound). ``None``: closed where it exists, else Monte Carlo.
        kl_start: epochs without KL at the start.
        kl_full: epoch at which the KL's weight has grown to its full size, in a line from ``kl_start``.
        validation_draws: posterior draws of the validation NLL.

    Example:
        >>> import singularbayes as sb
        >>> x = torch.linspace(-1, 1, 32).unsqueeze(1)
        >>> layers = torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)
        >>> net = sb.nn.rank_one(torch.nn.Sequential(*layers))
        >>> model = sb.Model(net, sb.Gaussian(noise=0.1), prior=sb.Normal(0.1))
        >>> RankOne(epochs=2, components=4, per_example=True).fit(model, (x, x)).predict(x, draws=16).draws
        16
    """

    components: int = 1
    per_example: bool = False
    initial_std: float = 0.1
    spread: float | None = 0.5
    kl: KL | None = None
    kl_start: float = 0.0
    kl_full: float = 0.0
    validation_draws: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "kl", None if self.kl is None else KL(self.kl))
        check_whole(components=self.components, validation_draws=self.validation_draws)
        if not (self.initial_std >= 0 and math.isfinite(self.initial_std)):
            raise ValueError(f"initial_std must be 0 or positive, and finite, got {self.initial_std}")
        if self.initial_std == 0 and (self.kl or self.kl_start or self.kl_full or self.temperature != 1):
            raise ValueError(
                "initial_std=0 makes s and t points, which have no KL: leave kl, kl_start, kl_full and "
                "temperature at their defaults"
            )
        if self.spread is not None and not (self.spread >= 0 and math.isfinite(self.spread)):
            raise ValueError(f"spread must be 0 or positive, and finite, got {self.spread}")
        check_warm_up(self.kl_start, self.kl_full)
        if self.per_example and self.compile:
            raise ValueError(
                "per_example=True draws inside the forward pass, which cannot be compiled; use compile=False"
            )

    def warm_up(self, progress: float) -> float:
        """Share of the KL's weight after ``progress`` epochs."""
        return share_of_kl(progress, self.kl_start, self.kl_full)

    def estimator(self, prior: BlockPrior) -> KL:
        """The KL estimator for one block's prior."""
        if isinstance(prior, ScaleMixture) and prior.learned:
            raise ValueError(
                "a learned ScaleMixture needs MeanField; give RankOne ScaleMixture(learned=False)"
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
        """Fit the belief over ``s`` and ``t``, and the rest as points. Arguments and errors: see ``MAP.fit``.

        Raises:
            ValueError: a network without ``RankOneLinear`` layers.
        """
        check_model(model)
        own = restricted(model)
        if self.initial_std > 0:
            for _, prior in own.prior_blocks:
                self.estimator(prior)  # refused before any work
        build = BuildRankOne(self, seed)
        posterior = fit_learner(
            own,
            self,
            build,
            train,
            validation,
            seed=seed,
            checkpoint=checkpoint,
            progress=progress,
            validation_draws=self.validation_draws,
            facts={"method": type(self).__name__, "numbers": build.size(own)},
        )
        if self.initial_std == 0:
            return posterior
        advice = "raise temperature or initial_std, or check that the KL is on (kl_start)"
        warn_if_collapsed(posterior, advice, size=1.0)  # s and t multiply: 1 is the weight itself
        return posterior
