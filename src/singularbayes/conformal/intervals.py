"""Split-conformal prediction intervals of numbers.

    interval(x) = the y with score(x, y) <= q,   q = the conformal quantile of score(x_i, y_i)

References:
    Lei et al. 2018, arXiv 1604.04173, algorithm 2 and section 5.2 (absolute and normalised residual); Romano
    et al. 2019, arXiv 1905.03222, eqs. 6-8 (conformalised quantile regression).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from ..predictive import GaussianPredictive
from .quantile import check_level, conformal_quantile
from .reading import predicted, read_json, read_numbers, save_json, write_numbers

__all__ = ["CQR", "AbsoluteResidual", "ConformalIntervals", "IntervalScore", "NormalizedResidual",
           "conformal_intervals"]  # fmt: skip


@runtime_checkable
class IntervalScore(Protocol):
    """How far a label lies from what was predicted; the interval holds the labels below a threshold."""

    def scores(self, predictive: GaussianPredictive, y: Tensor, level: float) -> Tensor:
        """Scores of labels, ``(B, *event)``."""
        ...

    def interval(self, predictive: GaussianPredictive, threshold: Tensor, level: float) -> Tensor:
        """Edges ``(2, B, *event)`` of the labels whose score is at most ``threshold (*event)``."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Plain fields, with ``kind``."""
        ...


@dataclass(frozen=True, kw_only=True)
class AbsoluteResidual:
    """``|y - mean|``: intervals of one width for all inputs, in the units of ``y``."""

    def scores(self, predictive: GaussianPredictive, y: Tensor, level: float) -> Tensor:
        return (y - predictive.mean).abs()

    def interval(self, predictive: GaussianPredictive, threshold: Tensor, level: float) -> Tensor:
        return torch.stack([predictive.mean - threshold, predictive.mean + threshold])

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "AbsoluteResidual"}


@dataclass(frozen=True, kw_only=True)
class NormalizedResidual:
    """``|y - mean| / std`` with the predictive's own total std: wide where the posterior is unsure."""

    def scores(self, predictive: GaussianPredictive, y: Tensor, level: float) -> Tensor:
        return (y - predictive.mean).abs() / predictive.variance.sqrt()

    def interval(self, predictive: GaussianPredictive, threshold: Tensor, level: float) -> Tensor:
        half = threshold * predictive.variance.sqrt()
        return torch.stack([predictive.mean - half, predictive.mean + half])

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "NormalizedResidual"}


@dataclass(frozen=True, kw_only=True)
class CQR:
    """``max(low - y, y - high)`` of the predictive's own central interval at the level: both edges are moved.

    Where the intervals are too wide they shrink; one that would turn inside out becomes its middle.
    """

    def scores(self, predictive: GaussianPredictive, y: Tensor, level: float) -> Tensor:
        low, high = predictive.interval(level)
        return torch.maximum(low - y, y - high)

    def interval(self, predictive: GaussianPredictive, threshold: Tensor, level: float) -> Tensor:
        low, high = predictive.interval(level)
        # an edge that is infinite (a recalibrated tail) stays, whatever is added to it
        moved = torch.stack([torch.where(low.isinf(), low, low - threshold),
                             torch.where(high.isinf(), high, high + threshold)])  # fmt: skip
        middle = ((low + high) / 2).expand_as(moved)
        return torch.where(moved[0] > moved[1], middle, moved)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "CQR"}


_KINDS: dict[str, Any] = {
    "AbsoluteResidual": AbsoluteResidual,
    "NormalizedResidual": NormalizedResidual,
    "CQR": CQR,
}


@dataclass(frozen=True, eq=False)
class ConformalIntervals:
    """A fitted threshold: applied to any predictive of the same posterior.

    Args:
        score: of the intervals.
        level: of the coverage.
        threshold: on the score, ``(*event)``; infinite after too few calibration points.
        size: number of calibration points.
    """

    score: IntervalScore
    level: float
    threshold: Float[Tensor, "*event"]
    size: int

    def interval(self, predictive: Any) -> Float[Tensor, "2 B *event"]:
        """The two edges of each row's interval; of several outputs, each one's own.

        Raises:
            TypeError: a predictive of classes.
            ValueError: other outputs than were calibrated.
        """
        _check(predictive)
        event = predictive.mean.shape[1:]
        if event != self.threshold.shape:
            raise ValueError(f"calibrated on outputs of shape {tuple(self.threshold.shape)} a row, got "
                             f"{tuple(event)}; calibrate on this posterior")  # fmt: skip
        threshold = self.threshold.to(predictive.mean)
        return self.score.interval(predictive, threshold, self.level)

    def to_dict(self) -> dict[str, Any]:
        """Plain fields for strict JSON."""
        return {"kind": "ConformalIntervals", "score": self.score.to_dict(), "level": self.level,
                "threshold": write_numbers(self.threshold), "size": self.size}  # fmt: skip

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> ConformalIntervals:
        """What :meth:`to_dict` wrote."""
        fields = dict(content["score"])
        score = _KINDS[fields.pop("kind")](**fields)
        return cls(score, content["level"], read_numbers(content["threshold"]), content["size"])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one JSON file, whole or not at all; scores of your own cannot be saved.

        Raises:
            TypeError: a score that is not the library's own.
        """
        save_json(path, self.to_dict(), self.score, _KINDS)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ConformalIntervals:
        """Read what :meth:`save` wrote.

        Raises:
            FileNotFoundError: no such file.
            ValueError: another content.
        """
        return cls.from_dict(read_json(path, "ConformalIntervals"))


def conformal_intervals(
    source: Any,
    validation: Any,
    level: float = 0.9,
    score: IntervalScore | None = None,
    draws: int = 64,
    seed: int = 0,
) -> ConformalIntervals:
    """Intervals that hold the label with probability ``level``, whatever the model.

    The guarantee is marginal (over calibration and new points together, for each output apart) and holds
    while both are exchangeable: not for data of another distribution or later times, and not where the
    calibration points also trained, chose or calibrated the model.

    Args:
        source: a posterior, or a predictive of the calibration points.
        validation: ``(X, y)`` with a posterior, ``y`` with a predictive.
        level: of the coverage.
        score: :class:`CQR` (the default), :class:`NormalizedResidual` or :class:`AbsoluteResidual`.
        draws: of the posterior's prediction; predict new points with as many.
        seed: of the draws.

    Raises:
        TypeError: a predictive of classes.
        ValueError: no labels, labels of another shape, a level outside (0, 1).

    Warns:
        UserWarning: too few calibration points for the level: every interval is infinite.

    Example:
        >>> pred = GaussianPredictive(torch.zeros(1, 9), torch.ones(1, 9))
        >>> fitted = conformal_intervals(pred, torch.arange(9.0), level=0.9, score=AbsoluteResidual())
        >>> fitted.interval(pred)[:, 0].tolist()
        [-8.0, 8.0]
    """
    check_level(level)
    score = CQR() if score is None else score
    predictive, y = predicted(source, validation, draws, seed)
    _check(predictive)
    centre = predictive.mean
    labels = y.to(centre.device)
    predictive.log_prob(labels)  # checks their shape
    scores = score.scores(predictive, labels.reshape(centre.shape).to(centre.dtype), float(level))
    threshold = conformal_quantile(scores.double(), level).cpu()
    return ConformalIntervals(score, float(level), threshold, len(scores))


def _check(predictive: Any) -> None:
    if not isinstance(predictive, GaussianPredictive):
        raise TypeError(f"conformal intervals are of numbers, got a {type(predictive).__name__}; for classes "
                        f"use conformal_sets")  # fmt: skip
