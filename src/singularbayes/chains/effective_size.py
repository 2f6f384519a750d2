"""Effective sample size: how many independent draws would have the same standard error.

    ESS = C N / tau,    tau = -1 + 2 sum_t rho_t,    rho_t = 1 - (W - mean_c autocov_t) / var+

``rho_t`` compares a lag's autocovariance with the variance of all chains together, so that chains that sit in
different places have few effective draws however quickly each one moves. The sum ends where a pair of lags
turns negative, pairs made non-increasing (Geyer); ``tau`` is at least ``1 / log10(C N)``, since draws that
alternate can count for more than their number, but not for any number.

The definitions are those of arviz-stats (whose autocovariance this is); a chunk of quantities is computed at
once, as its own loops take some 10 ms for each quantity.

References:
    Vehtari et al. 2021, arXiv 1903.08008, sections 3.2 and 4.3; Geyer 1992, "Practical Markov chain Monte
    Carlo", section 3.3.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from arviz_stats.base.array import array_stats
from jaxtyping import Float
from numpy.typing import NDArray

from .ranks import halves, normal_scores
from .reading import Quantities, each

__all__ = ["ess_bulk", "ess_by_chain", "ess_mean", "ess_quantile", "ess_std", "ess_tail"]

Array = NDArray[np.float64]
TAILS = (0.05, 0.95)


def effective_size(values: Float[np.ndarray, "Q C N"]) -> Float[np.ndarray, " Q"]:
    """ESS of the mean of chains as they are: neither split nor ranked; nan where nothing moves."""
    _, chains, length = values.shape
    autocov = array_stats.autocov(values, axis=2).mean(1)
    within = autocov[:, 0] * length / (length - 1)
    total = autocov[:, 0].copy()
    if chains > 1:
        total += values.mean(2).var(1, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        rho = 1 - (within[:, None] - autocov) / total[:, None]
        rho[:, 0] = 1
        size = chains * length / np.maximum(_time(rho), 1 / np.log10(chains * length))
    return np.where((values == values[:, :1, :1]).all((1, 2)), np.nan, size)


def _time(rho: Float[np.ndarray, "Q N"]) -> Float[np.ndarray, " Q"]:
    """Integrated autocorrelation time: Geyer's initial monotone sequence."""
    last = max(0, (rho.shape[1] - 3) // 2)  # pairs are (0, 1), (2, 3), ...
    even = rho[:, 0 : 2 * last + 1 : 2]
    pairs = even + rho[:, 1 : 2 * last + 2 : 2]
    negative = pairs <= 0
    end = np.where(negative.any(1), negative.argmax(1), last)
    kept = np.where(np.arange(last + 1) < end[:, None], np.minimum.accumulate(pairs, 1), 0).sum(1)
    rows = np.arange(len(rho))
    tail, whole = even[rows, end], pairs[rows, end]  # of the first pair that is left out
    return -1 + 2 * kept + np.where((tail > 0) | (whole >= 0), tail, 0)


def bulk(values: Float[np.ndarray, "Q C N"]) -> Float[np.ndarray, " Q"]:
    """See :func:`ess_bulk`."""
    return effective_size(normal_scores(halves(values)))


def of_quantile(values: Float[np.ndarray, "Q C N"], probability: float) -> Float[np.ndarray, " Q"]:
    """See :func:`ess_quantile`."""
    edge = np.quantile(values, probability, axis=(1, 2), keepdims=True)
    return effective_size(halves((values <= edge).astype(np.float64)))


def tail(values: Float[np.ndarray, "Q C N"]) -> Float[np.ndarray, " Q"]:
    """See :func:`ess_tail`; a tail without draws beyond it (a bound that is often met) does not count."""
    low, high = (of_quantile(values, probability) for probability in TAILS)
    return np.fmin(low, high)


def ess_bulk(draws: Any) -> Array:
    """Effective draws in the bulk: of rank-normalised values, so that heavy tails do not spoil it.

    Args:
        draws: ``(C, N, ...)``: an array, a tensor, or ``Samples``.

    Returns:
        ``(...)``; nan for a quantity that is constant or not finite, and below 4 draws of a chain.

    Raises:
        TypeError, ValueError: no numbers, or another shape.

    Example:
        >>> source = np.random.default_rng(0)
        >>> bool(3500 < ess_bulk(source.standard_normal((4, 1000))) < 4500)
        True
    """
    return each(draws, bulk)


def ess_tail(draws: Any) -> Array:
    """Effective draws of the 5% or the 95% quantile, whichever has fewer. See :func:`ess_bulk`."""
    return each(draws, tail)


def ess_quantile(draws: Any, probability: float) -> Array:
    """Effective draws of the quantile at ``probability``. See :func:`ess_bulk`.

    Raises:
        ValueError: a probability outside (0, 1).
    """
    check_probability(probability)
    return each(draws, lambda values: of_quantile(values, probability))


def ess_mean(draws: Any) -> Array:
    """Effective draws of the mean; it needs a finite variance. See :func:`ess_bulk`."""
    return each(draws, lambda values: effective_size(halves(values)))


def ess_std(draws: Any) -> Array:
    """Effective draws of the standard deviation: those of the squared deviations. See :func:`ess_bulk`."""
    return each(draws, of_squares)


def of_squares(values: Float[np.ndarray, "Q C N"]) -> Float[np.ndarray, " Q"]:
    """See :func:`ess_std`."""
    return effective_size(halves((values - values.mean((1, 2), keepdims=True)) ** 2))


def ess_by_chain(draws: Any) -> Array:
    """Bulk ESS of each chain alone, ``(C, ...)``.

    Their sum counts draws of chains that are right to sit in modes of their own, as those from members of an
    ensemble do; :func:`ess_bulk` counts the chains as draws from one distribution.
    """
    quantities = Quantities(draws)
    out = np.full((quantities.chains, quantities.count), np.nan)
    for part, values in quantities.chunks():
        for chain in range(quantities.chains):
            out[chain, part] = ess_bulk(np.moveaxis(values[:, chain : chain + 1], 0, 2))
    return out.reshape(quantities.chains, *quantities.shape)


def check_probability(probability: float) -> None:
    """A quantile lies strictly inside (0, 1).

    Raises:
        ValueError: it does not.
    """
    if not 0 < probability < 1:
        raise ValueError(f"a quantile's probability must lie strictly between 0 and 1, got {probability!r}")
