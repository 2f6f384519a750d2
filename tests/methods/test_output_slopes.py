"""Closed gradients of the log likelihood in the outputs equal autograd's, with all their constants."""

import pytest
import torch
from torch import Tensor

import singularbayes as sb
from singularbayes.methods.output_slopes import _AutogradSlope, _CategoricalSlope, _GaussianSlope, slope_for

C, B = 3, 6


def reals(*event: int) -> Tensor:
    return 3 * torch.randn(B, *event, dtype=torch.float64)


CLASSES = torch.arange(B) % 4
ALIKE = {"log_noise": torch.full((C, 1), -0.7, dtype=torch.float64)}
OWN = {"log_noise": torch.tensor([[-0.7], [0.4], [-20.0]], dtype=torch.float64)}  # the last is past its bound
CASES = {
    "known noise": (sb.Gaussian(noise=0.05), (1,), reals, {}),
    "known noise, outputs (B,)": (sb.Gaussian(noise=0.05), (), reals, {}),
    "several outputs, tempered": (sb.Gaussian(noise=2.0, temperature=3.0), (4,), lambda: reals(4), {}),
    "one learned noise": (sb.Gaussian(), (1,), reals, ALIKE),
    "learned noise of each chain": (sb.Gaussian(temperature=0.5), (2,), lambda: reals(2), OWN),
    "classes": (sb.Categorical(), (4,), lambda: CLASSES, {}),
    "classes, tempered": (sb.Categorical(temperature=2.5), (4,), lambda: CLASSES, {}),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("weight", [1.0, 0.3])
def test_value_and_slope_are_autograds(name: str, weight: float):
    torch.manual_seed(0)
    likelihood, event, labels, numbers = CASES[name]
    y, outputs = labels(), 2 * torch.randn(C, B, *event, dtype=torch.float64)
    closed = slope_for(likelihood, numbers)
    assert isinstance(closed, _GaussianSlope | _CategoricalSlope)
    given = outputs.clone()
    value, slope = closed(outputs, y, weight)
    right, gradient = _AutogradSlope(likelihood, numbers)(outputs, y, weight)
    assert value.dtype == torch.float64
    torch.testing.assert_close(value, right, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(slope, gradient, rtol=1e-12, atol=1e-12)
    assert torch.equal(outputs, given)


def test_float32_sums_are_in_float64():
    value, slope = slope_for(sb.Gaussian(noise=0.05), {})(torch.ones(C, B, 1), torch.zeros(B), 1.0)
    assert (value.dtype, slope.dtype) == (torch.float64, torch.float32)


def test_other_likelihoods_go_through_autograd():
    class Mine(sb.Gaussian):
        """A likelihood of a user's own may do anything."""

    scaled = sb.Categorical(scale=(1.0, 2.0), bias=(0.0, 0.1))
    for likelihood in (sb.Bernoulli(), sb.HeteroscedasticGaussian(), Mine(noise=1.0), scaled):
        assert isinstance(slope_for(likelihood, {}), _AutogradSlope)
