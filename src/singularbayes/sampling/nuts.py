"""The no-U-turn sampler: Hamiltonian trajectories that are as long as they need to be.

    p ~ N(0, M);    q' = a point of the tree that grows from (q, p)

The trees are those of :mod:`.trees`; step size and mass are adapted in warm-up as those of HMC, with the mean
acceptance over all leaves of a tree in place of that of its end.

References:
    Hoffman and Gelman 2014, JMLR 15; Betancourt 2017, arXiv 1701.02434.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .adaptation import Adaptation, Adapted
from .leapfrog import evaluated
from .sampler import Info, Point, Target
from .trees import grown
from .windows import learned

__all__ = ["NoUTurnSampler", "State"]

# Before a mass is known the narrowest direction makes the steps short, and whole trajectories would take most
# of the time of a run. Trees are cut here until the first of several windows of warm-up is over.
_EARLY_DEPTH = 6


@dataclass(frozen=True, eq=False)
class State:
    """Where the chains are and what they have learned.

    Args:
        point: of each chain.
        adapted: step size and mass.
        cut: kept steps, so far, whose tree was still growing at its greatest depth.
    """

    point: Point
    adapted: Adapted
    cut: Int[Tensor, " C"]


@dataclass(frozen=True, kw_only=True)
class NoUTurnSampler:
    """The kernel; :class:`singularbayes.NUTS` are its settings for users.

    Args:
        adaptation: of step size and mass.
        max_depth: doublings of a tree at most. In warm-up it is 6 at most until a first mass is learned,
            if others follow.
    """

    adaptation: Adaptation = field(default_factory=Adaptation)
    max_depth: int = 10

    def start(self, target: Target, position: Float[Tensor, "C d"], source: torch.Generator) -> State:
        point = evaluated(target, position)
        cut = torch.zeros(len(position), dtype=torch.int64, device=position.device)
        return State(point, self.adaptation.start(target, point, source), cut)

    def warm_up(
        self, state: State, step: int, steps: int, target: Target, source: torch.Generator
    ) -> tuple[State, Info]:
        early = self.adaptation.mass.adapts and not learned(step, steps)
        depth = min(_EARLY_DEPTH, self.max_depth) if early else self.max_depth
        after, info = self._move(state, target, source, depth)
        adapted, more = self.adaptation.update(
            after.adapted, after.point, info.acceptance, step, steps, target, source
        )
        return State(after.point, adapted, state.cut), replace(info, gradients=info.gradients + more)

    def step(self, state: State, target: Target, source: torch.Generator) -> tuple[State, Info]:
        return self._move(state, target, source, self.max_depth)

    def _move(self, state: State, target: Target, source: torch.Generator, depth: int) -> tuple[State, Info]:
        metric, step_size = state.adapted.metric, state.adapted.step_size
        tree = grown(target, state.point, metric.draw(source), step_size, metric, depth, source)
        info = Info(tree.acceptance, tree.divergent, tree.energy_error, tree.gradients)
        return State(tree.point, state.adapted, state.cut + tree.cut), info

    def point(self, state: State) -> Point:
        return state.point

    def facts(self, state: State) -> dict[str, Tensor]:
        return {**state.adapted.facts(), "cut_trees": state.cut}
