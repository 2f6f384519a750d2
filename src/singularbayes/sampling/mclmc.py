"""Microcanonical Langevin Monte Carlo (MCLMC): directions of length 1, no momentum, no rejection.

    refresh(eps/2)   B(b1) A(1/2) B(1 - 2 b1) A(1/2) B(b1)   refresh(eps/2),    b1 = 0.1931833275037836

    refresh(h):  u <- norm(u + nu z),   nu = sqrt((exp(2 h / L) - 1) / d),   z ~ N(0, I)
    A(c):        x <- x + c eps u
    B(c):        g = grad log p(x),  e = g / |g|,  delta = c eps |g| / (d - 1),  zeta = exp(-delta),  p = u.e
                 u <- norm(e (1 - zeta)(1 + zeta + p (1 - zeta)) + 2 zeta u)
                 dK += (d - 1) (delta - ln 2 + ln(1 + p + (1 - p) zeta^2))
    dE = dK - (log p(x') - log p(x))

The directions' law is uniform and the positions' law is ``p`` up to the integrator's error: ``dE`` measures
it, ``E dE^2 / d`` grows as ``eps^6``, and the bias goes to 0 with ``eps``. Two gradients a step, of all data:
minibatches would change the law.

References:
    Robnik, De Luca, Silverstein and Seljak 2023, arXiv 2212.08549 (the dynamics, the tuning).
    Robnik and Seljak 2023, arXiv 2303.18221 (the Langevin version).
    Steeg and Galstyan 2021, arXiv 2111.02434 (the closed form of B).
    Sommer et al. 2025, arXiv 2502.06335 (on networks).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .leapfrog import chosen, evaluated
from .mass import normal
from .mclmc_tuning import Phases, Tuning
from .positive import check_positive
from .sampler import Info, Point, Target, named

__all__ = ["MCLMCSampler", "MCLMCState", "kick", "refresh", "trajectory"]

_B1 = 0.1931833275037836
_FIRST_STEP_SIZE, _SHORTEST_FIRST_LENGTH = 1e-3, 15.0
_LARGEST_STEP_SIZE = 1e15


def refresh(
    direction: Float[Tensor, "C d"],
    time_over_length: Float[Tensor, "C 1"],
    source: torch.Generator,
) -> Float[Tensor, "C d"]:
    """Directions after a time in units of ``L``: ``norm(u + nu z)``, without the overflow of ``nu``."""
    d = direction.shape[1]
    z = normal(direction, source)
    spread = (-torch.expm1(-2 * time_over_length) / d).sqrt()
    mixed = torch.exp(-time_over_length) * direction + spread * z
    return mixed / torch.linalg.vector_norm(mixed, dim=1, keepdim=True)


def kick(
    direction: Float[Tensor, "C d"], gradient: Float[Tensor, "C d"], time: Float[Tensor, "C 1"]
) -> tuple[Float[Tensor, "C d"], Float[Tensor, " C"]]:
    """The exact flow of the direction for a time under a constant gradient: ``B``.

    Returns:
        The new directions, and the change of the kinetic energy. Where the gradient is 0 nothing happens.
    """
    freedom = direction.shape[1] - 1
    size = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
    toward = gradient / torch.where(size > 0, size, 1.0)
    delta = time * size / freedom
    zeta = torch.exp(-delta)
    p = (direction * toward).sum(1, keepdim=True).clamp(-1, 1)
    new = toward * ((1 - zeta) * (1 + p + zeta * (1 - p))) + 2 * zeta * direction
    length = torch.linalg.vector_norm(new, dim=1, keepdim=True)
    # A length of 0 is exactly against a steep gradient, where the flow stands still.
    new = torch.where((size > 0) & (length > 0), new / length, direction)
    # ln(cosh delta + p sinh delta): the first form keeps its digits for small delta, the second for large.
    small = delta + torch.log1p(0.5 * (1 - p) * torch.expm1(-2 * delta))
    large = torch.logaddexp(torch.log((1 + p) / 2) + delta, torch.log((1 - p) / 2) - delta)
    return new, (freedom * torch.where(delta < 1, small, large)).squeeze(1)


def trajectory(
    target: Target,
    point: Point,
    direction: Float[Tensor, "C d"],
    step_size: Float[Tensor, " C"],
    scale: Float[Tensor, "C d"],
) -> tuple[Point, Float[Tensor, "C d"], Float[Tensor, " C"]]:
    """One deterministic step ``B A B A B``, in coordinates ``x / scale``.

    Returns:
        The new point and directions, and the energy error ``dE`` in nats; all may be non-finite.
    """
    eps = step_size.unsqueeze(1)
    now, kinetic = point, torch.zeros_like(step_size)
    for part in (_B1, 1 - 2 * _B1):
        direction, change = kick(direction, now.gradient * scale, part * eps)
        position = now.position + 0.5 * eps * scale * direction
        now, kinetic = evaluated(target, position), kinetic + change
    direction, change = kick(direction, now.gradient * scale, _B1 * eps)
    return now, direction, kinetic + change - (now.log_density - point.log_density)


@dataclass(frozen=True, eq=False)
class MCLMCState:
    """Chains of MCLMC.

    Args:
        at: where they are.
        direction: of each, length 1.
        step_size: ``eps``.
        length: ``L``: the way after which a direction is forgotten.
        scale: of the coordinates in which the chain runs; 1 without preconditioning.
        tuning: what the warm-up has gathered; empty afterwards.
    """

    at: Point
    direction: Float[Tensor, "C d"]
    step_size: Float[Tensor, " C"]
    length: Float[Tensor, " C"]
    scale: Float[Tensor, "C d"]
    tuning: Tuning


@dataclass(frozen=True, kw_only=True)
class MCLMCSampler:
    """The kernel with its tuning; see the module for the equations and ``mclmc_tuning`` for the tuning.

    A step whose end is not finite is taken back, the chain turns round, and the divergence is counted.

    Args:
        step_size: ``eps``; None tunes it.
        length: ``L``; None tunes it.
        energy_variance: ``v``, the ``E dE^2 / d`` that the step size is tuned for at the end of the warm-up.
        diagonal: run in coordinates of equal variance, estimated in the warm-up.

    Example:
        >>> from singularbayes.sampling.target import AutogradTarget
        >>> target = AutogradTarget(lambda x: -0.5 * x.square().sum(1), 2)
        >>> sampler, source = MCLMCSampler(step_size=0.5, length=1.5), torch.Generator().manual_seed(0)
        >>> state = sampler.start(target, torch.zeros(100, 2), source)
        >>> for _ in range(50):
        ...     state, info = sampler.step(state, target, source)
        >>> bool((sampler.point(state).position.std() - 1).abs() < 0.2)
        True
    """

    step_size: float | None = None
    length: float | None = None
    energy_variance: float = 0.1
    diagonal: bool = False

    def __post_init__(self) -> None:
        for name in ("step_size", "length", "energy_variance"):
            value = getattr(self, name)
            if value is not None:
                check_positive(**{name: value})

    def start(self, target: Target, position: Float[Tensor, "C d"], source: torch.Generator) -> MCLMCState:
        """See ``Sampler``.

        Raises:
            ValueError: fewer than 2 dimensions: a direction cannot turn on a line.
        """
        chains, d = position.shape
        if d < 2:
            raise ValueError(f"MCLMC needs at least 2 dimensions, got {d}; use HMC or NUTS")
        z = normal(position, source)
        direction = z / torch.linalg.vector_norm(z, dim=1, keepdim=True)
        step_size = position.new_full((chains,), self.step_size or _FIRST_STEP_SIZE)
        length = position.new_full((chains,), self.length or max(math.sqrt(d), _SHORTEST_FIRST_LENGTH))
        at = evaluated(target, position)
        return MCLMCState(at, direction, step_size, length, torch.ones_like(position), Tuning.empty(position))

    def step(self, state: MCLMCState, target: Target, source: torch.Generator) -> tuple[MCLMCState, Info]:
        half = (0.5 * state.step_size / state.length).unsqueeze(1)
        direction = refresh(state.direction, half, source)
        at, direction, energy = trajectory(target, state.at, direction, state.step_size, state.scale)
        direction = refresh(direction, half, source)
        fine = _finite(at, direction, energy)
        moved = chosen(fine, at, state.at)
        turned = torch.where(fine.unsqueeze(1), direction, -state.direction)
        info = Info(
            acceptance=fine.double(),
            divergent=~fine,
            energy_error=energy,
            gradients=torch.full(fine.shape, 2, device=fine.device),
        )
        return replace(state, at=moved, direction=turned), info

    def warm_up(
        self, state: MCLMCState, step: int, steps: int, target: Target, source: torch.Generator
    ) -> tuple[MCLMCState, Info]:
        """See ``Sampler``.

        Raises:
            ValueError: a density that does not fall, however long the steps.
        """
        phases = Phases.of(steps, length=self.length is None, diagonal=self.diagonal)
        tried = state.step_size
        state, info = self.step(state, target, source)
        tuning, position = state.tuning, state.at.position
        if self.step_size is None and step < phases.length:
            variance = self.energy_variance * (5 - 4 * step / max(phases.length - 1, 1))
            tuning = tuning.with_energy(info.energy_error, info.divergent, tried, variance, position.shape[1])
            state = replace(state, step_size=tuning.step_size(tried))
            _check_growth(state.step_size)
        if phases.variances <= step < phases.again:
            tuning = tuning.with_position(position, tried * ~info.divergent)
            if step + 1 == phases.again:
                state, tuning = self._scaled(state, tuning)
        if step >= phases.length:
            tuning = tuning.with_trail(position, step - phases.length, steps - phases.length)
        if step + 1 == steps:
            if self.length is None:
                state = replace(state, length=tuning.length(state.step_size, state.length, state.scale))
            tuning = Tuning.empty(position)
        return replace(state, tuning=tuning), info

    def _scaled(self, state: MCLMCState, tuning: Tuning) -> tuple[MCLMCState, Tuning]:
        """At the end of the estimate of the variances: ``L`` from them, and the scales."""
        variance = tuning.variance()
        total = variance.sum(1)
        known = torch.isfinite(total) & (total > 0)
        if self.length is None:
            state = replace(state, length=torch.where(known, total.sqrt(), state.length))
        if self.diagonal:
            # Mean square 1: the total variance, and so L, are the same in the new coordinates.
            mean = variance.mean(1, keepdim=True)
            scale = (variance / mean).clamp_min(torch.finfo(variance.dtype).eps).sqrt()
            state = replace(state, scale=torch.where(known.unsqueeze(1), scale, state.scale))
            tuning = tuning.fresh()
        return state, tuning

    def point(self, state: MCLMCState) -> Point:
        return state.at

    def facts(self, state: MCLMCState) -> dict[str, Tensor]:
        facts = {"step_size": state.step_size, "length": state.length}
        return facts | {"inverse_mass": state.scale.square()} if self.diagonal else facts


def _check_growth(step_size: Float[Tensor, " C"]) -> None:
    flat = step_size > _LARGEST_STEP_SIZE
    if bool(flat.any()):
        raise ValueError(
            f"the step size grows without end, so the density does not fall: is it improper or constant? "
            f"({named(flat)}, last tried {step_size[flat][0].item():.0e}). Give step_size, or another start"
        )


def _finite(at: Point, direction: Float[Tensor, "C d"], energy: Float[Tensor, " C"]) -> Bool[Tensor, " C"]:
    parts = (at.position, at.gradient, direction)
    return torch.stack([part.isfinite().all(1) for part in parts]).all(0) & energy.isfinite()
