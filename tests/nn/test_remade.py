"""A saved posterior is read with the user's own network, whatever a method made of it."""

import json
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import singularbayes as sb
from singularbayes import checkpoint
from singularbayes.distributions import DiagonalGaussian
from singularbayes.nn import remade
from singularbayes.nn.linearized import Linearized
from singularbayes.nn.masks import MaskedDropout
from singularbayes.parameters import Layout
from singularbayes.posterior import Posterior

X = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


def plain(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Dropout(0.3), nn.Sequential(nn.Linear(4, 2))
    )


def of_linearized(network: nn.Module) -> Posterior:
    """Away from the point of linearisation, so that the point counts."""
    linear = sb.linearize(network)
    layout = Layout.of(linear)
    mean = layout.flatten(linear)
    mean[: layout.trained] += 0.5
    layout.write(linear, mean)
    std = torch.zeros_like(mean)
    std[: layout.belief] = 0.2
    return Posterior(linear, DiagonalGaussian(mean, std), sb.Categorical(), layout, {})


def assert_same(one: Posterior, two: Posterior) -> None:
    assert torch.equal(one.draw(3), two.draw(3))
    assert torch.equal(one.predict(X, draws=3).mean, two.predict(X, draws=3).mean)


def test_a_linearised_posterior_loads_into_the_users_network(tmp_path):
    posterior = of_linearized(plain())
    posterior.save(tmp_path)
    loaded = sb.load(tmp_path, plain(seed=1))
    assert isinstance(loaded.network, Linearized)
    assert_same(loaded, posterior)
    assert_same(sb.load(tmp_path, sb.linearize(plain(seed=1))), posterior)


def test_it_matters_that_the_point_is_saved(tmp_path, monkeypatch):
    posterior = of_linearized(plain())
    everything = remade.tensors
    kept = {name: t for name, t in everything(posterior.network).items() if "@" not in name}
    monkeypatch.setattr(remade, "tensors", lambda _network: kept)
    posterior.save(tmp_path)
    monkeypatch.setattr(remade, "tensors", everything)
    loaded = sb.load(tmp_path, plain(seed=1))
    assert not torch.allclose(loaded.predict(X, draws=3).mean, posterior.predict(X, draws=3).mean, atol=1e-3)


def test_masks_load_into_the_users_network(tmp_path):
    posterior = sb.MCDropout(epochs=1).fit(sb.Model(plain(), sb.Categorical()), (X, Y))
    posterior.save(tmp_path)
    loaded = sb.load(tmp_path, plain(seed=1))
    mask = loaded.network.get_submodule("3")
    assert isinstance(mask, MaskedDropout)
    assert mask.p == 0.3
    assert_same(loaded, posterior)


def test_a_file_of_format_1_is_still_read(tmp_path):
    posterior = sb.MCDropout(epochs=1).fit(sb.Model(plain(), sb.Categorical()), (X, Y))
    posterior.save(tmp_path)
    tensors, content = checkpoint.read_pair(tmp_path, "posterior")
    del content["changes"]
    checkpoint.write_pair(tmp_path, "posterior", tensors, {**content, "format": 1, "dropout": {"3": 0.3}})
    assert_same(sb.load(tmp_path, plain(seed=1)), posterior)


def test_two_changes_at_once_are_both_made_again(tmp_path):
    masked = sb.MCDropout(epochs=1).fit(sb.Model(plain(), sb.Categorical()), (X, Y))
    linear = sb.linearize(masked.network)
    posterior = Posterior(linear, masked.distribution, masked.likelihood, masked.layout, {})
    posterior.save(tmp_path)
    assert [change["kind"] for change in remade.describe(linear)] == ["dropout_mask", "linearized"]
    assert_same(sb.load(tmp_path, plain(seed=1)), posterior)


def test_a_linearised_part_of_a_network_is_made_again(tmp_path):
    network = nn.Sequential(plain()[:3], sb.linearize(nn.Sequential(nn.Linear(4, 4), nn.Tanh())))
    posterior = sb.MAP(epochs=1).fit(sb.Model(network, sb.Categorical()), (X, Y))
    posterior.save(tmp_path)
    user = nn.Sequential(plain(1)[:3], nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
    assert_same(sb.load(tmp_path, user), posterior)


def test_the_facts_are_plain_json():
    facts = remade.describe(of_linearized(plain()).network)
    assert json.loads(json.dumps(facts)) == facts


def test_a_network_without_the_changed_module_is_named(tmp_path):
    sb.MCDropout(epochs=1).fit(sb.Model(plain(), sb.Categorical()), (X, Y)).save(tmp_path)
    with pytest.raises(ValueError, match="has no module 3; pass the network that the model was made of"):
        sb.load(tmp_path, plain()[:3])
    of_linearized(plain()).save(tmp_path)
    with pytest.raises(ValueError, match=r"it has no 4\.0\.weight"):
        sb.load(tmp_path, plain()[:3])


def test_an_unknown_change_and_an_unknown_format_are_named(tmp_path: Path):
    with pytest.raises(ValueError, match="unknown change of a network 'twisted'"):
        remade.remake(plain(), [{"kind": "twisted", "path": ""}])
    of_linearized(plain()).save(tmp_path)
    tensors, content = checkpoint.read_pair(tmp_path, "posterior")
    checkpoint.write_pair(tmp_path, "posterior", tensors, {**content, "format": 3})
    with pytest.raises(ValueError, match="holds format 3, this version reads formats 1 to 2"):
        sb.load(tmp_path, plain())


def test_the_users_network_is_untouched(tmp_path):
    of_linearized(plain()).save(tmp_path)
    user = plain(seed=1)
    before = {name: tensor.clone() for name, tensor in user.state_dict().items()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sb.load(tmp_path, user)
    assert all(torch.equal(tensor, before[name]) for name, tensor in user.state_dict().items())
    assert isinstance(user.get_submodule("3"), nn.Dropout)
