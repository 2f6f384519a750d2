"""Isotonic recalibration of a regression's distribution function.

    p_i = F_i(y_i) on the validation rows;   R = the monotone map from p to the share of p_j <= p

References:
    Kuleshov et al. 2018, arXiv 1807.00263, algorithm 1. Shares are ranks over ``n + 1``, not ``n``: both
    tails are then treated alike, and no finite label is said to be the largest there is.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from sklearn.isotonic import IsotonicRegression
from torch import Tensor

from ..likelihoods import Likelihood
from ..predictive import GaussianPredictive
from ..recalibrated import LevelMap, Recalibrated
from .calibration import Calibration

__all__ = ["IsotonicIntervals"]


@dataclass(frozen=True, kw_only=True)
class IsotonicIntervals:
    """Intervals, quantiles and distribution function of a regression, mended on validation data.

    Each output has a map of its own. ``interval``, ``quantile`` and ``cdf`` of the predictive change; its
    mean, variance, log density, CRPS and scores stay, for the recalibrated distribution is no mixture of
    Gaussians. No guarantee for finite data: for one, see :func:`.conformal_intervals`.

    Args:
        after: a calibration that is fitted first, on the same data; ``Temperature()`` where the noise is far
            off, so that labels do not fall off the ends of the distribution function. ``None`` as published.

    Warns:
        UserWarning: labels lie where the predictive has no mass at all (its distribution function is 0 or 1
            to the last digit): intervals that must hold them are infinite.

    Example:
        >>> import torch, singularbayes as sb
        >>> source = torch.Generator().manual_seed(0)
        >>> means, y = torch.zeros(1, 2000), 3 * torch.randn(2000, generator=source)
        >>> found = IsotonicIntervals().fit(sb.Gaussian(noise=2.0), means.double(), {}, y)
        >>> predictive = found.predictive(torch.zeros(1, 1), {})
        >>> 5.5 < predictive.interval(0.95)[1].item() < 6.3  # 3.92 before, 5.88 is right
        True
    """

    after: Calibration | None = None

    def fit(
        self, likelihood: Likelihood, outputs: Tensor, numbers: Mapping[str, Tensor], labels: Tensor
    ) -> Likelihood:
        """The likelihood with recalibrated intervals; see :class:`.Calibration`.

        Raises:
            TypeError: a likelihood of classes.
        """
        if self.after is not None:
            likelihood = self.after.fit(likelihood, outputs, numbers, labels)
        predictive = likelihood.predictive(outputs, numbers)
        if not isinstance(predictive, GaussianPredictive):
            raise TypeError(
                f"IsotonicIntervals recalibrates intervals of numbers, got {type(likelihood).__name__}; for "
                f"classes use Temperature() or VectorScaling()"
            )
        levels = predictive.cdf(labels.to(outputs)).reshape(len(labels), -1).double().cpu().numpy()
        extreme = int(((levels <= 0) | (levels >= 1)).any(axis=1).sum())
        if extreme:
            warnings.warn(
                f"{extreme} of {len(levels)} validation labels lie where the predictive has no mass at all: "
                f"intervals that must hold them are infinite; try IsotonicIntervals(after=Temperature())",
                stacklevel=3,
            )
        return Recalibrated(likelihood, tuple(_map(column) for column in levels.T))


def _map(levels: np.ndarray) -> LevelMap:
    ordered = np.sort(levels)
    ranks = np.searchsorted(ordered, ordered, side="right")
    at_end = ordered >= 1  # labels above all mass: the share below them is what is known
    ranks[at_end] = np.searchsorted(ordered, ordered[at_end], side="left") + 1
    shares = ranks / (len(ordered) + 1)
    regression = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(ordered, shares)
    stated, found = regression.X_thresholds_, regression.y_thresholds_
    rises = np.concatenate([[True], (np.diff(stated) > 0) & (np.diff(found) > 0)])
    return LevelMap(tuple(map(float, stated[rises])), tuple(map(float, found[rises])))
