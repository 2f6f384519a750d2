"""Is the uncertainty any good far from the data? Three criteria, in plain words, with bootstrap intervals.

- **A, ranking** (is there a signal): AUROC of the epistemic uncertainty, test against OOD rows. .5 is none,
  below .5 an inversion. Beside it, on test data: Spearman's correlation of uncertainty with error.
- **B, scale** (does it point up): mean uncertainty on OOD rows over that on test rows, with the ratio of
  medians.
- **C, mass** (does it become probability): calibration error of stated probabilities, or coverage of 95%
  intervals.

A does not see a rescaling of the uncertainty, and B does not see that a few large values carry the mean: an
inverted ranking with a ratio above 1 is the textbook collapse.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from .evaluation import Evaluation, SetArrays
from .evaluation.measures import ood_strata_of, strata_of
from .metrics import Interval
from .metrics.bootstrap import bootstrap_replicates, percentile_interval
from .metrics.inputs import Floats
from .metrics.ranking import spearman_of
from .metrics.weighted import Counts, Statistic, mean_of, median_of

__all__ = ["Criterion", "Diagnosis", "diagnose"]

Status = Literal["good", "poor", "not measured"]

GOOD_AUROC = 0.7  # from here on a ranking is called good; below it weak, if its interval lies above .5
GOOD_GAP = (
    0.05  # calibration error, or distance of the coverage from 95%, up to which the mass is called good
)
NOMINAL = 0.95
_ONE_DRAW = (
    "the model states no epistemic uncertainty (how one network's own probabilities rank is another score): "
    "use a method with more than one draw"
)
FEWEST = 10  # rows on each side; below it an answer would be chance


@dataclass(frozen=True)
class Criterion:
    """One answer: a number with its interval, what it means in words, and whether that is good.

    Args:
        key: A (ranking), B (scale) or C (mass).
        name: what was measured.
        value: the number; nan where not measured.
        low: lower end of its 95% bootstrap interval.
        high: upper end.
        verdict: plain words.
        status: ``good``, ``poor`` or ``not measured``.
    """

    key: Literal["A", "B", "C"]
    name: str
    value: float
    low: float
    high: float
    verdict: str
    status: Status


@dataclass(frozen=True)
class Diagnosis:
    """The criteria of one evaluation.

    Args:
        name: of the evaluation.
        score: the uncertainty that A and B are about.
        criteria: OOD set -> its A, B and C.
        in_distribution: on test data: Spearman's correlation of uncertainty with error (key A), then C.
        median_ratio: OOD set -> median uncertainty over that on test rows, beside B.
        prevalence: OOD set -> share of its rows among OOD and test rows.
        method: what made the posterior, from the evaluation's ``info``; "" where it does not say.
        low_rank: whether the belief is over low-rank factors, from the same place.
    """

    name: str
    score: str
    criteria: dict[str, tuple[Criterion, ...]]
    in_distribution: tuple[Criterion, ...]
    median_ratio: dict[str, Interval]
    prevalence: dict[str, float]
    method: str = ""
    low_rank: bool = False

    def points_to(self, name: str) -> str:
        """What the three criteria of an OOD set point to, structure before scale."""
        a, b, c = self.criteria[name]
        if "not measured" in (a.status, b.status):
            return f"nothing yet: {a.verdict}" if a.status == b.status else _ONE_DRAW
        misleading = _inverted(a) and b.value > 1  # B is poor then, but not because it is small
        if a.status == "poor" and (b.status == "good" or misleading):
            return (
                "the structure of the posterior: its size is normal and its shape is wrong; "
                f"{self._structure_remedy()} before any rescaling"
            )
        if a.status == "poor":
            return (
                "a sharp centre: neither the order nor the size responds to distance; try a flatter minimum "
                f"(SWA) first, then {self._structure_remedy()}"
            )
        if "poor" in (c.status, self.in_distribution[-1].status):
            return (
                "the temperature: the order is right, the probabilities are off; calibrate on validation data"
            )
        if b.status == "poor":
            return "a few test rows with very large uncertainty: the order is right, so look at those rows"
        return "nothing to mend here"

    def _structure_remedy(self) -> str:
        """What to change about the shape of this method's posterior."""
        if "Ensemble" in self.method:
            return "make the members differ more: more of them, or each with a belief of its own (MeanField)"
        if self.low_rank:
            return "as the weights are low rank already, try another rank or a subspace"
        return (
            "if the posterior is diagonal on full weights, cross terms between weights are missing: try low "
            "rank or a subspace"
        )

    def text(self) -> str:
        """The diagnosis as plain text, a line per criterion."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"Diagnosis of {self.name} ({self.score.replace('_', ' ')})"
        yield "on test data"
        yield from map(_line, self.in_distribution)
        for name, criteria in self.criteria.items():
            yield f"on {name} ({self.prevalence[name]:.0%} of test and {name} together)"
            yield from map(_line, criteria)
            yield f"  points to: {self.points_to(name)}"


def _line(criterion: Criterion) -> str:
    number = (
        "" if math.isnan(criterion.value) else f" {Interval(criterion.value, criterion.low, criterion.high)}"
    )
    return f"  {criterion.key} {criterion.name}{number}: {criterion.status}; {criterion.verdict}"


def diagnose(evaluation: Evaluation) -> Diagnosis:
    """Criteria A, B and C on every OOD set, and what can be said on test data.

    Args:
        evaluation: with its arrays (from ``evaluate`` or ``Evaluation.load``).

    Returns:
        For each OOD set exactly three criteria, A, B, C. Without labels C is "not measured" there, and
        with fewer than 10 rows on a side nothing is.

    Raises:
        TypeError: not an evaluation.
        ValueError: an evaluation without arrays.
    """
    if not isinstance(evaluation, Evaluation):
        raise TypeError(
            f"got a {type(evaluation).__name__}, expected the result of evaluate(posterior, test, ood=...)"
        )
    if "test" not in evaluation.sets:
        raise ValueError(
            "the evaluation has no arrays; use the one from evaluate() or Evaluation.load(folder)"
        )
    criteria, medians = {}, {}
    blank = Interval(math.nan, math.nan, math.nan)
    for name in evaluation.ood:
        if few := _too_few(evaluation, "test", name):
            a, b = _not_measured("A", "ranking", few), _not_measured("B", "scale", few)
            criteria[name], medians[name] = (a, b, _mass(name, evaluation)), blank
            continue
        ratios = _ratios(evaluation, name)
        a = _ranking(name, evaluation.ood[name][evaluation.score]["auroc"], evaluation)
        b = _scale(name, ratios["mean"], ratios["median"], inverted=_inverted(a))
        criteria[name] = (a, b, _mass(name, evaluation))
        medians[name] = ratios["median"]
    inside = (_error_correlation(evaluation), _mass("test", evaluation))
    return Diagnosis(
        evaluation.name,
        evaluation.score,
        criteria,
        inside,
        medians,
        dict(evaluation.prevalence),
        method=str(evaluation.info.get("method", "")),
        low_rank=bool(evaluation.info.get("low_rank", False)),
    )


def _too_few(evaluation: Evaluation, *names: str) -> str:
    """Why nothing can be said of these sets; "" where each has rows enough."""
    few = [(name, len(evaluation.sets[name].mean)) for name in names]
    said = [f"{name} has only {rows} row{'' if rows == 1 else 's'}" for name, rows in few if rows < FEWEST]
    return f"{' and '.join(said)}, fewer than the {FEWEST} that an answer needs" if said else ""


def _ends(interval: Interval) -> tuple[float, float]:
    """The interval's ends, or the value itself where no interval was asked for."""
    return (interval.value, interval.value) if math.isnan(interval.low) else (interval.low, interval.high)


def _inverted(a: Criterion) -> bool:
    return _ends(Interval(a.value, a.low, a.high))[1] < 0.5


def _criterion(
    key: Literal["A", "B", "C"], name: str, interval: Interval, status: Status, verdict: str
) -> Criterion:
    return Criterion(key, name, interval.value, interval.low, interval.high, verdict, status)


def _not_measured(key: Literal["A", "B", "C"], name: str, why: str) -> Criterion:
    return Criterion(key, name, math.nan, math.nan, math.nan, why, "not measured")


def _ranking(name: str, auroc: Interval, evaluation: Evaluation) -> Criterion:
    low, high = _ends(auroc)
    values = np.concatenate([evaluation.sets[key].scores[evaluation.score] for key in ("test", name)])
    status: Status = "poor"
    if np.ptp(values) == 0:
        verdict = f"no signal: every row of test and {name} gets the same uncertainty"
    elif high < 0.5:
        verdict = f"inverted: the model is MORE certain on {name} than on test data"
    elif low <= 0.5:
        verdict = f"no signal: the uncertainty cannot tell {name} from test data"
    elif auroc.value < GOOD_AUROC:
        verdict = f"weak: {name} is only slightly more uncertain than test data"
    else:
        verdict = f"the model is less certain on {name} than on test data in {auroc.value:.1%} of pairs"
        status = "good"
    return _criterion("A", "ranking", auroc, status, verdict)


def _ratios(evaluation: Evaluation, name: str) -> dict[str, Interval]:
    """Mean and median uncertainty of an OOD set over those of the test set; nan where the test value is 0."""
    test, far = evaluation.sets["test"], evaluation.sets[name]
    inside, outside = (arrays.scores[evaluation.score] for arrays in (test, far))
    statistic = _ratio_of(inside, outside)
    strata = ood_strata_of(test, far, evaluation.task)
    draws = bootstrap_replicates({"ratio": statistic}, strata, evaluation.bootstrap, evaluation.seed)["ratio"]
    return {key: percentile_interval(values) for key, values in draws.items()}


def _ratio_of(inside: Floats, outside: Floats) -> Statistic:
    size = len(inside)
    parts = {"mean": (mean_of({"u": inside}), mean_of({"u": outside})),
             "median": (median_of({"u": inside}), median_of({"u": outside}))}  # fmt: skip

    def statistic(counts: Counts) -> dict[str, Floats]:
        ratios = {}
        for key, (of_test, of_far) in parts.items():
            below, above = of_test(counts[:, :size])["u"], of_far(counts[:, size:])["u"]
            ratios[key] = np.where(below > 0, above / np.where(below > 0, below, 1.0), np.nan)
        return ratios

    return statistic


def _scale(name: str, mean: Interval, median: Interval, *, inverted: bool) -> Criterion:
    if math.isnan(mean.value):
        return _not_measured(
            "B", "scale", "the model states no uncertainty on test data, so there is no ratio"
        )
    low, high = _ends(mean)
    times = "over 1,000" if median.value > 1000 else f"{median.value:.3g}"
    middle = "" if math.isnan(median.value) else f" (median {times} times)"
    times = f"{mean.value:.4g} times as large on {name} as on test data{middle}"
    if inverted and mean.value > 1:
        verdict = (
            f"misleading: the mean uncertainty is {times}, but a few large values carry it; "
            f"most of {name} is ranked below test data"
        )
        return _criterion("B", "scale", mean, "poor", verdict)
    if low > 1:
        return _criterion("B", "scale", mean, "good", f"points up: the mean uncertainty is {times}")
    word = "points down" if high < 1 else "does not point up"
    return _criterion("B", "scale", mean, "poor", f"{word}: the mean uncertainty is {times}")


def _mass(name: str, evaluation: Evaluation) -> Criterion:
    regression = evaluation.task == "gaussian"
    few = _too_few(evaluation, name)
    title = "mass (coverage of 95% intervals)" if regression else "mass (calibration error)"
    measured = evaluation.metrics if name == "test" else evaluation.ood_metrics.get(name)
    if measured is None:
        return _not_measured(
            "C", title, f"{name} has no labels, so stated probabilities cannot be checked there"
        )
    if few:
        return _not_measured("C", title, few)
    if regression:
        return _coverage(name, title, measured["interval_coverage"], measured["interval_width"])
    return _calibration(name, title, measured["expected_calibration_error"], evaluation.sets[name])


def _coverage(name: str, title: str, coverage: Interval, width: Interval) -> Criterion:
    inside = f"{coverage.value:.0%} of outcomes on {name}"
    said = f"{inside} lie inside the 95% intervals (mean width {width.value:.3g})"
    if abs(coverage.value - NOMINAL) <= GOOD_GAP:
        return _criterion("C", title, coverage, "good", said)
    word = "too sure of itself" if coverage.value < NOMINAL else "too cautious"
    return _criterion("C", title, coverage, "poor", f"{word}: {said}")


def _calibration(name: str, title: str, error: Interval, arrays: SetArrays) -> Criterion:
    confidence = arrays.mean.max(1) if arrays.mean.ndim == 2 else np.maximum(arrays.mean, 1 - arrays.mean)
    stated = float(confidence.mean())
    right = math.nan if arrays.error is None else 1 - float(arrays.error.mean())
    said = f"on {name} it is {stated:.0%} sure on average and right in {right:.0%} of cases"
    if error.value <= GOOD_GAP:
        return _criterion("C", title, error, "good", said)
    word = "too sure of itself" if stated > right else "too cautious"
    return _criterion("C", title, error, "poor", f"{word}: {said}")


def _error_correlation(evaluation: Evaluation) -> Criterion:
    title = "uncertainty against error (Spearman)"
    arrays = evaluation.sets["test"]
    uncertainty, error = arrays.scores[evaluation.score], arrays.error
    if few := _too_few(evaluation, "test"):
        return _not_measured("A", title, few)
    if error is None or np.ptp(error) == 0 or np.ptp(uncertainty) == 0:
        constant = "uncertainties" if error is not None and np.ptp(error) > 0 else "errors"
        return _not_measured(
            "A", title, f"all {constant} on test data are equal, so there is nothing to compare"
        )
    statistics = {"rank": spearman_of(uncertainty, error)}
    strata = strata_of(arrays, evaluation.task)
    draws = bootstrap_replicates(statistics, strata, evaluation.bootstrap, evaluation.seed)
    rank = percentile_interval(draws["rank"]["spearman"])
    low, high = _ends(rank)
    if low > 0:
        return _criterion("A", title, rank, "good", "more uncertain where it is wrong")
    if high < 0:
        return _criterion("A", title, rank, "poor", "inverted: MORE certain where it is wrong")
    return _criterion("A", title, rank, "poor", "no signal: the uncertainty does not follow the errors")
