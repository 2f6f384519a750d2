"""Exact Gaussian-process regression against scikit-learn's, dense formulas and bad kernels."""

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern
from torch import Tensor

from singularbayes.kernels import GaussianProcess

DOUBLE = torch.float64
SOURCE = torch.Generator().manual_seed(0)
X = torch.randn(30, 2, generator=SOURCE, dtype=DOUBLE) * torch.tensor([1.0, 4.0], dtype=DOUBLE)
Z = torch.randn(7, 2, generator=SOURCE, dtype=DOUBLE)
Y = torch.stack([X[:, 0].sin() + X[:, 1], 3 - X[:, 1]], 1)
KERNEL = ConstantKernel(2.5) * Matern(1.3, nu=1.5) + ConstantKernel(0.3)


def linear(x: Tensor, z: Tensor) -> Tensor:
    return x @ z.T


@pytest.mark.parametrize("outputs", [1, 2])
def test_it_is_scikit_learns_regressor(outputs):
    y = Y[:, :outputs]
    oracle = GaussianProcessRegressor(KERNEL, alpha=0.2**2, optimizer=None).fit(X.numpy(), y.numpy())
    mean, covariance = oracle.predict(Z.numpy(), return_cov=True)
    fitted = GaussianProcess(KERNEL, noise=0.2).fit(X, y)
    found = fitted.predict(Z)
    assert found.mean.shape == (7, outputs)
    assert np.allclose(found.mean.numpy(), mean.reshape(7, outputs), atol=1e-8)
    assert np.allclose(found.covariance[0].numpy(), covariance.reshape(7, 7, -1)[..., 0], atol=1e-8)
    assert torch.allclose(found.variance, found.covariance[0].diagonal().unsqueeze(1).expand(7, outputs))
    assert abs(fitted.log_evidence - oracle.log_marginal_likelihood_value_) < 1e-7
    assert fitted.jitter == 0


def test_each_output_may_have_its_own_kernel():
    def both(x: Tensor, z: Tensor) -> Tensor:
        return torch.stack([linear(x, z), 4 * linear(x, z) + 1])

    fitted = GaussianProcess(both, noise=0.5).fit(X, Y)
    found, total = fitted.predict(Z), 0.0
    for k in range(2):
        alone = GaussianProcess(lambda x, z, k=k: both(x, z)[k], noise=0.5).fit(X, Y[:, k])
        assert torch.allclose(found.mean[:, k], alone.predict(Z).mean[:, 0])
        assert torch.allclose(found.variance[:, k], alone.predict(Z).variance[:, 0])
        total += alone.log_evidence
    assert abs(fitted.log_evidence - total) < 1e-8


def test_the_prior_mean_is_taken_off_and_put_back():
    def mean(x: Tensor) -> Tensor:
        return 3 * x[:, 0] - 1

    moved = GaussianProcess(linear, noise=0.3, mean=mean).fit(X, Y[:, 0] + mean(X))
    plain = GaussianProcess(linear, noise=0.3).fit(X, Y[:, 0])
    assert torch.allclose(moved.predict(Z).mean[:, 0], plain.predict(Z).mean[:, 0] + mean(Z))
    assert abs(moved.log_evidence - plain.log_evidence) < 1e-8


def test_noise_is_a_standard_deviation_and_not_a_variance():
    fitted = GaussianProcess(linear, noise=0.3).fit(X, Y[:, 0])
    matrix = linear(X, X) + 0.09 * torch.eye(30, dtype=DOUBLE)
    exact = torch.distributions.MultivariateNormal(torch.zeros(30, dtype=DOUBLE), matrix).log_prob(Y[:, 0])
    assert abs(fitted.log_evidence - exact.item()) < 1e-7
    wrong = GaussianProcess(linear, noise=0.3**0.5).fit(X, Y[:, 0])
    assert abs(wrong.log_evidence - exact.item()) > 1


def test_a_singular_matrix_gets_jitter_that_is_told():
    # neural-tangents#14: equal rows without noise gave nan there, or a jitter that nobody was told of
    x = torch.cat([X, X[:3]])
    fitted = GaussianProcess(RBF(1.0), noise=0.0).fit(x, x[:, 0])
    assert 0 < fitted.jitter < 1e-6
    assert torch.isfinite(fitted.predict(x).mean).all()
    assert (fitted.predict(x).mean[:, 0] - x[:, 0]).abs().max() < 1e-2
    assert f"jitter {fitted.jitter:.2g}" in repr(fitted)


def test_more_jitter_than_rounding_needs_is_refused_and_the_largest_of_all_outputs_is_told():
    rows = 200
    bent = torch.ones(rows, rows, dtype=DOUBLE)
    bent[:2, :2] += 1e-3 * torch.tensor([[-1.0, 1.0], [1.0, -1.0]])  # an eigenvalue of -2e-3 beside 200
    with pytest.raises(ValueError, match=r"a jitter of 0\.0001 of its diagonal did not mend it"):
        GaussianProcess(lambda _x, _z: bent, noise=0.0).fit(torch.zeros(rows, 1), torch.zeros(rows))
    flat, whole = torch.ones(30, 30, dtype=DOUBLE), torch.eye(30, dtype=DOUBLE)
    for both in (torch.stack([whole, flat]), torch.stack([flat, whole])):
        assert GaussianProcess(lambda _x, _z, both=both: both, noise=0.0).fit(X, Y).jitter > 0


BAD = {
    "negative distances": (lambda x, z: -torch.cdist(x, z), "not positive definite.*eigenvalue -"),
    "a tanh that is no covariance": (
        lambda x, z: (x @ z.T - 3).tanh(),
        "not positive definite.*eigenvalue -",
    ),
    "not symmetric": (lambda x, z: x[:, :1] + 2 * z[:, 0], "not symmetric"),
    "not finite": (lambda x, z: x @ z.T / 0, "not finite"),
    "nothing": (lambda x, z: 0 * x @ z.T, "not positive definite"),
    "the diagonal alone": (lambda x, z: x[:, 0], r"gave \(30,\)"),
    "other rows": (
        lambda x, z: linear(x[:-1], z[:-1]),
        r"30 labels of 1 outputs need a kernel matrix \(30, 30\)",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_kernel_that_is_no_covariance_is_named(name):
    kernel, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        GaussianProcess(kernel, noise=0.1).fit(X, Y[:, 0])


def test_noise_does_not_hide_a_kernel_that_is_not_positive_definite():
    with pytest.raises(ValueError, match="not positive definite"):
        GaussianProcess(BAD["negative distances"][0], noise=100.0).fit(X, Y[:, 0])


def test_bad_settings_are_named(unchecked):
    with pytest.raises(TypeError, match="kernel must be an object"):
        GaussianProcess(RBF, noise=0.1)
    with pytest.raises(ValueError, match="noise is a standard deviation"):
        GaussianProcess(RBF(1.0), noise=-0.1)
