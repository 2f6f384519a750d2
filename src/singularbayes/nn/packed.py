"""Several low-rank layers of one input as one: ``x [B1 | B2 | ...]`` is one product, as is its gradient."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .linear import LowRankLinear

__all__ = ["packed"]


def packed(layers: Sequence[nn.Module], x: Tensor) -> list[Tensor]:
    """``[layer(x) for layer in layers]``, to rounding, with the first factors' products done together.

    Layers that are no longer plain (another type, hooks) are called one by one, so that nothing put in their
    place is passed over.
    """
    plain = [layer for layer in layers if isinstance(layer, LowRankLinear) and _is_plain(layer)]
    if len(layers) == 1 or len(plain) < len(layers):
        return [layer(x) for layer in layers]
    factors = [layer.B if layer.s is None else layer.B * layer.s for layer in plain]
    rows = x.reshape(-1, x.shape[-1])
    reduced = (rows @ torch.cat(factors, 1)).split([layer.rank for layer in plain], 1)
    outputs = (F.linear(h, layer.A, layer.bias) for h, layer in zip(reduced, plain, strict=True))
    return [y.view(*x.shape[:-1], y.shape[-1]) for y in outputs]


def _is_plain(layer: LowRankLinear) -> bool:
    hooks = (
        layer._forward_hooks,  # noqa: SLF001 - torch has no public way
        layer._forward_pre_hooks,  # noqa: SLF001
        layer._backward_hooks,  # noqa: SLF001
        layer._backward_pre_hooks,  # noqa: SLF001
    )
    return type(layer) is LowRankLinear and not any(hooks) and "forward" not in vars(layer)
