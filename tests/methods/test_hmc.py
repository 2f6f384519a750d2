"""Settings of HMC: every one is checked, and reaches the kernel."""

import math

import pytest

import singularbayes as sb
from singularbayes.sampling.mass import UnitMass
from singularbayes.sampling.step_size import DualAveraging, FixedStep


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"draws": 0}, "draws must be a whole number of at least 1, got 0"),
        ({"chains": 0}, "chains must be a whole number"),
        ({"thin": 0}, "thin must be a whole number"),
        ({"group": 0}, "group must be a whole number"),
        ({"warm_up": -1}, "warm_up must be a whole number of at least 0, got -1"),
        ({"warm_up": 0}, "give warm_up of at least 1, or a step_size"),
        ({"step_size": 0.0}, "step_size must be positive and finite, got 0"),
        ({"step_size": math.nan}, "step_size must be positive"),
        ({"trajectory": 0.0}, "trajectory must be positive and finite, got 0"),
        ({"trajectory": math.inf}, "trajectory must be positive and finite, got inf"),
        ({"jitter": 1.0}, r"jitter must lie in \[0, 1\), got 1"),
        ({"jitter": -0.1}, r"jitter must lie in \[0, 1\)"),
        ({"max_steps": 0}, "max_steps must be a whole number"),
        ({"target_acceptance": 1.0}, "target acceptance must be a number between 0 and 1, got 1"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(ValueError, match=message):
        sb.HMC(**settings)


def test_settings_reach_the_kernel():
    kernel = sb.HMC(trajectory=2.0, jitter=0.1, max_steps=7, target_acceptance=0.9, mass=UnitMass()).sampler()
    assert (kernel.trajectory, kernel.jitter, kernel.max_steps) == (2.0, 0.1, 7)
    assert kernel.adaptation.step_size == DualAveraging(target=0.9)
    assert kernel.adaptation.mass == UnitMass()
    assert sb.HMC(step_size=0.3).sampler().adaptation.step_size == FixedStep(size=0.3)


def test_defaults_are_the_papers():
    method, step_size = sb.HMC(), DualAveraging()
    assert (method.trajectory, method.target_acceptance) == (math.pi / 2, 0.8)
    assert (step_size.gamma, step_size.t0, step_size.kappa) == (0.05, 10, 0.75)
