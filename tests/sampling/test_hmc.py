"""HMC draws from its target: adapted and at a fixed step; kernels that are wrong on purpose must fail."""

import inspect
import math
import warnings

import pytest
import torch
from scipy import stats

import singularbayes as sb
from singularbayes.sampling import Info
from singularbayes.sampling import hmc as module
from singularbayes.sampling.adaptation import Adaptation
from singularbayes.sampling.hmc import HamiltonianSampler, metropolis
from singularbayes.sampling.mass import DiagonalMass, UnitMass
from singularbayes.sampling.step_size import FixedStep
from singularbayes.sampling.target import AutogradTarget


@pytest.mark.usefixtures("unchecked")  # annotations take most of the time
def test_adapted_chains_have_the_exact_mean_and_covariance(gaussian):
    """9 numbers within 4 standard errors of 64 independent chains: false alarm 2e-3."""
    start = gaussian.mean + 3 * torch.randn(64, 3, generator=torch.Generator().manual_seed(1)).double()
    samples = sb.sample(gaussian, start, sb.HMC(warm_up=250, draws=30), seed=0)
    assert gaussian.gap(samples.draws) < 4
    assert samples.draws.dtype == torch.float64
    assert 0.75 < samples.acceptance.mean() < 0.98
    assert samples.divergences.sum() == 0
    # the mass is the variance of each coordinate, within a factor of 3 where they differ by 2e3
    share = samples.facts["inverse_mass"] / gaussian.covariance.diagonal()
    assert (share.median(0).values.log().abs() < math.log(3)).all()
    assert torch.equal(samples.facts["trajectory"], torch.full((64,), math.pi / 2, dtype=torch.float64))


# One kernel of many chains that start from exact draws: any step that is not invariant moves them away.


def fixed(step, time, jitter=0.5):
    adaptation = Adaptation(step_size=FixedStep(size=step), mass=UnitMass())
    return HamiltonianSampler(adaptation=adaptation, trajectory=time, jitter=jitter)


def stepped(kernel, log_density, start, steps):
    """Chains after some steps, and the mean acceptance; the seed is not that of the exact draws."""
    target, source = AutogradTarget(log_density, start.shape[1]), torch.Generator().manual_seed(12345)
    state, acceptance = kernel.start(target, start, source), []
    for _ in range(steps):
        state, info = kernel.step(state, target, source)
        acceptance.append(info.acceptance.mean())
    return kernel.point(state).position, torch.stack(acceptance).mean().item()


WRONG = {
    "no kinetic energy": (
        "error = kinetic - (ahead.log_density - point.log_density)",
        "error = point.log_density - ahead.log_density",
    ),
    "kinetic energy with the sign reversed": ("error = kinetic - (", "error = -kinetic - ("),
    "every proposal is accepted": ("chosen(accepted, ahead, point)", "ahead"),
    "acceptance the wrong way round": ("metropolis(error, source)", "metropolis(-error, source)"),
    "the momentum is too wide": ("momentum = metric.draw(source)", "momentum = 1.5 * metric.draw(source)"),
}


def mutant(name):
    source, (right, wrong) = inspect.getsource(HamiltonianSampler), WRONG[name]
    assert source.count(right) == 1
    space = dict(vars(module))
    exec(source.replace(right, wrong), space)
    space["HamiltonianSampler"].__module__ = module.__name__
    return space["HamiltonianSampler"]


def test_exact_draws_stay_exact_at_a_fixed_step(gaussian):
    """4,000 chains after 10 moves at 77% acceptance; 9 numbers within 4 standard errors: false alarm 6e-4."""
    start = gaussian.exact(4000)
    found, acceptance = stepped(fixed(0.1, 0.4), gaussian, start, 10)
    assert 0.6 < acceptance < 0.9
    assert gaussian.gap(found[:, None]) < 4


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_is_found(gaussian, name):
    kernel = mutant(name)(adaptation=fixed(0.1, 0.4).adaptation, trajectory=0.4)
    found, _ = stepped(kernel, gaussian, gaussian.exact(4000), 10)
    gap = gaussian.gap(found[:, None])
    assert not gap < 4


class Halved:
    """Gradients of another density than the energy's: exact, but few proposals are good."""

    def __init__(self, log_density, factor):
        self.target, self.factor, self.dimension = AutogradTarget(log_density, 3), factor, 3

    def __call__(self, position):
        value, gradient = self.target(position)
        return value, self.factor * gradient


@pytest.mark.parametrize("factor", [-1, 1 / 20], ids=["reversed", "of the mean over 20 data"])
def test_a_wrong_gradient_is_found_by_the_acceptance(gaussian, factor):
    """A short step is nearly always accepted, but not under a wrong gradient."""
    kernel, source = fixed(0.012, 0.4), torch.Generator().manual_seed(0)
    means = []
    for target in (AutogradTarget(gaussian, 3), Halved(gaussian, factor)):
        state = kernel.start(target, gaussian.exact(200), source)
        means.append(kernel.step(state, target, source)[1].acceptance.mean())
    assert means[0] > 0.98
    assert means[1] < 0.6


def gumbel(q):
    return (-q - torch.exp(-q)).sum(1)


def p_value(kernel):
    """Kolmogorov and Smirnov's, of 20,000 chains that started at one point 30 moves ago."""
    found, _ = stepped(kernel, gumbel, torch.full((20_000, 1), 1.0, dtype=torch.float64), 30)
    return stats.kstest(found[:, 0].numpy(), stats.gumbel_r.cdf).pvalue


def test_a_skewed_density_has_the_exact_distribution():
    """p below 6e-5 (4 standard errors) is a failure."""
    assert p_value(fixed(1.2, 2.0)) > 6e-5


@pytest.mark.parametrize("name", ["every proposal is accepted", "no kinetic energy"])
def test_a_wrong_kernel_is_found_on_the_skewed_density(name):
    adaptation = fixed(1.2, 2.0).adaptation
    assert p_value(mutant(name)(adaptation=adaptation, trajectory=2.0)) < 6e-5


# Metropolis


def test_energies_that_are_not_finite_are_rejected_and_diverge():
    """Trap 40: peers accepted nan, or stopped with it."""
    error = torch.tensor([math.nan, math.inf, -math.inf, 1001.0, 999.0, 0.0, -3.0], dtype=torch.float64)
    accepted, acceptance, divergent = metropolis(error, torch.Generator().manual_seed(0))
    assert accepted.tolist() == [False, False, False, False, False, True, True]
    assert acceptance.tolist() == [0, 0, 0, 0, 0, 1, 1]
    assert divergent.tolist() == [True, True, True, True, False, False, False]


def test_acceptance_is_its_probability():
    error = torch.full((100_000,), 0.7, dtype=torch.float64)
    accepted, acceptance, _ = metropolis(error, torch.Generator().manual_seed(0))
    right = math.exp(-0.7)
    assert torch.allclose(acceptance, torch.full_like(acceptance, right))
    assert abs(accepted.double().mean() - right) < 4 * math.sqrt(right * (1 - right) / 100_000)  # 6e-5


@pytest.mark.usefixtures("unchecked")  # annotations take most of the time
def test_a_region_without_density_is_never_entered():
    """A half normal behind a cliff of nan: divergences are counted, and the rest is sampled."""

    def broken(q):
        return torch.where(q[:, 0] > 0, -0.5 * q[:, 0].square(), torch.nan)

    start = torch.full((64, 1), 0.5, dtype=torch.float64)
    method = sb.HMC(warm_up=0, draws=200, step_size=0.3, trajectory=0.8, mass=UnitMass())
    with pytest.warns(UserWarning, match="divergent steps after warm-up"):
        samples = sb.sample(broken, start, method)
    assert (samples.draws > 0).all()
    assert (samples.divergences > 0).all()
    assert torch.isnan(samples.statistics.energy_error[samples.statistics.divergent]).all()
    means = samples.draws[:, 50:, 0].mean(1)  # within 4 standard errors of the chains' means: 2e-4
    assert abs(means.mean() - math.sqrt(2 / math.pi)) < 4 * means.std() / 8


# Big sums


@pytest.mark.usefixtures("unchecked")  # annotations take most of the time
def test_big_sums_lose_nothing():
    """Trap: at 1e9 nats float32 knows a sum to 64 nats. Float64 sums give the draws of the small ones."""

    def of(offset, dtype):
        def log_density(q):
            return (offset - 0.5 * (q.double() * torch.tensor([1.0, 3.0])).square().sum(1)).to(dtype)

        return log_density

    start, method = torch.zeros(4, 2), sb.HMC(warm_up=0, draws=50, step_size=0.15, mass=UnitMass())
    small = sb.sample(of(0.0, torch.float64), start, method)
    big = sb.sample(of(1e9, torch.float64), start, method)
    assert big.draws.dtype == torch.float32
    assert torch.equal(big.draws, small.draws)
    torch.testing.assert_close(big.statistics.acceptance, small.statistics.acceptance, rtol=0, atol=1e-6)
    with warnings.catch_warnings(action="ignore"):
        rounded = sb.sample(of(1e9, torch.float32), start, method)  # what the test would find
    assert not torch.allclose(rounded.statistics.energy_error, small.statistics.energy_error, atol=1e-3)


# The length of moves


def normal(q):
    return -0.5 * q.square().sum(1)


def mean_after_whole_turns(jitter):
    """Of 1,000 chains that started at 3, in standard errors of a standard normal."""
    start = torch.full((1000, 1), 3.0, dtype=torch.float64)
    found, _ = stepped(fixed(0.1, 2 * math.pi, jitter), normal, start, 20)
    return found.mean().item() * math.sqrt(1000)


@pytest.mark.usefixtures("unchecked")  # annotations take most of the time
def test_without_jitter_a_gaussian_comes_back_to_where_it_was():
    assert abs(mean_after_whole_turns(0.0)) > 40


@pytest.mark.usefixtures("unchecked")  # annotations take most of the time
def test_jitter_forgets_the_start():
    assert abs(mean_after_whole_turns(0.5)) < 4  # false alarm 6e-5


def test_each_chain_draws_the_length_of_each_move():
    source = torch.Generator().manual_seed(0)
    kernel = fixed(0.1, 2.0)
    sizes = torch.tensor([0.1, 0.02], dtype=torch.float64).repeat_interleave(2000)
    counts = kernel.steps(sizes, source, 1000)
    again = kernel.steps(sizes, source, 1000)
    assert (counts != again).double().mean() > 0.9
    for first, last, low, high in ((0, 2000, 10, 30), (2000, 4000, 50, 150)):
        part = counts[first:last]
        assert part.min() >= low
        assert part.max() <= high + 1
        assert len(part.unique()) > 15
        # uniform on [low, high], rounded up: mean + 1/2 within 4 standard errors (6e-5)
        width = (high - low) / math.sqrt(12)
        assert abs(part.double().mean() - (low + high + 1) / 2) < 4 * width / math.sqrt(2000)


def test_moves_are_cut_at_max_steps_and_the_facts_say_where():
    start = torch.zeros(2, 1, dtype=torch.float64)
    method = sb.HMC(warm_up=0, draws=20, step_size=0.1, mass=UnitMass(), trajectory=10.0, max_steps=7)
    samples = sb.sample(normal, start, method)
    assert torch.equal(samples.statistics.gradients, torch.full((2, 20), 7))
    assert samples.facts["trajectory"].tolist() == pytest.approx([0.7, 0.7])


def test_early_moves_are_short_only_while_a_mass_is_to_be_learned():
    target, source = AutogradTarget(normal, 1), torch.Generator().manual_seed(0)
    for mass, steps, step, cut in (
        (DiagonalMass(), 500, 99, True),
        (DiagonalMass(), 500, 100, False),  # after the first of several windows
        (DiagonalMass(), 150, 0, False),  # the only window has to get it right
        (UnitMass(), 500, 0, False),  # nothing is to be learned
    ):
        kernel = HamiltonianSampler(adaptation=Adaptation(step_size=FixedStep(size=0.01), mass=mass))
        state = kernel.start(target, torch.zeros(2, 1, dtype=torch.float64), source)
        _, info = kernel.warm_up(state, step, steps, target, source)
        assert (info.gradients.tolist() == [64, 64]) == cut


# Chains


@pytest.mark.usefixtures("unchecked")  # annotations take most of the time
def test_a_chain_does_not_depend_on_the_others(gaussian):
    """Bit for bit: chain 1 starts elsewhere, with a step size and mass of its own; the others stay."""
    start = gaussian.exact(4)
    other = start.clone()
    other[1] = gaussian.mean + torch.tensor([3.0, -40.0, 500.0])
    method = sb.HMC(warm_up=40, draws=10)
    first, second = (sb.sample(gaussian, rows, method) for rows in (start, other))
    for chain in (0, 2, 3):
        assert torch.equal(first.draws[chain], second.draws[chain])
        assert torch.equal(first.facts["step_size"][chain], second.facts["step_size"][chain])
        assert torch.equal(first.facts["inverse_mass"][chain], second.facts["inverse_mass"][chain])
    assert not torch.equal(first.draws[1], second.draws[1])
    assert first.facts["step_size"][1] != second.facts["step_size"][1]
    assert not torch.equal(first.draws[0], first.draws[2])


@pytest.mark.usefixtures("unchecked")  # annotations take most of the time
def test_a_short_warm_up_leaves_few_chains_standing_still(gaussian):
    """With 2 of 20 steps under the learned mass, as in Stan, 14 to 20 of 32 chains accept less than .3."""
    with warnings.catch_warnings(action="ignore"):
        samples = sb.sample(gaussian, gaussian.exact(32), sb.HMC(warm_up=20, draws=10, max_steps=100))
    assert (samples.acceptance < 0.3).sum() < 4
    assert samples.acceptance.median() > 0.8


def test_a_given_step_size_is_kept_through_warm_up(gaussian):
    samples = sb.sample(gaussian, gaussian.exact(4), sb.HMC(warm_up=20, draws=10, step_size=0.1))
    assert samples.facts["step_size"].tolist() == [0.1] * 4
    assert (samples.facts["inverse_mass"] != 1).all()


@pytest.mark.usefixtures("unchecked")  # annotations take most of the time
def test_single_precision_is_kept_and_right(gaussian):
    """9 numbers within 4 standard errors of 64 chains: false alarm 2e-3."""
    start = gaussian.exact(64).float()
    method = sb.HMC(warm_up=20, draws=30, step_size=0.1, trajectory=2.0)
    samples = sb.sample(gaussian, start, method, seed=2)
    assert samples.draws.dtype == torch.float32
    assert samples.facts["inverse_mass"].dtype == torch.float32
    assert gaussian.gap(samples.draws) < 4


def test_warm_up_counts_the_gradients_of_its_searches(gaussian):
    kernel, target = HamiltonianSampler(max_steps=1), AutogradTarget(gaussian, 3)
    source, counts = torch.Generator().manual_seed(0), []
    state = kernel.start(target, gaussian.exact(2), source)
    for step in range(20):
        state, info = kernel.warm_up(state, step, 20, target, source)
        counts.append(info.gradients)
    by_step = torch.stack(counts)  # the only window, of 11 steps after 3, ends with step 13
    assert (by_step[[*range(13), *range(14, 20)]] == 1).all()
    assert (by_step[13] >= 3).all()


def test_info_is_of_the_step():
    kernel, target = fixed(0.1, 1.0, jitter=0.0), AutogradTarget(normal, 1)
    source = torch.Generator().manual_seed(0)
    state = kernel.start(target, torch.ones(3, 1, dtype=torch.float64), source)
    _, info = kernel.step(state, target, source)
    assert isinstance(info, Info)
    assert info.gradients.tolist() == [10, 10, 10]
    torch.testing.assert_close(info.acceptance, (-info.energy_error).exp().clamp(max=1))
