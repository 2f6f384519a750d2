"""Rules of averages over positions, and of their largest value.

Positions of an image or a sequence have their weights in common, so their noise is correlated. How much is
not followed; ``Propagation(correlation=)`` says what is assumed, 1 by default: then the standard deviation of
an average is never too small for given standard deviations of its parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .activations import larger
from .products import each
from .random_tensor import RandomTensor, UncoveredError, averaged, correlation, rule

__all__: list[str] = []


def _axes(dim: Any, dims: int) -> tuple[int, ...]:
    given = range(dims) if dim is None else (dim,) if isinstance(dim, int) else dim
    return tuple(axis % dims for axis in given)


@rule("mean")
def mean(
    x: RandomTensor, dim: Any = None, keepdim: bool = False, *, axis: Any = None
) -> RandomTensor:  # fmt: skip
    axes = _axes(dim if axis is None else axis, x.dim())
    count = math.prod(x.shape[i] for i in axes)
    return total(x, axes, keepdim) * (1 / count)


@rule("sum")
def total(
    x: RandomTensor, dim: Any = None, keepdim: bool = False, *, axis: Any = None
) -> RandomTensor:  # fmt: skip
    axes = _axes(dim if axis is None else axis, x.dim())

    def add(t: Tensor) -> Tensor:
        return t.sum(axes, keepdim=keepdim)

    return RandomTensor(add(x.expected), averaged(x.variance, add, add))


def _register_average(name: str, function: Callable[..., Tensor]) -> None:
    def run(x: RandomTensor, *args: Any, **kwargs: Any) -> RandomTensor:
        def pool(t: Tensor) -> Tensor:
            return function(t, *args, **kwargs)

        noise = averaged(x.variance, pool, lambda t: _squares(t, pool))
        return RandomTensor(pool(x.expected), noise)

    rule(name)(run)


def _squares(t: Tensor, pool: Callable[[Tensor], Tensor]) -> Tensor:
    """``sum c_p^2 t_p`` of a pooling with ``sum c_p t_p``: its matrix for one channel, squared."""
    space = t.shape[2:] if t.dim() > 2 else t.shape[1:]
    count = math.prod(space)
    basis = torch.eye(count, dtype=t.dtype, device=t.device).view(1, count, *space)
    matrix = pool(basis)  # (1, positions, *pooled)
    pooled = matrix.shape[2:]
    found = t.reshape(*t.shape[: t.dim() - len(space)], count) @ matrix.view(count, -1).square()
    return found.view(*found.shape[:-1], *pooled)


for _function in (
    F.avg_pool1d, F.avg_pool2d, F.avg_pool3d, F.adaptive_avg_pool1d, F.adaptive_avg_pool2d,
    F.adaptive_avg_pool3d,
):  # fmt: skip
    _register_average(_function.__name__, _function)


def _register_max(name: str, dims: int) -> None:
    def run(
        x: RandomTensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
        ceil_mode: bool = False, return_indices: bool = False,
    ) -> RandomTensor:  # fmt: skip
        sizes, steps, edges = (each(n, dims) for n in (kernel_size, stride or kernel_size, padding))
        if ceil_mode or return_indices or any(n != 1 for n in each(dilation, dims)):
            raise UncoveredError(f"{name} with dilation, ceil_mode or return_indices")
        mean, var = x.expected, x.variance
        if any(edges):
            around = [n for edge in reversed(edges) for n in (edge, edge)]
            floor = float(mean.amin() - 40 * var.clamp_min(0).amax().sqrt() - 1)
            mean, var = F.pad(mean, around, value=floor), F.pad(var, around)
        for i, (size, step) in enumerate(zip(sizes, steps, strict=True)):
            mean, var = (t.unfold(t.dim() - dims + i, size, step).movedim(-1, 0) for t in (mean, var))
            parts = list(zip(mean.unbind(0), var.unbind(0), strict=True))
            while len(parts) > 1:
                pairs = zip(parts[::2], parts[1::2], strict=False)
                odd = parts[-1:] if len(parts) % 2 else []
                parts = [larger(a, b, correlation()) for a, b in pairs] + odd
            mean, var = parts[0]
        return RandomTensor(mean, var)

    rule(name)(run)


for _dims in (1, 2, 3):
    _register_max(f"max_pool{_dims}d", _dims)
