"""Hybrid VI-HMC against the closed forms of a Gaussian posterior; the errors of other code must fail."""

import math
import warnings
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

import singularbayes as sb
from singularbayes.distributions import DiagonalGaussian
from singularbayes.methods import Candidates
from singularbayes.methods.chains_fit import sample_network
from singularbayes.methods.network_density import NetworkDensity
from singularbayes.posterior import Posterior
from singularbayes.random import derive
from singularbayes.sampling import run as run_module
from singularbayes.sampling.hmc import HamiltonianSampler
from singularbayes.sampling.mass import UnitMass
from singularbayes.sampling.run import ChainsStuck, ChainWarning

DOUBLE = torch.float64
NOISE, PRIOR = 0.5, 2.0
CHAINS, DRAWS = 64, 30
SAMPLED = (0, 2)  # of the 4 weights of a linear regression


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


@dataclass(frozen=True)
class Chosen:
    """A rule of a user's own."""

    entries: tuple[int, ...]

    def select(self, candidates: Candidates) -> Tensor:
        return torch.tensor(self.entries)


@dataclass(frozen=True)
class Exact:
    """Linear regression with a Gaussian posterior, and its best mean-field fit ``q``."""

    model: sb.Model
    data: tuple[Tensor, Tensor]
    q: Posterior
    mean: Tensor
    precision: Tensor

    def block(self, rows: tuple[int, ...], columns: tuple[int, ...]) -> Tensor:
        return self.precision[list(rows)][:, list(columns)]


@pytest.fixture(scope="module")
def exact() -> Exact:
    """Correlated, badly scaled columns."""
    mixing = torch.tensor(
        [[3.0, 0, 0, 0], [1.5, 2.0, 0, 0], [0.3, -0.2, 0.3, 0], [2.0, 1.0, -3.0, 5.0]], dtype=DOUBLE
    )
    x = normal(30, 4, seed=2) @ mixing.T
    y = x @ torch.tensor([0.5, -1.0, 2.0, 0.1], dtype=DOUBLE) + NOISE * normal(30, seed=3)
    model = sb.Model(nn.Linear(4, 1, bias=False).double(), sb.Gaussian(noise=NOISE), prior=sb.Normal(PRIOR))
    precision = x.T @ x / NOISE**2 + torch.eye(4, dtype=DOUBLE) / PRIOR**2
    mean = torch.linalg.solve(precision, x.T @ y / NOISE**2)
    distribution = DiagonalGaussian(mean, precision.diagonal().rsqrt())
    q = Posterior(model.copy_network(), distribution, model.likelihood, model.layout, {"method": "exact"})
    return Exact(model, (x, y.unsqueeze(1)), q, mean, precision)


KERNEL = sb.HMC(chains=CHAINS, warm_up=20, draws=DRAWS, step_size=0.3, mass=UnitMass())


def fit(exact: Exact, rest, entries=SAMPLED, sampler: sb.HMC = KERNEL, seed: int = 0, **more) -> Posterior:
    method = sb.HybridHMC(vi=exact.q, select=Chosen(entries), sampler=sampler, rest=rest, **more)
    return method.fit(exact.model, exact.data, seed=seed)


def by_chain(posterior: Posterior) -> Tensor:
    """``(C, N, D)``."""
    chains = posterior.info["chains"]
    return posterior.distribution.draws.unflatten(0, (-1, chains)).transpose(0, 1)


def worst_gap(draws: Tensor, mean: Tensor, covariance: Tensor) -> float:
    """Largest gap of mean and covariance in standard errors, which come from the independent chains' own."""
    gaps = draws - mean
    size = draws.shape[-1]
    products = torch.einsum("cni,cnj->cnij", gaps, gaps)[..., *torch.tril_indices(size, size)]
    found = torch.cat([draws, products], -1).mean(1)
    right = torch.cat([mean, covariance[*torch.tril_indices(size, size)]])
    return ((found.mean(0) - right).abs() / (found.std(0) / math.sqrt(len(found)))).max().item()


REST = tuple(i for i in range(4) if i not in SAMPLED)


@pytest.fixture(scope="module")
def frozen(exact) -> Posterior:
    return fit(exact, sb.Frozen())


def test_frozen_draws_have_the_exact_conditional_distribution(exact, frozen):
    """5 numbers within 4 standard errors: false alarm 3e-4. The marginal covariance, which full HMC has, is
    not theirs."""
    draws = by_chain(frozen)
    mean, conditional = exact.mean[list(SAMPLED)], torch.linalg.inv(exact.block(SAMPLED, SAMPLED))
    assert worst_gap(draws[..., list(SAMPLED)], mean, conditional) < 4
    marginal = torch.linalg.inv(exact.precision)[list(SAMPLED)][:, list(SAMPLED)]
    assert worst_gap(draws[..., list(SAMPLED)], mean, marginal) > 8


def test_frozen_entries_are_the_means_bit_for_bit(exact, frozen):
    draws = frozen.distribution.draws
    assert torch.equal(draws[:, REST], exact.mean[list(REST)].expand(len(draws), -1))


def test_the_conditional_variance_of_outputs_is_never_above_the_exact_one(exact, frozen):
    x = normal(50, 4, seed=9)
    found = frozen.functions(frozen.distribution.draws, x).var(0).squeeze(1)
    full = torch.einsum("bi,ij,bj->b", x, torch.linalg.inv(exact.precision), x)
    standard_error = math.sqrt(2 / (CHAINS * DRAWS / 4)) * full
    assert bool((found < full + 4 * standard_error).all())
    assert (found / full).median() < 0.8  # and here clearly below it


def conditional_mean(exact: Exact, rest: Tensor) -> Tensor:
    """Of the sampled entries, given the rest of each chain."""
    inverse = torch.linalg.inv(exact.block(SAMPLED, SAMPLED))
    gaps = rest - exact.mean[list(REST)]
    return exact.mean[list(SAMPLED)] - gaps @ (inverse @ exact.block(SAMPLED, REST)).T


def gap_given_the_rest(exact: Exact, draws: Tensor) -> float:
    sampled, rest = draws[..., list(SAMPLED)], draws[..., list(REST)]
    centered = sampled - conditional_mean(exact, rest)
    return worst_gap(centered, torch.zeros(2, dtype=DOUBLE), torch.linalg.inv(exact.block(SAMPLED, SAMPLED)))


@pytest.fixture(scope="module")
def redrawn(exact) -> Posterior:
    return fit(exact, sb.Redrawn())


def test_redrawn_draws_have_the_stated_distribution(exact, redrawn):
    """Given each chain's own rest the exact conditional one: 5 numbers within 4 standard errors, false alarm
    3e-4; and the rest of the chains as ``q`` has it: 5 numbers, the same."""
    draws = by_chain(redrawn)
    assert gap_given_the_rest(exact, draws) < 4
    rest = draws[:, :1, list(REST)]
    assert torch.equal(draws[..., list(REST)], rest.expand(-1, DRAWS, -1))  # within a chain bit for bit
    variances = torch.diag(1 / exact.precision.diagonal()[list(REST)])
    assert worst_gap(rest, exact.mean[list(REST)], variances) < 4
    assert len(rest[:, 0, 0].unique()) == CHAINS


def test_redrawn_has_the_covariance_of_the_docstring(exact, redrawn):
    """``V + A D A^T`` and ``-A D``: 10 numbers of all four entries within 4 standard errors, false alarm
    7e-4."""
    inverse = torch.linalg.inv(exact.block(SAMPLED, SAMPLED))
    slope = inverse @ exact.block(SAMPLED, REST)
    spread = torch.diag(1 / exact.precision.diagonal()[list(REST)])
    covariance = torch.zeros(4, 4, dtype=DOUBLE)
    order = [*SAMPLED, *REST]
    top = torch.cat([inverse + slope @ spread @ slope.T, -slope @ spread], 1)
    joint = torch.cat([top, torch.cat([top[:, 2:].T, spread], 1)])
    covariance[torch.tensor(order)[:, None], torch.tensor(order)] = joint
    assert worst_gap(by_chain(redrawn), exact.mean, covariance) < 4


def test_spread_added_has_the_stated_distribution(exact, frozen):
    """Conditional of the sampled, ``q`` of the rest, independent: 14 numbers within 4 standard errors, false
    alarm 9e-4. What was sampled is what ``Frozen`` samples, bit for bit."""
    covariance = torch.diag(1 / exact.precision.diagonal())
    covariance[torch.tensor(SAMPLED)[:, None], torch.tensor(SAMPLED)] = torch.linalg.inv(
        exact.block(SAMPLED, SAMPLED)
    )
    posterior = fit(exact, sb.SpreadAdded())
    assert worst_gap(by_chain(posterior), exact.mean, covariance) < 4
    assert torch.equal(posterior.distribution.draws[:, SAMPLED], frozen.distribution.draws[:, SAMPLED])


def test_a_rest_that_is_redrawn_between_metropolis_steps_is_caught(exact, monkeypatch):
    """The error of other code: the chain then has neither the conditional distribution nor the mixture."""
    step = HamiltonianSampler.step
    q, source = exact.q.distribution, torch.Generator().manual_seed(0)

    def redrawing(self, state, target, generator):
        density = target.target
        noise = torch.randn(len(density.base), 4, generator=source, dtype=DOUBLE)
        density.base[:, REST] = (q.mean + q.std * noise)[:, REST]
        return step(self, state, target, generator)

    monkeypatch.setattr(HamiltonianSampler, "step", redrawing)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ChainWarning)
        draws = by_chain(fit(exact, sb.Frozen(), sampler=replace(KERNEL, draws=2 * DRAWS)))
    mean, conditional = exact.mean[list(SAMPLED)], torch.linalg.inv(exact.block(SAMPLED, SAMPLED))
    assert worst_gap(draws[..., list(SAMPLED)], mean, conditional) > 6


def test_only_the_selected_entries_have_positions_and_momenta(exact, monkeypatch):
    """The error of other code: frozen entries that get a momentum, move, and count in the kinetic energy."""
    shapes = set()
    step = HamiltonianSampler.step

    def watched(self, state, target, generator):
        shapes.add((state.adapted.metric.draw(torch.Generator()).shape[1], target.dimension))
        return step(self, state, target, generator)

    monkeypatch.setattr(HamiltonianSampler, "step", watched)
    fit(exact, sb.Frozen(), sampler=sb.HMC(chains=2, warm_up=2, draws=2, step_size=0.1))
    assert shapes == {(2, 2)}


Problem = tuple[sb.Model, tuple[Tensor, Tensor], Posterior]


@pytest.fixture(scope="module")
def problem() -> Problem:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    x = torch.linspace(-2, 2, 20, dtype=DOUBLE).unsqueeze(1)
    data = (x, x.sin() + 0.1 * normal(20, 1))
    model = sb.Model(network, sb.Gaussian(noise=0.1))
    return model, data, sb.MeanField(epochs=300, learning_rate=0.02).fit(model, data)


SHORT = sb.HMC(chains=3, warm_up=10, draws=12, max_steps=5)


def test_with_every_entry_selected_it_is_plain_hmc_to_the_last_bit(problem):
    """From the same starts, with the same random numbers."""
    model, data, q = problem
    method = sb.HybridHMC(vi=q, select=sb.AllParameters(), sampler=SHORT, warm_start=False)
    found = method.fit(model, data, seed=4).distribution.draws
    rows = model.layout.flatten(model.network).repeat(SHORT.chains, 1)
    rows[:] = q.draw(SHORT.chains, derive(4, "start"))
    plain = sample_network(
        SHORT, model, data, seed=derive(4, "chains"), checkpoint=None, progress=False, label="HMC", rows=rows
    )
    assert torch.equal(found, plain.rows)
    assert not torch.equal(found[0], found[-1])


def test_warm_start_counts_step_sizes_in_variational_standard_deviations(exact, frozen):
    """A step of .3 of a weight, where standard deviations are hundredths, is rejected every time."""
    assert min(frozen.info["acceptance"]) > 0.7
    few = sb.HMC(chains=2, warm_up=20, draws=90, step_size=0.3, mass=UnitMass())
    with pytest.raises(ChainsStuck):
        fit(exact, sb.Frozen(), sampler=few, warm_start=False)


def test_entries_without_spread_can_be_selected_all_the_same(exact):
    std = exact.q.distribution.std.clone()
    std[0] = 0
    point = Posterior(
        exact.q.network, DiagonalGaussian(exact.mean, std), exact.q.likelihood, exact.q.layout, {}
    )
    kernel = sb.HMC(chains=2, warm_up=0, draws=20, step_size=0.01, trajectory=0.02)
    draws = sb.HybridHMC(vi=point, select=Chosen((0,)), sampler=kernel).fit(exact.model, exact.data)
    assert draws.distribution.variance[0] > 0


def test_info_says_what_was_selected_and_what_the_target_is(problem):
    model, data, q = problem
    posterior = sb.HybridHMC(vi=q, select=sb.Sensitivity(0.8), sampler=SHORT, rest=sb.SpreadAdded()).fit(
        model, data, data
    )
    info = posterior.info
    mixture = posterior.predict(data[0], draws=posterior.support)
    assert info["validation_nll"] == pytest.approx(-mixture.log_prob(data[1]).mean().item(), abs=1e-6)
    assert (info["num_data"], info["temperature_of_the_likelihood"], info["held_fixed"]) == (20, 1.0, [])
    assert info["settings"].keys() == {"vi", "select", "sampler", "rest", "warm_start"}
    chosen = sb.Sensitivity(0.8).select(Candidates.of(model, q, data))
    assert info["selected"] == len(chosen) == sum(info["selected_in"].values())
    assert info["entries"] == 13
    assert info["share"] == len(chosen) / 13
    assert list(info["selected_in"]) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert info["selected_in"]["2.weight"] == int(((chosen >= 8) & (chosen < 12)).sum())
    assert "q(rest)" in info["target"]
    assert info["vi"]["method"] == "MeanField"
    assert info["method"] == "HybridHMC"
    assert (info["chains"], info["draws_per_chain"], len(info["step_size"])) == (3, 12, 3)
    assert info["numbers"] == 36 * 13
    assert posterior.support == 36


def test_point_estimates_and_a_learned_noise_stay_as_the_variational_fit_left_them():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    x = torch.linspace(-2, 2, 20, dtype=DOUBLE).unsqueeze(1)
    model = sb.Model(network, sb.Gaussian(), deterministic="*bias")
    q = sb.MeanField(epochs=50, learning_rate=0.02).fit(model, (x, x.sin()))
    posterior = sb.HybridHMC(vi=q, select=sb.AllParameters(), sampler=SHORT, rest=sb.Redrawn()).fit(
        model, (x, x.sin())
    )
    belief, draws = model.layout.belief, posterior.distribution.draws
    assert belief == 8
    assert [slot.kind for slot in model.layout.slots] == ["belief"] * 2 + ["point"] * 2 + ["likelihood"]
    assert torch.equal(draws[:, belief:], q.distribution.mean[belief:].expand(len(draws), -1))
    assert not torch.equal(
        q.distribution.mean[belief:], model.layout.flatten(network, model.likelihood.parameters)[belief:]
    )


def test_on_a_factorised_network_the_factors_themselves_are_sampled():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(1, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1)).double()
    model = sb.Model(sb.factorize(network, rank={"2": 2}), sb.Gaussian(noise=0.1))
    x = torch.linspace(-2, 2, 20, dtype=DOUBLE).unsqueeze(1)
    rule = sb.NamedParameters(("2.A", "2.B"))
    posterior = sb.HybridHMC(vi=sb.MeanField(epochs=100), select=rule, sampler=SHORT).fit(model, (x, x.sin()))
    moved = posterior.distribution.variance > 0
    for slot in model.layout.slots:
        assert bool(moved[slot.start : slot.stop].all()) == (slot.name in ("2.A", "2.B"))
    assert posterior.info["selected"] == 24


def test_an_interrupted_run_goes_on_to_the_same_numbers(problem, tmp_path, monkeypatch):
    """In the chains; the variational fit is read from its own checkpoint."""
    model, data, _ = problem
    method = sb.HybridHMC(vi=sb.MeanField(epochs=30), sampler=SHORT)
    whole = method.fit(model, data, seed=2).distribution.draws
    step, done = run_module._Run.step, 0

    def stops(self):
        nonlocal done
        done += 1
        if done == 15:
            raise KeyboardInterrupt
        step(self)

    monkeypatch.setattr(run_module._Run, "step", stops)
    with pytest.raises(KeyboardInterrupt):
        method.fit(model, data, seed=2, checkpoint=tmp_path)
    again = method.fit(model, data, seed=2, checkpoint=tmp_path).distribution.draws
    assert done == 15 + 22 - 14
    assert torch.equal(again, whole)


def test_groups_and_thinning_are_the_samplers_own(problem):
    model, data, q = problem
    kernel = sb.HMC(chains=4, warm_up=10, draws=5, thin=2, max_steps=4, group=2)
    posterior = sb.HybridHMC(vi=q, sampler=kernel).fit(model, data)
    assert posterior.support == 20
    assert len(posterior.info["acceptance"]) == 4


# Bad input


def test_wrong_parts_are_refused(unchecked):
    for wrong, message in (
        ({"vi": sb.MeanField}, "vi must be a method such as MeanField"),
        ({"select": sb.Sensitivity}, "select must be an object such as Sensitivity"),
        ({"select": 0.9}, "select must be an object such as Sensitivity"),
        ({"sampler": sb.MAP()}, "sampler must be a method such as HMC"),
        ({"rest": "frozen"}, "rest must be an object such as Frozen"),
    ):
        with pytest.raises(TypeError, match=message):
            sb.HybridHMC(**wrong)


@pytest.mark.parametrize(
    ("entries", "error", "message"),
    [
        ((), ValueError, "select chose no entry"),
        ((0, 4), ValueError, r"among the 4 believed entries, each once, got \[0, 4\]"),
        ((-1,), ValueError, "among the 4 believed entries"),
        ((1, 1), ValueError, r"each once, got \[1, 1\]"),
        ((0.5,), TypeError, "whole numbers"),
    ],
)
def test_a_rule_that_chooses_what_is_no_entry_is_refused(exact, unchecked, entries, error, message):
    with pytest.raises(error, match=message):
        sb.HybridHMC(vi=exact.q, select=_Raw(entries), sampler=SHORT).fit(exact.model, exact.data)


@dataclass(frozen=True)
class _Raw:
    entries: tuple[float, ...]

    def select(self, candidates: Candidates) -> Tensor:
        return torch.tensor(self.entries, dtype=torch.int64 if not self.entries else None)


def test_two_temperatures_are_refused():
    with pytest.raises(ValueError, match=r"vi has temperature=0\.5 and sampler 1\.0"):
        sb.HybridHMC(vi=sb.MeanField(temperature=0.5))


def test_a_fitted_posterior_of_another_temperature_is_refused(problem):
    model, data, _ = problem
    cold = sb.MeanField(epochs=1, temperature=0.5).fit(model, data)
    with pytest.raises(ValueError, match=r"vi has temperature=0\.5 and sampler 1\.0"):
        sb.HybridHMC(vi=cold)
    sb.HybridHMC(vi=cold, sampler=sb.HMC(temperature=0.5))


def test_minibatches_are_refused():
    """Before: refused after the variational fit, as "a log density of your own"."""
    with pytest.raises(ValueError, match="gradient of all data here, and the sampler has batch_size=8"):
        sb.HybridHMC(sampler=sb.SGHMC(batch_size=8))


def test_a_bad_problem_is_refused_before_the_variational_fit(exact, monkeypatch):
    monkeypatch.setattr(sb.MeanField, "fit", lambda *a, **k: pytest.fail("work began"))
    learned = sb.Model(exact.model.network, exact.model.likelihood, prior=sb.ScaleMixture(learned=True))
    with pytest.raises(ValueError, match="a learned ScaleMixture needs MeanField"):
        sb.HybridHMC(vi=sb.MeanField()).fit(learned, exact.data)
    with pytest.raises(ValueError, match="nan"):
        sb.HybridHMC(vi=sb.MeanField()).fit(exact.model, (exact.data[0] * math.nan, exact.data[1]))


def test_a_posterior_of_another_network_is_refused(exact):
    other = sb.Model(nn.Linear(3, 1).double(), sb.Gaussian(noise=1.0))
    x = normal(5, 3)
    with pytest.raises(ValueError, match="the posterior's parameters are not this model's"):
        sb.HybridHMC(vi=exact.q).fit(other, (x, x[:, :1]))


def test_the_density_counts_the_prior_of_what_is_frozen(exact):
    """A constant of each chain, so that values of chains with different rests compare."""
    rows = exact.mean.repeat(2, 1)
    rows[1, REST[0]] += 1.0
    chosen = torch.tensor(SAMPLED)
    value, _ = NetworkDensity(exact.model, exact.data, rows, chosen)(rows[:, chosen])
    whole, _ = NetworkDensity(exact.model, exact.data, rows)(rows)
    torch.testing.assert_close(value, whole)
