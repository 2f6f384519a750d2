"""What a quadratic expansion of the NLL needs: a network at trained weights, chosen tensors, the data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..distributions import Distribution
from ..functions import call
from ..likelihoods import Likelihood, Parameters
from ..parameters import Slot, owner
from .output_hessian import Bend, bend

__all__ = ["Curvature", "Expansion", "Measured", "Structure", "Tally", "finite", "spread"]


@dataclass(frozen=True)
class Expansion:
    """The point and the data around which the SUM NLL is expanded, in the tensors of ``slots`` alone.

    Args:
        network: a private copy in eval mode, or only its last layer (``batches`` then gives features).
        slots: the chosen tensors, as they lie in the flat vector of the whole network.
        places: each one's name in ``network``.
        likelihood: of the labels.
        numbers: its learned numbers.
        batches: gives ``(inputs of network, labels)``, anew at each call.
    """

    network: nn.Module
    slots: tuple[Slot, ...]
    places: tuple[str, ...]
    likelihood: Likelihood
    numbers: Parameters
    batches: Callable[[], Iterable[tuple[Any, Tensor]]]

    @property
    def leaves(self) -> tuple[Tensor, ...]:
        """The chosen tensors."""
        return tuple(getattr(*owner(self.network, place)) for place in self.places)

    @property
    def size(self) -> int:
        """Chosen entries."""
        return sum(slot.size for slot in self.slots)

    @property
    def positions(self) -> Tensor:
        """Where the chosen entries lie in the flat vector, in the order of ``slots``."""
        return torch.cat([torch.arange(slot.start, slot.stop) for slot in self.slots])

    def bend(self, outputs: Tensor, y: Tensor) -> Bend:
        """How the log-likelihood of a batch bends at its outputs."""
        return bend(self.likelihood, outputs, y, self.numbers)

    def bends(self, tally: Tally) -> Iterator[tuple[Any, Bend]]:
        """A pass of the data: inputs of each batch and how its log-likelihood bends; counted in ``tally``."""
        for x, y in self.batches():
            with torch.no_grad():
                bent = self.bend(call(self.network, x), y)
            tally.add(bent)
            yield x, bent


class Tally:
    """Sums over a pass of the data."""

    def __init__(self) -> None:
        self.log_likelihood, self.entries, self.projected, self.rows = 0.0, 0, 0, 0

    def add(self, bent: Bend) -> None:
        """Count one batch.

        Raises:
            ValueError: outputs or log-likelihoods that are not finite.
        """
        if not (math.isfinite(bent.log_likelihood) and bool(torch.isfinite(bent.root).all())):
            raise ValueError(
                f"the log-likelihood of training rows {self.rows} to {self.rows + len(bent.root) - 1} or its "
                f"curvature is not finite: at these weights the network gives inf or nan there; train it "
                f"again, or scale the inputs"
            )
        self.log_likelihood += bent.log_likelihood
        self.entries += bent.entries
        self.projected += bent.projected
        self.rows += len(bent.root)


@runtime_checkable
class Curvature(Protocol):
    """The Gauss-Newton matrix ``H`` of the SUM NLL, in some structure.

    ``precision (L,)`` is the prior's, one for each chosen tensor, or ``(1,)``, one for all; ``scale``
    multiplies ``H`` (as a Gaussian noise other than the measured one does).
    """

    def log_determinant(self, precision: Float[Tensor, " L"], scale: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """``log det(scale H + P)``, differentiable in both."""
        ...

    def gaussian(
        self, row: Float[Tensor, " D"], precision: Float[Tensor, " L"], scale: Float[Tensor, ""]
    ) -> Distribution:
        """``N(row, (scale H + P)^-1)`` on the chosen entries; all others are points."""
        ...

    def jitter(self, precision: Float[Tensor, " L"], scale: Float[Tensor, ""]) -> float:
        """What was added to the diagonal of ``scale H + P`` for it to have a Cholesky factor; mostly 0."""
        ...


@dataclass(frozen=True)
class Measured:
    """A curvature and what the same pass of the data counted."""

    curvature: Any
    tally: Tally


@runtime_checkable
class Structure(Protocol):
    """How the curvature is kept: an object such as ``KroneckerCurvature()``."""

    def check(self, expansion: Expansion) -> None:
        """Refuse, before any work, tensors that the structure cannot cover."""
        ...

    def measure(self, expansion: Expansion) -> Measured:
        """One pass of the data."""
        ...


def finite(curvature: Tensor) -> Tensor:
    """The curvature, refused where the network's derivatives overflow.

    Raises:
        ValueError: it is not finite.
    """
    if not bool(torch.isfinite(curvature).all()):
        raise ValueError(
            "the curvature is not finite: derivatives of the network at these weights are inf or nan, though "
            "its outputs are not; scale the inputs, or leave the parameters concerned out of subset="
        )
    return curvature


def spread(values: Tensor, slots: tuple[Slot, ...]) -> Tensor:
    """One value for each slot ``(L,)``, or for all ``(1,)``, as one for each entry ``(n,)``."""
    if len(values) == 1:
        return values.expand(sum(slot.size for slot in slots))
    sizes = torch.tensor([slot.size for slot in slots], device=values.device)
    return values.repeat_interleave(sizes)
