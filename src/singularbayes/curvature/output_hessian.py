"""The Hessian of each datum's negative log-likelihood in the network's outputs, as ``R R^T``.

    H_n = d^2 (-log p(y_n | f)) / d f^2 = R_n R_n^T,        so J^T H J is (R^T J)^T (R^T J)

| likelihood | H_n at temperature T, logits scaled by a |
|---|---|
| ``Categorical`` | ``a (diag(p) - p p^T) a / T^2``, ``R = a (diag(sqrt p) - p sqrt(p)^T) / T`` |
| ``Bernoulli`` | ``a^2 p (1 - p) / T^2`` |
| ``Gaussian`` | ``I / (T noise^2)`` |
| ``HeteroscedasticGaussian`` | Fisher's matrix: ``diag(1 / var, 1 / 2)`` by mean and log variance |
| any other | the Hessian of its ``log_prob``, by automatic differentiation; negative eigenvalues set to 0 |

Every one of the ``K`` columns is used: nothing is sampled. Of a ``HeteroscedasticGaussian`` the Hessian
itself is indefinite wherever a residual is larger than the noise, so its expectation stands for it.

References:
    Schraudolph 2002, "Fast curvature matrix-vector products", section 3. Martens 2020, arXiv 1412.1193,
    section 8.1 (which outputs make the generalised Gauss-Newton matrix Fisher's).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..likelihoods import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian, Likelihood, Parameters
from ..scaling import scaled

__all__ = ["Bend", "bend"]

_ROUNDING = 1e-6  # of the largest eigenvalue: what a positive Hessian may show below 0


class Bend(NamedTuple):
    """How the log-likelihood of a batch bends at its outputs.

    Attributes:
        root: ``R (B, K, C)``; outputs flattened to ``K``.
        log_likelihood: summed over the batch, in nats.
        entries: numbers among the labels.
        projected: rows whose Hessian was indefinite and was projected.
    """

    root: Float[Tensor, "B K C"]
    log_likelihood: float
    entries: int
    projected: int


@torch.no_grad()
def bend(likelihood: Likelihood, outputs: Tensor, y: Tensor, numbers: Parameters) -> Bend:
    """Root and log-likelihood of one batch, in float64.

    Args:
        likelihood: its labels are checked here.
        outputs: ``(B, *event)``.
        y: labels of the batch.
        numbers: learned numbers of the likelihood.
    """
    outputs = outputs.double()
    labels = likelihood.labels(outputs.shape, y)
    numbers = {name: number.double() for name, number in numbers.items()}
    log_likelihood = likelihood.log_prob(outputs, labels, numbers).sum().item()
    flat, projected = outputs.flatten(1) if outputs.dim() > 1 else outputs.unsqueeze(1), 0
    if isinstance(likelihood, Categorical):
        logits, slope = _calibrated(likelihood, flat)
        p = logits.softmax(1)
        root = slope.unsqueeze(1) * (p.sqrt().diag_embed() - p.unsqueeze(2) * p.sqrt().unsqueeze(1))
    elif isinstance(likelihood, Bernoulli):
        logits, slope = _calibrated(likelihood, flat)
        root = (slope * (logits.sigmoid() * (-logits).sigmoid()).sqrt()).unsqueeze(2)
    elif isinstance(likelihood, Gaussian):
        given = likelihood.noise
        noise = math.exp(numbers["log_noise"].item()) if given is None else given
        scale = 1 / (noise * math.sqrt(likelihood.temperature))
        root = scale * torch.eye(flat.shape[1], dtype=flat.dtype, device=flat.device).expand(
            len(flat), -1, -1
        )
    elif isinstance(likelihood, HeteroscedasticGaussian):
        root = _fisher(likelihood, flat).diag_embed()
    else:
        root, projected = _root_of_hessian(likelihood, outputs, labels, numbers)
    return Bend(root, log_likelihood, labels.numel(), projected)


def _calibrated(likelihood: Categorical | Bernoulli, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """The logits that the likelihood makes of the outputs, and their slopes ``(K,)``: it is affine."""
    settings = likelihood.temperature, likelihood.scale, likelihood.bias
    ends = scaled(torch.stack([torch.zeros_like(outputs[0]), torch.ones_like(outputs[0])]), *settings)
    return scaled(outputs, *settings), ends[1] - ends[0]


def _fisher(likelihood: HeteroscedasticGaussian, outputs: Tensor) -> Tensor:
    """Roots of the diagonal of Fisher's matrix in the raw outputs ``(B, 2 k)``."""
    low, high = likelihood.bounds
    centre, half = (low + high) / 2, (high - low) / 2
    raw = outputs.chunk(2, 1)[1]
    bent = torch.tanh((raw - centre) / half)
    log_var = centre + half * bent + math.log(likelihood.temperature)
    return torch.cat([(-0.5 * log_var).exp(), (1 - bent.square()) * math.sqrt(0.5)], 1)


def _root_of_hessian(
    likelihood: Likelihood, outputs: Tensor, labels: Tensor, numbers: Parameters
) -> tuple[Tensor, int]:
    """A root of the Hessian of any likelihood; rows do not see each other, so one batch does for all."""
    with torch.enable_grad():
        point = outputs.detach().clone().requires_grad_()
        nll = -likelihood.log_prob(point, labels, numbers).sum()
        slope = torch.autograd.grad(nll, point, create_graph=True)[0].reshape(len(point), -1)
        columns = [
            torch.autograd.grad(column.sum(), point, retain_graph=True, allow_unused=True)[0]
            if column.requires_grad
            else None
            for column in slope.T
        ]
    zero = torch.zeros_like(outputs)
    hessian = torch.stack([(zero if c is None else c).reshape(len(zero), -1) for c in columns], 2)
    values, vectors = torch.linalg.eigh(0.5 * (hessian + hessian.mT))
    negative = values[:, 0] < -_ROUNDING * values.abs().amax(1).clamp(min=1e-300)
    return vectors * values.clamp(min=0).sqrt().unsqueeze(1), int(negative.sum())
