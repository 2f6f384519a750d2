"""Minibatches of a network's data: every batch of a small data set, and what a wrong scale would give."""

import itertools
import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import singularbayes as sb
from singularbayes.methods.minibatches import Minibatches
from singularbayes.methods.network_density import NetworkDensity
from singularbayes.sampling.stochastic import GradientEstimate
from singularbayes.sampling.target import AutogradTarget

X = torch.tensor([[-1.0], [-0.5], [0.5], [1.5], [2.0], [3.0]], dtype=torch.float64)
Y = torch.tensor([-1.1, -1.0, 0.2, 0.9, 1.4, 2.3], dtype=torch.float64)


def density(rows: int = 3) -> NetworkDensity:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    model = sb.Model(network, sb.Gaussian(noise=0.5))
    start = 0.5 * torch.randn(rows, model.layout.size, dtype=torch.float64)
    return NetworkDensity(model, (X, Y), start)


def over_all_batches(target: NetworkDensity, size: int, weight: float | None = None) -> tuple:
    """Mean of the estimates of all batches; ``weight`` is one in place of N / B."""
    pairs = []
    for batch in itertools.combinations(range(len(X)), size):
        value, gradient = target.estimate(target.start, torch.tensor(batch))
        if weight is not None:
            prior = AutogradTarget(
                lambda w: -0.5 * (w.square() + math.log(2 * math.pi)).sum(1), target.dimension
            )
            base, slope = prior(target.start)
            value = base + weight * size / len(X) * (value - base)
            gradient = slope + weight * size / len(X) * (gradient - slope)
        pairs.append((value, gradient))
    return tuple(torch.stack(part).mean(0) for part in zip(*pairs, strict=True))


@pytest.mark.parametrize("size", [1, 2, 5, 6])
def test_the_mean_over_all_batches_is_the_full_gradient(size):
    target = density()
    value, gradient = over_all_batches(target, size)
    exact, slope = target(target.start)
    torch.testing.assert_close(value, exact, rtol=0, atol=1e-10)
    torch.testing.assert_close(gradient, slope, rtol=0, atol=1e-10)


@pytest.mark.parametrize("weight", [1.0, 1 / 2], ids=["the batch's sum", "the batch's mean"])
def test_a_batch_that_is_not_scaled_to_the_data_is_found(weight):
    target = density()
    _, gradient = over_all_batches(target, 2, weight)
    assert (gradient - target(target.start)[1]).abs().max() > 0.1


def test_batches_are_drawn_without_replacement_and_evenly():
    """4,000 batches of 2 of 6: each of the 15 pairs in 1/15 of them, within 4 standard errors."""
    target, seen = density(1), []
    nothing = target(target.start)
    target.estimate = lambda position, batch: (seen.append(batch), nothing)[1]
    source = torch.Generator().manual_seed(1)
    estimate = Minibatches(2)
    for _ in range(4000):
        estimate(target, target.start, source)
    batches = torch.stack(seen).sort(1).values
    assert (batches[:, 0] < batches[:, 1]).all()
    _, counts = batches.unique(dim=0, return_counts=True)
    assert len(counts) == 15
    assert ((counts / 4000 - 1 / 15).abs() < 4 * math.sqrt(14 / 225 / 4000)).all()  # false alarm 1e-3


def test_the_source_alone_decides_the_batch():
    target, estimate = density(), Minibatches(2)
    assert isinstance(estimate, GradientEstimate)
    assert not estimate.exact
    one, other, third = (
        estimate(target, target.start, torch.Generator().manual_seed(s))[1] for s in (1, 1, 2)
    )
    assert torch.equal(one, other)
    assert not torch.equal(one, third)


def test_what_has_no_batches_is_an_error():
    start = torch.zeros(2, 3, dtype=torch.float64)
    with pytest.raises(TypeError, match="minibatches need a network and its data, got a AlikeRows"):
        sb.sample(lambda x: -x.square().sum(1), start, sb.SGHMC(warm_up=1, draws=1, batch_size=2))
    model = sb.Model(nn.Linear(1, 1).double(), sb.Gaussian(noise=0.5))
    with pytest.raises(ValueError, match="batch_size=7 is above the 6 training examples"):
        sb.SGHMC(warm_up=1, draws=1, batch_size=7).fit(model, (X, Y))
    loader = DataLoader(TensorDataset(X, Y), batch_size=2)
    with pytest.raises(ValueError, match="data in memory"):
        sb.SGHMC(warm_up=1, draws=1, batch_size=2).fit(model, loader)


@pytest.mark.parametrize("method", [sb.HMC, sb.NUTS, sb.MCLMC])
def test_samplers_that_need_energies_take_no_minibatches(method):
    with pytest.raises(TypeError, match="batch_size"):
        method(batch_size=2)
