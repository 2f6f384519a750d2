"""How MCLMC finds its step size ``eps`` and its length ``L`` in the warm-up, each chain by itself.

    step size:  xi = dE^2 / (d v) + 1e-8,    w = exp(-(ln xi / 9)^2 / 2)
                X <- 99/101 X + w xi / eps^6,    T <- 99/101 T + w,    eps = (X / T)^(-1/6)
    length:     L = sqrt(sum_i Var x_i), then in the end L = 0.4 eps mean_i(n / ess_i)

``E dE^2`` grows as ``eps^6``; ``v`` falls linearly to its last value from five times that. A step that failed
says nothing of ``xi``: it only caps ``eps`` at 0.8 of what was tried. Before the sums begin, ``eps`` triples
as long as ``xi`` is below a thousandth and nothing has failed: from a first step far too small the 1e-8 would
stand for the energy, and the sums would need a thousand steps to forget it. Phases: 80% step size alone, 10%
with the variances (weighted by ``eps``) beside it, 10% for the effective draws ``ess``. With diagonal
preconditioning 50%, 20%, then 20% for the step size in the new coordinates, and 10%.

The last value of ``v`` that the authors use for networks, 0.1, is a *large* step: on round Gaussians the
variances come out 6 to 8% too small, those of narrow directions of others much more so. For accuracy
``v <= 1e-5``.

References:
    Robnik, De Luca, Silverstein and Seljak 2023, arXiv 2212.08549, section 4.
    Sommer et al. 2025, arXiv 2502.06335, appendix (0.5 to 0.1, ``L`` and ``eps`` at the start, 99/101).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .autocorrelation import effective_draws

__all__ = ["Phases", "Tuning"]

_KEPT, _WIDTH, _FLOOR, _CAP = 99 / 101, 9.0, 1e-8, 0.8
_COORDINATES = 1000  # that the effective draws are looked at in
_LENGTH_FACTOR = 0.4
_FEWEST_DRAWS = 4
_TINY, _GROWTH = 1e-3, 3.0


@dataclass(frozen=True)
class Phases:
    """First steps of the phases.

    Args:
        variances: of the estimate of the variances.
        again: of the step size in new coordinates (without preconditioning a phase of no steps).
        length: of the estimate of ``L`` from effective draws.
    """

    variances: int
    again: int
    length: int

    @classmethod
    def of(cls, steps: int, *, length: bool, diagonal: bool) -> Phases:
        """The phases of a warm-up.

        Args:
            steps: of the warm-up.
            length: whether ``L`` is tuned.
            diagonal: whether the coordinates are scaled.
        """
        last = steps // 10 if length and steps // 10 >= _FEWEST_DRAWS else 0
        again = steps // 5 if diagonal else 0
        variances = steps // 5 if diagonal else steps // 10 if length else 0
        return cls(steps - last - again - variances, steps - last - again, steps - last)


@dataclass(frozen=True, eq=False)
class Tuning:
    """What the warm-up gathers.

    Args:
        weighted: ``X``, float64.
        weight: ``T``, float64.
        cap: of the step size.
        total: weight of the positions in the moments.
        mean: of the positions.
        squares: weighted squares about the mean.
        trail: positions of the last phase, some coordinates of them. Later steps write into rows that this
            state does not count yet.
    """

    weighted: Float[Tensor, " C"]
    weight: Float[Tensor, " C"]
    cap: Float[Tensor, " C"]
    total: Float[Tensor, " C"]
    mean: Float[Tensor, "C d"]
    squares: Float[Tensor, "C d"]
    trail: Float[Tensor, "C n k"]

    @classmethod
    def empty(cls, position: Float[Tensor, "C d"]) -> Tuning:
        """Before the first step."""
        zero = position.new_zeros(len(position))
        wide = zero.double()
        nowhere = torch.zeros_like(position)
        return cls(wide, wide, torch.full_like(zero, torch.inf), zero, nowhere, nowhere,
                   position.new_zeros(len(position), 0, 0))  # fmt: skip

    def fresh(self) -> Tuning:
        """The same, having seen no energy yet."""
        zero = torch.zeros_like(self.weight)
        return replace(self, weighted=zero, weight=zero, cap=torch.full_like(self.cap, torch.inf))

    def with_energy(
        self,
        error: Float[Tensor, " C"],
        divergent: Bool[Tensor, " C"],
        tried: Float[Tensor, " C"],
        variance: float,
        dimension: int,
    ) -> Tuning:
        """After a step of size ``tried`` with energy error ``error``, for a target variance ``variance``."""
        xi = error.double().square() / (dimension * variance) + _FLOOR
        w = torch.exp(-0.5 * (xi.log() / _WIDTH).square())
        growing = (self.weight == 0) & (xi < _TINY) & self.cap.isinf()
        counts = ~divergent & ~growing
        return replace(
            self,
            weighted=torch.where(
                counts, _KEPT * self.weighted + w * xi * tried.double() ** -6, self.weighted
            ),
            weight=torch.where(counts, _KEPT * self.weight + w, self.weight),
            cap=torch.where(divergent, (_CAP * tried).minimum(self.cap), self.cap),
        )

    def step_size(self, tried: Float[Tensor, " C"]) -> Float[Tensor, " C"]:
        """The next step size."""
        best = (self.weighted / self.weight) ** (-1 / 6)
        grown = _GROWTH * tried.double()
        return torch.where(self.weight > 0, best, grown).to(tried.dtype).minimum(self.cap)

    def with_position(self, position: Float[Tensor, "C d"], weight: Float[Tensor, " C"]) -> Tuning:
        """One more position in the moments."""
        total = self.total + weight
        share = torch.where(total > 0, weight / total, 0.0).unsqueeze(1)
        away = position - self.mean
        mean = self.mean + share * away
        squares = self.squares + weight.unsqueeze(1) * away * (position - mean)
        return replace(self, total=total, mean=mean, squares=squares)

    def variance(self) -> Float[Tensor, "C d"]:
        """Weighted variances of the positions; nan without a position."""
        return self.squares / self.total.unsqueeze(1)

    def with_trail(self, position: Float[Tensor, "C d"], place: int, places: int) -> Tuning:
        """One more position of the last phase."""
        chosen = _coordinates(position)
        trail = position.new_zeros(*chosen.shape[:1], places, chosen.shape[1]) if place == 0 else self.trail
        trail[:, place] = chosen
        return replace(self, trail=trail)

    def length(
        self, step_size: Float[Tensor, " C"], present: Float[Tensor, " C"], scale: Float[Tensor, "C d"]
    ) -> Float[Tensor, " C"]:
        """``L`` from the effective draws of the trail; the present one where they cannot be told."""
        if self.trail.shape[1] < _FEWEST_DRAWS:
            return present
        ratio = self.trail.shape[1] / effective_draws(self.trail)
        length = _LENGTH_FACTOR * step_size * ratio.nanmean(1).to(step_size.dtype)
        return torch.where(length > 0, length, present)


def _coordinates(position: Float[Tensor, "C d"]) -> Float[Tensor, "C k"]:
    """At most so many coordinates, spread evenly."""
    d = position.shape[1]
    return position if d <= _COORDINATES else position[:, torch.linspace(0, d - 1, _COORDINATES).long()]
