"""The beijing recipe: networks that start as the paper's do, the SVD start, flags."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import singularbayes as sb
from singularbayes.functions import Way, way_for
from singularbayes.methods.ensembles import reinitialized
from singularbayes.recipes import ALL, Plan, beijing, flag_fields, forecaster
from singularbayes.recipes.overrides import check_overrides, overridden
from singularbayes.recipes.trained_start import FromTrained


def _gates(network: forecaster.Forecaster) -> torch.Tensor:
    """Biases of both layers, input-hidden and hidden-hidden summed: (2, 4, 64), torch's order of gates."""
    named = dict(network.lstm.named_parameters())
    sums = [named[f"bias_ih_l{layer}"] + named[f"bias_hh_l{layer}"] for layer in range(2)]
    return torch.stack(sums).detach().reshape(2, 4, 64)


@pytest.mark.parametrize("make", [forecaster.full, forecaster.low])
def test_forget_gates_start_open_also_in_members_of_an_ensemble(make):
    first = make()
    again = reinitialized(sb.Model(first, sb.Gaussian()), seed=3).network
    for network in (first, again):
        gates = _gates(network)
        assert (gates[:, 1] == 1).all(), "once, over both bias vectors"
        assert (gates[:, [0, 2, 3]] == 0).all()
    assert not torch.equal(first.lstm.weight_hh_l0, again.lstm.weight_hh_l0)
    plain = nn.LSTM(15, 64, 2, batch_first=True)  # what a member without a reset of its own would start at
    assert not (plain.bias_ih_l0[64:128] + plain.bias_hh_l0[64:128] == 1).any()


def test_the_networks_have_the_sizes_of_the_paper():
    x = torch.randn(3, 24, 15)
    for network in (forecaster.full(), forecaster.low(), forecaster.flat()):
        assert network(x).shape == (3, 1)
    deterministic = sum(p.numel() for p in forecaster.full().parameters())
    assert deterministic == 4 * 64 * (15 + 64 + 2) + 4 * 64 * (64 + 64 + 2) + 65
    factors = (256 + 15) * 14 + (256 + 64) * 20 + (256 + 64) * 14 + (256 + 64) * 20 + 64 + 1
    assert sum(p.numel() for p in forecaster.low().parameters()) == factors + 4 * 256 + 1
    assert way_for(forecaster.full()) is way_for(forecaster.low()) is Way.LOOP
    assert sum(isinstance(module, nn.Linear) for module in forecaster.flat(32).modules()) == 2


def test_the_forecast_reads_the_whole_window_and_its_last_hour():
    torch.manual_seed(0)
    network = forecaster.full()
    x = torch.randn(1, 24, 15, requires_grad=True)
    network(x).sum().backward()
    assert x.grad is not None
    assert (x.grad.abs().sum((0, 2)) > 0).all(), "the mutant that reads the first state sees one hour"


def test_the_svd_start_is_the_best_approximation_and_keeps_the_trained_biases():
    torch.manual_seed(0)
    network = forecaster.full()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    low = forecaster.low_from(network)
    u, s, v = torch.linalg.svd(network.lstm.weight_hh_l1.detach().double())
    best = (u[:, :20] * s[:20]) @ v[:20]
    torch.testing.assert_close(low.lstm.weight_hh_l1.detach().double(), best, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(_gates(low), _gates(network))
    torch.testing.assert_close(low.head.weight, network.head.weight)
    with pytest.raises(TypeError, match=r"expected nn\.LSTM and nn\.Linear"):
        forecaster.low_from(low)


def _small(seed: int = 0) -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(96, 24, 15, generator=generator)
    y = x[:, -1, 0] + 0.1 * torch.randn(96, generator=generator)
    return (x[:64], y[:64]), (x[64:], y[64:])


def _svd_plan(point_epochs: int = 12) -> Plan:
    plan = beijing.RECIPE.plans["MeanField, low rank from SVD"]
    assert isinstance(plan.method, FromTrained)
    method = replace(
        plan.method,
        member=replace(plan.method.member, epochs=1, batch_size=32),
        point=replace(plan.method.point, epochs=point_epochs, batch_size=8, learning_rate=1e-2),
    )
    return replace(plan, method=method)


def test_a_fit_from_a_trained_start_begins_where_the_point_estimate_ended():
    train, held = _small()
    plan = _svd_plan()
    assert plan.needs_validation
    model = plan.model(forecaster.low(), sb.Gaussian())
    before = [p.clone() for p in model.network.parameters()]
    trained = plan.method.fit(model, train, held, seed=0)
    cold = plan.method.member.fit(model, train, held, seed=0)

    def error(posterior: sb.Posterior) -> float:
        return float((posterior.at_mean().predict(held[0]).mean - held[1]).abs().mean())

    assert error(trained) < 0.8 * error(cold), "one epoch of VI alone has learned little"
    assert [slot.name for slot in trained.layout.slots] == [slot.name for slot in cold.layout.slots]
    assert trained.info["seconds"] > cold.info["seconds"]
    assert trained.info["method"] == "FromTrained"
    assert all(torch.equal(a, b) for a, b in zip(before, model.network.parameters(), strict=True))
    again = plan.method.fit(model, train, held, seed=0)
    torch.testing.assert_close(again.distribution.mean, trained.distribution.mean, rtol=0, atol=0)


def test_flags_reach_both_methods_of_a_trained_start():
    plan = _svd_plan()
    check_overrides({"svd": plan}, {"epochs": 3, "initial_std": 0.2})
    changed = overridden(plan, {"epochs": 3, "initial_std": 0.2}).method
    assert (changed.member.epochs, changed.point.epochs, changed.member.initial_std) == (3, 3, 0.2)
    assert not {"member", "point", "network", "convert"} & set(flag_fields(plan.method))
    assert "0x" not in repr(plan.method), "an address would make every resumed run another one"


def test_the_recipe_asks_for_its_folder_and_is_listed():
    assert ALL["beijing"] is beijing.RECIPE
    assert ALL["beijing-paper"].plans["MeanField, full rank"].method.epochs == 150
    with pytest.raises(ValueError, match=r"add --data FOLDER; to get them: download PRSA_data.*UCI"):
        beijing.load(None, 0)
