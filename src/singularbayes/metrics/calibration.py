"""Do stated probabilities match what happens: accuracy, log likelihood, Brier score, calibration error.

Every function takes ``(N, K)`` class probabilities, or ``(N,)`` probabilities of class 1 (the binary
variant).

References:
    Naeini et al. 2015 (expected calibration error); Guo et al. 2017, arXiv 1706.04599, eq. 3; Nguyen and
    O'Connor 2015, arXiv 1508.05154, section 3 (bins of equal mass); Brier 1950.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from .inputs import Floats, Ints, class_labels, class_probabilities
from .weighted import Counts, Statistic, groups_of, once

BINS = 15


class CalibrationBins(NamedTuple):
    """A reliability diagram: one row per bin; the means of an empty bin are nan.

    Attributes:
        low: lower edges of the bins ``(low, high]``; the first is closed at 0.
        high: upper edges.
        rows: how many fell into each bin.
        confidence: mean stated probability.
        frequency: share of rows that were right (binary variant: share of class 1).
    """

    low: Floats
    high: Floats
    rows: Ints
    confidence: Floats
    frequency: Floats


def errors_of(probs: Floats, labels: Ints) -> Floats:
    """1 where the most probable class is not the label, else 0: ``(N,)``."""
    predicted = probs.argmax(1) if probs.ndim == 2 else (probs > 0.5).astype(np.int64)
    return (predicted != labels).astype(np.float64)


def log_losses_of(probs: Floats, labels: Ints) -> Floats:
    """``-log p(label)`` of every row, in nats; infinite where that probability is 0."""
    chosen = (
        probs[np.arange(len(labels)), labels] if probs.ndim == 2 else np.where(labels == 1, probs, 1 - probs)
    )
    with np.errstate(divide="ignore"):
        return -np.log(chosen)


def brier_of(probs: Floats, labels: Ints) -> Floats:
    """Squared error of the probabilities of every row."""
    if probs.ndim == 1:
        return (probs - labels) ** 2
    return ((probs - np.eye(probs.shape[1])[labels]) ** 2).sum(1)


def confidence_of(probs: Floats, labels: Ints) -> tuple[Floats, Floats]:
    """Stated confidence and outcome of every row: top label for ``(N, K)``, class 1 for ``(N,)``."""
    if probs.ndim == 1:
        return probs, labels.astype(np.float64)
    return probs.max(1), 1 - errors_of(probs, labels)


def bin_of(confidence: Floats, bins: int) -> Ints:
    """Index of the bin ``(k/n, (k+1)/n]`` of every confidence; 0 belongs to the first bin.

    Edges are ``arange(n + 1) / n``, compared in float32, so that float32 and float64 input fall into the same
    bins.
    """
    if bins < 1:
        raise ValueError(f"bins must be at least 1, got {bins}")
    edges = (np.arange(bins + 1) / bins).astype(np.float32)
    return np.clip(np.searchsorted(edges, confidence.astype(np.float32), "left") - 1, 0, bins - 1)


def calibration_error_of(confidence: Floats, outcome: Floats, bins: int = BINS) -> Statistic:
    """The weighted form of :func:`expected_calibration_error`."""
    gaps = np.zeros((len(confidence), bins))
    gaps[np.arange(len(confidence)), bin_of(confidence, bins)] = confidence - outcome

    def statistic(counts: Counts) -> dict[str, Floats]:
        weights = counts.astype(np.float64)
        return {"expected_calibration_error": np.abs(weights @ gaps).sum(1) / weights.sum(1)}

    return statistic


def equal_mass_gap(mass: Floats, gap: Floats, bins: int) -> Floats:
    """``sum_b |gap in bin b| / total mass`` over bins that hold ``1 / bins`` of the mass each: ``(R,)``.

    A group that an edge falls into is divided in proportion.

    Args:
        mass: ``(R, G)`` weight of every group of rows, groups in the order of their confidence.
        gap: ``(R, G)`` sum of confidence minus outcome over the rows of the group.
        bins: number of bins.
    """
    start = np.zeros((len(mass), 1))
    ends = np.concatenate([start, np.cumsum(mass, axis=1)], 1)
    sums = np.concatenate([start, np.cumsum(gap, axis=1)], 1)
    shares = np.arange(bins + 1) / bins
    at = np.stack([np.interp(shares * e[-1], e, s) for e, s in zip(ends, sums, strict=True)])
    return np.abs(np.diff(at, axis=1)).sum(1) / ends[:, -1]


def adaptive_error_of(confidence: Floats, outcome: Floats, bins: int = BINS) -> Statistic:
    """The weighted form of :func:`adaptive_calibration_error`."""
    if bins < 1:
        raise ValueError(f"bins must be at least 1, got {bins}")
    groups = groups_of(confidence, confidence - outcome)
    return lambda counts: {"adaptive_calibration_error": equal_mass_gap(*groups(counts), bins)}


def accuracy(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Share of rows whose most probable class is the label.

    Args:
        probabilities: ``(N, K)``, or ``(N,)`` of class 1 (then class 1 is predicted above .5).
        labels: ``(N,)`` class indices.
    """
    probs = class_probabilities(probabilities)
    return float(1 - errors_of(probs, class_labels(labels, probs)).mean())


def negative_log_likelihood(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Mean of ``-log p(label)``, in nats; infinite where a label was given probability 0.

    Args:
        probabilities: ``(N, K)``, or ``(N,)`` of class 1.
        labels: ``(N,)`` class indices.

    Example:
        >>> round(negative_log_likelihood([[0.5, 0.5], [0.25, 0.75]], [0, 1]), 6)
        0.490415
    """
    probs = class_probabilities(probabilities)
    return float(log_losses_of(probs, class_labels(labels, probs)).mean())


def brier(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Mean squared error of the probabilities.

    ``(N, K)``: summed over the K classes, from 0 to 2 (Brier's own form). ``(N,)``: of class 1 alone, from 0
    to 1, half the value of the same prediction given with two columns.

    Args:
        probabilities: ``(N, K)``, or ``(N,)`` of class 1.
        labels: ``(N,)`` class indices.

    Example:
        >>> brier([[0.5, 0.5], [0.0, 1.0]], [0, 1])
        0.25
    """
    probs = class_probabilities(probabilities)
    return float(brier_of(probs, class_labels(labels, probs)).mean())


def expected_calibration_error(probabilities: ArrayLike, labels: ArrayLike, bins: int = BINS) -> float:
    """Mean gap between stated confidence and outcome, over equal-width bins.

    The bins are ``(k/n, (k+1)/n]``, the first closed at 0.

    ``sum_b (n_b / N) |mean confidence in b - frequency in b|``. ``(N, K)``: confidence of the top label
    against accuracy. ``(N,)``, the binary variant: P(y = 1) against the frequency of class 1. The estimate is
    biased upwards in small samples, and more so in their resamples.

    Args:
        probabilities: ``(N, K)``, or ``(N,)`` of class 1.
        labels: ``(N,)`` class indices.
        bins: number of bins.

    Example:
        >>> round(expected_calibration_error([0.6, 0.62, 0.58], [0, 1, 1]), 6)
        0.186667
    """
    probs = class_probabilities(probabilities)
    statistic = calibration_error_of(*confidence_of(probs, class_labels(labels, probs)), bins)
    return float(statistic(once(len(probs)))["expected_calibration_error"][0])


def adaptive_calibration_error(probabilities: ArrayLike, labels: ArrayLike, bins: int = BINS) -> float:
    """Mean gap between stated confidence and outcome, over bins that hold equally many rows.

    As :func:`expected_calibration_error`, with edges at the quantiles of the confidence: no bin is empty, and
    where nearly all confidences lie close to 1 they are still told apart. Every bin holds exactly
    ``N / bins`` rows: one that an edge falls into is divided, and so are rows of equal confidence, in
    proportion, so that their order does not matter.

    Args:
        probabilities: ``(N, K)``, or ``(N,)`` of class 1.
        labels: ``(N,)`` class indices.
        bins: number of bins.

    Example:
        >>> round(adaptive_calibration_error([0.9, 0.8, 0.3, 0.2], [1, 0, 0, 0], bins=2), 6)
        0.3
    """
    probs = class_probabilities(probabilities)
    statistic = adaptive_error_of(*confidence_of(probs, class_labels(labels, probs)), bins)
    return float(statistic(once(len(probs)))["adaptive_calibration_error"][0])


def calibration_bins(probabilities: ArrayLike, labels: ArrayLike, bins: int = BINS) -> CalibrationBins:
    """The reliability diagram behind :func:`expected_calibration_error`, with the same bins."""
    probs = class_probabilities(probabilities)
    confidence, outcome = confidence_of(probs, class_labels(labels, probs))
    index = bin_of(confidence, bins)
    count = np.bincount(index, minlength=bins)
    filled = np.where(count > 0, count, np.nan)
    edges = np.arange(bins + 1) / bins
    return CalibrationBins(
        edges[:-1],
        edges[1:],
        count.astype(np.int64),
        np.bincount(index, confidence, bins) / filled,
        np.bincount(index, outcome, bins) / filled,
    )
