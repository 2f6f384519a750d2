"""Laplace's approximation of the log evidence, and the prior precision that maximises it.

    log ML = ll - 1/2 (log det(H + P) - log det P + theta^T P theta)

``ll`` is the summed log-likelihood at the trained weights ``theta``, ``P`` the prior precision (means 0). Of
a subset it is the evidence of that subset given all other weights: compare those of equal subsets alone.

References:
    MacKay 1992, "Bayesian interpolation", eq. 4.9. Immer et al. 2021, arXiv 2104.04975, eq. 5.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import minimize
from torch import Tensor

from ..likelihoods import Gaussian
from ..parameters import Slot
from .expansion import Measured

__all__ = ["Evidence", "Found", "MarginalLikelihood", "warn_of_bounds"]

_WIDEST = math.log(1e8)  # log precisions lie within this of 0
_LARGE = math.log(1e4)
_GRID = np.linspace(-12, 12, 25)


class Found(NamedTuple):
    """What a search found.

    Attributes:
        precision: the prior's, of each chosen tensor.
        noise: standard deviation of the noise, where it was tuned too.
        at_bound: tensors (or "all") in whose precision the evidence rises without end.
    """

    precision: Float[Tensor, " L"]
    noise: float | None = None
    at_bound: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Evidence:
    """The log evidence as a function of prior precisions and noise.

    Args:
        measured: the curvature at ``theta``, measured with the present noise.
        slots: the chosen tensors.
        theta: the flat row ``(D,)`` that they lie in.
        noise: standard deviation of a ``Gaussian``'s noise as measured; ``None`` for other likelihoods.
    """

    measured: Measured
    slots: tuple[Slot, ...]
    theta: Float[Tensor, " D"]
    noise: float | None

    @property
    def squares(self) -> Float[Tensor, " L"]:
        """Sum of squares of each chosen tensor."""
        parts = [self.theta[slot.start : slot.stop].double().square().sum() for slot in self.slots]
        return torch.stack(parts)

    def scale(self, log_noise: Tensor | None) -> Tensor:
        """What the measured curvature is multiplied by at another noise."""
        if log_noise is None or self.noise is None:
            return self.theta.new_ones((), dtype=torch.float64)
        return torch.exp(2 * (math.log(self.noise) - log_noise))

    def log_likelihood(self, log_noise: Tensor | None) -> Tensor:
        """At another noise: the squared errors are in the likelihood that was measured."""
        tally = self.measured.tally
        if log_noise is None or self.noise is None:
            return self.theta.new_tensor(tally.log_likelihood, dtype=torch.float64)
        constant = 0.5 * tally.entries * math.log(2 * math.pi)
        scaled = -tally.log_likelihood - constant - tally.entries * math.log(self.noise)
        return -scaled * self.scale(log_noise) - constant - tally.entries * log_noise

    def __call__(self, precision: Tensor, log_noise: Tensor | None = None) -> Float[Tensor, ""]:
        """The log evidence, in nats, at a precision of each tensor ``(L,)`` or of all ``(1,)``."""
        sizes = torch.tensor([slot.size for slot in self.slots], dtype=torch.float64, device=precision.device)
        prior = (sizes * precision.log()).sum() - (precision * self.squares).sum()
        bent = self.measured.curvature.log_determinant(precision, self.scale(log_noise))
        return self.log_likelihood(log_noise) + 0.5 * (prior - bent)


@dataclass(frozen=True, kw_only=True)
class MarginalLikelihood:
    """The prior precision that maximises Laplace's log evidence at the trained weights, which stay.

    It is a maximum over the prior's width for weights that were trained under another; to train them under
    the width that is found use ``OnlineMarginalLikelihood``.

    Args:
        per_tensor: one precision for each tensor, in place of one for all.
        noise: maximise over the standard deviation of ``Gaussian``'s noise too; the posterior's likelihood
            then has it as a fixed number.

    References:
        MacKay 1992, "Bayesian interpolation", section 4. Immer et al. 2021, arXiv 2104.04975 (one per layer).
    """

    per_tensor: bool = False
    noise: bool = False

    def check(self, likelihood: Any) -> None:
        """Refuse a likelihood that has no noise to tune.

        Raises:
            ValueError: ``noise=True`` with another likelihood than ``Gaussian``.
        """
        if self.noise and not isinstance(likelihood, Gaussian):
            raise ValueError(
                f"MarginalLikelihood(noise=True) tunes the noise of Gaussian(), the model has "
                f"{type(likelihood).__name__}; use noise=False"
            )

    def maximise(self, evidence: Evidence) -> Found:
        """Coarse grid over one precision, then L-BFGS on the logarithms."""
        groups = len(evidence.slots) if self.per_tensor else 1
        start_noise = [math.log(evidence.noise)] if self.noise and evidence.noise is not None else []

        def split(point: Tensor) -> tuple[Tensor, Tensor | None]:
            return point[:groups].exp(), point[groups] if start_noise else None

        device = evidence.theta.device

        def loss(point: Any) -> tuple[float, Any]:
            with torch.enable_grad():
                place = torch.tensor(point, dtype=torch.float64, device=device, requires_grad=True)
                value = -evidence(*split(place))
                slope = torch.autograd.grad(value, place)[0]
            return value.item(), slope.cpu().numpy()

        def alike(log_precision: float) -> float:
            place = torch.tensor([log_precision, *start_noise], dtype=torch.float64, device=device)
            return evidence(place[:1].exp(), place[1] if start_noise else None).item()

        with torch.no_grad():
            best = np.array([max(_GRID, key=alike)] * groups + start_noise)
        bounds = [(-_WIDEST, _WIDEST)] * groups + [(noise - 12, noise + 12) for noise in start_noise]
        options = {"ftol": 1e-15, "gtol": 1e-9}
        point = minimize(loss, best, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x
        at_bound = [group for group in range(groups) if _runs_off(loss, point, group)]
        names = [slot.name for slot in evidence.slots] if self.per_tensor else ["all"]
        precision, log_noise = split(torch.tensor(point, dtype=torch.float64, device=device))
        noise = None if log_noise is None else math.exp(log_noise.item())
        return Found(precision.expand(len(evidence.slots)), noise, tuple(names[group] for group in at_bound))


def _runs_off(loss: Any, point: Any, group: int) -> bool:
    """Whether the evidence rises without end in one precision; the point is then put at the bound."""
    if abs(point[group]) >= _WIDEST - 1e-6:
        return True
    further = point.copy()
    further[group] = _WIDEST
    if point[group] < _LARGE or loss(further)[0] > loss(point)[0]:
        return False
    point[group] = _WIDEST
    return True


def warn_of_bounds(found: Found) -> None:
    """Say which tensors the evidence prunes."""
    if found.at_bound:
        warnings.warn(
            f"the evidence has no maximum over the prior precision of {', '.join(found.at_bound)}, which "
            f"stands at the bound of the search: the data do not need these numbers, which are 0 or near it. "
            f"Leave them out of subset=, or give the model Normal(std) and no search",
            stacklevel=4,
        )
