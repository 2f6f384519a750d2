"""Bayesian inference in a subspace of weight space.

    w = centre + P z,    p(z | D)  prop.  p(D | w)^(1/T) N(z; 0, I)

``centre`` is the mean of a walk of SGD and ``P (d x k)`` its principal components, random directions, or the
plane of a curve between two networks; ``k`` is small enough for inference that looks at all of it.

References:
    Izmailov et al. 2019, arXiv 1907.07504.
"""

from __future__ import annotations

import dataclasses
import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..model import Model, check_model
from ..posterior import Posterior
from ..random import derive
from .collection import BuildCollection, Collection
from .collector import Collector, Last
from .elliptical_slice import EllipticalSlice
from .full_data import FullData
from .given import given_rows
from .plane import Inference, Plane, Problem
from .subspace_bases import PCA, CurvePlane, FromWalk, iterates
from .training import fit_learner
from .trajectory import Trajectory

__all__ = ["Subspace"]

_PASS_ROWS = 64  # a batch of the passes that estimate statistics of normalisation layers


@dataclass(frozen=True)
class _Given:
    """What ``fit`` was called with."""

    train: Any
    validation: Any
    seed: int
    checkpoint: Path | None
    progress: bool | None

    def folder(self, name: str) -> Path | None:
        """A part's own folder of the checkpoint."""
        return None if self.checkpoint is None else self.checkpoint / name


@dataclass(frozen=True, kw_only=True)
class Subspace:
    """Inference in a subspace, from a run of SGD, from networks that are given, or from a loop of your own.

    Entries with a belief move; point estimates and a learned noise level stay at the centre's. Statistics of
    normalisation layers are estimated anew for each draw (and each point that slice sampling looks at).

    Args:
        trajectory: where the iterates come from: ``Collection(...)`` runs SGD from ``model.network``'s
            weights (its ``temperature`` weighs the prior in that run's loss); or a ``Trajectory`` that was
            collected before; or a posterior of several networks, or a list of posteriors or networks.
        basis: ``PCA(dimension)``, ``RandomProjection(dimension)``, or ``CurvePlane(ModeCurve(...))``, which
            needs no trajectory.
        inference: ``EllipticalSlice()`` or ``SubspaceVI()``; its ``temperature`` is ``T``.
        prior_std: factor on all columns of ``P``, the prior's standard deviation of each coordinate in units
            of the basis. A walk at a small step size is far narrower than the posterior: choose it on
            validation data together with ``T``.

    What it is not: the posterior of the network. Its prior on ``z`` is set by the width of the walk and
    ``prior_std``, not by the model's prior, and everything outside of the subspace is held fixed.

    Example:
        >>> import singularbayes as sb
        >>> x = torch.linspace(-1, 1, 32).unsqueeze(1)
        >>> model = sb.Model(torch.nn.Linear(1, 1), sb.Gaussian(noise=0.5))
        >>> run = Collection(epochs=12, start_epoch=4, batch_size=8)
        >>> method = Subspace(trajectory=run, basis=PCA(2), inference=EllipticalSlice(draws=8))
        >>> posterior = method.fit(model, (x, 2 * x))
        >>> posterior.predict(x).draws, len(posterior.info["z_mean"])
        (8, 2)
    """

    trajectory: Any = field(default_factory=Collection)
    basis: FromWalk | CurvePlane = field(default_factory=PCA)
    inference: Inference = field(default_factory=EllipticalSlice)
    prior_std: float = 1.0

    def __post_init__(self) -> None:
        for name, kind, example in (
            ("basis", FromWalk | CurvePlane, "PCA(10)"),
            ("inference", Inference, "EllipticalSlice()"),
        ):
            value = getattr(self, name)
            if isinstance(value, type) or not isinstance(value, kind):
                raise TypeError(f"{name} must be an object such as {example}, got {value!r}")
        if not (self.prior_std > 0 and math.isfinite(self.prior_std)):
            raise ValueError(f"prior_std must be positive and finite, got {self.prior_std!r}")
        if isinstance(self.basis, CurvePlane):
            if self.trajectory != Collection():
                raise ValueError("the plane of a curve takes no trajectory; leave trajectory alone")
            return
        if isinstance(self.trajectory, Collection):
            self._check_count(self.trajectory.epochs - self.trajectory.start_epoch, "the run would collect")
        elif isinstance(self.trajectory, Trajectory):
            self._check_count(self.trajectory.kept, "the trajectory keeps")

    def _check_count(self, count: int, what: str) -> None:
        basis = self.basis
        if count == 0:
            raise ValueError(f"{what} zero snapshots; a subspace needs at least two")
        needed = basis.dimension + 1 if isinstance(basis, FromWalk) else 0
        if count < needed:
            raise ValueError(
                f"{what} {count} snapshots, which span at most {count - 1} directions about their mean; "
                f"dimension={needed - 1} needs at least {needed}"
            )

    def fit(
        self,
        model: Model,
        train: Any,
        validation: Any = None,
        *,
        seed: int = 0,
        checkpoint: str | Path | None = None,
        progress: bool | None = None,
    ) -> Posterior:
        """Find the subspace and the posterior in it. Arguments, returns and errors: see ``MAP.fit``.

        Raises:
            ValueError: also for fewer snapshots than the dimension needs, or ones of another layout.
        """
        check_model(model)
        rest = _Given(train, validation, seed, None if checkpoint is None else Path(checkpoint), progress)
        info: dict[str, Any] = {}
        row = model.layout.flatten(model.network, model.likelihood.parameters)
        if isinstance(self.basis, CurvePlane):
            plane, info = self.basis.plane(
                model, train, validation, seed=seed, checkpoint=rest.folder("curve"), progress=progress
            )
        elif isinstance(self.trajectory, Collection):
            walk = self._walk(model)
            fitted = fit_learner(
                model,
                self.trajectory,
                BuildCollection(self.trajectory, walk),
                train,
                validation,
                seed=seed,
                checkpoint=rest.folder("run"),
                progress=progress,
                facts={"method": type(self).__name__},
            )
            info, row = fitted.info, fitted.distribution.mean
            plane = self._plane(model, walk, row[model.layout.trained :], seed)
        elif isinstance(self.trajectory, Trajectory):
            plane = self._plane(model, self.trajectory, row[model.layout.trained :], seed)
        else:
            plane = self._given(model, seed)
        return self._infer(model, plane, info, rest)

    def collector(self, model: Model) -> Collector:
        """For a loop of your own, or checkpoints: ``subspace.collect(network)``. See ``SWAG.collector``.

        Its ``posterior(train)`` needs the training data.
        """
        check_model(model)
        return Collector(model, self._walk(model), self)

    def posterior_of(
        self, model: Model, last: Last, trajectory: Trajectory, train: Any, seed: int
    ) -> Posterior:
        """The posterior in the subspace of a collected trajectory. Arguments: see ``SWAG.posterior_of``."""
        if train is None:
            raise ValueError("inference in a subspace needs the training data: posterior(train)")
        self._check_count(trajectory.kept, "the trajectory keeps")
        plane = self._plane(model, trajectory, last.statistics, seed)
        return self._infer(model, plane, last.info, _Given(train, None, seed, None, None))

    def _walk(self, model: Model) -> Trajectory:
        if not isinstance(self.basis, FromWalk):
            raise ValueError("the plane of a curve is not made of a trajectory; use .fit")
        return Trajectory(rank=self.basis.kept, spread=model.layout.belief)

    def _plane(self, model: Model, trajectory: Trajectory, statistics: Tensor, seed: int) -> Plane:
        """The plane of a collected trajectory; ``statistics`` follow the trained entries of its centre."""
        if len(trajectory.mean) != model.layout.trained:
            raise ValueError(
                f"the trajectory's vectors have {len(trajectory.mean)} entries, the model trains "
                f"{model.layout.trained}: it is of another architecture"
            )
        center = torch.cat([trajectory.mean.to(statistics), statistics])
        return self._around(model, center, iterates(trajectory)[:, : model.layout.belief], seed)

    def _given(self, model: Model, seed: int) -> Plane:
        """The plane of networks that are given."""
        rows = given_rows(model, self.trajectory, "snapshot")
        self._check_count(len(rows), "the networks given are")
        return self._around(model, rows.mean(0), rows[:, : model.layout.belief], seed)

    def _around(self, model: Model, center: Tensor, points: Tensor, seed: int) -> Plane:
        if not isinstance(self.basis, FromWalk):
            raise TypeError(f"{type(self.basis).__name__} is not made of iterates")
        found = self.basis.directions(points.to(center), seed)
        expected = (model.layout.belief, self.basis.dimension)
        if found.shape != expected:
            raise ValueError(
                f"{type(self.basis).__name__} gave directions of shape {tuple(found.shape)}, expected "
                f"{expected}"
            )
        return Plane(center, found)

    def _infer(self, model: Model, plane: Plane, info: dict[str, Any], rest: _Given) -> Posterior:
        began = time.perf_counter()
        plane = Plane(plane.center, plane.directions * self.prior_std)
        own = derive(rest.seed, "inference")
        device = plane.center.device
        data = FullData(model, rest.train, device, batch_size=_PASS_ROWS, seed=rest.seed)
        folder = rest.folder("inference")
        problem = Problem(model, plane, data, rest.train, rest.validation, own, folder, rest.progress)
        distribution, facts = self.inference.infer(problem)
        network = model.copy_network().to(device)
        model.layout.write(network, distribution.mean if distribution.support is None else plane.center)
        seconds = info.get("seconds", 0.0) + time.perf_counter() - began
        settings = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        settings["trajectory"] = type(self.trajectory).__name__
        info = {
            **info,
            **facts,
            "method": type(self).__name__,
            "seconds": seconds,
            "inference_seconds": time.perf_counter() - began,
            "dimension": plane.dimension,
            "lengths": plane.directions.norm(dim=0).tolist(),
            "seed": rest.seed,
            "num_data": data.num_data,
            "settings": settings,
        }
        return Posterior(network, distribution, model.likelihood, model.layout, info)
