"""Rules of normalisation layers, and of softmax, by the delta method: their derivative at the means.

Batch normalisation in eval mode is affine, and exact. The others divide by a statistic of the same entries:

    z = (t - mean t) / s,   dz_i = (dt_i - mean dt - z_i mean(z dt)) / s,   s^2 = E var t + eps
    p = softmax(t),         dp_i = p_i (dt_i - sum_j p_j dt_j)
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .random_tensor import RandomTensor, UncoveredError, rule

__all__ = ["softmax"]


def _standardised(
    mean: Tensor, var: Tensor, axes: tuple[int, ...], eps: float, centred: bool
) -> RandomTensor:
    count = math.prod(mean.shape[axis] for axis in axes)

    def average(t: Tensor) -> Tensor:
        return t.sum(axes, keepdim=True) / count

    shifted = mean - average(mean) if centred else mean
    lost = 1 - 1 / count if centred else 1.0  # of the variance, to the mean that is taken off
    scale = (average(shifted.square()) + lost * average(var) + eps).rsqrt()
    z = shifted * scale
    slope = average(z * z * var) / count  # Var mean(z dt)
    own = var + z.square() * (slope - 2 * var / count)
    if centred:
        own = own + average(var) / count - 2 * var / count + 2 * z * average(z * var) / count
    return RandomTensor(z, (own * scale.square()).clamp_min(0))


def _affine(x: Any, weight: Any, bias: Any) -> Any:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


@rule("layer_norm")
def layer_norm(
    x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5,
    cudnn_enable: bool = True,  # noqa: ARG001 - torch's signature
) -> Any:  # fmt: skip
    if not isinstance(x, RandomTensor):
        return _affine(F.layer_norm(x, normalized_shape, None, None, eps), weight, bias)
    axes = tuple(range(-len(tuple(normalized_shape)), 0))
    return _affine(_standardised(x.expected, x.variance, axes, eps, True), weight, bias)


@rule("rms_norm")
def rms_norm(x: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    if not isinstance(x, RandomTensor):
        return _affine(F.rms_norm(x, normalized_shape, None, eps), weight, None)
    axes = tuple(range(-len(tuple(normalized_shape)), 0))
    small = torch.finfo(x.expected.dtype).eps if eps is None else eps
    return _affine(_standardised(x.expected, x.variance, axes, small, False), weight, None)


@rule("group_norm")
def group_norm(
    x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:  # fmt: skip
    shape = x.shape
    by_channel = [-1, *[1] * (len(shape) - 2)]
    weight, bias = (None if t is None else t.reshape(by_channel) for t in (weight, bias))
    if not isinstance(x, RandomTensor):
        return _affine(F.group_norm(x, num_groups, None, None, eps), weight, bias)
    mean, var = (t.reshape(shape[0], num_groups, -1) for t in (x.expected, x.variance))
    return _affine(_standardised(mean, var, (-1,), eps, True).reshape(shape), weight, bias)


@rule("batch_norm")
def batch_norm(
    x: Any,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,  # noqa: ARG001 - torch's signature
    eps: float = 1e-5,
    cudnn_enabled: bool = True,  # noqa: ARG001 - torch's signature
) -> Any:
    if training or running_mean is None or running_var is None:
        raise UncoveredError("batch normalisation by the batch's own statistics")
    if isinstance(running_mean, RandomTensor) or isinstance(running_var, RandomTensor):
        raise UncoveredError("batch normalisation whose running statistics have a distribution")
    by_channel = [-1, *[1] * (x.dim() - 2)]
    scale = (running_var + eps).rsqrt()
    shifted = x - running_mean.view(by_channel)
    weight, bias = (None if t is None else t.view(by_channel) for t in (weight, bias))
    return _affine(shifted * scale.view(by_channel), weight, bias)


@rule("instance_norm")
def instance_norm(
    x: Any, running_mean: Tensor | None = None, running_var: Tensor | None = None, weight: Any = None,
    bias: Any = None, use_input_stats: bool = True,
    momentum: float = 0.1,  # noqa: ARG001 - torch's signature
    eps: float = 1e-5,
) -> Any:  # fmt: skip
    """Of a row's own statistics a group for each channel; of running ones batch normalisation."""
    if use_input_stats:
        return group_norm(x, x.shape[1], weight, bias, eps)
    return batch_norm(x, running_mean, running_var, weight, bias, eps=eps)


@rule("softmax")
def softmax(x: RandomTensor, dim: int = -1, _stacklevel: int = 3, dtype: Any = None) -> RandomTensor:
    """At the mean; the result's products with values keep to it, see ``products.matmul``."""
    if dim is None:
        raise UncoveredError("softmax without dim")
    p = F.softmax(x.expected, dim, dtype=dtype)
    found = RandomTensor(p, _proportions(p, x.variance, dim))
    found.proportions = dim in (-1, x.dim() - 1)
    return found


def _proportions(p: Tensor, var: Tensor, dim: int) -> Tensor:
    moved = (p.square() * var).sum(dim, keepdim=True)
    return p.square() * (var * (1 - 2 * p) + moved).clamp_min(0)
