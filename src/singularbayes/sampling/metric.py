"""What a mass is: the settings (:class:`Mass`), the running estimate and the metric of each chain.

A momentum is drawn from ``N(0, M)`` and moves the position along ``M^-1 p``; ``M^-1`` is an estimate of the
posterior's covariance, each chain's own. Estimates and metrics are frozen dataclasses of tensors, so that the
loop can store them.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .sampler import Point

__all__ = ["Estimate", "Mass", "Metric"]


@runtime_checkable
class Metric(Protocol):
    """``M`` of each of ``C`` chains."""

    def draw(self, source: torch.Generator) -> Float[Tensor, "C d"]:
        """Momenta of ``N(0, M)``, in the dtype of the positions."""
        ...

    def velocity(self, momentum: Float[Tensor, "C d"]) -> Float[Tensor, "C d"]:
        """``M^-1 p``."""
        ...

    def kinetic(self, momentum: Float[Tensor, "C d"]) -> Float[Tensor, " C"]:
        """``p^T M^-1 p / 2``, nats, summed in float64: an energy error is a small difference of big sums."""
        ...

    def of(self, chains: Int[Tensor, " A"]) -> Any:
        """The metric of some of the chains."""
        ...

    def facts(self) -> dict[str, Tensor]:
        """What a user would ask of it, each ``(C, ...)``: ``inverse_mass`` ``(C, d)``."""
        ...


@runtime_checkable
class Estimate(Protocol):
    """Moments of where each chain has been; immutable."""

    def add(self, point: Point) -> Any:
        """The estimate with one more point of each chain."""
        ...


@runtime_checkable
class Mass(Protocol):
    """Settings: which metric is learned in warm-up. Not the state of a chain."""

    @property
    def adapts(self) -> bool:
        """Whether warm-up changes it."""
        ...

    def start(self, point: Point) -> Any:
        """The metric before anything is known."""
        ...

    def estimate(self, point: Point) -> Any:
        """An empty estimate for the chains of ``point``."""
        ...

    def fitted(self, estimate: Any, metric: Any) -> Any:
        """The metric at the end of a window; ``metric`` is the present one, of the same class and shapes."""
        ...
