"""Which parameters matter: rules that choose entries of the flat vector, after a variational fit.

    Sensitivity       S_i   = s_i^2 mean_{x, outputs} (df/dw_i)^2                      at the means m
    GradientVariance  G_i   = s_i^2 Var_q(g_i) - Cov_q(g_i, e_i)^2,    g = grad log p(D, w),  w = m + s e

``m`` and ``s`` are the means and standard deviations of ``q``. The entries of the largest scores are chosen,
as few as hold a share ``tau`` of the sum of all scores: ``k = searchsorted(cumulated share, tau) + 1``.

``S_i`` is the variance that entry ``i`` alone gives the outputs, to first order. ``G_i`` is what mean-field
VI cannot know of entry ``i``: the variance of its gradient that its own coordinate does not explain. Under a
Gaussian posterior of precision ``L`` it is ``s_i^2 sum_{j != i} L_ij^2 s_j^2``: 0 where the entry is
independent of all others and Gaussian. Both are the same in whatever units an entry is counted.

References:
    arXiv 2507.14652, section 3 (sensitivity, tau = 0.9). ``GradientVariance`` is this library's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..curvature.jacobian import Jacobian
from ..data import take, to_device
from ..functions import outputs_at
from ..model import Model
from ..parameters import Patterns, match_names
from ..posterior import Posterior
from ..random import generator
from .network_density import NetworkDensity
from .settings import check_whole

__all__ = [
    "AllParameters",
    "Candidates",
    "GradientVariance",
    "NamedParameters",
    "RandomSelection",
    "Selection",
    "Sensitivity",
    "Share",
]

_ROWS = 512  # inputs at a time


@dataclass(frozen=True, eq=False)
class Candidates:
    """What a rule may look at.

    Args:
        model: whose belief entries, the first ``n`` of the flat vector, there are to choose from.
        mean: the variational means ``(D,)``, with all else that a row of the flat vector holds; they are the
            weights of ``model.network`` too.
        std: the variational standard deviations of the belief entries ``(n,)``.
        density: the target ``log p(D | w) / T + log p(w)`` of the belief entries, of any number of rows, with
            all else at ``mean``; ``density.source`` are the training data, checked.
        seed: of the rule's own randomness.
    """

    model: Model
    mean: Float[Tensor, " D"]
    std: Float[Tensor, " n"]
    density: NetworkDensity
    seed: int

    @classmethod
    def of(
        cls, model: Model, posterior: Posterior, train: Any, *, temperature: float = 1.0, seed: int = 0
    ) -> Candidates:
        """What a fitted posterior of the model has to choose from.

        Args:
            model: that the posterior was fitted to.
            posterior: one network with spread: its means and standard deviations count.
            train: training data.
            temperature: ``T`` of the likelihood.
            seed: of the rule's randomness.

        Raises:
            TypeError: no such posterior.
            ValueError: separate networks, or another layout than the model's.

        Example:
            >>> import singularbayes as sb
            >>> x = torch.linspace(-1, 1, 32).unsqueeze(1)
            >>> model = sb.Model(torch.nn.Linear(1, 1), sb.Gaussian(noise=0.1))
            >>> posterior = sb.MeanField(epochs=2).fit(model, (x, x))
            >>> Sensitivity(count=2).select(Candidates.of(model, posterior, (x, x)))
            tensor([0, 1])
        """
        if not isinstance(posterior, Posterior):
            raise TypeError(
                f"parameters are chosen by a posterior of one network, got a {type(posterior).__name__}"
            )
        started = model.started_at(posterior)
        mean = posterior.distribution.mean[: model.layout.size].detach().to(model.device, model.dtype)
        std = posterior.distribution.variance[: model.layout.belief].detach().sqrt().to(mean)
        return cls(
            started, mean, std, NetworkDensity(started, train, mean.unsqueeze(0), None, temperature), seed
        )


@runtime_checkable
class Selection(Protocol):
    """A rule: an object with this method, yours or one of this module."""

    def select(self, candidates: Candidates) -> Int[Tensor, " k"]:
        """The chosen belief entries: positions in the flat vector, at least one, each once."""
        ...


@dataclass(frozen=True)
class Share:
    """How many entries a rule keeps: a share of the total, or a number. The default is a share of 0.9.

    Args:
        share: in (0, 1].
        count: how many, in place of a share.
    """

    share: float | None = None
    count: int | None = None

    def __post_init__(self) -> None:
        if self.share is not None and self.count is not None:
            raise ValueError(f"give a share or a count, got share={self.share} and count={self.count}")
        if self.count is not None:
            check_whole(count=self.count)
        elif isinstance(self.share, bool) or not (isinstance(self.tau, float | int) and 0 < self.tau <= 1):
            raise ValueError(f"share must lie in (0, 1], got {self.share!r}")

    @property
    def tau(self) -> float:
        """The share, where no count was given."""
        return 0.9 if self.share is None else self.share

    def largest(self, scores: Float[Tensor, " n"]) -> Int[Tensor, " k"]:
        """The entries of the largest scores, in rising order of their positions.

        Args:
            scores: 0 or positive; of equal ones the first.

        Raises:
            ValueError: scores that are not finite, negative ones, or all 0; a count above their number.
        """
        if not bool(torch.isfinite(scores).all()) or bool((scores < 0).any()):
            place = int(((scores < 0) | ~torch.isfinite(scores)).nonzero()[0])
            raise ValueError(
                f"the score of entry {place} is {scores[place].item()}; scores must be finite and not "
                f"negative: the variational fit may have diverged"
            )
        order = torch.argsort(scores, descending=True, stable=True)
        if self.count is not None:
            _check_count(self.count, len(scores))
            kept = self.count
        else:
            cumulated = scores[order].double().cumsum(0)
            if not cumulated[-1] > 0:
                raise ValueError(
                    "every score is 0, so no entry matters more than another: a network whose outputs do not "
                    "depend on its weights, or standard deviations of 0; choose with count=, or all with "
                    "AllParameters()"
                )
            kept = int(torch.searchsorted(cumulated / cumulated[-1], self.tau)) + 1
        return order[:kept].sort().values


def _check_count(count: int, entries: int) -> None:
    if count > entries:
        raise ValueError(f"count={count} is more than the {entries} entries that are believed about")


@dataclass(frozen=True)
class Sensitivity(Share):
    """The entries that give the outputs most of their variance, to first order, each by itself.

    One Jacobian of the network's outputs (logits, for classification) for each training input, in memory that
    does not grow with their number.

    Args:
        share: of the summed scores, in (0, 1]; 0.9 by default.
        count: how many entries, in place of a share.

    Example:
        >>> Sensitivity(0.9).largest(torch.tensor([0.1, 5.0, 0.9, 4.0]))  # 9 of 10
        tensor([1, 3])
    """

    def scores(self, candidates: Candidates) -> Float[Tensor, " n"]:
        """``S_i``, float64, in squared units of the outputs."""
        model, data = candidates.model, candidates.density.source
        network = model.copy_network().to(candidates.mean.device).eval().requires_grad_(False)
        jacobian = Jacobian(network, model.layout, candidates.mean, model.layout.of_kind("belief"))
        squares = torch.zeros(len(candidates.std), dtype=torch.float64, device=candidates.mean.device)
        views, count = model.layout.views(candidates.mean), 0
        for inputs, _ in data.epoch(_ROWS, 0, 0, shuffle=False):
            x = to_device(inputs, candidates.mean.device)
            with torch.no_grad():
                outputs = outputs_at(network, model.layout, views, take(x, slice(0, 1))).numel()
            for rows in jacobian.chunks(x, outputs):
                squares += torch.linalg.vector_norm(rows, dim=(0, 1), dtype=torch.float64).square()
                count += len(rows) * outputs
        return squares / count * candidates.std.double().square()

    def select(self, candidates: Candidates) -> Tensor:
        return self.largest(self.scores(candidates))


@dataclass(frozen=True)
class GradientVariance(Share):
    """The entries about whose posterior mean-field VI knows least: see ``G_i`` in :mod:`.selection`.

    Not the variance of the gradient over minibatches, which depends on the batch size alone.

    Args:
        share: of the summed scores, in (0, 1]; 0.9 by default.
        count: how many entries, in place of a share.
        draws: of ``q``, each a gradient on all training data.
    """

    draws: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(draws=self.draws)
        if self.draws < 3:
            raise ValueError(f"draws must be at least 3 for a variance about a line, got {self.draws}")

    def scores(self, candidates: Candidates) -> Float[Tensor, " n"]:
        """``G_i``, float64, without unit: the residual variance of a regression of ``s g`` on ``e``."""
        mean, std = candidates.mean, candidates.std
        source = generator(candidates.seed, "gradient variance", device=mean.device)
        noise = torch.randn(self.draws, len(std), generator=source, dtype=mean.dtype, device=mean.device)
        _, gradient = candidates.density(mean[: len(std)] + std * noise)
        centered = (gradient - gradient.mean(0)).double() * std
        own = (noise - noise.mean(0)).double()
        left = centered - own * ((centered * own).sum(0) / own.square().sum(0))
        return left.square().sum(0) / (self.draws - 2)

    def select(self, candidates: Candidates) -> Tensor:
        return self.largest(self.scores(candidates))


@dataclass(frozen=True)
class RandomSelection(Share):
    """Entries at random: what any other rule must beat.

    Args:
        share: of the number of entries, in (0, 1], rounded up; 0.9 by default.
        count: how many, in place of a share.
    """

    def select(self, candidates: Candidates) -> Tensor:
        entries, device = len(candidates.std), candidates.std.device
        kept = math.ceil(self.tau * entries - 1e-9) if self.count is None else self.count
        _check_count(kept, entries)
        source = generator(candidates.seed, "random selection")
        return torch.randperm(entries, generator=source)[:kept].sort().values.to(device)


@dataclass(frozen=True)
class NamedParameters:
    """The entries of parameters whose names match, such as a last layer's.

    Args:
        patterns: shell patterns, ``"head.*"``.
    """

    patterns: Patterns

    def select(self, candidates: Candidates) -> Tensor:
        """See ``Selection``.

        Raises:
            ValueError: a pattern that matches nothing.
        """
        slots = candidates.model.layout.of_kind("belief")
        names = match_names(self.patterns, [slot.aliases for slot in slots], "select")
        chosen = [torch.arange(slot.start, slot.stop) for slot in slots if slot.name in names]
        return torch.cat(chosen).to(candidates.std.device)


@dataclass(frozen=True)
class AllParameters:
    """Every entry: HMC on the whole belief, started at a variational fit."""

    def select(self, candidates: Candidates) -> Tensor:
        return torch.arange(len(candidates.std), device=candidates.std.device)
