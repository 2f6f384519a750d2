"""Vector scaling: the optimum of the written-out NLL, never worse than a temperature, identity if right."""

import math
import warnings

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax, logsumexp
from sklearn.linear_model import LogisticRegression
from torch import nn

import singularbayes as sb
from singularbayes.distributions import StoredDraws
from singularbayes.parameters import Layout
from singularbayes.posterior import Posterior

SCALES = np.array([1.0, 10.0, 0.1])  # of the classes' logits: badly scaled on purpose


def problem(draws: int = 1, rows: int = 300, seed: int = 0, distortion: float = 0.6):
    """Logits of several draws, correlated over classes, and labels from other logits than these."""
    rng = np.random.default_rng(seed)
    mixing = np.array([[1.0, 0.6, 0.0], [0.0, 1.0, -0.5], [0.3, 0.0, 1.0]])
    true = rng.normal(size=(rows, 3)) @ mixing * 1.5
    y = np.array([rng.choice(3, p=np.exp(row)) for row in log_softmax(true, -1)])
    own = true[None] * distortion * SCALES + np.array([2.0, -1.0, 0.3])
    logits = own + 0.3 * SCALES * rng.normal(size=(draws, rows, 3))
    return logits, y


def written_out(theta: np.ndarray, logits: np.ndarray, y: np.ndarray) -> float:
    """-mean_i log mean_s softmax(scale * z_s + bias)_y, by the textbook."""
    moved = logits * theta[:3] + theta[3:]
    picked = log_softmax(moved, -1)[:, np.arange(len(y)), y]
    return float(-(logsumexp(picked, 0) - math.log(len(logits))).mean())


def fitted(logits: np.ndarray, y: np.ndarray, **settings) -> sb.Categorical:
    found = sb.VectorScaling(**settings).fit(sb.Categorical(), torch.tensor(logits), {}, torch.tensor(y))
    assert isinstance(found, sb.Categorical)
    return found


def theta_of(likelihood: sb.Categorical) -> np.ndarray:
    assert likelihood.scale is not None
    assert likelihood.bias is not None
    return np.array([*likelihood.scale, *likelihood.bias])


@pytest.mark.parametrize("draws", [1, 3])
def test_it_is_the_optimum_of_the_written_out_nll(draws):
    logits, y = problem(draws)
    found = theta_of(fitted(logits, y))
    start = np.concatenate([1 / SCALES, np.zeros(3)])
    oracle = minimize(
        written_out, start, (logits, y), method="L-BFGS-B", options={"gtol": 1e-9, "ftol": 1e-15}
    )
    assert written_out(found, logits, y) <= oracle.fun + 1e-9
    best = np.concatenate([oracle.x[:3], oracle.x[3:] - oracle.x[3:].mean()])
    assert found == pytest.approx(best, rel=2e-3, abs=2e-3)  # the oracle's gradient is numerical


def test_the_units_of_the_logits_do_not_matter():
    # without standardised logits the search stops far from the optimum
    logits, y = problem(3)
    units = np.array([1e-4, 300.0, 1e-2])
    found, moved = theta_of(fitted(logits, y)), theta_of(fitted(logits * units, y))
    assert moved[:3] * units == pytest.approx(found[:3], rel=1e-4)
    assert moved[3:] == pytest.approx(found[3:], abs=1e-4)


def test_one_logit_is_platt_scaling():
    logits, y = problem()
    z, bits = logits[:, :, 1], (y == 1).astype(int)
    found = sb.VectorScaling().fit(sb.Bernoulli(), torch.tensor(z), {}, torch.tensor(bits).double())
    oracle = LogisticRegression(C=1e9, tol=1e-10, max_iter=10000).fit(z[0][:, None] / 10, bits)
    assert found.scale == pytest.approx(oracle.coef_[0, 0] / 10, rel=1e-4)
    assert found.bias == pytest.approx(oracle.intercept_[0], abs=1e-4)


@pytest.mark.parametrize("draws", [1, 4])
def test_its_nll_is_at_most_the_temperatures_and_the_identitys(draws):
    logits, y = (torch.tensor(part) for part in problem(draws, seed=1))

    def nll(likelihood) -> float:
        return -likelihood.predictive(logits, {}).log_prob(y).mean().item()

    plain = sb.Categorical()
    scaled, tempered = (by.fit(plain, logits, {}, y) for by in (sb.VectorScaling(), sb.Temperature()))
    assert nll(scaled) < nll(tempered) - 0.05  # this problem needs more than a temperature
    assert nll(tempered) <= nll(plain)


def standard_errors(z: np.ndarray) -> np.ndarray:
    """Of the six numbers at the identity: Fisher information summed row by row, one direction is void."""
    information = np.zeros((6, 6))
    for row in z:
        p = np.exp(log_softmax(row))
        jacobian = np.hstack([np.diag(row), np.eye(3)])
        information += jacobian.T @ (np.diag(p) - np.outer(p, p)) @ jacobian
    return np.sqrt(np.diag(np.linalg.pinv(information)))


@pytest.mark.parametrize(("truth", "calibrated"), [(1.0, True), (1.3, False)])
def test_logits_that_are_calibrated_keep_the_identity_within_its_standard_error(truth, calibrated):
    # 4 standard errors of six numbers: false alarm 4e-4. Wrong on purpose: labels from 1.3 times the logits
    rng = np.random.default_rng(3)
    z = rng.normal(size=(4000, 3)) @ np.array([[1.0, 0.5, 0.0], [0.0, 2.0, 0.3], [0.0, 0.0, 1.0]])
    y = np.array([rng.choice(3, p=np.exp(row)) for row in log_softmax(truth * z, -1)])
    gap = (theta_of(fitted(z[None], y)) - [1, 1, 1, 0, 0, 0]) / standard_errors(z)
    assert (np.abs(gap) < 4).all() == calibrated


def test_a_strong_prior_keeps_the_identity_and_a_weak_one_the_optimum():
    logits, y = problem()
    assert theta_of(fitted(logits, y, prior_precision=1e7)) == pytest.approx([1, 1, 1, 0, 0, 0], abs=1e-4)
    assert theta_of(fitted(logits, y, prior_precision=1e-9)) == pytest.approx(
        theta_of(fitted(logits, y)), abs=1e-3
    )


def test_a_prior_is_a_gaussian_density_over_the_rows():
    logits, y = problem(rows=40)

    def objective(theta: np.ndarray) -> float:
        away = theta - [1, 1, 1, 0, 0, 0]
        return written_out(theta, logits, y) + 5.0 / (2 * 40) * float(away @ away)

    oracle = minimize(objective, np.array([1, 1, 1, 0, 0, 0.0]), method="BFGS", options={"gtol": 1e-8})
    assert theta_of(fitted(logits, y, prior_precision=5.0)) == pytest.approx(oracle.x, abs=1e-3)


def test_separated_labels_warn_and_stay_uncalibrated():
    logits = torch.tensor([[3.0, -1.0, 0.0], [-1.0, 3.0, 0.0], [0.0, -1.0, 3.0]]).double().repeat(5, 1)
    with pytest.warns(UserWarning, match="separated"):
        found = sb.VectorScaling().fit(sb.Categorical(), logits.unsqueeze(0), {}, torch.arange(3).repeat(5))
    assert found == sb.Categorical()


def test_a_class_without_rows_is_named_and_a_prior_allows_it():
    logits, y = problem()
    y = np.where(y == 2, 0, y)
    with pytest.raises(ValueError, match="class 2 has no validation row"):
        fitted(logits, y)
    assert np.isfinite(theta_of(fitted(logits, y, prior_precision=1.0))).all()


def test_numbers_are_refused():
    with pytest.raises(TypeError, match="scales logits"):
        sb.VectorScaling().fit(sb.Gaussian(noise=1.0), torch.zeros(1, 3).double(), {}, torch.zeros(3))
    with pytest.raises(ValueError, match="prior_precision must be"):
        sb.VectorScaling(prior_precision=-1)


# As part of a posterior


def posterior_of(network: nn.Module, likelihood, draws: int = 3) -> Posterior:
    layout = Layout.of(network)
    row = layout.flatten(network)
    noise = torch.randn(draws, len(row), generator=torch.Generator().manual_seed(1))
    return Posterior(network, StoredDraws(row + 0.2 * noise), likelihood, layout, {"method": "hand"})


@pytest.mark.parametrize(("likelihood", "outputs"), [(sb.Categorical(), 3), (sb.Bernoulli(), 1)])
def test_a_posterior_carries_it_through_prediction_files_and_evaluation(tmp_path, likelihood, outputs):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, outputs))
    x = torch.randn(200, 2) * torch.tensor([1.0, 5.0])
    y = torch.randint(0, max(outputs, 2), (200,))
    posterior = posterior_of(network, likelihood)
    calibrated = posterior.calibrate((x, y), by=sb.VectorScaling())
    assert posterior.likelihood == likelihood  # untouched
    assert calibrated.info["calibration"] == "VectorScaling"
    logits = calibrated.functions(calibrated.draw(3), x).double()
    scale, bias = (torch.tensor(getattr(calibrated.likelihood, key)) for key in ("scale", "bias"))
    moved = logits * scale + bias
    expected = moved.softmax(-1).mean(0) if outputs > 1 else moved.sigmoid().mean(0)[:, 0]
    torch.testing.assert_close(calibrated.predict(x).mean.double(), expected, rtol=1e-5, atol=1e-6)
    calibrated.save(tmp_path)
    loaded = sb.load(tmp_path, network)
    assert loaded.likelihood == calibrated.likelihood
    assert torch.equal(loaded.predict(x).mean, calibrated.predict(x).mean)
    before, after = (sb.evaluate(each, (x, y), bootstrap=0) for each in (posterior, calibrated))
    nll = "negative_log_likelihood"
    assert after.metrics[nll].value < before.metrics[nll].value


def test_calibrating_again_starts_from_the_uncalibrated_likelihood():
    torch.manual_seed(0)
    posterior = posterior_of(nn.Linear(2, 3), sb.Categorical())
    data = (torch.randn(150, 2), torch.randint(0, 3, (150,)))
    scaled = posterior.calibrate(data, by=sb.VectorScaling())
    assert scaled.calibrate(data, by=sb.VectorScaling()).likelihood == scaled.likelihood
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # labels at random: the temperature may run to its bound
        tempered, again = (each.calibrate(data, by=sb.Temperature()) for each in (posterior, scaled))
    assert tempered.likelihood == again.likelihood
    assert again.likelihood.scale is None


def test_what_is_no_calibration_is_refused(unchecked):
    posterior = posterior_of(nn.Linear(2, 3), sb.Categorical())
    data = (torch.randn(5, 2), torch.randint(0, 3, (5,)))
    for wrong in (64, sb.Temperature):
        with pytest.raises(TypeError, match="by must be a calibration"):
            posterior.calibrate(data, wrong)


def test_a_scale_of_another_network_is_refused():
    likelihood = sb.Categorical(scale=(1.0, 2.0), bias=(0.0, 0.0))
    with pytest.raises(ValueError, match="scales 2 logits and the network gives 3"):
        likelihood.predictive(torch.zeros(1, 4, 3), {})
    with pytest.raises(ValueError, match="go together"):
        sb.Categorical(scale=(1.0, 2.0))
    with pytest.raises(ValueError, match="one a class each"):
        sb.Categorical(scale=(1.0, 2.0), bias=(0.0,))
    with pytest.raises(ValueError, match="must be finite"):
        sb.Bernoulli(scale=math.inf, bias=0.0)


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_density_loss_and_predictive_agree_under_a_scale(temperature):
    logits, y = (torch.tensor(part) for part in problem(rows=20))
    likelihood = sb.Categorical(temperature, scale=(2.0, 0.1, 5.0), bias=(0.3, -0.2, 1.0))
    moved = (logits[0] * torch.tensor([2.0, 0.1, 5.0]) + torch.tensor([0.3, -0.2, 1.0])) / temperature
    expected = torch.distributions.Categorical(logits=moved).log_prob(y)
    torch.testing.assert_close(likelihood.log_prob(logits[0], y, {}), expected)
    torch.testing.assert_close(likelihood.loss(logits[0], y, {}), -expected.mean())
    torch.testing.assert_close(likelihood.predictive(logits, {}).log_prob(y), expected)
    odds, bits = logits[0, :, 1], (y == 1).double()
    likelihood = sb.Bernoulli(temperature, scale=0.2, bias=-0.7)
    expected = torch.distributions.Bernoulli(logits=(0.2 * odds - 0.7) / temperature).log_prob(bits)
    torch.testing.assert_close(likelihood.log_prob(odds, bits, {}), expected)
    torch.testing.assert_close(likelihood.loss(odds, bits, {}), -expected.mean())
    torch.testing.assert_close(likelihood.predictive(odds.unsqueeze(0), {}).log_prob(bits), expected)
