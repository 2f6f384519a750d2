"""Warm-up of samplers that integrate Hamilton's equations: step size and mass of each chain.

Dual averaging moves the step size at every step. At the end of each window (:mod:`.windows`) the mass is
replaced, a new first step size is searched under it, and dual averaging starts again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .leapfrog import leapfrog
from .mass import DiagonalMass
from .metric import Mass, Metric
from .sampler import Point, Target
from .step_size import Averages, DualAveraging, Search, StepSize, first_step_size
from .windows import collects, ends

__all__ = ["Adaptation", "Adapted"]


@dataclass(frozen=True, eq=False)
class Adapted:
    """What warm-up has learned so far.

    Args:
        averages: step sizes.
        metric: of each chain.
        estimate: of the window in progress.
    """

    averages: Averages
    metric: Any
    estimate: Any

    @property
    def step_size(self) -> Float[Tensor, " C"]:
        return self.averages.size

    def facts(self) -> dict[str, Tensor]:
        return {"step_size": self.step_size, **self.metric.facts()}


@dataclass(frozen=True, kw_only=True)
class Adaptation:
    """Settings.

    Args:
        step_size: ``FixedStep(size=)`` or ``DualAveraging()``.
        mass: ``UnitMass()``, ``DiagonalMass()``, ...

    Raises:
        TypeError: what is no mass, or the class of one.
    """

    step_size: StepSize = field(default_factory=DualAveraging)
    mass: Mass = field(default_factory=DiagonalMass)

    def __post_init__(self) -> None:
        if isinstance(self.mass, type) or not isinstance(self.mass, Mass):
            raise TypeError(f"mass must be DiagonalMass(), UnitMass() or LowRankMass(...), got {self.mass!r}")

    def start(self, target: Target, point: Point, source: torch.Generator) -> Adapted:
        """Before the first step.

        Raises:
            ValueError: chains in which no first step size can be found, by number.
        """
        metric = self.mass.start(point)
        size = torch.ones(len(point.position), dtype=torch.float64, device=point.position.device)
        if self.step_size.first is None:
            size = _searched(target, point, metric, size, source).checked()
        else:
            size = size * self.step_size.first
        return Adapted(Averages.start(size), metric, self.mass.estimate(point))

    def update(
        self,
        adapted: Adapted,
        point: Point,
        acceptance: Float[Tensor, " C"],
        step: int,
        steps: int,
        target: Target,
        source: torch.Generator,
    ) -> tuple[Adapted, Int[Tensor, " C"]]:
        """After step ``step`` of ``steps``, which ended at ``point``; also the gradients that were needed.

        A chain in which no step size is found under its new mass goes on with the one that it has.
        """
        adapted = replace(adapted, averages=self.step_size.update(adapted.averages, acceptance))
        gradients = torch.zeros_like(acceptance, dtype=torch.long)
        if self.mass.adapts and collects(step, steps):
            adapted = replace(adapted, estimate=adapted.estimate.add(point))
            if ends(step, steps):
                metric = self.mass.fitted(adapted.estimate, adapted.metric)
                averages = adapted.averages
                if self.step_size.adapts:
                    search = _searched(target, point, metric, averages.size, source)
                    averages, gradients = Averages.start(search.or_kept(averages.size)), search.evaluations
                adapted = Adapted(averages, metric, self.mass.estimate(point))
        if step == steps - 1:
            adapted = replace(adapted, averages=self.step_size.frozen(adapted.averages))
        return adapted, gradients


def _searched(target: Target, point: Point, metric: Metric, size: Tensor, source: torch.Generator) -> Search:
    """A first step size of each chain, all tried at one momentum."""
    momentum = metric.draw(source)
    energy = metric.kinetic(momentum)

    def log_acceptance(tried: Tensor) -> Tensor:
        ahead, pushed = leapfrog(target, point, momentum, tried, metric)
        return (ahead.log_density - point.log_density) - (metric.kinetic(pushed) - energy)

    return first_step_size(log_acceptance, size)
