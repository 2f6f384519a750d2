"""Rules of products with weights: linear layers, convolutions, lookups, and products of activations.

For independent entries of ``W (m, n)``, and ``x`` independent of ``W``:

    E y_i     = sum_j E W_ij E x_j
    Var y_i   = sum_j Var W_ij E x_j^2 + Var(sum_j E W_ij x_j)
    Cov(y_i, y_i') = Cov(sum_j E W_ij x_j, sum_j E W_i'j x_j)

The first part of the variance is noise, the second is shared by all outputs: ``E W`` times what ``x`` has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .random_tensor import RandomTensor, UncoveredError, averaged, expected_of, rule, variance_of

__all__ = ["Filtered", "Mapped", "convolve", "each", "linear", "matmul", "plus"]

_FEW = 32  # outputs whose pairs are one small matrix


@dataclass(frozen=True, eq=False)
class Mapped:
    """``M z`` over the last axis: ``weight (m, n)``, ``variance (..., n)`` of ``z``."""

    weight: Tensor
    variance: Tensor

    def spread(self) -> Tensor:
        return F.linear(self.variance, self.weight.square())

    def scaled(self, factor: Tensor | float) -> Mapped:
        """Its rows times numbers ``(m,)``, or times one."""
        return Mapped(_rows(self.weight, factor), self.variance)

    def covariance(self) -> Tensor:
        """``M diag(variance) M^T``, ``(..., m, m)``."""
        size = len(self.weight)
        if size > _FEW:
            return (self.weight * self.variance.unsqueeze(-2)) @ self.weight.mT
        rows, columns = torch.tril_indices(size, size, device=self.weight.device)
        entries = F.linear(self.variance, self.weight[rows] * self.weight[columns])  # (..., m (m + 1) / 2)
        place = torch.empty(size, size, dtype=torch.long, device=self.weight.device)
        place[rows, columns] = place[columns, rows] = torch.arange(len(rows), device=self.weight.device)
        return entries[..., place]


@dataclass(frozen=True, eq=False)
class Filtered:
    """``M z`` for a convolution: kernel ``weight``, ``variance (B, in, *space)`` of ``z``."""

    weight: Tensor
    variance: Tensor
    convolve: Callable[[Tensor, Tensor], Tensor]
    groups: int

    def spread(self) -> Tensor:
        return self.convolve(self.variance, self.weight.square())

    def scaled(self, factor: Tensor | float) -> Filtered:
        """Its channels times numbers ``(out,)``, or times one."""
        return Filtered(_rows(self.weight, factor), self.variance, self.convolve, self.groups)

    def mixed(self, mixing: Tensor) -> Filtered:
        """After a 1x1 convolution of as many groups, ``mixing (out, channels / groups)``."""
        kernels = self.weight.flatten(1).unflatten(0, (self.groups, -1))
        weight = (
            mixing.unflatten(0, (self.groups, -1)) @ kernels
        )  # (groups, out / groups, in / groups *kernel)
        shape = (len(mixing), *self.weight.shape[1:])
        return Filtered(weight.reshape(shape), self.variance, self.convolve, self.groups)


def _rows(weight: Tensor, factor: Tensor | float) -> Tensor:
    return weight * (factor.view(-1, *[1] * (weight.dim() - 1)) if isinstance(factor, Tensor) else factor)


def _second(x: Any) -> Tensor:
    """``E x^2``."""
    expected, variance = expected_of(x), variance_of(x)
    return expected.square() if variance is None else expected.square() + variance


def _check(weight: Any, what: str) -> None:
    if isinstance(weight, RandomTensor) and not weight.weight:
        raise UncoveredError(
            f"{what} whose weight is itself computed from parameters that have a distribution"
        )


def plus(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """The sum of two variances, of which ``None`` is 0."""
    return b if a is None else a if b is None else a + b


@rule("linear")
def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """``x @ weight.T + bias``."""
    if not any(isinstance(value, RandomTensor) for value in (x, weight, bias)):
        return F.linear(x, weight, bias)
    _check(weight, "a linear map")
    mean = expected_of(weight)
    expected = F.linear(expected_of(x), mean, expected_of(bias))
    variance, noise = variance_of(weight), variance_of(bias)
    if variance is not None:
        noise = F.linear(_second(x), variance, noise)
    elif noise is not None:
        noise = noise.expand_as(expected)
    shares: list[Mapped] = []
    if isinstance(x, RandomTensor):
        handed = all(isinstance(share, Mapped) for share in x.shares)
        own = x.noise if handed else x.variance
        shares += [Mapped(mean, own)] if own is not None else []
        if handed:
            shares += [Mapped(mean @ share.weight, share.variance) for share in x.shares]
    found = RandomTensor(expected, noise, shares)
    found.followed = True
    return found


@rule("matmul", "__matmul__", "mm", "bmm")
def matmul(x: Any, other: Any) -> Any:
    """``x @ other``: with a matrix of weights on either side, or of two activations."""
    flat = expected_of(other).dim() == 2 and expected_of(x).dim() >= 1
    if flat and (not isinstance(other, RandomTensor) or other.weight):
        return linear(x, other.mT)
    if isinstance(x, RandomTensor) and x.weight:
        if expected_of(x).dim() == expected_of(other).dim() == 2:
            return linear(other.mT, x).mT
        raise UncoveredError("a product with a batch of weight matrices")
    _check_activations(x, other)
    left, right = expected_of(x), expected_of(other)
    expected, v_left, v_right = left @ right, variance_of(x), variance_of(other)
    if getattr(x, "proportions", False) and v_right is not None:
        noise = averaged(v_right, lambda t: left @ t, lambda t: left.square() @ t)
    else:
        noise = None if v_right is None else left.square() @ v_right
    if v_left is not None:
        if getattr(x, "proportions", False):  # proportions sum to 1: a constant of all values is no part
            return RandomTensor(expected, plus(noise, _moved(v_left, left, right, v_right)))
        noise = plus(noise, v_left @ _second(other))
    return RandomTensor(expected, noise)


def _check_activations(*sides: Any) -> None:
    if any(isinstance(side, RandomTensor) and side.weight for side in sides):
        raise UncoveredError("a product of weights with each other")


def _moved(v_weights: Tensor, weights: Tensor, values: Tensor, v_values: Tensor | None) -> Tensor:
    """Variance of ``sum_s p_s v_s`` by its proportions ``p``: of ``sum_s dp_s (v_s - mean)``."""
    context = weights @ values
    squares = v_weights @ values.square() - 2 * context * (v_weights @ values)
    squares = squares + context.square() * v_weights.sum(-1, keepdim=True)
    return squares.clamp_min(0) + (0 if v_values is None else v_weights @ v_values)


@rule("addmm", "baddbmm")
def addmm(x: Any, mat1: Any, mat2: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    """``x + mat1 @ mat2``."""
    if beta != 1 or alpha != 1:
        raise UncoveredError("addmm with other factors than 1")
    return torch.add(matmul(mat1, mat2), x)


def convolve(
    function: Callable[..., Tensor], x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any,
    groups: int,
) -> Any:  # fmt: skip
    """A convolution without overlap of its noise: outputs at two places count as independent."""
    if not any(isinstance(value, RandomTensor) for value in (x, weight, bias)):
        return function(x, weight, bias, stride, padding, dilation, groups)
    _check(weight, "a convolution")

    def with_kernel(t: Tensor, kernel: Tensor) -> Tensor:
        return function(t, kernel, None, stride, padding, dilation, groups)

    mean, variance = expected_of(weight), variance_of(weight)
    expected = function(expected_of(x), mean, expected_of(bias), stride, padding, dilation, groups)
    noise = None if variance is None else with_kernel(_second(x), variance)
    if variance_of(bias) is not None:
        spread = variance_of(bias).view(-1, *[1] * (mean.dim() - 2))  # pyright: ignore[reportOptionalMemberAccess]
        noise = plus(noise, spread.expand_as(expected))
    shares: list[Filtered] = []
    if isinstance(x, RandomTensor):
        pointwise = mean[0, 0].numel() == 1 and not isinstance(padding, str)
        pointwise = pointwise and all(n == 1 for n in each(stride)) and not any(each(padding))
        handed = pointwise and all(isinstance(s, Filtered) and s.groups == groups for s in x.shares)
        own = x.noise if handed else x.variance
        shares += [Filtered(mean, own, with_kernel, groups)] if own is not None else []
        if handed:
            shares += [share.mixed(mean.flatten(1)) for share in x.shares]
    return RandomTensor(expected, noise, shares)


def each(sizes: Any, dims: int = 1) -> tuple[int, ...]:
    """Torch's sizes by axis, of which one number is the same for all."""
    return tuple(sizes) if isinstance(sizes, tuple | list) else (sizes,) * dims


def _register(name: str, function: Callable[..., Tensor]) -> None:
    def run(
        x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
        groups: int = 1,
    ) -> Any:  # fmt: skip
        return convolve(function, x, weight, bias, stride, padding, dilation, groups)

    rule(name)(run)


for _name, _function in (("conv1d", F.conv1d), ("conv2d", F.conv2d), ("conv3d", F.conv3d)):
    _register(_name, _function)


@rule("embedding")
def embedding(
    x: Tensor,
    weight: RandomTensor,
    padding_idx: int | None = None,  # noqa: ARG001 - torch's signature
    max_norm: float | None = None,
    norm_type: float = 2.0,  # noqa: ARG001 - torch's signature
    scale_grad_by_freq: bool = False,  # noqa: ARG001 - torch's signature
    sparse: bool = False,  # noqa: ARG001 - torch's signature
) -> RandomTensor:
    """Rows of a table. Two lookups of one token count as independent."""
    if max_norm is not None:
        raise UncoveredError("an embedding with max_norm")
    return RandomTensor(F.embedding(x, weight.expected), F.embedding(x, weight.variance))
