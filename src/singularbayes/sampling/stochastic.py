"""Gradients for samplers that do not need them exactly: of all data, or an unbiased estimate.

For a log density ``sum_n l_n(x) + l_0(x)`` of ``N`` data and a prior, the estimate from a batch ``b`` of
``B`` is

    (N / B) sum_{n in b} l_n(x) + l_0(x),

the prior once, whatever the batch. The mean over batches is the exact value, and so are the gradients'.

Only a sampler that uses the gradient as a force may use an estimate (:mod:`.sghmc`). One that accepts by
energies (HMC, NUTS) or lives on one energy surface (MCLMC) would sample another density, without any sign of
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from .sampler import Target

__all__ = ["AllData", "GradientEstimate"]


@runtime_checkable
class GradientEstimate(Protocol):
    """How a target's value and gradient are estimated."""

    @property
    def exact(self) -> bool:
        """Whether the estimates are the values themselves."""
        ...

    def __call__(
        self, target: Target, position: Float[Tensor, "C d"], source: torch.Generator
    ) -> tuple[Float[Tensor, " C"], Float[Tensor, "C d"]]:
        """An unbiased estimate of ``log p`` of each row, in nats, and of its gradient.

        Args:
            target: what is estimated.
            position: of each chain.
            source: of the batch, and of nothing else: the same state gives the same batch.

        Raises:
            ValueError, TypeError: a target that cannot be estimated so.
        """
        ...


@dataclass(frozen=True)
class AllData:
    """The target itself."""

    @property
    def exact(self) -> bool:
        return True

    def __call__(
        self, target: Target, position: Float[Tensor, "C d"], source: torch.Generator
    ) -> tuple[Float[Tensor, " C"], Float[Tensor, "C d"]]:
        """See ``GradientEstimate``."""
        return target(position)
