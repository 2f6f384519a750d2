"""Losses in [0, 1], of one network's outputs: what a PAC-Bayes certificate speaks of.

References:
    Dziugaite and Roy 2017, arXiv 1703.11008 (bounded cross-entropy, appendix D).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from .likelihoods import Likelihood
from .predictive import GaussianPredictive

__all__ = ["BoundedCrossEntropy", "BoundedLoss", "ClippedLoss", "ZeroOne"]

_CLASSES = ("categorical", "bernoulli")


@runtime_checkable
class BoundedLoss(Protocol):
    """A loss in [0, 1] for every row."""

    def check(self, likelihood: Likelihood) -> None:
        """Refuse a likelihood that the loss is not defined for.

        Raises:
            TypeError: naming those it is defined for.
        """
        ...

    def losses(
        self, likelihood: Likelihood, outputs: Tensor, y: Tensor, parameters: Mapping[str, Tensor]
    ) -> Tensor:
        """``(B,)``, in [0, 1].

        Args:
            likelihood: of the outputs.
            outputs: of one network ``(B, *event)``.
            y: labels, checked by the likelihood.
            parameters: learned numbers of the likelihood.
        """
        ...


def _check_task(loss: object, likelihood: Likelihood, tasks: tuple[str, ...], instead: str) -> None:
    if likelihood.task not in tasks:
        raise TypeError(
            f"{type(loss).__name__} is a loss for {' and '.join(tasks)} likelihoods, got "
            f"{type(likelihood).__name__}; use {instead}"
        )


@dataclass(frozen=True)
class ZeroOne:
    """1 where the most probable class is not the label: the error rate. It has no gradient.

    Example:
        >>> import torch
        >>> from singularbayes import Categorical
        >>> ZeroOne().losses(Categorical(), torch.eye(2), torch.tensor([0, 0]), {}).tolist()
        [0.0, 1.0]
    """

    def check(self, likelihood: Likelihood) -> None:
        _check_task(self, likelihood, _CLASSES, "ClippedLoss(limit)")

    def losses(
        self, likelihood: Likelihood, outputs: Tensor, y: Tensor, parameters: Mapping[str, Tensor]
    ) -> Tensor:
        one = {name: tensor.unsqueeze(0) for name, tensor in parameters.items()}
        log_probs = likelihood.predictive(outputs.unsqueeze(0), one).log_probs[0]  # type: ignore[union-attr]
        return (log_probs.argmax(-1) != y).to(log_probs.dtype)


@dataclass(frozen=True)
class BoundedCrossEntropy:
    """``min(-ln p(y), ln(1 / p_min)) / ln(1 / p_min)``: cross-entropy, clamped and scaled to [0, 1].

    Args:
        p_min: probability below which a label's costs no more, in (0, 1).
    """

    p_min: float = 1e-4

    def __post_init__(self) -> None:
        if not 0 < self.p_min < 1:
            raise ValueError(f"p_min is a probability strictly between 0 and 1, got {self.p_min}")

    def check(self, likelihood: Likelihood) -> None:
        _check_task(self, likelihood, _CLASSES, "ClippedLoss(limit)")

    @property
    def unit(self) -> float:
        """Nats that a loss of 1 stands for."""
        return -math.log(self.p_min)

    def losses(
        self, likelihood: Likelihood, outputs: Tensor, y: Tensor, parameters: Mapping[str, Tensor]
    ) -> Tensor:
        return (-likelihood.log_prob(outputs, y, parameters) / self.unit).clamp(0.0, 1.0)


@dataclass(frozen=True)
class ClippedLoss:
    """``min(|y - f(x)| / limit, 1)^power``: absolute or squared error of a regression, clipped.

    Of several outputs the mean of theirs.

    Args:
        limit: the error, in the units of ``y``, from which on a row costs 1; fixed before the data were seen.
        power: 1 for absolute, 2 for squared error.
    """

    limit: float
    power: int = 2

    def __post_init__(self) -> None:
        if not (self.limit > 0 and math.isfinite(self.limit)):
            raise ValueError(f"limit is an error in the units of y, positive and finite, got {self.limit}")
        if self.power not in (1, 2):
            raise ValueError(f"power must be 1 (absolute) or 2 (squared), got {self.power}")

    def check(self, likelihood: Likelihood) -> None:
        _check_task(self, likelihood, ("gaussian",), "ZeroOne() or BoundedCrossEntropy()")

    @property
    def unit(self) -> float:
        """What a loss of 1 stands for, in the units of y (squared for ``power`` 2)."""
        return self.limit**self.power

    def losses(
        self, likelihood: Likelihood, outputs: Tensor, y: Tensor, parameters: Mapping[str, Tensor]
    ) -> Tensor:
        one = {name: tensor.unsqueeze(0) for name, tensor in parameters.items()}
        predictive = likelihood.predictive(outputs.unsqueeze(0), one)
        assert isinstance(predictive, GaussianPredictive)  # noqa: S101 - checked by its task
        errors = ((y - predictive.means[0]).abs() / self.limit).clamp(max=1.0)
        errors = errors if self.power == 1 else errors.square()
        return errors if errors.dim() == 1 else errors.flatten(1).mean(1)
