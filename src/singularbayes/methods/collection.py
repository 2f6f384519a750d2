"""Runs of SGD whose iterates are collected: their settings, the schedule of the learning rate, the learner.

The step size is ``learning_rate`` for the first half of the time before ``start_epoch``, falls in a line to
``collect_rate`` at nine tenths of it, and stays there: large enough to keep moving over the basin, so that
the iterates at the ends of the epochs after ``start_epoch`` spread as SGD's stationary law does.

References:
    Izmailov et al. 2018, arXiv 1803.05407, section 3.2 and the authors' code (schedule). Maddox et al. 2019,
    arXiv 1902.02476, appendix D (settings). Mandt et al. 2017, arXiv 1704.04289 (what the spread means).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from ..distributions import StoredDraws
from ..model import Model
from .learner import Bound, PointLearner, sgd
from .settings import Schedule, Training
from .trajectory import Trajectory

__all__ = ["BuildCollection", "Collection"]


@dataclass(frozen=True, kw_only=True)
class Collection(Training):
    """Settings of a run of SGD with momentum whose iterates are collected. Other fields: see ``Training``.

    The defaults are the authors' for a network trained from scratch: 300 epochs, the iterates after epoch 161
    collected. From a network that is trained already, ``start_epoch=0`` collects from the first epoch on, at
    ``collect_rate`` throughout, and some 20 to 50 epochs do.

    Args:
        epochs: passes over the training data.
        learning_rate: SGD's step size at the start.
        start_epoch: epochs before the first one whose end is collected.
        collect_rate: SGD's step size while iterates are collected.
        momentum: of SGD.
    """

    epochs: int = 300
    learning_rate: float = 0.05
    start_epoch: int = 161
    collect_rate: float = 0.01
    momentum: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        if (
            isinstance(self.start_epoch, bool)
            or not isinstance(self.start_epoch, Integral)
            or self.start_epoch < 0
        ):
            raise ValueError(f"start_epoch must be a whole number, 0 or more, got {self.start_epoch!r}")
        if self.start_epoch >= self.epochs:
            raise ValueError(
                f"{name} collects at the ends of the epochs after start_epoch={self.start_epoch}, but "
                f"epochs={self.epochs}: nothing would be collected; raise epochs, or lower start_epoch"
            )
        if not (self.collect_rate > 0 and math.isfinite(self.collect_rate)):
            raise ValueError(f"collect_rate must be positive and finite, got {self.collect_rate!r}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must lie in [0, 1), got {self.momentum!r}")
        if self.patience is not None:
            raise ValueError(
                f"{name} collects over a fixed number of epochs, so it has no early stop; leave patience=None"
            )
        if self.schedule is not Schedule.CONSTANT:
            raise ValueError(
                f"{name} has a schedule of its own, from learning_rate to collect_rate; leave schedule alone"
            )

    def rate(self, progress: float) -> float:
        """The step size after ``progress`` epochs."""
        if progress >= 0.9 * self.start_epoch:
            return self.collect_rate
        share = max(progress / self.start_epoch - 0.5, 0) / 0.4
        return self.learning_rate + share * (self.collect_rate - self.learning_rate)


class CollectionLearner:
    """A point estimate trained by SGD; the trajectory takes in its iterates.

    Its distribution is the present iterate: losses on the way, and the last good state of a fit that
    diverges, are those of the network that is trained. What becomes of the trajectory is the method's matter.
    """

    def __init__(
        self, settings: Collection, trajectory: Trajectory, bound: Bound, start: Tensor, gradient: Tensor
    ) -> None:
        self.settings, self.trajectory = settings, trajectory
        self.point = PointLearner(bound, start, gradient)
        self.bound, self.vector, self.gradient = bound, self.point.vector, gradient
        self.descent = sgd(self.vector, settings.rate(0), settings.momentum)

    def draw(self, noise: torch.Generator) -> None:
        self.point.draw(noise)

    def finish(self, weight: float, progress: float) -> None:
        self.point.finish(weight, progress)
        self.descent.param_groups[0]["lr"] = self.settings.rate(progress)

    def optimizer(self, learning_rate: float) -> torch.optim.Optimizer:
        return self.descent

    def regulariser(self) -> float:
        return self.point.regulariser()

    def distribution(self) -> StoredDraws:
        return self.point.distribution()

    def facts(self) -> dict[str, Any]:
        return {"collected": self.trajectory.count}

    def end_of_epoch(self, epoch: int) -> None:
        if epoch > self.settings.start_epoch:
            self.trajectory.add(self.vector)

    def collected(self) -> dict[str, Tensor]:
        return self.trajectory.tensors()

    def recollect(self, tensors: dict[str, Tensor]) -> None:
        self.trajectory.load(tensors, self.vector.device)


@dataclass(frozen=True)
class BuildCollection:
    """Makes a :class:`CollectionLearner`.

    Args:
        settings: of the run.
        trajectory: takes in the iterates ``(layout.trained,)``; the method that made it reads it after the
            fit.
    """

    settings: Collection
    trajectory: Trajectory

    def size(self, model: Model) -> int:
        return model.layout.trained

    def __call__(self, bound: Bound, start: Tensor, gradient: Tensor) -> CollectionLearner:
        return CollectionLearner(self.settings, self.trajectory, bound, start, gradient)
