"""Monte Carlo standard errors: how far an estimate from these draws may be off, in the units of the quantity.

    mean      sd / sqrt(ESS of the mean)
    sd        sqrt((m4 - m2^2) / ESS of the squared deviations) / (2 sqrt(m2))
    quantile  half the distance of the order statistics at the 16% and 84% points of
              Beta(ESS q + 1, ESS (1 - q) + 1)

arviz-stats 0.8 takes the ESS of the values themselves for the standard deviation. That of their squares is
meant (as in the R package ``posterior``): HMC's draws often alternate, so that means are known far better
than widths, and the error would come out too small.

References:
    Vehtari et al. 2021, arXiv 1903.08008, section 4.4 (quantiles).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.special import betaincinv, ndtr

from .effective_size import check_probability, effective_size, of_quantile, of_squares
from .ranks import halves
from .reading import each

__all__ = ["mcse_mean", "mcse_quantile", "mcse_std"]

Array = NDArray[np.float64]


def of_mean(values: Float[np.ndarray, "Q C N"]) -> Float[np.ndarray, " Q"]:
    """See :func:`mcse_mean`."""
    return values.std((1, 2), ddof=1) / np.sqrt(effective_size(halves(values)))


def of_std(values: Float[np.ndarray, "Q C N"]) -> Float[np.ndarray, " Q"]:
    """See :func:`mcse_std`."""
    squares = (values - values.mean((1, 2), keepdims=True)) ** 2
    variance = squares.mean((1, 2))
    spread = squares.var((1, 2))
    return np.sqrt(spread / of_squares(values) / variance) / 2


def of_quantile_value(values: Float[np.ndarray, "Q C N"], probability: float) -> Float[np.ndarray, " Q"]:
    """See :func:`mcse_quantile`."""
    size = of_quantile(values, probability)
    ordered = np.sort(values.reshape(len(values), -1), 1)
    count = ordered.shape[1]
    inside = np.where(np.isnan(size), 1.0, size)
    a, b = inside * probability + 1, inside * (1 - probability) + 1
    rows = np.arange(len(ordered))
    low = np.floor(np.maximum(betaincinv(a, b, ndtr(-1.0)) * count - 1, 0)).astype(np.intp)
    high = np.ceil(np.minimum(betaincinv(a, b, ndtr(1.0)) * count - 1, count - 1)).astype(np.intp)
    return np.where(np.isnan(size), np.nan, (ordered[rows, high] - ordered[rows, low]) / 2)


def mcse_mean(draws: Any) -> Array:
    """Standard error of the mean over all draws of all chains.

    Args:
        draws: ``(C, N, ...)``: an array, a tensor, or ``Samples``.

    Returns:
        ``(...)``, in the units of the quantity; nan for one that is constant or not finite, and below 4 draws
        of a chain.

    Raises:
        TypeError, ValueError: no numbers, or another shape.

    Example:
        >>> source = np.random.default_rng(0)
        >>> round(float(mcse_mean(source.standard_normal((4, 2500)))), 3)
        0.01
    """
    return each(draws, of_mean)


def mcse_std(draws: Any) -> Array:
    """Standard error of the standard deviation. See :func:`mcse_mean`."""
    return each(draws, of_std)


def mcse_quantile(draws: Any, probability: float) -> Array:
    """Standard error of the quantile at ``probability``. See :func:`mcse_mean`.

    Raises:
        ValueError: a probability outside (0, 1).
    """
    check_probability(probability)
    return each(draws, lambda values: of_quantile_value(values, probability))
