"""The linear model that chains are held against: least squares and logistic regression."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression, LogisticRegression
from torch import nn

import singularbayes as sb
from singularbayes.methods.linear_baseline import LinearBaseline, left_out_log_density

SOURCE = torch.Generator().manual_seed(1)
X = torch.randn(120, 3, generator=SOURCE, dtype=torch.float64) @ torch.tensor(
    [[1.0, 0.5, 0.0], [0.0, 50.0, 0.0], [0.0, 3.0, 0.02]], dtype=torch.float64
)  # correlated, badly scaled
X = torch.cat([X + 7, torch.full((120, 1), 3.0, dtype=torch.float64)], 1)  # and a constant
Y = 2 * X[:, 0] - 0.03 * X[:, 1] + 40 * X[:, 2] + torch.randn(120, generator=SOURCE, dtype=torch.float64)
TRAIN, HELD = slice(0, 90), slice(90, None)


def baseline(likelihood, outputs: int, y: torch.Tensor) -> LinearBaseline:
    model = sb.Model(nn.Linear(4, outputs).double(), likelihood)
    return LinearBaseline(model, (X[TRAIN], y[TRAIN]))


def log_normal(errors: np.ndarray, std: float) -> float:
    return float((-0.5 * (errors / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)).mean())


def test_a_gaussian_is_least_squares():
    """Wrong on purpose: the training mean alone has another density."""
    fitted = LinearRegression().fit(X[TRAIN], Y[TRAIN])
    errors = Y[HELD].numpy() - fitted.predict(X[HELD])
    found = baseline(sb.Gaussian(noise=0.7), 1, Y).log_density((X[HELD], Y[HELD]))
    assert found == pytest.approx(log_normal(errors, 0.7), abs=1e-5)
    assert log_normal((Y[HELD] - Y[TRAIN].mean()).numpy(), 0.7) < found - 1


def test_a_noise_that_is_learned_is_that_of_the_residuals():
    fitted = LinearRegression().fit(X[TRAIN], Y[TRAIN])
    std = float(np.std(Y[TRAIN].numpy() - fitted.predict(X[TRAIN])))
    errors = Y[HELD].numpy() - fitted.predict(X[HELD])
    found = baseline(sb.Gaussian(), 1, Y).log_density((X[HELD], Y[HELD]))
    assert found == pytest.approx(log_normal(errors, std), abs=1e-4)


def test_several_outputs_are_least_squares_of_each():
    y = torch.stack([Y, -0.1 * Y + X[:, 0]], 1)
    fitted = LinearRegression().fit(X[TRAIN], y[TRAIN])
    errors = y[HELD].numpy() - fitted.predict(X[HELD])
    found = baseline(sb.Gaussian(noise=2.0), 2, y).log_density((X[HELD], y[HELD]))
    assert found == pytest.approx(2 * log_normal(errors, 2.0), abs=1e-5)


@pytest.mark.parametrize("classes", [2, 3])
def test_classes_are_logistic_regression(classes):
    noisy = Y + 12 * torch.randn(120, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    cuts = torch.tensor([0.5] if classes == 2 else [0.3, 0.6], dtype=torch.float64)
    y = torch.bucketize(noisy, noisy.quantile(cuts))
    spread = X[TRAIN].std(0)
    scaled = ((X - X[TRAIN].mean(0)) / spread.where(spread > 0, 1.0)).numpy()
    fitted = LogisticRegression(C=1e8, tol=1e-8, max_iter=5000).fit(scaled[TRAIN], y[TRAIN])
    expected = fitted.predict_log_proba(scaled[HELD])[np.arange(30), y[HELD]].mean()
    likelihood = sb.Bernoulli() if classes == 2 else sb.Categorical()
    found = baseline(likelihood, 1 if classes == 2 else 3, y).log_density((X[HELD], y[HELD]))
    assert found == pytest.approx(expected, abs=1e-4)


def test_token_ids_have_a_constant_model():
    ids = torch.randint(0, 9, (60, 5), generator=SOURCE)
    y = (torch.arange(60) % 3 == 0).long()
    network = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(20, 2))
    found = LinearBaseline(sb.Model(network, sb.Categorical()), (ids, y)).log_density((ids, y))
    assert found == pytest.approx(np.log(1 / 3) / 3 + 2 * np.log(2 / 3) / 3, abs=1e-5)


def test_classes_that_a_plane_separates_come_to_an_end():
    y = (X[:, 0] > X[:, 0].median()).long()
    value = baseline(sb.Categorical(), 2, y).log_density((X[TRAIN], y[TRAIN]))
    assert -0.05 < value <= 0


def test_left_out_rows_are_judged_by_the_line_of_the_others():
    """Wrong on purpose: on its own rows a line is better."""
    expected = 0.0
    for own, other in ((slice(0, None, 2), slice(1, None, 2)), (slice(1, None, 2), slice(0, None, 2))):
        fitted = LinearRegression().fit(X[:31][own], Y[:31][own])
        errors = Y[:31][other].numpy() - fitted.predict(X[:31][other])
        expected += len(errors) / 31 * log_normal(errors, 0.7)
    model, data = sb.Model(nn.Linear(4, 1).double(), sb.Gaussian(noise=0.7)), (X[:31], Y[:31])
    assert left_out_log_density(model, data) == pytest.approx(expected, abs=1e-4)
    assert LinearBaseline(model, data).log_density(data) > expected + 0.1
    assert np.isnan(left_out_log_density(model, (X[:1], Y[:1])))


def test_no_grad_mode_changes_the_fit():
    """Before: an error in torch.inference_mode."""
    found = baseline(sb.Gaussian(noise=0.7), 1, Y).log_density((X[HELD], Y[HELD]))
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert baseline(sb.Gaussian(noise=0.7), 1, Y).log_density((X[HELD], Y[HELD])) == found
