"""KLs: against quadrature, Monte Carlo and autograd, for both families of q."""

import math

import pytest
import torch
from torch import Tensor

from singularbayes.distributions import positive
from singularbayes.divergence import (
    Family,
    bound,
    bound_gradient,
    closed,
    closed_gradient,
    entropy,
    has_closed_form,
    log_density,
)
from singularbayes.priors import Laplace, Normal, ScaleMixture

CLOSED = [Normal(0.5), Normal(3.0), Laplace(0.4)]
MIXTURES = [ScaleMixture(), ScaleMixture(pi=0.25), ScaleMixture(pi=0.7, std1=0.02, std2=2.0)]
MEANS = torch.tensor([0.0, 0.1, -0.2, 0.02, -1.5, 0.003, 0.5], dtype=torch.float64)
SCALES = torch.tensor([0.0092, 0.1, 0.5, 0.01, 2.0, 0.001, 0.2], dtype=torch.float64)


def q_of(family: Family, mean: Tensor, scale: Tensor) -> torch.distributions.Distribution:
    kind = torch.distributions.Normal if family is Family.GAUSSIAN else torch.distributions.Laplace
    return kind(mean, scale)


def by_quadrature(family: Family, prior, mean: Tensor, scale: Tensor) -> Tensor:
    """The KL by the trapezoid rule on a grid in units of q's scale, entry by entry."""
    grid = torch.linspace(-40, 40, 400_001, dtype=torch.float64)
    values = []
    for m, s in zip(mean, scale, strict=True):
        q, w = q_of(family, m, s), m + s * grid
        log_q = q.log_prob(w)
        values.append(torch.trapezoid(log_q.exp() * (log_q - prior.log_prob(w)), w))
    return torch.stack(values)


@pytest.mark.parametrize("family", Family)
@pytest.mark.parametrize("prior", CLOSED, ids=str)
def test_closed_form_is_the_integral(family, prior):
    exact = closed(family, prior, MEANS, SCALES)
    torch.testing.assert_close(exact, by_quadrature(family, prior, MEANS, SCALES), rtol=1e-6, atol=1e-6)
    assert has_closed_form(prior)
    # mutant: KL(p || q)
    other = Family.GAUSSIAN if isinstance(prior, Normal) else Family.LAPLACE
    if other is family:
        width = torch.full_like(SCALES, prior.std if isinstance(prior, Normal) else prior.scale)
        reverse = torch.distributions.kl_divergence(
            q_of(family, torch.zeros_like(MEANS), width), q_of(family, MEANS, SCALES)
        )
        assert not torch.allclose(reverse, exact, rtol=0.01)


def test_gaussian_kl_has_the_reference_value():
    mean, scale = torch.tensor([0.5], dtype=torch.float64), torch.tensor([0.2], dtype=torch.float64)
    assert closed(Family.GAUSSIAN, Normal(1.0), mean, scale).item() == pytest.approx(1.254437912, abs=1e-9)


def test_the_kl_is_a_sum_the_same_over_one_layer_or_three():
    mean = torch.tensor([0.1, -0.2, 0.3], dtype=torch.float64)
    scale = torch.tensor([0.1, 0.5, 2.0], dtype=torch.float64)
    whole = closed(Family.GAUSSIAN, Normal(0.5), mean, scale)
    split = [closed(Family.GAUSSIAN, Normal(0.5), mean[i : i + 1], scale[i : i + 1]).sum() for i in range(3)]
    assert whole.sum().item() == pytest.approx(7.523143552, abs=1e-9)
    assert sum(split).item() == pytest.approx(7.523143552, abs=1e-9)
    assert whole.mean().item() != pytest.approx(7.523143552, abs=1e-3)


@pytest.mark.parametrize("family", Family)
@pytest.mark.parametrize("prior", [*CLOSED, *MIXTURES], ids=str)
def test_gradients_are_those_of_autograd(family, prior):
    mean, scale = MEANS.clone().requires_grad_(), SCALES.clone().requires_grad_()
    expected = torch.autograd.grad(bound(family, prior, mean, scale).sum(), (mean, scale))
    got = bound_gradient(family, prior, MEANS, SCALES)
    for value, target in zip(got, expected, strict=True):
        torch.testing.assert_close(value, target, rtol=1e-9, atol=1e-9)
    if has_closed_form(prior):
        for value, target in zip(closed_gradient(family, prior, MEANS, SCALES), expected, strict=True):
            torch.testing.assert_close(value, target, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("prior", MIXTURES, ids=str)
def test_bound_gradient_keeps_its_digits_in_float32(prior):
    scale = torch.logspace(-3, 0.3, 200, dtype=torch.float64).float()
    mean = torch.full_like(scale, 0.01)
    for low, high in zip(
        bound_gradient(Family.GAUSSIAN, prior, mean, scale),
        bound_gradient(Family.GAUSSIAN, prior, mean.double(), scale.double()),
        strict=True,
    ):
        torch.testing.assert_close(low.double(), high, rtol=5e-4, atol=5e-4)


@pytest.mark.parametrize("family", Family)
@pytest.mark.parametrize("prior", MIXTURES, ids=str)
def test_the_bound_is_never_below_the_kl(family, prior):
    mean = torch.tensor([0.0, 0.0, 0.0, 0.02, 0.3, -1.0, 5e-4], dtype=torch.float64)
    scale = torch.tensor([0.001, 0.0092, 0.1, 0.004, 0.05, 0.7, 0.003], dtype=torch.float64)
    gap = bound(family, prior, mean, scale) - by_quadrature(family, prior, mean, scale)
    assert gap.min().item() > -1e-6
    assert gap.max().item() > 0.1  # it is a bound, not the KL itself


def test_the_bound_has_the_published_values():
    prior, zero = ScaleMixture(), torch.zeros(2, dtype=torch.float64)
    scale = torch.tensor([0.01, 0.1], dtype=torch.float64)
    assert bound(Family.GAUSSIAN, prior, zero, scale).tolist() == pytest.approx([4.687, 2.501], abs=5e-4)
    assert by_quadrature(Family.GAUSSIAN, prior, zero, scale).tolist() == pytest.approx(
        [2.177, 2.217], abs=2e-3
    )


def test_the_gap_of_the_bound_is_at_most_two_and_a_half_nats():
    scale = torch.tensor([0.008, 0.0086, 0.0092, 0.0098, 0.0104], dtype=torch.float64)
    mean = torch.zeros_like(scale)
    gap = bound(Family.GAUSSIAN, ScaleMixture(), mean, scale) - by_quadrature(
        Family.GAUSSIAN, ScaleMixture(), mean, scale
    )
    assert gap.max().item() == pytest.approx(2.50, abs=0.02)
    assert int(gap.argmax()) in (1, 2, 3)


def test_the_bound_is_tight_far_from_zero():
    mean = torch.tensor([0.5, 1.0, 0.02], dtype=torch.float64)
    scale = torch.tensor([0.1, 0.2, 0.002], dtype=torch.float64)
    gap = bound(Family.GAUSSIAN, ScaleMixture(), mean, scale) - by_quadrature(
        Family.GAUSSIAN, ScaleMixture(), mean, scale
    )
    assert gap.abs().max().item() < 1e-4


@pytest.mark.parametrize("family", Family)
@pytest.mark.parametrize("prior", [*CLOSED, MIXTURES[1]], ids=str)
def test_one_draw_estimates_the_kl_without_bias(family, prior):
    n = 40_000
    noise = q_of(family, torch.zeros(1).double(), torch.ones(1).double())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        eps = noise.sample((n,))
    draws = log_density(family, eps, SCALES) - prior.log_prob(MEANS + SCALES * eps)
    exact = by_quadrature(family, prior, MEANS, SCALES)
    error = draws.std(0) / math.sqrt(n)
    assert bool(((draws.mean(0) - exact).abs() < 4 * error).all())  # false alarm 6e-5 for each of 7
    half = 0.5 * log_density(family, eps, SCALES) - prior.log_prob(
        MEANS + SCALES * eps
    )  # mutant: half a log term
    assert not bool(((half.mean(0) - exact).abs() < 4 * error).all())


@pytest.mark.parametrize("family", Family)
def test_log_density_and_entropy_are_those_of_torch_distributions(family):
    noise = torch.linspace(-3, 3, 7, dtype=torch.float64)
    q = q_of(family, MEANS, SCALES)
    torch.testing.assert_close(log_density(family, noise, SCALES), q.log_prob(MEANS + SCALES * noise))
    torch.testing.assert_close(entropy(family, SCALES), q.entropy())
    torch.testing.assert_close(family.unit_variance * SCALES.square(), q.variance)


@pytest.mark.parametrize("family", Family)
@pytest.mark.parametrize("prior", [*CLOSED, *MIXTURES], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_any_rho_gives_a_finite_sigma_kl_and_gradient(family, prior, dtype):
    rho = torch.tensor([-100.0, -50.0, -10.0, 0.0, 10.0, 100.0, 1000.0], dtype=dtype)
    sigma, mean = positive(rho), torch.tensor([0.0, 0.3, -40.0, 0.0, 1.0, 2.0, 0.0], dtype=dtype)
    assert sigma.dtype == torch.float32
    assert bool((sigma > 0).all())
    results = [sigma, bound(family, prior, mean, sigma), *bound_gradient(family, prior, mean, sigma)]
    for result in results:
        assert result.dtype == torch.float32
        assert bool(torch.isfinite(result).all()), result
    slope = -torch.expm1(-sigma)  # d sigma / d rho: the gradient that training sees
    assert bool(torch.isfinite(results[-1] * slope).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_kl_of_half_precision_means_is_summed_in_float32(dtype):
    mean = torch.full((5000,), 0.1, dtype=dtype)
    scale = torch.full((5000,), 0.05, dtype=dtype)
    exact = closed(Family.GAUSSIAN, Normal(1.0), mean.double(), scale.double()).sum().item()
    assert closed(Family.GAUSSIAN, Normal(1.0), mean, scale).sum().item() == pytest.approx(exact, rel=1e-5)
    mutant = (0.5 * (mean.square() + scale.square() - 1) - scale.log()).sum().item()  # all in half precision
    assert mutant != pytest.approx(exact, rel=1e-5)
