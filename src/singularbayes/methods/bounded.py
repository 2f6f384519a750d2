"""A likelihood whose training loss is bounded, for fits to a PAC-Bayes bound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..bounded_losses import BoundedLoss
from ..likelihoods import Likelihood
from ..predictive import Predictive

__all__ = ["Bounded"]


@dataclass(frozen=True)
class Bounded:
    """The likelihood, with the mean of a bounded loss as what training minimises.

    Args:
        likelihood: for all else.
        bounded: the loss.
        recent: losses of the passes since it was last cleared, for a learner whose step depends on them.
    """

    likelihood: Likelihood
    bounded: BoundedLoss
    recent: list[Tensor] = field(default_factory=list, repr=False, compare=False)

    @property
    def task(self) -> str:
        return self.likelihood.task

    @property
    def temperature(self) -> float:
        return self.likelihood.temperature

    @property
    def parameters(self) -> dict[str, Tensor]:
        return self.likelihood.parameters

    def labels(self, outputs_shape: torch.Size, y: Tensor) -> Tensor:
        return self.likelihood.labels(outputs_shape, y)

    def log_prob(self, outputs: Tensor, y: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
        return self.likelihood.log_prob(outputs, y, parameters)

    def loss(self, outputs: Tensor, y: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
        loss = self.bounded.losses(self.likelihood, outputs, y, parameters).mean()
        self.recent.append(loss.detach())
        return loss

    def predictive(self, outputs: Tensor, parameters: Mapping[str, Tensor]) -> Predictive:
        return self.likelihood.predictive(outputs, parameters)

    def with_temperature(self, temperature: float) -> Likelihood:
        return self.likelihood.with_temperature(temperature)

    def started_at(self, parameters: Mapping[str, Tensor]) -> Likelihood:
        return self.likelihood.started_at(parameters)

    def warn_if_degenerate(self, outputs: Tensor, parameters: Mapping[str, Tensor]) -> None:
        self.likelihood.warn_if_degenerate(outputs, parameters)

    def to_dict(self) -> dict[str, Any]:
        return self.likelihood.to_dict()
