"""SGHMC: its step by hand, its law, its bias with noisy gradients; wrong steps must fail."""

import inspect
import math

import pytest
import torch

import singularbayes as sb
from singularbayes.sampling import sghmc as module
from singularbayes.sampling.chain_state import rebuilt, tensors_of
from singularbayes.sampling.sghmc import SGHMCSampler, rubbed
from singularbayes.sampling.step_sequences import Constant, Decaying
from singularbayes.sampling.stochastic import AllData, GradientEstimate
from singularbayes.sampling.target import AutogradTarget

F64 = torch.float64
ROOT = torch.tensor([[0.3, 0.0, 0.0], [-0.5, 1.0, 0.0], [1.0, -0.4, 0.6]], dtype=F64)
COVARIANCE, MEAN = ROOT @ ROOT.T, torch.tensor([0.5, -1.0, 2.0], dtype=F64)
PRECISION = torch.linalg.inv(COVARIANCE)
LOWER = torch.tril_indices(3, 3)


class Gaussian:
    """With its gradient in closed form."""

    dimension = 3

    def __call__(self, x):
        gradient = -(x - MEAN) @ PRECISION
        return 0.5 * ((x - MEAN) * gradient).sum(1), gradient


class Noisy:
    """The gradient plus noise of a variance for each coordinate."""

    exact, variance = False, torch.tensor([100.0, 30.0, 5.0], dtype=F64)

    def __call__(self, target, position, source):
        value, gradient = target(position)
        noise = torch.randn(position.shape, generator=source, dtype=position.dtype)
        return value, gradient + self.variance.sqrt() * noise


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def exact_draws(n: int, seed: int = 0) -> torch.Tensor:
    return MEAN + torch.randn(n, 3, generator=seeded(seed), dtype=F64) @ ROOT.T


def test_a_step_is_its_five_parts():
    """Kick, drift, friction, drift, kick, in numbers of Python; the second step reuses the gradient."""
    sampler = SGHMCSampler(step_sizes=Decaying(first=0.2, delay=1.0, power=1.0), friction=1.5)
    source, calls = seeded(3), []

    def log_density(x):
        calls.append(len(x))
        return -(x**4).sum(1) / 4

    state = sampler.start(AutogradTarget(log_density, 1), torch.tensor([[0.7]], dtype=F64), source)
    noise = seeded(3)
    x, v = 0.7, torch.randn(1, 1, generator=noise, dtype=F64).item()
    for h in (0.2, 0.1):
        state, info = sampler.step(state, AutogradTarget(log_density, 1), source)
        v += h / 2 * -(x**3)
        x += h / 2 * v
        a = math.exp(-1.5 * h)
        v = a * v + math.sqrt(1 - a * a) * torch.randn(1, 1, generator=noise, dtype=F64).item()
        x += h / 2 * v
        v += h / 2 * -(x**3)
        assert state.at.position.item() == pytest.approx(x, rel=1e-12)
        assert state.velocity.item() == pytest.approx(v, rel=1e-12)
        assert info.gradients.tolist() == [1]
        assert info.energy_error.isnan().all()
    assert len(calls) == 3


def moments(sampler: SGHMCSampler, steps: int, chains: int = 512, warm_up: int = 0) -> torch.Tensor:
    """Gaps of mean and covariance of each chain, ``(C, 9)``, from exact draws on."""
    source = seeded(6)
    target = Gaussian()
    state = sampler.start(target, exact_draws(chains), source)
    for step in range(warm_up):
        state, _ = sampler.warm_up(state, step, warm_up, target, source)
    total = 0.0
    for _ in range(steps):
        state, _ = sampler.step(state, target, source)
        gap = state.at.position - MEAN
        total = total + torch.cat(
            [gap, torch.einsum("ci,cj->cij", gap, gap)[:, *LOWER] - COVARIANCE[*LOWER]], 1
        )
    return total / steps


def worst_gap(**settings) -> float:
    """Largest gap in standard errors of 512 independent chains."""
    found = moments(SGHMCSampler(step_sizes=Constant(0.1), friction=2.0), 100, **settings)
    return (found.mean(0).abs() / (found.std(0) / math.sqrt(len(found)))).max().item()


def test_the_law_of_a_gaussian_is_exact_at_any_stable_step():
    """9 numbers within 4 standard errors: false alarm 6e-4."""
    assert worst_gap() < 4


WRONG = {
    "noise without the factor 2": (
        rubbed,
        "-math.expm1(-2 * friction * size)",
        "-math.expm1(-friction * size)",
    ),
    "no noise": (rubbed, "variance.clamp_min(0).sqrt() * z", "0 * z"),
    "friction without noise to match": (rubbed, "math.sqrt(kept) * velocity", "kept * velocity"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_friction_is_found(name, monkeypatch):
    function, right, wrong = WRONG[name]
    source = inspect.getsource(function)
    assert right in source
    space = dict(vars(module))
    exec(source.replace(right, wrong), space)
    monkeypatch.setattr(module, "rubbed", space["rubbed"])
    assert worst_gap() > 4


MOVES = {
    "momentum pushed up the energy": ("+ 0.5 * size * at.gradient", "- 0.5 * size * at.gradient"),
    "a drift too long": ("position = state.at.position + 0.5 * size", "position = state.at.position + size"),
    "a half kick missing": ("velocity = velocity + 0.5 * size * at.gradient", "velocity = velocity + 0.0"),
}


@pytest.mark.parametrize("name", MOVES)
def test_a_wrong_move_is_found(name, monkeypatch):
    right, wrong = MOVES[name]
    source = inspect.getsource(SGHMCSampler._moved)
    assert right in source
    space = dict(vars(module))
    exec("class Wrong:\n" + source.replace(right, wrong), space)
    monkeypatch.setattr(SGHMCSampler, "_moved", space["Wrong"]._moved)
    assert worst_gap() > 4


def heat(size: float, chains: int = 512, **settings) -> tuple[float, float]:
    """Mean over coordinates of ``variance / exact - 1`` with noisy gradients, and its standard error."""
    sampler = SGHMCSampler(step_sizes=Constant(size), friction=2.0, gradient=Noisy(), **settings)
    found = moments(sampler, math.ceil(10 / size), chains, warm_up=math.ceil(6 / size))
    each = (found[:, [3, 5, 8]] / COVARIANCE.diagonal()).mean(1)
    return each.mean().item(), each.std().item() / math.sqrt(chains)


def test_the_bias_of_noisy_gradients_goes_to_zero_with_the_step():
    """It is proportional to the step: at h = .01 a quarter of that at .04."""
    (large, _), (small, error) = heat(0.04), heat(0.01, chains=256)
    assert large > 0.25
    assert small < 0.6 * large
    assert abs(small - large / 4) < 4 * error + 0.05


def test_a_variance_that_is_known_is_made_room_for():
    """At h = .04 the friction's noise leaves out what the gradients bring: a tenth of the bias is left."""
    plain, _ = heat(0.04)
    known, error = heat(0.04, estimate_noise=True)
    assert abs(known) < plain / 5 + 4 * error < 0.25


def test_the_variance_of_the_gradients_is_learned():
    """Each coordinate's own: 8 chains, 400 pairs of estimates each, standard error 10%."""
    sampler = SGHMCSampler(step_sizes=Constant(0.01), friction=2.0, gradient=Noisy(), estimate_noise=True)
    target, source = Gaussian(), seeded(2)
    state = sampler.start(target, exact_draws(8), source)
    for step in range(400):
        state, info = sampler.warm_up(state, step, 400, target, source)
        assert info.gradients.tolist() == [2] * 8
    noise = sampler.facts(state)["gradient_noise"]
    assert ((noise / Noisy.variance).log().abs() < 0.4).all()
    assert ((noise / Noisy.variance).mean(0).log().abs() < 0.15).all()


def test_exact_gradients_have_no_noise_to_estimate():
    assert isinstance(AllData(), GradientEstimate)
    with pytest.raises(ValueError, match="have no noise; give a batch_size"):
        SGHMCSampler(step_sizes=Constant(0.1), friction=1.0, estimate_noise=True)


def test_heat_is_seen():
    """The kinetic temperature is 1 with exact gradients, and above it with noise: 1 + h V / (2 c) - ..."""

    def temperature(gradient) -> torch.Tensor:
        sampler = SGHMCSampler(step_sizes=Constant(0.02), friction=2.0, gradient=gradient)
        target, source = Gaussian(), seeded(4)
        state = sampler.start(target, exact_draws(64), source)
        for _ in range(300):
            state, _ = sampler.step(state, target, source)
        return sampler.facts(state)["kinetic_temperature"]

    exact, noisy = temperature(AllData()), temperature(Noisy())
    assert abs(exact.mean() - 1) < 4 * exact.std() / 8
    expected = 1 + 0.02 * Noisy.variance.mean() / (2 * 2.0)
    assert abs(noisy.mean() - expected) < 4 * noisy.std() / 8 + 0.02


def test_a_step_too_large_is_taken_back_and_counted():
    """Trap 40: beyond h = .02 a scale of .01 blows up; positions stay finite, and it is said."""
    start = 0.01 * torch.randn(3, 2, generator=seeded(1))
    with pytest.warns(UserWarning, match=r"divergent steps|never accepted|mean acceptance"):
        samples = sb.sample(
            lambda x: -0.5 * (100 * x).square().sum(1), start, sb.SGHMC(warm_up=5, draws=200, step_size=0.025)
        )
    assert samples.draws.isfinite().all()
    assert samples.draws.abs().max() < 1e6
    assert samples.statistics.divergent.any(1).all()
    assert torch.equal(samples.statistics.acceptance == 0, samples.statistics.divergent)
    with pytest.raises(sb.ChainsStuck, match="mean acceptance 0, 165 divergent"):
        sb.sample(
            lambda x: -0.5 * (100 * x).square().sum(1), start, sb.SGHMC(warm_up=5, draws=50, step_size=1.0)
        )


def test_a_density_that_is_nan_is_not_entered():
    def log_density(x):
        return torch.where(x[:, 0] > 0, -x[:, 0], math.nan) - 0.5 * x[:, 1].square()

    start = torch.tensor([[0.5, 0.0], [1.0, 1.0]])
    with pytest.warns(UserWarning, match="divergent steps"):
        samples = sb.sample(log_density, start, sb.SGHMC(warm_up=5, draws=300, step_size=0.2, friction=1.0))
    assert (samples.draws[..., 0] > 0).all()


def test_a_run_that_is_stored_at_every_step_gives_the_same_numbers():
    """Trap 48: any state is rebuilt from its tensors."""
    sampler = SGHMCSampler(
        step_sizes=Decaying(first=0.1, delay=5), friction=2.0, gradient=Noisy(), estimate_noise=True
    )
    target = Gaussian()
    first = sampler.start(target, exact_draws(3), seeded(1))

    def run(stored: bool):
        source, state = seeded(2), first
        for step in range(30):
            if step < 20:
                state, _ = sampler.warm_up(state, step, 20, target, source)
            else:
                state, _ = sampler.step(state, target, source)
            if stored:
                state = rebuilt(first, {name: t.clone() for name, t in tensors_of(state).items()})
        return tensors_of(state)

    one, other = run(False), run(True)
    assert all(torch.equal(one[name], other[name]) for name in one)
