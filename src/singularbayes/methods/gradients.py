"""The closed gradients of mean-field VI as autograd functions, for loops that call ``backward`` themselves.

Each has the gradient that ``MeanField`` writes down by hand: exact where a scale underflows, and without the
exponentials that autograd would take again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..distributions import positive
from ..divergence import Family, bound, bound_gradient
from ..model import BlockPrior
from ..priors import ScaleMixture

__all__ = ["DeterministicKL", "Draw", "NegativeLogPrior", "Positive"]


class Positive(torch.autograd.Function):
    """``softplus(rho)`` that keeps a gradient where it underflows."""

    @staticmethod
    def forward(ctx: Any, rho: Tensor) -> Tensor:
        scale = positive(rho)
        ctx.save_for_backward(scale)
        return scale

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (scale,) = ctx.saved_tensors
        return -torch.expm1(-scale) * gradient


class Draw(torch.autograd.Function):
    """``mean + softplus(rho) noise``.

    It keeps its tensors as attributes, so that its backward may run twice: reentrant activation checkpointing
    goes back through the weights once for each stretch of layers.
    """

    @staticmethod
    def forward(ctx: Any, mean: Tensor, rho: Tensor, noise: Tensor) -> Tensor:
        scale = positive(rho)
        ctx.slope = noise * -torch.expm1(-scale)
        return torch.addcmul(mean, scale, noise)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        return gradient, gradient * ctx.slope, None


class DeterministicKL(torch.autograd.Function):
    """Sum of a block's closed KL or bound, in nats, with its closed gradient."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, scale: Tensor, family: Family, prior: BlockPrior) -> Tensor:
        ctx.save_for_backward(mean, scale)
        ctx.family, ctx.prior = family, prior
        return bound(family, prior, mean, scale).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:  # type: ignore[override]
        by_mean, by_scale = bound_gradient(ctx.family, ctx.prior, *ctx.saved_tensors)
        return gradient * by_mean, gradient * by_scale, None, None


class NegativeLogPrior(torch.autograd.Function):
    """``-sum log p(w)`` of a block, for ``w`` and for a learned prior's numbers."""

    @staticmethod
    def forward(ctx: Any, w: Tensor, numbers: Tensor | None, prior: BlockPrior) -> Tensor:
        if numbers is not None and isinstance(prior, ScaleMixture):
            prior = prior.with_unconstrained(numbers)
        ctx.save_for_backward(w)
        ctx.prior, ctx.learned = prior, numbers is not None
        return -prior.log_prob(w).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None]:  # type: ignore[override]
        (w,) = ctx.saved_tensors
        numbers = gradient * ctx.prior.unconstrained_gradient(w) if ctx.learned else None
        return gradient * ctx.prior.negative_score(w), numbers, None
