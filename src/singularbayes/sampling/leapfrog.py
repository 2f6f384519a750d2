"""The leapfrog integrator of Hamilton's equations, for chains side by side.

    p += e/2 grad log p(q);   q += e M^-1 p;   p += e/2 grad log p(q)

It is reversible (turn the momentum and it comes back), keeps volume, and its energy error is of second order
in ``e``.

References:
    Neal 2011, "MCMC using Hamiltonian dynamics", section 2.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .metric import Metric
from .sampler import Point, Target

__all__ = ["Integrator", "Leapfrog", "chosen", "evaluated", "leapfrog"]


@runtime_checkable
class Integrator(Protocol):
    """What moves chains along a trajectory; see :class:`Leapfrog`."""

    def __call__(
        self,
        target: Target,
        point: Point,
        momentum: Float[Tensor, "C d"],
        step_size: Float[Tensor, " C"],
        metric: Metric,
        steps: Int[Tensor, " C"],
    ) -> tuple[Point, Float[Tensor, "C d"]]: ...


def evaluated(target: Target, position: Float[Tensor, "C d"]) -> Point:
    """The point at a position; the log density in float64, whose differences decide what is accepted."""
    log_density, gradient = target(position)
    return Point(position, log_density.double(), gradient)


def leapfrog(
    target: Target,
    point: Point,
    momentum: Float[Tensor, "C d"],
    step_size: Float[Tensor, " C"],
    metric: Metric,
) -> tuple[Point, Float[Tensor, "C d"]]:
    """One step of each chain, with its own step size."""
    step = step_size.to(momentum.dtype).unsqueeze(1)
    momentum = momentum + step / 2 * point.gradient
    point = evaluated(target, point.position + step * metric.velocity(momentum))
    return point, momentum + step / 2 * point.gradient


def chosen(which: Tensor, first: Point, second: Point) -> Point:
    """``first`` of the chains in ``which``, ``second`` of the others."""
    rows = which.unsqueeze(1)
    return Point(
        torch.where(rows, first.position, second.position),
        torch.where(which, first.log_density, second.log_density),
        torch.where(rows, first.gradient, second.gradient),
    )


@dataclass(frozen=True)
class Leapfrog:
    """The integrator as it stands; a class, since settings of a run are compared by how they print."""

    def __call__(
        self,
        target: Target,
        point: Point,
        momentum: Float[Tensor, "C d"],
        step_size: Float[Tensor, " C"],
        metric: Metric,
        steps: Int[Tensor, " C"],
    ) -> tuple[Point, Float[Tensor, "C d"]]:
        """``steps`` leapfrog steps, each chain as many as it has; those that are through wait where they are.

        The target always sees all chains, since it may know which row is which.
        """
        least, most = int(steps.min()), int(steps.max())
        for number in range(most):
            ahead, pushed = leapfrog(target, point, momentum, step_size, metric)
            if number < least:
                point, momentum = ahead, pushed
                continue
            going = number < steps
            point = chosen(going, ahead, point)
            momentum = torch.where(going.unsqueeze(1), pushed, momentum)
        return point, momentum
