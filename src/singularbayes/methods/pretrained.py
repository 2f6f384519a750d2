"""Train a network first, then fit a method that begins with a trained one, as one method.

So that what is post hoc takes part in ensembles, mixtures and recipes, whose networks start untrained:
``DeepEnsemble(member=Pretrained(member=LaplaceApproximation()))``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..model import Model, check_model
from ..posterior import Posterior
from ..random import derive
from .map import MAP

__all__ = ["Pretrained"]


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """Fit ``point``, then ``member`` from its mean.

    Args:
        member: the method of the result, such as ``LaplaceApproximation()``, ``SWAG()`` or ``Subspace()``.
        point: trains the network; any method whose posterior is one network (``MAP``, ``SWA``, or the mean of
            a ``MeanField``).

    Example:
        >>> import torch, singularbayes as sb
        >>> x = torch.linspace(-1, 1, 32).unsqueeze(1)
        >>> model = sb.Model(torch.nn.Linear(1, 1), sb.Gaussian(noise=0.5))
        >>> method = Pretrained(point=MAP(epochs=5), member=sb.LaplaceApproximation())
        >>> method.fit(model, (x, 2 * x)).info["point"]
        'MAP'
    """

    member: Any
    point: Any = field(default_factory=MAP)

    def __post_init__(self) -> None:
        for name in ("member", "point"):
            value = getattr(self, name)
            if isinstance(value, type) or not callable(getattr(value, "fit", None)):
                raise TypeError(f"{name} must be a method such as MAP(), got {value!r}")

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
        """Fit both; the seconds of the result hold both. Arguments and errors: see ``MAP.fit``.

        Raises:
            ValueError: also where the point's posterior is of separate networks (an ensemble).
        """
        check_model(model)
        before, after = (
            None if checkpoint is None else Path(checkpoint) / name for name in ("point", "then")
        )
        point = self.point.fit(
            model, train, validation, seed=derive(seed, "point"), checkpoint=before, progress=progress
        )
        posterior = self.member.fit(
            model.started_at(point), train, validation, seed=seed, checkpoint=after, progress=progress
        )
        posterior.info["seconds"] = posterior.info.get("seconds", 0.0) + point.info.get("seconds", 0.0)
        posterior.info["point"] = point.info["method"]
        return posterior
