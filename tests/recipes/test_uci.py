"""The UCI recipes: tuned dropout chooses on validation alone, splits are seeds, the table's arithmetic."""

import copy
import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import singularbayes as sb
from singularbayes.recipes import ALL, run_recipe
from singularbayes.recipes.data import uci as data
from singularbayes.recipes.tuned_dropout import TunedDropout

NOISE = 0.3


def line(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2)).astype(np.float32)
    return x, (x @ [0.8, -0.4] + NOISE * rng.normal(size=n)).astype(np.float32)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, 1))


def model(**changes) -> sb.Model:
    return sb.Model(
        network(), **({"likelihood": sb.Gaussian(noise=1.0), "prior": sb.Normal(100.0)} | changes)
    )


MEMBER = sb.MCDropout(epochs=30, batch_size=20, learning_rate=0.01)


def test_the_pair_is_the_best_of_a_search_by_hand_on_validation_data():
    train, held = line(100, 0), line(60, 1)
    fitted = TunedDropout(member=MEMBER, rates=(0.02, 0.3), draws=16).fit(model(), train, held, seed=3)
    scores = {}
    for rate in (0.02, 0.3):
        own = model()
        own.network[2].p = rate
        posterior = MEMBER.fit(own, train, seed=3)
        means = posterior.predict(held[0], draws=16, seed=3).means.double()
        for noise in np.geomspace(1e-3, 2, 120):
            density = torch.distributions.Normal(means, noise).log_prob(torch.from_numpy(held[1]).double())
            scores[rate, noise] = (density.logsumexp(0) - np.log(16)).mean().item()
    rate, noise = max(scores, key=lambda pair: scores[pair])
    assert fitted.info["rate"] == rate
    assert fitted.info["noise"] == pytest.approx(noise)
    assert fitted.likelihood == sb.Gaussian(noise=fitted.info["noise"])
    assert 0.7 * NOISE < fitted.info["noise"] < 1.4 * NOISE


def test_the_best_pair_is_fitted_again_to_both_sets_for_all_epochs():
    train, held = line(100, 0), line(60, 1)
    tuned = TunedDropout(member=MEMBER, rates=(0.1,), share=0.2)
    fitted = tuned.fit(model(), train, held, seed=3)
    own = model()
    own.network[2].p = 0.1
    together = tuple(np.concatenate(pair) for pair in zip(train, held, strict=True))
    expected = MEMBER.fit(own, together, seed=3)
    assert torch.equal(fitted.draw(4), expected.draw(4))
    assert fitted.info["epochs"] == 30
    kept = replace(tuned, share=1.0, refit=False).fit(model(), train, held, seed=3)
    assert kept.info["num_data"] == 100
    assert not torch.equal(kept.draw(4), expected.draw(4)), "mutant"


def test_channel_dropout_is_tuned_too():
    channels = nn.Sequential(
        nn.Linear(2, 4), nn.Unflatten(1, (4, 1)), nn.Dropout1d(0.5), nn.Flatten(), nn.Linear(4, 1)
    )
    own = sb.Model(channels, sb.Gaussian(noise=1.0), prior=sb.Normal(100.0))
    tuned = TunedDropout(member=replace(MEMBER, epochs=1), rates=(0.05,)).fit(own, line(40, 0), line(20, 1))
    assert tuned.distribution.rates[0] == 0.05  # once .5, the network's own, at every rate


def test_neither_the_users_network_nor_test_data_take_part():
    own = model()
    before = copy.deepcopy(own.network.state_dict())
    TunedDropout(member=replace(MEMBER, epochs=1)).fit(own, line(40, 0), line(20, 1))
    assert own.network[2].p == 0.5
    assert all(torch.equal(tensor, before[name]) for name, tensor in own.network.state_dict().items())


def test_what_it_cannot_choose_by_is_named():
    train = line(40, 0)
    with pytest.raises(ValueError, match="chosen on a validation set; pass validation="):
        TunedDropout(member=MEMBER).fit(model(), train)
    with pytest.raises(ValueError, match=r"expected Gaussian\(noise=1.0\)"):
        TunedDropout(member=MEMBER).fit(model(likelihood=sb.Gaussian()), train, train)
    with pytest.raises(ValueError, match="rates must be"):
        TunedDropout(rates=(0.1, 1.0))
    with pytest.raises(ValueError, match="share is a part of the epochs"):
        TunedDropout(share=0)
    with pytest.raises(ValueError, match="refit=False"):
        TunedDropout(share=0.5, refit=False)


def folder_with_yacht(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    X = rng.normal(3, 50, (308, 6))
    np.savez(folder / "yacht.npz", X=X, y=5 + 0.1 * X[:, 0] + rng.normal(size=308))
    return folder


def test_every_set_has_a_recipe_whose_networks_fit_its_features():
    for name, problem in data.SETS.items():
        recipe = ALL[f"uci-{name}"]
        for plan in recipe.plans.values():
            outputs = plan.network()(torch.zeros(3, problem.features))
            wide = isinstance(plan.likelihood, sb.HeteroscedasticGaussian)
            assert outputs.shape == (3, 2 if wide else 1)
            plan.model(plan.network(), recipe.likelihood)
        low = recipe.plans["MeanField, low rank"].network()
        full = recipe.plans["MeanField, full rank"].network()
        assert sum(p.numel() for p in low.parameters()) < sum(p.numel() for p in full.parameters())


def test_a_run_has_a_split_for_each_seed_in_the_units_of_the_target(tmp_path):
    folder = run_recipe(
        ALL["uci-yacht"],
        tmp_path / "out",
        data=folder_with_yacht(tmp_path),
        seeds=2,
        overrides={"epochs": 6},  # a subspace of 5 dimensions needs 6 snapshots
        bootstrap=0,
    )
    assert folder.names == tuple(ALL["uci-yacht"].plans)
    one, other = (run.evaluation.sets["test"].labels for run in folder.of("MAP"))
    raw = np.load(tmp_path / "yacht.npz")["y"]
    for split, labels in enumerate((one, other)):
        assert labels is not None
        np.testing.assert_allclose(labels, raw[data.published_rows(308, split)[1]], rtol=1e-5)
    rows = {run.name: run.posterior.info["num_data"] for run in folder.runs if run.seed == 0}
    assert set(rows.values()) == {277}, "all rows of the published training set"


def test_a_recipe_without_data_or_with_too_many_splits_says_so(tmp_path):
    with pytest.raises(ValueError, match="add --data FOLDER"):
        run_recipe(ALL["uci-wine"], tmp_path / "out")
    with pytest.raises(ValueError, match="yacht has 20 published splits, numbered from 0, got 20"):
        run_recipe(ALL["uci-yacht"], tmp_path / "out", data=folder_with_yacht(tmp_path), seeds=21)
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def script():
    path = Path(__file__).resolve().parents[2] / "benchmarks" / "uci.py"
    spec = importlib.util.spec_from_file_location("uci_table", path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    assert spec.loader is not None
    spec.loader.exec_module(module)
    return module


def test_the_table_gives_means_and_standard_errors_over_splits(script):
    found = pd.DataFrame(
        {"set": ["boston"] * 4, "method": ["MCDropout"] * 4, "split": range(4), "rmse": [2.0, 3.0, 3.0, 4.0]}
    )
    assert "| boston (4) | 3.00 +- 0.41 |" in script.table(found, "rmse")  # sqrt(2/3) / 2
    # (3 - 2.90) / sqrt(.408^2 + .18^2): the standard error as printed
    assert "| 3.00 +- 0.41 | 2.90 +- 0.18 | +0.2 | within 2 |" in script.beside_published(found)
    # (3 - 3.28) / sqrt(.408^2 + (1.00 / 2)^2): the deviation over the root of 4 splits
    ensemble = found.assign(method="DeepEnsemble")
    assert "| 3.28 +- 1.00 | -0.4 | within 2 |" in script.beside_published(ensemble)
    assert "| worse |" in script.beside_published(ensemble.assign(rmse=ensemble["rmse"] + 4))
    assert "| better |" in script.beside_published(ensemble.assign(rmse=ensemble["rmse"] - 2))
