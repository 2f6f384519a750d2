"""Spread and direction of the covariance of ``W = A B^T``, without ever forming it.

With ``Sigma`` of :func:`.weight_covariance` (independent factors) and a gradient ``G (m, n)`` of an output in
``W``, the first-order variance of the output is

    vec(G)^T Sigma vec(G) = sum_ik sA_ik^2 (G muB)_ik^2 + sum_jk sB_jk^2 (G^T muA)_jk^2
                            + sum_ijk G_ij^2 sA_ik^2 sB_jk^2

A diagonal covariance of the same variances drops the cross terms: it gives ``sum_ij G_ij^2 Var W_ij``.

    effective rank of Sigma = (tr Sigma)^2 / |Sigma|_F^2

References:
    arXiv 2602.00387, lemma 3.5.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

__all__ = ["Alignment", "covariance_effective_rank", "gradient_alignment"]


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """The variance that a covariance gives to an output, beside what others of the same size give.

    Args:
        variance: ``g^T Sigma g``, in squared units of the output.
        diagonal: the same with the cross terms dropped.
        isotropic: the same with the mean variance in every direction, ``|g|^2 tr(Sigma) / d``.
    """

    variance: float
    diagonal: float
    isotropic: float

    @property
    def against_diagonal(self) -> float:
        """``variance / diagonal``: above 1 the cross terms add to the variance along this gradient."""
        return self.variance / self.diagonal if self.diagonal > 0 else float("nan")

    @property
    def against_isotropic(self) -> float:
        """``variance / isotropic``: above 1 the covariance points along this gradient."""
        return self.variance / self.isotropic if self.isotropic > 0 else float("nan")


def gradient_alignment(
    gradient: Float[Tensor, "m n"],
    mean_a: Float[Tensor, "m r"],
    std_a: Float[Tensor, "m r"],
    mean_b: Float[Tensor, "n r"],
    std_b: Float[Tensor, "n r"],
) -> Alignment:
    """How the covariance of ``W = A B^T`` lies to a gradient in ``W``; cost ``O(m n r)``.

    Args:
        gradient: of an output in the matrix, ``(m, n)``.
        mean_a: means of A.
        std_a: standard deviations of A.
        mean_b: means of B.
        std_b: standard deviations of B.

    Example:
        >>> import torch
        >>> one = torch.ones(1, 1)
        >>> gradient_alignment(2 * one, 2 * one, one, 3 * one, one).variance  # 4 * 14
        56.0
    """
    g = gradient.double()
    var_a, var_b, mu_a, mu_b = (x.double() for x in (std_a.square(), std_b.square(), mean_a, mean_b))
    both = (g.square() @ var_b * var_a).sum()
    rows = (var_a * (g @ mu_b).square()).sum()
    columns = (var_b * (g.T @ mu_a).square()).sum()
    variances = _variances(mu_a, var_a, mu_b, var_b)
    return Alignment(
        variance=float(rows + columns + both),
        diagonal=float((g.square() * variances).sum()),
        isotropic=float(g.square().sum() * variances.mean()),
    )


def _variances(mu_a: Tensor, var_a: Tensor, mu_b: Tensor, var_b: Tensor) -> Tensor:
    """``Var W_ij``, ``(m, n)``."""
    return mu_a.square() @ var_b.T + var_a @ mu_b.square().T + var_a @ var_b.T


def covariance_effective_rank(
    mean_a: Float[Tensor, "m r"],
    std_a: Float[Tensor, "m r"],
    mean_b: Float[Tensor, "n r"],
    std_b: Float[Tensor, "n r"],
) -> float:
    """``(tr Sigma)^2 / |Sigma|_F^2`` of the covariance of ``W = A B^T``; arguments as for the alignment.

    Between 1 and ``m n``; 0 without any variance. It takes ``O(m n r + (m + n) r^2)``, not ``(m n)^2``.

    Example:
        >>> import torch
        >>> one, zero = torch.ones(2, 1), torch.zeros(2, 1)
        >>> covariance_effective_rank(one, one, one, zero)  # each row moves as one: two directions
        2.0
    """
    var_a, var_b, mu_a, mu_b = (x.double() for x in (std_a.square(), std_b.square(), mean_a, mean_b))
    variances = _variances(mu_a, var_a, mu_b, var_b)
    trace = variances.sum()
    if not trace > 0:
        return 0.0
    # off the diagonal: pairs within a row, then pairs within a column
    rows = ((var_a @ (mu_b.T @ mu_b).square()) * var_a).sum() - (var_a @ mu_b.square().T).square().sum()
    columns = ((var_b @ (mu_a.T @ mu_a).square()) * var_b).sum() - (var_b @ mu_a.square().T).square().sum()
    return float(trace.square() / (variances.square().sum() + rows + columns))
