"""Certificates of singularity: every draw of a low-rank posterior has rank at most r, and where it is null.

    W = A B^T with r columns has rank at most r: q_W lives on a set of Lebesgue measure 0 when r < min(m, n),
    it has no density, and only the KL of the factors exists.
    Cov(W_ij, W_i'j') = 0 for i != i' and j != j' under independent factors: of all pairs of different entries
    the share (m - 1)(n - 1) / (m n - 1).

References:
    arXiv 2602.00387, lemmas 3.2 to 3.5, theorem 3.4.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
import torch

from ..posterior import Posterior
from .factor_beliefs import INDEPENDENT, low_rank_weights

__all__ = ["SingularWeight", "Singularity", "singularity"]


@dataclass(frozen=True, kw_only=True)
class SingularWeight:
    """What holds for one factorised matrix.

    Args:
        title: of the matrix.
        shape: ``(m, n)``.
        rank: columns of the factors, which no draw's rank exceeds.
        beyond: over the draws that were looked at, the largest ``s_{r+1} / s_1``: rounding; 0 at full rank.
        rounding: what rounding may leave there: ``eps max(m, n)`` of the precision that the product has.
        zero_pairs: share of the pairs of different entries whose covariance is exactly 0; ``None`` where the
            factors are not independent.
    """

    title: str
    shape: tuple[int, int]
    rank: int
    beyond: float
    rounding: float
    zero_pairs: float | None

    @property
    def singular(self) -> bool:
        """Whether the matrices of all draws lie in a set of measure 0."""
        return self.rank < min(self.shape)

    @property
    def holds(self) -> bool:
        """Whether the draws confirm it."""
        return self.beyond <= self.rounding


@dataclass(frozen=True, kw_only=True)
class Singularity:
    """The certificates of all factorised matrices; printed as a table with what they rest on.

    Args:
        weights: one each.
        draws: how many were looked at.
        independent: whether the factors are, which the zero blocks need.
    """

    weights: tuple[SingularWeight, ...]
    draws: int
    independent: bool

    @property
    def holds(self) -> bool:
        """Whether every draw that was looked at has the rank that its factors say."""
        return all(weight.holds for weight in self.weights)

    def table(self) -> pd.DataFrame:
        """One row a matrix."""
        return pd.DataFrame(
            [
                {
                    "layer": w.title,
                    "shape": " x ".join(map(str, w.shape)),
                    "rank <=": w.rank,
                    "null set": "yes" if w.singular else "no: full rank",
                    "s_(r+1)/s_1": f"{w.beyond:.1e}",
                    "zero covariances": "not known" if w.zero_pairs is None else f"{w.zero_pairs:.1%}",
                }
                for w in self.weights
            ]
        )

    def __str__(self) -> str:
        verdict = "confirm it to rounding" if self.holds else "DO NOT confirm it"
        why = "" if self.independent else "; the factors are not independent: no covariance is 0 by structure"
        return f"{self.table().to_string(index=False)}\nby construction; {self.draws} draws {verdict}{why}"


@torch.no_grad()
def singularity(posterior: Posterior, draws: int = 8, seed: int = 0) -> Singularity:
    """Certify that a posterior's low-rank weights are singular, and look at some draws.

    The rank is certain by construction; the draws are a check of the implementation, not the proof.

    Args:
        posterior: of a network with low-rank layers, of any method.
        draws: how many to look at.
        seed: of the draws.

    Raises:
        ValueError: no low-rank layer, fewer than one draw.

    Example:
        >>> import singularbayes as sb
        >>> x, y = torch.randn(32, 6), torch.randint(0, 2, (32,))
        >>> net = sb.factorize(torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.Linear(9, 2)), {"0": 2})
        >>> found = singularity(sb.MeanField(epochs=1).fit(sb.Model(net, sb.Categorical()), (x, y)))
        >>> found.holds, found.weights[0].rank, found.weights[0].singular
        (True, 2, True)
    """
    weights = low_rank_weights(posterior)
    rows = posterior.draw(draws, seed).double()
    eps = torch.finfo(torch.float64).eps
    independent = posterior.distribution.kind in INDEPENDENT
    found = []
    for weight in weights:
        m, n = weight.shape
        beyond = 0.0
        if weight.rank < min(m, n):
            for row in rows:  # one at a time: an embedding's table is large
                values = torch.linalg.svdvals(weight.weights(row))
                beyond = max(beyond, float(values[weight.rank] / values[0]) if values[0] > 0 else 0.0)
        pairs = (m - 1) * (n - 1) / (m * n - 1) if m * n > 1 else 0.0
        found.append(
            SingularWeight(
                title=weight.title,
                shape=(m, n),
                rank=weight.rank,
                beyond=beyond,
                rounding=eps * max(m, n),
                zero_pairs=pairs if independent and not weight.diagonal else None,
            )
        )
    return Singularity(weights=tuple(found), draws=len(rows), independent=independent)
