"""Targets whose expectations are known: eleven posteriors of posteriordb, and correlated Gaussians.

The densities are written from the formulas in the data folder's README; they use torch and nothing of
singularbayes, so that a fault of the library cannot hide in its own yardstick. The benchmark script and the
tests both read them.

References:
    Magnusson et al., posteriordb (2024).
"""

from collections.abc import Callable
from pathlib import Path

from . import eight_schools, gaussian_process, lotka_volterra, regression
from .comparison import BOUND, Comparison, Expectations, compare, false_alarm
from .gaussian import CorrelatedGaussian, correlated_gaussian
from .posterior import ReferencePosterior, expectations, reference_draws

__all__ = [
    "BOUND",
    "POSTERIORS",
    "Comparison",
    "CorrelatedGaussian",
    "Expectations",
    "ReferencePosterior",
    "compare",
    "correlated_gaussian",
    "expectations",
    "false_alarm",
    "reference_draws",
]

POSTERIORS: dict[str, Callable[[Path], ReferencePosterior]] = {
    "eight_schools-eight_schools_noncentered": eight_schools.eight_schools,
    "arK-arK": regression.autoregression,
    "earnings-earn_height": lambda folder: regression.earnings(folder, log=False),
    "earnings-logearn_height": lambda folder: regression.earnings(folder, log=True),
    "kidiq-kidscore_momhsiq": lambda folder: regression.kidscore(folder, interaction=False),
    "kidiq-kidscore_interaction": lambda folder: regression.kidscore(folder, interaction=True),
    "sblrc-blr": lambda folder: regression.synthetic(folder, correlated=True),
    "sblri-blr": lambda folder: regression.synthetic(folder, correlated=False),
    "gp_pois_regr-gp_regr": gaussian_process.regression,
    "gp_pois_regr-gp_pois_regr": gaussian_process.counts,
    "hudson_lynx_hare-lotka_volterra": lotka_volterra.lotka_volterra,
}
"""How each is made from posteriordb's folder."""
