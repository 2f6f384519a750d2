"""A measure over several seeds as one value with one interval, and how such numbers are printed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from singularbayes.report.figures import HasInterval

# Where a measure ends by definition, so that a pooled interval does not pass it.
_UNIT = {
    "accuracy", "expected_calibration_error", "error_average_precision", "success_average_precision",
    "auroc", "average_precision_out", "average_precision_in", "fpr95", "interval_coverage",
    "regression_calibration_error",
}  # fmt: skip
_POSITIVE = {"brier", "rmse", "mae", "crps", "interval_width"}


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A value with its 95% interval; nan = undefined. It exists in `defined` of the `seeds` run."""

    value: float
    low: float
    high: float
    defined: int
    seeds: int

    @property
    def exists(self) -> bool:
        """Whether there is a value."""
        return math.isfinite(self.value)

    @property
    def bounded(self) -> bool:
        """Whether there is an interval too."""
        return self.exists and math.isfinite(self.low) and math.isfinite(self.high)

    def overlaps(self, other: Estimate) -> bool:
        """Whether the intervals share a point; without one of them nothing is told apart, so True."""
        if not (self.bounded and other.bounded):
            return True
        return self.low <= other.high and other.low <= self.high


def pool(intervals: Iterable[HasInterval | None], measure: str = "") -> Estimate | None:
    """The mean over the seeds, with an interval for both the test cases and the training.

    One seed: its bootstrap interval as it is. n > 1 seeds: `value = mean`, `low = value - sqrt(b^2 + h^2)`,
    b the mean bootstrap half-width below (the seeds share the test cases, so it does not shrink with n) and
    `h = t_{n-1,.975} sd / sqrt(n)` of the seeds' values; above likewise: the noise of the cases and that of
    training are added as independent.

    Args:
        intervals: one a seed; None where that seed did not measure it.
        measure: its name, whose natural limits clip the interval.

    Returns:
        The estimate; None where no seed measured it.

    Example:
        >>> from types import SimpleNamespace as N
        >>> pool([N(value=0.8, low=0.7, high=0.9)], "auroc").high
        0.9
    """
    given = list(intervals)
    seen = [i for i in given if i is not None]
    if not seen:
        return None
    fine = [i for i in seen if math.isfinite(i.value)]
    if not fine:
        return Estimate(value=math.nan, low=math.nan, high=math.nan, defined=0, seeds=len(given))
    values = np.array([i.value for i in fine], dtype=np.float64)
    value, low, high = float(values.mean()), float(fine[0].low), float(fine[0].high)
    if len(fine) > 1:
        spread = float(student.ppf(0.975, len(fine) - 1) * values.std(ddof=1) / math.sqrt(len(fine)))
        below = float(np.mean([i.value - i.low for i in fine]))
        above = float(np.mean([i.high - i.value for i in fine]))
        low, high = value - math.hypot(below, spread), value + math.hypot(above, spread)
        if measure in _UNIT:
            low, high = max(low, 0.0), min(high, 1.0)
        elif measure in _POSITIVE:
            low = max(low, 0.0)
    return Estimate(value=value, low=low, high=high, defined=len(fine), seeds=len(given))


def number(value: float | None) -> str:
    """A number as the page prints it: three decimals from .001 to 1000, else three digits; words, never nan.

    Example:
        >>> number(0.93456), number(float("nan")), number(None)
        ('0.935', 'undefined', 'not measured')
    """
    if value is None:
        return "not measured"
    if math.isnan(value):
        return "undefined"
    if math.isinf(value):
        return "infinite" if value > 0 else "minus infinite"
    if value == 0 or 0.001 <= abs(value) < 1000:
        text = f"{value:.3f}" if abs(value) < 10 else f"{value:.2f}" if abs(value) < 100 else f"{value:.1f}"
    elif 1e-4 <= abs(value) < 0.001:
        text = f"{value:.4f}"
    elif abs(value) >= 1000 and abs(value) < 1e7:
        text = f"{value:,.0f}"
    else:
        text = f"{value:.2e}"
    return text.replace("-", "\N{MINUS SIGN}")


def span(estimate: Estimate | None) -> str:
    """The interval in words, empty where there is none.

    Example:
        >>> span(Estimate(value=0.9, low=0.88, high=0.92, defined=1, seeds=1))
        '0.880 to 0.920'
    """
    return f"{number(estimate.low)} to {number(estimate.high)}" if estimate and estimate.bounded else ""


def duration(seconds: float) -> str:
    """Seconds as a reader says them.

    Example:
        >>> duration(3.21), duration(754)
        ('3.2 s', '12 min 34 s')
    """
    if not math.isfinite(seconds):
        return "not measured"
    if seconds < 60:
        return f"{seconds:.2g} s" if seconds < 1 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
