"""A head's posterior against Bayesian linear regression and dense Laplace in float64."""

import math

import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF
from torch import Tensor, nn
from torch.autograd.functional import hessian

import singularbayes as sb
from singularbayes.curvature.head import HeadPosterior
from singularbayes.nn import RandomFeatureHead

DOUBLE = torch.float64
SOURCE = torch.Generator().manual_seed(0)
X = torch.randn(40, 3, generator=SOURCE, dtype=DOUBLE) * torch.tensor([1.0, 5.0, 0.2], dtype=DOUBLE)
Y = torch.stack([X[:, 0].sin() + X[:, 1], 3 * X[:, 2]], 1) + 0.1 * torch.randn(
    40, 2, generator=SOURCE, dtype=DOUBLE
)
LABELS = (X[:, 0] > 0).long() + (X[:, 1] > 2).long()
NOISE = 0.4


def head(outputs: int, features: int = 12) -> RandomFeatureHead:
    torch.manual_seed(1)
    return RandomFeatureHead(3, outputs, features, 2.0, dtype=DOUBLE).requires_grad_(False)


def posterior(
    own: RandomFeatureHead, likelihood: object, y: Tensor, network: nn.Module | None = None,
    precision: float = 2.5, temperature: float = 1.0,
) -> HeadPosterior:  # fmt: skip
    batches = [(X[:15], y[:15]), (X[15:], y[15:])]
    return HeadPosterior(
        network or own,
        own,
        likelihood,
        {},
        lambda: batches,
        precision,
        temperature,  # type: ignore[arg-type]
    )


def conjugate(
    phi: Tensor, y: Tensor, noise: float, precision: float, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Mean and covariance of Bayesian linear regression."""
    weight = 1 / (noise**2 * temperature)
    covariance = torch.linalg.inv(precision * torch.eye(phi.shape[1], dtype=DOUBLE) + weight * phi.T @ phi)
    return weight * (covariance @ phi.T @ y).T, covariance


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_gaussian_labels_give_the_conjugate_posterior(temperature):
    own = head(2)
    of = posterior(own, sb.Gaussian(noise=NOISE), Y, temperature=temperature)
    of.newton()
    mean, covariance = conjugate(own.phi(X), Y, NOISE, 2.5, temperature)
    roots, jitter = of.roots()
    assert jitter == 0
    assert roots.shape == (1, 12, 12)  # one matrix for both outputs
    assert torch.allclose(own.weight, mean, atol=1e-9)
    assert torch.allclose(roots[0] @ roots[0].T, covariance, atol=1e-10)


WRONG = {
    "the precision for the covariance": lambda phi: torch.linalg.inv(conjugate(phi, Y, NOISE, 2.5)[1]),
    "no prior": lambda phi: conjugate(phi, Y, NOISE, 1e-9)[1],
    "the data twice": lambda phi: conjugate(torch.cat([phi, phi]), torch.cat([Y, Y]), NOISE, 2.5)[1],
    "no sqrt(2 / m)": lambda phi: conjugate(phi * math.sqrt(6), Y, NOISE, 2.5)[1],
    "noise for its square": lambda phi: conjugate(phi, Y, math.sqrt(NOISE), 2.5)[1],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_covariance_is_told_apart(name):
    own = head(2)
    root = posterior(own, sb.Gaussian(noise=NOISE), Y).roots()[0][0]
    assert not torch.allclose(root @ root.T, WRONG[name](own.phi(X)), atol=1e-3)


def gaps(features: int, scale: float = 1.0) -> tuple[float, float]:
    """Root mean square distance of mean and variance from the exact process, over points and five heads."""
    y, new = Y[:, :1], 2 * torch.randn(30, 3, generator=torch.Generator().manual_seed(9), dtype=DOUBLE)
    exact = GaussianProcessRegressor(RBF(2.0), alpha=NOISE**2, optimizer=None).fit(X.numpy(), y[:, 0].numpy())
    mean, std = (torch.from_numpy(part) for part in exact.predict(new.numpy(), return_std=True))
    squares = torch.zeros(5, 2)
    for seed in range(5):
        torch.manual_seed(seed)
        own = RandomFeatureHead(3, 1, features, 2.0 * scale, dtype=DOUBLE).requires_grad_(False)
        of = posterior(own, sb.Gaussian(noise=NOISE), y, precision=1.0)
        of.newton()
        variance = (own.phi(new) @ of.roots()[0][0]).square().sum(1)
        squares[seed, 0] = (own(new)[:, 0] - mean).square().mean()
        squares[seed, 1] = (variance - std**2).square().mean()
    of_means, of_variances = squares.mean(0).sqrt().tolist()
    return of_means, of_variances


def test_many_features_give_the_exact_gaussian_process():
    few, many, wrong = gaps(50), gaps(800), gaps(800, scale=0.5)
    for of_few, of_many, of_wrong in zip(few, many, wrong, strict=True):
        assert of_many < of_few / 2.5  # the error falls as 1 / sqrt(m): by 4
        assert of_wrong > 2 * of_many  # another kernel stays away
    assert many[1] < 2 * 1.23 / math.sqrt(800)  # the kernel's own error, at prior variance 1


def dense_precisions(own: RandomFeatureHead, likelihood: object, network: nn.Module) -> Tensor:
    """Blocks of the Hessian of the negative log joint, one for each output."""

    def joint(weight: Tensor) -> Tensor:
        outputs = torch.func.functional_call(network, {"0.weight": weight}, (X,))
        nll = -likelihood.log_prob(outputs, likelihood.labels(outputs.shape, LABELS), {}).sum()  # type: ignore[attr-defined]
        return nll + 1.25 * weight.square().sum()

    full = hessian(joint, own.weight)
    return torch.stack([full[k, :, k] for k in range(len(full))])


@pytest.mark.parametrize("follower", ["nothing", "a fixed layer"])
def test_classes_have_a_matrix_each_the_blocks_of_the_hessian_at_the_mode(follower):
    own = head(3)
    fixed = nn.Linear(3, 3, dtype=DOUBLE).requires_grad_(False)
    network = nn.Sequential(own, *([fixed] if follower == "a fixed layer" else []))
    of = posterior(own, sb.Categorical(), LABELS, network)
    before = of.objective()
    for _ in range(30):
        of.newton()
    assert of.objective() < before
    precisions, gradient = of.precisions()
    assert gradient.abs().max() < 1e-5  # the mode
    assert torch.allclose(precisions, dense_precisions(own, sb.Categorical(), network), atol=1e-8)
    roots, jitter = of.roots()
    assert jitter == 0
    assert torch.allclose(roots @ roots.mT, torch.linalg.inv(precisions), atol=1e-8)


def test_every_row_counts_as_one_without_weights():
    own = head(3)
    of = posterior(own, sb.Categorical(), LABELS, temperature=3.0)
    phi = own.phi(X)
    expected = torch.linalg.inv(2.5 * torch.eye(12, dtype=DOUBLE) + phi.T @ phi / 3)
    root = of.roots(weighted=False)[0][0]
    assert torch.allclose(root @ root.T, expected, atol=1e-10)
    assert torch.equal(of.precisions(weighted=False)[1], of.precisions()[1])  # the mode is the same


def test_a_singular_precision_gets_jitter_that_is_told():
    own = head(1)
    own.frequencies.zero_()
    of = posterior(own, sb.Gaussian(noise=1e-4), Y[:, :1], precision=1e-12)
    roots, jitter = of.roots()
    assert torch.isfinite(roots).all()
    assert 0 < jitter < 1e-3


def test_a_newton_step_never_raises_the_objective():
    own = head(3)
    own.weight.mul_(300)  # sure and wrong: curvatures near 0, steps far too long
    of = posterior(own, sb.Categorical(), LABELS, precision=1e-3)
    values = [of.objective()]
    for _ in range(4):
        of.newton()
        values.append(of.objective())
    assert values == sorted(values, reverse=True)


def test_newton_and_lbfgs_reach_the_mode_of_classes_that_newton_alone_is_slow_to_reach():
    own, other = head(3), head(3)
    for each in (own, other):
        each.weight.zero_()
    of, slow = (posterior(each, sb.Categorical(), LABELS, precision=0.05) for each in (own, other))
    assert of.to_mode(100)
    assert of.precisions()[1].abs().max() < 1e-4
    for _ in range(5):
        slow.newton()
    assert slow.precisions()[1].abs().max() > 1e-2  # the blocks leave out what lies between classes
    assert not posterior(head(3), sb.Categorical(), LABELS, precision=0.05).to_mode(1)


def test_the_log_evidence_of_gaussian_labels_is_their_density_under_the_prior():
    own = head(2)
    of = posterior(own, sb.Gaussian(noise=NOISE), Y)
    assert of.to_mode(1)
    phi = own.phi(X)
    covariance = phi @ phi.T / 2.5 + NOISE**2 * torch.eye(40, dtype=DOUBLE)
    density = torch.distributions.MultivariateNormal(torch.zeros(40, dtype=DOUBLE), covariance)
    exact = density.log_prob(Y.T).sum().item()
    assert abs(of.log_evidence() - exact) < 1e-8
    once = density.log_prob(Y[:, 0]).item()
    assert abs(of.log_evidence() - once) > 1  # both outputs count


def test_the_log_evidence_of_classes_is_laplaces_at_the_mode():
    own = head(3)
    of = posterior(own, sb.Categorical(), LABELS)
    assert of.to_mode(200)
    determinants = torch.logdet(dense_precisions(own, sb.Categorical(), nn.Sequential(own)))
    exact = 0.5 * (3 * 12 * math.log(2.5) - determinants.sum().item()) - of.objective()
    assert abs(of.log_evidence() - exact) < 1e-7
