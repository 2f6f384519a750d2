"""A Cholesky factor of what should be positive definite, and what had to be added for it to be."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["cholesky"]


def cholesky(matrix: Float[Tensor, "n n"]) -> tuple[Float[Tensor, "n n"], float]:
    """``L`` with ``L L^T = matrix + jitter I``, and the jitter: 0, or about the least that gives an ``L``.

    Args:
        matrix: symmetric and finite.

    Example:
        >>> (
        ...     cholesky(torch.eye(2, dtype=torch.float64))[1],
        ...     cholesky(-torch.eye(2, dtype=torch.float64))[1] > 1,
        ... )
        (0.0, True)
    """
    factor, failed = torch.linalg.cholesky_ex(matrix)
    jitter = 0.0
    unit = torch.finfo(matrix.dtype).eps * matrix.detach().diagonal().abs().amax().item()
    while int(failed):
        jitter = 10 * jitter or unit
        shift = jitter * torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
        factor, failed = torch.linalg.cholesky_ex(matrix + shift)
    return factor, jitter
