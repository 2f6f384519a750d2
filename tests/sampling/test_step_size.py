"""Dual averaging against a loop in plain floats; the first step size is where acceptance crosses 1/2."""

import math

import pytest
import torch

from singularbayes.sampling.step_size import Averages, DualAveraging, FixedStep, first_step_size


def by_hand(first, acceptances, target=0.8, gamma=0.05, t0=10, kappa=0.75):
    mu, error, log_average, sizes = math.log(10 * first), 0.0, 0.0, []
    for m, a in enumerate(acceptances, 1):
        error = (1 - 1 / (m + t0)) * error + (target - a) / (m + t0)
        log_size = mu - math.sqrt(m) / gamma * error
        log_average = m**-kappa * log_size + (1 - m**-kappa) * log_average
        sizes.append(math.exp(log_size))
    return sizes, math.exp(log_average)


@pytest.mark.parametrize(
    ("settings", "other"),
    [({}, {}), ({"target": 0.6, "gamma": 0.1, "t0": 5.0, "kappa": 0.9}, {})],
)
def test_dual_averaging_is_the_formula_for_each_chain(settings, other):
    acceptance = torch.rand(30, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    method = DualAveraging(**settings)
    averages = Averages.start(torch.tensor([0.3, 2.0], dtype=torch.float64))
    for number, row in enumerate(acceptance):
        averages = method.update(averages, row)
        for chain, first in enumerate((0.3, 2.0)):
            sizes, average = by_hand(first, acceptance[: number + 1, chain].tolist(), **settings)
            assert averages.size[chain].item() == pytest.approx(sizes[-1], rel=1e-12)
            assert averages.log_average[chain].exp().item() == pytest.approx(average, rel=1e-12)
    assert torch.equal(method.frozen(averages).size, averages.log_average.exp())


def test_it_settles_where_the_acceptance_is_the_target():
    """Acceptance exp(-e^2) is .7 at e = .597; the averaged size is there within 5% after 2,000 steps."""
    method, averages = DualAveraging(target=0.7), Averages.start(torch.tensor([5.0], dtype=torch.float64))
    for _ in range(2000):
        averages = method.update(averages, (-averages.size.square()).exp())
    assert method.frozen(averages).size.item() == pytest.approx(math.sqrt(-math.log(0.7)), rel=0.05)


def test_a_given_step_size_never_moves():
    averages = Averages.start(torch.tensor([0.3, 0.3]))
    moved = FixedStep(size=0.3).update(averages, torch.tensor([0.0, 1.0]))
    assert torch.equal(FixedStep(size=0.3).frozen(moved).size, averages.size)


def test_the_first_step_size_is_the_first_power_of_two_beyond_the_crossing():
    """log acceptance -(e/s)^2 crosses log(1/2) at e = .833 s."""
    scale = torch.tensor([1e-4, 0.03, 1.0, 700.0], dtype=torch.float64)
    found = first_step_size(lambda e: -((e / scale) ** 2), torch.ones(4, dtype=torch.float64))
    size, seen = found.checked(), found.evaluations
    crossing = math.sqrt(math.log(2)) * scale
    down = crossing < 1
    assert ((size < crossing) & (2 * size >= crossing))[down].all()
    assert ((size >= crossing) & (size / 2 < crossing))[~down].all()
    assert torch.equal(seen, 1 + size.log2().abs().long())


def test_nan_is_no_acceptance():
    found = first_step_size(lambda e: torch.where(e > 0.1, torch.nan, -e), torch.ones(1, dtype=torch.float64))
    assert 0.05 <= found.checked().item() <= 0.1


def test_a_search_without_end_names_the_chains_and_why():
    flat = torch.tensor([0.0, -1.0])
    with pytest.raises(ValueError, match=r"improper or constant\? \(chain 0, last tried 1e\+15\)"):
        first_step_size(lambda e: flat * e, torch.ones(2)).checked()
    with pytest.raises(ValueError, match=r"gradient that of the log density.*\(chains 0, 1, last"):
        first_step_size(lambda e: torch.full_like(e, -math.inf), torch.ones(2)).checked()


def test_chains_without_a_first_step_size_may_keep_theirs():
    slopes, own = torch.tensor([0.0, -1.0, -math.inf]), torch.tensor([7.0, 8.0, 9.0], dtype=torch.float64)
    found = first_step_size(lambda e: slopes * e, torch.ones(3))
    assert (found.too_flat.tolist(), found.refused.tolist()) == ([True, False, False], [False, False, True])
    assert found.or_kept(own).tolist() == [7.0, 0.5, 9.0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target": 1.0}, "between 0 and 1, got 1.0"),
        ({"target": 0}, "between 0 and 1, got 0"),
        ({"gamma": 0.0}, "gamma must be positive and finite, got 0"),
        ({"t0": -1.0}, "t0 must be 0 or a positive"),
        ({"kappa": 0.5}, r"kappa must lie in \(.5, 1\]"),
        ({"first": math.nan}, "first must be positive and finite, got nan"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(ValueError, match=message):
        DualAveraging(**settings)


def test_a_step_size_of_nothing_is_refused():
    with pytest.raises(ValueError, match="step_size must be positive and finite, got 0"):
        FixedStep(size=0.0)
