"""The check that samplers must pass, on independent draws: right ones pass it, wrong ones do not."""

import dataclasses

import numpy as np
import pytest
import torch
from reference_posteriors import compare, correlated_gaussian, false_alarm


def source(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("dimension", [2, 20])
def test_exact_draws_agree(dimension: int) -> None:
    """4 x 22 comparisons in all: one exceeds 4 standard errors by chance in .6% of worlds."""
    target = correlated_gaussian(dimension)
    found = compare(target.values(target.exact(8, 500, source())), target.expectations())
    assert found.count == 4 * dimension
    assert found.agrees
    assert found.ess.min() > 2000
    assert found.r_hat.max() < 1.02


@pytest.mark.parametrize("dimension", [2, 20, 200])
def test_the_gaussian_is_the_one_that_is_documented(dimension: int) -> None:
    target = correlated_gaussian(dimension)
    assert np.linalg.cond(target.covariance.numpy()) == pytest.approx(1e3, rel=1e-6)
    x = target.exact(1, 3, source())[0]
    known = torch.distributions.MultivariateNormal(target.mean, target.covariance).log_prob(x)
    own = target.log_density(x)
    torch.testing.assert_close(own - own[0], known - known[0])
    scale = target.covariance.diagonal().rsqrt()
    correlation = (scale[:, None] * target.covariance * scale).fill_diagonal_(0)
    assert correlation.abs().max() > 0.4  # a diagonal mass cannot undo it


def test_a_shifted_mean_is_found() -> None:
    target = correlated_gaussian(20)
    draws = target.exact(8, 500, source()) + 0.1 * target.covariance.diagonal().sqrt()
    assert compare(target.values(draws), target.expectations()).worst_mean > 4


def test_a_wrong_scale_is_found() -> None:
    target = correlated_gaussian(20)
    draws = target.mean + 1.1 * (target.exact(8, 500, source()) - target.mean)
    found = compare(target.values(draws), target.expectations())
    assert found.worst_square > 4
    assert found.worst_mean < 4


def test_lost_correlation_is_found_along_the_eigenvectors_alone() -> None:
    """Right in every coordinate, independent: only the deviations along the axes tell."""
    target = correlated_gaussian(20)
    diagonal = dataclasses.replace(
        target, axes=torch.eye(20).double(), variances=target.covariance.diagonal()
    )
    found = compare(target.values(diagonal.exact(8, 500, source())), target.expectations())
    assert np.abs(found.square[:20]).max() < 4
    assert np.abs(found.square[20:]).max() > 4


def test_chains_that_never_move_do_not_agree() -> None:
    target = correlated_gaussian(2)
    still = target.exact(8, 1, source()).expand(-1, 500, -1)
    with np.errstate(all="ignore"):
        assert not compare(target.values(still), target.expectations()).agrees


def test_chains_in_places_of_their_own_do_not_agree() -> None:
    """Their standard errors are wide, so that z alone would pass them."""
    target = correlated_gaussian(2)
    draws = target.exact(8, 500, source())
    apart = draws - draws.mean(1, keepdim=True) + target.exact(8, 1, source(1))
    found = compare(target.values(apart), target.expectations())
    assert found.worst_mean < 4
    assert not found.agrees


def test_false_alarms_add_up() -> None:
    assert false_alarm([10, 20]) == false_alarm(30)
    assert false_alarm(1000) == pytest.approx(0.0614, rel=2e-3)
