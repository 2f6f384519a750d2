"""Chains from the members of an ensemble: where they start, what they keep, which are left out."""

import dataclasses
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import singularbayes as sb
from singularbayes.methods import deep_ensemble_mcmc
from singularbayes.methods.linear_baseline import LinearBaseline
from singularbayes.random import derive

SOURCE = torch.Generator().manual_seed(1)
X = torch.randn(60, 3, generator=SOURCE) * torch.tensor([1.0, 10.0, 0.1])
Y = torch.sin(2 * X[:, 0]) + 0.05 * X[:, 1] + 0.1 * torch.randn(60, generator=SOURCE)
TRAIN, HELD = (X[:45], Y[:45]), (X[45:], Y[45:])
MEMBER = sb.MAP(epochs=50, batch_size=45, learning_rate=0.05)
STILL = sb.HMC(warm_up=0, draws=1, step_size=1e-7, max_steps=1)
SHORT = sb.HMC(warm_up=5, draws=12, max_steps=3)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1))


def model_of(likelihood=None, net: nn.Module | None = None, **choice) -> sb.Model:
    return sb.Model(net or network(), likelihood or sb.Gaussian(noise=0.3), **choice)


def fitted(method: sb.DeepEnsembleMCMC, model: sb.Model | None = None, validation=None, **options):
    return method.fit(model or model_of(), TRAIN, validation, **options)


def test_each_chain_starts_at_its_own_member():
    """Wrong on purpose: all chains from one member, or from fresh initialisations."""
    chains = fitted(sb.DeepEnsembleMCMC(members=3, member=MEMBER, sampler=STILL), seed=4)
    members = sb.DeepEnsemble(members=3, member=MEMBER).fit(model_of(), TRAIN, seed=4).distribution.draws
    assert (chains.distribution.draws - members).abs().max() < 1e-4
    assert (members[0] - members[1]).abs().max() > 0.1


def test_learned_noise_points_and_statistics_stay_as_each_member_has_them():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 1))
    model = model_of(sb.Gaussian(), net, deterministic="3.bias")
    posterior = fitted(sb.DeepEnsembleMCMC(members=3, member=MEMBER, sampler=SHORT), model)
    members = sb.DeepEnsemble(members=3, member=MEMBER).fit(model, TRAIN).distribution.draws
    held = slice(model.layout.belief, model.layout.size)
    draws = sb.chains.by_chain(posterior)
    torch.testing.assert_close(draws[:, :, held], members[:, None, held].expand(-1, 12, -1), rtol=0, atol=0)
    noise = model.layout.likelihood_views(members)["log_noise"]
    assert len(noise.unique()) == 3, "members found different noise"
    assert (draws[:, 0, : model.layout.belief] - draws[:, -1, : model.layout.belief]).abs().max() > 1e-3
    spread = posterior.predict(X, draws=posterior.support).variances[:, 0]
    assert len(spread.unique()) == 3, "each draw predicts with its own noise"


@dataclass(frozen=True)
class Planted:
    """Trains as ``MEMBER``, but for some members, whose network ends as a constant far off."""

    bad: tuple[int, ...]

    def fit(self, model: sb.Model, train, validation=None, *, seed, checkpoint=None, progress=None):
        posterior = MEMBER.fit(model, train, validation, seed=seed, checkpoint=checkpoint)
        if seed in [derive(0, "member", number) for number in self.bad]:
            posterior.distribution.draws.mul_(0.0).add_(1.0)
        return posterior


NEAR = sb.HMC(warm_up=0, draws=6, step_size=1e-3, max_steps=2)


def test_a_chain_that_is_worse_than_a_linear_model_is_left_out_by_name():
    method = sb.DeepEnsembleMCMC(members=3, member=Planted((1,)), sampler=NEAR)
    with pytest.warns(UserWarning, match=r"worse than a linear model .*: member 1 \(.*\); they are left out"):
        posterior = fitted(method, validation=HELD)
    assert posterior.info["members"] == [0, 2]
    assert posterior.info["dropped"] == ["member 1"]
    assert posterior.info["chains"] == 2
    assert posterior.support == 12
    assert len(posterior.info["chain_log_density"]) == 3
    assert posterior.info["chain_log_density"][1] < posterior.info["linear_log_density"]
    assert len(posterior.info["acceptance"]) == 2
    with pytest.warns(UserWarning, match="member 1 .*they are kept, as drop=False asks"):
        whole = fitted(
            sb.DeepEnsembleMCMC(members=3, member=Planted((1,)), sampler=NEAR, drop=False), validation=HELD
        )
    kept = sb.chains.by_chain(whole)[[0, 2]]
    torch.testing.assert_close(sb.chains.by_chain(posterior), kept, rtol=0, atol=0)
    assert posterior.info["numbers"] * 3 == whole.info["numbers"] * 2


def test_good_chains_are_all_kept(recwarn):
    posterior = fitted(sb.DeepEnsembleMCMC(members=3, member=MEMBER, sampler=NEAR), validation=HELD)
    assert posterior.info["members"] == [0, 1, 2]
    assert posterior.info["dropped"] == []
    assert not recwarn.list


def test_where_no_chain_beats_a_linear_model_all_are_kept_and_it_is_said():
    method = sb.DeepEnsembleMCMC(members=2, member=Planted((0, 1)), sampler=NEAR)
    with pytest.warns(UserWarning, match=r"the training data .*no chain is better, so all are kept"):
        assert fitted(method).info["chains"] == 2


@pytest.mark.filterwarnings("ignore:chain.*acceptance")
def test_a_line_that_fits_every_training_row_leaves_no_chain_out(recwarn):
    """Before: chains of a network that had learned, on as many features as rows, were worse than the line."""
    source = torch.Generator().manual_seed(3)
    x = torch.randn(12, 12, generator=source)
    y = x[:, 0].sin() + 0.3 * torch.randn(12, generator=source)
    torch.manual_seed(0)
    model = model_of(net=nn.Sequential(nn.Linear(12, 4), nn.Tanh(), nn.Linear(4, 1)))
    posterior = sb.DeepEnsembleMCMC(members=3, member=MEMBER, sampler=NEAR).fit(model, (x, y))
    perfect = LinearBaseline(model, (x, y)).log_density((x, y))
    assert min(posterior.info["chain_log_density"]) < perfect - 1e-3
    assert posterior.info["dropped"] == []
    assert not recwarn.list


def test_validation_decides_where_there_is_some():
    """A chain that fits the training data alone."""
    posterior = fitted(sb.DeepEnsembleMCMC(members=2, member=MEMBER, sampler=NEAR), validation=HELD)
    alone = sb.chains.cumulative_log_density(posterior, HELD).by_chain[:, -1].tolist()
    assert posterior.info["chain_log_density"] == pytest.approx(alone, abs=1e-6)
    pooled = posterior.predict(HELD[0], draws=12).log_prob(HELD[1]).mean().item()
    assert posterior.info["validation_nll"] == pytest.approx(-pooled, abs=1e-5)


class Here(Executor):
    """Runs at once what it is given, and notes it."""

    def __init__(self) -> None:
        self.jobs: list[str] = []

    def submit(self, fn, /, *args, **kwargs):
        self.jobs.append(fn.__name__)
        future: Future = Future()
        future.set_result(fn(*args, **kwargs))
        return future


POOLED = sb.DeepEnsembleMCMC(members=3, member=MEMBER, sampler=dataclasses.replace(SHORT, group=2))


@pytest.fixture(scope="module")
def pooled():
    return fitted(POOLED)


def test_an_executor_runs_members_and_groups_of_chains_and_changes_no_number(pooled):
    executor = Here()
    there = fitted(dataclasses.replace(POOLED, executor=executor))
    assert len(executor.jobs) == 3 + 2
    torch.testing.assert_close(pooled.distribution.draws, there.distribution.draws, rtol=0, atol=0)


def test_a_run_that_was_cut_short_goes_on_with_its_members(pooled, tmp_path, monkeypatch):
    real = deep_ensemble_mcmc.fit_chains

    def killed(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(deep_ensemble_mcmc, "fit_chains", killed)
    with pytest.raises(KeyboardInterrupt):
        fitted(POOLED, checkpoint=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"member-0", "member-1", "member-2"}
    monkeypatch.setattr(deep_ensemble_mcmc, "fit_chains", real)
    again = fitted(POOLED, checkpoint=tmp_path)
    torch.testing.assert_close(again.distribution.draws, pooled.distribution.draws, rtol=0, atol=0)


def test_the_chains_have_the_temperature_of_their_sampler(pooled):
    """Before: it was left aside, and every chain was at 1. A step tells: its force is of the likelihood."""
    hot = dataclasses.replace(POOLED, sampler=dataclasses.replace(POOLED.sampler, temperature=50.0))
    posterior = fitted(hot)
    assert posterior.info["temperature_of_the_likelihood"] == 50
    within = [sb.chains.by_chain(p).std(1).mean() for p in (pooled, posterior)]
    assert within[1] > 2 * within[0]


def test_chains_stay_around_their_members(pooled):
    draws = sb.chains.by_chain(pooled)
    between = (draws.mean(1)[0] - draws.mean(1)[1]).abs().max()
    within = draws[0].std(0).max()
    assert between > 3 * within > 0


def test_what_cannot_be_is_named(unchecked):
    with pytest.raises(ValueError, match="members must be a whole number of at least 1, got 0"):
        sb.DeepEnsembleMCMC(members=0)
    with pytest.raises(TypeError, match=r"member must be a method such as MAP\(\)"):
        sb.DeepEnsembleMCMC(member=sb.MAP)
    with pytest.raises(TypeError, match=r"sampler must be HMC\(\.\.\.\)"):
        sb.DeepEnsembleMCMC(sampler=sb.MAP())
    with pytest.raises(TypeError, match=r"sampler must be HMC\(\.\.\.\)"):
        sb.DeepEnsembleMCMC(sampler=sb.HybridHMC())  # which has a sampler, but is none
    with pytest.raises(ValueError, match=r"give the executor to DeepEnsembleMCMC"):
        sb.DeepEnsembleMCMC(sampler=sb.HMC(executor=Here()))
    with pytest.raises(TypeError, match="threads share"), ThreadPoolExecutor(1) as pool:
        sb.DeepEnsembleMCMC(executor=pool)
    local = type("Local", (nn.Linear,), {})(3, 1)  # found by no other process; before: a bare PicklingError
    with pytest.raises(TypeError, match=r"can be pickled.*top of a module"), ProcessPoolExecutor(1) as pool:
        fitted(sb.DeepEnsembleMCMC(members=2, executor=pool), model_of(net=nn.Sequential(local)))
    several = sb.DeepEnsemble(members=2, member=sb.MAP(epochs=1))
    with pytest.raises(ValueError, match="a model starts at one network"):
        fitted(sb.DeepEnsembleMCMC(members=2, member=several, sampler=STILL))
