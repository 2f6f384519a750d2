"""Split-conformal prediction sets of classes.

    set(x) = {k: score(x, k) <= q},   q = the conformal quantile of score(x_i, y_i) on calibration points

References:
    Sadinle et al. 2019, arXiv 1609.00451 (LAC, the threshold score); Romano et al. 2020, arXiv 2006.02544,
    eqs. 5-8 (APS, adaptive sets).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..predictive import BernoulliPredictive, CategoricalPredictive
from ..random import generator
from .quantile import check_level, conformal_quantile
from .reading import predicted, read_json, read_numbers, save_json, write_numbers

__all__ = ["APS", "LAC", "ConformalSets", "SetScore", "conformal_sets"]


@runtime_checkable
class SetScore(Protocol):
    """How badly each class fits: small where the class is likely."""

    def scores(self, log_probs: Tensor, u: Tensor) -> Tensor:
        """Scores ``(B, K)`` of log probabilities ``(B, K)``; ``u (B,)`` is uniform on [0, 1)."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Plain fields, with ``kind``."""
        ...


@dataclass(frozen=True, kw_only=True)
class LAC:
    """The threshold score ``-log p_k``: the smallest sets on average; hard inputs may get an empty one.

    It gives the sets of the authors' ``1 - p_k``, without its ties at probabilities next to 1.
    """

    def scores(self, log_probs: Tensor, u: Tensor) -> Tensor:
        return -log_probs

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "LAC"}


@dataclass(frozen=True, kw_only=True)
class APS:
    """The mass of the classes that are likelier than ``k``, plus a share of ``p_k``: sets that adapt.

    Args:
        randomized: the share is uniform on [0, 1), one for each row: exact coverage, and sets that can be
            empty. Without it the share is 1: larger sets, coverage above the level.
    """

    randomized: bool = True

    def scores(self, log_probs: Tensor, u: Tensor) -> Tensor:
        probs, order = log_probs.exp().sort(dim=-1, descending=True, stable=True)
        share = u.unsqueeze(-1) if self.randomized else 1.0
        ranked = probs.cumsum(-1) - probs + share * probs
        return torch.empty_like(ranked).scatter(-1, order, ranked)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "APS", "randomized": self.randomized}


_KINDS: dict[str, Any] = {"LAC": LAC, "APS": APS}


@dataclass(frozen=True)
class ConformalSets:
    """A fitted threshold: applied to any predictive of the same posterior.

    Args:
        score: of the sets.
        level: of the coverage.
        threshold: on the score; infinite after too few calibration points.
        size: number of calibration points.
    """

    score: SetScore
    level: float
    threshold: float
    size: int

    def sets(self, predictive: Any, seed: int = 0) -> Bool[Tensor, "B K"]:
        """Which classes each row's set holds.

        Args:
            predictive: of classes.
            seed: of the uniform shares of randomised sets.

        Raises:
            TypeError: a predictive without classes.
            ValueError: probabilities that are nan.
        """
        scores = _scores(self.score, predictive, seed, "application")
        return scores <= self.threshold

    def to_dict(self) -> dict[str, Any]:
        """Plain fields for strict JSON."""
        threshold = write_numbers(torch.tensor(self.threshold, dtype=torch.float64))
        return {"kind": "ConformalSets", "score": self.score.to_dict(), "level": self.level,
                "threshold": threshold, "size": self.size}  # fmt: skip

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> ConformalSets:
        """What :meth:`to_dict` wrote."""
        fields = dict(content["score"])
        score = _KINDS[fields.pop("kind")](**fields)
        return cls(score, content["level"], read_numbers(content["threshold"]).item(), content["size"])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one JSON file, whole or not at all; scores of your own cannot be saved.

        Raises:
            TypeError: a score that is not the library's own.
        """
        save_json(path, self.to_dict(), self.score, _KINDS)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ConformalSets:
        """Read what :meth:`save` wrote.

        Raises:
            FileNotFoundError: no such file.
            ValueError: another content.
        """
        return cls.from_dict(read_json(path, "ConformalSets"))


def conformal_sets(
    source: Any,
    validation: Any,
    level: float = 0.9,
    score: SetScore | None = None,
    draws: int = 64,
    seed: int = 0,
) -> ConformalSets:
    """Sets of classes that hold the right one with probability ``level``, whatever the model.

    The guarantee is marginal (over calibration and new points together, not for each class or input) and
    holds while both are exchangeable: not for data of another distribution, and not where the calibration
    points also trained, chose or calibrated the model. Coverage given one calibration set varies around the
    level by about ``sqrt(level (1 - level) / n)``.

    Args:
        source: a posterior, or a predictive of the calibration points.
        validation: ``(X, y)`` with a posterior, ``y`` with a predictive.
        level: of the coverage.
        score: :class:`LAC` (the default, smallest sets) or :class:`APS`.
        draws: of the posterior's prediction; predict new points with as many.
        seed: of the draws, and of randomised sets.

    Raises:
        TypeError: a predictive without classes.
        ValueError: no labels, a level outside (0, 1).

    Warns:
        UserWarning: too few calibration points for the level: every set holds all classes.

    Example:
        >>> probs = torch.tensor([[0.7, 0.2, 0.1]]).expand(10, 3)
        >>> pred = CategoricalPredictive(probs.log().unsqueeze(0))
        >>> fitted = conformal_sets(pred, torch.tensor([0] * 7 + [1] * 2 + [2]), level=0.8)
        >>> fitted.sets(pred)[0].tolist()
        [True, True, False]
    """
    check_level(level)
    score = LAC() if score is None else score
    predictive, y = predicted(source, validation, draws, seed)
    scores = _scores(score, predictive, seed, "calibration")
    labels = y.to(scores.device)
    predictive.log_prob(labels)  # checks them
    own = scores.gather(1, labels.long().reshape(-1, 1))[:, 0]
    threshold = conformal_quantile(own, level)
    return ConformalSets(score, float(level), threshold.item(), len(own))


def _scores(score: SetScore, predictive: Any, seed: int, purpose: str) -> Float[Tensor, "B K"]:
    if not isinstance(predictive, CategoricalPredictive | BernoulliPredictive):
        raise TypeError(f"conformal sets are sets of classes, got a {type(predictive).__name__}; for numbers "
                        f"use conformal_intervals")  # fmt: skip
    log_probs = predictive.log_probs
    rows, classes = log_probs.shape[1:]
    columns = [predictive.log_prob(log_probs.new_full((rows,), k).long()) for k in range(classes)]
    table = torch.stack(columns, 1).double()
    broken = table.isnan().any(1).nonzero()
    if len(broken):
        raise ValueError(f"the probabilities of {len(broken)} of {rows} rows are nan, first of row "
                         f"{int(broken[0])}: the network has diverged or overflows on them")  # fmt: skip
    source = generator(seed, "conformal", purpose, device=table.device)
    u = torch.rand(rows, generator=source, dtype=torch.float64, device=table.device)
    return score.scores(table.log_softmax(-1), u)  # float32 sums are off by 1e-7
