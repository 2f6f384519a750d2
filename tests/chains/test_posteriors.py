"""Chains of a posterior: draws and predictions of each, tables of both, and density as draws are added."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import singularbayes as sb
from singularbayes import chains
from singularbayes.chains import cumulative, posteriors
from singularbayes.distributions import StoredDraws
from singularbayes.posterior import Posterior
from singularbayes.sampling import Samples, Statistics

C, N = 3, 40


def network(outputs: int = 1) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, outputs))


def sampled(likelihood, net: nn.Module, seed: int = 0, **choice) -> Posterior:
    """Made-up draws around the network's weights: chain c is shifted by c in all of them."""
    model = sb.Model(net, likelihood, **choice)
    start = model.layout.flatten(model.network, likelihood.parameters)
    noise = torch.randn(N, C, model.layout.size, generator=torch.Generator().manual_seed(seed))
    rows = start + 0.3 * noise + 0.2 * torch.arange(C)[:, None]
    rows = rows.flatten(0, 1)
    info = {"method": "made up", "chains": C, "draws_per_chain": N}
    return Posterior(model.copy_network(), StoredDraws(rows), likelihood, model.layout, info)


X = torch.randn(7, 2, generator=torch.Generator().manual_seed(3)) * torch.tensor([1.0, 5.0])
Y = X[:, 0] - 0.1 * X[:, 1]
LIKELIHOODS = [
    (sb.Gaussian(noise=0.5), 1, Y),
    (sb.Gaussian(), 2, torch.stack([Y, -Y], 1)),
    (sb.HeteroscedasticGaussian(), 2, Y),
    (sb.Categorical(), 3, torch.tensor([0, 1, 2, 0, 1, 2, 0])),
    (sb.Bernoulli(), 1, (Y > 0).long()),
]


def test_rows_go_back_to_their_chains():
    """Wrong on purpose: rows taken chain by chain mix the chains up."""
    posterior = sampled(sb.Gaussian(noise=1.0), network())
    draws = chains.by_chain(posterior)
    assert draws.shape == (C, N, posterior.layout.size)
    torch.testing.assert_close(draws[1, 5], posterior.distribution.draws[5 * C + 1], rtol=0, atol=0)
    steps = draws.mean((1, 2)).diff()
    assert (steps - 0.2).abs().max() < 0.05
    wrong = posterior.distribution.draws.unflatten(0, (C, N)).mean((1, 2)).diff()
    assert (wrong - 0.2).abs().min() > 0.1


@pytest.mark.parametrize(("likelihood", "outputs", "y"), LIKELIHOODS, ids=lambda v: type(v).__name__)
def test_predictions_of_a_chain_are_those_of_its_draws(likelihood, outputs, y, monkeypatch):
    posterior = sampled(likelihood, network(outputs))
    monkeypatch.setattr(posteriors, "_NUMBERS", 3 * C * N * outputs)  # three rows at a time
    means, raw = chains.predictions(posterior, X), chains.predictions(posterior, X, outputs=True)
    for chain, step in ((0, 0), (2, 17)):
        row = posterior.distribution.draws[step * C + chain : step * C + chain + 1]
        own = posterior.functions(row, X)
        torch.testing.assert_close(raw[chain, step], own[0])
        atom = Posterior(posterior.network, StoredDraws(row), likelihood, posterior.layout, {})
        torch.testing.assert_close(means[chain, step], atom.predict(X).mean)


@pytest.mark.parametrize(("likelihood", "outputs", "y"), LIKELIHOODS, ids=lambda v: type(v).__name__)
def test_density_of_first_draws_is_that_of_a_posterior_of_them(likelihood, outputs, y, monkeypatch):
    """Against ``predict`` of the first n draws, alone; learned noise of each draw counts."""
    posterior = sampled(likelihood, network(outputs))
    monkeypatch.setattr(cumulative, "_NUMBERS", 3 * C * N)
    found = chains.cumulative_log_density(posterior, (X, y))
    draws = chains.by_chain(posterior)

    def alone(rows: torch.Tensor) -> float:
        part = Posterior(posterior.network, StoredDraws(rows), likelihood, posterior.layout, {})
        return part.predict(X, draws=len(rows)).log_prob(y).double().mean().item()

    for n in (1, 6, N):
        assert found.by_chain[1, n - 1].item() == pytest.approx(alone(draws[1, :n]), abs=2e-5)
        assert found.pooled[n - 1].item() == pytest.approx(alone(draws[:, :n].flatten(0, 1)), abs=2e-5)
    for c in (1, 2, C):
        assert found.by_chains[c - 1].item() == pytest.approx(alone(draws[:c].flatten(0, 1)), abs=2e-5)


def test_density_leaves_a_calibration_aside():
    posterior = sampled(sb.Categorical(), network(3))
    y = LIKELIHOODS[3][2]
    hotter = Posterior(
        posterior.network,
        posterior.distribution,
        sb.Categorical(temperature=3.0),
        posterior.layout,
        posterior.info,
    )
    one, two = (chains.cumulative_log_density(p, (X, y)).pooled for p in (posterior, hotter))
    torch.testing.assert_close(one, two, rtol=0, atol=0)


def curve(values: torch.Tensor) -> chains.CumulativeLogDensity:
    return chains.CumulativeLogDensity(values.expand(3, -1), values, values[:3])


def test_enough_is_where_the_curve_stays_near_its_end():
    flat = torch.full((100,), -1.0)
    assert curve(flat).enough() == 1
    dip = flat.clone()
    dip[[0, 29]] = -1.5
    assert curve(dip).enough(0.1) == 31
    rising = torch.linspace(-2, -1, 100)
    assert curve(rising).enough(0.05) is None
    assert curve(rising).enough(0.5) == 51
    assert curve(torch.tensor([-3.0, -1.0, -1.0])).enough_chains() == 2
    assert curve(torch.tensor([-3.0, -2.0, -1.0])).enough_chains() is None
    with pytest.raises(ValueError, match="tolerance must be positive"):
        curve(flat).enough(0.0)


def test_a_summary_names_every_weight():
    posterior = sampled(sb.Gaussian(noise=1.0), network())
    table = chains.summary(posterior)
    assert list(table.index[:3]) == ["0.weight[0, 0]", "0.weight[0, 1]", "0.weight[1, 0]"]
    assert len(table) == posterior.layout.belief
    draws = chains.by_chain(posterior)
    np.testing.assert_allclose(table["mean"], draws.mean((0, 1)), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(table["rhat"], chains.rhat(draws), rtol=1e-12)
    np.testing.assert_allclose(table["rhat_by_chain"], chains.rhat_by_chain(draws).max(0), rtol=1e-12)
    np.testing.assert_allclose(table["ess_bulk"], chains.ess_bulk(draws), rtol=1e-12)
    np.testing.assert_allclose(table["ess_tail"], chains.ess_tail(draws), rtol=1e-12)
    np.testing.assert_allclose(table["mcse_std"], chains.mcse_std(draws), rtol=1e-12)
    np.testing.assert_allclose(table["mcse_mean"], chains.mcse_mean(draws), rtol=1e-12)
    np.testing.assert_allclose(table["mcse_q5"], chains.mcse_quantile(draws, 0.05), rtol=1e-12)
    np.testing.assert_allclose(table["q95"], np.quantile(draws, 0.95, axis=(0, 1)), rtol=1e-5)


def test_a_summary_of_predictions_has_a_row_for_each_input_and_class(monkeypatch):
    posterior = sampled(sb.Categorical(), network(3))
    monkeypatch.setattr(posteriors, "_NUMBERS", 3 * C * N * 3)
    table = chains.summary(posterior, X, quantiles=(0.5,))
    assert list(table.index[:4]) == ["mean[0, 0]", "mean[0, 1]", "mean[0, 2]", "mean[1, 0]"]
    found = chains.predictions(posterior, X)
    np.testing.assert_allclose(table["rhat"], chains.rhat(found).ravel(), rtol=1e-12)
    assert {"q50", "mcse_q50"} <= set(table.columns)
    raw = chains.summary(posterior, X, outputs=True)
    np.testing.assert_allclose(
        raw["mean"],
        chains.predictions(posterior, X, outputs=True).mean((0, 1)).flatten(),
        rtol=1e-4,
        atol=1e-6,
    )
    assert raw.index[0] == "output[0, 0]"


def test_a_summary_says_why_a_number_is_missing():
    x = np.random.default_rng(0).standard_normal((4, 50, 3))
    x[..., 1] = 2.0
    x[0, 0, 2] = np.inf
    table = chains.summary(x, names=["fine", "still", "broken"])
    assert table["note"].tolist() == ["", "constant", "not finite"]
    assert table[["rhat", "ess_bulk", "mcse_mean", "rhat_by_chain"]].isna().all(axis=1).tolist() == [
        False,
        True,
        True,
    ]
    short = chains.summary(x[:, :3, :1])
    assert short["note"].tolist() == ["fewer than 4 draws of a chain"]
    assert short["rhat"].isna().all()
    assert math.isfinite(short["mean"].iloc[0])


def test_hidden_units_that_change_places_leave_predictions_mixed():
    """Label switching: each chain has the same network with its units in another order."""
    model = sb.Model(network(), sb.Gaussian(noise=1.0))
    start = model.layout.flatten(model.network)
    rows = (start + 0.02 * torch.randn(N, C, 13, generator=torch.Generator().manual_seed(0))).flatten(0, 1)
    for chain, order in enumerate(([0, 1, 2], [2, 0, 1], [1, 2, 0])):
        own = rows[chain::C]
        own[:, :6] = own[:, :6].view(-1, 3, 2)[:, order].flatten(1)
        own[:, 6:9], own[:, 9:12] = own[:, 6:9][:, order], own[:, 9:12][:, order]
        rows[chain::C] = own
    info = {"chains": C, "draws_per_chain": N}
    posterior = Posterior(model.copy_network(), StoredDraws(rows), model.likelihood, model.layout, info)
    table = chains.overview(posterior, X)
    assert table.loc["weights", "rhat_max"] > 2
    assert table.loc["predictions", "rhat_max"] < 1.1
    assert table.loc["weights", "rhat_by_chain_max"] < 1.2
    assert table.loc["weights", "quantities"] == 13
    assert chains.overview(posterior, X, most=5).loc["weights", "quantities"] == 5


def test_samples_are_read_as_their_draws():
    draws = torch.randn(4, 30, 2, generator=torch.Generator().manual_seed(0))
    empty = Statistics.empty(4, 30, draws.device)
    samples = Samples(draws, torch.zeros(4, 30, dtype=torch.float64), empty, empty, {}, {})
    np.testing.assert_array_equal(chains.rhat(samples), chains.rhat(draws))
    assert chains.summary(samples).index.tolist() == ["x[0]", "x[1]"]


def test_what_has_no_chains_is_named(unchecked):
    plain = sb.MAP(epochs=1).fit(sb.Model(network(), sb.Gaussian(noise=1.0)), (X, Y))
    with pytest.raises(ValueError, match=r"not sampled by chains \(method 'MAP'\)"):
        chains.summary(plain)
    with pytest.raises(TypeError, match="got a list"):
        chains.by_chain([1.0])
    mixture = sb.MixturePosterior([plain, plain], [0.5, 0.5])
    with pytest.raises(ValueError, match="Posterior that was sampled by chains, got a MixturePosterior"):
        chains.summary(mixture, X)
    with pytest.raises(TypeError, match="got a MixturePosterior; of a mixture look at its members"):
        chains.predictions(mixture, X)
    with pytest.raises(TypeError, match=r"got MixturePosterior .*sb\.chains\.predictions\(posterior, x\)"):
        chains.rhat(mixture)
    posterior = sampled(sb.Gaussian(noise=1.0), network())
    posterior.info["chains"] = 7
    with pytest.raises(ValueError, match=f"{C * N} draws, and its info says 7 chains"):
        chains.predictions(posterior, X)
    with pytest.raises(ValueError, match="x and outputs are about"):
        chains.summary(np.zeros((2, 9, 1)), X)
    with pytest.raises(ValueError, match="names for 1 quantities"):
        chains.summary(np.zeros((2, 9, 1)), names=["a", "b"])
    with pytest.raises(ValueError, match="give x"):
        chains.summary(sampled(sb.Gaussian(noise=1.0), network()), outputs=True)
