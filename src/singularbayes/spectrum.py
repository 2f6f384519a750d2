"""Singular values of a matrix, and what they say about its rank.

    energy(r)      = sum_{i<=r} s_i^2                     what the best rank-r approximation keeps
    stable rank    = sum_i s_i^2 / s_1^2                  between 1 and the rank
    effective rank = (sum_i s_i)^2 / sum_i s_i^2          between 1 and the rank; of a covariance s_i are its
                                                          eigenvalues: of diag(4, 1, 1) it is 2, not 3
    decay          = -slope of log s_i on log i           0 is flat; 1 falls as 1 / i

References:
    Eckart and Young 1936: what the best rank-r approximation leaves out is the sum of the other s_i^2.
    Rudelson and Vershynin 2007, arXiv math/0503442 (stable rank).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = [
    "decay",
    "effective_rank",
    "energy",
    "left_out",
    "numerical_rank",
    "share_kept",
    "stable_rank",
    "truncated",
    "values",
    "without_rounding",
]


@torch.no_grad()
def values(matrix: Float[Tensor, "m n"]) -> Float[Tensor, " k"]:
    """The singular values of a matrix, largest first, ``(min(m, n),)`` in float64.

    What is below the rounding of the matrix's own precision is 0.

    Raises:
        ValueError: a matrix without entries, or with values that are not finite.

    Example:
        >>> values(torch.diag(torch.tensor([1.0, 3.0, 2.0]))).tolist()
        [3.0, 2.0, 1.0]
    """
    if not matrix.numel():
        raise ValueError(f"a matrix of shape {tuple(matrix.shape)} has no singular values: it has no entries")
    if not bool(matrix.isfinite().all()):
        raise ValueError("the matrix has values that are not finite: it has no singular values")
    found = torch.linalg.svdvals(matrix.double())
    return without_rounding(found, matrix)


def without_rounding(found: Float[Tensor, " k"], matrix: Float[Tensor, "m n"]) -> Float[Tensor, " k"]:
    """Singular values of a matrix, largest first, with 0 for those below the rounding of its precision."""
    noise = found[0] * torch.finfo(matrix.dtype).eps * max(matrix.shape)
    return torch.where(found > noise, found, torch.zeros_like(found))


@torch.no_grad()
def truncated(matrix: Float[Tensor, "m n"], rank: int) -> Float[Tensor, "m n"]:
    """The best approximation of a rank (Eckart and Young), in float64."""
    u, found, vh = torch.linalg.svd(matrix.double(), full_matrices=False)
    return u[:, :rank] * found[:rank] @ vh[:rank]


def left_out(spectrum: Float[Tensor, " k"], rank: int) -> tuple[float, float]:
    """Frobenius and spectral norm of what the best approximation of a rank leaves out."""
    tail = spectrum[rank:]
    return float(torch.linalg.vector_norm(tail)), float(tail[0]) if len(tail) else 0.0


def energy(spectrum: Float[Tensor, " k"]) -> Float[Tensor, " k"]:
    """The energy that each rank keeps, ``sum_{i<=r} s_i^2``, of singular values largest first."""
    return spectrum.square().cumsum(0)


def share_kept(energies: Float[Tensor, " k"], rank: int) -> float:
    """Share of the energy that a rank keeps, given :func:`energy`; 1 for a matrix of zeros."""
    total = float(energies[-1])
    return float(energies[rank - 1]) / total if total > 0 else 1.0


def numerical_rank(spectrum: Float[Tensor, " k"]) -> int:
    """How many singular values are above the rounding (those of :func:`values` that are not 0)."""
    return int((spectrum > 0).sum())


def stable_rank(spectrum: Float[Tensor, " k"]) -> float:
    """``sum s_i^2 / s_1^2``: squared Frobenius over squared spectral norm; 0 for a matrix of zeros.

    Raises:
        ValueError: a negative value.

    Example:
        >>> stable_rank(torch.tensor([2.0, 1.0, 1.0]))
        1.5
    """
    largest = _largest(spectrum)
    return float((spectrum / largest).square().sum()) if largest > 0 else 0.0


def effective_rank(spectrum: Float[Tensor, " k"]) -> float:
    """``(sum s_i)^2 / sum s_i^2``: how many equal values would spread as much; 0 for a matrix of zeros.

    Args:
        spectrum: singular values of a matrix, or eigenvalues of a covariance; 0 or positive.

    Raises:
        ValueError: a negative value.

    Example:
        >>> effective_rank(torch.tensor([4.0, 1.0, 1.0]))
        2.0
    """
    largest = _largest(spectrum)
    if not largest > 0:
        return 0.0
    scaled = spectrum / largest  # no overflow, no underflow
    return float(scaled.sum().square() / scaled.square().sum())


def _largest(spectrum: Tensor) -> Tensor:
    if bool((spectrum < 0).any()):
        raise ValueError(f"values of a spectrum are 0 or positive, got {float(spectrum.min()):g}; of a "
                         f"covariance set what rounding made negative to 0")  # fmt: skip
    return spectrum.max()


def decay(spectrum: Float[Tensor, " k"]) -> float:
    """How fast singular values fall: minus the slope of ``log s_i`` on ``log i``, those of 0 left out.

    Returns:
        nan with fewer than two values above 0.

    Example:
        >>> round(decay(1 / torch.arange(1, 9, dtype=torch.float64)), 12)
        1.0
    """
    positive = spectrum[spectrum > 0].double()
    if len(positive) < 2:
        return float("nan")
    x = torch.arange(1, len(positive) + 1, dtype=torch.float64, device=positive.device).log()
    x = x - x.mean()
    return -float((x * positive.log()).sum() / x.square().sum())
