"""The report's tables and dials as rows of printable cells; bold is earned by the intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from singularbayes.diagnosis import Criterion
from singularbayes.report.content import Entry, Report
from singularbayes.report.estimate import Estimate, duration, number, span
from singularbayes.report.verdict import SCORES, metric_estimate, ood_estimate
from singularbayes.scores import for_task

NAMES = {
    "accuracy": "Accuracy",
    "negative_log_likelihood": "NLL (nats)",
    "brier": "Brier",
    "expected_calibration_error": "ECE",
    "adaptive_calibration_error": "Adaptive ECE",
    "error_average_precision": "Error AP",
    "success_average_precision": "Success AP",
    "selective_risk_area": "Risk-coverage area",
    "auroc": "AUROC of the label",
    "rmse": "RMSE",
    "mae": "MAE",
    "crps": "CRPS",
    "interval_coverage": "Coverage of 95% intervals",
    "interval_width": "Width of 95% intervals",
    "regression_calibration_error": "Calibration error",
}
# 1 = higher is better, -1 = lower is better; a measure without an entry is never bold (coverage, width).
BETTER = {
    "accuracy": 1, "negative_log_likelihood": -1, "brier": -1, "expected_calibration_error": -1,
    "error_average_precision": 1, "success_average_precision": 1, "auroc": 1, "rmse": -1, "mae": -1,
    "crps": -1, "regression_calibration_error": -1, "average_precision_out": 1, "average_precision_in": 1,
    "fpr95": -1, "adaptive_calibration_error": -1, "selective_risk_area": -1,
}  # fmt: skip
FIRST = {
    "categorical": ("accuracy", "negative_log_likelihood", "expected_calibration_error"),
    "bernoulli": ("accuracy", "auroc", "negative_log_likelihood", "expected_calibration_error"),
    "gaussian": ("mae", "rmse", "negative_log_likelihood", "crps", "interval_coverage"),
}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A printed value, its interval below it, and whether it is clearly the best of its column."""

    text: str
    interval: str = ""
    best: bool = False
    missing: bool = False


@dataclass(frozen=True, kw_only=True)
class Column:
    """A heading with a small line below it, and one cell a method."""

    head: str
    sub: str
    cells: tuple[Cell, ...]
    group: str = ""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Columns, and the (heading, width) of neighbours with one group; none where no column has one."""

    columns: tuple[Column, ...]
    groups: tuple[tuple[str, int], ...]


@dataclass(frozen=True, kw_only=True)
class Dial:
    """One criterion of one method; positions run from 0 to 100 along the track, None where not drawn."""

    key: str
    name: str
    text: str
    interval: str
    verdict: str
    status: str
    point: float | None
    low: float | None
    high: float | None
    reference: float | None
    ends: tuple[str, str]
    beyond: str = ""  # "low" or "high": the value lies outside the track, which ends in an arrow there


def grouped(columns: Sequence[Column]) -> Table:
    """The columns with their shared headings."""
    groups = tuple(
        (name, len(list(part))) for name, part in groupby(columns, key=lambda column: column.group)
    )
    return Table(columns=tuple(columns), groups=groups if any(name for name, _ in groups) else ())


def clearly_best(estimates: Sequence[Estimate | None], better: int) -> int | None:
    """The column's clear winner: its 95% interval overlaps no other's, and no method lacks one.

    Args:
        estimates: one a method; None where not measured.
        better: 1 = higher, -1 = lower, 0 = neither.

    Returns:
        Its place, or None: one method, a missing or undefined value, or intervals that overlap.
    """
    if better == 0 or len(estimates) < 2:
        return None
    known = [e for e in estimates if e is not None and e.bounded]
    if len(known) < len(estimates):
        return None
    place = max(range(len(known)), key=lambda i: better * known[i].value)
    overlap = any(known[place].overlaps(e) for i, e in enumerate(known) if i != place)
    return None if overlap else place


def column(
    entries: Sequence[Entry],
    head: str,
    sub: str,
    measure: str,
    read: Callable[[Entry], Estimate | None],
    group: str = "",
) -> Column:
    """A column of one measure, its clear winner marked."""
    found = [read(entry) for entry in entries]
    winner = clearly_best(found, BETTER.get(measure, 0))
    cells = tuple(_cell(e, i == winner) for i, e in enumerate(found))
    return Column(head=head, sub=sub, cells=cells, group=group)


def _cell(estimate: Estimate | None, best: bool) -> Cell:
    if estimate is None or not estimate.exists:
        return Cell(text=number(estimate.value if estimate else None), missing=True)
    note = f"in {estimate.defined} of {estimate.seeds} seeds" if estimate.defined < estimate.seeds else ""
    return Cell(
        text=number(estimate.value), interval=" ".join(filter(None, (span(estimate), note))), best=best
    )


def main_table(report: Report) -> Table:
    """Trained numbers, test measures, AUROC on each unfamiliar set by both scores, training time."""
    entries, task = report.entries, report.task
    numbers = tuple(Cell(text=f"{entry.numbers:,}") for entry in entries)
    seconds = tuple(
        Cell(text=duration(entry.seconds), missing=not math.isfinite(entry.seconds)) for entry in entries
    )
    columns = [Column(head="Trained numbers", sub="", cells=numbers)]
    columns += [metric_column(entries, measure, group="Test set") for measure in FIRST[task]]
    for unfamiliar in report.unfamiliar:
        for score, words in SCORES[task]:
            group = f"AUROC, “{unfamiliar}” against test"
            columns.append(
                _ood_column(entries, unfamiliar, score, "auroc", head=f"by {words}", sub="↑", group=group)
            )
    return grouped([*columns, Column(head="Training", sub="one seed", cells=seconds)])


def metric_column(
    entries: Sequence[Entry], measure: str, unfamiliar: str | None = None, group: str = ""
) -> Column:
    """A column of a test measure, on the test set or on a labelled unfamiliar set."""
    arrow = {1: "↑", -1: "↓", 0: ""}[BETTER.get(measure, 0)]
    sub = "target 0.95" if measure == "interval_coverage" else arrow
    head = NAMES.get(measure, measure.replace("_", " "))
    return column(
        entries, head, sub, measure, lambda entry: metric_estimate(entry, measure, unfamiliar), group
    )


def set_table(report: Report, unfamiliar: str) -> Table:
    """All ranking measures on one unfamiliar set, with what guessing scores beside each average precision.

    By both scores of the task, then by those that ``evaluate(scores=...)`` was given.
    """
    share = prevalence(report, unfamiliar)
    kinds = (
        ("auroc", "AUROC\u00a0↑", 0.5),
        ("average_precision_out", "AUPR\u2011Out\u00a0↑", share),
        ("average_precision_in", "AUPR\u2011In\u00a0↑", None if share is None else 1 - share),
        ("fpr95", "FPR at 95% TPR\u00a0↓", 0.95),
    )
    return grouped(
        [
            _ood_column(
                report.entries, unfamiliar, score, measure, head=head,
                sub="" if guess is None else f"guess {number(guess)}", group=f"by {words}",
            )
            for score, words in (*SCORES[report.task], *_further_scores(report, unfamiliar))
            for measure, head, guess in kinds
        ]
    )  # fmt: skip


def _further_scores(report: Report, unfamiliar: str) -> list[tuple[str, str]]:
    """Scores beside the task's own, each with its name as words."""
    own = for_task(report.task)
    found = [s for entry in report.entries for e in entry.evaluations for s in e.ood.get(unfamiliar, {})]
    return [(score, score) for score in dict.fromkeys(found) if score not in own]


def prevalence(report: Report, unfamiliar: str) -> float | None:
    """Share of out-of-distribution cases in the comparison; None where not stored."""
    found = [
        e.prevalence[unfamiliar]
        for entry in report.entries
        for e in entry.evaluations
        if unfamiliar in e.prevalence
    ]
    return found[0] if found and math.isfinite(found[0]) else None


def label_tables(report: Report) -> list[tuple[str, Table]]:
    """Every measure on the test set, then on each unfamiliar set that has labels."""
    tables = []
    for unfamiliar in (None, *report.unfamiliar):
        sets = [
            e.metrics if unfamiliar is None else e.ood_metrics.get(unfamiliar, {})
            for entry in report.entries
            for e in entry.evaluations
        ]
        measures = list(dict.fromkeys(m for metrics in sets for m in metrics))
        if measures:
            columns = [metric_column(report.entries, m, unfamiliar) for m in measures]
            tables.append((unfamiliar or "test", grouped(columns)))
    return tables


def _ood_column(
    entries: Sequence[Entry], unfamiliar: str, score: str, measure: str, *, head: str, sub: str, group: str
) -> Column:
    return column(
        entries, head, sub, measure, lambda entry: ood_estimate(entry, unfamiliar, score, measure), group
    )


def dials(entry: Entry, unfamiliar: str) -> list[Dial]:
    """The criteria of one method on one set, as the diagnosis gives them, else "not measured"."""
    criteria = () if entry.diagnosis is None else entry.diagnosis.criteria.get(unfamiliar, ())
    found = [_dial(criterion) for criterion in criteria]
    keys = {dial.key for dial in found}
    blank = [
        Dial(
            key=key, name=name, text="not measured", interval="", verdict="", status="not measured",
            point=None, low=None, high=None, reference=None, ends=("", ""),
        )
        for key, name in (("A", "ranking"), ("B", "scale"), ("C", "mass"))
        if key not in keys
    ]  # fmt: skip
    return sorted([*found, *blank], key=lambda dial: dial.key)


def shared_gaps(rows: Sequence[Sequence[Dial]]) -> tuple[list[Dial], list[list[Dial]]]:
    """Criteria that no method has, for one and the same reason, once; then each method's other dials."""
    gaps = []
    for dial in rows[0] if rows else ():
        twins = [d for row in rows for d in row if d.key == dial.key]
        if dial.status == "not measured" and all(d == dial for d in twins):
            gaps.append(dial)
    keys = {dial.key for dial in gaps}
    return gaps, [[d for d in row if d.key not in keys] for row in rows]


def inside_dials(entry: Entry) -> list[Dial]:
    """What the diagnosis says of the test set alone; empty without one."""
    criteria = () if entry.diagnosis is None else entry.diagnosis.in_distribution
    return sorted((_dial(criterion) for criterion in criteria), key=lambda dial: dial.key)


def cause(entry: Entry, unfamiliar: str) -> str:
    """What the diagnosis points to on one set; empty where nothing is poor."""
    if entry.diagnosis is None or unfamiliar not in entry.diagnosis.criteria:
        return ""
    criteria = (*entry.diagnosis.criteria[unfamiliar], *entry.diagnosis.in_distribution)
    return entry.diagnosis.points_to(unfamiliar) if any(c.status == "poor" for c in criteria) else ""


def _dial(criterion: Criterion) -> Dial:
    low_end, high_end, reference, log, ends = _scale(criterion)

    def place(value: float) -> float | None:
        if not math.isfinite(value) or (log and value <= 0):
            return None
        change = math.log if log else float
        share = (change(value) - change(low_end)) / (change(high_end) - change(low_end))
        return round(100 * min(max(share, 0.0), 1.0), 2)

    known = math.isfinite(criterion.value)
    beyond = "high" if known and criterion.value > high_end else ""
    beyond = "low" if known and criterion.value < low_end else beyond
    value = None if criterion.status == "not measured" and math.isnan(criterion.value) else criterion.value
    estimate = Estimate(value=criterion.value, low=criterion.low, high=criterion.high, defined=1, seeds=1)
    times = "×" if criterion.key == "B" and value is not None and math.isfinite(value) else ""
    return Dial(
        key=criterion.key, name=criterion.name, text=times + number(value), interval=span(estimate),
        verdict=criterion.verdict, status=criterion.status,
        point=place(criterion.value), low=place(criterion.low),
        high=place(criterion.high), reference=None if reference is None else place(reference), ends=ends,
        beyond=beyond if place(criterion.value) is not None else "",
    )  # fmt: skip


def _scale(criterion: Criterion) -> tuple[float, float, float | None, bool, tuple[str, str]]:
    if "Spearman" in criterion.name:
        return -1.0, 1.0, 0.0, False, ("\N{MINUS SIGN}1", "1")
    if criterion.key == "A":
        return 0.0, 1.0, 0.5, False, ("0", "1")
    if criterion.key == "B":
        return 1 / 16, 16.0, 1.0, True, ("÷16", "×16")
    if "coverage" in criterion.name.lower():
        return 0.0, 1.0, 0.95, False, ("0", "1")
    return 0.0, 0.3, None, False, ("0", "0.3")
