"""Minibatches of a network's data, as unbiased estimates of its log density and gradient.

    log p(w) + (N / B) sum_{n in b} log p(y_n | f(x_n; w)) / T,    b without replacement, drawn anew each time

The prior counts once, the data ``N / B`` times. All chains look at the same batch, so that they are
independent only as far as the batches' noise is small.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..sampling.sampler import Target
from .network_density import NetworkDensity
from .settings import check_whole

__all__ = ["Minibatches"]


@dataclass(frozen=True)
class Minibatches:
    """The estimate from ``batch_size`` examples, as ``SGHMC`` uses it.

    Args:
        batch_size: ``B``, at most the number of examples.
    """

    batch_size: int

    def __post_init__(self) -> None:
        check_whole(batch_size=self.batch_size)

    @property
    def exact(self) -> bool:
        return False

    def __call__(
        self, target: Target, position: Float[Tensor, "C d"], source: torch.Generator
    ) -> tuple[Float[Tensor, " C"], Float[Tensor, "C d"]]:
        """See ``GradientEstimate``.

        Raises:
            TypeError: a density that is no network's: it has no data to take a batch of.
            ValueError: data that are not in memory, or fewer examples than the batch has.
        """
        if not isinstance(target, NetworkDensity):
            raise TypeError(
                f"minibatches need a network and its data, got a {type(target).__name__}; for a log density "
                f"of your own leave batch_size=None"
            )
        if self.batch_size > target.num_data:
            raise ValueError(
                f"batch_size={self.batch_size} is above the {target.num_data} training examples; leave "
                f"batch_size=None for gradients of all data"
            )
        order = torch.randperm(target.num_data, generator=source, device=source.device)
        return target.estimate(position, order[: self.batch_size])
