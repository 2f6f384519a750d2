"""Seeds: one integer and a place give every random number; the global state stays."""

import itertools
import random

import numpy as np
import pytest
import torch

from singularbayes.random import derive, forked, generator


def test_distinct_places_and_seeds_give_distinct_numbers():
    places = [(seed, name, epoch) for seed in range(5) for name in ("noise", "order") for epoch in range(20)]
    numbers = {derive(*place) for place in places}
    assert len(numbers) == len(places)
    assert all(0 <= number < 2**63 for number in numbers)


def test_places_of_other_parts_are_other_places():
    places = [("a/1",), ("a", 1), ("a", "1"), ("a, 1",), ("'a'", 1), ("a", True), ("a",), ("a", "")]
    assert len({derive(0, *place) for place in places}) == len(places)
    assert derive(0, "a", np.int64(1)) == derive(0, "a", 1)


def test_a_place_gives_the_same_number_in_every_run():
    assert derive(0, "noise", 1) == 6187057765395423865


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


def _numbers() -> list[float]:
    return [torch.rand(1).item(), np.random.rand(), random.random(), random.gauss(), np.random.randn()]  # noqa: NPY002


def _fails_inside(place: int) -> list[float]:
    found = []
    try:
        with forked(0, "x", place):
            found = _numbers()
            raise RuntimeError("stop")
    except RuntimeError:
        return found


@pytest.mark.usefixtures("unchecked")  # beartype draws from Python's random to choose what it checks
def test_numpy_and_python_are_seeded_by_the_place_and_put_back_also_after_an_error():
    np.random.seed(3)  # noqa: NPY002
    random.seed(3)
    _numbers()  # leaves half of a pair of normal numbers in both states
    before, of_python = np.random.get_state(), random.getstate()  # noqa: NPY002
    inside = [_fails_inside(place) for place in (1, 1, 2)]
    assert inside[0] == inside[1]
    assert all(a != b for a, b in zip(inside[0], inside[2], strict=True))
    after = np.random.get_state()  # noqa: NPY002
    np.testing.assert_array_equal(after[1], before[1])
    assert after[2:] == before[2:]
    assert random.getstate() == of_python


@pytest.mark.parametrize("device", [None, torch.device("cpu")])
def test_a_fork_on_the_cpu_seeds_no_cuda_device(device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda _: pytest.fail("seeded every CUDA device"))
    with forked(0, "x", device=device):
        torch.rand(1)


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_fork_on_a_cuda_device_seeds_and_puts_back_that_one_alone(device, monkeypatch):
    stand_ins = [torch.Generator().manual_seed(i) for i in range(2)]  # of two devices
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "default_generators", stand_ins)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda _: pytest.fail("seeded every CUDA device"))
    states = [each.get_state() for each in stand_ins]
    with forked(0, "x", device=torch.device(device)):
        assert stand_ins[1].initial_seed() == derive(0, "x")
        assert torch.equal(stand_ins[0].get_state(), states[0])
        torch.rand(1, generator=stand_ins[1])
    assert all(torch.equal(each.get_state(), state) for each, state in zip(stand_ins, states, strict=True))


@pytest.mark.skipif(torch.cuda.device_count() == 0, reason="needs a CUDA device")
def test_the_state_of_a_cuda_device_is_put_back():
    device = torch.device("cuda")
    before, numbers = torch.cuda.get_rng_state(device), []
    for _ in range(2):
        with forked(0, "x", device=device):
            numbers.append(torch.rand(3, device=device))
    with forked(0, "x"):
        pass
    assert torch.equal(*numbers)
    assert torch.equal(torch.cuda.get_rng_state(device), before)


def test_a_fork_is_seeded_by_its_place_alone():
    numbers = []
    for junk in (1, 2):
        torch.rand(junk)
        with forked(0, "forward", 3):
            numbers.append(torch.rand(4))
    assert torch.equal(*numbers)
    with forked(0, "forward", 4):
        assert not torch.equal(torch.rand(4), numbers[0])
