"""What mean-field VI trains: means and scales of one flat vector, the draw before a step, the gradient after.

With ``w = mean + sigma eps``, ``g`` the gradient of the mean NLL at ``w`` and ``c = T / N``,

    g_mean = g + c s(w),    g_rho = ((g + c s(w)) eps - c / sigma) (1 - exp(-sigma)),    s = -d log p / d w

for the one-sample KL; the closed form and the bound replace ``s`` by their own derivatives. Embedding tables
draw rows (:mod:`.rows`), some layers draw outputs (:mod:`.local`), two mirrored passes are one draw.

References:
    Blundell et al. 2015, arXiv 1505.05424, section 3.2 (the gradients).
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any, Protocol, TypeGuard, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from ..distributions import DiagonalGaussian, DiagonalLaplace, positive, standard_laplace_
from ..divergence import KL, Family, bound_gradient, log_density
from ..divergence import bound as kl_bound
from ..model import BlockPrior, Model, part_of
from ..parameters import Slot
from ..priors import ScaleMixture
from .learner import Bound, adam
from .local import LocalLayer, find_layers
from .rows import Table, find_tables, watch
from .stretches import Stretch, cut, joined

__all__ = ["Gradient", "MeanFieldLearner", "Settings", "inverse_softplus", "is_learned"]

_CHUNK = 2**17  # entries whose gradient is finished at a time


class Gradient(StrEnum):
    """How a step of ``MeanField`` estimates the gradient of the expected loss; each is unbiased."""

    #: One draw of all weights a step.
    DRAW = "draw"
    #: The outputs of linear layers are drawn, for each example alone, where that is valid: see ``local``.
    LOCAL = "local"
    #: Two passes over the batch, with ``mean + sigma eps`` and ``mean - sigma eps``. (One half of the batch
    #: for each sign costs less, but the data's noise then stays in the gradient for the scales.)
    ANTITHETIC = "antithetic"


@runtime_checkable
class Settings(Protocol):
    """What the learner asks its method."""

    @property
    def family(self) -> Family: ...

    @property
    def initial_std(self) -> float: ...

    @property
    def gradient(self) -> Gradient: ...

    @property
    def compile(self) -> bool: ...

    def estimator(self, prior: BlockPrior) -> KL:
        """Of the KL to a prior."""
        ...

    def table_estimator(self, prior: BlockPrior) -> KL:
        """Of the KL of an embedding table."""
        ...

    def warm_up(self, progress: float) -> float:
        """Share of the KL's weight after so many epochs."""
        ...


def inverse_softplus(std: Tensor) -> Tensor:
    """``rho`` with ``softplus(rho) = std``, stable for small and large values."""
    return std + torch.log(-torch.expm1(-std))


def initial_scales(model: Model, start: Tensor, relative: float) -> Tensor:
    """``relative`` times each tensor's root mean square; all zero, it takes its module's largest (or 1)."""
    scales = torch.empty(model.layout.belief, dtype=start.dtype, device=start.device)
    rms = {
        s.name: start[s.start : s.stop].square().mean().sqrt().item()
        for s in model.layout.of_kind("belief", "point")
    }
    for slot in model.layout.of_kind("belief"):
        own = rms[slot.name]
        if own == 0:
            module = slot.name.rpartition(".")[0]
            own = max(value for name, value in rms.items() if name.rpartition(".")[0] == module) or 1.0
        scales[slot.start : slot.stop] = relative * own
    return scales


class MeanFieldLearner:
    """The trained vector is ``[mean | point estimates | rho | learned prior numbers]``."""

    def __init__(self, method: Settings, bound: Bound, start: Tensor, gradient: Tensor) -> None:
        layout = bound.layout
        self.method, self.bound, self.gradient = method, bound, gradient
        self.beliefs, self.trained = layout.belief, layout.trained
        self.family = method.family
        self.learned = [(block, prior) for block, prior in bound.model.prior_blocks if is_learned(prior)]
        self.vector = torch.zeros_like(gradient)
        self.vector[: self.trained] = start[: self.trained]
        rho = inverse_softplus(
            initial_scales(bound.model, start, method.initial_std) / math.sqrt(self.family.unit_variance)
        )
        self.vector[self.trained : self.trained + self.beliefs] = rho
        for number, (_, prior) in enumerate(self.learned):
            self._prior_numbers(self.vector, number).copy_(prior.unconstrained())
        self.mean, self.rho = (
            self.vector[: self.beliefs],
            self.vector[self.trained : self.trained + self.beliefs],
        )
        self.g, self.g_rho = gradient[: self.beliefs], gradient[self.trained : self.trained + self.beliefs]
        self.weights = bound.w[: self.beliefs]
        self.noise = torch.zeros_like(self.mean)
        self.sigma = positive(self.rho)
        self.sides = 2 if method.gradient is Gradient.ANTITHETIC else 1
        self.stretches = self._stretches()
        specials = {id(each.special): each.special for each in self.stretches if each.special is not None}
        self.specials = list(specials.values())
        # drawn before every step, in one call where they touch
        self.drawn = joined(each.block for each in self.stretches if each.special is None)
        self.local = joined(each.block for each in self.stretches if isinstance(each.special, LocalLayer))

    def _stretches(self) -> list[Stretch]:
        method, bound = self.method, self.bound
        slots = bound.layout.of_kind("belief")
        tables = find_tables(bound.network, slots)
        layers = self._local_layers() if method.gradient is Gradient.LOCAL else {}

        def special(slot: Slot, prior: BlockPrior) -> Stretch | None:
            block, layer = slice(slot.start, slot.stop), slot.name.rpartition(".")[0]
            if layer in layers:
                return Stretch(block, prior, method.estimator(prior), layers[layer])
            kl = method.table_estimator(prior)
            if slot.name not in tables or kl is KL.MONTE_CARLO:  # which needs a draw of every row
                return None
            if method.compile:  # without hooks: drawn whole, under the same KL
                return Stretch(block, prior, kl)
            flat = (self.mean, self.sigma, self.noise, self.weights)
            mean, sigma, noise, weights = (t[block].view(slot.shape) for t in flat)
            table = Table(mean, sigma, noise, weights, self._fill)
            watch(*tables[slot.name], table)
            return Stretch(block, prior, kl, table)

        return cut(bound.model.prior_blocks, slots, method.estimator, special)

    def _local_layers(self) -> dict[str, LocalLayer]:
        layout = self.bound.layout
        layers = {}
        for name, module in find_layers(self.bound.network, layout, self.bound.probe).items():
            sigma = {}
            for slot in layout.of_kind("belief"):
                path, _, leaf = slot.name.rpartition(".")
                if path == name:
                    block = slice(slot.start, slot.stop)
                    sigma[leaf] = self.sigma[block].view(slot.shape).detach().requires_grad_()
                    sigma[leaf].grad = self.g_rho[block].view(slot.shape)
            if sigma:
                layers[name] = LocalLayer(name, module, sigma)
        return layers

    def _fill(self, noise: Tensor, generator: torch.Generator) -> None:
        if self.family is Family.GAUSSIAN:
            noise.normal_(generator=generator)
        else:
            standard_laplace_(noise, generator)

    def _prior_numbers(self, vector: Tensor, number: int) -> Tensor:
        start = self.trained + self.beliefs + 3 * number
        return vector[start : start + 3]

    def _prior(self, stretch: Stretch) -> BlockPrior:
        """A stretch's prior as it stands now."""
        if not is_learned(stretch.prior):
            return stretch.prior
        return stretch.prior.with_unconstrained(self._prior_numbers(self.vector, self._number(stretch)))

    def _number(self, stretch: Stretch) -> int:
        return [block.start for block, _ in self.learned].index(stretch.block.start)

    @torch.no_grad()
    def draw(self, noise: torch.Generator) -> None:
        self.sigma.copy_(positive(self.rho))
        for block in self.drawn:
            self._fill(self.noise[block], noise)
            torch.addcmul(self.mean[block], self.sigma[block], self.noise[block], out=self.weights[block])
        for block in self.local:
            self.weights[block].copy_(self.mean[block])
        for special in self.specials:
            special.begin(noise)
        if self.trained > self.beliefs:
            self.bound.w[self.beliefs :].copy_(self.vector[self.beliefs : self.trained])

    @torch.no_grad()
    def mirror(self) -> None:
        """After the first of two passes: keep its gradient, and write the mirrored draw."""
        self.g_rho.copy_(self.g)
        for block in self.drawn:
            torch.addcmul(
                self.mean[block], self.sigma[block], self.noise[block], value=-1, out=self.weights[block]
            )
        for special in self.specials:
            if isinstance(special, Table):
                special.mirror()

    @torch.no_grad()
    def finish(self, weight: float, progress: float) -> None:
        weight *= self.method.warm_up(progress)
        for special in self.specials:
            special.end()
        if self.sides == 2:
            self.gradient[self.beliefs : self.trained].mul_(0.5)
        for stretch in self.stretches:
            prior = self._prior(stretch)
            if weight and is_learned(prior):
                pull = prior.unconstrained_gradient(self.weights[stretch.block]).mul_(weight)
                self._prior_numbers(self.gradient, self._number(stretch)).copy_(pull)
            start, stop = stretch.block.start, stretch.block.stop
            for first in range(start, stop, _CHUNK):  # what it needs on the way stays in the cache
                part = slice(first, min(first + _CHUNK, stop))
                if not isinstance(stretch.special, LocalLayer):  # which has left the gradient for sigma there
                    self._by_sigma(part)
                own = part_of(prior, slice(part.start - start, part.stop - start))
                self._finish(part, own, stretch.kl, weight)

    def _by_sigma(self, part: slice) -> None:
        """The loss's gradient for ``sigma``, where only that for ``w`` is known, and that for ``mean``."""
        g, g_rho = self.g[part], self.g_rho[part]
        if self.sides == 2:  # g holds the sum of both passes, g_rho the first one's
            g.mul_(0.5)
            g_rho.sub_(g).mul_(self.noise[part])
        else:
            torch.mul(g, self.noise[part], out=g_rho)

    def _finish(self, part: slice, prior: BlockPrior, kl: KL, weight: float) -> None:
        g, g_rho, sigma = self.g[part], self.g_rho[part], self.sigma[part]
        if weight and kl is KL.MONTE_CARLO:
            pull = prior.negative_score(self.weights[part])
            g.add_(pull, alpha=weight)
            g_rho.addcmul_(pull, self.noise[part], value=weight).sub_(sigma.reciprocal(), alpha=weight)
        elif weight:
            by_mean, by_scale = bound_gradient(self.family, prior, self.mean[part], sigma)
            g_rho.add_(by_scale, alpha=weight)
            g.add_(by_mean, alpha=weight)
        g_rho.mul_(self.rho[part].sigmoid())  # 1 - exp(-sigma), the derivative of softplus

    def optimizer(self, learning_rate: float) -> torch.optim.Optimizer:
        return adam(self.vector, learning_rate)

    @torch.no_grad()
    def regulariser(self) -> float:
        """KL in nats: exact or the bound, or one draw's estimate, as training has it; summed in float64."""
        sigma = positive(self.rho)
        total = 0.0
        for stretch in self.stretches:
            block, prior = stretch.block, self._prior(stretch)
            mean, scale = self.mean[block].double(), sigma[block].double()
            if stretch.kl is KL.MONTE_CARLO:
                noise = self.noise[block].double()
                value = log_density(self.family, noise, scale) - prior.log_prob(mean + scale * noise)
            else:
                value = kl_bound(self.family, prior, mean, scale)
            total += value.sum().item()
        return total

    def facts(self) -> dict[str, Any]:
        """Learned priors as they stand."""
        learned = [self._prior(each).to_dict() for each in self.stretches if is_learned(each.prior)]
        return {"learned_priors": learned} if learned else {}

    def distribution(self) -> DiagonalGaussian | DiagonalLaplace:
        row = self.bound.row(self.vector[: self.trained].detach().clone())
        scale = F.pad(positive(self.rho.detach()).to(row.dtype), (0, len(row) - self.beliefs))
        return DiagonalGaussian(row, scale) if self.family is Family.GAUSSIAN else DiagonalLaplace(row, scale)


def is_learned(prior: BlockPrior) -> TypeGuard[ScaleMixture]:
    """Whether the prior's numbers are trained with the posterior."""
    return isinstance(prior, ScaleMixture) and prior.learned
