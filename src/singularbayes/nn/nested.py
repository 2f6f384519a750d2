"""torch's nested path of encoders: in eval mode without gradients it leaves padding out, and gives zeros.

An encoder takes it where its first attention layer has a dense weight, so that a network, its low-rank copy
and the copy merged again would differ at padded positions, which matters to what pools over all of them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import cast

from torch import nn

from .attention import LowRankMultiheadAttention

__all__ = ["keep_off", "nested_encoders", "switch_off"]


def nested_encoders(network: nn.Module, layers: Collection[int]) -> tuple[str, ...]:
    """Names of the encoders that have the nested path on and hold one of these layers (identities)."""
    return tuple(
        name
        for name, module in network.named_modules()
        if isinstance(module, nn.TransformerEncoder)
        and getattr(module, "use_nested_tensor", False)
        and any(id(part) in layers for part in module.modules())
    )


def switch_off(encoder: nn.Module) -> None:
    """The same function with gradients and without, in train mode (no dropout) and in eval mode."""
    encoder.enable_nested_tensor = encoder.use_nested_tensor = False  # type: ignore[assignment]


def keep_off(network: nn.Module) -> None:
    """Switch it off where a low-rank attention layer keeps it off now, and a stock one would not."""
    for module in network.modules():
        if isinstance(module, nn.TransformerEncoder):
            first = next(iter(cast(nn.ModuleList, module.layers)), None)
            if isinstance(getattr(first, "self_attn", None), LowRankMultiheadAttention):
                switch_off(module)
