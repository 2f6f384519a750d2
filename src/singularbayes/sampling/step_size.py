"""The step size of each chain: given, or adapted in warm-up by dual averaging.

With ``a_m`` the acceptance of step ``m`` and ``mu = log(10 e_0)``, ``e_0`` the first step size:

    H_m     = (1 - 1/(m + t0)) H_{m-1} + (target - a_m)/(m + t0)
    log e_m = mu - sqrt(m)/gamma H_m
    log E_m = m^-kappa log e_m + (1 - m^-kappa) log E_{m-1}

Warm-up uses ``e``, what is kept uses the last ``E``. The first step size is found by doubling or halving
until the acceptance of one leapfrog step crosses 1/2.

References:
    Hoffman and Gelman 2014, algorithms 4 and 5.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Real

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .positive import check_positive
from .sampler import named

__all__ = [
    "Averages",
    "DualAveraging",
    "FixedStep",
    "Search",
    "StepSize",
    "first_step_size",
    "fixed_or_adapted",
]

_DOUBLINGS = 50
_TOO_FLAT = "every step size is accepted, so the density does not fall: is it improper or constant?"
_NEVER_ACCEPTED = "no step size is accepted: is the gradient that of the log density, and finite nearby?"


@dataclass(frozen=True, eq=False)
class Averages:
    """Step sizes of ``C`` chains and what dual averaging remembers, each ``(C,)`` in float64.

    Args:
        size: the present one.
        log_average: ``log E``.
        error: ``H``.
        center: ``mu``, log of ten times the first step size.
        count: ``m``, ``()``.
    """

    size: Float[Tensor, " C"]
    log_average: Float[Tensor, " C"]
    error: Float[Tensor, " C"]
    center: Float[Tensor, " C"]
    count: Tensor

    @classmethod
    def start(cls, size: Float[Tensor, " C"]) -> Averages:
        """Nothing known but a first step size."""
        size = size.double()
        zero = torch.zeros_like(size)
        return cls(size, size.log(), zero, (10 * size).log(), torch.zeros_like(size[:1]).squeeze(0))


@dataclass(frozen=True, kw_only=True)
class FixedStep:
    """One step size for all chains, never adapted.

    Args:
        size: in units of the position under the mass.
    """

    size: float

    def __post_init__(self) -> None:
        check_positive(step_size=self.size)

    @property
    def first(self) -> float:
        return self.size

    @property
    def adapts(self) -> bool:
        return False

    def update(self, averages: Averages, acceptance: Float[Tensor, " C"]) -> Averages:
        return averages

    def frozen(self, averages: Averages) -> Averages:
        return averages


@dataclass(frozen=True, kw_only=True)
class DualAveraging:
    """Adapted in warm-up until the mean acceptance is ``target``.

    Args:
        target: mean acceptance probability, in (0, 1).
        gamma: how far an error of acceptance moves the step size; larger is less.
        t0: steps that damp the first errors.
        kappa: how fast old step sizes are forgotten, in (.5, 1].
        first: step size to start at; ``None`` searches one.
    """

    target: float = 0.8
    gamma: float = 0.05
    t0: float = 10.0
    kappa: float = 0.75
    first: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.target, bool) or not isinstance(self.target, Real) or not 0 < self.target < 1:
            raise ValueError(
                f"the target acceptance must be a number between 0 and 1, got {self.target!r}; .8 is usual"
            )
        check_positive(gamma=self.gamma)
        if not (isinstance(self.t0, Real) and 0 <= self.t0 < math.inf):
            raise ValueError(f"t0 must be 0 or a positive number, got {self.t0!r}")
        if not (isinstance(self.kappa, Real) and 0.5 < self.kappa <= 1):
            raise ValueError(f"kappa must lie in (.5, 1], got {self.kappa!r}")
        if self.first is not None:
            check_positive(first=self.first)

    @property
    def adapts(self) -> bool:
        return True

    def update(self, averages: Averages, acceptance: Float[Tensor, " C"]) -> Averages:
        """The averages after one more step, whose acceptance probability is in [0, 1]."""
        count = averages.count + 1
        share = 1 / (count + self.t0)
        error = (1 - share) * averages.error + share * (self.target - acceptance.double())
        log_size = averages.center - count.sqrt() / self.gamma * error
        weight = count**-self.kappa
        log_average = weight * log_size + (1 - weight) * averages.log_average
        return replace(averages, size=log_size.exp(), log_average=log_average, error=error, count=count)

    def frozen(self, averages: Averages) -> Averages:
        """The averaged step size, which is kept from here on."""
        return replace(averages, size=averages.log_average.exp())


StepSize = FixedStep | DualAveraging


def fixed_or_adapted(size: float | None, target: float, warm_up: int) -> StepSize:
    """A given step size, or one that ``warm_up`` steps adapt to the mean acceptance ``target``.

    Raises:
        ValueError: neither a size nor a warm-up.
    """
    if size is not None:
        return FixedStep(size=size)
    if warm_up == 0:
        raise ValueError("the step size is adapted in warm-up: give warm_up of at least 1, or a step_size")
    return DualAveraging(target=target)


@dataclass(frozen=True, eq=False)
class Search:
    """What :func:`first_step_size` found.

    Args:
        size: of each chain, float64: the first beyond the crossing, or the last that was tried.
        evaluations: how often each chain was evaluated.
        too_flat: chains that accept every size.
        refused: chains that accept none.
    """

    size: Float[Tensor, " C"]
    evaluations: Int[Tensor, " C"]
    too_flat: Bool[Tensor, " C"]
    refused: Bool[Tensor, " C"]

    def or_kept(self, size: Float[Tensor, " C"]) -> Float[Tensor, " C"]:
        """What was found; ``size`` of the chains in which nothing was."""
        return torch.where(self.too_flat | self.refused, size, self.size)

    def checked(self) -> Float[Tensor, " C"]:
        """What was found.

        Raises:
            ValueError: nothing in some chains, which are named, and why.
        """
        parts = [
            f"{reason} ({named(which)}, last tried {self.size[which][0].item():.0e})"
            for which, reason in ((self.too_flat, _TOO_FLAT), (self.refused, _NEVER_ACCEPTED))
            if bool(which.any())
        ]
        if parts:
            raise ValueError("; ".join(parts) + ". Give step_size, or another start")
        return self.size


def first_step_size(
    log_acceptance: Callable[[Tensor], Float[Tensor, " C"]], start: Float[Tensor, " C"]
) -> Search:
    """Double or halve each chain's step size, 50 times at most, until its acceptance crosses 1/2.

    Args:
        log_acceptance: of one leapfrog step with the step sizes ``(C,)``, at the same momentum each time; nan
            counts as minus infinity.
        start: where to begin.
    """
    level = math.log(0.5)

    def accepted(size: Tensor) -> Tensor:
        return torch.nan_to_num(log_acceptance(size), nan=-math.inf, neginf=-math.inf) > level

    size = start.double()
    up = accepted(size)
    factor = torch.where(up, 2.0, 0.5).double()
    searching = torch.ones_like(up)
    evaluations = torch.ones_like(up, dtype=torch.long)
    for _ in range(_DOUBLINGS):
        size = torch.where(searching, size * factor, size)
        crossed = accepted(size) != up
        evaluations = evaluations + searching
        searching = searching & ~crossed
        if not bool(searching.any()):
            break
    return Search(size, evaluations, searching & up, searching & ~up)
