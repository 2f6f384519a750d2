"""Directions of a subspace of weight space: a walk's principal components, random ones, a curve's plane.

    deviations of n iterates from their mean / sqrt(n - 1) = U S V^T,    PCA: P_i = s_i v_i

so that ``P P^T`` is the leading part of the iterates' covariance: it is divided by ``n - 1`` once.

References:
    Izmailov et al. 2019, arXiv 1907.07504 (random, PCA and curve subspaces).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from ..model import Model
from ..random import generator
from .plane import Plane
from .settings import check_whole
from .trajectory import Trajectory

__all__ = ["PCA", "CurvePlane", "FromWalk", "RandomProjection", "iterates"]

_FLAT = 1e-6  # of the largest singular value of float32 deviations


@runtime_checkable
class FromWalk(Protocol):
    """A basis made of the iterates of a walk."""

    @property
    def dimension(self) -> int:
        """``k``."""
        ...

    @property
    def kept(self) -> int:
        """How many of the last iterates of a run are kept for it."""
        ...

    def directions(self, points: Float[Tensor, "n d"], seed: int) -> Float[Tensor, "d k"]:
        """``P``, from iterates, oldest first, up to a shift that they share."""
        ...


def iterates(trajectory: Trajectory) -> Float[Tensor, "n d"]:
    """The last iterates of a trajectory less its mean, oldest first.

    A trajectory keeps ``w_n - mean_n``, from the mean of its time; since ``mean_{n-1} = mean_n - (w_n -
    mean_n) / (n - 1)``, the iterates follow from the last one back.
    """
    count, rows = trajectory.count, trajectory.deviations
    if count > trajectory.rank:
        rows = rows.roll(-(count % trajectory.rank), 0)
    found, shift = torch.empty_like(rows), torch.zeros_like(rows[0])
    for position in range(len(rows) - 1, -1, -1):
        torch.add(shift, rows[position], out=found[position])
        number = count - len(rows) + position + 1
        if number > 1:
            shift -= rows[position] / (number - 1)
    return found


def _check_dimension(basis: Any) -> None:
    check_whole(dimension=basis.dimension)
    if basis.snapshots is not None:
        check_whole(snapshots=basis.snapshots)
        if basis.snapshots <= basis.dimension:
            raise ValueError(
                f"{basis.snapshots} snapshots span at most {basis.snapshots - 1} directions about their "
                f"mean, got dimension={basis.dimension}; raise snapshots or lower dimension"
            )


def _principal(points: Tensor, snapshots: int | None, dimension: int) -> Tensor:
    chosen = points[-snapshots:] if snapshots else points
    n, deviations = len(chosen), chosen - chosen.mean(0)
    if dimension > n - 1:
        raise ValueError(
            f"{n} snapshots span at most {n - 1} directions about their mean, got dimension={dimension}; "
            f"collect more, or lower dimension"
        )
    _, values, rows = torch.linalg.svd(deviations, full_matrices=False)
    count = int((values > _FLAT * values[0]).sum()) if values[0] > 0 else 0
    if dimension > count:
        raise ValueError(
            f"the {n} snapshots span {count} directions only, got dimension={dimension}; lower it, or let "
            f"the run move: raise its collect_rate"
        )
    return (rows[:dimension] * values[:dimension, None] / (n - 1) ** 0.5).T.contiguous()


@dataclass(frozen=True)
class PCA:
    """The leading principal components of the iterates, each as long as their standard deviation along it.

    Args:
        dimension: ``k``.
        snapshots: how many of the last iterates are looked at, at least ``dimension + 1``; each takes the
            memory of the network. ``None``: all that are given; of a run, the last 20, or ``2 k`` where that
            is more.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.5], [0.0, -0.5]])
        >>> PCA(1).directions(x, seed=0).square()  # the variance along the first axis, 2 / 3
        tensor([[0.6667],
                [0.0000]])
    """

    dimension: int = 10
    snapshots: int | None = None

    def __post_init__(self) -> None:
        _check_dimension(self)

    @property
    def kept(self) -> int:
        return self.snapshots or max(20, 2 * self.dimension)

    def directions(self, points: Tensor, seed: int) -> Tensor:
        """``P``, from iterates, oldest first, up to a shift that they share.

        Raises:
            ValueError: more dimensions than the iterates span.
        """
        return _principal(points, self.snapshots, self.dimension)


@dataclass(frozen=True)
class RandomProjection:
    """Orthogonal random directions, each as long as the principal components are on average.

    What the data say of directions is left out and the scale kept, so that it is what PCA is compared with.

    Args:
        dimension: ``k``.
        snapshots: see ``PCA``.
    """

    dimension: int = 10
    snapshots: int | None = None

    def __post_init__(self) -> None:
        _check_dimension(self)

    @property
    def kept(self) -> int:
        return self.snapshots or max(20, 2 * self.dimension)

    def directions(self, points: Tensor, seed: int) -> Tensor:
        """``P``, from iterates, oldest first, up to a shift that they share.

        Raises:
            ValueError: more dimensions than the iterates span.
        """
        length = _principal(points, self.snapshots, self.dimension).norm(dim=0).mean()
        source = generator(seed, "random projection", device=points.device)
        size = (points.shape[1], self.dimension)
        drawn = torch.randn(size, generator=source, dtype=points.dtype, device=points.device)
        return torch.linalg.qr(drawn)[0] * length


@dataclass(frozen=True)
class CurvePlane:
    """The plane through two networks and the middle of a trained curve between them.

        centre = (w_0 + w_1) / 2,    P = [ (w_1 - w_0) / 2,  w_{1/2} - centre ]

    The networks lie at ``z = (-1, 0)`` and ``(1, 0)``, the middle of the curve at ``(0, 1)``: one prior
    standard deviation from the centre (the authors take directions of length 1).

    Args:
        curve: a ``ModeCurve`` whose ``modes`` are two networks.

    What has no belief (point estimates, a learned noise level) stays as it is half-way between the networks.
    """

    curve: Any = field()

    def __post_init__(self) -> None:
        if not callable(getattr(self.curve, "connect", None)) or isinstance(self.curve, type):
            raise TypeError(f"curve must be an object such as ModeCurve(modes=...), got {self.curve!r}")

    def plane(
        self,
        model: Model,
        train: Any,
        validation: Any,
        *,
        seed: int,
        checkpoint: Path | None,
        progress: bool | None,
    ) -> tuple[Plane, dict[str, Any]]:
        """Train the curve; its plane, and facts for the posterior's ``info``.

        Raises:
            ValueError: other than two networks.
        """
        found = self.curve.connect(
            model, train, validation, seed=seed, checkpoint=checkpoint, progress=progress
        )
        if len(found.modes) != 2:
            raise ValueError(
                f"a plane needs a curve between 2 networks, got {len(found.modes)}; give ModeCurve two modes"
            )
        first, last = found.modes
        center, beliefs = (first + last) / 2, model.layout.belief
        half = torch.full((1,), 0.5, dtype=center.dtype, device=center.device)
        middle = (found.curve.weights(half) @ found.control[0])[0]
        columns = [(last - first)[:beliefs] / 2, middle[:beliefs] - center[:beliefs]]
        return Plane(center, torch.stack(columns, 1)), {"seconds": found.seconds}
