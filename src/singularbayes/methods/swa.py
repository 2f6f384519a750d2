"""Stochastic weight averaging: the mean of SGD's iterates, a flatter place than any of them.

    w = mean over epochs e > start_epoch of (the iterate at the end of epoch e)

Statistics of normalisation layers are estimated anew at the average. One network: its epistemic uncertainty
is 0. What the iterates spread around it is SWAG's matter.

References:
    Izmailov et al. 2018, arXiv 1803.05407, algorithm 1 (constant learning rate, one iterate an epoch).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..distributions import StoredDraws
from ..model import Model, check_model
from ..normalization import refreshed
from ..posterior import Posterior
from .collection import BuildCollection, Collection
from .collector import Collector, Last, training_pass
from .training import fit_learner
from .trajectory import Trajectory

__all__ = ["SWA"]


@dataclass(frozen=True, kw_only=True)
class SWA(Collection):
    """Stochastic weight averaging. Fields: see ``Collection``.

    It starts from the weights of ``model.network`` and needs no more memory than one average. The log's
    validation NLL is that of the network that is trained, not of the average.

    Example:
        >>> import singularbayes as sb
        >>> x = torch.linspace(-1, 1, 32).unsqueeze(1)
        >>> model = sb.Model(torch.nn.Linear(1, 1), sb.Gaussian(noise=0.5))
        >>> posterior = SWA(epochs=4, start_epoch=0).fit(model, (x, 2 * x))
        >>> posterior.predict(x).epistemic.max().item(), posterior.info["collected"]
        (0.0, 4)
    """

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
        """Train by SGD and average. Arguments, returns and errors: see ``MAP.fit``."""
        check_model(model)
        trajectory = Trajectory(rank=0, spread=0)
        fitted = fit_learner(
            model,
            self,
            BuildCollection(self, trajectory),
            train,
            validation,
            seed=seed,
            checkpoint=checkpoint,
            progress=progress,
            facts={"method": type(self).__name__, "numbers": model.layout.trained},
        )
        return self.posterior_of(model, Last(model, fitted.network, fitted.info), trajectory, train, seed)

    def collector(self, model: Model) -> Collector:
        """For a loop of your own, or checkpoints: averages what it is given. See :class:`Collector`."""
        return Collector(model, Trajectory(rank=0, spread=0), self)

    def posterior_of(
        self, model: Model, last: Last, trajectory: Trajectory, train: Any, seed: int
    ) -> Posterior:
        """The posterior at the trajectory's mean.

        Args:
            model: of the fit.
            last: where the walk ended.
            trajectory: of trained vectors.
            train: training data, for statistics of normalisation layers; ``None`` if there are none.
            seed: of the order of the data.
        """
        layout = model.layout
        rows = torch.cat([trajectory.mean.to(model.dtype), last.statistics]).unsqueeze(0)
        rows = refreshed(last.network, layout, rows, training_pass(self, model, last, train, seed))
        info = {**last.info, "numbers": layout.trained, "collected": trajectory.count}
        layout.write(last.network, rows[0])
        return Posterior(last.network, StoredDraws(rows), model.likelihood, layout, info)
