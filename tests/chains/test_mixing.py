"""R-hat: against a slow oracle and arviz-stats, and against what it is there to catch."""

import numpy as np
import pytest
import torch
from arviz_stats.base import array_stats
from scipy.stats import norm, rankdata

from singularbayes.chains import reading, rhat, rhat_by_chain
from singularbayes.chains.mixing import potential_scale_reduction
from singularbayes.chains.ranks import halves, normal_scores, ranks


def plain_rhat(chains: list[list[float]]) -> float:
    """Gelman and Rubin's, from the definitions."""
    length = len(chains[0])
    means = [sum(chain) / length for chain in chains]
    grand = sum(means) / len(means)
    between = length / (len(means) - 1) * sum((mean - grand) ** 2 for mean in means)
    within = sum(
        sum((value - mean) ** 2 for value in chain) / (length - 1)
        for chain, mean in zip(chains, means, strict=True)
    ) / len(chains)
    return ((within * (length - 1) / length + between / length) / within) ** 0.5


def slow_rhat(draws: np.ndarray) -> float:
    """Rank-normalised split R-hat of one quantity ``(C, N)``, step by step."""
    half = draws.shape[1] // 2
    split = np.array([part for chain in draws for part in (chain[:half], chain[-half:])])
    found = []
    for values in (split, abs(split - np.median(split))):
        rank = rankdata(values.ravel()).reshape(values.shape)
        scores = norm.ppf((rank - 3 / 8) / (values.size + 1 / 4))
        found.append(plain_rhat(scores.tolist()))
    return max(found)


def test_rhat_is_that_of_the_definitions(problem):
    slow = [slow_rhat(problem[..., q]) for q in range(6)]
    np.testing.assert_allclose(rhat(problem), slow, rtol=1e-12)


@pytest.mark.parametrize(("chains", "draws"), [(2, 4), (2, 5), (3, 6), (4, 101)])
def test_rhat_is_that_of_arviz(chains, draws, autoregressive):
    x = autoregressive(chains, draws, 0.5, 6) ** 3
    x[..., 3:] = x[..., 3:].round(1)
    np.testing.assert_allclose(rhat(x), array_stats.rhat(np.moveaxis(x, 2, 0)), rtol=1e-12)


def test_ranks_share_ties(problem):
    rows = np.moveaxis(problem, 2, 0)
    expected = rankdata(rows.reshape(6, -1), axis=1)
    assert (expected % 1 > 0).any(), "there are ties"
    np.testing.assert_array_equal(ranks(rows).reshape(6, -1), expected)


def test_drift_of_all_chains_alike_is_caught_by_the_halves_alone():
    """Wrong on purpose: unsplit, all chains have the same mean and R-hat is 1."""
    x = np.random.default_rng(0).standard_normal((4, 1000, 1)) + np.linspace(-1, 1, 1000)[:, None]
    assert rhat(x)[0] > 1.1
    assert potential_scale_reduction(np.moveaxis(x, 2, 0))[0] < 1.01


def test_heavy_tails_do_not_hide_a_chain_that_stands_apart():
    """Wrong on purpose: without ranks the variance of a Cauchy swallows the shift."""
    x = np.random.default_rng(0).standard_cauchy((4, 1000, 1))
    x[0] += 3
    assert rhat(x)[0] > 1.1
    assert potential_scale_reduction(np.moveaxis(x, 2, 0))[0] < 1.02


def test_different_widths_about_one_centre_are_caught_by_folding():
    """Wrong on purpose: unfolded ranks see equal means."""
    x = np.random.default_rng(0).standard_normal((4, 1000, 1))
    x[0] *= 4
    assert rhat(x)[0] > 1.1
    assert potential_scale_reduction(normal_scores(halves(np.moveaxis(x, 2, 0))))[0] < 1.01


def test_each_chain_alone_may_have_settled_while_the_chains_disagree():
    x = np.random.default_rng(0).standard_normal((3, 1000, 2)) + 5 * np.arange(3)[:, None, None]
    x[2, :, 1] += np.linspace(-2, 2, 1000)
    alone = rhat_by_chain(x)
    assert alone.shape == (3, 2)
    assert rhat(x).min() > 2
    assert alone[:2].max() < 1.01
    assert alone[2, 1] > 1.2
    np.testing.assert_allclose(alone[1, 0], slow_rhat(x[1:2, :, 0]), rtol=1e-12)


def test_one_chain_is_compared_with_itself():
    """Trap 39: a peer divides by the variance of one mean and gives nan, or 1."""
    rng = np.random.default_rng(0)
    drifting = rng.standard_normal((1, 1000, 1)) + np.linspace(-1, 1, 1000)[:, None]
    assert rhat(drifting)[0] > 1.2
    assert rhat(rng.standard_normal((1, 1000, 1)))[0] < 1.01


def test_constant_chains_are_nan():
    """Trap 39: a peer reports a constant as perfectly mixed (R-hat 1, ESS the number of draws)."""
    x = np.random.default_rng(0).standard_normal((4, 100, 3))
    x[..., 1] = 0.1  # no float: its mean is not exactly itself
    x[0, 0, 2] = np.nan
    assert np.isnan(rhat(x)).tolist() == [False, True, True]


def test_chains_that_stand_still_apart_never_mix():
    x = np.arange(4.0)[:, None, None] + np.zeros((4, 100, 1))
    assert rhat(x)[0] == np.inf


def test_too_few_draws_are_nan():
    assert np.isnan(rhat(np.random.default_rng(0).standard_normal((4, 3, 2)))).all()
    assert np.isfinite(rhat(np.random.default_rng(0).standard_normal((4, 4, 2)))).all()


def test_tensors_and_any_shape_of_a_draw(problem):
    x = torch.from_numpy(problem).requires_grad_()
    assert rhat(x.reshape(5, 41, 2, 3)).shape == (2, 3)
    np.testing.assert_array_equal(rhat(x.reshape(5, 41, 2, 3)).ravel(), rhat(x))
    assert rhat(x[..., 0]).shape == ()
    coarse = x.bfloat16()  # which numpy does not know
    np.testing.assert_array_equal(rhat(coarse), rhat(coarse.float()))


def test_many_quantities_in_chunks_are_the_same(problem, monkeypatch):
    whole = rhat(problem), rhat_by_chain(problem)
    monkeypatch.setattr(reading, "_CHUNK", 5 * 41 * 4)
    np.testing.assert_array_equal(rhat(problem), whole[0])
    np.testing.assert_array_equal(rhat_by_chain(problem), whole[1])


def test_draws_of_a_wrong_shape_or_kind_are_named():
    with pytest.raises(ValueError, match=r"shape \(10,\).*chains, draws"):
        rhat(np.zeros(10))
    with pytest.raises(ValueError, match=r"shape \(0, 10, 2\)"):
        rhat(np.zeros((0, 10, 2)))
    with pytest.raises(TypeError, match="draws must be numbers"):
        rhat([["a", "b"]])
