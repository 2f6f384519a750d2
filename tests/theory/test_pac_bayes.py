"""The KL of a certificate: against torch and dense Gaussians, a bound for mixtures, refusals by name."""

import math

import pytest
import torch
import torch.distributions as td
from torch import nn

import singularbayes as sb
from singularbayes.distributions import (
    DiagonalGaussian,
    DiagonalLaplace,
    FullGaussian,
    KroneckerGaussian,
    LowRankGaussian,
    StoredDraws,
)
from singularbayes.theory import pac_bayes_kl

D = 12  # nn.Linear(5, 2) with biases
GENERATOR = torch.Generator().manual_seed(0)
MEAN = 2 * torch.randn(D, generator=GENERATOR, dtype=torch.float64)
STD = torch.logspace(-2, 1, D, dtype=torch.float64)
CENTRED = sb.Centred(MEAN.flip(0), STD.flip(0))


def posterior_of(distribution, prior=None, **choice) -> sb.Posterior:
    network = nn.Linear(5, 2).double()
    model = sb.Model(network, sb.Categorical(), prior=prior, **choice)
    return sb.Posterior(
        network, distribution, sb.Categorical(), model.layout, {"prior": model.describe_prior()}
    )


def dense(prior) -> td.MultivariateNormal:
    if isinstance(prior, sb.Centred):
        return td.MultivariateNormal(prior.mean, torch.diag(prior.std.square()))
    return td.MultivariateNormal(torch.zeros(D).double(), prior.std**2 * torch.eye(D).double())


def joint(kind: str):
    factor = torch.randn(D, 3, generator=GENERATOR, dtype=torch.float64)
    if kind == "low rank":
        q = LowRankGaussian(MEAN, STD, factor)
        return q, torch.diag(STD.square()) + factor @ factor.T
    if kind == "full":
        root = torch.randn(D, D, generator=GENERATOR, dtype=torch.float64)
        order = torch.randperm(D, generator=GENERATOR)
        covariance = torch.zeros(D, D, dtype=torch.float64)
        covariance[order.unsqueeze(1), order] = root @ root.T
        return FullGaussian(MEAN, root, order), covariance
    left, right = (torch.randn(n, n, generator=GENERATOR, dtype=torch.float64) for n in (2, 5))
    q = KroneckerGaussian(MEAN, STD, torch.tensor([[0, 2, 5]]), left.flatten(), right.flatten(), factor)
    covariance = torch.diag(STD.square())
    turn = torch.kron(left, right)
    covariance[:10, :10] = turn @ covariance[:10, :10] @ turn.T
    return q, covariance + factor @ factor.T


@pytest.mark.parametrize("prior", [sb.Normal(0.7), CENTRED], ids=["normal", "centred"])
def test_the_kl_of_independent_entries_is_torchs_in_a_sum(prior):
    exact = td.kl_divergence(td.MultivariateNormal(MEAN, torch.diag(STD.square())), dense(prior)).item()
    assert pac_bayes_kl(posterior_of(DiagonalGaussian(MEAN, STD)), prior) == pytest.approx(exact, rel=1e-12)
    assert exact > 20
    # the field's commonest error: an average
    assert pac_bayes_kl(posterior_of(DiagonalGaussian(MEAN, STD)), prior) > 2 * exact / D


@pytest.mark.parametrize("prior", [sb.Normal(0.7), CENTRED], ids=["normal", "centred"])
@pytest.mark.parametrize("kind", ["low rank", "full", "kronecker"])
def test_the_kl_of_joint_gaussians_is_that_of_the_dense_matrix(kind, prior):
    q, covariance = joint(kind)
    exact = td.kl_divergence(td.MultivariateNormal(MEAN, covariance), dense(prior)).item()
    assert pac_bayes_kl(posterior_of(q), prior) == pytest.approx(exact, rel=1e-9)
    marginal = pac_bayes_kl(posterior_of(DiagonalGaussian(MEAN, q.variance.sqrt())), prior)
    assert marginal < exact - 1e-3  # the mutant: the marginals alone lie below


def test_known_and_laplace_values():
    q = DiagonalGaussian(torch.full((D,), 0.5).double(), torch.full((D,), 0.2, dtype=torch.float64))
    assert pac_bayes_kl(posterior_of(q)) == pytest.approx(D * 1.254437912, abs=1e-7)  # methods.md 9
    laplace = DiagonalLaplace(MEAN, STD)
    exact = td.kl_divergence(td.Laplace(MEAN, STD), td.Laplace(torch.zeros(D).double(), 0.3)).sum().item()
    assert pac_bayes_kl(posterior_of(laplace), sb.Laplace(0.3)) == pytest.approx(exact, rel=1e-12)


def test_the_bound_for_a_mixture_is_above_the_kl():
    # methods.md 1: at mean 0, sigma .01 the bound is 4.687 against a KL of 2.177
    prior = sb.ScaleMixture()
    q = DiagonalGaussian(torch.zeros(D).double(), torch.full((D,), 0.01).double())
    found = pac_bayes_kl(posterior_of(q, prior)) / D
    grid = torch.linspace(-0.1, 0.1, 200_001, dtype=torch.float64)
    normal = td.Normal(torch.zeros(()).double(), torch.tensor(0.01).double())
    density = normal.log_prob(grid)
    exact = torch.trapezoid(density.exp() * (density - prior.log_prob(grid)), grid).item()
    assert exact == pytest.approx(2.177, abs=2e-3)
    assert found == pytest.approx(4.687, abs=2e-3)


def test_the_prior_of_the_fit_is_remembered_block_by_block(tmp_path):
    x = torch.randn(30, 5, generator=GENERATOR)
    prior = sb.PerParameter({"bias": sb.Normal(3.0), "weight": sb.ScaleMixture(pi=0.3)})
    network = nn.Linear(5, 2)
    model = sb.Model(network, sb.Categorical(), prior=prior)
    posterior = sb.MeanField(epochs=1).fit(model, (x, (x[:, 0] > 0).long()))
    q = posterior.distribution
    weight = posterior_of(DiagonalGaussian(q.mean.double(), q.std.double()))
    expected = (
        sb.divergence.bound(
            sb.Family.GAUSSIAN, sb.ScaleMixture(pi=0.3), q.mean[:10].double(), q.std[:10].double()
        ).sum()
        + sb.divergence.closed(
            sb.Family.GAUSSIAN, sb.Normal(3.0), q.mean[10:].double(), q.std[10:].double()
        ).sum()
    ).item()
    assert pac_bayes_kl(posterior) == pytest.approx(expected, rel=1e-12)
    assert pac_bayes_kl(weight) != pytest.approx(expected, rel=1e-3)
    posterior.save(tmp_path)
    assert pac_bayes_kl(sb.load(tmp_path, network)) == pytest.approx(expected, rel=1e-12)


def test_a_monte_carlo_kl_is_refused_with_the_alternative():
    with pytest.raises(ValueError, match=r"kl=sb\.KL\.BOUND"):
        pac_bayes_kl(posterior_of(DiagonalGaussian(MEAN, STD)), kl=sb.KL.MONTE_CARLO)
    with pytest.raises(ValueError, match="no closed form"):
        pac_bayes_kl(posterior_of(DiagonalGaussian(MEAN, STD), sb.ScaleMixture()), kl=sb.KL.CLOSED)


def test_posteriors_without_a_density_or_width_are_refused():
    with pytest.raises(TypeError, match="needs a posterior with a density"):
        pac_bayes_kl(posterior_of(StoredDraws(MEAN.unsqueeze(0))))
    with pytest.raises(ValueError, match="2 of 12 believed weights have a standard deviation of 0"):
        pac_bayes_kl(posterior_of(DiagonalGaussian(MEAN, torch.cat([torch.zeros(2).double(), STD[2:]]))))
    few = FullGaussian(MEAN, torch.eye(5).double(), torch.arange(5))
    with pytest.raises(ValueError, match=r"standard deviation of 0|points"):
        pac_bayes_kl(posterior_of(few))


@pytest.mark.usefixtures("unchecked")
def test_priors_that_are_learned_unknown_or_of_another_kind_are_refused():
    q = DiagonalGaussian(MEAN, STD)
    with pytest.raises(ValueError, match="saw the certified data"):
        pac_bayes_kl(posterior_of(q, sb.ScaleMixture(learned=True)))
    with pytest.raises(ValueError, match="saw the certified data"):
        pac_bayes_kl(posterior_of(q), sb.ScaleMixture(learned=True))
    with pytest.raises(ValueError, match="pass it as prior="):
        pac_bayes_kl(posterior_of(q, CENTRED))
    with pytest.raises(ValueError, match="centred at 3 weights"):
        pac_bayes_kl(posterior_of(q), CENTRED.part(slice(0, 3)))
    with pytest.raises(TypeError, match="Monte Carlo KL to another one is no bound"):
        pac_bayes_kl(posterior_of(q), object())
    bare = posterior_of(q)
    bare.info.pop("prior")
    with pytest.raises(ValueError, match="pass prior="):
        pac_bayes_kl(bare)


def test_the_kl_is_0_at_the_prior_and_never_below():
    q = LowRankGaussian(torch.zeros(D).double(), torch.full((D,), 0.7).double(), torch.zeros(D, 1).double())
    assert 0 <= pac_bayes_kl(posterior_of(q), sb.Normal(0.7)) < 1e-9
    assert math.isfinite(pac_bayes_kl(posterior_of(q), sb.Normal(1e-6)))
