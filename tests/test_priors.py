"""Priors: densities against torch.distributions, scores against autograd, the constants of the paper."""

import math

import pytest
import torch
from torch import Tensor

from singularbayes.priors import Laplace, Normal, PerParameter, Prior, ScaleMixture

PRIORS = [
    Normal(0.3),
    Normal(5.0),
    Laplace(0.7),
    ScaleMixture(),
    ScaleMixture(pi=0.25),
    ScaleMixture(pi=0.8, std1=0.01, std2=2.0),  # the narrow one first
    ScaleMixture(pi=0.3, std1=0.5, std2=0.5),
    ScaleMixture(std2=1e-6),
]
WEIGHTS = torch.tensor(
    [-40.0, -1.3, -0.02, -0.008, -1e-4, 3e-6, 0.004, 0.0119, 0.3, 2.0, 40.0], dtype=torch.float64
)


def oracle(prior: Normal | Laplace | ScaleMixture) -> torch.distributions.Distribution:
    d = torch.distributions
    if isinstance(prior, Normal):
        return d.Normal(0.0, torch.tensor(prior.std, dtype=torch.float64))
    if isinstance(prior, Laplace):
        return d.Laplace(0.0, torch.tensor(prior.scale, dtype=torch.float64))
    weights = torch.tensor([prior.pi, 1 - prior.pi], dtype=torch.float64)
    stds = torch.tensor([prior.std1, prior.std2], dtype=torch.float64)
    return d.MixtureSameFamily(d.Categorical(weights), d.Normal(torch.zeros_like(stds), stds))


@pytest.mark.parametrize("prior", PRIORS, ids=str)
def test_log_prob_is_the_density_of_torch_distributions(prior):
    torch.testing.assert_close(
        prior.log_prob(WEIGHTS), oracle(prior).log_prob(WEIGHTS), rtol=1e-12, atol=1e-12
    )
    assert isinstance(prior, Prior)


@pytest.mark.parametrize("prior", PRIORS, ids=str)
def test_negative_score_is_the_gradient_of_minus_log_prob(prior):
    w = WEIGHTS.clone().requires_grad_()
    (expected,) = torch.autograd.grad(-oracle(prior).log_prob(w).sum(), w)
    torch.testing.assert_close(prior.negative_score(WEIGHTS), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("prior", PRIORS, ids=str)
def test_negative_score_in_float32_has_the_digits_of_float32(prior):
    # fails when the precision is a small difference of large numbers, or when the clamp is seen
    torch.testing.assert_close(
        prior.negative_score(WEIGHTS.float()).double(),
        prior.negative_score(WEIGHTS.float().double()),
        rtol=2e-5, atol=0.0,
    )  # fmt: skip


def test_mixture_log_density_has_the_reference_values():
    w = torch.tensor([0.0, 0.01, 1.0, 40.0], dtype=torch.float64)
    expected = torch.tensor([4.794205304, -2.002381497, -2.805232894, -802.305232894], dtype=torch.float64)
    torch.testing.assert_close(ScaleMixture(pi=0.25).log_prob(w), expected, rtol=0, atol=1e-9)
    mutant = ScaleMixture(pi=0.25, std2=math.exp(-3))  # e^-6 taken for a variance
    assert not torch.allclose(mutant.log_prob(w), expected, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("prior", PRIORS[:5], ids=str)
def test_far_tails_are_finite_with_a_gradient_in_every_precision(prior, dtype):
    w = torch.tensor([-40.0, 0.0, 0.001, 40.0], dtype=dtype).requires_grad_()
    value = prior.log_prob(w)
    (gradient,) = torch.autograd.grad(value.sum(), w)
    score = prior.negative_score(w.detach())
    assert value.dtype == score.dtype == (torch.float64 if dtype is torch.float64 else torch.float32)
    assert bool(torch.isfinite(value).all())
    assert bool(torch.isfinite(score).all())
    assert gradient[0] > 0 > gradient[-1]  # no floor flattens the tail
    assert score[0] < 0 < score[-1]


def test_log_densities_of_half_precision_weights_do_not_lose_the_sum():
    w = torch.full((4096,), 0.37, dtype=torch.bfloat16)
    exact = Normal(1.0).log_prob(w.double()).sum().item()
    assert Normal(1.0).log_prob(w).sum().item() == pytest.approx(exact, rel=1e-5)
    mutant = (-0.5 * w.square() - 0.5 * math.log(2 * math.pi)).sum().item()  # all in bfloat16
    assert mutant != pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize("prior", [PRIORS[0], PRIORS[2], PRIORS[4], PRIORS[5]], ids=str)
def test_prior_draws_have_the_prior_s_moments(prior):
    n = 200_000
    source = torch.Generator().manual_seed(3)
    noise = torch.randn(n, generator=source, dtype=torch.float64)
    choice = torch.rand(n, generator=source, dtype=torch.float64)
    draws = prior.sample(noise, choice)
    target = oracle(prior).variance.item()

    def z_score(values: Tensor) -> float:  # 4 standard errors: false alarm 6e-5 a test
        squares = values.square()
        return (squares.mean().item() - target) / (squares.std().item() / math.sqrt(n))

    assert abs(draws.mean().item()) < 4 * draws.std().item() / math.sqrt(n)
    assert abs(z_score(draws)) < 4
    assert abs(z_score(1.03 * draws)) > 4  # mutant: a scale 3% off


def test_learned_numbers_have_the_gradient_of_autograd():
    prior = ScaleMixture(pi=0.3, std1=0.9, std2=0.05)
    w = torch.tensor([-2.0, -0.3, 0.01, 0.04, 0.15, 1.1], dtype=torch.float64)
    numbers = prior.unconstrained().requires_grad_()
    pi, stds = numbers[0].sigmoid(), numbers[1:].exp()
    weights = torch.stack([pi, 1 - pi])
    densities = torch.distributions.Normal(0.0, stds).log_prob(w.unsqueeze(1)) + weights.log()
    (expected,) = torch.autograd.grad(-torch.logsumexp(densities, 1).sum(), numbers)
    torch.testing.assert_close(prior.unconstrained_gradient(w), expected, rtol=1e-10, atol=1e-10)
    assert not torch.allclose(prior.unconstrained_gradient(w).flip(0), expected)


def test_learned_numbers_come_back_as_they_went():
    prior = ScaleMixture(pi=0.3, std1=0.9, std2=0.05, learned=True)
    back = prior.with_unconstrained(prior.unconstrained())
    assert (back.pi, back.std1, back.std2) == pytest.approx((0.3, 0.9, 0.05), rel=1e-12)
    assert back.learned


@pytest.mark.parametrize(("logit", "pi"), [(-1000.0, 0.001), (1000.0, 0.999)])
def test_a_learned_share_that_runs_away_is_held(logit, pi):
    assert ScaleMixture().with_unconstrained(torch.tensor([logit, 0.0, -6.0])).pi == pytest.approx(pi)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_scales_that_are_no_scales_are_refused_by_name(bad):
    with pytest.raises(ValueError, match=r"Normal\.std must be positive"):
        Normal(bad)
    with pytest.raises(ValueError, match=r"Laplace\.scale must be positive"):
        Laplace(bad)
    with pytest.raises(ValueError, match=r"ScaleMixture\.std2 must be positive"):
        ScaleMixture(std2=bad)


@pytest.mark.parametrize("pi", [0.0, 1.0, -0.1, math.nan])
def test_a_mixture_weight_outside_the_open_interval_is_refused(pi):
    with pytest.raises(ValueError, match=r"ScaleMixture\.pi"):
        ScaleMixture(pi=pi)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("wrong", "named"),
    [(Normal, "the class Normal"), ("normal", "str"), (PerParameter({"*": Normal()}), "PerParameter")],
)
def test_per_parameter_takes_prior_objects_alone(wrong, named):
    with pytest.raises(TypeError, match=named):
        PerParameter({"*": wrong})


def test_per_parameter_needs_a_pattern_and_lists_its_priors():
    with pytest.raises(ValueError, match="at least one"):
        PerParameter({})
    priors = PerParameter({"*.bias": Normal(10.0), "*": Laplace(0.5)})
    assert priors.to_dict() == {
        "*.bias": {"kind": "Normal", "std": 10.0},
        "*": {"kind": "Laplace", "scale": 0.5},
    }
