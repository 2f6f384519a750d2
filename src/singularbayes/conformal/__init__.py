"""Split-conformal sets and intervals on top of any predictive: coverage without trust in the model.

    fitted = conformal_sets(posterior, validation, level=0.9)
    fitted.sets(posterior.predict(x))

Calibration points and new points must be exchangeable; the coverage is marginal.
"""

from .intervals import (
    CQR,
    AbsoluteResidual,
    ConformalIntervals,
    IntervalScore,
    NormalizedResidual,
    conformal_intervals,
)
from .quantile import conformal_quantile
from .sets import APS, LAC, ConformalSets, SetScore, conformal_sets

__all__ = [
    "APS",
    "CQR",
    "LAC",
    "AbsoluteResidual",
    "ConformalIntervals",
    "ConformalSets",
    "IntervalScore",
    "NormalizedResidual",
    "SetScore",
    "conformal_intervals",
    "conformal_quantile",
    "conformal_sets",
]
