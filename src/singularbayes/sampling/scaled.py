"""A sampler in units of one's own: whoever knows a density's scales beforehand need not have them learned.

    q = s z,    log p(z) = log p(q) + const,    d log p / dz = s  d log p / dq

A unit mass in ``z`` is the mass ``1 / s^2`` in ``q``, and a step of 1 in ``z`` is one of ``s``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from .sampler import Info, Point, Sampler, Target

__all__ = ["ScaledSampler", "ScaledTarget"]


@dataclass(frozen=True, eq=False)
class ScaledTarget:
    """``target`` in the coordinates ``z``.

    Args:
        target: in the coordinates ``q``.
        scale: ``s (d,)``, positive.

    Example:
        >>> from singularbayes.sampling.target import AutogradTarget
        >>> wide = AutogradTarget(lambda q: -0.5 * (q / 10).square().sum(1), 1)
        >>> value, gradient = ScaledTarget(wide, torch.tensor([10.0]))(torch.tensor([[2.0]]))
        >>> value.item(), gradient.item()
        (-2.0, -2.0)
    """

    target: Target
    scale: Float[Tensor, " d"]

    @property
    def dimension(self) -> int:
        """``d``."""
        return self.target.dimension

    def __call__(self, position: Float[Tensor, "C d"]) -> tuple[Float[Tensor, " C"], Float[Tensor, "C d"]]:
        """See :class:`~.sampler.Target`."""
        value, gradient = self.target(self.scale * position)
        return value, gradient * self.scale


@dataclass(frozen=True, eq=False)
class ScaledSampler:
    """A sampler whose step sizes and masses count in units of ``scale``.

    Its points are those of the target itself; of what it has adapted, ``inverse_mass`` too.

    Args:
        sampler: what runs in the coordinates ``z``.
        scale: ``s (d,)``, positive.

    Raises:
        ValueError: scales that are not positive.
    """

    sampler: Sampler
    scale: Float[Tensor, " d"]

    def __post_init__(self) -> None:
        if not bool((self.scale > 0).all()):
            raise ValueError(f"scales must be positive, got {self.scale.min().item()}")

    def start(self, target: Target, position: Float[Tensor, "C d"], source: torch.Generator) -> Any:
        if target.dimension != len(self.scale):
            raise ValueError(f"got {len(self.scale)} scales for a target of dimension {target.dimension}")
        return self.sampler.start(ScaledTarget(target, self.scale), position / self.scale, source)

    def warm_up(
        self, state: Any, step: int, steps: int, target: Target, source: torch.Generator
    ) -> tuple[Any, Info]:
        return self.sampler.warm_up(state, step, steps, ScaledTarget(target, self.scale), source)

    def step(self, state: Any, target: Target, source: torch.Generator) -> tuple[Any, Info]:
        return self.sampler.step(state, ScaledTarget(target, self.scale), source)

    def point(self, state: Any) -> Point:
        inside = self.sampler.point(state)
        return Point(self.scale * inside.position, inside.log_density, inside.gradient / self.scale)

    def facts(self, state: Any) -> dict[str, Tensor]:
        facts = dict(self.sampler.facts(state))
        ones = torch.ones_like(self.sampler.point(state).position)  # of a unit mass, which says nothing
        return {**facts, "inverse_mass": facts.get("inverse_mass", ones) * self.scale.square()}
