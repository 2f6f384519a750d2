"""NUTS with its warm-up: badly scaled targets, what it adapts, what it reports."""

import math

import pytest
import torch
from arviz_stats.base import array_stats

from singularbayes import NUTS
from singularbayes.sampling.chain_state import rebuilt, tensors_of
from singularbayes.sampling.low_rank_mass import LowRankMass
from singularbayes.sampling.mass import UnitMass
from singularbayes.sampling.nuts import NoUTurnSampler
from singularbayes.sampling.sample import sample
from singularbayes.sampling.sampler import Sampler
from singularbayes.sampling.target import AutogradTarget


def gaussian(precision):
    return lambda q: -0.5 * ((q @ precision) * q).sum(1)


def effective(draws):
    """Of each column of ``(C, N, d)``."""
    return torch.tensor(
        [
            float(array_stats.ess(draws[..., i].numpy(), chain_axis=0, draw_axis=1, method="mean"))
            for i in range(draws.shape[2])
        ]
    )


@pytest.mark.usefixtures("unchecked")  # annotations take most of the time
def test_after_warm_up_a_badly_scaled_correlated_gaussian_is_sampled_exactly():
    # Standard errors from the effective sample size, 4 of them at 5 means and 5 mean squares: false alarm
    # .1%. Scales .3 to 3, correlation .7 between neighbours; chains start twice as wide as the target.
    d = 5
    index = torch.arange(d, dtype=torch.float64)
    scale = torch.logspace(0.5, -0.5, d, dtype=torch.float64)
    covariance = scale.unsqueeze(1) * 0.7 ** (index - index.unsqueeze(1)).abs() * scale
    source = torch.Generator().manual_seed(0)
    start = 2 * torch.randn(8, d, generator=source, dtype=torch.float64) * scale
    method = NUTS(warm_up=60, draws=120, max_depth=5)
    samples = sample(gaussian(torch.linalg.inv(covariance)), start, method, progress=False)
    for values, expected in ((samples.draws / scale, 0.0), (samples.draws.square() / scale.square(), 1.0)):
        error = values.std((0, 1)) / effective(values).sqrt()
        assert ((values.mean((0, 1)) - expected).abs() / error).max() < 4
    assert (samples.facts["cut_trees"] == 0).all()
    assert samples.acceptance.min() > 0.65
    assert samples.acceptance.mean() < 0.95  # short warm-ups end above the target
    assert ((samples.facts["inverse_mass"] / scale.square()).log().abs() < math.log(4)).all()


@pytest.mark.usefixtures("unchecked")  # annotations take most of the time
def test_a_low_rank_mass_needs_fewer_gradients_for_an_effective_draw_than_a_diagonal():
    # 200 dimensions, two directions about 10 times wider than the rest and two 4 times narrower: trees of 63
    # leaves under any diagonal, 7 under the low-rank mass. Effective draws in the worst of the directions.
    d = 200
    source = torch.Generator().manual_seed(0)
    u = torch.linalg.qr(torch.randn(d, 4, generator=source, dtype=torch.float64)).Q
    inner = torch.tensor([100.0, 60.0, 1 / 16, 1 / 10], dtype=torch.float64)
    precision = torch.eye(d, dtype=torch.float64) + u * (1 / inner - 1) @ u.mT
    start = torch.randn(2, d, generator=source, dtype=torch.float64)
    start = start + (start @ u) * (inner.sqrt() - 1) @ u.mT
    cost = []
    for settings in ({}, {"mass": LowRankMass(rank=6)}):
        method = NUTS(warm_up=50, draws=40, **settings)
        samples = sample(gaussian(precision), start, method, progress=False)
        gradients = samples.statistics.gradients.sum().item()
        cost.append(gradients / effective(samples.draws @ u).min().item())
    assert cost[1] < cost[0] / 2, cost


def test_a_run_that_never_turns_says_how_many_steps_were_cut():
    settings = {"step_size": 1e-4, "mass": UnitMass(), "max_depth": 3}
    method = NUTS(warm_up=2, draws=5, **settings)
    start = torch.randn(3, 2, generator=torch.Generator().manual_seed(0))
    samples = sample(lambda q: -0.5 * q.square().sum(1), start, method, progress=False)
    assert samples.facts["cut_trees"].tolist() == [5, 5, 5]  # those of warm-up are not counted
    assert (samples.statistics.gradients == 7).all()
    assert (samples.facts["step_size"] == 1e-4).all()


def test_a_state_that_was_stored_goes_on_to_the_same_numbers():
    target, sampler = AutogradTarget(lambda q: -q.cosh().sum(1), 4), NUTS(mass=LowRankMass(rank=2)).sampler()
    assert isinstance(sampler, Sampler)
    assert isinstance(sampler, NoUTurnSampler)
    source = torch.Generator().manual_seed(0)
    start = torch.randn(2, 4, generator=source)
    state = sampler.start(target, start, source)
    for step in range(15):
        state, _ = sampler.warm_up(state, step, 25, target, source)
    stored, place = tensors_of(state), source.get_state()
    ends = []
    for begun in (state, rebuilt(sampler.start(target, start, source), stored)):
        source.set_state(place)
        state = begun
        for step in range(15, 25):
            state, _ = sampler.warm_up(state, step, 25, target, source)
        state, info = sampler.step(state, target, source)
        ends.append((sampler.point(state).position, info.acceptance, *sampler.facts(state).values()))
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


@pytest.mark.usefixtures("unchecked")  # annotations take most of the time
def test_trees_before_a_mass_is_known_are_short():
    target = AutogradTarget(lambda q: -0.5 * (q / torch.tensor([1e-3, 1.0])).square().sum(1), 2)
    sampler, source = NUTS(max_depth=8, step_size=1e-3).sampler(), torch.Generator().manual_seed(0)
    state = sampler.start(target, torch.tensor([[1e-3, 1.0]]), source)
    for steps, most in ((500, 63), (100, 255)):  # the only window of 100 steps has to get the mass right
        leaves = [int(sampler.warm_up(state, step, steps, target, source)[1].gradients) for step in range(6)]
        assert max(leaves) == most
    # so does a mass that is never learned
    sampler = NUTS(max_depth=8, step_size=1e-3, mass=UnitMass()).sampler()
    state = sampler.start(target, torch.tensor([[1e-3, 1.0]]), source)
    leaves = [int(sampler.warm_up(state, step, 500, target, source)[1].gradients) for step in range(6)]
    assert max(leaves) == 255
