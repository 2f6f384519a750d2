"""Step sizes that change: their formulas, and settings that cannot be."""

import math

import pytest

from singularbayes.sampling.step_sequences import Constant, Cyclical, Decaying, StepSizes


def test_they_are_their_formulas():
    assert Constant(0.3)(0) == Constant(0.3)(99) == 0.3
    decaying = Decaying(first=0.2, delay=10, power=0.5)
    assert [decaying(step) for step in (0, 30, 990)] == pytest.approx([0.2, 0.1, 0.02])
    cyclical = Cyclical(largest=0.4, period=4)
    right = [0.2 * (1 + math.cos(math.pi * (step % 4) / 4)) for step in range(9)]
    assert [cyclical(step) for step in range(9)] == pytest.approx(right)
    assert all(cyclical(step) > 0 for step in range(9))
    assert all(isinstance(sizes, StepSizes) for sizes in (Constant(0.3), decaying, cyclical))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Constant(0.0),
        lambda: Decaying(first=-1.0, delay=1),
        lambda: Decaying(first=1.0, delay=0.0),
        lambda: Cyclical(largest=math.inf, period=4),
        lambda: Cyclical(largest=1.0, period=1),
    ],
)
def test_settings_that_cannot_be_are_errors(wrong):
    with pytest.raises(ValueError, match=r"must be positive and finite|at least 2 steps"):
        wrong()
