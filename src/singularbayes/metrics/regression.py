"""How good is a predictive distribution of a number: errors, CRPS, intervals, calibration of its quantiles.

References:
    Gneiting and Raftery 2007 (CRPS); Grimit et al. 2006, eq. 5 (CRPS of a Gaussian mixture);
    Kuleshov et al. 2018, arXiv 1807.00263, eq. 9 (calibration of regression).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr

from .inputs import Floats, numbers, same_shape
from .weighted import Counts, Statistic, once

LEVELS = 19


def _pair(prediction: ArrayLike, y: ArrayLike) -> tuple[Floats, Floats]:
    predicted, observed = numbers(prediction, "prediction"), numbers(y, "y")
    same_shape(prediction=predicted, y=observed)
    return predicted, observed


def root_mean_squared_error(prediction: ArrayLike, y: ArrayLike) -> float:
    """``sqrt(mean (prediction - y)^2)``, in the units of ``y``; ``(N, 1)`` and ``(N,)`` are the same."""
    predicted, observed = _pair(prediction, y)
    return float(np.sqrt(np.mean((predicted - observed) ** 2)))


def mean_absolute_error(prediction: ArrayLike, y: ArrayLike) -> float:
    """``mean |prediction - y|``, in the units of ``y``; ``(N, 1)`` and ``(N,)`` are the same."""
    predicted, observed = _pair(prediction, y)
    return float(np.mean(np.abs(predicted - observed)))


def interval_coverage(low: ArrayLike, high: ArrayLike, y: ArrayLike) -> float:
    """Share of outcomes inside the closed intervals ``[low, high]``: a fraction, to be read with the width.

    Args:
        low: lower ends of the intervals, the shape of ``y``.
        high: upper ends.
        y: outcomes ``(N,)`` or ``(N, k)``.

    Example:
        >>> interval_coverage([0.0, 0.0], [1.0, 1.0], [1.0, 1.5])
        0.5
    """
    lower, upper, observed = numbers(low, "low"), numbers(high, "high"), numbers(y, "y")
    same_shape(low=lower, high=upper, y=observed)
    _ordered(lower, upper)
    return float(np.mean((lower <= observed) & (observed <= upper)))


def interval_width(low: ArrayLike, high: ArrayLike) -> float:
    """Mean width of the intervals, in the units of ``y``."""
    lower, upper = numbers(low, "low"), numbers(high, "high")
    same_shape(low=lower, high=upper)
    _ordered(lower, upper)
    return float(np.mean(upper - lower))


def _ordered(low: Floats, high: Floats) -> None:
    if (low > high).any():
        row = int(np.argwhere(low > high)[0][0])
        raise ValueError(f"interval of row {row} ends below its start; expected low <= high")


def calibration_error_of(cdf: Floats, levels: int = LEVELS) -> Statistic:
    """The weighted form of :func:`regression_calibration_error`; ``cdf`` is ``(N,)`` or ``(N, k)``."""
    if levels < 1:
        raise ValueError(f"levels must be at least 1, got {levels}")
    stated = np.arange(1, levels + 1) / (levels + 1)
    below = np.mean(cdf.reshape(len(cdf), -1, 1) <= stated, axis=1)  # (N, levels)

    def statistic(counts: Counts) -> dict[str, Floats]:
        weights = counts.astype(np.float64)
        observed = weights @ below / weights.sum(1, keepdims=True)
        return {"regression_calibration_error": np.abs(observed - stated).mean(1)}

    return statistic


def regression_calibration_error(cdf: ArrayLike, levels: int = LEVELS) -> float:
    """Mean gap between stated and observed quantiles: ``mean_p |share(F(y) <= p) - p|``.

    The levels p are evenly spaced inside (0, 1): .05, .10, ..., .95 by default.

    Args:
        cdf: the predictive distribution function at each outcome, ``F_i(y_i)`` in [0, 1], of shape ``(N,)``
            or ``(N, k)``.
        levels: number of levels.

    Example:
        >>> round(regression_calibration_error([0.5, 0.5], levels=3), 6)
        0.333333
    """
    values = numbers(cdf, "cdf")
    if values.min() < -1e-6 or values.max() > 1 + 1e-6:
        raise ValueError(
            f"cdf lies in [{values.min():g}, {values.max():g}], expected [0, 1]: F(y) of each outcome"
        )
    return float(calibration_error_of(values, levels)(once(len(values)))["regression_calibration_error"][0])


def crps(means: ArrayLike, variances: ArrayLike, y: ArrayLike, weights: ArrayLike | None = None) -> float:
    """Continuous ranked probability score ``E|Y - y| - E|Y - Y'| / 2``, exact for (a mixture of) Gaussians.

    Args:
        means: ``(N,)`` for one Gaussian per row, or ``(S, N)`` for the mixture of S draws.
        variances: noise variances (not standard deviations), the same shape.
        y: outcomes ``(N,)``.
        weights: of the draws ``(S,)``, 0 or more, with sum 1; ``None`` for equal weights.

    Returns:
        The mean over rows, in the units of ``y``; lower is better; the absolute error when all variances are
        0.

    Example:
        >>> round(crps([0.0], [1.0], [0.0]), 6)
        0.233695
    """
    observed = numbers(y, "y")
    centres, spreads = np.asarray(means, np.float64), np.asarray(variances, np.float64)
    if centres.shape == (len(observed), 1):
        centres, spreads = centres[:, 0], spreads.reshape(-1)
    if centres.ndim == observed.ndim:
        centres, spreads = centres[None], spreads[None]
    if centres.shape != spreads.shape or centres.shape[1:] != observed.shape or centres.size == 0:
        raise ValueError(
            f"means {centres.shape} and variances {spreads.shape} do not fit y {observed.shape}; "
            "expected (N,) each, or (S, N) for means and variances"
        )
    if np.isnan(centres).any() or not (spreads >= 0).all():
        raise ValueError("means must not be NaN and variances must be 0 or more")
    return float(crps_of(centres, spreads, observed, _shares(weights, len(centres))).mean())


def _shares(weights: ArrayLike | None, draws: int) -> Floats | None:
    """Checked weights of the draws."""
    if weights is None:
        return None
    shares = np.asarray(weights, np.float64)
    if shares.shape != (draws,) or not (shares >= 0).all() or abs(shares.sum() - 1) > 1e-5:
        raise ValueError(
            f"weights have shape {shares.shape} and sum {shares.sum():g}; expected ({draws},), one for each "
            f"draw, 0 or more, with sum 1"
        )
    return shares


def crps_of(means: Floats, variances: Floats, y: Floats, weights: Floats | None = None) -> Floats:
    """CRPS of every entry: ``means``, ``variances`` ``(S, N, ...)``, ``y (N, ...)``, ``weights (S,)``."""
    if weights is not None and (weights == 0).any():  # a draw of weight 0 counts for nothing
        means, variances, weights = (part[weights > 0] for part in (means, variances, weights))
    draws = len(means)
    step = max(1, 2**18 // draws)
    flat, spread, target = means.reshape(draws, -1), variances.reshape(draws, -1), y.reshape(-1)
    scores = np.empty_like(target)
    for start in range(0, len(target), step):  # blocks keep the memory flat; the time is S^2 N / 2
        rows = slice(start, start + step)
        m, v = flat[:, rows], spread[:, rows]
        errors, own = _mean_abs(target[rows] - m, v), _mean_abs(np.zeros_like(m), 2 * v)
        scores[rows] = errors.mean(0) if weights is None else weights @ errors
        pairs = own.sum(0) if weights is None else weights**2 @ own
        for i in range(draws - 1):
            apart = _mean_abs(m[i + 1 :] - m[i], v[i + 1 :] + v[i])
            pairs += 2 * (apart.sum(0) if weights is None else weights[i] * (weights[i + 1 :] @ apart))
        scores[rows] -= pairs / (2 * draws**2 if weights is None else 2)
    return scores.reshape(y.shape)


def _mean_abs(mean: Floats, variance: Floats) -> Floats:
    """``E|Z|`` for ``Z ~ N(mean, variance)``; ``|mean|`` where the variance is 0."""
    std = np.sqrt(variance)
    z = mean / np.where(std > 0, std, 1.0)
    smooth = std * np.sqrt(2 / np.pi) * np.exp(-0.5 * z * z) + mean * (2 * ndtr(z) - 1)
    return np.where(std > 0, smooth, np.abs(mean))
