"""Samplers in units of one's own: a unit mass there is the mass 1 / s^2 here."""

from dataclasses import dataclass

import pytest
import torch

from singularbayes.sampling.adaptation import Adaptation
from singularbayes.sampling.hmc import HamiltonianSampler
from singularbayes.sampling.mass import DiagonalMetric, UnitMass
from singularbayes.sampling.run import run
from singularbayes.sampling.scaled import ScaledSampler, ScaledTarget
from singularbayes.sampling.step_size import FixedStep
from singularbayes.sampling.target import AutogradTarget

DOUBLE = torch.float64
SCALE = torch.tensor([0.01, 1.0, 30.0], dtype=DOUBLE)
ROOT = torch.tensor([[90.0, 0.0, 0.0], [0.5, 0.8, 0.0], [-0.01, 0.005, 0.04]], dtype=DOUBLE)
TARGET = AutogradTarget(lambda q: -0.5 * (q @ ROOT).square().sum(1) - q[:, 1].pow(4), 3)


@dataclass(frozen=True)
class KnownMass(UnitMass):
    """``M = 1 / s^2``."""

    def start(self, point):
        return DiagonalMetric(SCALE.square().expand_as(point.position).contiguous())


def sampled(sampler):
    start = torch.tensor([[0.0, 0.5, 3.0], [0.005, -0.3, 20.0]], dtype=DOUBLE)
    return run(
        sampler,
        TARGET,
        start,
        warm_up=5,
        draws=40,
        thin=1,
        seed=3,
        checkpoint=None,
        progress=False,
        label="HMC",
    )


def kernel(mass) -> HamiltonianSampler:
    return HamiltonianSampler(adaptation=Adaptation(step_size=FixedStep(size=0.4), mass=mass))


def test_a_unit_mass_in_units_of_s_is_the_mass_of_their_inverse_squares():
    """The same random numbers, the same trajectories, up to rounding."""
    one, two = sampled(ScaledSampler(kernel(UnitMass()), SCALE)), sampled(kernel(KnownMass()))
    torch.testing.assert_close(one.draws, two.draws, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(one.log_density, two.log_density, rtol=1e-9, atol=1e-9)
    assert 0.3 < float(one.acceptance.mean()) < 1
    torch.testing.assert_close(one.facts["inverse_mass"], two.facts["inverse_mass"])
    assert torch.equal(one.facts["step_size"], two.facts["step_size"])


def test_the_gradient_is_that_of_the_scaled_density():
    z = torch.tensor([[0.3, -2.0, 0.1]], dtype=DOUBLE, requires_grad=True)
    value, gradient = ScaledTarget(TARGET, SCALE)(z)
    inside = TARGET.log_density(z * SCALE)
    assert torch.equal(value, inside.detach())
    torch.testing.assert_close(gradient, torch.autograd.grad(inside.sum(), z)[0])


def test_points_are_those_of_the_target_itself():
    sampler, q = ScaledSampler(kernel(UnitMass()), SCALE), torch.tensor([[0.01, 0.5, 3.0]], dtype=DOUBLE)
    point = sampler.point(sampler.start(TARGET, q, torch.Generator()))
    value, gradient = TARGET(q)
    torch.testing.assert_close(point.position, q)
    torch.testing.assert_close(point.log_density, value)
    torch.testing.assert_close(point.gradient, gradient)


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan")])
def test_scales_that_are_not_positive_are_refused(wrong):
    with pytest.raises(ValueError, match="scales must be positive"):
        ScaledSampler(kernel(UnitMass()), torch.tensor([1.0, wrong]))


def test_scales_of_another_dimension_are_refused():
    with pytest.raises(ValueError, match="got 2 scales for a target of dimension 3"):
        ScaledSampler(kernel(UnitMass()), torch.ones(2)).start(TARGET, torch.zeros(1, 3), torch.Generator())
