"""Draws against known expectations: deviations in combined Monte Carlo standard errors.

    z = (mean of the draws - reference) / sqrt(MCSE^2 + reference's MCSE^2)

for the mean and the mean square of every parameter. A standard error means something only where the chains
agree, and so draws *agree* with a reference when every |z| is at most 4 and no split R-hat is above 1.05.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from arviz_stats.base import array_stats
from torch import Tensor

BOUND = 4.0
LARGEST_R_HAT = 1.05


@dataclass(frozen=True, kw_only=True, eq=False)
class Expectations:
    """Known means and mean squares of ``p`` numbers, with standard errors that are 0 where exact."""

    names: tuple[str, ...]
    mean: np.ndarray
    mean_error: np.ndarray
    square: np.ndarray
    square_error: np.ndarray


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """Deviations of means and mean squares, R-hat, and the smaller of bulk and tail ESS, each ``(p,)``."""

    names: tuple[str, ...]
    mean: np.ndarray
    square: np.ndarray
    r_hat: np.ndarray
    ess: np.ndarray

    @property
    def count(self) -> int:
        return 2 * len(self.names)

    @property
    def worst_mean(self) -> float:
        return float(np.abs(self.mean).max())

    @property
    def worst_square(self) -> float:
        return float(np.abs(self.square).max())

    @property
    def agrees(self) -> bool:
        """Nan, as of chains that never move, is no agreement."""
        worst = max(self.worst_mean, self.worst_square)
        return worst <= BOUND and bool(self.r_hat.max() <= LARGEST_R_HAT)


def compare(values: Tensor, known: Expectations) -> Comparison:
    """Draws ``(C, N, p)``, chains and steps apart, against expectations of the same ``p`` numbers."""
    draws = values.numpy()
    z = {}
    for kind, drawn, expected, error in (
        ("mean", draws, known.mean, known.mean_error),
        ("square", draws**2, known.square, known.square_error),
    ):
        own = statistic("mcse", drawn, "mean")
        z[kind] = (drawn.mean((0, 1)) - expected) / np.sqrt(own**2 + error**2)
    tail = np.atleast_1d(array_stats.ess(draws, chain_axis=0, draw_axis=1, method="tail", prob=(0.05, 0.95)))
    ess = np.minimum(statistic("ess", draws, "bulk"), tail)
    return Comparison(names=known.names, **z, r_hat=statistic("rhat", draws, "rank"), ess=ess)


def statistic(name: str, draws: np.ndarray, method: str) -> np.ndarray:
    """A statistic of arviz-stats for each of the ``p`` numbers in ``(C, N, p)``."""
    return np.atleast_1d(getattr(array_stats, name)(draws, chain_axis=0, draw_axis=1, method=method))


def false_alarm(comparisons: int | Sequence[int], bound: float = BOUND) -> float:
    """Chance that a right sampler exceeds ``bound`` standard errors anywhere; independent normals assumed.

    Dependence only lowers it below ``comparisons`` times the chance of one.
    """
    total = comparisons if isinstance(comparisons, int) else sum(comparisons)
    return -math.expm1(total * math.log1p(-math.erfc(bound / math.sqrt(2))))
