"""Seeds: one integer and a place give every random number; the global state stays."""

import itertools

import numpy as np
import pytest
import torch

from singularbayes.random import derive, forked, generator


def test_distinct_places_and_seeds_give_distinct_numbers():
    places = [(seed, name, epoch) for seed in range(5) for name in ("noise", "order") for epoch in range(20)]
    numbers = {derive(*place) for place in places}
    assert len(numbers) == len(places)
    assert all(0 <= number < 2**63 for number in numbers)


def test_a_place_gives_the_same_number_in_every_run():
    assert derive(0, "noise", 1) == 7999921939291604395


def test_streams_of_neighbouring_places_are_uncorrelated():
    rows = torch.stack([torch.randn(4000, generator=generator(0, "noise", epoch)) for epoch in range(8)])
    correlations = torch.corrcoef(rows)
    worst = max(abs(correlations[i, j].item()) for i, j in itertools.combinations(range(8), 2))
    assert worst < 4.5 / 4000**0.5  # 28 pairs: false alarm below 2e-4


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("seed", [True, 1.0, "0", None])
def test_a_seed_that_is_no_integer_is_refused(seed):
    with pytest.raises(TypeError, match="seed must be an integer"):
        derive(seed)


@pytest.mark.usefixtures("unchecked")
def test_whole_numbers_of_numpy_are_seeds():
    assert derive(np.int64(3), "noise") == derive(3, "noise")


def test_the_global_state_is_put_back_also_after_an_error():
    before = torch.get_rng_state()

    def fails() -> None:
        torch.rand(3)
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"), forked(0, "x"):
        fails()
    assert torch.equal(torch.get_rng_state(), before)


def test_a_fork_is_seeded_by_its_place_alone():
    numbers = []
    for junk in (1, 2):
        torch.rand(junk)
        with forked(0, "forward", 3):
            numbers.append(torch.rand(4))
    assert torch.equal(*numbers)
    with forked(0, "forward", 4):
        assert not torch.equal(torch.rand(4), numbers[0])
