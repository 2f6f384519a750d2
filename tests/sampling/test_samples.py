"""Samples: order of rows, sums over steps, files; states as named tensors."""

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import singularbayes as sb
from singularbayes.sampling.chain_state import rebuilt, tensors_of
from singularbayes.sampling.samples import Samples, Statistics


def made(chains=2, draws=12, dimension=3):
    statistics = Statistics.empty(chains, draws, torch.device("cpu"))
    statistics.acceptance[:] = torch.linspace(0, 1, draws)
    statistics.divergent[0, 3:5] = True
    statistics.gradients[1] = 7
    statistics.energy_error[0, 1] = math.nan
    values = torch.arange(chains * draws * dimension, dtype=torch.float64)
    return Samples(
        values.reshape(chains, draws, dimension),
        torch.zeros(chains, draws, dtype=torch.float64),
        statistics,
        statistics.between(0, 2),
        {"step_size": torch.tensor([0.1, 0.2], dtype=torch.float64)},
        {"method": "HMC", "seconds": math.nan},
    )


def test_rows_go_step_by_step_so_that_thinning_takes_from_all_chains():
    samples = made()
    assert torch.equal(samples.rows[0], samples.draws[0, 0])
    assert torch.equal(samples.rows[1], samples.draws[1, 0])
    assert torch.equal(samples.rows[2], samples.draws[0, 1])
    assert samples.rows.shape == (24, 3)


def test_sums_are_of_each_chain():
    samples = made()
    assert samples.acceptance.tolist() == pytest.approx([0.5, 0.5])
    assert samples.divergences.tolist() == [2, 0]
    assert samples.gradients.tolist() == [0, 84]
    assert repr(samples) == "Samples(chains=2, draws=12, dimension=3)"


def test_a_chain_whose_draws_are_one_point_is_stuck_unless_they_are_few():
    samples = made()
    samples.draws[1] = samples.draws[1, :1].clone()
    assert samples.stuck.tolist() == [False, True]
    log_density = samples.log_density[:, :9]
    few = Samples(samples.draws[:, :9], log_density, samples.statistics, samples.warm_up, {}, {})
    assert few.stuck.tolist() == [False, False]


def test_saved_samples_come_back(tmp_path):
    samples = made()
    samples.save(tmp_path)
    again = Samples.load(tmp_path)
    assert torch.equal(again.draws, samples.draws)
    assert torch.equal(again.log_density, samples.log_density)
    for part in ("statistics", "warm_up"):
        for name, tensor in getattr(samples, part).tensors().items():
            torch.testing.assert_close(getattr(getattr(again, part), name), tensor, equal_nan=True)
    assert torch.equal(again.facts["step_size"], samples.facts["step_size"])
    assert again.info == {"method": "HMC", "seconds": None}  # strict JSON has no nan


def test_a_folder_without_samples_and_a_damaged_one_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no samples.json"):
        Samples.load(tmp_path)
    sb.sampling.samples.checkpoint.write_pair(tmp_path, "samples", {"draws": torch.zeros(1, 1, 1)}, {})
    with pytest.raises(ValueError, match=r"samples.json is damaged: it lacks 'log_density'"):
        Samples.load(tmp_path)


@dataclass(frozen=True, eq=False)
class Inner:
    a: Tensor
    b: Tensor


@dataclass(frozen=True, eq=False)
class Outer:
    inner: Inner
    c: Tensor


def test_a_state_is_its_tensors_by_path_and_comes_back():
    state = Outer(Inner(torch.ones(2), torch.tensor(3)), torch.zeros(1, 2))
    parts = tensors_of(state)
    assert list(parts) == ["state.inner.a", "state.inner.b", "state.c"]
    template = Outer(Inner(torch.zeros(5), torch.tensor(0)), torch.ones(1, 2))
    again = rebuilt(template, parts)
    assert isinstance(again.inner, Inner)
    assert all(torch.equal(parts[name], tensor) for name, tensor in tensors_of(again).items())
    with pytest.raises(ValueError, match=r"the checkpoint lacks state.inner.b"):
        rebuilt(template, {"state.inner.a": torch.ones(2)})


def test_a_state_that_cannot_be_saved_is_refused():
    with pytest.raises(TypeError, match=r"state.c is a int; the state of a sampler is a dataclass"):
        tensors_of(Outer(Inner(torch.ones(2), torch.ones(1)), 3))
