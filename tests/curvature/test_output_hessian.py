"""Roots of the output Hessians against automatic differentiation; Fisher's matrix against quadrature."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd.functional import hessian

import singularbayes as sb
from singularbayes.curvature.output_hessian import bend

torch.manual_seed(0)
LOGITS = torch.randn(5, 3, dtype=torch.float64) * torch.tensor([1.0, 6.0, 0.2])
CASES = {
    "categorical": (sb.Categorical(), LOGITS, torch.tensor([0, 1, 2, 1, 0])),
    "categorical, tempered": (sb.Categorical(temperature=2.5), LOGITS, torch.tensor([0, 1, 2, 1, 0])),
    "bernoulli": (sb.Bernoulli(), LOGITS[:, 0], torch.tensor([0, 1, 1, 1, 0])),
    "bernoulli, tempered": (sb.Bernoulli(temperature=0.5), LOGITS[:, :1], torch.tensor([0, 1, 1, 1, 0])),
    "categorical, scaled": (
        sb.Categorical(2.0, scale=(2.0, 1.0, -0.5), bias=(0.0, 1.0, -3.0)),
        LOGITS,
        torch.tensor([0, 1, 2, 1, 0]),
    ),
    "bernoulli, scaled": (
        sb.Bernoulli(0.5, scale=-2.0, bias=1.0),
        LOGITS[:, 0],
        torch.tensor([0, 1, 1, 1, 0]),
    ),
    "gaussian": (sb.Gaussian(noise=0.3), LOGITS, LOGITS + 1),
    "gaussian, tempered": (sb.Gaussian(noise=0.3, temperature=2.0), LOGITS[:, 0], LOGITS[:, 1]),
    "learned noise": (sb.Gaussian(initial_noise=0.7), LOGITS, LOGITS - 1),
    "images": (
        sb.Gaussian(noise=0.3),
        LOGITS.reshape(5, 3, 1).expand(5, 3, 2),
        torch.zeros(5, 3, 2).double(),
    ),
}


def oracle(likelihood, outputs: Tensor, y: Tensor, row: int) -> Tensor:
    point = outputs[row : row + 1].clone()
    label = likelihood.labels(point.shape, y[row : row + 1])
    numbers = {name: number.double() for name, number in likelihood.parameters.items()}
    exact = hessian(lambda out: -likelihood.log_prob(out, label, numbers).sum(), point)
    return exact.reshape(point.numel(), point.numel())


@pytest.mark.parametrize("case", CASES)
def test_roots_give_the_hessian_of_every_row(case):
    likelihood, outputs, y = CASES[case]
    numbers = likelihood.parameters
    bent = bend(likelihood, outputs, y, numbers)
    for row in range(len(outputs)):
        root = bent.root[row]
        torch.testing.assert_close(root @ root.T, oracle(likelihood, outputs, y, row), rtol=1e-6, atol=1e-12)
    labels = likelihood.labels(outputs.shape, y)
    exact = likelihood.log_prob(outputs, labels, numbers).sum().item()
    assert bent.log_likelihood == pytest.approx(exact, rel=1e-9)
    assert (bent.entries, bent.projected) == (labels.numel(), 0)


def test_the_gaussian_of_a_halved_squared_error_is_another():
    # the mutant: 2 / noise^2, the Hessian of the squared error itself (laplace-torch's factor, Laplace#268)
    likelihood, outputs, y = CASES["gaussian"]
    root = bend(likelihood, outputs, y, {}).root[0]
    assert not torch.allclose(2 * root @ root.T, oracle(likelihood, outputs, y, 0), rtol=0.1)


@pytest.mark.parametrize("outputs", [LOGITS[:, :2], torch.cat([LOGITS, LOGITS / 3], 1)])
def test_heteroscedastic_rows_have_fishers_matrix(outputs):
    likelihood = sb.HeteroscedasticGaussian(bounds=(-3.0, 2.0))
    half = outputs.shape[1] // 2
    bent = bend(likelihood, outputs, outputs[:, :half].squeeze(1), {})
    nodes, weights = np.polynomial.hermite_e.hermegauss(3)  # exact: the Hessian is quadratic in the residual
    for row in range(len(outputs)):
        predictive = likelihood.predictive(outputs[None, row : row + 1], {})
        exact = torch.zeros(2 * half, 2 * half, dtype=torch.float64)
        mean, std = predictive.means[0, 0], predictive.variances[0, 0].sqrt()
        for node, weight in zip(nodes, weights / weights.sum(), strict=True):
            y = (mean + node * std).reshape(1, *mean.shape)
            exact += weight * oracle(likelihood, outputs[row : row + 1], y, 0)
        root = bent.root[row]
        torch.testing.assert_close(root @ root.T, exact, rtol=1e-8, atol=1e-10)


@dataclass(frozen=True)
class StudentT(sb.Gaussian):
    """A likelihood of a user's own, whose NLL is not convex."""

    task: ClassVar[str] = "gaussian"

    def log_prob(self, outputs: Tensor, y: Tensor, parameters) -> Tensor:
        return -2 * torch.log1p((outputs.reshape(y.shape) - y).square())


class Own:
    """Not one of the library's, with everything else of one."""

    def __init__(self, like) -> None:
        self.like = like

    def __getattr__(self, name: str):
        return getattr(self.like, name)


def test_the_hessian_of_a_likelihood_of_the_users_own_is_projected_and_counted():
    likelihood = Own(StudentT(noise=1.0))
    outputs = torch.tensor([0.0, 0.5, 3.0], dtype=torch.float64)
    bent = bend(likelihood, outputs, torch.zeros(3).double(), {})
    # d2/de2 of 2 log(1 + e^2) is 4 (1 - e^2) / (1 + e^2)^2: negative beyond |e| = 1
    found = bent.root.square().sum((1, 2))
    torch.testing.assert_close(found, torch.tensor([4.0, 4 * 0.75 / 1.25**2, 0.0]).double())
    assert bent.projected == 1


def test_a_likelihood_of_the_users_own_that_is_convex_is_not_touched():
    outputs, y = LOGITS, torch.tensor([0, 1, 2, 1, 0])
    own, ours = (bend(kind, outputs, y, {}) for kind in (Own(sb.Categorical()), sb.Categorical()))
    torch.testing.assert_close(own.root @ own.root.mT, ours.root @ ours.root.mT, rtol=1e-8, atol=1e-12)
    assert own.projected == 0


def test_float32_outputs_are_bent_in_float64():
    likelihood, outputs, y = CASES["categorical"]
    bent = bend(replace(likelihood), outputs.float(), y, {})
    assert bent.root.dtype == torch.float64
