"""Rules of whole modules, where their forward pass hides a product that has exact moments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import nn

from ..nn.attention import LowRankMultiheadAttention
from ..nn.convolution import LowRankConv
from ..nn.linear import LowRankLinear
from . import attention
from .products import convolve, linear
from .random_tensor import RandomTensor

__all__ = ["MODULES", "rule_of"]


def low_rank_linear(layer: LowRankLinear, x: Any) -> Any:
    """``A (s * (B^T x))``: entries of the product share the factors, see ``random_tensor``."""
    h = linear(x, layer.B.mT)
    return linear(h if layer.s is None else h * layer.s, layer.A, layer.bias)


def low_rank_convolution(layer: LowRankConv, x: Any) -> Any:
    """The same with spatial filters ``B``, which all groups share."""
    padding, space = layer.padding, [1] * len(layer.kernel_size)
    if layer.padding_mode != "zeros":
        x, padding = F.pad(x, layer._edges(), mode=layer.padding_mode), 0  # noqa: SLF001 - the layer's own rule
    b, groups, function = layer.B, layer.groups, layer.convolve
    if groups > 1:
        repeats = [groups, *[1] * (b.dim() - 1)]
        if isinstance(b, RandomTensor):  # copies of a filter meet different channels only: no output has two
            b = RandomTensor(b.expected.repeat(repeats), b.variance.repeat(repeats), weight=True)
        else:
            b = b.repeat(repeats)
    h = convolve(function, x, b, None, layer.stride, padding, layer.dilation, groups)
    if layer.s is not None:
        s = layer.s if groups == 1 else layer.s.repeat(groups)
        h = h * s.view(-1, *space)
    return convolve(function, h, layer.A.view(*layer.A.shape, *space), layer.bias, 1, 0, 1, groups)


MODULES: dict[type[nn.Module], Callable[..., Any]] = {
    LowRankLinear: low_rank_linear,
    LowRankConv: low_rank_convolution,
    nn.MultiheadAttention: attention.stock,
    LowRankMultiheadAttention: attention.stock,
}


def rule_of(module: nn.Module) -> Callable[..., Any] | None:
    """The rule of a module; ``None`` where its own forward pass is run, as for subclasses that have one."""
    own = type(module).forward
    return next(
        (found for kind, found in MODULES.items() if isinstance(module, kind) and own is kind.forward), None
    )
