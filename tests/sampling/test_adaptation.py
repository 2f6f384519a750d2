"""Warm-up: windows make the mass, the step size is searched anew under it, the last step freezes both."""

import pytest
import torch

import singularbayes as sb
from singularbayes.sampling import adaptation as module
from singularbayes.sampling.adaptation import Adaptation
from singularbayes.sampling.hmc import HamiltonianSampler
from singularbayes.sampling.leapfrog import evaluated
from singularbayes.sampling.mass import UnitMass
from singularbayes.sampling.step_size import DualAveraging, FixedStep
from singularbayes.sampling.target import AutogradTarget
from singularbayes.sampling.windows import collects, ends

SCALE = torch.tensor([1.0, 0.1], dtype=torch.float64)
TARGET = AutogradTarget(lambda q: -0.5 * (q / SCALE).square().sum(1), 2)
STEPS = 150  # one window, from 75 to 99


def points(count):
    noise = torch.randn(count, 4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return [evaluated(TARGET, row * SCALE) for row in noise]


def followed(settings, acceptance=0.8):
    """What was adapted after each step, for chains whose places are given."""
    source, places = torch.Generator().manual_seed(1), points(STEPS)
    adapted = settings.start(TARGET, places[0], source)
    rates, found = torch.full((4,), acceptance, dtype=torch.float64), []
    for step, place in enumerate(places):
        adapted, gradients = settings.update(adapted, place, rates, step, STEPS, TARGET, source)
        found.append((adapted, gradients))
    return places, found


def test_the_mass_is_what_its_window_alone_has_seen():
    places, found = followed(Adaptation())
    ended = [step for step in range(STEPS) if ends(step, STEPS)]
    assert ended == [99]
    inside = torch.stack([place.position for step, place in enumerate(places) if collects(step, STEPS)])
    seen = inside.var(0).maximum(SCALE.square())  # the gradients of a Gaussian know its variance
    right = (25 * seen + 5e-3) / 30
    metric = found[99][0].metric
    torch.testing.assert_close(metric.inverse_mass, right, rtol=1e-12, atol=0)
    assert (found[98][0].metric.inverse_mass == 1).all()
    assert found[-1][0].metric is metric


def test_dual_averaging_starts_again_from_a_search_under_the_new_mass():
    _, found = followed(Adaptation())
    before, after = found[98][0].averages, found[99][0].averages
    assert (before.count, after.count, found[100][0].averages.count) == (99, 0, 1)
    assert (after.error == 0).all()
    # under unit mass the scale of .1 decides, under the learned one both are about 1
    assert (after.size > 4 * before.center.exp() / 10).all()  # the center is 10 times what was found
    counts = torch.stack([gradients for _, gradients in found])
    assert (counts[99] >= 2).all()
    assert counts[:99].sum() == counts[100:].sum() == 0


def test_the_last_step_freezes_the_average():
    _, found = followed(Adaptation(), acceptance=0.7)
    last = found[-1][0].averages
    assert torch.equal(last.size, last.log_average.exp())
    assert not torch.equal(found[-2][0].averages.size, found[-2][0].averages.log_average.exp())


@pytest.mark.parametrize("mass", [UnitMass(), Adaptation().mass])
def test_a_given_step_size_stays_and_needs_no_search(mass):
    _, found = followed(Adaptation(step_size=FixedStep(size=0.3), mass=mass), acceptance=0.1)
    assert all((adapted.step_size == 0.3).all() for adapted, _ in found)
    assert sum(gradients.sum() for _, gradients in found) == 0


@pytest.mark.parametrize("mass", [sb.DiagonalMass(), sb.UnitMass(), sb.LowRankMass(rank=1)])
def test_masses_are_given_by_their_public_names(mass):
    samples = sb.sample(
        lambda q: -0.5 * q.square().sum(1), torch.zeros(2, 1), sb.HMC(warm_up=20, draws=2, mass=mass)
    )
    assert samples.draws.isfinite().all()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("mass", [UnitMass, "diagonal", 1.0])
def test_what_is_no_mass_is_refused(mass):
    with pytest.raises(TypeError, match=r"mass must be DiagonalMass\(\), UnitMass\(\) or LowRankMass"):
        sb.HMC(mass=mass)


def test_a_first_step_size_is_where_adaptation_starts():
    source = torch.Generator().manual_seed(0)
    settings = Adaptation(step_size=DualAveraging(first=0.123))
    adapted = settings.start(TARGET, points(1)[0], source)
    assert torch.equal(adapted.step_size, torch.full((4,), 0.123, dtype=torch.float64))


def test_a_search_draws_the_same_numbers_however_long_it_takes():
    """Else the noise of one chain would depend on the others."""
    states = []
    for scale in (1.0, 1e-6):
        target, source = AutogradTarget(lambda q, s=scale: -0.5 * (q / s).square().sum(1), 2), None
        source = torch.Generator().manual_seed(0)
        Adaptation().start(target, evaluated(target, torch.zeros(4, 2)), source)
        states.append(source.get_state())
    assert torch.equal(*states)


def test_a_chain_that_finds_no_step_size_in_the_middle_of_warm_up_does_not_stop_the_others():
    """Before, one chain that ended a window on a plain stopped all of them with a ValueError."""
    plain = AutogradTarget(lambda q: -0.5 * (q.clamp(-9, 9) / SCALE).square().sum(1), 2)
    place = points(1)[0].position
    place[1] = 1e3
    point = evaluated(plain, place)
    settings, source = Adaptation(step_size=DualAveraging(first=0.1)), torch.Generator().manual_seed(0)
    with pytest.raises(ValueError, match=r"improper or constant\? \(chain 1, last tried"):
        Adaptation().start(plain, point, source)
    adapted = settings.start(plain, point, source)
    rates = torch.full((4,), 0.8, dtype=torch.float64)
    for step in range(100):
        before = settings.step_size.update(adapted.averages, rates).size
        adapted, _ = settings.update(adapted, point, rates, step, STEPS, plain, source)
    assert adapted.averages.count == 0
    assert adapted.step_size[1] == before[1]
    assert (adapted.step_size[[0, 2, 3]] != before[[0, 2, 3]]).all()


def test_steps_after_warm_up_change_nothing_that_was_adapted(monkeypatch):
    kernel, source = HamiltonianSampler(), torch.Generator().manual_seed(0)
    state = kernel.start(TARGET, points(1)[0].position, source)
    for step in range(20):
        state, _ = kernel.warm_up(state, step, 20, TARGET, source)
    monkeypatch.setattr(module, "_searched", None)
    after, _ = kernel.step(state, TARGET, source)
    assert after.adapted is state.adapted
    assert kernel.facts(after).keys() == {"step_size", "inverse_mass", "trajectory"}
