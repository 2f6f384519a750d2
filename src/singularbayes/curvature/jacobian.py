"""Each datum's Jacobian of the outputs in chosen tensors: one row's network, differentiated for all rows.

Where a module has no batching rule (an LSTM) it is done row by row: the same numbers, slower.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import functional_call, jacrev, vmap
from torch.utils import _pytree as pytree

from ..data import batch_size_of, take
from ..functions import Way, call, reduce_output, way_for
from ..nn.kernels import plain_attention
from .expansion import Expansion

__all__ = ["bent_jacobians", "jacobians"]

_ENTRIES = 2**23  # of the Jacobians held at a time


def jacobians(expansion: Expansion, x: Any) -> Float[Tensor, "B K n"]:
    """Jacobians of the flattened outputs, entries in the order of ``expansion.slots``."""
    device = expansion.leaves[0].device.type
    with (
        torch.enable_grad(),
        torch.autocast(device, enabled=False),
        plain_attention(expansion.network.modules()),
    ):
        return _row_by_row(expansion, x) if way_for(expansion.network) is Way.LOOP else _mapped(expansion, x)


def _mapped(expansion: Expansion, x: Any) -> Tensor:
    network = expansion.network

    def one(leaves: tuple[Tensor, ...], row: Any) -> Tensor:
        row = pytree.tree_map(lambda part: part.unsqueeze(0), row)
        named = dict(zip(expansion.places, leaves, strict=True))
        if isinstance(row, dict):
            return reduce_output(functional_call(network, named, (), row)).flatten()
        return reduce_output(functional_call(network, named, row)).flatten()

    found = vmap(jacrev(one), (None, 0))(tuple(leaf.detach() for leaf in expansion.leaves), x)
    return torch.cat([part.flatten(2) for part in found], 2)


def _row_by_row(expansion: Expansion, x: Any) -> Tensor:
    leaves = expansion.leaves
    before = [leaf.requires_grad for leaf in leaves]
    rows = []
    try:
        for leaf in leaves:
            leaf.requires_grad_()
        with torch.backends.cudnn.flags(enabled=False):  # its recurrent kernels differentiate in train mode
            for row in range(batch_size_of(x)):
                outputs = call(expansion.network, take(x, slice(row, row + 1))).flatten()
                slopes = [
                    torch.autograd.grad(output, leaves, retain_graph=True, allow_unused=True)
                    for output in outputs
                ]
                rows.append(torch.stack([_joined(slope, leaves) for slope in slopes]))
    finally:
        for leaf, flag in zip(leaves, before, strict=True):
            leaf.requires_grad_(flag)
    return torch.stack(rows)


def _joined(slopes: Any, leaves: tuple[Tensor, ...]) -> Tensor:
    filled = [torch.zeros_like(leaf) if s is None else s for s, leaf in zip(slopes, leaves, strict=True)]
    return torch.cat([part.flatten() for part in filled])


def bent_jacobians(
    expansion: Expansion, x: Any, root: Float[Tensor, "B K C"]
) -> Iterator[Float[Tensor, "b C n"]]:
    """``M_n = R_n^T J_n`` of a batch, some rows at a time, in float64; ``H`` is the sum of ``M_n^T M_n``."""
    step = max(1, _ENTRIES // (root.shape[1] * expansion.size))
    for start in range(0, len(root), step):
        index = slice(start, start + step)
        yield root[index].mT @ jacobians(expansion, take(x, index)).detach().double()
