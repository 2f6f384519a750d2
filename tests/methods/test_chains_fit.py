"""Chains on networks: exact where the posterior is known, one target for all chains, resumable, anywhere."""

import multiprocessing
import re
import warnings
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import singularbayes as sb
from singularbayes.distributions import StoredDraws
from singularbayes.methods import chain_groups, chains_fit
from singularbayes.methods.chains_fit import fit_chains, network_starts
from singularbayes.methods.learner import prepare
from singularbayes.methods.network_density import NetworkDensity
from singularbayes.sampling.mass import UnitMass
from singularbayes.sampling.run import ChainsStuck, ChainWarning

SOURCE = torch.Generator().manual_seed(1)
X = torch.randn(30, 3, generator=SOURCE) * torch.tensor([1.0, 10.0, 0.1])
Y = (X[:, 0] > 0).long()


def network() -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def model_of(net: nn.Module | None = None, **choices) -> sb.Model:
    return sb.Model(net or network(), sb.Categorical(), **choices)


# A fixed small step: nearly every move is accepted, so that short runs warn of nothing.
SHORT = sb.HMC(chains=4, warm_up=3, draws=5, step_size=0.01, max_steps=3)


# Exact posteriors: features that are correlated and badly scaled, and a prior for each parameter

FEATURES = torch.randn(25, 2, generator=SOURCE, dtype=torch.float64)
FEATURES = torch.stack([FEATURES[:, 0], 2 * FEATURES[:, 0] + FEATURES[:, 1]], 1)
TARGETS = FEATURES @ torch.tensor([0.7, -0.4], dtype=torch.float64) + 0.5 * torch.randn(
    25, generator=SOURCE, dtype=torch.float64
)
NOISE, STDS = 0.5, torch.tensor([0.35, 0.35, 2.0], dtype=torch.float64)  # two weights, then the bias


def regression() -> sb.Model:
    torch.manual_seed(0)
    prior = sb.PerParameter({"weight": sb.Normal(0.35), "bias": sb.Normal(2.0)})
    return sb.Model(nn.Linear(2, 1).double(), sb.Gaussian(noise=NOISE), prior=prior)


def exact(data: float = 1.0, priors: float = 1.0) -> tuple[Tensor, Tensor]:
    """Mean and covariance where the likelihood and the prior are counted so many times."""
    design = torch.cat([FEATURES, torch.ones(25, 1, dtype=torch.float64)], 1)
    precision = priors * torch.diag(STDS**-2) + data * design.T @ design / NOISE**2
    covariance = torch.linalg.inv(precision)
    return data * covariance @ design.T @ TARGETS / NOISE**2, covariance


def gaps(draws: Tensor, mean: Tensor, covariance: Tensor) -> Tensor:
    """Errors of means, and of products about the mean, in standard errors from independent chains."""
    centred = draws - mean
    products = centred.unsqueeze(-1) * centred.unsqueeze(-2)
    upper = torch.triu_indices(3, 3)
    found = torch.cat([draws, products[..., upper[0], upper[1]]], -1).mean(1)
    right = torch.cat([mean, covariance[upper[0], upper[1]]])
    return (found.mean(0) - right).abs() / (found.std(0) / len(found) ** 0.5)


@pytest.fixture(scope="module")
def sampled() -> sb.Posterior:
    method = sb.HMC(chains=48, warm_up=100, draws=40, max_steps=12)
    return method.fit(regression(), (FEATURES, TARGETS), seed=3)


def test_chains_give_the_exact_posterior_of_a_linear_model(sampled: sb.Posterior):
    """3 means and 6 products in 48 chains' standard errors: above 4 by chance with probability 2e-3."""
    draws = sampled.distribution.draws.view(40, 48, 3).transpose(0, 1)
    assert gaps(draws, *exact()).max() < 4
    # the mean NLL in place of the sum; the prior twice; no prior; the data twice
    for wrong in ({"data": 1 / 25}, {"priors": 2.0}, {"priors": 0.0}, {"data": 2.0}):
        assert gaps(draws, *exact(**wrong)).max() > 5.5, wrong


def test_a_temperature_weighs_the_likelihood_and_not_the_prior():
    """9 numbers in standard errors of 48 chains, as above."""
    fixed = sb.HMC(chains=48, warm_up=25, draws=25, step_size=0.1, trajectory=0.6, mass=UnitMass())
    method = replace(fixed, temperature=4.0)
    posterior = method.fit(regression(), (FEATURES, TARGETS), seed=4)
    draws = posterior.distribution.draws.view(25, 48, 3).transpose(0, 1)
    assert gaps(draws, *exact(data=0.25)).max() < 4
    assert gaps(draws, *exact(data=0.25, priors=0.25)).max() > 8, "a tempered prior"


def test_info_says_of_each_chain_what_it_did(sampled: sb.Posterior):
    info = sampled.info
    assert (info["method"], info["chains"], info["draws_per_chain"]) == ("HMC", 48, 40)
    assert (info["num_data"], info["seed"], info["warm_up"], info["thin"]) == (25, 3, 100, 1)
    for name in ("acceptance", "divergences", "gradients", "step_size"):
        assert len(info[name]) == 48, name
    assert all(0.6 < acceptance <= 1 for acceptance in info["acceptance"])
    assert len(set(info["step_size"])) > 40, "chains share a step size"
    assert min(info["gradients"]) >= 140
    assert info["numbers"] == 48 * 40 * 3
    assert info["settings"]["warm_up"] == 100
    assert "executor" not in info["settings"]


# What is stored


def test_rows_are_stored_step_by_step():
    """Draw n of chain c is row n * C + c: the chains of a short run stay near starts that are far apart."""
    posterior = SHORT.fit(model_of(), (X, Y))
    model = model_of()
    starts = network_starts(SHORT, model, prepare(model, None, (X, Y), None, model.device), 0)
    assert isinstance(posterior.distribution, StoredDraws)
    rows = posterior.distribution.draws.view(5, 4, -1)
    apart = torch.cdist(starts, starts).fill_diagonal_(torch.inf).min()
    for chain in range(4):
        assert (rows[:, chain] - starts[chain]).norm(dim=1).max() < apart / 2
    assert len(posterior.distribution.draws.unique(dim=0)) == 20


class Normalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)
        self.frozen = nn.Linear(2, 2).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(self.last(self.norm(self.first(x)).relu()))


def test_all_chains_have_one_target_and_what_has_no_belief_never_moves():
    """Gains, a point estimate and statistics are bitwise one in all draws; the last of one pass."""
    torch.manual_seed(0)
    model = model_of(Normalised(), deterministic="last.bias")
    layout = model.layout
    posterior = SHORT.fit(model, (X, Y))
    rows = posterior.distribution.draws
    rest = rows[:, layout.belief :]
    assert torch.equal(rest, rest[:1].expand_as(rest))
    views = layout.views(rows[0])
    assert torch.equal(views["last.bias"], model.network.last.bias)
    assert torch.equal(views["norm.weight"], torch.ones(4))
    hidden = model.network.first(X).detach()
    torch.testing.assert_close(views["norm.running_mean"], hidden.mean(0))
    torch.testing.assert_close(views["norm.running_var"], hidden.var(0), rtol=0.1, atol=0)
    assert torch.equal(posterior.network.frozen.weight, model.network.frozen.weight)
    assert len(rows[:, : layout.belief].unique(dim=0)) == 20
    assert {"last.bias", "norm.weight", "norm.running_mean"} <= set(posterior.info["held_fixed"])


def test_chains_start_apart_or_at_the_network():
    model = model_of()
    prepared = prepare(model, None, (X, Y), None, model.device)
    own = model.layout.flatten(model.network)
    apart = network_starts(SHORT, model, prepared, 0)
    assert torch.cdist(torch.cat([apart, own[None]]), apart)[:4].add(torch.eye(4)).min() > 0.1
    assert not torch.equal(apart, network_starts(SHORT, model, prepared, 1))
    together = network_starts(replace(SHORT, reinitialize=False), model, prepared, 0)
    assert torch.equal(together, own.expand(4, -1))
    more = network_starts(replace(SHORT, chains=6), model, prepared, 0)
    assert torch.equal(more[:4], apart)


def test_only_free_entries_move_and_from_the_rows_that_are_given():
    model = model_of()
    rows = torch.randn(3, model.layout.size, generator=torch.Generator().manual_seed(0))
    free = torch.tensor([7, 2, 20])
    posterior = fit_chains(
        SHORT, model, (X, Y), seed=0, checkpoint=None, progress=None, label="Part", rows=rows, free=free
    )
    draws = posterior.distribution.draws.view(5, 3, -1)
    held = torch.ones(model.layout.size, dtype=torch.bool)
    held[free] = False
    assert torch.equal(draws[..., held], rows[:, held].expand(5, -1, -1))
    assert (draws[..., free] != rows[:, free]).all()
    assert (posterior.info["method"], posterior.info["chains"]) == ("Part", 3)
    assert (posterior.info["dimension"], posterior.info["numbers"]) == (3, 5 * 3 * 3)


def test_thinned_draws_are_every_third_step():
    every = replace(SHORT, draws=6).fit(model_of(), (X, Y)).distribution.draws
    thinned = replace(SHORT, draws=2, thin=3).fit(model_of(), (X, Y)).distribution.draws
    assert torch.equal(thinned, every.view(6, 4, -1)[2::3].reshape(8, -1))


def test_validation_data_are_scored_by_the_predictive():
    x, y = X[:7], Y[:7]
    posterior = SHORT.fit(model_of(), (X, Y), (x, y))
    right = -posterior.predict(x, draws=20).log_prob(y).mean().item()
    assert posterior.info["validation_nll"] == pytest.approx(right, rel=1e-5)
    assert "validation_nll" not in SHORT.fit(model_of(), (X, Y)).info
    with pytest.raises(ValueError, match="label 5 in row 0 is out of range"):
        SHORT.fit(model_of(), (X, Y), (x, y * 0 + 5))


# Groups and executors


def test_an_executor_decides_where_groups_run_and_nothing_else():
    method = replace(SHORT, group=2)
    alone = method.fit(model_of(), (X, Y), seed=5)
    spawn = multiprocessing.get_context("spawn")
    # the last bits depend on the number of threads, so the worker has one as this process has
    with ProcessPoolExecutor(1, mp_context=spawn, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        pooled = replace(method, executor=pool).fit(model_of(), (X, Y), seed=5)
        bare = model_of(nn.Sequential(nn.Linear(3, 2)))
        bare.network.lost = lambda: None
        with pytest.raises(TypeError, match=r"can be pickled.*top of a module"):
            replace(method, executor=pool).fit(bare, (X, Y))
        stuck = replace(method, executor=pool, step_size=1e6, warm_up=100)
        with pytest.raises(ChainsStuck, match=r"of chains 0 to 1: .* never accepted") as caught:
            stuck.fit(model_of(), (X, Y))
    assert caught.value.samples.warm_up.acceptance.shape == (2, 100)
    assert torch.equal(alone.distribution.draws, pooled.distribution.draws)
    told = [{k: v for k, v in p.info.items() if k != "seconds"} for p in (alone, pooled)]
    told = [{**info, "settings": str(info["settings"])} for info in told]
    assert told[0] == told[1]
    assert len(alone.info["acceptance"]) == 4


def test_threads_are_refused():
    with ThreadPoolExecutor(1) as pool, pytest.raises(TypeError, match="threads share torch's"):
        sb.HMC(executor=pool)


def test_groups_are_named_in_warnings_by_their_place_among_all_chains():
    """Chain 3 starts where the density is so narrow that this step size is never accepted there."""
    model = sb.Model(nn.Linear(1, 1, bias=False), sb.Gaussian(noise=1.0), prior=sb.ScaleMixture(std2=1e-4))
    data = (torch.zeros(2, 1), torch.zeros(2))
    rows = torch.tensor([[0.5], [-0.5], [1.0], [0.0]])
    method = sb.HMC(warm_up=0, draws=20, step_size=0.3, group=2, max_steps=1)
    with pytest.warns(ChainWarning) as told:
        fit_chains(method, model, data, seed=0, checkpoint=None, progress=None, rows=rows)
    assert any("chain 3 never accepted" in str(warning.message) for warning in told)


# Interrupts


class Interrupted(NetworkDensity):
    calls = 0
    last = 10**9

    def __call__(self, position: Tensor) -> tuple[Tensor, Tensor]:
        type(self).calls += 1
        if type(self).calls > type(self).last:
            raise KeyboardInterrupt
        return super().__call__(position)


@pytest.mark.filterwarnings("ignore::singularbayes.sampling.run.ChainWarning")  # a warm-up of 20 steps
def test_an_interrupted_fit_goes_on_to_the_same_numbers(tmp_path, monkeypatch: pytest.MonkeyPatch):
    """Killed in the second of two groups; of the first nothing is computed again but its start."""
    monkeypatch.setattr(chain_groups, "NetworkDensity", Interrupted)
    method = sb.HMC(chains=4, warm_up=20, draws=10, group=2, max_steps=8)
    whole = method.fit(model_of(), (X, Y), seed=1).distribution.draws
    needed = Interrupted.calls
    Interrupted.calls, Interrupted.last = 0, int(0.8 * needed)
    with pytest.raises(KeyboardInterrupt) as stopped:
        method.fit(model_of(), (X, Y), seed=1, checkpoint=tmp_path)
    assert "goes on from there" in "".join(stopped.value.__notes__)
    Interrupted.calls, Interrupted.last = 0, 10**9
    again = method.fit(model_of(), (X, Y), seed=1, checkpoint=tmp_path).distribution.draws
    assert torch.equal(again, whole)
    assert Interrupted.calls < 0.5 * needed
    more = replace(method, draws=14).fit(model_of(), (X, Y), seed=1, checkpoint=tmp_path)
    assert torch.equal(more.distribution.draws[:40], whole)


@pytest.mark.parametrize("change", ["data", "prior", "temperature", "seed", "network", "settings"])
def test_a_checkpoint_of_another_fit_is_refused(tmp_path, change: str):
    SHORT.fit(model_of(), (X, Y), checkpoint=tmp_path)
    method, model, data, seed = SHORT, model_of(), (X, Y), 0
    if change == "data":
        data = (X, 1 - Y)
    elif change == "prior":
        model = model_of(prior=sb.Normal(2.0))
    elif change == "temperature":
        method = replace(SHORT, temperature=2.0)
    elif change == "seed":
        seed = 1
    elif change == "network":
        model = model_of(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    else:
        method = replace(SHORT, step_size=0.011)
    with pytest.raises(ValueError, match="checkpoint of another"):
        method.fit(model, data, seed=seed, checkpoint=tmp_path)


# Bad input


def test_weights_and_outputs_that_are_not_finite_are_named_at_the_start():
    broken = network()
    with torch.no_grad():
        broken[2].bias[1] = torch.nan
    with pytest.raises(ValueError, match=r"2\.bias of the network that chain 0 starts at holds nan"):
        replace(SHORT, reinitialize=False).fit(model_of(broken), (X, Y))
    frozen = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2).requires_grad_(False))
    with torch.no_grad():
        frozen[1].weight[0, 0] = torch.inf
    with pytest.raises(ValueError, match="log density at the start of chains 0, 1, 2, 3 is") as caught:
        SHORT.fit(model_of(frozen), (X, Y))
    assert "of chains 0 to 3" in "".join(caught.value.__notes__)


def test_chains_that_never_accept_are_an_error_and_what_they_did_is_saved(tmp_path):
    method = replace(SHORT, step_size=1e6, warm_up=100)
    with pytest.raises(ChainsStuck, match="chains 0, 1, 2, 3 never accepted a proposal") as caught:
        method.fit(model_of(), (X, Y), checkpoint=tmp_path)
    assert caught.value.samples.warm_up.acceptance.shape == (4, 100)
    assert (tmp_path / "group-0" / "chains.json").exists()


def test_more_draws_than_the_memory_holds_are_refused_with_their_size(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(chains_fit, "_memory", lambda device: 10**9)
    message = "4,000,000 draws of 26 numbers take 0.416 GB, .* 2 times that.* has 1 GB. Keep fewer: thin=10"
    replace(SHORT, draws=1).fit(model_of(), (X, Y))
    monkeypatch.setattr(chains_fit, "_memory", lambda device: 8 * 10**8)
    with pytest.raises(ValueError, match=message.replace("1 GB", "0.8 GB")):
        replace(SHORT, draws=10**6).fit(model_of(), (X, Y))


def test_settings_and_models_are_checked_before_any_work(unchecked):
    for name, value in (("draws", 0), ("chains", 0), ("thin", 0), ("group", 0), ("warm_up", -1)):
        with pytest.raises(ValueError, match=f"{name} must be"):
            replace(SHORT, **{name: value})
    with pytest.raises(ValueError, match="temperature must be positive"):
        replace(SHORT, temperature=0.0)
    with pytest.raises(TypeError, match=r"a method fits an sb\.Model"):
        SHORT.fit(network(), (X, Y))
    with pytest.raises(ValueError, match=re.escape("expected (chains, 26)")):
        fit_chains(SHORT, model_of(), (X, Y), seed=0, checkpoint=None, progress=None, rows=torch.zeros(2, 25))


def test_a_noise_level_that_nobody_set_is_warned_of_and_stays():
    model = sb.Model(nn.Linear(3, 1), sb.Gaussian())
    with pytest.warns(UserWarning, match="learns its noise"):
        posterior = SHORT.fit(model, (X, X[:, 0]))
    assert (posterior.distribution.draws[:, -1] == 0).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted = sb.Model(nn.Linear(3, 1), sb.Gaussian(initial_noise=0.7))
        posterior = SHORT.fit(fitted, (X, X[:, 0]))
    torch.testing.assert_close(posterior.distribution.draws[:, -1].exp(), torch.full((20,), 0.7))
