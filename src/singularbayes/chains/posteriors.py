"""Chains of a posterior: its draws, and what each draw predicts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..data import as_inputs, batch_size_of, take
from ..model import takes_integers
from ..posterior import Posterior
from ..predictive import GaussianPredictive

__all__ = ["by_chain", "chains_of", "predictions"]

_METHODS = "HMC, NUTS, MCLMC, SGHMC, HybridHMC or DeepEnsembleMCMC"
_NUMBERS = 2**22  # of all draws' outputs at a time


def chains_of(posterior: Any) -> int:
    """How many chains a posterior was sampled by.

    Raises:
        TypeError: no ``Posterior``.
        ValueError: it was not sampled by chains, or holds other draws than its ``info`` says.
    """
    if not isinstance(posterior, Posterior):
        raise TypeError(
            f"diagnostics of chains need a Posterior of {_METHODS}, or draws (chains, draws, ...); got a "
            f"{type(posterior).__name__}; of a mixture look at its members that were sampled"
        )
    chains, steps = (posterior.info.get(name) for name in ("chains", "draws_per_chain"))
    if chains is None or steps is None:
        raise ValueError(
            f"this posterior was not sampled by chains (method {posterior.info.get('method', '?')!r}); fit "
            f"{_METHODS}"
        )
    if posterior.support != chains * steps:
        raise ValueError(
            f"this posterior holds {posterior.support} draws, and its info says {chains} chains of {steps}"
        )
    return chains


def by_chain(posterior: Posterior) -> Float[Tensor, "C N D"]:
    """The draws of each chain: a posterior keeps them step by step, all chains in turn.

    Raises:
        TypeError, ValueError: see :func:`chains_of`.

    Example:
        >>> from torch import nn
        >>> import singularbayes as sb
        >>> model, data = sb.Model(nn.Linear(1, 1), sb.Gaussian(noise=1.0)), (torch.ones(4, 1), torch.ones(4))
        >>> posterior = sb.HMC(chains=2, warm_up=0, draws=9, step_size=0.3).fit(model, data)
        >>> by_chain(posterior).shape
        torch.Size([2, 9, 2])
    """
    chains = chains_of(posterior)
    return posterior.distribution.draws.unflatten(0, (-1, chains)).transpose(0, 1)


def predictions(posterior: Posterior, x: Any, *, outputs: bool = False) -> Float[Tensor, "C N B *event"]:
    """What each draw of each chain says of inputs: the mean of ``p(y | x, w)``.

    Class probabilities for classification, P(y = 1) for two classes, the mean of y for regression.

    Args:
        posterior: sampled by chains.
        x: inputs, rows first.
        outputs: the network's outputs (logits) in their place.

    Raises:
        TypeError, ValueError: see :func:`chains_of`.
    """
    return torch.cat([part for _, part in blocks(posterior, x, outputs=outputs)], 2)


def blocks(posterior: Posterior, x: Any, *, outputs: bool) -> Iterator[tuple[int, Tensor]]:
    """:func:`predictions` for some rows of inputs at a time, with the number of the first."""
    chains = chains_of(posterior)
    draws = posterior.distribution.draws
    inputs = as_inputs(x, posterior.dtype, takes_integers(posterior.network))
    rows = batch_size_of(inputs)
    width = posterior.functions(draws[:1], take(inputs, slice(0, 1))).numel()
    together = max(1, _NUMBERS // (len(draws) * width))
    for start in range(0, rows, together):
        found = posterior.functions(draws, take(inputs, slice(start, start + together)))
        if not outputs:
            predictive = posterior.likelihood.predictive(found, posterior.layout.likelihood_views(draws))
            found = predictive.means if isinstance(predictive, GaussianPredictive) else predictive.probs
        yield start, found.unflatten(0, (-1, chains)).transpose(0, 1)
