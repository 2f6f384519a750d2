"""Mean-field variational inference over the flat vector; on a factorised network, the singular posterior.

    minimise  E_q[mean batch NLL] + (T / N) KL(q || p),    q = prod_i Normal(mean_i, softplus(rho_i)^2)

One draw of all weights a step. With ``w = mean + sigma eps``, ``g`` the gradient of the mean NLL at ``w`` and
``c = T / N``,

    g_mean = g + c s(w),    g_rho = ((g + c s(w)) eps - c / sigma) (1 - exp(-sigma)),    s = -d log p / d w

for the one-sample KL; the closed form and the bound replace ``s`` by their own derivatives.

References:
    Blundell et al. 2015, arXiv 1505.05424, section 3.2. arXiv 2602.00387, algorithm 1 (on factors).
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..distributions import DiagonalGaussian, DiagonalLaplace, positive, standard_laplace_
from ..divergence import KL, Family, bound_gradient, has_closed_form, log_density
from ..divergence import bound as kl_bound
from ..model import BlockPrior, Model
from ..parameters import Slot
from ..posterior import Posterior
from ..priors import ScaleMixture
from .learner import Bound, adam
from .rows import Table, find_tables, watch
from .training import Training, fit_learner

__all__ = ["MeanField"]

_NO_WIDTH = 1e-4
_CHUNK = 2**17


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


@dataclass(frozen=True)
class Stretch:
    """Neighbouring entries of the belief that a step treats alike.

    Attributes:
        block: the entries.
        prior: their prior as the model has it; ``block`` holds all its entries if it is learned.
        kl: estimator of their KL.
        table: the embedding table that they are, if its rows are drawn when looked up.
    """

    block: slice
    prior: BlockPrior
    kl: KL
    table: Table | None = None


class MeanFieldLearner:
    """The trained vector is ``[mean | point estimates | rho | learned prior numbers]``."""

    def __init__(self, method: MeanField, bound: Bound, start: Tensor, gradient: Tensor) -> None:
        layout = bound.layout
        self.method, self.bound, self.gradient = method, bound, gradient
        self.beliefs, self.trained = layout.belief, layout.trained
        self.family = method.family
        self.learned = [(block, prior) for block, prior in bound.model.prior_blocks if _is_learned(prior)]
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
        self.stretches = self._stretches()
        self.tables = [stretch.table for stretch in self.stretches if stretch.table is not None]
        # drawn before every step, in one call where they touch
        self.drawn = _joined([stretch.block for stretch in self.stretches if stretch.table is None])

    def _stretches(self) -> list[Stretch]:
        """The prior's blocks, embedding tables cut out of them."""
        slots = self.bound.layout.of_kind("belief")
        tables = {} if self.method.compile else find_tables(self.bound.network, slots)
        found: list[Stretch] = []
        for block, prior in self.bound.model.prior_blocks:
            start, kl, table_kl = (
                block.start,
                self.method.estimator(prior),
                self.method.table_estimator(prior),
            )
            for slot in slots:
                if slot.name not in tables or not block.start <= slot.start < block.stop:
                    continue
                if table_kl is KL.MONTE_CARLO:  # it needs a draw of every row
                    continue
                if start < slot.start:
                    found.append(Stretch(slice(start, slot.start), prior, kl))
                found.append(
                    Stretch(slice(slot.start, slot.stop), prior, table_kl, self._table(slot, tables))
                )
                start = slot.stop
            if start < block.stop:
                found.append(Stretch(slice(start, block.stop), prior, kl))
        return found

    def _table(self, slot: Slot, tables: dict[str, tuple[nn.Module, str]]) -> Table:
        flat = (self.mean, self.sigma, self.noise, self.weights)
        mean, sigma, noise, weights = (t[slot.start : slot.stop].view(slot.shape) for t in flat)
        table = Table(mean, sigma, noise, weights, self._fill)
        watch(*tables[slot.name], table)
        return table

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
        if not _is_learned(stretch.prior):
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
        for table in self.tables:
            table.begin(noise)
        if self.trained > self.beliefs:
            self.bound.w[self.beliefs :].copy_(self.vector[self.beliefs : self.trained])

    @torch.no_grad()
    def finish(self, weight: float, progress: float) -> None:
        weight *= self.method.warm_up(progress)
        for table in self.tables:
            table.end()
        for stretch in self.stretches:
            prior = self._prior(stretch)
            if weight and _is_learned(prior):
                pull = prior.unconstrained_gradient(self.weights[stretch.block]).mul_(weight)
                self._prior_numbers(self.gradient, self._number(stretch)).copy_(pull)
            start, stop = stretch.block.start, stretch.block.stop
            for first in range(start, stop, _CHUNK):  # what it needs on the way stays in the cache
                self._finish(slice(first, min(first + _CHUNK, stop)), prior, stretch.kl, weight)

    def _finish(self, part: slice, prior: BlockPrior, kl: KL, weight: float) -> None:
        g, g_rho, sigma, noise = self.g[part], self.g_rho[part], self.sigma[part], self.noise[part]
        if weight and kl is KL.MONTE_CARLO:
            g.add_(prior.negative_score(self.weights[part]), alpha=weight)
        torch.mul(g, noise, out=g_rho)
        if weight and kl is KL.MONTE_CARLO:
            g_rho.sub_(sigma.reciprocal(), alpha=weight)
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
        learned = [self._prior(each).to_dict() for each in self.stretches if _is_learned(each.prior)]
        return {"learned_priors": learned} if learned else {}

    def distribution(self) -> DiagonalGaussian | DiagonalLaplace:
        row = self.bound.row(self.vector[: self.trained].detach().clone())
        scale = F.pad(positive(self.rho.detach()).to(row.dtype), (0, len(row) - self.beliefs))
        return DiagonalGaussian(row, scale) if self.family is Family.GAUSSIAN else DiagonalLaplace(row, scale)


def _joined(blocks: list[slice]) -> list[slice]:
    """Neighbouring blocks made one."""
    found: list[slice] = []
    for block in blocks:
        if found and found[-1].stop == block.start:
            block = slice(found.pop().start, block.stop)  # noqa: PLW2901
        found.append(block)
    return found


def _is_learned(prior: BlockPrior) -> TypeGuard[ScaleMixture]:
    return isinstance(prior, ScaleMixture) and prior.learned


@dataclass(frozen=True)
class BuildMeanField:
    """Makes a :class:`MeanFieldLearner`."""

    method: MeanField

    def size(self, model: Model) -> int:
        return (
            model.layout.trained
            + model.layout.belief
            + 3 * sum(_is_learned(p) for _, p in model.prior_blocks)
        )

    def __call__(self, bound: Bound, start: Tensor, gradient: Tensor) -> MeanFieldLearner:
        return MeanFieldLearner(self.method, bound, start, gradient)


@dataclass(frozen=True, kw_only=True)
class MeanField(Training):
    """Mean-field VI (Bayes by Backprop).

    On ``sb.factorize``'s network it is the singular posterior of arXiv 2602.00387.

    It starts at the weights of ``model.network``. Other fields: see ``Training``.

    Args:
        kl: estimator of the KL: ``closed`` (Normal and Laplace priors), ``monte_carlo`` (one sample; any
            prior), ``bound`` (deterministic upper bound). ``None``: closed where it exists, else Monte Carlo;
            for embedding tables closed or the bound, so that a step draws no more rows than it looks up
            (Monte Carlo, as a learned prior needs it, draws all rows; so does ``compile``).
        kl_start: epochs without KL at the start.
        kl_full: epoch at which the KL's weight has grown to its full size, in a line from ``kl_start``.
        family: ``gaussian`` or ``laplace`` q.
        initial_std: start standard deviation in units of each tensor's own root mean square.
        validation_draws: posterior draws of the validation NLL.

    Example:
        >>> import singularbayes as sb
        >>> x = torch.linspace(-1, 1, 32).unsqueeze(1)
        >>> layers = torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)
        >>> net = sb.factorize(torch.nn.Sequential(*layers), rank={"2": 2})
        >>> posterior = MeanField(epochs=2).fit(
        ...     sb.Model(net, sb.Gaussian(noise=0.1), prior=sb.ScaleMixture()), (x, x)
        ... )
        >>> posterior.predict(x, draws=16).epistemic.shape
        torch.Size([32])
    """

    kl: KL | None = None
    kl_start: float = 0.0
    kl_full: float = 0.0
    family: Family = Family.GAUSSIAN
    initial_std: float = 0.1
    validation_draws: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "family", Family(self.family))
        object.__setattr__(self, "kl", None if self.kl is None else KL(self.kl))
        if not (self.initial_std > 0 and math.isfinite(self.initial_std)):
            raise ValueError(f"initial_std must be positive and finite, got {self.initial_std}")
        if self.kl_start < 0 or (self.kl_full and self.kl_full < self.kl_start):
            raise ValueError(
                f"the KL's warm-up needs 0 <= kl_start <= kl_full, got {self.kl_start} and {self.kl_full}"
            )
        if self.validation_draws < 1:
            raise ValueError(f"validation_draws must be at least 1, got {self.validation_draws}")

    def warm_up(self, progress: float) -> float:
        """Share of the KL's weight after ``progress`` epochs."""
        if progress >= max(self.kl_full, self.kl_start):
            return 1.0
        return (
            0.0 if progress < self.kl_start else (progress - self.kl_start) / (self.kl_full - self.kl_start)
        )

    def estimator(self, prior: BlockPrior) -> KL:
        """The KL estimator for one block's prior."""
        if self.kl is None:
            return KL.CLOSED if has_closed_form(prior) else KL.MONTE_CARLO
        if self.kl is KL.CLOSED and not has_closed_form(prior):
            raise ValueError(
                f"the KL to {type(prior).__name__} has no closed form; use kl=sb.KL.MONTE_CARLO or "
                f"sb.KL.BOUND"
            )
        if _is_learned(prior) and self.kl is not KL.MONTE_CARLO:
            raise ValueError("a learned ScaleMixture needs kl=sb.KL.MONTE_CARLO")
        return self.kl

    def table_estimator(self, prior: BlockPrior) -> KL:
        """The KL estimator for an embedding table: by default one that needs no draw of every row."""
        if self.kl is not None or has_closed_form(prior) or _is_learned(prior):
            return self.estimator(prior)
        return KL.BOUND

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
        """Fit the variational posterior. Arguments, returns and errors: see ``MAP.fit``."""
        for _, prior in model.prior_blocks:
            self.estimator(prior)  # refused before any work
        layout = model.layout
        facts = {"method": type(self).__name__, "numbers": layout.trained + layout.belief}
        posterior = fit_learner(
            model,
            self,
            BuildMeanField(self),
            train,
            validation,
            seed=seed,
            checkpoint=checkpoint,
            progress=progress,
            validation_draws=self.validation_draws,
            facts=facts,
        )
        _warn_if_collapsed(posterior)
        return posterior


def _warn_if_collapsed(posterior: Posterior) -> None:
    """Warn of a posterior without width: its draws are one network."""
    distribution, beliefs = posterior.distribution, posterior.layout.belief
    relative = distribution.variance[:beliefs].sqrt() / distribution.mean[:beliefs].square().mean().sqrt()
    if relative.max().item() < _NO_WIDTH:
        warnings.warn(
            "the posterior collapsed to its mean: every standard deviation is below a ten-thousandth of the "
            "weights' size; raise temperature or initial_std, or check that the KL is on (kl_start)",
            stacklevel=3,
        )
