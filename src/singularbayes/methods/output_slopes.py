"""The log likelihood of the outputs of many chains and its gradient in them, closed where it can be.

    Gaussian:     d log p / df = (y - f) / var
    Categorical:  d log p / df = (onehot(y) - softmax(f / T)) / T

Every other likelihood goes through autograd on its ``log_prob``. Sums are in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ..likelihoods import LOG_NOISE, Categorical, Gaussian, Likelihood

__all__ = ["OutputSlope", "slope_for"]

#: Of outputs ``(C, B, *event)``, checked labels ``(B, ...)`` and a weight ``w``: ``w sum log p``, ``(C,)`` in
#: float64, and its gradient in the outputs.
OutputSlope = Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]]


def slope_for(likelihood: Likelihood, numbers: Mapping[str, Tensor]) -> OutputSlope:
    """The quickest way for a likelihood.

    Args:
        likelihood: of the model.
        numbers: its learned numbers, ``(C, ...)`` or one row for all chains; they stay.
    """
    if type(likelihood) is Gaussian:
        if likelihood.noise is not None:
            log_var = torch.tensor([2 * math.log(likelihood.noise)], dtype=torch.float64)
        else:
            log_var = 2 * numbers["log_noise"].double().clamp(-LOG_NOISE, LOG_NOISE).view(-1)
        return _GaussianSlope(log_var + math.log(likelihood.temperature))
    if type(likelihood) is Categorical and likelihood.scale is None:
        return _CategoricalSlope(likelihood.temperature)
    return _AutogradSlope(likelihood, numbers)


class _GaussianSlope:
    def __init__(self, log_var: Tensor) -> None:
        self.alike = len(log_var) == 1
        self.log_var = log_var

    def __call__(self, outputs: Tensor, y: Tensor, weight: float) -> tuple[Tensor, Tensor]:
        residual = (y - outputs.reshape(-1, *y.shape)).flatten(1)
        squares = residual.square().sum(1, dtype=torch.float64)
        half = 0.5 * weight * residual.shape[1]
        if self.alike:
            log_var = self.log_var.item()
            precision = math.exp(-log_var)
            total = squares.mul_(-0.5 * weight * precision).sub_(half * (log_var + math.log(2 * math.pi)))
            slope = residual.mul_(weight * precision)
        else:
            precision = (-self.log_var).exp()
            total = squares * (-0.5 * weight * precision) - half * (self.log_var + math.log(2 * math.pi))
            slope = residual * (weight * precision).to(residual.dtype).unsqueeze(1)
        return total, slope.view(outputs.shape).to(outputs.dtype)


class _CategoricalSlope:
    def __init__(self, temperature: float) -> None:
        self.temperature = temperature

    def __call__(self, outputs: Tensor, y: Tensor, weight: float) -> tuple[Tensor, Tensor]:
        logits = outputs if self.temperature == 1 else outputs / self.temperature
        log_probs = torch.log_softmax(logits, -1)
        labels = y.expand(len(outputs), -1).unsqueeze(-1)
        total = log_probs.gather(-1, labels).sum((1, 2), dtype=torch.float64).mul_(weight)
        slope = log_probs.exp_().neg_()
        slope.scatter_add_(-1, labels, slope.new_ones(()).expand(labels.shape))
        return total, slope.mul_(weight / self.temperature)


class _AutogradSlope:
    """A likelihood takes rows ``(B, *event)``: those of all chains lie one after another."""

    def __init__(self, likelihood: Likelihood, numbers: Mapping[str, Tensor]) -> None:
        self.likelihood, self.numbers = likelihood, numbers
        self.alike = all(bool((value == value[:1]).all()) for value in numbers.values())

    def __call__(self, outputs: Tensor, y: Tensor, weight: float) -> tuple[Tensor, Tensor]:
        chains = len(outputs)
        with torch.enable_grad():
            leaf = outputs.detach().requires_grad_()
            if self.alike:
                own = {name: value[0] for name, value in self.numbers.items()}
                labels = y.expand(chains, *y.shape).flatten(0, 1)
                terms = self.likelihood.log_prob(leaf.flatten(0, 1), labels, own).view(chains, -1)
            else:
                each = [
                    self.likelihood.log_prob(leaf[c], y, {n: v[c] for n, v in self.numbers.items()})
                    for c in range(chains)
                ]
                terms = torch.stack(each)
            total = terms.sum(1, dtype=torch.float64) * weight
            (slope,) = torch.autograd.grad(total.sum(), leaf)
        return total.detach(), slope
