"""How much a loss can change when a weight matrix is cut to a lower rank (Eckart-Young-Mirsky).

For ``l(W x)`` with ``l`` of Lipschitz constant ``L``, ``|x| <= R``, and ``W_r`` the best one of rank r:

    |E l(W x) - E l(W_r x)| <= L R s_{r+1} <= L R sqrt(sum_{i>r} s_i^2)         (theorem 3.6)
    |E l(W x) - E l(V x)|   <= L R (s_{r+1} + |V - W_r|)                        (theorem 3.7)

``V`` is what was learned at rank r; the norm of ``V - W_r`` is the spectral one beside ``s_{r+1}``, and
Frobenius' beside the square root.

References:
    arXiv 2602.00387, theorems 3.6 and 3.7. Eckart and Young 1936; Mirsky 1960 (all invariant
    norms).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from .. import spectrum
from .lipschitz import LipschitzLoss

__all__ = ["EckartYoungBound", "eckart_young_bound"]


@dataclass(frozen=True, kw_only=True)
class EckartYoungBound:
    """A bound on the change of the expected loss, in units of the loss.

    Args:
        rank: of the approximation.
        frobenius: by the Frobenius norm of what is cut, as the paper prints it.
        spectral: by its spectral norm: never larger.
        truncation: the part of ``spectral`` that any matrix of this rank pays at best.
        learned: the part that the learned factors add; 0 without any.
        lipschitz: ``L``.
        radius: ``R``.
    """

    rank: int
    frobenius: float
    spectral: float
    truncation: float
    learned: float
    lipschitz: float
    radius: float

    def __str__(self) -> str:
        learned = f", of which the learned factors {self.learned:.4g}" if self.learned else ""
        return (
            f"rank {self.rank}: the expected loss changes by at most {self.spectral:.4g} (Frobenius form "
            f"{self.frobenius:.4g}){learned}, for inputs of norm at most {self.radius:g} and a loss of "
            f"Lipschitz constant {self.lipschitz:g}"
        )


def eckart_young_bound(
    weights: Float[Tensor, "m n"],
    rank: int,
    *,
    loss: LipschitzLoss,
    radius: float,
    learned: Float[Tensor, "m n"] | None = None,
) -> EckartYoungBound:
    """The bounds of theorems 3.6 and 3.7 for one matrix.

    They hold for the layer whose output is ``W x`` (plus a bias) if the loss's constant is that of
    everything behind the layer: multiply ``loss``'s by the Lipschitz constant of later layers
    (:func:`.network_bound` does it for plain chains).

    Args:
        weights: the full matrix ``W``, ``(m, n)``.
        rank: of the approximation, in ``1..min(m, n)``.
        loss: with its Lipschitz constant.
        radius: ``R``, the largest Euclidean norm of the layer's inputs, ``x.norm(dim=1).max()``; of the mean
            loss on given data the mean norm is enough.
        learned: a matrix of this rank that was learned, for theorem 3.7; by default the best one.

    Raises:
        ValueError: a rank outside ``1..min(m, n)``, a radius that is negative or not finite, a learned
            matrix of another shape or a higher rank, values that are not finite.

    Example:
        >>> from singularbayes.theory import SoftmaxCrossEntropy
        >>> bound = eckart_young_bound(
        ...     torch.diag(torch.tensor([3.0, 0.4, 0.3])), 1, loss=SoftmaxCrossEntropy(), radius=2.0
        ... )
        >>> round(bound.frobenius, 6), round(bound.spectral, 6)
        (1.414214, 1.131371)
    """
    limit = min(weights.shape)
    if isinstance(rank, bool) or not 1 <= rank <= limit:
        raise ValueError(f"rank {rank!r} is outside 1..{limit}, the smaller side of the "
                         f"{weights.shape[0]} x {weights.shape[1]} weight")  # fmt: skip
    if not (radius >= 0 and math.isfinite(radius)):
        raise ValueError(f"radius must be 0 or positive and finite, got {radius!r}; it is the largest norm "
                         f"of the layer's inputs")  # fmt: skip
    if learned is not None and learned.shape != weights.shape:
        raise ValueError(f"learned has shape {tuple(learned.shape)}, the weights {tuple(weights.shape)}; "
                         f"they must be equal")  # fmt: skip
    if not bool(weights.isfinite().all()):
        raise ValueError("the weights have values that are not finite: no bound can be given")
    scale = loss.lipschitz * radius
    frobenius, spectral = spectrum.left_out(torch.linalg.svdvals(weights.detach().double()), rank)
    far, near = _distance(weights, rank, learned)
    return EckartYoungBound(
        rank=int(rank),
        frobenius=scale * (frobenius + far),
        spectral=scale * (spectral + near),
        truncation=scale * spectral,
        learned=scale * near,
        lipschitz=loss.lipschitz,
        radius=float(radius),
    )


def _distance(weights: Tensor, rank: int, learned: Tensor | None) -> tuple[float, float]:
    """Frobenius and spectral norm of the learned matrix minus the best one."""
    if learned is None:
        return 0.0, 0.0
    has = spectrum.numerical_rank(spectrum.values(learned.detach()))
    if has > rank:
        raise ValueError(f"learned has rank {has}, above {rank}; theorem 3.7 is about a matrix of rank at "
                         f"most {rank}")  # fmt: skip
    apart = torch.linalg.svdvals(learned.detach().double() - spectrum.truncated(weights, rank))
    return float(torch.linalg.vector_norm(apart)), float(apart[0])
