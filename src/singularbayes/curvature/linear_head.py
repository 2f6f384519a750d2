"""The Gauss-Newton matrix of a linear layer that makes the outputs, by its features, without derivatives.

f = W phi + b,        H_(ki),(lj) = sum_n [H_n]_kl phi_ni phi_nj,        phi with a 1 appended for b
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from .expansion import Expansion

__all__ = ["is_linear_head", "linear_head_diagonal", "linear_head_matrix"]


def is_linear_head(expansion: Expansion, x: Any) -> bool:
    """Whether the network is one ``nn.Linear`` and the batch plain features ``(B, in)``."""
    network = expansion.network
    plain = type(network) is nn.Linear and not is_parametrized(network)
    return plain and isinstance(x, Tensor) and x.dim() == 2


def _entries(expansion: Expansion, features: int, outputs: int) -> Tensor:
    """Where the chosen entries lie in ``(outputs, features + 1)``, the bias last in each row."""
    table = torch.arange(outputs * (features + 1)).view(outputs, features + 1)
    parts = {"weight": table[:, :-1].flatten(), "bias": table[:, -1]}
    return torch.cat([parts[place] for place in expansion.places])


def _with_one(phi: Tensor) -> Tensor:
    return torch.cat([phi.double(), phi.new_ones(len(phi), 1, dtype=torch.float64)], 1)


def linear_head_diagonal(
    expansion: Expansion, phi: Float[Tensor, "B i"], root: Float[Tensor, "B K C"]
) -> Float[Tensor, " n"]:
    """One batch's share of the diagonal."""
    whole = root.square().sum(2).T @ _with_one(phi).square()
    return whole.flatten()[_entries(expansion, phi.shape[1], root.shape[1]).to(whole.device)]


def linear_head_matrix(
    expansion: Expansion, phi: Float[Tensor, "B i"], root: Float[Tensor, "B K C"]
) -> Float[Tensor, "n n"]:
    """One batch's share of the matrix."""
    wide, bent = _with_one(phi), root @ root.mT
    outputs, width = root.shape[1], wide.shape[1]
    whole = wide.new_zeros(outputs, width, outputs, width)
    for k in range(outputs):  # the upper blocks; the lower ones mirror them
        weighted = (bent[:, k, k:, None] * wide[:, None, :]).flatten(1)
        block = (wide.T @ weighted).view(width, outputs - k, width)
        whole[k, :, k:] = block
        whole[k:, :, k] = block.permute(1, 2, 0)
    index = _entries(expansion, phi.shape[1], outputs).to(whole.device)
    return whole.view(outputs * width, outputs * width)[index][:, index]
