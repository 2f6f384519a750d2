"""IVON: the step against its authors' package, the optimum against the closed form, mutants of both."""

import copy
import math

import ivon
import pytest
import torch
from torch import Tensor, nn

import singularbayes as sb
from singularbayes.methods.ivon import BuildIVON, IVONLearner, Update
from singularbayes.methods.learner import Bound
from singularbayes.priors import Laplace, Normal, PerParameter, ScaleMixture
from singularbayes.testing import CLAUSES, check_method

# methods.md 9: conjugate regression with a bias, prior variance 1, noise variance .25
X = torch.tensor([[-1.0], [-0.5], [0.5], [1.5], [2.0], [3.0]])
Y = torch.tensor([-1.1, -1.0, 0.2, 0.9, 1.4, 2.3], dtype=torch.float64)
BIAS_MEAN, WEIGHT_MEAN = -0.31875, 0.853125
BIAS_VARIANCE, WEIGHT_VARIANCE = 0.04, 0.0147058824
ELBO = -5.660502381


def small(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).to(dtype)


def learner_of(method: sb.IVON, model: sb.Model, num_data: int) -> tuple[IVONLearner, torch.optim.Optimizer]:
    """As the loop makes it."""
    start = model.layout.flatten(model.network, model.likelihood.parameters)
    build = BuildIVON(method)
    gradient = torch.zeros(build.size(model), dtype=start.dtype)
    learner = build(Bound(model, torch.device("cpu"), gradient, start, num_data=num_data), start, gradient)
    learner.vector.grad = learner.gradient
    return learner, learner.optimizer(method.learning_rate)


def batches(steps: int, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    source = torch.Generator().manual_seed(1)
    scale = torch.tensor([1.0, 10.0, 0.1], dtype=dtype)
    xs = [torch.randn(8, 3, generator=source, dtype=dtype) * scale for _ in range(steps)]
    return [(x, (x[:, 0] + x[:, 1] / 10 > 0).long()) for x in xs]


SETTINGS = {
    "plain": {},
    "clipped": {"clip_radius": 1e-3},
    "cold, another start": {"temperature": 0.3, "hessian_init": 0.25, "beta1": 0.7, "learning_rate": 0.03},
    "two draws": {"draws": 2},
    "three draws": {"draws": 3},
}


def both(settings: dict, steps: int = 40, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    """Means and curvatures after some steps: ours, the package's."""
    num_data, std = 200, 0.7
    method = sb.IVON(**{"beta2": 0.95, **settings})
    model = sb.Model(small(dtype), sb.Categorical(), prior=Normal(std))
    learner, optimizer = learner_of(method, model, num_data)
    theirs = copy.deepcopy(model.network)
    package = ivon.IVON(
        theirs.parameters(),
        lr=method.learning_rate,
        ess=num_data / method.temperature,
        hess_init=method.hessian_init,
        beta1=method.beta1,
        beta2=method.beta2,
        weight_decay=method.temperature / (num_data * std**2),
        mc_samples=method.draws,
        clip_radius=method.clip_radius,
    )
    source = torch.Generator().manual_seed(3)
    torch.manual_seed(3)  # the package draws from the global state: the same numbers
    for x, y in batches(steps, dtype):
        for _ in range(method.draws):
            learner.draw(source)
            learner.gradient.zero_()
            model.likelihood.loss(learner.bound.network(x), y, {}).backward()
            with package.sampled_params(train=True):
                package.zero_grad()
                nn.functional.cross_entropy(theirs(x), y).backward()
        learner.finish(method.temperature / num_data, 0.0)
        optimizer.step()
        package.step()
    their_mean = torch.cat([p.detach().flatten() for p in theirs.parameters()])
    return (
        learner.vector[: learner.trained],
        learner.update.hessian,
        their_mean,
        package.param_groups[0]["hess"],
    )


@pytest.mark.parametrize("name", SETTINGS)
def test_every_step_is_the_packages(name):
    mean, hessian, their_mean, their_hessian = both(SETTINGS[name])
    assert (their_hessian - SETTINGS[name].get("hessian_init", 1.0)).abs().max() > 1e-3  # it moved
    torch.testing.assert_close(mean, their_mean, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(hessian, their_hessian, rtol=1e-9, atol=1e-12)


def test_float32_steps_are_the_packages():
    mean, hessian, their_mean, their_hessian = both({}, dtype=torch.float32)
    torch.testing.assert_close(mean, their_mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(hessian, their_hessian, rtol=1e-4, atol=1e-5)


def without_square(self, closure=None):
    """No (h - f)^2 term."""
    h = self.hessian
    before, estimate = h.clone(), self.vector.grad[-len(h) :].clone()
    ORIGINAL(self)
    width, rate = before + self.decay, 1 - self.method.beta2
    h.sub_(0.5 * rate**2 * (before - estimate).square() / width)


def without_count(self, weight, progress):
    """No N in f."""
    FINISH(self, weight, progress)
    self.estimate.div_(self.count)


def decay_in_the_curvature(self, weight, progress):
    """The decay counted as part of the data's curvature."""
    FINISH(self, weight, progress)
    self.estimate.add_(self.update.decay)


def width_without_decay(self, out=None):
    """The decay left out of the width of q."""
    return (
        (self.update.hessian * self.count).rsqrt_()
        if out is None
        else torch.mul(self.update.hessian, self.count, out=out).rsqrt_()
    )


ORIGINAL, FINISH = Update.step, IVONLearner.finish
MUTANTS = {
    "no square": (Update, "step", without_square),
    "no N in f": (IVONLearner, "finish", without_count),
    "decay in f": (IVONLearner, "finish", decay_in_the_curvature),
    "no decay in the width": (IVONLearner, "_std", width_without_decay),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_update_leaves_the_packages_path(mutant, monkeypatch):
    monkeypatch.setattr(*MUTANTS[mutant])
    _, hessian, _, their_hessian = both({})
    assert not torch.allclose(hessian, their_hessian, rtol=1e-3)


def test_the_curvature_stays_positive_where_the_plain_average_would_not():
    method = sb.IVON(beta2=0.5)
    learner, _ = learner_of(method, sb.Model(small(), sb.Categorical()), 10)
    update = learner.update
    learner.estimate.fill_(-50.0)  # a noisy estimate may be far below 0
    update.step()
    assert (update.hessian + update.decay > 0).all()
    assert 0.5 * 1.0 + 0.5 * -50.0 + update.decay < 0  # the mutant: without the square term


# The conjugate optimum


def expected_log_likelihood(bias: float, weight: float, bias_var: float, weight_var: float) -> float:
    x, y = X.double().squeeze(1), Y.double()
    residual = (y - bias - weight * x).square() + bias_var + weight_var * x.square()
    return (-0.5 * residual / 0.25 - 0.5 * math.log(2 * math.pi * 0.25)).sum().item()


def conjugate_fit(steps: int = 3500, **settings) -> tuple[list[float], float]:
    """Means and variances of bias and weight, and the exact ELBO, after training.

    All data at every step, 100 steps an epoch: N counts them 100 times, and T = 100 undoes it.
    """
    torch.manual_seed(0)
    model = sb.Model(nn.Linear(1, 1), sb.Gaussian(noise=0.5), prior=Normal(1.0))
    defaults = {"learning_rate": 0.02, "schedule": sb.Schedule.COSINE, "beta2": 0.999, "hessian_init": 6.0}
    method = sb.IVON(epochs=steps // 100, temperature=100.0, **{**defaults, **settings})
    posterior = method.fit(model, [(X, Y)] * 100)
    weight, bias = posterior.distribution.mean.double().tolist()
    weight_var, bias_var = posterior.distribution.variance.double().tolist()
    kl = sum(0.5 * (m * m + v - 1 - math.log(v)) for m, v in ((weight, weight_var), (bias, bias_var)))
    elbo = expected_log_likelihood(bias, weight, bias_var, weight_var) - kl
    return [bias, weight, bias_var, weight_var], elbo


def at_the_optimum(found: tuple[list[float], float]) -> bool:
    (bias, weight, bias_var, weight_var), elbo = found
    return (
        abs(bias - BIAS_MEAN) < 0.02
        and abs(weight - WEIGHT_MEAN) < 0.02
        and abs(bias_var / BIAS_VARIANCE - 1) < 0.1
        and abs(weight_var / WEIGHT_VARIANCE - 1) < 0.1
        and abs(elbo - ELBO) < 0.02
    )


def test_it_reaches_the_closed_form_optimum():
    found = conjugate_fit()
    assert at_the_optimum(found), found


def test_a_curvature_without_n_misses_the_optimum(monkeypatch):
    monkeypatch.setattr(*MUTANTS["no N in f"])
    found = conjugate_fit(1000, beta2=0.997)
    assert abs(found[0][2] / BIAS_VARIANCE - 1) > 0.25, found  # far off, not just unfinished


def test_the_posterior_is_the_one_that_training_draws_from():
    model = sb.Model(small(), sb.Categorical(), prior=Normal(0.5), deterministic="2.bias")
    learner, _ = learner_of(sb.IVON(temperature=0.5), model, 40)
    learner.update.hessian.uniform_(0.1, 5.0)
    q = learner.distribution()
    believed = model.layout.belief
    decay = 0.5 / (40 * 0.25)
    expected = 1 / torch.sqrt(40 / 0.5 * (learner.update.hessian + decay))
    torch.testing.assert_close(q.std[:believed], expected)
    assert (q.std[believed:] == 0).all()
    learner.draw(torch.Generator().manual_seed(0))
    torch.testing.assert_close(learner.weights, q.mean[:believed] + expected * learner.noise)


def test_processes_that_average_the_vectors_gradient_stay_equal():
    # trap 28; the mutant keeps f beside the gradient: each process then has a curvature of its own
    model = sb.Model(small(), sb.Categorical(), deterministic="2.bias")
    pair = [learner_of(sb.IVON(beta2=0.9, draws=2), model, 40) for _ in range(2)]
    for step, (x, y) in enumerate(batches(3, torch.float64)):
        for rank, (learner, _) in enumerate(pair):
            for draw in range(2):
                learner.draw(torch.Generator().manual_seed(100 * step + 10 * draw + rank))
                learner.gradient.zero_()
                model.likelihood.loss(learner.bound.network(x), y, {}).backward()
            learner.finish(0.025, 0.0)
        assert not torch.equal(pair[0][0].gradient, pair[1][0].gradient)
        mean = (pair[0][0].gradient + pair[1][0].gradient) / 2
        for learner, optimizer in pair:
            learner.gradient.copy_(mean)
            optimizer.step()
    assert torch.equal(pair[0][0].vector, pair[1][0].vector)
    assert torch.equal(pair[0][0].distribution().std, pair[1][0].distribution().std)


# Priors, points, settings


def test_each_parameter_has_its_own_priors_decay():
    prior = PerParameter({"*bias": Normal(10.0), "*": Normal(0.5)})
    model = sb.Model(small(), sb.Categorical(), prior=prior)
    learner, optimizer = learner_of(sb.IVON(), model, 50)
    for slot in model.layout.of_kind("belief"):
        std = 10.0 if slot.name.endswith("bias") else 0.5
        assert torch.allclose(
            learner.update.decay[slot.start : slot.stop], torch.tensor(1 / (50 * std**2)).double()
        )
    alone, other = learner_of(sb.IVON(), sb.Model(small(), sb.Categorical(), prior=Normal(0.5)), 50)
    for each, step in ((learner, optimizer), (alone, other)):
        each.draw(torch.Generator().manual_seed(0))
        each.gradient.fill_(0.3)
        each.noise.fill_(1.0)
        each.scale.fill_(0.1)
        each.finish(0.02, 0.0)
        step.step()
    first = model.layout.slots[0]
    assert torch.allclose(learner.vector[: first.stop], alone.vector[: first.stop], rtol=1e-12)


@pytest.mark.parametrize(
    "prior", [Laplace(1.0), ScaleMixture(), PerParameter({"0.*": Laplace(), "*": Normal()})]
)
def test_another_prior_is_refused_before_any_work(prior):
    with pytest.raises(ValueError, match="IVON's weight decay is a Normal prior's precision"):
        sb.IVON().fit(sb.Model(small(), sb.Categorical(), prior=prior), None)


def test_point_estimates_move_by_momentum_alone():
    model = sb.Model(small(), sb.Categorical(), deterministic=["0.bias", "2.bias"])
    learner, optimizer = learner_of(sb.IVON(hessian_init=0.3, learning_rate=0.05), model, 50)
    start = learner.vector[learner.beliefs : learner.trained].clone()
    sgd = nn.Parameter(start.clone())
    momentum = torch.zeros_like(start)
    for step in range(1, 5):
        learner.draw(torch.Generator().manual_seed(step))
        assert torch.equal(
            learner.bound.w[learner.beliefs :], learner.vector[learner.beliefs : learner.trained]
        )
        learner.gradient.normal_(generator=torch.Generator().manual_seed(step))
        momentum = 0.9 * momentum + 0.1 * learner.gradient[learner.beliefs : learner.trained]
        sgd.data -= 0.05 * momentum / (1 - 0.9**step)
        learner.finish(0.02, 0.0)
        optimizer.step()
    torch.testing.assert_close(learner.vector[learner.beliefs : learner.trained], sgd.data)


def test_the_kl_is_torchs_and_a_sum():
    prior = PerParameter({"*bias": Normal(2.0), "*": Normal(0.5)})
    model = sb.Model(small(), sb.Categorical(), prior=prior)
    learner, _ = learner_of(sb.IVON(), model, 50)
    q = learner.distribution()
    total = 0.0
    for slot in model.layout.of_kind("belief"):
        part = slice(slot.start, slot.stop)
        own = torch.distributions.Normal(q.mean[part], q.std[part])
        std = 2.0 if slot.name.endswith("bias") else 0.5
        total += torch.distributions.kl_divergence(
            own, torch.distributions.Normal(torch.zeros_like(own.loc), std)
        ).sum()
    assert learner.regulariser() == pytest.approx(float(total), rel=1e-9)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"temperature": 0.0}, "temperature above 0"),
        ({"beta1": 1.0}, "beta1"),
        ({"beta2": -0.1}, "beta2"),
        ({"hessian_init": 0.0}, "hessian_init"),
        ({"clip_radius": 0.0}, "clip_radius"),
        ({"clip_radius": math.nan}, "clip_radius"),
        ({"draws": 0}, "draws"),
        ({"validation_draws": 0}, "validation_draws"),
        ({"learning_rate": 0.0}, "learning_rate"),
    ],
)
def test_settings_are_checked(settings, words):
    with pytest.raises(ValueError, match=words):
        sb.IVON(**settings)


def test_a_posterior_without_width_is_named():
    model = sb.Model(small(torch.float32), sb.Categorical())
    x, y = batches(1, torch.float32)[0]
    with pytest.warns(UserWarning, match="collapsed to its mean.*hessian_init"):
        sb.IVON(epochs=1, hessian_init=1e12, learning_rate=1e-6).fit(model, (x, y))


# The contract


def network_of(kind: str) -> nn.Module:
    torch.manual_seed(3)
    mlp = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 2))
    return sb.factorize(mlp, rank={"0": 2, "2": 3}) if kind == "low rank" else mlp


DATA = torch.randn(40, 4, generator=torch.Generator().manual_seed(3)) * torch.tensor([1.0, 10.0, 0.1, 1.0])
LABELS = (DATA[:, 0] > 0).long()


@pytest.mark.parametrize("kind", ["full rank", "low rank"])
def test_it_keeps_the_contract(kind):
    method = sb.IVON(epochs=2, learning_rate=0.02)
    options = {"network": network_of(kind), "likelihood": sb.Categorical(), "data": (DATA, LABELS)}
    assert check_method(method, **options) == list(CLAUSES)


def test_it_counts_mean_and_curvature():
    network = network_of("low rank")
    size = sum(p.numel() for p in network.parameters())
    posterior = sb.IVON(epochs=1, learning_rate=0.02).fit(sb.Model(network, sb.Categorical()), (DATA, LABELS))
    assert posterior.info["numbers"] == 2 * size
    points = sb.Model(network, sb.Categorical(), deterministic="*bias")
    fitted = sb.IVON(epochs=1, learning_rate=0.02).fit(points, (DATA, LABELS))
    assert fitted.info["numbers"] == size + points.layout.belief


def test_trained_weights_are_where_it_starts():
    network = network_of("full rank")
    posterior = sb.IVON(epochs=1, learning_rate=1e-12).fit(
        sb.Model(network, sb.Categorical()), (DATA, LABELS)
    )
    flat = posterior.layout.flatten(network)
    assert torch.allclose(posterior.distribution.mean, flat, atol=1e-6)
    std = 1 / math.sqrt(40 * (1 + 1 / 40))
    assert torch.allclose(posterior.distribution.std, torch.full_like(flat, std), rtol=1e-3)
