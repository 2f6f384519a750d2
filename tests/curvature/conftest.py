"""The slow oracle: the Gauss-Newton matrix of a model, row by row, dense, float64."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.functional import hessian, jacobian
from torch.func import functional_call

import singularbayes as sb


def output_hessian(model: sb.Model, outputs: Tensor, label: Tensor) -> Tensor:
    """The Hessian of one row's NLL ``(K, K)`` by automatic differentiation."""
    label = model.likelihood.labels(outputs.shape, label)

    def nll(point: Tensor) -> Tensor:
        return -model.likelihood.log_prob(point, label, model.likelihood.parameters).sum()

    return hessian(nll, outputs.detach()).reshape(outputs.numel(), outputs.numel())


@pytest.fixture
def dense() -> Callable[..., Tensor]:
    """``dense(model, x, y, names)``: H of these parameters jointly, entries in the order of names."""

    def matrix(model: sb.Model, x: Any, y: Tensor, names: list[str], bend: Any = output_hessian) -> Tensor:
        network = model.copy_network().eval()
        values = tuple(dict(network.named_parameters())[name].detach() for name in names)
        total: Any = 0.0
        for row in range(len(y)):
            one = x[row : row + 1]

            def f(*given: Tensor, one: Tensor = one) -> Tensor:
                return functional_call(network, dict(zip(names, given, strict=True)), (one,))

            outputs = f(*values)
            slopes = [j.reshape(outputs.numel(), -1) for j in jacobian(f, values)]
            slope = torch.cat(slopes, 1)
            total = total + slope.T @ bend(model, outputs, y[row : row + 1]) @ slope
        return total.detach()

    return matrix
