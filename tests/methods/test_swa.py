"""SWA is torch's AveragedModel over torch's SGD, with torch's update_bn."""

import copy

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, update_bn

import singularbayes as sb
from singularbayes.data import as_source
from singularbayes.distributions import StoredDraws
from singularbayes.normalization import ShuffledPass
from singularbayes.random import derive
from singularbayes.testing import check_method

SOURCE = torch.Generator().manual_seed(0)
X = torch.randn(60, 4, generator=SOURCE) @ torch.randn(4, 4, generator=SOURCE) * torch.tensor([1, 5, 0.2, 1])
Y = (X[:, 0] + X[:, 1] / 5 > 0).long()


def normalised() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2)).double()


def schedule(progress: float) -> float:
    """The authors' code, for a start at .2, an end at .05 and a start epoch of 4."""
    t, ratio = progress / 4, 0.05 / 0.2
    factor = 1.0 if t <= 0.5 else 1.0 - (1.0 - ratio) * (t - 0.5) / 0.4 if t <= 0.9 else ratio
    return 0.2 * factor


def test_a_fit_is_torchs_sgd_and_torchs_average():
    network, seed = normalised(), 5
    method = sb.SWA(epochs=9, start_epoch=4, learning_rate=0.2, collect_rate=0.05, batch_size=12)
    # a prior of standard deviation .5 on every parameter is a weight decay of 4 / N
    model = sb.Model(network, sb.Categorical(), prior=sb.Normal(0.5), normalization=True)
    posterior = method.fit(model, (X, Y), seed=seed)

    trained = copy.deepcopy(network).train()
    descent = torch.optim.SGD(trained.parameters(), lr=0.2, momentum=0.9, weight_decay=4 / 60)
    averaged = AveragedModel(trained)
    source = as_source((X, Y), torch.float64, False)
    for epoch in range(9):
        seen = 0
        for x, y in source.epoch(12, seed, epoch, shuffle=True):
            descent.param_groups[0]["lr"] = schedule(epoch + seen / 60)
            descent.zero_grad()
            nn.functional.cross_entropy(trained(x), y).backward()
            descent.step()
            seen += len(x)
        if epoch + 1 > 4:
            averaged.update_parameters(trained)
    # a pass of its own, in a fixed random order
    update_bn([x for x, _ in ShuffledPass(source, 12, derive(seed, "statistics"))], averaged)

    exact, row = model.layout.flatten(averaged.module), posterior.distribution.mean
    assert torch.allclose(row, exact, rtol=1e-9, atol=1e-11)
    assert not torch.allclose(row, model.layout.flatten(trained), rtol=1e-2)  # the last iterate


def test_the_average_predicts_with_its_own_statistics():
    model = sb.Model(normalised(), sb.Categorical(), normalization=True)
    posterior = sb.SWA(epochs=6, start_epoch=1, collect_rate=0.3, batch_size=60).fit(model, (X, Y))
    assert isinstance(posterior.distribution, StoredDraws)
    network = copy.deepcopy(posterior.network)
    hidden = network[0](X.double())
    assert torch.allclose(network[1].running_mean, hidden.mean(0), rtol=1e-6)
    assert torch.allclose(network[1].running_var, hidden.var(0), rtol=1e-6)
    assert torch.allclose(posterior.predict(X).mean, network(X.double()).softmax(-1), rtol=1e-10)
    assert posterior.info["collected"] == 5
    assert posterior.at_mean().predict(X).draws == 1


def test_a_trained_network_starts_at_its_posterior():
    network = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    model = sb.Model(network, sb.Categorical())
    fitted = sb.MAP(epochs=5).fit(model, (X, Y))
    method = sb.SWA(epochs=1, start_epoch=0, collect_rate=1e-12)
    there = method.fit(model.started_at(fitted), (X, Y)).distribution.mean
    assert torch.allclose(there, fitted.distribution.mean, atol=1e-6)
    assert not torch.allclose(there, model.layout.flatten(network), atol=1e-3)


def test_the_rate_is_the_authors():
    method = sb.SWA(learning_rate=0.2, collect_rate=0.05, start_epoch=4, epochs=9)
    for progress in (0.0, 1.0, 2.0, 2.5, 3.0, 3.59, 3.61, 4.0, 8.5):
        assert method.rate(progress) == pytest.approx(schedule(progress), rel=1e-12)
    assert sb.SWA(epochs=3, start_epoch=0).rate(0.0) == 0.01


def factorised() -> nn.Module:
    torch.manual_seed(1)
    layers = nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)
    return sb.factorize(nn.Sequential(*layers), rank={"2": 2})


@pytest.mark.parametrize("network", [None, factorised], ids=["default", "factorised"])
def test_the_contract(network):
    method = sb.SWA(epochs=4, start_epoch=1, batch_size=16, learning_rate=0.02)
    if network is None:
        check_method(method)
    else:
        check_method(method, network=network(), likelihood=sb.Categorical(), data=(X, Y))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"start_epoch": 300}, "start_epoch=300, but epochs=300: nothing would be collected"),
        ({"start_epoch": -1}, "start_epoch must be a whole number, 0 or more"),
        ({"start_epoch": True}, "start_epoch must be a whole number, 0 or more"),
        ({"collect_rate": 0.0}, "collect_rate must be positive"),
        ({"collect_rate": float("nan")}, "collect_rate must be positive and finite"),
        ({"momentum": 1.0}, "momentum must lie in"),
        ({"patience": 3}, "no early stop; leave patience=None"),
        ({"schedule": sb.Schedule.COSINE}, "a schedule of its own"),
    ],
)
def test_settings_that_do_not_fit_are_named(fields, words):
    with pytest.raises(ValueError, match=words):
        sb.SWA(**fields)
