"""Outputs of many weight vectors on one batch, and the pullback of a gradient in them to the weights.

    outputs (C, B, *event),    dL/dw_c = (d outputs_c / d w_c)^T  dL/d outputs_c

Chains of a sampler do not touch each other, so one backward pass gives every chain its own gradient. The way
to the outputs is chosen by module type (:func:`.functions.way_for`): batched products for plain chains of
layers, ``vmap`` where all modules have batching rules, else a loop over the weight vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import vmap

from ..data import batch_size_of, take
from ..functions import Way, outputs_at, way_for
from ..parameters import Layout, Slot
from ..stacked import differentiable_chain
from .chain_gradient import ChainGradient, is_plain

__all__ = ["Autograd", "OutputGradients", "Pullback", "gradients_for"]

_WIDE_ENOUGH = {torch.float32, torch.float64}

#: Takes ``dL/d outputs (C, B, *event)``, gives ``dL/dw (C, n)``; called once.
Pullback = Callable[[Tensor], Tensor]


@runtime_checkable
class OutputGradients(Protocol):
    """What :class:`.network_density.NetworkDensity` needs of a network."""

    def __call__(self, rows: Float[Tensor, "C D"], x: Any) -> tuple[Tensor, Pullback]:
        """Outputs ``(C, B, *event)`` without a graph, and their pullback.

        The pullback's ``n`` columns are the entries of the slots that were asked for, in their order.
        """
        ...

    def bytes_per_row(self, rows: Float[Tensor, "1 D"], x: Any) -> int:
        """Memory that one chain needs for each row of data, seen on a batch ``x``."""
        ...


def gradients_for(network: nn.Module, layout: Layout, slots: Sequence[Slot], x: Any) -> OutputGradients:
    """The quickest way for a network, by the types of its modules and the form of its inputs.

    Args:
        network: in eval mode, a private copy.
        layout: of the rows.
        slots: whose gradient is wanted.
        x: some rows of the inputs.
    """
    rows_of_features = isinstance(x, Tensor) and x.dim() == 2
    wide = _WIDE_ENOUGH.issuperset(p.dtype for p in network.parameters())
    if rows_of_features and wide and is_plain(network):
        return ChainGradient(network, layout, slots)
    return Autograd(network, layout, slots)


class Autograd:
    """By torch.autograd. Every slot is a leaf of its own: slices of one vector would pull back by padding.

    Args:
        network: in eval mode, a private copy.
        layout: of the rows.
        slots: whose gradient is wanted.
    """

    def __init__(self, network: nn.Module, layout: Layout, slots: Sequence[Slot]) -> None:
        self.network, self.layout, self.slots = network, layout, tuple(slots)
        self.way = way_for(network)

    def __call__(self, rows: Float[Tensor, "C D"], x: Any) -> tuple[Tensor, Pullback]:
        """See ``OutputGradients``."""
        views = self.layout.views(rows.detach())
        recurrent = torch.backends.cudnn.flags(enabled=False)  # its kernels differentiate in train mode
        with torch.enable_grad(), recurrent:
            if self.way is Way.LOOP:
                singles = [{name: view[c] for name, view in views.items()} for c in range(len(rows))]
                leaves = [self._leaves(single) for single in singles]
                parts = [
                    outputs_at(self.network, self.layout, single | own, x)
                    for single, own in zip(singles, leaves, strict=True)
                ]
                outputs = torch.stack(parts)
            else:
                leaves = [self._leaves(views)]
                outputs = self._together(views | leaves[0], x)

        if not outputs.requires_grad:
            names = ", ".join(slot.name for slot in self.slots[:3])
            raise ValueError(
                f"the network's output has no gradient in {names}: its forward pass does not use them, or "
                f"detaches them (torch.no_grad, .detach(), .data, .item())"
            )

        def pullback(gradient: Tensor) -> Tensor:
            wanted = [own[slot.name] for own in leaves for slot in self.slots]
            found = torch.autograd.grad(outputs, wanted, gradient, allow_unused=True)
            dense = [torch.zeros_like(w) if g is None else g for w, g in zip(wanted, found, strict=True)]
            count = len(self.slots)
            if self.way is Way.LOOP:
                flat = [g.reshape(-1) for g in dense]
                return torch.stack([torch.cat(flat[i : i + count]) for i in range(0, len(flat), count)])
            return torch.cat([g.reshape(len(rows), -1) for g in dense], 1)

        return outputs.detach(), pullback

    def bytes_per_row(self, rows: Float[Tensor, "1 D"], x: Any) -> int:
        """What the graph keeps."""
        kept = []
        for count in (1, batch_size_of(x)):
            total = 0

            def pack(tensor: Tensor) -> Tensor:
                nonlocal total
                total += tensor.numel() * tensor.element_size()
                return tensor

            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                _ = self(rows, take(x, slice(0, count)))
            kept.append(total)
        return kept[-1] - kept[0]

    def _leaves(self, views: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {slot.name: views[slot.name].detach().requires_grad_() for slot in self.slots}

    def _together(self, tensors: dict[str, Tensor], x: Any) -> Tensor:
        """Outputs of all rows in one graph."""
        if self.way is Way.STACKED and isinstance(x, Tensor) and x.dim() == 2:
            slots = [slot for slot in self.layout.slots if slot.kind != "likelihood"]
            named = {alias: tensors[slot.name] for slot in slots for alias in slot.aliases}
            return differentiable_chain(self.network, named, x)

        def one(single: dict[str, Tensor]) -> Tensor:
            return outputs_at(self.network, self.layout, single, x)

        return vmap(one, randomness="error")(tensors)
