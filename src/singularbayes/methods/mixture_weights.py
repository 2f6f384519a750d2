"""What weighs the members of a mixture: equal or given weights, stacking, evidence.

References:
    Yao et al. 2018, arXiv 1704.02030, eq. 4 (stacking of predictive distributions).
    Hoeting et al. 1999, eq. 2 (weights by evidence: Bayesian model averaging).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from ..data import as_source, gather
from ..random import derive
from .settings import check_whole

__all__ = ["ByEvidence", "Equal", "Given", "MemberWeights", "Stacked", "stacked"]

Array = NDArray[np.float64]

_EVIDENCE = "log_marginal_likelihood"  # key of info, in nats, of all the training data
_GAP = 1e-9  # nats: how far the mean log density may stay below its maximum
_NONE = 1e-7  # a stacking weight below it is 0


@runtime_checkable
class MemberWeights(Protocol):
    """Weighs fitted members; an object of your own with these three will do."""

    needs_validation: ClassVar[bool]

    def check(self, members: int) -> None:
        """Refuse before any fit what cannot fit a number of members."""
        ...

    def of(self, members: Sequence[Any], validation: Any, seed: int) -> Sequence[float]:
        """The weights of fitted members, 0 or more, with sum 1."""
        ...


@dataclass(frozen=True)
class Equal:
    """The same weight for every member."""

    needs_validation: ClassVar[bool] = False

    def check(self, members: int) -> None:
        return None

    def of(self, members: Sequence[Any], validation: Any, seed: int) -> Sequence[float]:
        return [1 / len(members)] * len(members)


@dataclass(frozen=True)
class Given:
    """Weights of your own.

    Args:
        weights: one a member, 0 or more, with sum 1.

    Example:
        >>> Given((0.25, 0.75))
        Given(weights=(0.25, 0.75))
    """

    weights: tuple[float, ...]
    needs_validation: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not self.weights or not all(w >= 0 and math.isfinite(w) for w in self.weights):
            raise ValueError(f"weights must be finite and 0 or more, at least one, got {self.weights}")
        if abs(sum(self.weights) - 1) > 1e-6:
            raise ValueError(
                f"the weights {self.weights} sum to {sum(self.weights):g}, expected 1; divide them by it"
            )

    def check(self, members: int) -> None:
        if len(self.weights) != members:
            raise ValueError(f"got {len(self.weights)} weights for {members} members; expected one each")

    def of(self, members: Sequence[Any], validation: Any, seed: int) -> Sequence[float]:
        return self.weights


@dataclass(frozen=True, kw_only=True)
class Stacked:
    """The weights of largest validation log density of the mixture: ``max_w mean_i log sum_m w_m p_m(y_i)``.

    The problem is convex; it is solved to 1e-9 nats. A member that helps no other gets exactly 0. The
    validation data must be new to every member: a member that was trained on them looks better than it is.

    Args:
        draws: posterior draws of each member's density.
    """

    draws: int = 64
    needs_validation: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_whole(draws=self.draws)

    def check(self, members: int) -> None:
        return None

    def of(self, members: Sequence[Any], validation: Any, seed: int) -> Sequence[float]:
        rows = []
        for number, member in enumerate(members):
            dtype = getattr(member, "dtype", torch.float32)
            held = gather(as_source(validation, dtype, integers=True))
            if held.y is None:
                raise ValueError("stacking needs labels: validation must be (X, y)")
            predictive = member.predict(held.x, draws=self.draws, seed=derive(seed, "stacking", number))
            rows.append(predictive.log_prob(held.y).double().cpu().numpy())
        return [float(weight) for weight in stacked(np.stack(rows))]


@dataclass(frozen=True)
class ByEvidence:
    """Weights in proportion to the evidence: ``w_m = exp(e_m) / sum exp(e)``, equal priors on the members.

    ``e`` is ``info["log_marginal_likelihood"]`` of every member, in nats, of all the training data, as
    ``LaplaceApproximation`` states it. Evidences of networks differ by many nats, so the weights are often 0
    and 1, and they depend on the priors; stacking does not. A variational bound is no substitute, as it lies
    below the evidence by an amount that nobody knows and that differs between members.
    """

    needs_validation: ClassVar[bool] = False

    def check(self, members: int) -> None:
        return None

    def of(self, members: Sequence[Any], validation: Any, seed: int) -> Sequence[float]:
        infos = [member.info for member in members]
        for number, info in enumerate(infos):
            if not _is_number(info.get(_EVIDENCE)):
                raise ValueError(
                    f"member {number} ({info.get('method', '?')}) states no evidence: these weights need "
                    f"info[{_EVIDENCE!r}] of every member. A Laplace approximation gives it; else use "
                    f"Stacked()"
                )
        sizes = [info.get("num_data") for info in infos]
        if len(set(sizes)) > 1 or sizes[0] is None:
            raise ValueError(
                f"the members were fitted to {sizes} examples; evidences can be compared on the same data "
                f"alone: fit all to the same, or use Stacked()"
            )
        evidence = np.array([info[_EVIDENCE] for info in infos], np.float64)
        weights = np.exp(evidence - evidence.max())
        return [float(weight) for weight in weights / weights.sum()]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def stacked(log_densities: Array) -> Array:
    """Weights ``(M,)`` on the simplex that maximise ``mean_i log sum_m w_m exp(log_densities[m, i])``.

    By Newton's method on ``-sum_i log(p_i w) - t sum_m log w_m + (N + M t) sum_m w_m``, ``t`` falling to 0.
    At a minimum along the ray of ``w``, ``-(N + M t) + (N + M t) sum_m w_m = 0``: the weights sum to 1. It
    ends when ``max_m mean_i p_mi / (p_i w) - 1``, which bounds how far the objective lies below its maximum,
    is below 1e-9 nats.

    Args:
        log_densities: ``(M, N)``, in nats; ``-inf`` for what a member rules out.

    Raises:
        ValueError: a row that every member rules out, or NaN.

    Example:
        >>> stacked(np.log([[0.9, 0.9, 0.1], [0.1, 0.1, 0.9]])).round(6)
        array([0.708333, 0.291667])
    """
    best = log_densities.max(0)
    wrong = np.flatnonzero(~np.isfinite(best))
    if wrong.size:
        raise ValueError(
            f"the log density of validation row {wrong[0]} is {best[wrong[0]]:g} for every member, so no "
            f"weights are better than others; look at this row, or use Equal()"
        )
    p = np.exp(log_densities - best).T  # (N, M)
    rows, members = p.shape
    w = np.full(members, 1 / members)
    for barrier in rows / members * np.logspace(0, -12, 25):
        w = _newton(p, w, barrier)
        kept = np.where(w > _NONE, w, 0.0)
        kept /= kept.sum()
        with np.errstate(divide="ignore"):
            gap = (p / (p @ kept)[:, None]).mean(0).max() - 1
        if gap < _GAP:
            return kept
    return w / w.sum()


def _newton(p: Array, w: Array, barrier: float) -> Array:
    """The minimum for one barrier, from ``w``."""
    rows, members = p.shape
    total = rows + members * barrier

    def value(at: Array) -> float:
        return float(-np.log(p @ at).sum() - barrier * np.log(at).sum() + total * at.sum())

    for _ in range(100):
        ratio = p / (p @ w)[:, None]
        gradient = -ratio.sum(0) - barrier / w + total
        hessian = ratio.T @ ratio + np.diag(barrier / w**2)
        # in units of w, so that a weight near 0 is no small pivot
        step = w * np.linalg.solve(hessian * np.outer(w, w), -gradient * w)
        decrease = -float(gradient @ step)
        if decrease < 1e-20:
            break
        length = min(1.0, 0.99 / max(1e-300, float((-step / w).max())))
        if decrease > 1e-7:  # below it rounding hides the fall, and full steps converge
            start = value(w)
            while value(w + length * step) > start - 0.25 * length * decrease and length > 1e-10:
                length /= 2
        w = w + length * step
    return w
