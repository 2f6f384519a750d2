"""Structured VI: a step against dense float64 autograd, optima against the dense KL, mutants that miss them."""

import math

import pytest
import torch
import torch.distributions as td
import torch.nn.functional as F
from torch import Tensor, nn

import singularbayes as sb
from singularbayes.divergence import KL
from singularbayes.methods import roots, structured_vi
from singularbayes.methods.covariances import Covariance
from singularbayes.methods.learner import Bound
from singularbayes.methods.structured_vi import BuildStructured, StructuredLearner
from singularbayes.priors import Laplace, Normal, PerParameter, ScaleMixture
from singularbayes.testing import CLAUSES, check_method

COVARIANCES: dict[str, Covariance] = {
    "low rank": sb.LowRankPlusDiagonal(rank=2),
    "Kronecker": sb.Kronecker(),
    "Kronecker and low rank": sb.KroneckerPlusLowRank(rank=3),
    "Kronecker of short sides": sb.Kronecker(longest_side=3),  # the first weight has a side of 4
    "full": sb.FullCovariance(),
}
MIXTURE = ScaleMixture(pi=0.3, std1=0.8, std2=0.1)
PRIORS = {
    "normal": (Normal(0.7), None),
    "normal by draws": (Normal(0.7), KL.MONTE_CARLO),
    "per parameter": (PerParameter({"0.weight": Normal(0.3), "*bias": Laplace(0.3), "*": Normal(2.0)}), None),
    "bounds": (PerParameter({"0.weight": MIXTURE, "*bias": Laplace(0.3), "*": Normal(2.0)}), KL.BOUND),
    "mixed": (PerParameter({"0.weight": MIXTURE, "*bias": Laplace(0.3), "*": Normal(2.0)}), None),
    "mixture by draws": (MIXTURE, None),
}


def small() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1)).double()


def learner_of(method: sb.StructuredVI, model: sb.Model, seed: int = 0) -> StructuredLearner:
    start = model.layout.flatten(model.network, model.likelihood.parameters)
    build = BuildStructured(method, seed)
    gradient = torch.zeros(build.size(model), dtype=start.dtype)
    return build(Bound(model, torch.device("cpu"), gradient, start), start, gradient)


# The root, dense, from the trained vector: by definition, entry by entry


def triangle(numbers: Tensor, side: int) -> Tensor:
    square = numbers.view(side, side)
    return F.softplus(square.diagonal()).diag() @ (torch.eye(side, dtype=numbers.dtype) + square.tril(-1))


def dense_root(covariance: Covariance, model: sb.Model, numbers: Tensor) -> Tensor:
    blocks, at = [], 0
    for site in covariance.sites(model.layout.of_kind("belief")):
        size = site.entries.stop - site.entries.start
        if not site.sides:
            blocks.append(F.softplus(numbers[at : at + size]).diag())
            at += size
            continue
        block = torch.ones(1, 1, dtype=numbers.dtype)
        for side in site.sides:
            block = torch.kron(block, triangle(numbers[at : at + side**2], side))
            at += side**2
        blocks.append(block)
    assert at == len(numbers)
    return torch.block_diag(*blocks)


def dense_draw(learner: StructuredLearner, vector: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Means, dense covariance and the draw at the learner's noise."""
    d, trained, k = learner.beliefs, learner.trained, learner.rank
    numbers, factor = vector[trained:].split([len(vector) - trained - k * d, k * d])
    root, factor = dense_root(learner.method.covariance, learner.bound.model, numbers), factor.view(k, d)
    own, shared = learner.noise[:d], learner.noise[d:]
    draw = vector[:d] + root @ own + root @ factor.T @ shared
    return vector[:d], root @ root.T + root @ factor.T @ factor @ root.T, draw


def log_prior(prior, w: Tensor) -> Tensor:
    """By torch's distributions."""
    match prior:
        case Normal():
            return td.Normal(w.new_tensor(0.0), prior.std).log_prob(w)
        case Laplace():
            return td.Laplace(w.new_tensor(0.0), prior.scale).log_prob(w)
    stds = w.new_tensor([prior.std1, prior.std2])
    mixing = td.Categorical(w.new_tensor([prior.pi, 1 - prior.pi]))
    return td.MixtureSameFamily(mixing, td.Normal(torch.zeros_like(stds), stds)).log_prob(w)


def dense_kl(learner: StructuredLearner, mean: Tensor, covariance: Tensor, draw: Tensor) -> Tensor:
    """From torch's multivariate normal; with Normal priors alone it is torch's ``kl_divergence`` itself."""
    q = td.MultivariateNormal(mean, covariance)
    blocks = [(b, p, learner.method.estimator(p)) for b, p in learner.bound.model.prior_blocks]
    if all(isinstance(p, Normal) and kl is KL.CLOSED for _, p, kl in blocks):
        stds = torch.cat([mean.new_full((b.stop - b.start,), p.std) for b, p, _ in blocks])
        return td.kl_divergence(q, td.MultivariateNormal(torch.zeros_like(mean), torch.diag(stds**2)))
    total, std = -q.entropy(), covariance.diagonal().sqrt()
    for block, prior, kl in blocks:
        marginal = td.Normal(mean[block], std[block])
        zero = torch.zeros_like(mean[block])
        if kl is KL.MONTE_CARLO:
            total = total - log_prior(prior, draw[block]).sum()
        elif isinstance(prior, ScaleMixture):
            parts = [math.log(weight) - td.kl_divergence(marginal, td.Normal(zero, s))
                     for weight, s in ((prior.pi, prior.std1), (1 - prior.pi, prior.std2))]  # fmt: skip
            total = total + (marginal.entropy() - torch.logsumexp(torch.stack(parts), 0)).sum()
        elif isinstance(prior, Normal):
            total = total + (marginal.entropy() + td.kl_divergence(marginal, td.Normal(zero, prior.std))).sum()
        else:
            other = td.Laplace(zero, prior.scale)
            share = torch.erf(mean[block] / std[block] / math.sqrt(2))  # E|w| of a Gaussian
            size = std[block] * math.sqrt(2 / math.pi) * torch.exp(-0.5 * (mean[block] / std[block]) ** 2)
            size = size + mean[block] * share
            total = total + (size / other.scale + math.log(2 * prior.scale)).sum()
    return total


def step_and_autograd(
    covariance: str, prior: str, likelihood=None, weight: float = 0.37, **choice
) -> tuple[Tensor, Tensor]:
    """The gradient that a step leaves, and autograd's of the objective written out densely."""
    which, kl = PRIORS[prior]
    model = sb.Model(small(), likelihood or sb.Gaussian(initial_noise=0.6), prior=which, **choice)
    method = sb.StructuredVI(kl=kl, covariance=COVARIANCES[covariance])
    learner = learner_of(method, model)
    source = torch.Generator().manual_seed(8)
    learner.vector.add_(0.4 * torch.randn(len(learner.vector), generator=source, dtype=torch.float64))
    x = torch.randn(5, 4, generator=source, dtype=torch.float64)
    y = torch.randn(5, generator=source, dtype=torch.float64)
    learner.draw(torch.Generator().manual_seed(2))
    learner.gradient.zero_()
    bound = learner.bound
    model.likelihood.loss(bound.network(x), y, bound.likelihood_numbers).backward()
    learner.finish(weight, 1.0)

    vector = learner.vector.detach().clone().requires_grad_()
    mean, dense, draw = dense_draw(learner, vector)
    row = torch.cat([draw, vector[len(draw) : learner.trained]])
    outputs = torch.func.functional_call(small(), model.layout.views(row), (x,))
    loss = model.likelihood.loss(outputs, y, model.layout.likelihood_views(row))
    exact = torch.autograd.grad(loss + weight * dense_kl(learner, mean, dense, draw), vector)[0]
    return learner.gradient, exact


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_the_gradient_of_a_step_is_autograds(covariance, prior):
    step, exact = step_and_autograd(covariance, prior)
    assert exact.count_nonzero() > 0.5 * len(exact)  # the rest: the empty halves of triangles
    assert (step - exact).abs().max() < 1e-9 * exact.abs().max()


@pytest.mark.parametrize("choice", [{"deterministic": "*bias"}, {"bayesian": ["0.*", "4.bias"]}])
@pytest.mark.parametrize("covariance", ["low rank", "Kronecker and low rank", "full"])
def test_points_and_frozen_parts_leave_the_gradient_autograds(covariance, choice):
    step, exact = step_and_autograd(covariance, "normal", **choice)
    assert (step - exact).abs().max() < 1e-9 * exact.abs().max()


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_the_kl_is_the_dense_one(covariance, prior):
    which, kl = PRIORS[prior]
    method = sb.StructuredVI(kl=kl, covariance=COVARIANCES[covariance])
    learner = learner_of(method, sb.Model(small(), sb.Gaussian(noise=0.5), prior=which))
    source = torch.Generator().manual_seed(8)
    learner.vector.add_(0.4 * torch.randn(len(learner.vector), generator=source, dtype=torch.float64))
    before = learner.regulariser()  # before the first draw, whose noise is then 0
    exact = dense_kl(learner, *dense_draw(learner, learner.vector)).item()
    assert before == pytest.approx(exact, abs=1e-9)
    learner.draw(torch.Generator().manual_seed(2))
    exact = dense_kl(learner, *dense_draw(learner, learner.vector)).item()
    assert learner.regulariser() == pytest.approx(exact, abs=1e-9)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_the_distribution_draws_what_training_drew(covariance):
    model = sb.Model(small(), sb.Gaussian(noise=0.5), deterministic="4.bias")
    learner = learner_of(sb.StructuredVI(covariance=COVARIANCES[covariance]), model)
    learner.vector.add_(0.4 * torch.randn_like(learner.vector))
    learner.draw(torch.Generator().manual_seed(2))
    distribution = learner.distribution()
    own, shared = learner.noise[: learner.beliefs], learner.noise[learner.beliefs :]
    points = distribution.noise_size - learner.beliefs - learner.rank  # whose noise counts nothing
    noise = torch.cat([own, torch.ones(points, dtype=torch.float64), shared])
    assert torch.allclose(distribution.sample(noise.unsqueeze(0))[0], learner.bound.w, atol=1e-12)
    mean, dense, _ = dense_draw(learner, learner.vector)
    assert torch.allclose(distribution.variance[: len(mean)], dense.diagonal())
    assert torch.equal(distribution.variance[len(mean) :], torch.zeros(1, dtype=torch.float64))
