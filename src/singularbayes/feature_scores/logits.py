"""Scores of a classifier's logits ``f``, the mean over draws for a posterior.

    energy:     -T logsumexp(f / T)          max-logit:   -max_k f_k

References:
    Liu et al. 2020, arXiv 2010.03759, eq. 4; Hendrycks et al. 2022, arXiv 1911.11132 (max-logit).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..data import as_inputs
from ..functions import call
from ..metrics.bootstrap import check_count
from ..model import takes_integers
from .encoders import in_batches, network_at_mean

__all__ = ["Energy", "MaxLogit"]


@dataclass(frozen=True, eq=False)
class _Logits:
    """Mean logits over the draws of a posterior, or those of a network."""

    source: Any
    draws: int
    seed: int
    network: nn.Module | None = field(init=False)

    def __post_init__(self) -> None:
        check_count("draws", self.draws, 1)
        network = isinstance(self.source, nn.Module)
        if not network and not callable(getattr(self.source, "functions", None)):
            raise TypeError(
                f"got a {type(self.source).__name__}, expected a network of classes or a posterior of one "
                f"(of a mixture: one of its .members)"
            )
        object.__setattr__(self, "network", network_at_mean(self.source) if network else None)

    def __call__(self, x: Any) -> Tensor:
        if self.network is None:
            count = min(self.draws, self.source.distribution.support or self.draws)
            logits = self.source.functions(self.source.draw(count, self.seed), x).double().mean(0).cpu()
        else:
            network = self.network
            parameter = next(network.parameters())
            inputs = as_inputs(x, parameter.dtype, takes_integers(network))
            logits = in_batches(lambda batch: call(network, batch), inputs, parameter.device)
        if logits.dim() != 2 or logits.shape[1] < 2:
            raise ValueError(f"needs logits (B, K) of K >= 2 classes, the network gives "
                             f"{tuple(logits.shape)}; use sb.scores of the predictive")  # fmt: skip
        return logits


@dataclass(frozen=True, eq=False)
class Energy:
    """The free energy of the logits: large where no class has a large logit.

    Args:
        source: a posterior (logits are averaged over draws) or a network; calibration does not enter.
        temperature: of the energy, 1 as published.
        draws: of a posterior.
        seed: of the draws.

    Example:
        >>> network = nn.Linear(2, 2).requires_grad_(False)
        >>> _ = network.weight.copy_(torch.eye(2)), network.bias.zero_()
        >>> round(Energy(network).score(torch.zeros(1, 2)).item(), 6)
        -0.693147
    """

    source: Any
    temperature: float = 1.0
    draws: int = 64
    seed: int = 0
    _logits: _Logits = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise ValueError(f"temperature must be positive and finite, got {self.temperature}")
        object.__setattr__(self, "_logits", _Logits(self.source, self.draws, self.seed))

    def score(self, x: Any) -> Float[Tensor, " B"]:
        """``-T logsumexp(f / T)``; higher is more out-of-distribution."""
        return -self.temperature * torch.logsumexp(self._logits(x) / self.temperature, 1)


@dataclass(frozen=True, eq=False)
class MaxLogit:
    """The largest logit, negated: the energy at temperature 0.

    Args:
        source: a posterior (logits are averaged over draws) or a network; calibration does not enter.
        draws: of a posterior.
        seed: of the draws.
    """

    source: Any
    draws: int = 64
    seed: int = 0
    _logits: _Logits = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_logits", _Logits(self.source, self.draws, self.seed))

    def score(self, x: Any) -> Float[Tensor, " B"]:
        """``-max_k f_k``; higher is more out-of-distribution."""
        return -self._logits(x).amax(1)
