"""Log predictive density as draws and chains are added: when is enough enough?

    L_n = mean_i log 1/n sum_{s <= n} p(y_i | x_i, w_s)

of the first ``n`` draws of one chain, of all chains together, and of the first chains with all their draws. A
curve that has become flat gains nothing from more draws; one that still rises as chains are added asks for
more chains, not for longer ones.

References:
    Sommer, Wimmer, Papamarkou, Bothmann, Bischl and Rügamer 2024, arXiv 2402.01484, section 4.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..calibration import uncalibrated
from ..data import Batches, as_source, batch_size_of, take
from ..model import takes_integers
from ..posterior import Posterior
from .posteriors import chains_of

__all__ = ["CumulativeLogDensity", "cumulative_log_density"]

_NUMBERS = 2**22  # densities of all draws at a time
_ROWS = 512


@dataclass(frozen=True, eq=False)
class CumulativeLogDensity:
    """Mean log predictive density of held-out data, in nats for each row of data.

    Args:
        by_chain: of the first ``n`` draws of each chain, ``(C, N)``.
        pooled: of the first ``n`` draws of all chains together, ``(N,)``.
        by_chains: of all draws of the first ``c`` chains, ``(C,)``.
    """

    by_chain: Float[Tensor, "C N"]
    pooled: Float[Tensor, " N"]
    by_chains: Float[Tensor, " C"]

    def enough(self, tolerance: float = 0.01) -> int | None:
        """Draws of each chain after which the pooled density stays within ``tolerance`` nats of its end.

        ``None`` where it comes that near only in the last tenth of the draws: it has not settled.

        Raises:
            ValueError: a tolerance that is not positive.
        """
        return _settled(self.pooled, tolerance)

    def enough_chains(self, tolerance: float = 0.01) -> int | None:
        """Chains after which it stays within ``tolerance`` of its end; ``None`` where the last one counts.

        Raises:
            ValueError: a tolerance that is not positive.
        """
        return _settled(self.by_chains, tolerance)


def _settled(curve: Tensor, tolerance: float) -> int | None:
    if not tolerance > 0:
        raise ValueError(f"tolerance must be positive, in nats for each row of data; got {tolerance!r}")
    away = ((curve - curve[-1]).abs() > tolerance).nonzero()
    first = int(away[-1]) + 2 if len(away) else 1  # the number of draws, counted from 1
    return first if first <= len(curve) - max(1, math.ceil(len(curve) / 10)) else None


@torch.no_grad()
def cumulative_log_density(posterior: Posterior, data: Any) -> CumulativeLogDensity:
    """The log predictive density of data, draw by draw and chain by chain.

    It is that of the draws as they were sampled: a calibration of the posterior is left aside.

    Args:
        posterior: sampled by chains.
        data: ``(X, y)``, a Dataset or batches; held-out data, and not the test set if it decides anything.

    Raises:
        TypeError, ValueError: no chains, no labels, data that do not fit.

    Example:
        >>> from torch import nn
        >>> import singularbayes as sb
        >>> model, data = sb.Model(nn.Linear(1, 1), sb.Gaussian(noise=1.0)), (torch.ones(4, 1), torch.ones(4))
        >>> posterior = sb.HMC(chains=2, warm_up=0, draws=30, step_size=0.3).fit(model, data)
        >>> cumulative_log_density(posterior, data).by_chain.shape
        torch.Size([2, 30])
    """
    chains = chains_of(posterior)
    source = as_source(data, posterior.dtype, takes_integers(posterior.network))
    total: list[Tensor] = []
    for x, y in pieces(source, max(1, _NUMBERS // len(posterior.distribution.draws))):
        terms = log_densities(posterior, x, y).unflatten(0, (-1, chains)).transpose(0, 1)  # (C, N, B)
        steps = torch.arange(1, terms.shape[1] + 1, device=terms.device, dtype=terms.dtype).log()
        one = terms.logcumsumexp(1)  # of each chain's first draws
        by_chain = (one - steps[:, None]).sum(2)
        pooled = (one.logsumexp(0) - steps[:, None] - math.log(chains)).sum(1)
        count = torch.arange(1, chains + 1, device=terms.device, dtype=terms.dtype).log()
        by_chains = (one[:, -1].logcumsumexp(0) - steps[-1] - count[:, None]).sum(1)
        parts = [by_chain, pooled, by_chains]
        total = [a + b for a, b in zip(total, parts, strict=True)] if total else parts
    return CumulativeLogDensity(*(part.cpu() / source.num_data for part in total))


def pieces(source: Batches, size: int) -> Iterator[tuple[Any, Tensor]]:
    """All data in their order, at most ``size`` rows at a time."""
    for x, y in source.epoch(min(size, _ROWS), 0, 0, shuffle=False):
        for start in range(0, batch_size_of(x), size):  # a user's loader has batches of its own size
            yield take(x, slice(start, start + size)), y[start : start + size]


def log_densities(posterior: Posterior, x: Any, y: Tensor) -> Float[Tensor, "S B"]:
    """``log p(y | x, w)`` of every draw, nats, in float64."""
    draws, likelihood = posterior.distribution.draws, uncalibrated(posterior.likelihood)
    outputs = posterior.functions(draws, x).double()
    labels = likelihood.labels(outputs.shape[1:], y.to(outputs.device))
    numbers = posterior.layout.likelihood_views(draws)
    if not numbers:  # a likelihood takes rows (B, *event): those of all draws lie one after another
        together = labels.expand(len(draws), *labels.shape).flatten(0, 1)
        return (
            likelihood.log_prob(outputs.flatten(0, 1), together, {}).double().unflatten(0, (len(draws), -1))
        )
    rows = [
        likelihood.log_prob(output, labels, {name: value[row] for name, value in numbers.items()}).double()
        for row, output in enumerate(outputs)
    ]
    return torch.stack(rows)
