"""Stochastic gradient Hamiltonian Monte Carlo: friction takes out the heat of noisy gradients.

    dx = v dt,    dv = grad log p(x) dt - c v dt + sqrt(2 c) dW,    x ~ p, v ~ N(0, I)

One step (B A O A B) of size ``h``; the last gradient is the first of the next step:

    v <- v + h/2 g(x);   x <- x + h/2 v;   v <- a v + s z;   x <- x + h/2 v;   v <- v + h/2 g(x)
    a = exp(-c h),    s^2 = 1 - a^2 (1 + h^2 V),    z ~ N(0, I)

``g`` is the gradient of the SUM over all data plus the prior's, or an unbiased estimate of it. ``V`` is what
is known of the estimate's variance: the noise that minibatches bring is left out of ``s``, to first order in
``h`` exactly (Chen's ``2 (C - B) h``; 0 where the gradients bring more than the friction takes out). With ``V
= 0`` and exact gradients the splitting is the one that is exact for the variances of a Gaussian; in general
its bias is of order ``h^2``, where Chen's Euler steps have order ``h``. Unknown gradient noise adds a bias of
order ``h V / c``.

References:
    Chen, Fox and Guestrin 2014, arXiv 1402.4102, equations 9, 13 and 14.
    Chen, Ding and Carin 2015, arXiv 1610.06665 (symmetric splittings with stochastic gradients).
    Leimkuhler and Matthews 2013, "Rational construction of stochastic numerical methods" (BAOAB).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .leapfrog import chosen
from .mass import normal
from .positive import check_positive
from .sampler import Info, Point, Target
from .step_sequences import StepSizes
from .stochastic import AllData, GradientEstimate

__all__ = ["SGHMCSampler", "SGHMCState", "rubbed"]

_HOT = 1000.0  # kinetic energy in nats a dimension: nothing but a step that is too large


@dataclass(frozen=True, eq=False)
class SGHMCState:
    """Chains of SGHMC.

    Args:
        at: where they are; log density and gradient are estimates, if gradients are.
        velocity: of each.
        step: number of the next step.
        noise: ``V``, variance of the estimated gradient, which the friction's noise makes room for.
        heat: sum of ``|v|^2 / d`` over the steps after the warm-up.
        steps: their number.
    """

    at: Point
    velocity: Float[Tensor, "C d"]
    step: Int[Tensor, ""]
    noise: Float[Tensor, "C d"]
    heat: Float[Tensor, " C"]
    steps: Int[Tensor, ""]


def rubbed(
    velocity: Float[Tensor, "C d"],
    size: float,
    friction: float,
    noise: Float[Tensor, "C d"],
    source: torch.Generator,
) -> Float[Tensor, "C d"]:
    """Friction and its noise over a step: ``O``."""
    z = normal(velocity, source)
    kept = math.exp(-2 * friction * size)
    variance = -math.expm1(-2 * friction * size) - kept * size**2 * noise
    return math.sqrt(kept) * velocity + variance.clamp_min(0).sqrt() * z


@dataclass(frozen=True, kw_only=True)
class SGHMCSampler:
    """The kernel; see the module.

    A step whose end is not finite, or whose kinetic energy is beyond 1000 nats a dimension, is taken back
    with a new velocity and counted as a divergence.

    Args:
        step_sizes: ``h`` of each step.
        friction: ``c``, one over time.
        gradient: all data, or an estimate.
        estimate_noise: learn ``V`` in the warm-up, from two estimates at each step's end (one more gradient).

    Example:
        >>> from singularbayes.sampling.step_sequences import Constant
        >>> from singularbayes.sampling.target import AutogradTarget
        >>> target = AutogradTarget(lambda x: -0.5 * x.square().sum(1), 2)
        >>> sampler, source = SGHMCSampler(step_sizes=Constant(0.5), friction=1.0), torch.Generator()
        >>> state = sampler.start(target, torch.zeros(200, 2), source.manual_seed(0))
        >>> for _ in range(50):
        ...     state, info = sampler.step(state, target, source)
        >>> bool((sampler.point(state).position.std() - 1).abs() < 0.2)
        True
    """

    step_sizes: StepSizes
    friction: float
    gradient: GradientEstimate = field(default_factory=AllData)
    estimate_noise: bool = False

    def __post_init__(self) -> None:
        check_positive(friction=self.friction)
        if self.estimate_noise and self.gradient.exact:
            raise ValueError(
                "estimate_noise=True, but the gradients are of all data and have no noise; give a batch_size"
            )

    def start(self, target: Target, position: Float[Tensor, "C d"], source: torch.Generator) -> SGHMCState:
        number = torch.zeros((), dtype=torch.long, device=position.device)
        at = self._estimated(target, position, source)
        heat = torch.zeros(len(position), dtype=torch.float64, device=position.device)
        return SGHMCState(at, normal(position, source), number, torch.zeros_like(position), heat, number)

    def step(self, state: SGHMCState, target: Target, source: torch.Generator) -> tuple[SGHMCState, Info]:
        state, info = self._moved(state, target, source)
        heat = state.velocity.double().square().mean(1)
        return replace(state, heat=state.heat + heat, steps=state.steps + 1), info

    def warm_up(
        self, state: SGHMCState, step: int, steps: int, target: Target, source: torch.Generator
    ) -> tuple[SGHMCState, Info]:
        state, info = self._moved(state, target, source)
        if not self.estimate_noise:
            return state, info
        other = self._estimated(target, state.at.position, source)
        half_square = 0.5 * (other.gradient - state.at.gradient).square()
        share = 2 / (step + 2)  # weights grow with the step: where the chain started does not count for long
        noise = torch.where(half_square.isfinite(), half_square - state.noise, 0.0) * share + state.noise
        return replace(state, noise=noise), replace(info, gradients=info.gradients + 1)

    def _moved(self, state: SGHMCState, target: Target, source: torch.Generator) -> tuple[SGHMCState, Info]:
        size = self.step_sizes(int(state.step))
        velocity = state.velocity + 0.5 * size * state.at.gradient
        position = state.at.position + 0.5 * size * velocity
        velocity = rubbed(velocity, size, self.friction, state.noise, source)
        at = self._estimated(target, position + 0.5 * size * velocity, source)
        velocity = velocity + 0.5 * size * at.gradient
        kinetic = 0.5 * velocity.double().square().sum(1)
        fine = torch.isfinite(at.log_density) & (kinetic < _HOT * velocity.shape[1])  # not for nan
        if not bool(fine.all()):
            at = chosen(fine, at, state.at)
            velocity = torch.where(fine.unsqueeze(1), velocity, normal(velocity, source))
        info = Info(
            acceptance=fine.double(),
            divergent=~fine,
            energy_error=torch.full_like(kinetic, math.nan),
            gradients=torch.ones_like(fine, dtype=torch.long),
        )
        return replace(state, at=at, velocity=velocity, step=state.step + 1), info

    def _estimated(self, target: Target, position: Tensor, source: torch.Generator) -> Point:
        log_density, gradient = self.gradient(target, position, source)
        return Point(position, log_density.double(), gradient)

    def point(self, state: SGHMCState) -> Point:
        return state.at

    def facts(self, state: SGHMCState) -> dict[str, Tensor]:
        """The next step size, ``V`` if it was estimated, and the mean of ``|v|^2 / d``.

        That kinetic temperature is 1 where step size and gradient noise are small enough (a necessary sign,
        not a sufficient one).
        """
        size = torch.full_like(state.heat, self.step_sizes(int(state.step)))
        facts = {"step_size": size, "kinetic_temperature": state.heat / state.steps}
        return facts | {"gradient_noise": state.noise} if self.estimate_noise else facts
