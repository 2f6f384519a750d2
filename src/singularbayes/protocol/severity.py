"""How a posterior's results change as its test data are damaged more and more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..evaluation import OOD_MEASURES, Evaluation, evaluate
from ..evaluation.data import Reader
from ..metrics import Interval
from .corruptions import SEVERITIES, Corruption

if TYPE_CHECKING:
    import pandas  # noqa: ICN001 - the name in annotations is absolute

__all__ = ["SeverityCurve", "severity_curve"]


@dataclass(frozen=True)
class SeverityCurve:
    """The results at each severity.

    Args:
        corruption: name of what was done.
        severities: from 0, the test set itself.
        evaluation: of the test set, with each further severity as an OOD set: "severity 1", ...
    """

    corruption: str
    severities: tuple[int, ...]
    evaluation: Evaluation

    def metric(self, name: str, score: str | None = None) -> list[Interval]:
        """One metric at every severity.

        Args:
            name: a metric of the test set, or ``auroc``, ``average_precision_out``, ``average_precision_in``
                or ``fpr95`` of telling the damaged rows from the test rows (at severity 0: chance, without an
                interval). A name of both kinds (``auroc`` of a binary label) is the former without a score.
            score: for the latter; the score of the evaluation if ``None``.

        Raises:
            ValueError: no such metric or score.
        """
        found, own = self.evaluation, score or self.evaluation.score
        if name in found.metrics and score is None:
            return [found.metrics[name], *(found.ood_metrics[_set(s)][name] for s in self.severities[1:])]
        if name not in OOD_MEASURES:
            known = sorted({*(found.metrics if score is None else ()), *OOD_MEASURES})
            raise ValueError(f"unknown metric {name!r}; expected one of {', '.join(known)}")
        by_score = [found.ood[_set(s)] for s in self.severities[1:]]
        if own not in by_score[0]:
            raise ValueError(f"unknown score {own!r}; expected one of {', '.join(sorted(by_score[0]))}")
        chance = 0.95 if name == "fpr95" else 0.5  # two equal sets of equal size
        return [Interval(chance, np.nan, np.nan), *(measures[own][name] for measures in by_score)]

    def table(self) -> pandas.DataFrame:
        """One line per severity and measure: corruption, severity, score, measure, value, low, high."""
        lines = self.evaluation.table().drop(columns="prevalence")
        number = {"test": 0} | {_set(s): s for s in self.severities[1:]}
        lines.insert(0, "corruption", self.corruption)
        lines.insert(1, "severity", lines.pop("set").map(number))
        return lines


def _set(severity: int) -> str:
    return f"severity {severity}"


def severity_curve(
    posterior: Any,
    test: Any,
    corruption: Corruption,
    severities: Sequence[int] = SEVERITIES,
    draws: int = 64,
    bootstrap: int = 1000,
    seed: int = 0,
    name: str | None = None,
) -> SeverityCurve:
    """Evaluate a posterior on test data and on the same rows damaged at each severity.

    All severities use the same posterior draws, the same seed of the damage and the same resamples, so that
    they can be compared row by row (``paired_difference``).

    Args:
        posterior: as for ``evaluate``.
        test: ``(X, y)`` in any form that ``evaluate`` takes, with one array of floating point inputs.
        corruption: what is done to the inputs; labels stay.
        severities: from 1 to 5, rising.
        draws: posterior draws.
        bootstrap: resamples of the intervals; 0 for values alone.
        seed: of the draws, the damage and the resamples.
        name: of the corruption in tables; its class's name by default.

    Raises:
        TypeError: no corruption, or inputs of several parts or whole numbers.
        ValueError: severities that do not rise, and what ``evaluate`` refuses.

    Example:
        A posterior that knows the answer, whose error grows with the noise:

        >>> import torch
        >>> from torch import nn
        >>> import singularbayes as sb
        >>> from singularbayes.protocol import FeatureNoise, severity_curve
        >>> x = torch.randn(80, 1, generator=torch.Generator().manual_seed(0))
        >>> model = sb.Model(nn.Linear(1, 1), sb.Gaussian(noise=0.1))
        >>> posterior = sb.MAP(epochs=200, learning_rate=0.05).fit(model, (x, 2 * x[:, 0]))
        >>> curve = severity_curve(posterior, (x, 2 * x[:, 0]), FeatureNoise(), bootstrap=0)
        >>> errors = [cell.value for cell in curve.metric("rmse")]
        >>> errors == sorted(errors)
        True
    """
    if isinstance(corruption, type) or not isinstance(corruption, Corruption):
        raise TypeError(
            f"corruption is {corruption!r}; expected an object with apply(x, severity, seed), such as "
            f"FeatureNoise()"
        )
    chosen = tuple(severities)
    if not chosen or list(chosen) != sorted(set(chosen)) or not set(chosen) <= set(SEVERITIES):
        raise ValueError(f"severities must rise within 1..5, got {chosen}")
    held = Reader.of(posterior).read(test)
    if not isinstance(held.x, torch.Tensor) or not held.x.is_floating_point():
        kind = f"a tensor of {held.x.dtype}" if isinstance(held.x, torch.Tensor) else type(held.x).__name__
        raise TypeError(f"test inputs are {kind}; expected one array of floating point inputs")
    if held.y is None:
        raise ValueError("test has no labels; expected (X, y)")
    inputs = held.x.cpu().numpy()
    damaged = {_set(s): (corruption.apply(inputs, s, seed), held.y) for s in chosen}
    found = evaluate(posterior, (held.x, held.y), damaged, draws=draws, bootstrap=bootstrap, seed=seed)
    return SeverityCurve(name or type(corruption).__name__, (0, *chosen), found)
