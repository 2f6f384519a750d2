"""Step sizes that change from step to step, for samplers that cannot reject.

References:
    Welling and Teh 2011, "Bayesian learning via stochastic gradient Langevin dynamics" (polynomial decay).
    Zhang et al. 2020, arXiv 1902.03932, equation 1 (cycles).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral
from typing import Protocol, runtime_checkable

from .positive import check_positive

__all__ = ["Constant", "Cyclical", "Decaying", "StepSizes"]


@runtime_checkable
class StepSizes(Protocol):
    """The step size of each step, known beforehand."""

    def __call__(self, step: int) -> float:
        """Of step ``step``, from 0, counted from the start of the chain: warm-up counts."""
        ...


@dataclass(frozen=True)
class Constant:
    """The same at every step.

    Args:
        size: the step size.
    """

    size: float

    def __post_init__(self) -> None:
        check_positive(size=self.size)

    def __call__(self, step: int) -> float:
        return self.size


@dataclass(frozen=True, kw_only=True)
class Decaying:
    """``first / (1 + step / delay)^power``.

    Draws count alike though later ones stand for shorter times: weigh them by the step size where it matters,
    or let it decay in the warm-up mostly.

    Args:
        first: of the first step.
        delay: steps until it has fallen to ``2^-power`` of that.
        power: in (0.5, 1] the bias vanishes in the limit; 1/3 is the quickest for a given number of steps.

    Example:
        >>> Decaying(first=0.1, delay=100, power=1.0)(300)
        0.025
    """

    first: float
    delay: float
    power: float = 1 / 3

    def __post_init__(self) -> None:
        check_positive(first=self.first, delay=self.delay, power=self.power)

    def __call__(self, step: int) -> float:
        return self.first / (1 + step / self.delay) ** self.power


@dataclass(frozen=True, kw_only=True)
class Cyclical:
    """``largest (1 + cos(pi (step mod period) / period)) / 2``.

    The large steps of a cycle find a mode, the small ones sample it.
    A chain that visits several modes weighs them by how often it falls in, not by their mass. Keep one draw a
    cycle (``thin`` a multiple of ``period``), from its end, where the steps are small.

    Args:
        largest: at the start of each cycle.
        period: steps of a cycle.

    Example:
        >>> sizes = Cyclical(largest=0.1, period=50)
        >>> sizes(0), round(sizes(25), 3), round(sizes(49), 6)
        (0.1, 0.05, 9.9e-05)
    """

    largest: float
    period: int

    def __post_init__(self) -> None:
        check_positive(largest=self.largest)
        if isinstance(self.period, bool) or not isinstance(self.period, Integral) or self.period < 2:
            raise ValueError(f"period must be a whole number of at least 2 steps, got {self.period!r}")

    def __call__(self, step: int) -> float:
        return self.largest * 0.5 * (1 + math.cos(math.pi * (step % self.period) / self.period))
