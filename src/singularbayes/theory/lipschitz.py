"""Losses with their Lipschitz constants in the network's output (Euclidean norm), as the bounds need them.

    |l(u, y) - l(v, y)| <= L |u - v|:   softmax cross-entropy sqrt 2; binary cross-entropy, hinge, absolute
    error 1; squared error 2 B while the residual is at most B

    smoothness (Lipschitz constant of the gradient): softmax cross-entropy 1/2, binary cross-entropy 1/4,
    squared error 2

References:
    arXiv 2602.00387, theorems 3.6 and 3.7.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

__all__ = [
    "AbsoluteError",
    "BinaryCrossEntropy",
    "Hinge",
    "LipschitzLoss",
    "SoftmaxCrossEntropy",
    "SquaredError",
]


@runtime_checkable
class LipschitzLoss(Protocol):
    """A loss of outputs and labels with a known Lipschitz constant in the outputs."""

    @property
    def lipschitz(self) -> float:
        """The constant ``L``."""
        ...

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The loss of every case, ``(B,)``."""
        ...


@dataclass(frozen=True)
class SoftmaxCrossEntropy:
    """``-log softmax(outputs)_y`` in nats: ``L = sqrt 2``, the longest ``p - e_y``.

    Example:
        >>> round(SoftmaxCrossEntropy().lipschitz, 6)
        1.414214
    """

    lipschitz: float = math.sqrt(2.0)
    smoothness: float = 0.5

    def __call__(self, outputs: Float[Tensor, "B K"], y: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
        return F.cross_entropy(outputs, y, reduction="none")


@dataclass(frozen=True)
class BinaryCrossEntropy:
    """``log(1 + exp(-f))`` for y = 1 and ``log(1 + exp(f))`` for y = 0, in nats: ``L = 1``."""

    lipschitz: float = 1.0
    smoothness: float = 0.25

    def __call__(self, outputs: Float[Tensor, " B"], y: Tensor) -> Float[Tensor, " B"]:
        return F.binary_cross_entropy_with_logits(outputs, y.to(outputs), reduction="none")


@dataclass(frozen=True)
class Hinge:
    """``max(0, 1 - y f)`` for labels -1 and 1: ``L = 1``."""

    lipschitz: float = 1.0

    def __call__(self, outputs: Float[Tensor, " B"], y: Tensor) -> Float[Tensor, " B"]:
        return (1 - y.to(outputs) * outputs).clamp_min(0)


@dataclass(frozen=True)
class AbsoluteError:
    """``|f - y|`` of one output, in units of y: ``L = 1``."""

    lipschitz: float = 1.0

    def __call__(self, outputs: Float[Tensor, " B"], y: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        return (outputs - y).abs()


@dataclass(frozen=True)
class SquaredError:
    """``|f - y|^2``: ``L = 2 B`` while the residual ``|f - y|`` is at most ``B`` for both networks.

    Args:
        residual: ``B``, in units of y. Beyond it the loss has no Lipschitz constant: a bound that was
            computed with a smaller one does not hold.

    Raises:
        ValueError: a residual that is not positive and finite.
    """

    residual: float
    smoothness: float = 2.0

    def __post_init__(self) -> None:
        if not (self.residual > 0 and math.isfinite(self.residual)):
            raise ValueError(f"residual must be positive and finite, got {self.residual!r}; it is the "
                             f"largest |f - y| that can occur")  # fmt: skip

    @property
    def lipschitz(self) -> float:
        return 2.0 * self.residual

    def __call__(self, outputs: Float[Tensor, "B *K"], y: Float[Tensor, "B *K"]) -> Float[Tensor, " B"]:
        return (outputs - y).square().flatten(1).sum(1) if outputs.dim() > 1 else (outputs - y).square()
