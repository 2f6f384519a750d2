"""The no-U-turn sampler: settings for users; the kernel is :mod:`singularbayes.sampling.nuts`."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..sampling.adaptation import Adaptation
from ..sampling.mass import DiagonalMass
from ..sampling.metric import Mass
from ..sampling.nuts import NoUTurnSampler
from ..sampling.step_size import fixed_or_adapted
from .chain_settings import ChainSettings
from .settings import check_whole

__all__ = ["NUTS"]


@dataclass(frozen=True, kw_only=True)
class NUTS(ChainSettings):
    """The no-U-turn sampler, exact in the limit of many draws: HMC whose trajectories end where they turn.

        H = -log p(D | w) - log p(w) + p^T M^-1 p / 2,    the next state ~ exp(-H) on the trajectory

    A step doubles its trajectory, forwards or backwards in time, until an end moves towards the other, and
    takes a point of it by weight. It costs up to ``2^max_depth - 1`` gradients of ALL data. Step size and
    mass are each chain's own and adapted in warm-up.

    Args:
        step_size: of the leapfrog, under the mass; ``None`` adapts it to ``target_acceptance``. A number is
            used as it is, in warm-up too.
        max_depth: doublings of a trajectory at most; ``facts["cut_trees"]`` counts the kept steps it cut.
        target_acceptance: mean acceptance over a trajectory that the step size is adapted to, in (0, 1).
        mass: ``DiagonalMass()`` (adapted), ``LowRankMass(rank=)`` (adapted, for strongly correlated
            directions), ``UnitMass()``.

    NOT for minibatches: with a noisy gradient no step would leave the posterior invariant.

    References:
        Hoffman and Gelman 2014, JMLR 15; Betancourt 2017, arXiv 1701.02434, appendix A, for the weights.
    """

    step_size: float | None = None
    max_depth: int = 10
    target_acceptance: float = 0.8
    mass: Mass = field(default_factory=DiagonalMass)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(max_depth=self.max_depth)
        self.sampler()  # its parts check themselves

    def sampler(self) -> NoUTurnSampler:
        """The kernel with these settings."""
        step_size = fixed_or_adapted(self.step_size, self.target_acceptance, self.warm_up)
        return NoUTurnSampler(
            adaptation=Adaptation(step_size=step_size, mass=self.mass), max_depth=self.max_depth
        )
