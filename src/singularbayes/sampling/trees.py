"""Trees of the no-U-turn sampler: a trajectory that doubles, forwards or backwards, until it turns back.

A doubling adds as many leapfrog steps as the tree has points. With ``rho`` the sum of the momenta of a
stretch of the trajectory, ``p_1`` and ``p_2`` those at its ends, the stretch has turned where

    p_1 . M^-1 rho <= 0    or    p_2 . M^-1 rho <= 0.

That is asked of every balanced subtree, of its first half with the first momentum of the second, and of its
second half with the last of the first. A doubling that turns or diverges inside is dropped and ends the tree;
one that turns with the tree as a whole is kept and ends it.

A point has the weight ``exp(-H)``. Within a doubling the next state is drawn by weight; that of a new
doubling replaces the tree's with probability ``min(1, weight of the doubling / weight of the tree)``, which
prefers what is far and leaves the target invariant.

All chains grow in step, a leaf at a time. A completed subtree waits until its sibling is as large, as a
binary counter carries: that is the recursion, in a loop.

References:
    Hoffman and Gelman 2014, JMLR 15 (the tree); Betancourt 2017, arXiv 1701.02434, appendix A (weights, the
    criterion); Carpenter et al. 2017, Journal of Statistical Software 76(1) (Stan, whose checks between the
    halves these are).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .leapfrog import chosen, leapfrog
from .metric import Metric
from .sampler import Point, Target

__all__ = ["Divisible", "Tree", "grown"]

_DIVERGED = 1000.0  # nats


@runtime_checkable
class Divisible(Protocol):
    """A target that can be asked about some of its chains: those that still grow are computed, no others."""

    def of(self, chains: Int[Tensor, " A"]) -> Target:
        """The target of these chains, whose rows are theirs in this order."""
        ...


@dataclass(frozen=True, eq=False)
class Tree:
    """What a tree chose and how it grew.

    Args:
        point: the next state of each chain.
        energy_error: ``H(point) - H(start)``, nats.
        acceptance: mean over all leaves of ``min(1, exp(H(start) - H))``; 0 for one that diverged.
        divergent: a leaf's energy was not finite, or 1000 nats above the start's.
        gradients: leaves.
        depth: doublings that were kept.
        cut: the tree would have grown on but for its greatest depth.
    """

    point: Point
    energy_error: Float[Tensor, " C"]
    acceptance: Float[Tensor, " C"]
    divergent: Bool[Tensor, " C"]
    gradients: Int[Tensor, " C"]
    depth: Int[Tensor, " C"]
    cut: Bool[Tensor, " C"]


@dataclass(frozen=True, eq=False)
class _Branch:
    """A stretch of the trajectory, in the order in which it grew: the criterion is the same both ways.

    Args:
        first: momentum at its start.
        last: momentum at its end.
        first_velocity: ``M^-1`` of them.
        last_velocity: likewise.
        total: ``M^-1 rho``, of the sum of its momenta.
    """

    first: Float[Tensor, "C d"]
    last: Float[Tensor, "C d"]
    first_velocity: Float[Tensor, "C d"]
    last_velocity: Float[Tensor, "C d"]
    total: Float[Tensor, "C d"]

    @classmethod
    def leaf(cls, momentum: Tensor, metric: Metric) -> _Branch:
        """A single point."""
        velocity = metric.velocity(momentum)
        return cls(momentum, momentum, velocity, velocity, velocity)

    def joined(self, after: _Branch) -> _Branch:
        """With the branch that grew after it."""
        return _Branch(
            self.first, after.last, self.first_velocity, after.last_velocity, self.total + after.total
        )

    def turns(self, after: _Branch) -> Bool[Tensor, " C"]:
        """Whether the two, or one with the nearest point of the other, have turned back."""
        whole = self.total + after.total
        near = self.total + after.first_velocity
        far = self.last_velocity + after.total
        momenta = torch.stack([self.first, after.last, self.first, after.first, self.last, after.last])
        sums = torch.stack([whole, whole, near, near, far, far])
        return ((momenta * sums).sum(2) <= 0).any(0)


@dataclass(frozen=True, eq=False)
class _Ends:
    """A tree and the points at its ends; it grows from ``head``."""

    tail: Point
    head: Point
    branch: _Branch

    def turned_round(self, which: Bool[Tensor, " C"]) -> _Ends:
        """To grow at the other end, in some chains."""
        if not bool(which.any()):
            return self
        branch = self.branch
        turned = _Branch(branch.last, branch.first, branch.last_velocity, branch.first_velocity, branch.total)
        return _Ends(
            chosen(which, self.head, self.tail),
            chosen(which, self.tail, self.head),
            _where(which, turned, branch),
        )


@dataclass(frozen=True, eq=False)
class _Pick:
    """The state that a stretch has chosen by weight."""

    point: Point
    energy_error: Float[Tensor, " C"]
    log_weight: Float[Tensor, " C"]

    def or_taken(self, other: _Pick, taken: Bool[Tensor, " C"], log_weight: Tensor) -> _Pick:
        """``other``'s state in some chains; the weight of both."""
        error = torch.where(taken, other.energy_error, self.energy_error)
        return _Pick(chosen(taken, other.point, self.point), error, log_weight)


@dataclass(frozen=True, eq=False)
class _Tally:
    """What all leaves of a step add up to."""

    acceptance: Float[Tensor, " C"]
    divergent: Bool[Tensor, " C"]
    gradients: Int[Tensor, " C"]


def _where(which: Tensor, yes: _Branch, no: _Branch) -> _Branch:
    rows = which.unsqueeze(1)
    parts = (torch.where(rows, getattr(yes, f.name), getattr(no, f.name)) for f in fields(yes))
    return _Branch(*parts)


def _at_rest(momentum: Tensor, growing: Tensor) -> Tensor:
    return torch.where(growing.unsqueeze(1), momentum, 0.0)


class _Some:
    """A divisible target of the chains that still grow; the others get nan, which nobody reads."""

    def __init__(self, target: Divisible, growing: Bool[Tensor, " C"]) -> None:
        self.chains = growing.nonzero().squeeze(1)
        self.part = target.of(self.chains)
        self.dimension = self.part.dimension

    def __call__(self, position: Float[Tensor, "C d"]) -> tuple[Float[Tensor, " C"], Float[Tensor, "C d"]]:
        value, gradient = self.part(position[self.chains])
        values = value.new_full((len(position),), math.nan)
        gradients = torch.full_like(position, math.nan)
        values[self.chains], gradients[self.chains] = value, gradient
        return values, gradients


def _only(target: Target, growing: Bool[Tensor, " C"]) -> Target:
    if isinstance(target, Divisible) and not bool(growing.all()):
        return _Some(target, growing)
    return target


class _Grower:
    """One step of all chains: what does not change while their trees grow."""

    def __init__(
        self,
        target: Target,
        point: Point,
        momentum: Float[Tensor, "C d"],
        step_size: Float[Tensor, " C"],
        metric: Metric,
    ) -> None:
        self.target, self.metric, self.step_size = target, metric, step_size
        self.log_density, self.kinetic = point.log_density, metric.kinetic(momentum)

    def error(self, point: Point, momentum: Tensor) -> Float[Tensor, " C"]:
        """``H - H(start)``; the kinetic energies and the densities first, large and alike."""
        return (self.metric.kinetic(momentum) - self.kinetic) - (point.log_density - self.log_density)

    def doubling(
        self,
        ends: _Ends,
        forward: Float[Tensor, " C"],
        growing: Bool[Tensor, " C"],
        uniforms: Float[Tensor, "C leaves"],
        tally: _Tally,
    ) -> tuple[_Ends, _Pick, Bool[Tensor, " C"], _Tally]:
        """As many leaves as there are uniform numbers, on from the head.

        Returns:
            The new branch with its last point as head, its choice, the chains that reached all leaves without
            a turn or a divergence, and the tally.
        """
        step, logs = self.step_size * forward, uniforms.log()
        target = _only(self.target, growing)
        head, momentum = ends.head, _at_rest(ends.branch.last, growing)
        nothing = torch.full_like(self.kinetic, -math.inf)
        pick = _Pick(head, torch.zeros_like(self.kinetic), nothing)
        waiting: list[_Branch] = []
        branch = ends.branch
        for leaf in range(uniforms.shape[1]):
            ahead, momentum = leapfrog(target, head, momentum, step, self.metric)
            error = self.error(ahead, momentum)
            diverged = growing & ~((error > -math.inf) & (error <= _DIVERGED))  # nan is neither
            weight = torch.where(growing & ~diverged, -error, -math.inf)
            tally = _Tally(
                tally.acceptance + weight.clamp(max=0).exp(),
                tally.divergent | diverged,
                tally.gradients + growing,
            )
            total = torch.logaddexp(pick.log_weight, weight)
            pick = pick.or_taken(_Pick(ahead, error, weight), logs[:, leaf] < weight - total, total)
            branch, turned = _Branch.leaf(momentum, self.metric), diverged
            size = leaf + 1
            while size % 2 == 0:  # a sibling of the same size waits
                before = waiting.pop()
                turned = turned | before.turns(branch)
                branch, size = before.joined(branch), size // 2
            waiting.append(branch)
            head = ahead
            if bool((growing & turned).any()):
                growing = growing & ~turned
                if not bool(growing.any()):
                    break
                target = _only(self.target, growing)
            if not bool(growing.all()):  # a target may refuse where others have long left
                head, momentum = chosen(growing, ahead, ends.head), _at_rest(momentum, growing)
        return _Ends(ends.head, head, branch), pick, growing, tally


def grown(
    target: Target,
    point: Point,
    momentum: Float[Tensor, "C d"],
    step_size: Float[Tensor, " C"],
    metric: Metric,
    max_depth: int,
    source: torch.Generator,
) -> Tree:
    """Grow a tree of each chain and choose its next state.

    Args:
        target: if it is :class:`Divisible`, chains that are through are not computed.
        point: where the chains are, with finite densities.
        momentum: drawn from ``metric``.
        step_size: of each chain, under the metric.
        metric: ``M``.
        max_depth: doublings at most, so ``2^max_depth - 1`` gradients.
        source: moves on by one number, whatever the trees do: no chain's randomness depends on another's.
    """
    grower = _Grower(target, point, momentum, step_size, metric)
    zero = torch.zeros_like(grower.kinetic)
    noise = _own_generator(source, momentum.device)

    def uniform(columns: int) -> Tensor:
        return torch.rand(len(zero), columns, generator=noise, dtype=zero.dtype, device=zero.device)

    directions, joins = uniform(max_depth).lt(0.5).to(zero.dtype) * 2 - 1, uniform(max_depth).log()
    ends = _Ends(point, point, _Branch.leaf(momentum, metric))
    pick = _Pick(point, zero, zero)
    growing = torch.ones_like(zero, dtype=torch.bool)
    tally = _Tally(zero, ~growing, torch.zeros_like(zero, dtype=torch.int64))
    depth, forward = tally.gradients, torch.ones_like(zero)
    for level in range(max_depth):
        ends = ends.turned_round(directions[:, level] != forward)
        forward = directions[:, level]
        added, its, growing, tally = grower.doubling(ends, forward, growing, uniform(2**level), tally)
        total = torch.logaddexp(pick.log_weight, its.log_weight)
        taken = growing & (joins[:, level] < its.log_weight - pick.log_weight)
        pick = pick.or_taken(its, taken, torch.where(growing, total, pick.log_weight))
        depth = depth + growing
        growing = growing & ~ends.branch.turns(added.branch)
        if not bool(growing.any()):
            break
        ends = _Ends(ends.tail, added.head, ends.branch.joined(added.branch))
    acceptance = tally.acceptance / tally.gradients
    return Tree(pick.point, pick.energy_error, acceptance, tally.divergent, tally.gradients, depth, growing)


def _own_generator(source: torch.Generator, device: torch.device) -> torch.Generator:
    """Of one step: how much the deepest tree draws from it does not move ``source``."""
    seed = torch.randint(2**63 - 1, (), generator=source, device=source.device)
    return torch.Generator(device=device).manual_seed(int(seed))
