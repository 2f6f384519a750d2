"""Gaussian moments of activations against dense quadrature in float64."""

import math

import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor

from singularbayes.moments.activations import larger, rectified, through

GRID = torch.linspace(-12, 12, 40_001, dtype=torch.float64)
WEIGHTS = torch.exp(-0.5 * GRID.square()) / torch.exp(-0.5 * GRID.square()).sum()
MEANS = torch.tensor([-3.0, -0.5, 0.0, 0.2, 4.0], dtype=torch.float64).repeat(3)
STDS = torch.tensor([0.05, 1.0, 3.0], dtype=torch.float64).repeat_interleave(5)


def quadrature(function) -> tuple[Tensor, Tensor]:
    values = function(MEANS[:, None] + STDS[:, None] * GRID)
    mean = values @ WEIGHTS
    return mean, (values - mean[:, None]).square() @ WEIGHTS


@pytest.mark.parametrize("slope", [0.0, 0.1, 1.0])
def test_rectified_units_have_their_closed_form(slope):
    found = rectified(MEANS, STDS.square(), slope)
    for mine, true in zip(found, quadrature(lambda t: F.leaky_relu(t, slope)), strict=True):
        assert torch.allclose(mine, true, atol=1e-6)


def test_a_relu_variance_without_the_mean_term_is_wrong():
    """E y^2 = (m^2 + s^2) Phi + m s phi; without ``m s phi`` the variance is off by up to a half."""
    mean, var = rectified(MEANS, STDS.square())
    ratio = MEANS / STDS
    above = torch.special.ndtr(ratio)
    wrong = (MEANS.square() + STDS.square()) * above - mean.square()
    true = quadrature(F.relu)[1]
    assert torch.allclose(var, true, atol=1e-6)
    assert (wrong - true).abs().max() > 0.3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_relu_far_from_zero_or_without_variance_is_finite_and_right(dtype):
    mean = torch.tensor([50.0, -50.0, 0.0, 3.0, -3.0], dtype=dtype)
    var = torch.tensor([1e-4, 1e-4, 0.0, 0.0, 0.0], dtype=dtype)
    found, spread = rectified(mean, var)
    assert torch.allclose(found, torch.tensor([50.0, 0.0, 0.0, 3.0, 0.0], dtype=dtype), atol=1e-6)
    assert torch.allclose(spread, torch.tensor([1e-4, 0.0, 0.0, 0.0, 0.0], dtype=dtype), rtol=1e-3, atol=1e-9)


@pytest.mark.parametrize("function", [torch.tanh, torch.sigmoid, F.gelu, F.silu, F.softplus, F.elu])
def test_smooth_activations_are_right_to_the_stated_error(function):
    (mean, var), (true_mean, true_var) = through(function, MEANS, STDS.square()), quadrature(function)
    small = STDS <= 1
    assert torch.allclose(mean[small], true_mean[small], atol=3e-4)
    assert torch.allclose(var[small], true_var[small], atol=3e-4)
    assert torch.allclose(mean, true_mean, atol=3e-3)
    assert torch.allclose(var, true_var, atol=2e-2)


@pytest.mark.parametrize("correlation", [0.0, 0.6, 1.0])
def test_the_larger_of_two_has_the_moments_of_draws(correlation):
    left = torch.tensor([0.3, -2.0]).double(), torch.tensor([1.0, 4.0]).double()
    right = torch.tensor([0.5, 1.0]).double(), torch.tensor([0.25, 1.0]).double()
    n = 200_000
    noise = torch.from_numpy(stats.norm.rvs(size=(2, n, 1), random_state=0))
    other = correlation * noise[0] + math.sqrt(1 - correlation**2) * noise[1]
    a, b = left[0] + left[1].sqrt() * noise[0], right[0] + right[1].sqrt() * other
    top = torch.maximum(a, b)
    mean, var = larger(left, right, correlation)
    # 4 numbers at 4 standard errors: a false alarm in 1 of 4,000
    assert ((top.mean(0) - mean).abs() < 4 * top.std(0) / math.sqrt(n)).all()
    squares = (top - mean).square()
    assert ((squares.mean(0) - var).abs() < 4 * squares.std(0) / math.sqrt(n)).all()
