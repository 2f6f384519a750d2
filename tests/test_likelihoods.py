"""Likelihoods: densities against torch.distributions, labels of every form, low precision, dead scales."""

import math
import warnings

import pytest
import torch

from singularbayes.likelihoods import (
    KINDS,
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
)

GENERATOR = torch.Generator().manual_seed(0)
LOGITS = torch.randn(6, 3, generator=GENERATOR, dtype=torch.float64) * 3
ODDS = torch.randn(6, generator=GENERATOR, dtype=torch.float64) * 3
REAL = torch.randn(6, 2, generator=GENERATOR, dtype=torch.float64)
CLASSES = torch.tensor([0, 2, 1, 1, 0, 2])
BITS = torch.tensor([0, 1, 1, 0, 1, 0])


@pytest.mark.parametrize(
    "likelihood",
    [
        Categorical(),
        Categorical(scale=(1.0, 2.0, 0.5), bias=(0.1, 0.0, -0.1)),
        Bernoulli(),
        Bernoulli(scale=2.0, bias=0.1),
        Gaussian(),
        HeteroscedasticGaussian(),
    ],
    ids=str,
)
def test_every_likelihood_keeps_the_protocol_and_its_fields(likelihood):
    assert isinstance(likelihood, Likelihood)
    warm = likelihood.with_temperature(2.5)
    assert (warm.temperature, likelihood.temperature) == (2.5, 1.0)
    fields = {
        key: tuple(value) if isinstance(value, list) else value for key, value in warm.to_dict().items()
    }
    assert KINDS[type(likelihood).__name__](**fields) == warm


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_categorical_is_the_softmax_of_logits_over_temperature(temperature):
    likelihood = Categorical(temperature)
    expected = torch.distributions.Categorical(logits=LOGITS / temperature).log_prob(CLASSES)
    torch.testing.assert_close(likelihood.log_prob(LOGITS, CLASSES, {}), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(likelihood.loss(LOGITS, CLASSES, {}), -expected.mean(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(likelihood.predictive(LOGITS.unsqueeze(0), {}).log_prob(CLASSES), expected)


@pytest.mark.parametrize("column", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_bernoulli_is_the_sigmoid_of_the_logit_over_temperature(temperature, column):
    likelihood = Bernoulli(temperature)
    outputs = ODDS.unsqueeze(1) if column else ODDS
    y = likelihood.labels(outputs.shape, BITS)
    expected = torch.distributions.Bernoulli(logits=ODDS / temperature).log_prob(BITS.double())
    torch.testing.assert_close(likelihood.log_prob(outputs, y, {}), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(likelihood.loss(outputs, y, {}), -expected.mean(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(likelihood.predictive(outputs.unsqueeze(0), {}).log_prob(y), expected)


def test_bernoulli_is_finite_for_huge_logits():
    outputs = torch.tensor([1e4, -1e4], requires_grad=True)
    loss = Bernoulli().loss(outputs, torch.tensor([0.0, 1.0]), {})
    loss.backward()
    assert loss.item() == pytest.approx(1e4)
    assert outputs.grad is not None
    assert bool(torch.isfinite(outputs.grad).all())


@pytest.mark.parametrize("noise", [None, 0.3])
def test_gaussian_is_the_normal_density_summed_over_the_event(noise):
    likelihood = Gaussian(noise, temperature=2.0, initial_noise=0.7)
    std = (noise or 0.7) * math.sqrt(2.0)
    y = REAL + 0.5
    expected = torch.distributions.Normal(REAL, std).log_prob(y).sum(1)
    parameters = {name: value.double() for name, value in likelihood.parameters.items()}
    torch.testing.assert_close(likelihood.log_prob(REAL, y, parameters), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(likelihood.loss(REAL, y, parameters), -expected.mean(), rtol=1e-6, atol=1e-6)
    mean_over_event = torch.distributions.Normal(REAL, std).log_prob(y).mean(1)
    assert not torch.allclose(expected, mean_over_event)


def test_every_draw_has_its_own_learned_noise():
    outputs = REAL.T.unsqueeze(-1).contiguous()  # (S 2, B 6, 1)
    pred = Gaussian().predictive(
        outputs, {"log_noise": torch.tensor([[math.log(0.5)], [0.3]], dtype=torch.float64)}
    )
    assert pred.means.shape == pred.variances.shape == (2, 6)
    assert pred.variances[0].unique().item() == pytest.approx(0.25)
    assert pred.variances[1].unique().item() == pytest.approx(math.exp(0.6))
    wide = Gaussian().predictive(
        outputs.expand(2, 6, 3), {"log_noise": torch.zeros(2, 1, dtype=torch.float64)}
    )
    assert wide.variances.shape == (2, 6, 3)


@pytest.mark.parametrize("likelihood", [Gaussian(0.4), HeteroscedasticGaussian()], ids=str)
def test_temperature_multiplies_the_total_variance_about_the_same_mean(likelihood):
    outputs = torch.randn(5, 6, 2, generator=torch.Generator().manual_seed(1))
    plain, warm = (likelihood.with_temperature(t).predictive(outputs, {}) for t in (1.0, 3.0))
    torch.testing.assert_close(warm.mean, plain.mean)
    torch.testing.assert_close(warm.variance, 3 * plain.variance)
    torch.testing.assert_close(warm.epistemic, 3 * plain.epistemic)


@pytest.mark.parametrize("k", [1, 3])
def test_heteroscedastic_outputs_are_means_then_log_variances(k):
    outputs = torch.randn(6, 2 * k, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    likelihood = HeteroscedasticGaussian(
        bounds=(-300.0, 300.0)
    )  # bounds so far off that the clamp is not seen
    y = likelihood.labels(outputs.shape, torch.zeros(6, k, dtype=torch.float64))
    expected = (
        torch.distributions.Normal(outputs[:, :k], (0.5 * outputs[:, k:]).exp())
        .log_prob(torch.zeros(6, k))
        .sum(1)
    )
    torch.testing.assert_close(likelihood.log_prob(outputs, y, {}), expected, rtol=1e-4, atol=1e-4)
    swapped = (
        torch.distributions.Normal(outputs[:, k:], (0.5 * outputs[:, :k]).exp())
        .log_prob(torch.zeros(6, k))
        .sum(1)
    )
    assert not torch.allclose(swapped, expected, rtol=1e-2)


def test_the_log_variance_is_bounded_with_a_gradient():
    outputs = torch.tensor([[0.0, -1e6], [0.0, 1e6], [0.0, 20.0]], requires_grad=True)
    likelihood = HeteroscedasticGaussian()
    variances = likelihood.predictive(outputs.detach().unsqueeze(0), {}).variances[0].log()
    assert variances[:2].tolist() == pytest.approx([-14.0, 14.0])
    loss = likelihood.loss(outputs, torch.ones(3), {})
    loss.backward()
    assert math.isfinite(loss.item())
    assert outputs.grad is not None
    assert bool(torch.isfinite(outputs.grad).all())
    assert outputs.grad[2, 1] != 0  # smooth: not a dead clamp


def test_beta_weights_each_point_by_its_variance_without_a_gradient():
    outputs = torch.randn(
        6, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64, requires_grad=True
    )
    y = torch.ones(6, dtype=torch.float64)
    likelihood = HeteroscedasticGaussian(beta=0.5, bounds=(-300.0, 300.0))
    (got,) = torch.autograd.grad(likelihood.loss(outputs, y, {}), outputs)
    mean, log_var = outputs[:, 0], outputs[:, 1]
    terms = -torch.distributions.Normal(mean, (0.5 * log_var).exp()).log_prob(y)
    (expected,) = torch.autograd.grad(
        (terms * log_var.exp().sqrt().detach()).mean(), outputs, retain_graph=True
    )
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)
    (attached,) = torch.autograd.grad((terms * log_var.exp().sqrt()).mean(), outputs)
    assert not torch.allclose(got, attached, rtol=1e-2)


@pytest.mark.parametrize("dead", [-100.0, 100.0])
def test_a_scale_head_at_its_bound_is_warned_of(dead):
    outputs = torch.stack([torch.randn(8), torch.full((8,), dead)], 1)
    with pytest.warns(UserWarning, match="scale head is dead"):
        HeteroscedasticGaussian().warn_if_degenerate(outputs, {})
    one_of_two = torch.cat([torch.randn(8, 3), torch.full((8, 1), dead)], 1)
    with pytest.warns(UserWarning, match="scale head is dead"):
        HeteroscedasticGaussian().warn_if_degenerate(one_of_two, {})


def test_a_constant_scale_head_is_warned_of_and_a_live_one_is_not():
    with pytest.warns(UserWarning, match="constant"):
        HeteroscedasticGaussian().warn_if_degenerate(
            torch.stack([torch.randn(8), torch.full((8,), 0.3)], 1), {}
        )
    two = torch.cat([torch.randn(8, 2), torch.full((8, 1), 0.3), torch.full((8, 1), -2.0)], 1)
    with pytest.warns(UserWarning, match="constant"):  # two constants that differ
        HeteroscedasticGaussian().warn_if_degenerate(two, {})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        HeteroscedasticGaussian().warn_if_degenerate(torch.randn(8, 4), {})


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.bool, torch.float32, torch.float64])
@pytest.mark.parametrize("column", [False, True])
@pytest.mark.parametrize(
    ("likelihood", "outputs"),
    [(Categorical(), LOGITS), (Bernoulli(), ODDS), (Bernoulli(), ODDS.unsqueeze(1)), (Gaussian(0.5), ODDS),
     (Gaussian(0.5), ODDS.unsqueeze(1)), (HeteroscedasticGaussian(), REAL)],
    ids=["categorical", "bernoulli", "bernoulli column", "gaussian", "gaussian column", "heteroscedastic"],
)  # fmt: skip
def test_labels_as_rows_or_columns_of_any_type_give_the_same_loss(likelihood, outputs, column, dtype):
    given = (BITS.unsqueeze(1) if column else BITS).to(dtype)
    y = likelihood.labels(outputs.shape, given)
    reference = likelihood.labels(outputs.shape, BITS)
    assert y.shape == (6,)
    torch.testing.assert_close(likelihood.loss(outputs, y, {}), likelihood.loss(outputs, reference, {}))
    assert likelihood.log_prob(outputs, y, {}).shape == (6,)


def test_a_column_against_a_row_has_zero_error():
    y = torch.arange(6.0)
    likelihood = Gaussian(1.0)
    loss = likelihood.loss(y.unsqueeze(1), likelihood.labels(torch.Size([6, 1]), y), {})
    assert loss.item() == pytest.approx(0.5 * math.log(2 * math.pi), abs=1e-6)
    assert (y.unsqueeze(1) - y).square().mean().item() > 1  # mutant: broadcast to (6, 6)


@pytest.mark.parametrize(
    ("likelihood", "shape", "y", "message"),
    [
        (Categorical(), (3, 2), torch.tensor([0, 1, 2]), r"label 2 in row 2 .* 0\.\.1"),
        (Categorical(), (3, 2), torch.tensor([0, -1, 1]), "label -1 in row 1"),
        (Categorical(), (3, 2), torch.tensor([0.0, 0.5, 1.0]), r"label 0\.5 in row 1"),
        (Categorical(), (3, 2), torch.tensor([0.0, math.nan, 1.0]), "label nan in row 1"),
        (Categorical(), (3, 2), torch.zeros(3, 2), r"shape \(3, 2\), expected \(3,\)"),
        (Categorical(), (3, 1), torch.zeros(3), r"use Bernoulli\(\)"),
        (Bernoulli(), (3, 2), torch.zeros(3), r"use Categorical\(\)"),
        (Bernoulli(), (3, 1, 1), torch.zeros(3), r"\(B,\) or \(B, 1\)"),
        (Bernoulli(), (3,), torch.tensor([0, 1, 2]), "label 2 in row 2"),
        (Gaussian(), (3, 2), torch.zeros(3), r"shape \(3,\), expected \(3, 2\)"),
        (Gaussian(), (3,), torch.zeros(3, 3), r"shape \(3, 3\), expected \(3,\)"),
        (Gaussian(), (2,), torch.tensor([0.0, math.inf]), r"label at \(1,\) is inf"),
        (HeteroscedasticGaussian(), (3, 3), torch.zeros(3), "k means, then k log variances"),
        (HeteroscedasticGaussian(), (3, 4), torch.zeros(3), r"expected \(3, 2\)"),
    ],
)  # fmt: skip
def test_labels_that_do_not_fit_are_refused_with_what_was_got(likelihood, shape, y, message):
    with pytest.raises(ValueError, match=message):
        likelihood.labels(torch.Size(shape), y)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("likelihood", "outputs", "y"),
    [(Categorical(), LOGITS, CLASSES), (Bernoulli(), ODDS, BITS.float()), (Gaussian(), ODDS, BITS.float()),
     (HeteroscedasticGaussian(), REAL, BITS.float())],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_half_precision_outputs_are_scored_in_float32(likelihood, outputs, y, dtype):
    half = outputs.to(dtype)
    own = {name: value.to(dtype) for name, value in likelihood.parameters.items()}
    exact = {name: value.double() for name, value in own.items()}
    labels = y if y.dtype is torch.int64 else y.to(dtype)
    log_prob, loss = likelihood.log_prob(half, labels, own), likelihood.loss(half, labels, own)
    assert log_prob.dtype == loss.dtype == torch.float32
    torch.testing.assert_close(
        log_prob.double(), likelihood.log_prob(half.double(), y, exact), rtol=1e-5, atol=1e-5
    )
    pred = likelihood.predictive(half.unsqueeze(0), {name: value.unsqueeze(0) for name, value in own.items()})
    assert pred.mean.dtype == torch.float32
    assert bool(torch.isfinite(pred.interval(0.9)).all())


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_temperatures_and_noises_that_are_none_are_refused(bad):
    for kind in KINDS.values():
        with pytest.raises(ValueError, match="temperature must be positive"):
            kind(temperature=bad)
    with pytest.raises(ValueError, match="standard deviation"):
        Gaussian(noise=bad)
    with pytest.raises(ValueError, match="beta"):
        HeteroscedasticGaussian(beta=1.5)
    with pytest.raises(ValueError, match="low < high"):
        HeteroscedasticGaussian(bounds=(1.0, 1.0))


@pytest.mark.parametrize("temperature", [0.5, 2.0])
@pytest.mark.parametrize("k", [1, 2])
def test_a_heteroscedastic_density_is_that_of_the_predictive_of_one_draw(k, temperature):
    likelihood = HeteroscedasticGaussian(temperature=temperature)
    outputs = torch.randn(6, 2 * k, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    y = REAL[:, 0] if k == 1 else REAL
    got = likelihood.log_prob(outputs, y, {})
    torch.testing.assert_close(got, likelihood.predictive(outputs.unsqueeze(0), {}).log_prob(y))
    torch.testing.assert_close(likelihood.loss(outputs, y, {}), -got.mean())
