"""A plain chain of layers for many chains of a sampler that lie last: ``(features, B, C)``.

Products are written as sums of elementwise products: a compiler makes one loop of each layer and its
activation, over neighbouring numbers of different chains. Meant for compiling alone; by itself it is slow.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..nn.linear import LowRankLinear
from ..stacked import flat_chain

__all__ = ["columns_chain"]


def columns_chain(
    network: nn.Module, tensors: Mapping[str, Tensor], x: Float[Tensor, "B f"]
) -> Float[Tensor, "out B C"]:
    """Outputs of a network that :func:`.chain_gradient.is_plain` accepts.

    Args:
        network: in eval mode.
        tensors: by name, ``(*shape, C)``; parameters that are not among them are the network's own.
        x: one batch.
    """

    def own(path: str, module: nn.Module, leaf: str) -> Tensor | None:
        drawn = tensors.get(path + leaf)
        if drawn is not None:
            return drawn
        fixed = getattr(module, leaf)
        return None if fixed is None else fixed.unsqueeze(-1)

    h = x.T.unsqueeze(-1)
    for path, module in flat_chain(network):
        if isinstance(module, LowRankLinear):
            h = _product(own(path, module, "B"), h, 0)
            scale = own(path, module, "s")
            h = h if scale is None else h * scale.unsqueeze(1)
            h = _product(own(path, module, "A"), h, 1)
        elif isinstance(module, nn.Linear):
            h = _product(own(path, module, "weight"), h, 1)
        elif isinstance(module, nn.Tanh):
            h = 2 * torch.sigmoid(2 * h) - 1
            continue
        else:
            h = module(h)
            continue
        bias = own(path, module, "bias")
        h = h if bias is None else h + bias.unsqueeze(1)
    return h


def _product(matrix: Tensor | None, h: Tensor, over: int) -> Tensor:
    """The sum over the matrix's axis ``over``, ``(o, B, C)``."""
    assert matrix is not None  # noqa: S101 - only biases and diagonals may be absent
    return (matrix.unsqueeze(2) * h.unsqueeze(1 - over)).sum(over)
