"""Effective sample size: against arviz-stats, and against chains whose autocorrelation is known."""

import numpy as np
import pytest
from arviz_stats.base import array_stats

from singularbayes.chains import ess_bulk, ess_by_chain, ess_mean, ess_quantile, ess_std, ess_tail
from singularbayes.chains.effective_size import effective_size


def rows(draws: np.ndarray) -> np.ndarray:
    return np.moveaxis(draws, 2, 0)


@pytest.mark.parametrize(("chains", "draws"), [(1, 4), (1, 5), (2, 6), (2, 7), (1, 100), (4, 301)])
@pytest.mark.parametrize("phi", [-0.9, 0.0, 0.5, 0.995])
def test_effective_sizes_are_those_of_arviz(chains, draws, phi, autoregressive):
    x = np.sinh(autoregressive(chains, draws, phi, 6))
    if draws > 7:
        x[..., 4:] = x[..., 4:].round(1)
    pairs = {
        "bulk": (ess_bulk(x), array_stats.ess(rows(x), method="bulk")),
        "mean": (ess_mean(x), array_stats.ess(rows(x), method="mean")),
        "sd": (ess_std(x), array_stats.ess(rows(x), method="sd")),
        "quantile": (ess_quantile(x, 0.3), array_stats.ess(rows(x), method="quantile", prob=0.3)),
    }
    if draws > 7:  # below, a tail's indicator can be constant: arviz counts all draws, we leave it out
        pairs["tail"] = ess_tail(x), array_stats.ess(rows(x), method="tail", prob=(0.05, 0.95))
    for name, (ours, theirs) in pairs.items():
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, err_msg=name)


def test_effective_sizes_of_a_hard_problem_are_those_of_arviz(problem):
    np.testing.assert_allclose(ess_bulk(problem), array_stats.ess(rows(problem)), rtol=1e-10)
    tails = array_stats.ess(rows(problem), method="tail", prob=(0.05, 0.95))
    np.testing.assert_allclose(ess_tail(problem), tails, rtol=1e-10)


@pytest.mark.parametrize("phi", [-0.4, 0.0, 0.5, 0.9])
def test_effective_size_of_an_autoregression_is_the_known_one(phi, autoregressive):
    """4 standard errors over 40 quantities (false alarm 6e-5 a case) and 2% for the end of Geyer's sum.

    Wrong on purpose: the number of draws, and the sum of autocorrelations counted once in place of twice.
    """
    found = ess_mean(autoregressive(4, 2500, phi, 40)) / 10_000
    known = (1 - phi) / (1 + phi)
    error = 4 * found.std(ddof=1) / 40**0.5 + 0.02 * known
    assert abs(found.mean() - known) < error
    once = 1 / (1 + phi / (1 - phi))
    assert phi == 0 or (abs(1 - known) > error and abs(once - known) > error)


def test_bulk_does_not_depend_on_the_scale_that_a_quantity_is_written_in(autoregressive):
    """Wrong on purpose: without ranks, heavy tails give another number of effective draws."""
    x = autoregressive(4, 1000, 0.9, 10)
    heavy = np.sinh(4 * x)
    np.testing.assert_allclose(ess_bulk(heavy), ess_bulk(x), rtol=1e-12)
    unranked = ess_mean(heavy)
    assert (unranked > 1.5 * ess_bulk(heavy)).all()


def test_tails_that_are_visited_rarely_have_few_effective_draws(autoregressive):
    """A width that wanders slowly: the bulk's signs are independent, the tails come in bursts."""
    width = np.exp(autoregressive(4, 1000, 0.99))
    x = width * np.random.default_rng(1).standard_normal(width.shape)
    assert ess_bulk(x)[0] > 2000
    assert ess_tail(x)[0] < 500


def test_chains_that_stand_apart_have_few_effective_draws_however_quick_each_is():
    x = np.random.default_rng(0).standard_normal((4, 1000, 1)) + 10 * np.arange(4)[:, None, None]
    assert ess_bulk(x)[0] < 10
    alone = ess_by_chain(x)
    assert alone.shape == (4, 1)
    assert 3200 < alone.sum() < 4800
    np.testing.assert_array_equal(alone[2], ess_bulk(x[2:3]))


def test_constant_and_broken_quantities_are_nan():
    """Trap 39: arviz counts a constant as all draws effective."""
    x = np.random.default_rng(0).standard_normal((4, 100, 3))
    x[..., 1] = 1e-20
    x[1, 3, 2] = np.inf
    for measure in (ess_bulk, ess_tail, ess_mean, ess_std):
        assert np.isnan(measure(x)).tolist() == [False, True, True]
    assert np.isnan(ess_bulk(x[:, :3])).all()
    tiny = 1e-20 * np.random.default_rng(0).standard_normal((4, 100, 1))  # arviz: constant below 1e-15
    np.testing.assert_allclose(ess_mean(tiny), ess_mean(1e20 * tiny), rtol=1e-9)


def test_a_tail_at_a_bound_does_not_count():
    """A tenth of the draws is the largest value: nothing lies beyond its 95% quantile."""
    x = np.minimum(np.random.default_rng(0).standard_normal((4, 1000, 1)), 1.28)
    np.testing.assert_array_equal(ess_tail(x), ess_quantile(x, 0.05))
    assert np.isnan(ess_quantile(x, 0.95)).all()


def test_draws_that_alternate_count_for_more_but_not_without_end():
    x = np.tile([1.0, -1.0], 500)[None, :, None] * np.ones((4, 1, 1))
    x += 1e-3 * np.random.default_rng(0).standard_normal(x.shape)
    assert 2 * 4000 < ess_bulk(x)[0] <= 4000 * np.log10(4000)


def test_a_probability_outside_is_named():
    with pytest.raises(ValueError, match=r"strictly between 0 and 1, got 1\.0"):
        ess_quantile(np.zeros((2, 10)), 1.0)


def test_one_draw_stands_for_itself_without_splitting():
    """The pure function takes chains as they are, for callers that have split them."""
    x = np.random.default_rng(0).standard_normal((3, 2, 50))
    expected = array_stats.ess(x, method="identity")
    np.testing.assert_allclose(effective_size(x), expected, rtol=1e-10)
