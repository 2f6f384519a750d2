"""Rows of the Jacobian of a network's outputs in chosen entries of the flat vector."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import jacrev, vmap

from ..data import batch_size_of, take
from ..functions import Way, outputs_at, way_for
from ..parameters import Layout, Slot

__all__ = ["Jacobian"]

_CHUNK_BYTES = 2**25


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
        rows, chosen = batch_size_of(x), self.row[self.entries]
        step = max(1, _CHUNK_BYTES // (outputs * len(chosen) * chosen.element_size()))
        by_hand = way_for(self.network) is Way.LOOP
        for start in range(0, rows, step):
            batch = take(x, slice(start, start + step))
            yield self._one_by_one(chosen, batch) if by_hand else self._together(chosen, batch)

    def _together(self, chosen: Tensor, x: Any) -> Tensor:
        def of_one(chosen: Tensor, x: Any) -> Tensor:
            return self.outputs(chosen, _with_row_axis(x)).reshape(-1)

        return vmap(jacrev(of_one), in_dims=(None, 0))(chosen, x)

    def _one_by_one(self, chosen: Tensor, x: Any) -> Tensor:
        """For modules without batching rules."""
        found = []
        with (
            torch.enable_grad(),
            torch.backends.cudnn.flags(enabled=False),
        ):  # which derives in train mode only
            leaf = chosen.detach().requires_grad_()
            for number in range(batch_size_of(x)):
                output = self.outputs(leaf, take(x, slice(number, number + 1))).reshape(-1)
                rows = [torch.autograd.grad(value, leaf, retain_graph=True)[0] for value in output]
                found.append(torch.stack(rows))
        return torch.stack(found)


def _with_row_axis(x: Any) -> Any:
    if isinstance(x, Mapping):
        return {name: _with_row_axis(value) for name, value in x.items()}
    return tuple(map(_with_row_axis, x)) if isinstance(x, tuple) else x.unsqueeze(0)
