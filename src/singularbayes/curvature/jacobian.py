"""Jacobians of a network's outputs, row of inputs by row: one row's function, differentiated for all rows.

Where a module has no batching rule (an LSTM) it is done one row after another: the same numbers, slower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap
from torch.utils import _pytree as pytree

from ..data import batch_size_of, take
from ..functions import Way, outputs_at, reduce_output, way_for
from ..nn.kernels import plain_attention
from ..parameters import Layout, Slot
from .expansion import Expansion

__all__ = ["Jacobian", "bent_jacobians", "jacobians"]

_CHUNK_BYTES = 2**25
_ENTRIES = 2**23  # of the Jacobians that are held at a time in float64


class Jacobian:
    """``df/dw`` at one row of the flat vector, for the entries of some slots.

    Args:
        network: in eval mode.
        layout: of the row.
        row: where to differentiate ``(D,)``.
        slots: whose entries, in the layout's order.
    """

    def __init__(self, network: nn.Module, layout: Layout, row: Tensor, slots: Sequence[Slot]) -> None:
        self.network, self.layout, self.row, self.slots = network, layout, row, slots
        places = [torch.arange(slot.start, slot.stop) for slot in slots]
        self.entries = torch.cat(places).to(row.device)

    def outputs(self, chosen: Float[Tensor, " v"], x: Any) -> Float[Tensor, "B *event"]:
        """Outputs with these values of the chosen entries."""
        parts = chosen.split([slot.size for slot in self.slots])
        own = {slot.name: part.view(slot.shape) for slot, part in zip(self.slots, parts, strict=True)}
        return outputs_at(self.network, self.layout, {**self.layout.views(self.row), **own}, x)

    def chunks(self, x: Any, outputs: int) -> Iterator[Float[Tensor, "b K v"]]:
        """The Jacobians of successive rows of ``x``, as many at a time as fit 32 MB.

        Args:
            x: inputs.
            outputs: ``K``, of one input.
        """
        chosen = self.row[self.entries]
        step = max(1, _CHUNK_BYTES // (outputs * len(chosen) * chosen.element_size()))
        for start in range(0, batch_size_of(x), step):
            yield _differentiated(self.outputs, chosen, take(x, slice(start, start + step)), self.network)


def jacobians(expansion: Expansion, x: Any) -> Float[Tensor, "B K n"]:
    """Jacobians of the flattened outputs, entries in the order of ``expansion.slots``."""
    network, leaves = expansion.network, expansion.leaves
    sizes = [leaf.numel() for leaf in leaves]

    def outputs(chosen: Tensor, x: Any) -> Tensor:
        parts = zip(expansion.places, leaves, chosen.split(sizes), strict=True)
        named = {place: part.view_as(leaf) for place, leaf, part in parts}
        if isinstance(x, dict):
            return reduce_output(functional_call(network, named, (), x))
        return reduce_output(functional_call(network, named, x))

    chosen = torch.cat([leaf.detach().flatten() for leaf in leaves])
    with torch.autocast(chosen.device.type, enabled=False), plain_attention(network.modules()):
        return _differentiated(outputs, chosen, x, network)


def bent_jacobians(
    expansion: Expansion, x: Any, root: Float[Tensor, "B K C"]
) -> Iterator[Float[Tensor, "b C n"]]:
    """``M_n = R_n^T J_n`` of a batch, some rows at a time, in float64; ``H`` is the sum of ``M_n^T M_n``."""
    step = max(1, _ENTRIES // (root.shape[1] * expansion.size))
    for start in range(0, len(root), step):
        index = slice(start, start + step)
        yield root[index].mT @ jacobians(expansion, take(x, index)).double()


def _differentiated(
    outputs: Callable[[Tensor, Any], Tensor], at: Float[Tensor, " v"], x: Any, network: nn.Module
) -> Float[Tensor, "B K v"]:
    """The Jacobian of ``outputs(at, x)`` in ``at``, each row's outputs flattened; no graph is kept."""
    at = at.detach()
    if way_for(network) is not Way.LOOP:

        def of_one(at: Tensor, row: Any) -> Tensor:
            return outputs(at, pytree.tree_map(lambda part: part.unsqueeze(0), row)).reshape(-1)

        return vmap(jacrev(of_one), in_dims=(None, 0))(at, x).detach()
    found = []
    # cudnn's recurrent kernels derive in train mode only
    with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
        leaf = at.requires_grad_()
        for number in range(batch_size_of(x)):
            output = outputs(leaf, take(x, slice(number, number + 1))).reshape(-1)
            rows = [torch.autograd.grad(value, leaf, retain_graph=True)[0] for value in output]
            found.append(torch.stack(rows))
    return torch.stack(found)
