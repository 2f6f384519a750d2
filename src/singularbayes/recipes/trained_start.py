"""Start a method at a trained network: LR-SVD of arXiv 2602.00387, as a method of its own.

W trained by `point`,    A = U_r S_r^(1/2),  B = V_r S_r^(1/2),    then `member` from there
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from ..methods import MAP, MeanField
from ..model import Model
from ..posterior import Posterior
from ..priors import Normal
from ..random import derive, forked

__all__ = ["FromTrained"]


@dataclass(frozen=True, kw_only=True)
class FromTrained:
    """Train a stock network, turn it into the model's structure, and go on with ``member`` from there.

    The seconds of the result hold both fits.

    Args:
        member: fits the model, whose network has the structure that ``convert`` makes.
        point: trains the stock network.
        network: makes the stock network.
        convert: the stock network in the model's structure, with the trained weights' best approximation.
    """

    member: MeanField
    point: MAP
    network: Callable[[], nn.Module] = field(repr=False)
    convert: Callable[[nn.Module], nn.Module] = field(repr=False)

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
        """Fit both. Arguments and errors: see ``MAP.fit``."""
        own = derive(seed, "trained start", 0)
        with forked(own, "start"):
            stock = self.network()
        first, second = (
            None if checkpoint is None else Path(checkpoint) / part for part in ("point", "then")
        )
        point = self.point.fit(
            Model(stock, model.likelihood, prior=Normal(1.0)),
            train,
            validation,
            seed=own,
            checkpoint=first,
            progress=progress,
        )
        point.layout.write(stock, point.draw(1)[0])
        start = Model(self.convert(stock), model.likelihood, prior=model.prior, deterministic=_points(model))
        posterior = self.member.fit(start, train, validation, seed=seed, checkpoint=second, progress=progress)
        posterior.info["method"] = type(self).__name__
        posterior.info["seconds"] += point.info["seconds"]
        return posterior


def _points(model: Model) -> tuple[str, ...]:
    """Names of the model's point estimates: the new model has the same."""
    return tuple(slot.name for slot in model.layout.of_kind("point"))
