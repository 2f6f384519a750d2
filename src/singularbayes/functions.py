"""The functions that draws stand for: one network, many weight vectors, in the quickest way that its modules allow.

Three ways, chosen by module type, never by trying (a refused ``vmap`` has already written BatchNorm's counter):

* *stacked*: a plain chain of layers that accept a leading draws axis (ours do): a few batched matrix products;
* *vmap* of ``functional_call``: any other network whose modules have batching rules;
* *loop*: recurrent layers and Hugging Face models.

They agree to 1e-5, not bitwise.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from .nn.linear import LowRankLinear
from .nn.masks import MaskedDropout
from .parameters import Layout

__all__ = ["Way", "call", "evaluate", "way_for"]

_ELEMENTWISE = (
    nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Identity,
    nn.Hardtanh, nn.ReLU6, nn.Softsign,
)  # fmt: skip
_DROPOUT = (nn.Dropout, nn.AlphaDropout)
_LOOPED = (nn.RNNBase, nn.RNNCellBase)


class Way(StrEnum):
    """How the draws of a network are evaluated."""

    STACKED = "stacked"
    VMAP = "vmap"
    LOOP = "loop"


def way_for(network: nn.Module) -> Way:
    """The way for a network in eval mode, by the types of its modules."""
    if _is_chain(network):
        return Way.STACKED
    for module in network.modules():
        if isinstance(module, _LOOPED) or any(base.__name__ == "PreTrainedModel" for base in type(module).__mro__):
            return Way.LOOP
    return Way.VMAP


def _is_chain(network: nn.Module) -> bool:
    """A (nested) ``nn.Sequential`` of linear layers, elementwise functions and masks, without hooks."""
    allowed = (nn.Sequential, nn.Linear, LowRankLinear, MaskedDropout, *_ELEMENTWISE, *_DROPOUT)
    return all(
        type(module) in allowed and not module._forward_pre_hooks and not module._forward_hooks and not hasattr(module, "parametrizations")
        for module in network.modules()
    ) and isinstance(network, nn.Sequential | nn.Linear | LowRankLinear)


def call(network: nn.Module, x: Any) -> Tensor:
    """The network's output as one tensor: a dict's or model output's ``logits``, a tuple's first entry."""
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
    raise TypeError(f"the network must return a tensor, an object with .logits, or a tuple that begins with a tensor; "
                    f"got {type(output).__name__}")  # fmt: skip


@contextlib.contextmanager
def _plain_attention(network: nn.Module) -> Iterator[None]:
    """Attention by the plain kernel, fast path off: the only way that batches over draws and differentiates forward."""
    if not any("attention" in type(module).__name__.lower() for module in network.modules()):
        yield
        return
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def evaluate(network: nn.Module, layout: Layout, draws: Tensor, x: Any, way: Way) -> Tensor:
    """Outputs ``(S, B, *event)`` of ``S`` draws ``(S, D)`` on one batch ``x``.

    The network's own tensors are read where the layout has none (frozen parameters, other buffers); its buffers are
    passed as clones, so that nothing is written to it.
    """
    if way is Way.STACKED and isinstance(x, Tensor) and x.dim() == 2:  # a third axis is read as that of the draws
        views = layout.views(draws)
        named = {alias: views[slot.name] for slot in layout.slots if slot.name in views for alias in slot.aliases}
        return _stacked(network, "", named, x)
    spare = {name: buffer.clone() for name, buffer in network.named_buffers()}
    with _plain_attention(network):
        if way is Way.LOOP:
            rows = [reduce_output(_functional(network, {**spare, **layout.views(w)}, x)) for w in draws]
            return torch.stack(rows)

        def one(w: Tensor) -> Tensor:
            return reduce_output(_functional(network, {**spare, **layout.views(w)}, x))

        return vmap(one, randomness="error")(draws)


def _functional(network: nn.Module, tensors: dict[str, Tensor], x: Any) -> Any:
    if isinstance(x, Mapping):
        return functional_call(network, tensors, (), dict(x))
    return functional_call(network, tensors, x if isinstance(x, tuple) else (x,))


def _stacked(module: nn.Module, path: str, tensors: dict[str, Tensor], x: Tensor) -> Tensor:
    """A chain with a leading draws axis: every tensor ``(S, ...)``, the input shared or ``(S, B, ...)``."""
    prefix = f"{path}." if path else ""
    if isinstance(module, nn.Sequential):
        for name, child in module._modules.items():  # named_children() leaves out a layer's second use
            assert child is not None
            x = _stacked(child, prefix + name, tensors, x)
        return x
    if isinstance(module, LowRankLinear):
        first, second = _own(module, prefix, tensors, "B"), _own(module, prefix, tensors, "A")
        return _affine(_times(x, first, transpose=False), second, _own(module, prefix, tensors, "bias"))
    if isinstance(module, nn.Linear):
        return _affine(x, _own(module, prefix, tensors, "weight"), _own(module, prefix, tensors, "bias"))
    if isinstance(module, MaskedDropout):
        mask = _own(module, prefix, tensors, "mask")
        assert mask is not None
        return x * (mask.unsqueeze(1) if prefix + "mask" in tensors else mask)
    if x.dim() == 3 and isinstance(module, nn.ReLU):
        return F.relu(x, inplace=not torch.is_grad_enabled())
    return module(x)


def _own(module: nn.Module, prefix: str, tensors: dict[str, Tensor], leaf: str) -> Tensor | None:
    return tensors[prefix + leaf] if prefix + leaf in tensors else getattr(module, leaf)


def _times(x: Tensor, factor: Tensor | None, *, transpose: bool) -> Tensor:
    assert factor is not None
    return torch.matmul(x, factor.mT if transpose else factor)


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """``x W^T + b`` for a weight ``(out, in)`` or ``(S, out, in)`` and an input ``(B, in)`` or ``(S, B, in)``."""
    assert weight is not None
    if weight.dim() == 2 and (bias is None or bias.dim() == 1):
        return F.linear(x, weight, bias)
    if x.dim() == 3 and weight.dim() == 3 and bias is not None:
        return torch.baddbmm(bias.unsqueeze(-2), x, weight.mT)
    product = _times(x, weight, transpose=True)
    return product if bias is None else product + bias.unsqueeze(-2)
