"""Hamiltonian Monte Carlo: long moves that are nearly always accepted.

    p ~ N(0, M);   (q', p') = leapfrog steps over the time t from (q, p)
    H = -log p(q) + p^T M^-1 p / 2;   accepted where log u < H(q, p) - H(q', p')

Each chain draws its own time ``t ~ U((1 - j) T, (1 + j) T)`` at every step: on a Gaussian a fixed time comes
back to where it was for some directions. Under the adapted mass the posterior's scales are about 1, and
``T = pi/2`` takes a standard normal to an independent draw.

Energies are compared in float64: the difference of the log densities and that of the kinetic energies, each
a small difference of big sums. A target that sums over many data returns float64 sums, whatever the dtype of
the positions: in float32 a sum of 1e6 nats is known to .06.

References:
    Neal 2011, "MCMC using Hamiltonian dynamics"; methods of adaptation: :mod:`.adaptation`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .adaptation import Adaptation, Adapted
from .leapfrog import Integrator, Leapfrog, chosen, evaluated
from .sampler import Info, Point, Target
from .windows import learned

__all__ = ["HamiltonianSampler", "State", "metropolis"]

_DIVERGED = 1000.0  # nats
# Before a mass is known, times have no meaning, and the narrowest direction makes the steps short: a whole
# trajectory may take hundreds of them. Moves are cut here until the first of several windows is over.
_EARLY_STEPS = 64


@dataclass(frozen=True, eq=False)
class State:
    """Where the chains are and what they have learned."""

    point: Point
    adapted: Adapted


def metropolis(
    energy_error: Float[Tensor, " C"], source: torch.Generator
) -> tuple[Bool[Tensor, " C"], Float[Tensor, " C"], Bool[Tensor, " C"]]:
    """Whether a proposal is accepted, its probability, and whether it diverged.

    Args:
        energy_error: ``H(end) - H(start)``, nats, float64; one that is not finite is rejected.
        source: of one uniform number a chain, whatever the errors.
    """
    finite = torch.isfinite(energy_error)
    uniform = torch.rand(
        energy_error.shape, generator=source, dtype=energy_error.dtype, device=energy_error.device
    )
    error = torch.where(finite, energy_error, math.inf)
    accepted = torch.log1p(-uniform) < -error  # of (0, 1]
    return accepted, (-error).clamp(max=0).exp(), ~finite | (error > _DIVERGED)


@dataclass(frozen=True, kw_only=True)
class HamiltonianSampler:
    """The kernel; :class:`singularbayes.HMC` are its settings for users.

    Args:
        adaptation: of step size and mass.
        trajectory: ``T``, time of a move, in units of step size times steps.
        jitter: ``j``, in [0, 1).
        max_steps: leapfrog steps of one move at most; a longer one is cut there. In warm-up it is 64 at most
            until a first mass is learned, if others follow.
        integrator: ``Leapfrog()`` or ``CompiledLeapfrog()``.
    """

    adaptation: Adaptation = field(default_factory=Adaptation)
    trajectory: float = math.pi / 2
    jitter: float = 0.5
    max_steps: int = 1000
    integrator: Integrator = field(default_factory=Leapfrog)

    def start(self, target: Target, position: Float[Tensor, "C d"], source: torch.Generator) -> State:
        point = evaluated(target, position)
        return State(point, self.adaptation.start(target, point, source))

    def warm_up(
        self, state: State, step: int, steps: int, target: Target, source: torch.Generator
    ) -> tuple[State, Info]:
        early = self.adaptation.mass.adapts and not learned(step, steps)
        state, info = self._move(state, target, source, _EARLY_STEPS if early else self.max_steps)
        adapted, more = self.adaptation.update(
            state.adapted, state.point, info.acceptance, step, steps, target, source
        )
        return State(state.point, adapted), replace(info, gradients=info.gradients + more)

    def step(self, state: State, target: Target, source: torch.Generator) -> tuple[State, Info]:
        return self._move(state, target, source, self.max_steps)

    def _move(self, state: State, target: Target, source: torch.Generator, most: int) -> tuple[State, Info]:
        point, metric, step_size = state.point, state.adapted.metric, state.adapted.step_size
        momentum = metric.draw(source)
        steps = self.steps(step_size, source, most)
        ahead, pushed = self.integrator(target, point, momentum, step_size, metric, steps)
        kinetic = metric.kinetic(pushed) - metric.kinetic(momentum)
        error = kinetic - (ahead.log_density - point.log_density)
        accepted, acceptance, divergent = metropolis(error, source)
        info = Info(acceptance, divergent, error, steps)
        return State(chosen(accepted, ahead, point), state.adapted), info

    def steps(self, step_size: Float[Tensor, " C"], source: torch.Generator, most: int) -> Int[Tensor, " C"]:
        """Leapfrog steps of the next move, drawn by each chain, of which there are ``most`` at most."""
        uniform = torch.rand(
            step_size.shape, generator=source, dtype=step_size.dtype, device=step_size.device
        )
        time = self.trajectory * (1 + self.jitter * (2 * uniform - 1))
        return (time / step_size).ceil().clamp(1, min(most, self.max_steps)).long()

    def point(self, state: State) -> Point:
        return state.point

    def facts(self, state: State) -> dict[str, Tensor]:
        step_size = state.adapted.step_size
        return {
            **state.adapted.facts(),
            "trajectory": (self.max_steps * step_size).clamp(max=self.trajectory),
        }
