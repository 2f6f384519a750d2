"""An affine subspace of weight space: ``w = centre + P z``, and what inference in it is given."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from ..model import Model
from .full_data import FullData

__all__ = ["Inference", "Plane", "Problem"]


@dataclass(frozen=True, eq=False)
class Plane:
    """``w = centre + P z`` with the prior ``z ~ N(0, I)``: columns of ``P`` are prior standard deviations.

    Args:
        center: a row ``(D,)``; what of it has no belief stays as it is everywhere.
        directions: ``P (belief, k)``, for the leading entries of the row.

    Example:
        >>> import torch
        >>> plane = Plane(torch.tensor([1.0, 2.0, 7.0]), torch.tensor([[0.5], [0.0]]))
        >>> plane.rows(torch.tensor([[2.0]]))
        tensor([[2., 2., 7.]])
    """

    center: Float[Tensor, " D"]
    directions: Float[Tensor, "n k"]

    @property
    def dimension(self) -> int:
        """``k``."""
        return self.directions.shape[1]

    def rows(self, z: Float[Tensor, "S k"]) -> Float[Tensor, "S D"]:
        """Rows of coordinates."""
        rows = self.center.repeat(len(z), 1)
        rows[:, : len(self.directions)] += z.to(self.directions) @ self.directions.T
        return rows


@dataclass(frozen=True, eq=False)
class Problem:
    """``p(z | D)  prop.  p(D | centre + P z)^(1/T) N(z; 0, I)``; the inference brings ``T``.

    Args:
        model: network and likelihood.
        plane: the subspace.
        data: the training data, for whole likelihoods.
        train: the same as the user gave them, for minibatches.
        validation: for the log, or ``None``.
        seed: of the inference.
        checkpoint: folder of its own, or ``None``.
        progress: show a bar.
    """

    model: Model
    plane: Plane
    data: FullData
    train: Any
    validation: Any
    seed: int
    checkpoint: Path | None
    progress: bool | None

    def log_likelihood(self, z: Float[Tensor, "S k"]) -> Float[Tensor, " S"]:
        """``log p(D | centre + P z)``, in nats, in float64; with statistics of each point's own."""
        return self.data.log_likelihood(self.data.settled(self.plane.rows(z)))


@runtime_checkable
class Inference(Protocol):
    """What finds the posterior in a subspace."""

    def infer(self, problem: Problem) -> tuple[Any, dict[str, Any]]:
        """The distribution over rows ``(D,)``, and plain facts for the posterior's ``info``."""
        ...
