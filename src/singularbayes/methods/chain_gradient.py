"""Value and gradient of a plain chain of layers, written out: no graph, the same memory for every call.

Activations are ``(C, features, B)``. Two rules save passes over them:

* ``tanh(z) = 2 s - 1`` with ``s = sigmoid(2 z)``, quicker than torch's own on CPU. Only ``s`` is kept;
  the 2 and the -1 are taken up by the next product, ``W (2 s - 1) + b = 2 W s + (b - W 1)``.
* A constant factor of all gradients, the 4 of ``d tanh / dz = 4 s (1 - s)``, is a number beside them until
  they reach a parameter.

With ``d`` the gradient in a product's output, ``h = alpha a + beta`` its input and ``c`` the number beside:

    dW = c alpha d a^T + beta c (sum d) 1^T,    db = c sum d,    the gradient in h is W^T d beside c

The first layer's input is one for all chains: a single matrix product.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..nn.linear import LowRankLinear
from ..parameters import Layout, Slot
from ..stacked import Workspace, flat_chain, is_chain

__all__ = ["ChainGradient", "is_plain"]

_SKIPPED = (nn.Identity, nn.Dropout, nn.AlphaDropout)
_PARAMETRIZED = (nn.Linear, LowRankLinear)


def is_plain(network: nn.Module) -> bool:
    """A chain of (low-rank) linear layers and elementwise functions, without masks or rank-one layers."""
    return is_chain(network) and all(
        isinstance(module, _PARAMETRIZED) or not list(module.buffers()) + list(module.parameters())
        for module in network.modules()
        if not isinstance(module, nn.Sequential)
    )


@dataclass
class _Signal:
    """What flows forward, ``alpha * values + beta``: ``(C, f, B)``, or ``(f, B)`` for a shared input."""

    values: Tensor
    alpha: float = 1.0
    beta: float = 0.0

    @property
    def shared(self) -> bool:
        return self.values.dim() == 2

    def plain(self) -> Tensor:
        """``h`` itself."""
        if self.alpha == 1 and self.beta == 0:
            return self.values
        return self.values.mul(self.alpha).add_(self.beta)


@dataclass
class _Slope:
    """What flows back: the gradient in ``h`` is ``factor * values``, ``(C, f, B)``."""

    values: Tensor
    factor: float = 1.0


class _Call:
    """One evaluation: tensors by name ``(C, ...)``, and the gradients found so far."""

    def __init__(self, tensors: Mapping[str, Tensor], wanted: frozenset[str], room: Workspace) -> None:
        self.tensors, self.wanted, self.room = tensors, wanted, room
        self.found: dict[str, Tensor] = {}

    def add(self, name: str, gradient: Tensor) -> None:
        """One more place of a parameter; a tied one has several."""
        before = self.found.get(name)
        self.found[name] = gradient if before is None else before.add_(gradient)


class _Product:
    """``W h + b``, with ``W`` a weight ``(o, i)`` or a factor ``B (i, o)``, times its diagonal ``s``."""

    def __init__(self, key: str, weight: str, bias: str | None, scale: str | None, factor: bool) -> None:
        self.key, self.weight, self.bias, self.scale, self.factor = key, weight, bias, scale, factor
        self.gain = 1.0  # 2 before a tanh

    @property
    def names(self) -> set[str]:
        return {name for name in (self.weight, self.bias, self.scale) if name is not None}

    def matrix(self, call: _Call) -> Float[Tensor, "C o i"]:
        weight = call.tensors[self.weight]
        if self.scale is not None:
            weight = weight * call.tensors[self.scale].unsqueeze(1)
        return weight.mT if self.factor else weight

    def forward(self, call: _Call, signal: _Signal) -> tuple[_Signal, Any]:
        W = self.matrix(call)
        chains, o, i = W.shape
        bias = None if self.bias is None else call.tensors[self.bias]
        out = call.room.take(self.key, (chains, o, signal.values.shape[-1]), signal.values)
        gain, values = self.gain, signal.values
        if signal.shared:
            one = out.view(chains * o, -1)
            stacked = W.reshape(chains * o, i)
            if bias is None:
                torch.addmm(one, stacked, values, beta=0, alpha=gain, out=one)
            else:
                torch.addmm(bias.reshape(chains * o, 1), stacked, values, beta=gain, alpha=gain, out=one)
            return _Signal(out), (signal, W)
        if signal.beta != 0:
            shift = W.sum(2)
            shift = shift.mul_(signal.beta) if bias is None else torch.add(bias, shift, alpha=signal.beta)
            bias = shift
        if bias is None:
            torch.baddbmm(out, W, values, beta=0, alpha=gain * signal.alpha, out=out)
        else:
            bias = bias.unsqueeze(2)
            torch.baddbmm(bias, W, values, beta=gain, alpha=gain * signal.alpha, out=out)
        return _Signal(out), (signal, W)

    def backward(self, call: _Call, kept: Any, slope: _Slope, deeper: bool) -> _Slope:
        (signal, W), d, c = kept, slope.values, slope.factor
        chains, o, batch = d.shape
        of_weight = self.weight in call.wanted or self.scale in call.wanted
        of_bias = self.bias is not None and self.bias in call.wanted
        shifted = signal.beta != 0 and of_weight
        total = d.sum(2).mul_(c) if of_bias or shifted else None
        if of_weight:
            if signal.shared:
                dW = torch.mm(d.reshape(chains * o, batch), signal.values.T).view(chains, o, -1)
                dW = dW if c == 1 else dW.mul_(c)
            else:
                dW = d.new_empty(chains, o, signal.values.shape[1])
                a, alpha = signal.values.mT, c * signal.alpha
                if shifted and total is not None:
                    torch.baddbmm(total.unsqueeze(2), d, a, beta=signal.beta, alpha=alpha, out=dW)
                else:
                    torch.baddbmm(dW, d, a, beta=0, alpha=alpha, out=dW)
            self._keep(call, dW)
        if of_bias and total is not None and self.bias is not None:
            call.add(self.bias, total)
        if not deeper:
            return slope
        back = call.room.next((chains, W.shape[2], batch), d)
        if o == 1:  # an outer product: the batched product is slow at it
            torch.mul(W.mT, d, out=back)
        else:
            torch.bmm(W.mT, d, out=back)
        return _Slope(back, c)

    def _keep(self, call: _Call, dW: Float[Tensor, "C o i"]) -> None:
        if not self.factor:
            call.add(self.weight, dW)
            return
        own = dW.mT  # that of B * s
        if self.scale is None:
            call.add(self.weight, own)
            return
        s, B = call.tensors[self.scale].unsqueeze(1), call.tensors[self.weight]
        if self.weight in call.wanted:
            call.add(self.weight, own * s)
        if self.scale in call.wanted:
            call.add(self.scale, (own * B).sum(1))


class _Sigmoid:
    """In the memory of the product before; a tanh is twice the sigmoid of twice its input, less 1."""

    names: frozenset[str] = frozenset()

    def __init__(self, tanh: bool) -> None:
        self.alpha, self.beta, self.factor = (2.0, -1.0, 4.0) if tanh else (1.0, 0.0, 1.0)

    def forward(self, call: _Call, signal: _Signal) -> tuple[_Signal, Any]:
        s = signal.values.sigmoid_()
        return _Signal(s, self.alpha, self.beta), s

    def backward(self, call: _Call, kept: Any, slope: _Slope, deeper: bool) -> _Slope:
        torch.ops.aten.sigmoid_backward.grad_input(slope.values, kept, grad_input=slope.values)
        return _Slope(slope.values, slope.factor * self.factor)


class _Relu:
    """In the memory of the product before."""

    names: frozenset[str] = frozenset()

    def forward(self, call: _Call, signal: _Signal) -> tuple[_Signal, Any]:
        h = signal.values.relu_()
        return _Signal(h), h

    def backward(self, call: _Call, kept: Any, slope: _Slope, deeper: bool) -> _Slope:
        torch.ops.aten.threshold_backward.grad_input(slope.values, kept, 0, grad_input=slope.values)
        return slope


class _Elementwise:
    """Any other function, by a graph of its own."""

    names: frozenset[str] = frozenset()

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def forward(self, call: _Call, signal: _Signal) -> tuple[_Signal, Any]:
        with torch.enable_grad():
            leaf = signal.plain().detach().requires_grad_()
            # a module that works in place must not write into the leaf
            h = self.module(leaf.clone() if getattr(self.module, "inplace", False) else leaf)
        return _Signal(h.detach()), (leaf, h)

    def backward(self, call: _Call, kept: Any, slope: _Slope, deeper: bool) -> _Slope:
        leaf, h = kept
        (found,) = torch.autograd.grad(h, leaf, slope.values)
        return _Slope(found, slope.factor)


_Item = _Product | _Sigmoid | _Relu | _Elementwise


def _items(network: nn.Module) -> list[_Item]:
    """The chain's parts, in order; the closed activations are those that follow a product."""
    items: list[_Item] = []
    for path, module in flat_chain(network):
        before = items[-1] if items else None
        after_product = isinstance(before, _Product)
        if isinstance(module, _SKIPPED):
            continue
        if isinstance(module, LowRankLinear):
            scale = None if module.s is None else f"{path}s"
            items.append(_Product(f"{path}B", f"{path}B", None, scale, factor=True))
            bias = None if module.bias is None else f"{path}bias"
            items.append(_Product(f"{path}A", f"{path}A", bias, None, factor=False))
        elif isinstance(module, nn.Linear):
            bias = None if module.bias is None else f"{path}bias"
            items.append(_Product(f"{path}weight", f"{path}weight", bias, None, factor=False))
        elif isinstance(module, nn.Tanh | nn.Sigmoid) and isinstance(before, _Product):
            tanh = isinstance(module, nn.Tanh)
            before.gain = 2.0 if tanh else 1.0
            items.append(_Sigmoid(tanh))
        elif isinstance(module, nn.ReLU) and after_product:
            items.append(_Relu())
        else:
            items.append(_Elementwise(module))
    return items


class ChainGradient:
    """An ``OutputGradients`` of chains that :func:`is_plain` accepts, in float32 or float64.

    What it returns is the caller's own; only the memory in between is used again, so that a pullback must be
    called before the next outputs are asked for.

    Args:
        network: in eval mode, a private copy.
        layout: of the rows.
        slots: whose gradient is wanted.
    """

    def __init__(self, network: nn.Module, layout: Layout, slots: Sequence[Slot]) -> None:
        if not is_plain(network):
            raise ValueError("the network is not a plain chain of linear layers and elementwise functions")
        self.slots, self.items, self.room = tuple(slots), _items(network), Workspace()
        self.wanted = frozenset(slot.name for slot in slots)
        first = {name: slot.name for slot in layout.slots for name in slot.aliases}
        for item in self.items:
            if isinstance(item, _Product):
                item.weight = first.get(item.weight, item.weight)
                item.bias = item.bias and first.get(item.bias, item.bias)
                item.scale = item.scale and first.get(item.scale, item.scale)
        used = set().union(*(item.names for item in self.items))
        places = dict(network.named_parameters(remove_duplicate=False))
        places |= dict(network.named_buffers(remove_duplicate=False))  # a bias may be one
        self.fixed = {name: places[name].detach() for name in used if name not in first}
        self.drawn = [slot for slot in layout.slots if slot.name in used]
        lacks = [slot.name for slot in slots if slot.name not in used]
        if lacks:
            raise ValueError(f"{lacks[0]} has no place in the chain; its gradient would be 0")
        self.last = min(i for i, item in enumerate(self.items) if item.names & self.wanted)
        self.turn = itertools.count()
        self.now = next(self.turn)

    def __call__(
        self, rows: Float[Tensor, "C D"], x: Float[Tensor, "B f"]
    ) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """See ``OutputGradients``."""
        with torch.inference_mode(False), torch.no_grad():
            chains = len(rows)
            tensors = {name: value.expand(chains, *value.shape) for name, value in self.fixed.items()}
            for slot in self.drawn:
                tensors[slot.name] = rows[:, slot.start : slot.stop].view(chains, *slot.shape)
            call = _Call(tensors, self.wanted, self.room)
            signal, kept = _Signal(x.T), []
            for item in self.items:
                signal, own = item.forward(call, signal)
                kept.append(own)
            outputs = signal.plain().mT.clone(memory_format=torch.contiguous_format)
        self.now = ticket = next(self.turn)

        def pullback(gradient: Tensor) -> Tensor:
            if self.now != ticket:
                raise RuntimeError(
                    "the memory of these outputs has been used again; call a pullback once, at once"
                )
            self.now = next(self.turn)
            with torch.inference_mode(False), torch.no_grad():
                values = gradient.reshape(chains, len(x), -1).mT
                ends_in_product = isinstance(self.items[-1], _Product)
                slope = _Slope(values if ends_in_product else values.clone())
                for number in range(len(self.items) - 1, self.last - 1, -1):
                    slope = self.items[number].backward(call, kept[number], slope, number > self.last)
                return torch.cat([call.found[slot.name].reshape(chains, -1) for slot in self.slots], 1)

        return outputs, pullback

    def bytes_per_row(self, rows: Float[Tensor, "1 D"], x: Tensor) -> int:
        """Activations, and the two gradients that pass between layers."""
        with torch.no_grad():
            signal, widths = _Signal(x[:1].T), []
            tensors = {name: value.unsqueeze(0) for name, value in self.fixed.items()}
            for slot in self.drawn:
                tensors[slot.name] = rows[:, slot.start : slot.stop].view(1, *slot.shape)
            call = _Call(tensors, self.wanted, Workspace())
            for item in self.items:
                signal, _ = item.forward(call, signal)
                widths.append(signal.values.shape[-2])
        return (sum(widths) + 2 * max(widths)) * rows.element_size()
