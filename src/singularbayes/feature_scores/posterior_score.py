"""A score of a posterior's predictive as a score of inputs, to stand beside scores of features."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor

from .. import scores
from ..metrics.bootstrap import check_count

__all__ = ["PosteriorScore"]


@dataclass(frozen=True, eq=False)
class PosteriorScore:
    """``rule(posterior.predict(x))``.

    Args:
        posterior: with ``predict(x, draws=, seed=)``.
        rule: one of ``sb.scores``; the default of the posterior's task if ``None``.
        draws: of the prediction.
        seed: of the draws.
    """

    posterior: Any
    rule: Callable[[Any], Tensor] | None = None
    draws: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("draws", self.draws, 1)
        if not callable(getattr(self.posterior, "predict", None)):
            raise TypeError(f"got a {type(self.posterior).__name__}, expected a posterior")

    def score(self, x: Any) -> Float[Tensor, " B"]:
        """Scores of inputs; higher is more out-of-distribution."""
        rule = self.rule
        if rule is None:
            task = self.posterior.likelihood.task
            rule = scores.for_task(task)[scores.default(task)]
        return rule(self.posterior.predict(x, draws=self.draws, seed=self.seed)).double().cpu()
