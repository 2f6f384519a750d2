"""Monte Carlo standard errors: as large as estimates really spread over repetitions."""

import numpy as np
import pytest
from arviz_stats.base import array_stats

from singularbayes.chains import mcse_mean, mcse_quantile, mcse_std

REPEATED = 400
FACTOR = 4 / (2 * REPEATED) ** 0.5  # 4 standard errors of a standard deviation over 400: false alarm 6e-5


def rows(draws: np.ndarray) -> np.ndarray:
    return np.moveaxis(draws, 2, 0)


@pytest.mark.parametrize("phi", [-0.5, 0.0, 0.7])
def test_errors_are_the_spread_of_estimates_over_repetitions(phi, autoregressive):
    """Means, standard deviations and a quantile of 400 repetitions; 3% for what the ESS misses."""
    x = autoregressive(2, 1000, phi, REPEATED, seed=1)
    for found, estimates in (
        (mcse_mean(x), x.mean((0, 1))),
        (mcse_std(x), x.std((0, 1))),
        (mcse_quantile(x, 0.1), np.quantile(x, 0.1, axis=(0, 1))),
    ):
        assert found.mean() / estimates.std(ddof=1) == pytest.approx(1, abs=FACTOR + 0.03)


def test_draws_that_alternate_know_the_width_less_well_than_the_mean(autoregressive):
    """HMC's usual case. A peer takes the ESS of the values for the width too: half of the spread."""
    x = autoregressive(2, 1000, -0.5, REPEATED, seed=1)
    spread = x.std((0, 1)).std(ddof=1)
    assert mcse_std(x).mean() > (1 - FACTOR - 0.03) * spread
    assert array_stats.mcse(rows(x), method="sd").mean() < 0.6 * spread


@pytest.mark.parametrize(("chains", "draws"), [(1, 4), (2, 7), (4, 101)])
def test_errors_of_mean_and_quantile_are_those_of_arviz(chains, draws, autoregressive):
    x = np.sinh(autoregressive(chains, draws, 0.5, 5))
    np.testing.assert_allclose(mcse_mean(x), array_stats.mcse(rows(x), method="mean"), rtol=1e-10)
    for probability in (0.05, 0.5, 0.95):
        theirs = array_stats.mcse(rows(x), method="quantile", prob=probability)
        ours = mcse_quantile(x, probability)
        known = ~np.isnan(ours)  # a tail's indicator that is constant has no ESS
        assert known.all() or draws < 101
        np.testing.assert_allclose(ours[known], theirs[known], rtol=1e-10)


def test_errors_have_the_units_of_the_quantity(problem):
    for measure in (mcse_mean, mcse_std, lambda x: mcse_quantile(x, 0.2)):
        np.testing.assert_allclose(measure(1000 * problem), 1000 * measure(problem), rtol=1e-9)


def test_constant_quantities_are_nan():
    x = np.random.default_rng(0).standard_normal((4, 100, 2))
    x[..., 1] = 3.0
    for measure in (mcse_mean, mcse_std, lambda x: mcse_quantile(x, 0.2)):
        assert np.isnan(measure(x)).tolist() == [False, True]
