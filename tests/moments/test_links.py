"""Links against numerical integrals, Monte Carlo and each other."""

import itertools
import math

import pytest
import torch
from scipy.integrate import quad
from scipy.special import expit
from scipy.stats import norm
from torch import Tensor, nn

import singularbayes as sb
from singularbayes.distributions import DiagonalGaussian
from singularbayes.moments import Moments
from singularbayes.moments.sigmoid import log_mean_sigmoid
from singularbayes.parameters import Layout
from singularbayes.posterior import Posterior

DOUBLE = torch.float64


def of(mean: list[list[float]], covariance: list[list[list[float]]], likelihood: object) -> Moments:
    means = torch.tensor(mean, dtype=DOUBLE)
    event = means.shape[1:] if means.shape[1] > 1 else torch.Size([])
    return Moments(means, torch.tensor(covariance, dtype=DOUBLE), likelihood, {}, event)  # type: ignore[arg-type]


def integral(mean: float, std: float) -> float:
    """``E sigmoid(f)``, over pieces of the line."""
    low, high = mean - 10 * std, mean + 10 * std
    ends = sorted({min(max(at, low), high) for at in (low, -30.0, -5.0, 0.0, 5.0, 30.0, mean, high)})

    def part(a: float, b: float) -> float:
        return quad(lambda f: expit(f) * norm.pdf(f, mean, std), a, b, epsabs=1e-14, epsrel=1e-12, limit=300)[
            0
        ]

    return float(norm.sf(10)) + sum(part(a, b) for a, b in itertools.pairwise(ends))


@pytest.mark.parametrize("std", [1e-3, 0.1, 1.0, 3.0, 3.999, 4.001, 5.0, 10.0, 100.0, 1e4])
def test_the_mean_sigmoid_is_the_integral_to_1e_8(std):
    means = [-10.0, -3.0, -0.5, 0.0, 0.7, 5.0, 20.0]
    wide = torch.tensor(means, dtype=DOUBLE)
    ours = log_mean_sigmoid(wide, torch.full_like(wide, std**2)).exp()
    expected = torch.tensor([integral(mean, std) for mean in means], dtype=DOUBLE)
    assert (ours - expected).abs().max() < 1e-9


def test_the_mean_sigmoid_keeps_its_digits_in_the_tails():
    tail = log_mean_sigmoid(torch.tensor([-60.0], dtype=DOUBLE), torch.tensor([4.0], dtype=DOUBLE))
    assert abs(tail.item() - (-60 + 2)) < 1e-9  # E exp(f) = exp(mean + var / 2): the sigmoid is exp(f) there
    sure = log_mean_sigmoid(torch.tensor([30.0, 2.0], dtype=DOUBLE), torch.zeros(2, dtype=DOUBLE))
    assert torch.allclose(sure, nn.functional.logsigmoid(torch.tensor([30.0, 2.0], dtype=DOUBLE)), rtol=1e-12)


ODDS = [(1.0, 4.0), (-2.0, 0.3), (0.5, 90.0)]


def bernoulli(temperature: float = 1.0) -> Moments:
    return of([[m] for m, _ in ODDS], [[[v]] for _, v in ODDS], sb.Bernoulli(temperature))


def two_classes(temperature: float = 1.0) -> Moments:
    """Two correlated logits whose difference has the moments of ``ODDS``."""
    mean = [[0.3, 0.3 + m] for m, _ in ODDS]
    covariance = [[[0.5, 0.2], [0.2, v - 0.5 + 2 * 0.2]] for _, v in ODDS]
    return of(mean, covariance, sb.Categorical(temperature))


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_the_exact_link_is_the_integral_for_one_logit_and_for_two_classes(temperature):
    integrals = [integral(m / temperature, math.sqrt(v) / temperature) for m, v in ODDS]
    expected = torch.tensor(integrals, dtype=DOUBLE)
    one, two = (make(temperature).predictive(sb.Exact()) for make in (bernoulli, two_classes))
    assert (one.mean - expected).abs().max() < 1e-8
    assert (two.mean[:, 1] - expected).abs().max() < 1e-8
    assert torch.allclose(two.mean.sum(1), torch.ones(3, dtype=DOUBLE))
    assert isinstance(one, sb.BernoulliPredictive)
    assert isinstance(two, sb.CategoricalPredictive)
    assert one.draws == two.draws == 1


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_probit_is_the_sigmoid_of_the_shrunk_log_odds(temperature):
    odds = [m / temperature / math.sqrt(1 + math.pi / 8 * v / temperature**2) for m, v in ODDS]
    expected = torch.tensor(odds, dtype=DOUBLE).sigmoid()
    assert torch.allclose(bernoulli(temperature).predictive(sb.Probit()).mean, expected)
    assert torch.allclose(two_classes(temperature).predictive(sb.Probit()).mean[:, 1], expected)


def test_probit_is_near_the_integral_and_without_the_covariance_it_is_not():
    exact = two_classes().predictive(sb.Exact()).mean
    assert (two_classes().predictive(sb.Probit()).mean - exact).abs().max() < 0.02
    mean = [[0.0, 1.0]]
    moments = of(mean, [[[9.0, 8.9], [8.9, 9.0]]], sb.Categorical())  # of the difference: .2, not 18
    exact = moments.predictive(sb.Exact()).mean
    assert (moments.predictive(sb.Probit()).mean - exact).abs().max() < 0.01
    assert (moments.predictive(sb.MeanFieldLink()).mean - exact).abs().max() > 0.1


def test_the_scale_and_bias_of_calibrated_logits_are_respected():
    one = of([[m] for m, _ in ODDS], [[[v]] for _, v in ODDS], sb.Bernoulli(2.0, -1.5, 0.3))
    two = two_classes()
    two = Moments(two.mean, two.covariance, sb.Categorical(2.0, (0.5, -1.5), (0.3, -0.2)), {}, two.event)
    for moments in (one, two):
        exact, drawn = moments.predictive(sb.Exact()), moments.predictive(sb.MonteCarlo(draws=20_000))
        assert not isinstance(drawn, sb.GaussianPredictive)  # MonteCarlo leaves calibration to the likelihood
        error = drawn.probs.std(0) / math.sqrt(20_000)
        assert ((drawn.mean - exact.mean).abs() < 4 * error).all()  # 6 free numbers: false alarm 4e-4
        assert (moments.predictive(sb.Probit()).mean - exact.mean).abs().max() < 0.02
        untempered = moments.likelihood.with_temperature(1.0)
        plain = Moments(moments.mean, moments.covariance, untempered, {}, moments.event)
        assert ((plain.predictive(sb.Exact()).mean - exact.mean).abs() > 10 * error).any()


THREE = (
    [[1.0, 0.0, -1.0], [0.2, 0.1, 3.0]],
    [
        [[4.0, 1.0, 0.5], [1.0, 1.0, -0.3], [0.5, -0.3, 2.0]],
        [[0.1, 0.0, 0.0], [0.0, 0.2, 0.0], [0.0, 0.0, 0.3]],
    ],
)


def test_of_three_classes_probit_and_the_mean_field_link_shrink_each_logit():
    moments = of(*THREE, sb.Categorical(2.0))
    for link, factor in ((sb.Probit(), math.pi / 8), (sb.MeanFieldLink(factor=3.0), 3.0)):
        logits = moments.mean / 2 / (1 + factor * moments.variance / 4).sqrt()
        assert torch.allclose(moments.predictive(link).mean, logits.softmax(-1))
    plain = moments.predictive(sb.MeanFieldLink(factor=0.0)).mean
    assert torch.allclose(plain, (moments.mean / 2).softmax(-1))


def test_monte_carlo_has_the_mean_and_covariance_of_the_moments():
    moments = of(*THREE, sb.Gaussian(noise=1.0))
    predictive = moments.predictive(sb.MonteCarlo(draws=20_000))
    assert isinstance(predictive, sb.GaussianPredictive)
    outputs = predictive.means
    n = len(outputs)
    error = (moments.variance / n).sqrt()
    assert ((outputs.mean(0) - moments.mean).abs() < 4 * error).all()  # 6 numbers: false alarm 4e-4
    centred = outputs - moments.mean
    products = centred.unsqueeze(3) * centred.unsqueeze(2)
    error = products.std(0) / math.sqrt(n)
    assert ((products.mean(0) - moments.covariance).abs() < 4.5 * error).all()  # 18 numbers: 1.2e-4
    wrong = moments.covariance.diagonal(dim1=1, dim2=2).diag_embed()  # correlations dropped
    assert ((products.mean(0) - wrong).abs() > 10 * error).any()


def test_monte_carlo_agrees_with_the_integral_and_keeps_the_split():
    exact = bernoulli().predictive(sb.Exact())
    drawn = bernoulli().predictive(sb.MonteCarlo(draws=20_000))
    assert isinstance(drawn, sb.BernoulliPredictive)
    error = drawn.probs.std(0) / math.sqrt(20_000)
    assert ((drawn.mean - exact.mean).abs() < 4 * error).all()  # 3 numbers: false alarm 2e-4
    assert (drawn.epistemic > 0.005).all()
    assert (exact.epistemic == 0).all()


def test_monte_carlo_gives_a_row_the_same_numbers_whatever_is_beside_it():
    moments = bernoulli()
    first = Moments(moments.mean[:1], moments.covariance[:1], moments.likelihood, {}, moments.event)
    before = torch.get_rng_state()
    link = sb.MonteCarlo(draws=50, seed=3)
    assert torch.equal(first.predictive(link).mean, moments.predictive(link).mean[:1])
    assert not torch.equal(first.predictive(link).mean, first.predictive(sb.MonteCarlo(draws=50)).mean)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_singular_covariance_is_no_trouble():
    moments = of([[0.0, 1.0]], [[[1.0, 1.0], [1.0, 1.0]]], sb.Categorical())  # the difference is certain
    for link in (sb.MonteCarlo(draws=10), sb.Exact(), sb.Probit()):
        assert torch.allclose(moments.predictive(link).mean[0, 1], torch.tensor(1.0, dtype=DOUBLE).sigmoid())


def regression(noise: float | None, temperature: float) -> tuple[Posterior, Tensor]:
    torch.manual_seed(0)
    network = nn.Linear(2, 2).double()
    likelihood = sb.Gaussian(noise=noise).with_temperature(temperature)
    layout = Layout.of(network, likelihood=likelihood.parameters)
    mean = layout.flatten(
        network, {name: torch.full_like(t, -0.7) for name, t in likelihood.parameters.items()}
    )
    std = torch.zeros_like(mean)
    std[: layout.belief] = torch.linspace(0.1, 0.5, layout.belief)
    x = torch.tensor([[1.0, -2.0], [0.5, 30.0]], dtype=DOUBLE)
    return Posterior(network, DiagonalGaussian(mean, std), likelihood, layout, {}), x


@pytest.mark.parametrize("noise", [0.3, None])
@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_regression_has_the_total_variance_in_closed_form(noise, temperature):
    posterior, x = regression(noise, temperature)
    exact = sb.moments(posterior, x).predictive(sb.Exact())
    inputs = torch.cat([x, torch.ones(2, 1, dtype=DOUBLE)], 1)
    std = posterior.distribution.std
    variances = torch.stack([std[:2], std[2:4]]).square()
    epistemic = inputs.square() @ torch.cat([variances, std[4:6].square().unsqueeze(1)], 1).T
    aleatoric = 0.3**2 if noise else math.exp(-1.4)
    assert torch.allclose(exact.variance, temperature * (epistemic + aleatoric))
    drawn = posterior.predict(x, draws=4000)
    ratio = drawn.variance / exact.variance
    assert ((ratio - 1).abs() < 4.5 * math.sqrt(2 / 4000)).all()  # 4 numbers: false alarm 3e-5
    assert torch.allclose(exact.mean, sb.moments(posterior, x).mean)
    shaped = sb.moments(posterior, x).predictive(sb.MonteCarlo(draws=2000))
    assert shaped.mean.shape == exact.mean.shape
    assert ((shaped.variance / exact.variance - 1).abs() < 4.5 * math.sqrt(2 / 2000)).all()


def test_one_output_has_the_librarys_shapes():
    torch.manual_seed(0)
    network = nn.Linear(2, 1)
    layout = Layout.of(network)
    mean = layout.flatten(network)
    distribution = DiagonalGaussian(mean, 0.1 * torch.ones_like(mean))
    x, y = torch.randn(5, 2), torch.tensor([0.0, 1, 1, 0, 1])
    for likelihood in (sb.Gaussian(noise=1.0), sb.Bernoulli()):
        posterior = Posterior(network, distribution, likelihood, layout, {})
        moments = sb.moments(posterior, x)
        for link in (sb.Exact(), sb.MonteCarlo(draws=4)):
            predictive = moments.predictive(link)
            assert predictive.log_prob(y).shape == (5,)
            assert predictive.mean.dtype == torch.float32


def test_a_link_says_which_likelihoods_it_knows(unchecked):
    regression_moments = sb.moments(*regression(0.3, 1.0))
    for link in (sb.Probit(), sb.MeanFieldLink()):
        with pytest.raises(TypeError, match=r"Categorical and Bernoulli.*has Gaussian; use Exact\(\)"):
            regression_moments.predictive(link)
    with pytest.raises(TypeError, match=r"Categorical with 3 outputs: use MonteCarlo\(\), or Probit\(\)"):
        of(*THREE, sb.Categorical()).predictive(sb.Exact())
    with pytest.raises(TypeError, match=r"such as MonteCarlo\(\) or Probit\(\), got <class"):
        regression_moments.predictive(sb.Probit)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="draws must be at least 1, got 0"):
        sb.MonteCarlo(draws=0)
    with pytest.raises(ValueError, match="factor must be 0 or positive, got -1"):
        sb.MeanFieldLink(factor=-1.0)
