"""Settings of NUTS; its fit of networks is tested beside that of the other samplers."""

import pytest

from singularbayes import NUTS
from singularbayes.sampling.mass import UnitMass


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_depth": 0}, "max_depth"),
        ({"max_depth": 2.5}, "max_depth"),
        ({"target_acceptance": 1.0}, "acceptance"),
        ({"step_size": 0.0}, "step_size"),
        ({"draws": 0}, "draws"),
        ({"warm_up": 0}, "warm_up"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(settings, words, unchecked):
    with pytest.raises(ValueError, match=words):
        NUTS(**settings)


def test_the_kernel_has_the_settings():
    sampler = NUTS(max_depth=7, step_size=0.5, mass=UnitMass(), warm_up=0).sampler()
    assert (sampler.max_depth, sampler.adaptation.step_size.size) == (7, 0.5)
    assert sampler.adaptation.mass == UnitMass()
    assert NUTS(target_acceptance=0.9).sampler().adaptation.step_size.target == 0.9
