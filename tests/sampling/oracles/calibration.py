"""Simulation-based calibration: a right sampler makes the rank of the truth uniform.

    w ~ p(w),  D ~ p(D | w),  w_1 .. w_N ~ p(w | D)   =>   #{n: g(w_n, D) < g(w, D)} ~ uniform on 0 .. N

for any ``g``. Every replication has data of its own and is one chain: all of them run in one batch, because
a target may know which row it looks at. Ranks of ``N`` thinned draws are put in equal bins and compared with
the uniform law by Pearson's chi-square.

A network of symmetric modes needs care: a chain that stays in one of them draws weights whose rank is not
uniform though every function is right. Choose ``g`` that the symmetry does not change: predictions, products,
sizes.

References:
    Talts et al. 2018, arXiv 1804.06788. Modrak et al. 2023, arXiv 2211.02383 (let ``g`` see the data: the
    likelihood finds what ranks of parameters alone cannot, such as draws from the prior).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy import stats
from torch import Tensor

import singularbayes as sb
from singularbayes.sampling.sample import ChainMethod

ALPHA = 6.33e-5  # of each statistic: what 4 standard errors are for a normal


@dataclass(frozen=True, kw_only=True, eq=False)
class Simulation:
    """``R`` truths with their data.

    Args:
        truth: ``(R, d)``, drawn from the prior.
        log_density: ``(R, d)`` to ``(R,)``, row r under data set r, up to a constant: what is sampled.
        start: ``(R, d)``, where the chains start.
        statistics: names and functions ``(R, d)`` to ``(R,)``; row r may read data set r.
    """

    truth: Tensor
    log_density: Callable[[Tensor], Tensor]
    start: Tensor
    statistics: dict[str, Callable[[Tensor], Tensor]]


def ranks(simulation: Simulation, draws: Tensor) -> dict[str, np.ndarray]:
    """Rank of the truth among the draws ``(R, N, d)`` by each statistic, ``(R,)`` of 0 to N."""
    found = {}
    for name, statistic in simulation.statistics.items():
        truth = statistic(simulation.truth)
        found[name] = sum((statistic(draw) < truth).long() for draw in draws.unbind(1)).numpy()
    return found


def p_value(found: np.ndarray, draws: int, bins: int = 16) -> float:
    """Chance of ranks at least as uneven as these if they are uniform on 0 to ``draws``."""
    if (draws + 1) % bins:
        raise ValueError(f"{draws + 1} ranks do not fill {bins} equal bins")
    counts = np.bincount(found * bins // (draws + 1), minlength=bins)
    return float(stats.chisquare(counts).pvalue)


def calibration(simulation: Simulation, method: ChainMethod, seed: int = 0) -> dict[str, float]:
    """The p-value of each statistic; ``method`` is anything that ``sb.sample`` takes."""
    samples = sb.sample(simulation.log_density, simulation.start, method, seed=seed, progress=False)
    found = ranks(simulation, samples.draws)
    return {name: p_value(rank, samples.draws.shape[1]) for name, rank in found.items()}


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
