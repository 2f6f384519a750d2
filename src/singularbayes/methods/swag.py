"""SWAG: a Gaussian around the mean of SGD's iterates, with their variances and their last deviations.

    w = mean + sqrt(1/2) (sqrt(variance) z1 + D^T z2 / sqrt(k - 1)),    z1 ~ N(0, I_d), z2 ~ N(0, I_k)

``mean`` and ``variance`` (divided by n) are over the iterates at the ends of the epochs after
``start_epoch``; ``D (k x d)`` holds the last ``k`` deviations of an iterate from the mean of its time. One
``z2`` for the whole network: that is what correlates its layers. Diagonal only, or with one deviation, it is
``w = mean + sqrt(variance) z1``.

References:
    Maddox et al. 2019, arXiv 1902.02476, algorithm 1 and eq. 1; MultiSWAG, ``DeepEnsemble(member=SWAG())``:
    Wilson and Izmailov 2020, arXiv 2002.08791.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..distributions import DiagonalGaussian, LowRankGaussian, StoredDraws
from ..model import Model, check_model
from ..normalization import has_statistics, refreshed
from ..posterior import Posterior
from ..random import derive
from .collection import BuildCollection, Collection
from .collector import Collector, Last, training_pass
from .learner import warn_if_narrow
from .settings import check_whole
from .training import fit_learner
from .trajectory import Trajectory

__all__ = ["SWAG", "gaussian"]


def gaussian(trajectory: Trajectory, scale: float, statistics: Tensor) -> DiagonalGaussian | LowRankGaussian:
    """The Gaussian of a trajectory.

    Args:
        trajectory: of vectors ``(d,)``; its deviations are used where they lie, not copied.
        scale: factor on the covariance.
        statistics: what follows the ``d`` entries in a row, without a spread.
    """
    low_rank, dtype = trajectory.kept > 1, statistics.dtype
    share = 0.5 * scale if low_rank else scale
    std = _followed_by(trajectory.variance.mul_(share).sqrt_().to(dtype), torch.zeros_like(statistics))
    if not low_rank:
        return DiagonalGaussian(torch.cat([trajectory.mean.to(dtype), statistics]), std)
    factor = trajectory.factor(math.sqrt(share / (trajectory.kept - 1))).to(dtype)
    if len(statistics):
        factor = F.pad(factor, (0, 0, 0, len(statistics)))
    # the mean after the factor, which lends it as well
    return LowRankGaussian(_followed_by(trajectory.mean.to(dtype), statistics), std, factor)


def _followed_by(one: Tensor, two: Tensor) -> Tensor:
    return torch.cat([one, two]) if len(two) else one


@dataclass(frozen=True, kw_only=True)
class SWAG(Collection):
    """Stochastic weight averaging, Gaussian. Other fields: see ``Collection``.

    It starts from the weights of ``model.network``. Parameters without a belief (``deterministic=``, gains
    and shifts of normalisation layers) are averaged and have no spread. A network whose normalisation layers
    have running statistics needs other ones for every draw: ``stored_draws`` draws are then taken once, each
    with statistics of its own from a pass over the training data, and the posterior is those draws; its mean
    is no network (use ``SWA``).

    Args:
        rank: ``K``, the deviations that are kept, ``4 K d`` bytes; 0 is diagonal only, ``N(mean, variance)``.
        scale: factor on the covariance; 1 is the authors'.
        stored_draws: for networks with running statistics only.

    What it is not: Bayes' posterior. Its width is that of SGD's stationary law, which follows the step size
    and the batch size; ``collect_rate`` and ``scale`` are to be tuned on validation data.

    Example:
        >>> import singularbayes as sb
        >>> x = torch.linspace(-1, 1, 32).unsqueeze(1)
        >>> model = sb.Model(torch.nn.Linear(1, 1), sb.Gaussian(noise=0.5))
        >>> posterior = SWAG(epochs=8, start_epoch=3, batch_size=8).fit(model, (x, 2 * x))
        >>> posterior.distribution.factor.shape
        torch.Size([2, 5])
    """

    rank: int = 20
    scale: float = 1.0
    stored_draws: int = 30

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(stored_draws=self.stored_draws)
        whole = isinstance(self.rank, Integral) and not isinstance(self.rank, bool)
        if not whole or self.rank < 0 or self.rank == 1:
            raise ValueError(
                f"rank must be 0 (diagonal only) or a whole number of at least 2 (the low rank part divides "
                f"by one less), got {self.rank!r}"
            )
        if not (self.scale > 0 and math.isfinite(self.scale)):
            raise ValueError(f"scale is a factor on the covariance: positive and finite, got {self.scale!r}")

    def _trajectory(self, model: Model) -> Trajectory:
        return Trajectory(rank=self.rank, spread=model.layout.belief)

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
        """Train by SGD and collect. Arguments, returns and errors: see ``MAP.fit``.

        The log's validation NLL is that of the network that is trained.
        """
        check_model(model)
        trajectory = self._trajectory(model)
        fitted = fit_learner(
            model,
            self,
            BuildCollection(self, trajectory),
            train,
            validation,
            seed=seed,
            checkpoint=checkpoint,
            progress=progress,
            facts={"method": type(self).__name__},
        )
        return self.posterior_of(model, Last(model, fitted.network, fitted.info), trajectory, train, seed)

    def collector(self, model: Model) -> Collector:
        """For a loop of your own, or checkpoints: ``swag.collect(network)``. See :class:`Collector`."""
        check_model(model)
        return Collector(model, self._trajectory(model), self)

    def posterior_of(
        self, model: Model, last: Last, trajectory: Trajectory, train: Any, seed: int
    ) -> Posterior:
        """The posterior around the trajectory's mean.

        Args:
            model: of the fit.
            last: where the walk ended.
            trajectory: of trained vectors.
            train: training data, for statistics of normalisation layers; ``None`` if there are none.
            seed: of the stored draws and the order of the data.
        """
        layout, network = model.layout, last.network
        around = gaussian(trajectory, self.scale, last.statistics)
        columns = around.factor.shape[1] if isinstance(around, LowRankGaussian) else 0
        numbers = layout.trained + (1 + columns) * layout.belief
        info = {**last.info, "numbers": numbers, "collected": trajectory.count}
        layout.write(network, around.mean)
        posterior = Posterior(network, around, model.likelihood, layout, info)
        widest, mean = around.std.max().item(), around.mean[: layout.belief]
        warn_if_narrow(widest, mean, "collect more iterates, or raise collect_rate or scale", stacklevel=4)
        if not has_statistics(network, layout):
            return posterior
        rows = posterior.draw(self.stored_draws, derive(seed, "stored draws"))
        rows = refreshed(network, layout, rows, training_pass(self, model, last, train, seed))
        info = {**info, "numbers": self.stored_draws * layout.trained}
        stored = StoredDraws(rows)
        layout.write(network, stored.mean)
        return Posterior(network, stored, model.likelihood, layout, info)
