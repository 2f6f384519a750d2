"""Measures of prediction, calibration, ranking and risk: pure functions on NumPy arrays, float64 inside.

Predictions come first, truth second. ``(N, 1)`` counts as ``(N,)``; nothing is broadcast. What is undefined
is nan, with a warning that names it.
"""

from .bootstrap import Interval, bootstrap_interval
from .calibration import (
    CalibrationBins,
    accuracy,
    adaptive_calibration_error,
    brier,
    calibration_bins,
    expected_calibration_error,
    negative_log_likelihood,
)
from .ranking import auroc, average_precision, fpr_at_tpr, spearman
from .regression import (
    crps,
    interval_coverage,
    interval_width,
    mean_absolute_error,
    regression_calibration_error,
    root_mean_squared_error,
)
from .risk import (
    SelectiveRisk,
    error_average_precision,
    selective_risk,
    selective_risk_area,
    success_average_precision,
)

__all__ = [
    "CalibrationBins",
    "Interval",
    "SelectiveRisk",
    "accuracy",
    "adaptive_calibration_error",
    "auroc",
    "average_precision",
    "bootstrap_interval",
    "brier",
    "calibration_bins",
    "crps",
    "error_average_precision",
    "expected_calibration_error",
    "fpr_at_tpr",
    "interval_coverage",
    "interval_width",
    "mean_absolute_error",
    "negative_log_likelihood",
    "regression_calibration_error",
    "root_mean_squared_error",
    "selective_risk",
    "selective_risk_area",
    "spearman",
    "success_average_precision",
]
