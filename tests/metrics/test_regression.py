"""Regression metrics: closed intervals, quantile calibration, and CRPS against numerical integration."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from singularbayes import metrics


def _crps_by_integration(means: np.ndarray, variances: np.ndarray, y: float) -> float:
    def gap(z: float) -> float:
        return (norm.cdf(z, means, np.sqrt(variances)).mean() - (y <= z)) ** 2

    return quad(gap, -30, y, limit=200)[0] + quad(gap, y, 30, limit=200)[0]


def test_crps_of_a_mixture_equals_the_integral():
    rng = np.random.default_rng(0)
    means, variances, y = rng.normal(size=(5, 3)) * 2, rng.uniform(0.1, 2, size=(5, 3)), rng.normal(size=3)
    expected = np.mean([_crps_by_integration(means[:, i], variances[:, i], y[i]) for i in range(3)])
    assert metrics.crps(means, variances, y) == pytest.approx(expected, abs=1e-6)


def test_crps_of_one_gaussian_equals_the_closed_form():
    z = (1.3 - 0.5) / 2.0
    expected = 2.0 * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / np.sqrt(np.pi))
    assert metrics.crps([0.5], [4.0], [1.3]) == pytest.approx(expected, abs=1e-12)


def test_crps_without_spread_is_the_absolute_error():
    assert metrics.crps([1.0, 2.0], [0.0, 0.0], [1.5, 0.0]) == pytest.approx(1.25, abs=1e-12)


def test_crps_of_equal_draws_is_that_of_one_draw_in_any_block():
    rng = np.random.default_rng(1)
    means, variances, y = rng.normal(size=5000), rng.uniform(0.1, 1, size=5000), rng.normal(size=5000)
    one = metrics.crps(means, variances, y)
    assert metrics.crps(np.tile(means, (64, 1)), np.tile(variances, (64, 1)), y) == pytest.approx(
        one, abs=1e-12
    )


def test_coverage_is_a_fraction_over_closed_intervals():
    low, high = np.zeros(4), np.ones(4)
    assert metrics.interval_coverage(low, high, [0.0, 1.0, 0.5, 1.0000001]) == 0.75
    assert metrics.interval_width(low, [1.0, 1.0, 1.0, 3.0]) == 1.5


def test_an_interval_that_ends_before_it_starts_is_an_error():
    with pytest.raises(ValueError, match="row 1 ends below its start"):
        metrics.interval_coverage([0.0, 2.0], [1.0, 1.0], [0.5, 0.5])


def test_column_against_vector_has_zero_error_and_never_broadcasts():
    y = np.arange(5.0)
    assert metrics.root_mean_squared_error(y[:, None], y) == 0.0
    assert metrics.mean_absolute_error(y, y[:, None]) == 0.0
    assert metrics.interval_coverage(y[:, None], y[:, None], y) == 1.0
    assert metrics.crps(y[:, None], np.zeros((5, 1)), y) == 0.0
    with pytest.raises(ValueError, match="shapes differ"):
        metrics.root_mean_squared_error(np.zeros((5, 2)), y)
    with pytest.raises(ValueError, match="do not fit"):
        metrics.crps(np.zeros((5, 5, 2)), np.ones((5, 5, 2)), y)


def test_errors_have_the_units_of_y():
    assert metrics.root_mean_squared_error([0.0, 0.0], [3.0, 4.0]) == pytest.approx(np.sqrt(12.5))
    assert metrics.mean_absolute_error([0.0, 0.0], [3.0, 4.0]) == 3.5


def test_calibrated_quantiles_have_no_error_and_shifted_ones_have():
    even = (np.arange(1000) + 0.5) / 1000
    assert metrics.regression_calibration_error(even) == pytest.approx(0.0, abs=1e-9)
    assert metrics.regression_calibration_error(np.full(10, 0.5)) == pytest.approx(
        np.mean([min(p, 1 - p) if p != 0.5 else 0.5 for p in np.arange(1, 20) / 20]), abs=1e-9
    )
    with pytest.raises(ValueError, match="cdf lies in"):
        metrics.regression_calibration_error([1.2])
