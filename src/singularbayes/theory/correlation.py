"""Covariance of the entries of ``W = A B^T`` under independent factors, in closed form.

For independent entries of ``A (m, r)`` and ``B (n, r)``:

    Var W_ij          = sum_k (muA_ik^2 sB_jk^2 + sA_ik^2 muB_jk^2 + sA_ik^2 sB_jk^2)
    Cov(W_ij, W_ij')  = sum_k sA_ik^2 muB_jk muB_j'k          (same row)
    Cov(W_ij, W_i'j)  = sum_k sB_jk^2 muA_ik muA_i'k          (same column)
    Cov(W_ij, W_i'j') = 0                                     (another row and another column)

References:
    arXiv 2602.00387, lemma 3.5.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["weight_correlation", "weight_covariance"]


def weight_covariance(
    mean_a: Float[Tensor, "m r"],
    std_a: Float[Tensor, "m r"],
    mean_b: Float[Tensor, "n r"],
    std_b: Float[Tensor, "n r"],
) -> Float[Tensor, "mn mn"]:
    """Covariance matrix of the entries of ``A B^T``, row-major: entry ``(i, j)`` stands at ``i n + j``.

    Args:
        mean_a: means of A.
        std_a: standard deviations of A.
        mean_b: means of B.
        std_b: standard deviations of B.

    Returns:
        ``(m n, m n)``; take a block of rows of A and B for layers that are not small.

    Example:
        >>> one = torch.ones(1, 1)
        >>> weight_covariance(2 * one, one, 3 * one, one).item()  # 4 + 9 + 1
        14.0
    """
    (m, _), n = mean_a.shape, len(mean_b)
    var_a, var_b = std_a.square(), std_b.square()
    same_row = torch.einsum("ik,jk,lk->ijl", var_a, mean_b, mean_b)  # (m, n, n)
    same_column = torch.einsum("jk,ik,lk->jil", var_b, mean_a, mean_a)  # (n, m, m)
    covariance = mean_a.new_zeros(m, n, m, n)
    rows, columns = torch.arange(m), torch.arange(n)
    covariance[rows, :, rows, :] = same_row
    covariance[:, columns, :, columns] += same_column
    both = torch.einsum("ik,jk->ij", var_a, var_b)
    covariance[rows[:, None], columns[None], rows[:, None], columns[None]] += both
    return covariance.reshape(m * n, m * n)


def weight_correlation(
    mean_a: Float[Tensor, "m r"],
    std_a: Float[Tensor, "m r"],
    mean_b: Float[Tensor, "n r"],
    std_b: Float[Tensor, "n r"],
) -> Float[Tensor, "mn mn"]:
    """Correlation matrix of the entries of ``A B^T``; arguments as for :func:`weight_covariance`.

    An entry without variance has correlation 0 with all others and 1 with itself.
    """
    covariance = weight_covariance(mean_a, std_a, mean_b, std_b)
    std = covariance.diagonal().sqrt()
    scale = torch.where(std > 0, std, torch.ones_like(std))
    correlation = covariance / scale[:, None] / scale[None, :]
    correlation.fill_diagonal_(1.0)
    return correlation.clamp(-1.0, 1.0)
