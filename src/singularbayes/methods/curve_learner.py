"""What the training loop trains of a curve: its bends, at a place drawn anew for every batch.

    minimise over the bends  E_{t ~ U(0, 1)} [ mean batch NLL(w_t) - (T / N) log p(w_t) ]

``w_t = sum_i c_i(t) p_i``, so bend ``i`` has the gradient ``c_i(t) dL / dw_t``.

References:
    Garipov et al. 2018, arXiv 1802.10026, section 3.1, eq. 2.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..mixtures import StoredDraws
from ..model import Model
from ..priors import ScaleMixture
from .curves import Curve
from .learner import Bound, adam

__all__ = ["BuildCurve", "CurveLearner", "check_priors"]

_LOGGED = 5  # places at which the prior is looked at for the log


def check_priors(model: Model) -> None:
    """Refuse a learned prior, which points of a curve cannot tell.

    Raises:
        ValueError: a ``ScaleMixture(learned=True)``.
    """
    if any(isinstance(prior, ScaleMixture) and prior.learned for _, prior in model.prior_blocks):
        raise ValueError("a learned ScaleMixture needs MeanField: single networks cannot tell a prior")


class CurveLearner:
    """The trained vector is the bends, one after another, each of all trained numbers."""

    def __init__(self, curve: Curve, ends: Tensor, bound: Bound, gradient: Tensor) -> None:
        self.curve, self.bound, self.gradient = curve, bound, gradient
        self.ends = ends.to(bound.w)
        places = torch.arange(1, curve.bends + 1, dtype=ends.dtype, device=bound.w.device)
        places = (places / (curve.bends + 1)).unsqueeze(1)
        # on the straight line
        self.vector = torch.lerp(self.ends[:1], self.ends[1:], places.to(bound.w)).flatten()
        self.weights = torch.zeros(curve.bends + 2, dtype=bound.w.dtype, device=bound.w.device)

    @property
    def control(self) -> Tensor:
        """End, bends, end: ``(bends + 2, trained)``."""
        bends = self.vector.detach().view(self.curve.bends, -1)
        return torch.cat([self.ends[:1], bends, self.ends[1:]])

    @torch.no_grad()
    def draw(self, noise: torch.Generator) -> None:
        self._go(torch.rand(1, generator=noise, dtype=self.ends.dtype, device=self.ends.device))

    def _go(self, t: Tensor) -> None:
        """Put the curve's point at ``t`` into the network."""
        self.weights = self.curve.weights(t)[0]
        self.bound.w.copy_(self.weights @ self.control)

    @torch.no_grad()
    def finish(self, weight: float, progress: float) -> None:
        own = self.gradient[: len(self.bound.w)]  # the network's gradient; the first bend's lies here too
        if weight:
            for block, prior in self.bound.model.prior_blocks:
                own[block].add_(prior.negative_score(self.bound.w[block]), alpha=weight)
        bends = self.gradient.view(self.curve.bends, -1)
        torch.mul(own, self.weights[2:-1].unsqueeze(1), out=bends[1:])
        own.mul_(self.weights[1])

    def optimizer(self, learning_rate: float) -> torch.optim.Optimizer:
        return adam(self.vector, learning_rate)

    @torch.no_grad()
    def regulariser(self) -> float:
        """``-log p(w_t)``, the mean over a few places, in nats."""
        places = (torch.arange(_LOGGED, dtype=self.ends.dtype, device=self.ends.device) + 0.5) / _LOGGED
        return -self.bound.model.log_prior(self.curve.weights(places) @ self.control).mean().item()

    def facts(self) -> dict[str, Any]:
        return {}

    @torch.no_grad()
    def distribution(self) -> StoredDraws:
        """The point half-way along the curve: what is farthest from both ends is looked at in the log."""
        half = torch.full((1,), 0.5, dtype=self.ends.dtype, device=self.ends.device)
        return StoredDraws(self.bound.row((self.curve.weights(half) @ self.control)[0]).unsqueeze(0))


class BuildCurve:
    """Makes a :class:`CurveLearner` and keeps it: the bends are read from it after the fit.

    Args:
        curve: which path.
        ends: trained numbers of the two networks ``(2, trained)``.
    """

    def __init__(self, curve: Curve, ends: Float[Tensor, "2 n"]) -> None:
        self.curve, self.ends = curve, ends
        self.learner: CurveLearner | None = None

    @property
    def control(self) -> Float[Tensor, "P n"]:
        """End, bends, end, as they are now."""
        if self.learner is None:
            raise RuntimeError("the curve was not trained yet")
        return self.learner.control

    def size(self, model: Model) -> int:
        return self.curve.bends * model.layout.trained

    def __call__(self, bound: Bound, start: Tensor, gradient: Tensor) -> CurveLearner:
        self.learner = CurveLearner(self.curve, self.ends, bound, gradient)
        return self.learner
