"""Hamiltonian Monte Carlo: settings for users; the kernel is :mod:`singularbayes.sampling.hmc`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from numbers import Real

from ..sampling.adaptation import Adaptation
from ..sampling.compiled import CompiledLeapfrog
from ..sampling.hmc import HamiltonianSampler
from ..sampling.leapfrog import Leapfrog
from ..sampling.mass import DiagonalMass, UnitMass
from ..sampling.metric import Mass
from ..sampling.positive import check_positive
from ..sampling.step_size import fixed_or_adapted
from .chain_settings import ChainSettings
from .settings import check_whole

__all__ = ["HMC"]


@dataclass(frozen=True, kw_only=True)
class HMC(ChainSettings):
    """Hamiltonian Monte Carlo: exact draws of the posterior, in the limit of many.

        H = -log p(D | w) - log p(w) + p^T M^-1 p / 2,    accept where log u < H(start) - H(end)

    A move is a trajectory of leapfrog steps on the gradient of ALL data. Step size and mass are each chain's
    own; warm-up adapts them.

    Args:
        step_size: of the leapfrog, under the mass; ``None`` adapts it to ``target_acceptance``. A number is
            used as it is, in warm-up too.
        trajectory: time of a move, in units of the posterior's scale under the adapted mass; with
            ``UnitMass()`` give about ``pi/2`` times the posterior's standard deviation.
        jitter: each chain draws the time of each move from ``trajectory * (1 +- jitter)``; 0 has none, and
            may come back to where it was.
        max_steps: leapfrog steps of a move at most; ``facts["trajectory"]`` says where that cuts.
        target_acceptance: mean acceptance that the step size is adapted to, in (0, 1).
        mass: ``DiagonalMass()`` (adapted), ``UnitMass()``, ``LowRankMass(rank=)``.
        compile: compile blocks of five leapfrog steps (some tens of seconds, and a C++ compiler): several
            times quicker for small networks on few data, where time goes into the overhead of many small
            operations; for plain chains of layers, or any log density that can be traced, with a diagonal
            mass. The numbers are the same up to rounding. Where it cannot be done, a warning says why.

    References:
        Neal 2011, "MCMC using Hamiltonian dynamics"; Hoffman and Gelman 2014 for the step size.
    """

    step_size: float | None = None
    trajectory: float = math.pi / 2
    jitter: float = 0.5
    max_steps: int = 1000
    target_acceptance: float = 0.8
    mass: Mass = field(default_factory=DiagonalMass)
    compile: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(max_steps=self.max_steps)
        check_positive(trajectory=self.trajectory)
        if isinstance(self.jitter, bool) or not isinstance(self.jitter, Real) or not 0 <= self.jitter < 1:
            raise ValueError(f"jitter must lie in [0, 1), got {self.jitter!r}")
        if self.compile and not isinstance(self.mass, DiagonalMass | UnitMass):
            raise ValueError(
                f"compile=True needs DiagonalMass() or UnitMass(), got {self.mass!r}; use compile=False with "
                f"others"
            )
        self.sampler()  # its parts check themselves

    def sampler(self) -> HamiltonianSampler:
        """The kernel with these settings."""
        step_size = fixed_or_adapted(self.step_size, self.target_acceptance, self.warm_up)
        return HamiltonianSampler(
            adaptation=Adaptation(step_size=step_size, mass=self.mass),
            trajectory=self.trajectory,
            jitter=self.jitter,
            max_steps=self.max_steps,
            integrator=CompiledLeapfrog() if self.compile else Leapfrog(),
        )
