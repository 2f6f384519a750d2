"""What a sampler is, what it samples, and what it reports.

``C`` chains are the rows of one tensor ``(C, d)``; they never touch each other, so that each has its own step
size and mass. What goes on from step to step (the *state*) is a frozen dataclass whose fields are tensors or
such dataclasses, and nothing else: the loop can store any of them and go on. What is only said of a step is
apart, in ``Info``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

__all__ = ["Info", "Point", "Sampler", "Target", "named"]


@runtime_checkable
class Target(Protocol):
    """A log density on rows, up to a constant, with its gradient."""

    @property
    def dimension(self) -> int:
        """``d``."""
        ...

    def __call__(self, position: Float[Tensor, "C d"]) -> tuple[Float[Tensor, " C"], Float[Tensor, "C d"]]:
        """``log p`` of each row, in nats, and its gradient; no graph is kept.

        A density that is 0 or cannot be computed is minus infinity or nan: a sampler counts both as a
        rejected, divergent proposal.
        """
        ...


@dataclass(frozen=True, eq=False)
class Point:
    """Where the chains are, and what the target says there.

    Args:
        position: ``(C, d)``.
        log_density: ``(C,)``, nats.
        gradient: of it, ``(C, d)``.
    """

    position: Float[Tensor, "C d"]
    log_density: Float[Tensor, " C"]
    gradient: Float[Tensor, "C d"]


@dataclass(frozen=True, eq=False)
class Info:
    """What one step of ``C`` chains did.

    Args:
        acceptance: Metropolis probability of the proposal, its mean over a trajectory for NUTS, 1 for kernels
            that never reject.
        divergent: an energy that was not finite or far off.
        energy_error: ``H(end) - H(start)``, nats; nan where a kernel has none.
        gradients: gradient evaluations of each chain.
    """

    acceptance: Float[Tensor, " C"]
    divergent: Bool[Tensor, " C"]
    energy_error: Float[Tensor, " C"]
    gradients: Int[Tensor, " C"]


@runtime_checkable
class Sampler(Protocol):
    """A kernel with its own way to adapt. States are immutable: every call returns a new one."""

    def start(self, target: Target, position: Float[Tensor, "C d"], source: torch.Generator) -> Any:
        """The state before the first step; it may evaluate the target to find a first step size."""
        ...

    def warm_up(
        self, state: Any, step: int, steps: int, target: Target, source: torch.Generator
    ) -> tuple[Any, Info]:
        """Step ``step`` of ``steps`` (from 0) that are not kept; the last freezes what it adapts."""
        ...

    def step(self, state: Any, target: Target, source: torch.Generator) -> tuple[Any, Info]:
        """A step that is kept: it leaves the target invariant (or nearly, for unadjusted kernels)."""
        ...

    def point(self, state: Any) -> Point:
        """Where the chains are."""
        ...

    def facts(self, state: Any) -> dict[str, Tensor]:
        """What was adapted, by name, each ``(C, ...)``: ``step_size``, ``inverse_mass``, ..."""
        ...


def named(which: Tensor) -> str:
    """``chain 3`` or ``chains 0, 2`` of a mask ``(C,)``; at most ten are written out."""
    numbers = which.nonzero()[:, 0].tolist()
    text = ", ".join(map(str, numbers[:10])) + (f" and {len(numbers) - 10} more" if len(numbers) > 10 else "")
    return f"chain{'s' if len(numbers) > 1 else ''} {text}"
