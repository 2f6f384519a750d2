"""What a network returns, reduced to one tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

__all__ = ["call", "reduce_output"]


def call(network: nn.Module, x: Any) -> Tensor:
    """The network's output as one tensor: ``logits`` of a dict or model output, a tuple's first entry."""
    output = network(**x) if isinstance(x, Mapping) else network(*x) if isinstance(x, tuple) else network(x)
    return reduce_output(output)


def reduce_output(output: Any) -> Tensor:
    """One tensor out of whatever a network returns."""
    if isinstance(output, Tensor):
        return output
    if hasattr(output, "logits"):
        return output.logits
    if isinstance(output, Mapping) and "logits" in output:
        return output["logits"]
    if isinstance(output, tuple | list) and output and isinstance(output[0], Tensor):
        return output[0]
    raise TypeError(
        f"the network must return a tensor, an object with .logits, or a tuple that begins with a tensor; "
        f"got {type(output).__name__}"
    )
