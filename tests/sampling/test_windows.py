"""Windows of warm-up: they fill it, double, and are found by the step."""

import pytest

from singularbayes.sampling.windows import collects, ends, learned, windows


@pytest.mark.parametrize("steps", [0, 1, 19, 20, 21, 99, 149, 150, 151, 224, 225, 500, 1000, 12345])
def test_the_parts_of_a_warm_up_add_up_to_it(steps):
    first, *lengths, last = windows(steps)
    assert first + sum(lengths) + last == steps
    assert min(first, last, *lengths, 0) >= 0
    found = [step for step in range(steps) if ends(step, steps)]
    assert [b - a for a, b in zip([first - 1, *found], found, strict=False)] == lengths
    assert [step for step in range(steps) if collects(step, steps)] == list(range(first, steps - last))


def test_a_thousand_steps_have_the_windows_of_stan():
    # Stan's manual: 75, then 25, 50, 100, 200, 500, then 50
    assert windows(1000) == (75, 25, 50, 100, 200, 500, 50)
    assert [step for step in range(1000) if ends(step, 1000)] == [99, 149, 249, 449, 949]


def test_a_short_warm_up_is_scaled_and_a_tiny_one_learns_no_mass():
    assert windows(149) == (22, 113, 14)
    assert windows(100) == (15, 75, 10)
    assert windows(50) == (7, 33, 10)  # Stan's 10% would be 5
    assert windows(20) == (3, 11, 6)
    assert windows(19) == (19, 0)
    assert not any(collects(step, 19) or ends(step, 19) for step in range(19))


def test_a_first_mass_is_known_after_the_first_of_several_windows():
    assert [step for step in range(500) if not learned(step, 500)] == list(range(100))
    for steps in (10, 100):  # no window, or one that has to get it right
        assert all(learned(step, steps) for step in range(steps))
