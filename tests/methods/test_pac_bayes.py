"""PACBayes: the step is the bound's gradient, its certificate is tighter, the contract holds."""

import math

import pytest
import torch
import torch.distributions as td
from torch import nn

import singularbayes as sb
from singularbayes.bounded_losses import BoundedCrossEntropy, ClippedLoss, ZeroOne
from singularbayes.bounds import KLInverse, Lambda, Quadratic
from singularbayes.methods.bounded import Bounded
from singularbayes.methods.learner import Bound
from singularbayes.methods.pac_bayes import BoundLearner, BuildBound, PACBayes
from singularbayes.testing import CLAUSES, check_method
from singularbayes.theory import certify, pac_bayes_kl

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(1200, 4, generator=GENERATOR)
Y = (X[:, 0] + X[:, 1] * X[:, 2] > 0).long()


def network(kind: str = "low rank", dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(1)
    full = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 2)).to(
        dtype
    )
    return full if kind == "full" else sb.factorize(full, rank={"2": 3})


# The step


def step_and_autograd(objective, prior, temperature: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    method = PACBayes(objective=objective, temperature=temperature, certified=90)
    loss = method.loss
    model = sb.Model(network(dtype=torch.float64), Bounded(sb.Categorical(), loss), prior=prior)
    start = model.layout.flatten(model.network)
    gradient = torch.zeros(BuildBound(method).size(model), dtype=start.dtype)
    learner = BuildBound(method)(
        Bound(model, torch.device("cpu"), gradient, start, num_data=50), start, gradient
    )
    assert isinstance(learner, BoundLearner)
    learner.draw(torch.Generator().manual_seed(2))
    learner.gradient.zero_()
    x, y = X[:8].double(), Y[:8]
    model.likelihood.loss(learner.bound.network(x), y, {}).backward()
    learner.finish(temperature / 50, 1.0)

    vector = learner.vector.detach().clone().requires_grad_()
    size = model.layout.belief
    mean, std = vector[:size], nn.functional.softplus(vector[size:])
    outputs = torch.func.functional_call(model.network, model.layout.views(mean + std * learner.noise), (x,))
    cross = (nn.functional.cross_entropy(outputs, y, reduction="none") / loss.unit).clamp(0, 1).mean()
    centre, width = (prior.mean, prior.std) if isinstance(prior, sb.Centred) else (0.0, prior.std)
    kl = td.kl_divergence(td.Normal(mean, std), td.Normal(torch.zeros_like(mean) + centre, width)).sum()
    c = (kl + math.log(2 * math.sqrt(90) / method.delta)) / 90
    if isinstance(objective, Lambda):
        bound = cross / (1 - objective.trade_off / 2) + c / (
            objective.trade_off * (1 - objective.trade_off / 2)
        )
    else:
        bound = ((cross + c / 2).sqrt() + (c / 2).sqrt()).square()
    if temperature != 1:  # the KL's pull alone is multiplied
        by_loss, by_kl = objective.slopes(cross.item(), kl.item(), 90, method.delta)
        bound = by_loss * cross + temperature * by_kl * kl
    return learner.gradient, torch.autograd.grad(bound, vector)[0]


def centred() -> sb.Centred:
    size = sb.Model(network(), sb.Categorical()).layout.belief
    return sb.Centred(torch.linspace(-1, 1, size).double(), torch.logspace(-2, 0, size).double())


@pytest.mark.parametrize("objective", [Quadratic(), Lambda(0.6)], ids=repr)
@pytest.mark.parametrize("prior", [sb.Normal(0.5), centred()], ids=["normal", "centred"])
@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_a_step_is_the_gradient_of_the_bound(objective, prior, temperature):
    step, exact = step_and_autograd(objective, prior, temperature)
    assert (step - exact).abs().max() < 1e-8 * exact.abs().max()


def test_a_kl_of_another_weight_fails_that_test(monkeypatch):
    right = Quadratic.slopes

    def wrong(self, *arguments):
        by_loss, by_kl = right(self, *arguments)
        return by_loss, by_kl / 2

    monkeypatch.setattr(Quadratic, "slopes", wrong)
    step, exact = step_and_autograd(Quadratic(), sb.Normal(0.5))
    assert (step - exact).abs().max() > 1e-2 * exact.abs().max()


def test_the_best_trade_off_is_the_quadratic_objective():
    fits = [
        PACBayes(epochs=3, objective=objective).fit(sb.Model(network(), sb.Categorical()), (X, Y))
        for objective in (Quadratic(), Lambda())
    ]
    assert torch.allclose(*(fit.distribution.mean for fit in fits), atol=1e-5)


# What it is for


def test_its_certificate_is_below_that_of_bayes():
    model = sb.Model(network(), sb.Categorical(), prior=sb.Normal(0.5))
    options = {"epochs": 40, "learning_rate": 5e-3}
    bound, bayes = (method.fit(model, (X, Y)) for method in (PACBayes(**options), sb.MeanField(**options)))
    loss = BoundedCrossEntropy()
    found = [certify(each, (X, Y), draws=200, loss=loss).value for each in (bound, bayes)]
    assert found[0] < 0.9 * found[1]
    assert bound.info["kl"] < bayes.info.get("kl", pac_bayes_kl(bayes))


def test_under_a_data_dependent_prior_it_starts_there_and_certifies_the_rest():
    half = (X[:600], Y[:600]), (X[600:], Y[600:])
    start = sb.Model(network(), sb.Categorical())
    point = sb.MAP(epochs=40, learning_rate=5e-3).fit(start, half[0])
    prior = sb.Centred.at(point, 0.02)
    model = sb.Model(network(), sb.Categorical(), prior=prior).started_at(point)
    tiny = PACBayes(epochs=1, learning_rate=1e-12).fit(model, half[1])
    assert tiny.info["kl"] < 1e-3
    narrow = PACBayes(epochs=1, learning_rate=1e-12, initial_share=0.5).fit(model, half[1])
    assert narrow.distribution.std[: len(prior.std)] == pytest.approx(0.01, rel=1e-3)
    fitted = PACBayes(epochs=10).fit(model, half[1])
    found = certify(fitted, half[1], draws=500, prior=prior)
    free = PACBayes(epochs=40, learning_rate=5e-3).fit(start, (X, Y))
    assert found.risk < certify(free, (X, Y), draws=500).risk  # without data in the prior
    assert found.risk < 0.25
    assert fitted.info["kl"] == pytest.approx(found.kl, rel=1e-4)


def test_a_regression_trains_to_its_clipped_loss():
    torch.manual_seed(0)
    model = sb.Model(nn.Linear(4, 1), sb.Gaussian(noise=0.3))
    y = X[:, 0] - X[:, 3]
    posterior = PACBayes(epochs=30, learning_rate=0.02, loss=ClippedLoss(4.0)).fit(model, (X, y))
    assert certify(posterior, (X, y), draws=200, loss=ClippedLoss(4.0), subset=200).risk < 0.2


# Contract and refusals


@pytest.mark.parametrize("kind", ["full", "low rank"])
def test_it_keeps_the_contract(kind):
    options = {"network": network(kind), "likelihood": sb.Categorical(), "data": (X[:40], Y[:40])}
    assert check_method(PACBayes(epochs=2), **options) == list(CLAUSES)


def test_it_keeps_the_contract_on_the_default_network():
    assert check_method(PACBayes(epochs=2, gradient=sb.Gradient.ANTITHETIC)) == list(CLAUSES)


def test_the_posterior_has_the_models_own_likelihood():
    model = sb.Model(network(), sb.Categorical())
    posterior = PACBayes(epochs=1).fit(model, (X, Y), (X, Y))
    assert posterior.likelihood is model.likelihood
    assert posterior.info["prior"] == model.describe_prior()
    with pytest.raises(sb.TrainingDiverged) as stop:
        PACBayes(epochs=3, learning_rate=1e30).fit(model, (X, Y))
    assert stop.value.posterior.likelihood is model.likelihood


def test_a_checkpoint_goes_on_to_the_same_numbers(tmp_path):
    model = sb.Model(network(), sb.Categorical())
    PACBayes(epochs=2).fit(model, (X, Y), checkpoint=tmp_path)
    again = PACBayes(epochs=4).fit(model, (X, Y), checkpoint=tmp_path)
    assert torch.equal(again.distribution.mean, PACBayes(epochs=4).fit(model, (X, Y)).distribution.mean)


@pytest.mark.usefixtures("unchecked")
def test_what_cannot_be_trained_to_a_bound_is_refused():
    model = sb.Model(network(), sb.Categorical())
    with pytest.raises(TypeError, match="objective must have slopes"):
        PACBayes(objective=KLInverse())
    with pytest.raises(ValueError, match="probability of failure"):
        PACBayes(delta=0.0)
    with pytest.raises(ValueError, match="certified must be a whole number"):
        PACBayes(certified=0)
    with pytest.raises(TypeError, match="has no gradient"):
        PACBayes(loss=ZeroOne())
    with pytest.raises(TypeError, match="is a loss for gaussian"):
        PACBayes(loss=ClippedLoss(1.0)).fit(model, (X, Y))
    learned = sb.Model(network(), sb.Categorical(), prior=sb.ScaleMixture(learned=True))
    with pytest.raises(ValueError, match="sees the data"):
        PACBayes().fit(learned, (X, Y))
