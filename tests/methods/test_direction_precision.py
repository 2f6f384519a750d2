"""DirectionPrecision: the step against autograd, the exact posterior with the right directions."""

import math
import time

import pytest
import torch
import torch.distributions as td
from torch import Tensor, nn

import singularbayes as sb
from singularbayes.distributions import DirectionGaussian
from singularbayes.methods.direction_precision import BuildDirections, DirectionLearner
from singularbayes.methods.learner import Bound
from singularbayes.priors import Laplace, Normal, PerParameter, ScaleMixture
from singularbayes.testing import CLAUSES, check_method

DATA = torch.randn(40, 4, generator=torch.Generator().manual_seed(3)) * torch.tensor([1.0, 10.0, 0.1, 1.0])
LABELS = (DATA[:, 0] > 0).long()


def network_of(kind: str = "full rank") -> nn.Module:
    torch.manual_seed(3)
    mlp = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 2))
    return sb.factorize(mlp, rank={"0": 2, "2": 3}) if kind == "low rank" else mlp


def learner_of(method: sb.DirectionPrecision, model: sb.Model, seed: int = 0) -> DirectionLearner:
    start = model.layout.flatten(model.network, model.likelihood.parameters)
    directions = method.directions.find(model, None, torch.device("cpu"), seed)
    build = BuildDirections(method, directions)
    gradient = torch.zeros(build.size(model), dtype=start.dtype)
    return build(Bound(model, torch.device("cpu"), gradient, start, num_data=40), start, gradient)


# The step


@pytest.mark.parametrize("k", [1, 3, 100])
def test_the_gradient_of_a_step_is_autograds(k):
    prior = PerParameter({"0.*": Normal(0.7), "*": Normal(2.0)})
    model = sb.Model(network_of().double(), sb.Categorical(), prior=prior, deterministic="2.bias")
    learner = learner_of(sb.DirectionPrecision(directions=sb.RandomDirections(k)), model)
    torch.manual_seed(8)
    learner.vector.add_(0.2 * torch.randn_like(learner.vector))
    x, weight = DATA.double(), 0.3
    learner.draw(torch.Generator().manual_seed(2))
    learner.gradient.zero_()
    model.likelihood.loss(learner.bound.network(x), LABELS, {}).backward()
    learner.finish(weight, 0.0)

    vector = learner.vector.detach().clone().requires_grad_()
    trained, believed = model.layout.trained, model.layout.belief
    pieces, kl, at = [], 0.0, trained
    for slot, block in zip(model.layout.of_kind("belief"), learner.blocks, strict=True):
        u, own = block.directions, min(k, slot.size)
        std, precision = vector[at].exp(), vector[at + 1 : at + 1 + own].exp()
        at += 1 + own
        eye = torch.eye(slot.size, dtype=torch.float64)
        root = std * (eye - u @ u.T) + u @ torch.diag(precision**-0.5) @ u.T
        mean = vector[slot.start : slot.stop]
        pieces.append(mean + root @ learner.noise[slot.start : slot.stop])
        q = td.MultivariateNormal(mean, root @ root.T)
        std_p = 0.7 if slot.name.startswith("0") else 2.0
        kl = kl + td.kl_divergence(q, td.MultivariateNormal(torch.zeros_like(mean), std_p**2 * eye))
    row = torch.cat([*pieces, vector[believed:trained]])
    outputs = torch.func.functional_call(model.network, model.layout.views(row), (x,))
    exact = torch.autograd.grad(nn.functional.cross_entropy(outputs, LABELS) + weight * kl, vector)[0]
    torch.testing.assert_close(learner.gradient, exact, rtol=1e-6, atol=1e-8)
    assert learner.regulariser() == pytest.approx(kl.item(), rel=1e-9)


# methods.md 9: conjugate regression, prior variance 1, noise variance .25; the bias as a second input, so
# that one tensor holds both and their correlation
X = torch.tensor(
    [[-1.0, 1.0], [-0.5, 1.0], [0.5, 1.0], [1.5, 1.0], [2.0, 1.0], [3.0, 1.0]], dtype=torch.float64
)
Y = torch.tensor([-1.1, -1.0, 0.2, 0.9, 1.4, 2.3], dtype=torch.float64)
MEAN = torch.tensor([0.853125, -0.31875], dtype=torch.float64)
COVARIANCE = torch.linalg.inv(torch.tensor([[68.0, 22.0], [22.0, 25.0]], dtype=torch.float64))
LOG_EVIDENCE = -5.492971647
MEAN_FIELD_ELBO = -5.660502381


def elbo(mean: Tensor, covariance: Tensor) -> float:
    residual = (Y - X @ mean).square() + torch.einsum("ni,ij,nj->n", X, covariance, X)
    likelihood = (-0.5 * residual / 0.25 - 0.5 * math.log(2 * math.pi * 0.25)).sum()
    prior = td.MultivariateNormal(torch.zeros(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64))
    return (likelihood - td.kl_divergence(td.MultivariateNormal(mean, covariance), prior)).item()


def covariance_of(q: DirectionGaussian) -> Tensor:
    """Dense, of a single block."""
    u, eye = q.directions.double(), torch.eye(q.size, dtype=torch.float64)
    return q.std[0] ** 2 * (eye - u @ u.T) + u @ torch.diag(q.direction_std[0].double() ** 2) @ u.T


def conjugate_fit(directions, steps: int = 1500) -> tuple[Tensor, Tensor, float]:
    torch.manual_seed(0)
    model = sb.Model(nn.Linear(2, 1, bias=False).double(), sb.Gaussian(noise=0.5), prior=Normal(1.0))
    method = sb.DirectionPrecision(
        epochs=steps // 100,
        learning_rate=0.02,
        schedule=sb.Schedule.COSINE,
        initial_std=0.3,
        temperature=100.0,  # 100 steps an epoch, each with all data: N counts them 100 times
        directions=directions,
    )
    q = method.fit(model, [(X, Y)] * 100).distribution
    covariance = covariance_of(q)
    return q.mean, covariance, elbo(q.mean, covariance)


def test_with_the_right_directions_it_reaches_the_exact_posterior():
    assert elbo(MEAN, COVARIANCE) == pytest.approx(LOG_EVIDENCE, abs=1e-8)
    mean, covariance, bound = conjugate_fit(sb.GGNDirections(k=1, iterations=20))
    assert (mean - MEAN).abs().max() < 0.02
    assert (covariance / COVARIANCE - 1).abs().max() < 0.1, covariance
    assert bound == pytest.approx(LOG_EVIDENCE, abs=0.02)
    assert bound > MEAN_FIELD_ELBO + 0.1  # no mean field gets there


def test_with_random_directions_it_cannot():
    _, covariance, bound = conjugate_fit(sb.RandomDirections(k=1), steps=700)
    assert bound < LOG_EVIDENCE - 0.05
    assert (covariance / COVARIANCE - 1).abs().max() > 0.2


def test_a_precision_used_as_a_variance_misses_it(monkeypatch):
    # the mutant of methods.md 10
    def as_variance(self, block):
        return self.vector[block.log_std].exp(), (0.5 * self.vector[block.log_precision]).exp()

    monkeypatch.setattr(DirectionLearner, "_scales", as_variance)
    try:
        _, covariance, bound = conjugate_fit(sb.GGNDirections(k=1, iterations=20), steps=500)
    except sb.TrainingDiverged:
        return
    assert bound < LOG_EVIDENCE - 0.1 or not math.isfinite(bound), covariance


@pytest.mark.parametrize("shift", [-30.0, 0.0, 30.0])
def test_any_log_precision_gives_positive_scales_and_a_finite_step(shift):
    learner = learner_of(sb.DirectionPrecision(), sb.Model(network_of(), sb.Categorical()))
    learner.vector[learner.trained :] += shift
    learner.draw(torch.Generator().manual_seed(0))
    learner.gradient.normal_()
    learner.finish(0.1, 0.0)
    q = learner.distribution()
    assert (q.std > 0).all()
    assert torch.isfinite(learner.gradient).all()
    assert math.isfinite(learner.regulariser())


# Directions


def test_random_directions_are_orthonormal_and_follow_the_seed():
    model = sb.Model(network_of("low rank"), sb.Categorical())
    device = torch.device("cpu")
    one, again, other = (sb.RandomDirections(5).find(model, None, device, seed) for seed in (0, 0, 1))
    for slot, u, same, different in zip(model.layout.of_kind("belief"), one, again, other, strict=True):
        assert u.shape == (slot.size, min(5, slot.size))
        torch.testing.assert_close(u.T @ u, torch.eye(u.shape[1]), rtol=0, atol=1e-5)
        assert torch.equal(u, same)
        assert not torch.equal(u, different)


def test_nothing_is_as_large_as_entries_times_all_directions():
    model = sb.Model(network_of(), sb.Categorical())
    q = learner_of(sb.DirectionPrecision(directions=sb.RandomDirections(4)), model).distribution()
    assert q.directions.shape == (model.layout.belief, 4)
    assert max(t.numel() for t in q.tensors().values()) == 4 * model.layout.belief


def test_the_posterior_is_the_one_that_training_draws_from():
    model = sb.Model(network_of("low rank"), sb.Categorical(), deterministic="0.bias")
    learner = learner_of(sb.DirectionPrecision(directions=sb.RandomDirections(4)), model)
    learner.vector[learner.trained :] += 0.5 * torch.randn(len(learner.vector) - learner.trained)
    learner.draw(torch.Generator().manual_seed(1))
    drawn = learner.distribution().sample(learner.noise.unsqueeze(0))[0]
    torch.testing.assert_close(drawn, learner.bound.w, rtol=1e-5, atol=1e-6)


# Refusals


@pytest.mark.parametrize(
    "prior", [Laplace(1.0), ScaleMixture(), PerParameter({"0.*": Laplace(), "*": Normal()})]
)
def test_another_prior_is_refused_before_any_work(prior):
    with pytest.raises(ValueError, match="KL to a Normal prior alone"):
        sb.DirectionPrecision().fit(sb.Model(network_of(), sb.Categorical(), prior=prior), None)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: sb.RandomDirections(0), "k must be a whole"),
        (lambda: sb.GGNDirections(k=0), "k must be a whole"),
        (lambda: sb.GGNDirections(iterations=0), "iterations"),
        (lambda: sb.GGNDirections(rows=0), "rows"),
        (lambda: sb.DirectionPrecision(initial_std=0.0), "initial_std"),
        (lambda: sb.DirectionPrecision(validation_draws=0), "validation_draws"),
        (lambda: sb.DirectionPrecision(validation_draws=True), "validation_draws must be a whole"),
        (lambda: sb.MeanField(validation_draws=2.5), "validation_draws must be a whole"),
        (lambda: sb.Precise(validation_draws=2.5), "validation_draws must be a whole"),
    ],
)
def test_settings_are_checked(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.usefixtures("unchecked")
def test_directions_by_name_are_refused():
    with pytest.raises(TypeError, match="RandomDirections"):
        sb.DirectionPrecision(directions="random")


# The contract


@pytest.mark.parametrize("kind", ["full rank", "low rank"])
def test_gauss_newton_directions_keep_the_contract(kind):
    method = sb.DirectionPrecision(epochs=1, directions=sb.GGNDirections(k=2, iterations=1, rows=40))
    options = {"network": network_of(kind), "likelihood": sb.Categorical(), "data": (DATA, LABELS)}
    assert check_method(method, **options) == list(CLAUSES)


def test_it_counts_means_widths_and_precisions():
    model = sb.Model(network_of(), sb.Categorical(), deterministic="4.bias")
    method = sb.DirectionPrecision(epochs=1, directions=sb.RandomDirections(20))
    info = method.fit(model, (DATA, LABELS)).info
    sizes = [slot.size for slot in model.layout.of_kind("belief")]
    assert info["numbers"] == model.layout.trained + sum(1 + min(20, size) for size in sizes)
    assert info["direction_entries"] == sum(size * min(20, size) for size in sizes)


def test_the_time_of_finding_directions_counts(monkeypatch):
    find = sb.RandomDirections.find

    def slow(self, *args):
        time.sleep(0.3)
        return find(self, *args)

    monkeypatch.setattr(sb.RandomDirections, "find", slow)
    model = sb.Model(network_of(), sb.Categorical())
    posterior = sb.DirectionPrecision(epochs=1).fit(model, (DATA, LABELS))
    assert posterior.info["seconds"] > 0.3


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ((DATA[:, :-1], LABELS), r"failed on inputs of shape \(2, "),  # torch's own error came first
        ((DATA, LABELS + 100), "in row 0 is out of range"),
    ],
)
def test_bad_data_are_named_before_the_search_for_directions(data, words, monkeypatch):
    monkeypatch.setattr(sb.GGNDirections, "find", lambda *_: pytest.fail("searched"))
    method = sb.DirectionPrecision(epochs=1, directions=sb.GGNDirections(k=2, iterations=1))
    with pytest.raises(ValueError, match=words):
        method.fit(sb.Model(network_of(), sb.Categorical()), data)
