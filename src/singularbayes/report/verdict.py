"""The verdict in words: which method ranks best, whether that is beyond the intervals, and what is wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from singularbayes.diagnosis import GOOD_GAP, NOMINAL
from singularbayes.evaluation import SetArrays, paired_difference
from singularbayes.metrics import Interval
from singularbayes.report.content import Entry, Report
from singularbayes.report.estimate import Estimate, number, pool, span

# Task -> the score the verdict uses, then the one printed beside it, each with its name in words.
SCORES: dict[str, tuple[tuple[str, str], tuple[str, str]]] = {
    "categorical": (("mutual_information", "mutual information"), ("entropy", "entropy")),
    "bernoulli": (("mutual_information", "mutual information"), ("entropy", "entropy")),
    "gaussian": (("epistemic_variance", "epistemic variance"), ("total_variance", "total variance")),
}
# Over-confident: a gap above the diagnosis' own limit, whose interval too lies above 0.
GAP, LEVEL = GOOD_GAP, NOMINAL


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One sentence of the verdict; tone "good", "poor" or "neutral"."""

    topic: str
    text: str
    tone: str


def ood_estimate(entry: Entry, unfamiliar: str, score: str, measure: str) -> Estimate | None:
    """One measure of out-of-distribution ranking over the entry's seeds; None where no seed measured it."""
    found = [e.ood.get(unfamiliar, {}).get(score, {}).get(measure) for e in entry.evaluations]
    return pool(found, measure)


def metric_estimate(entry: Entry, measure: str, unfamiliar: str | None = None) -> Estimate | None:
    """One measure on the test set, or on a labelled out-of-distribution set, over the entry's seeds."""
    sets = [e.metrics if unfamiliar is None else e.ood_metrics.get(unfamiliar, {}) for e in entry.evaluations]
    return pool([metrics.get(measure) for metrics in sets], measure)


def confidence_gap(entry: Entry, name: str) -> Estimate | None:
    """Mean confidence minus accuracy on one set, above 0 = over-confident; None without labels.

    `g_i = max_k p_k(x_i) - 1[right]`, mean +- 1.96 sd / sqrt(B), pooled over the seeds.

    Args:
        entry: a classifier's entry.
        name: "test" or an out-of-distribution set.

    Returns:
        The gap, a difference of shares.
    """
    gaps = []
    for evaluation in entry.evaluations:
        arrays = evaluation.sets.get(name)
        if arrays is None or arrays.error is None:
            gaps.append(None)
            continue
        confidence, right = confidence_and_hits(arrays)
        gap = confidence - right
        if gap.size == 0:
            gaps.append(Interval(math.nan, math.nan, math.nan))
            continue
        half = 1.96 * float(gap.std(ddof=1)) / math.sqrt(gap.size) if gap.size > 1 else math.nan
        mean = float(gap.mean())
        gaps.append(Interval(mean, mean - half, mean + half))
    return pool(gaps)


def confidence_and_hits(arrays: SetArrays) -> tuple[np.ndarray, np.ndarray]:
    """Probability of the predicted class and 1 where it is right, each (B,), from a set's arrays."""
    mean = np.asarray(arrays.mean, dtype=np.float64)
    confidence = np.maximum(mean, 1 - mean) if mean.ndim == 1 else mean.max(axis=1)  # (B,) is P(y = 1)
    return confidence, 1.0 - np.asarray(arrays.error, dtype=np.float64)


def verdict(report: Report) -> list[Finding]:
    """The findings in reading order: ranking per set, inversion, confidence.

    A method is called best only where its 95% interval overlaps no other's, the rule of the tables' bold.
    Where it does overlap, the paired difference to the runner-up on the same cases says whether it leads.
    Methods that rank as well by the task's other score are named: readers see it in the table.

    Args:
        report: the report.

    Returns:
        The findings.
    """
    findings = [_ranking(report.entries, name, report.task) for name in report.unfamiliar]
    if not findings:
        findings.append(
            Finding(topic="Ranking", text="No out-of-distribution set was measured.", tone="neutral")
        )
    else:
        findings.append(_inversion(report.entries, report.unfamiliar, report.task))
    findings.append(_coverage(report) if report.task == "gaussian" else _confidence(report))
    return findings


def _ranking(entries: Sequence[Entry], unfamiliar: str, task: str) -> Finding:
    score, words = SCORES[task][0]
    topic = f"Ranking of “{unfamiliar}”"
    found = [(entry.name, ood_estimate(entry, unfamiliar, score, "auroc")) for entry in entries]
    ranked = sorted(((n, e) for n, e in found if e is not None and e.exists), key=lambda item: -item[1].value)
    if not ranked:
        text = f"The AUROC by {words} is undefined or not measured for every method."
        return Finding(
            topic=topic, text=text + _by_the_other_score(entries, unfamiliar, task), tone="neutral"
        )
    name, best = ranked[0]
    value = f"AUROC {number(best.value)}" + (f", 95% interval {span(best)}" if best.bounded else "")
    members = {entry.name: entry for entry in entries}
    rivals = [n for n, e in ranked[1:] if best.overlaps(e)]
    silent = [n for n, e in found if e is None or not e.exists]
    tail = f" Undefined or not measured for {_join(silent)}." if silent else ""
    if not best.bounded:
        tone, text = "neutral", f"Highest is {name} ({value}); without intervals no difference is claimed."
    elif best.low <= 0.5:
        tone = "poor"
        text = f"No method is shown to rank these cases better than chance; the highest is {name} ({value})."
    elif len(ranked) == 1:
        tone, text = "good", f"{name} ranks these cases above familiar ones: {value}."
    elif rivals:
        tone, text = "neutral", f"{name} is highest ({value}); "
        text += _lead(members[name], members[rivals[0]], unfamiliar, score) + "."
        if rivals[1:]:
            text += f" Its interval also overlaps that of {_join(rivals[1:])}."
    else:
        second, next_best = ranked[1]
        tone, text = "good", f"{name} ranks best ({value}), beyond the intervals of all others; the next is "
        text += f"{second} with {number(next_best.value)} ({span(next_best)}), by {words}."
    other = _by_the_other_score(entries, unfamiliar, task, best)
    return Finding(topic=topic, text=text + other + tail, tone=tone)


def _lead(best: Entry, second: Entry, unfamiliar: str, score: str) -> str:
    """Whether the best leads the runner-up, whose interval overlaps its own: ONE statement, not two."""
    difference = auroc_difference(best, second, unfamiliar, score)
    if difference is None or not difference.bounded:
        return f"whether it beats {second.name} is open, as their intervals overlap"
    gap = f"{number(difference.value)}, 95% interval {span(difference)}"
    if difference.low > 0:
        return (
            f"it is ahead of {second.name}, the next, on the same cases (by {gap}), a lead too small to part "
            "their separate intervals"
        )
    return f"no winner, as on the same cases it is not told apart from {second.name} (difference {gap})"


def _by_the_other_score(
    entries: Sequence[Entry], unfamiliar: str, task: str, best: Estimate | None = None
) -> str:
    """Who ranks by the second score as well as the best does by the first; above chance without a best."""
    (score, words), (other, other_words) = SCORES[task]
    found = []
    for entry in entries:
        second = ood_estimate(entry, unfamiliar, other, "auroc")
        if second is None or not second.bounded or second.low <= 0.5:
            continue
        reaches = best is None or (best.bounded and second.high >= best.low)
        if reaches and second != ood_estimate(entry, unfamiliar, score, "auroc"):
            found.append((-second.value, f"{entry.name} ({number(second.value)})"))
    if not found:
        return ""
    texts, verb = [text for _, text in sorted(found)], "rank" if len(found) > 1 else "ranks"
    if best is None:
        return f" By {other_words}, {_join(texts)} {verb} these cases above familiar ones."
    return (
        f" By {other_words}, {_join(texts)} {verb} as well or better (intervals that overlap or lie above): "
        f"read the column beside {words} too."
    )


def auroc_difference(first: Entry, second: Entry, unfamiliar: str, score: str) -> Estimate | None:
    """AUROC of `first` minus that of `second` on the same resampled cases, over the seeds that both have.

    Args:
        first: a method.
        second: another.
        unfamiliar: the out-of-distribution set.
        score: the score that both rank by.

    Returns:
        The difference; None where the two share no seed, or were not measured on the same cases.
    """
    others = {evaluation.seed: evaluation for evaluation in second.evaluations}
    pairs = [(e, others[e.seed]) for e in first.evaluations if e.seed in others]
    try:
        return pool([paired_difference(a, b, "auroc", on=unfamiliar, score=score) for a, b in pairs])
    except ValueError:  # other rows, or evaluations loaded without their arrays: there are no pairs
        return None


def _inversion(entries: Sequence[Entry], sets: Sequence[str], task: str) -> Finding:
    score = SCORES[task][0][0]
    inverted, chance = [], []
    for entry in entries:
        for unfamiliar in sets:
            found = ood_estimate(entry, unfamiliar, score, "auroc")
            if found is None or not found.bounded:
                continue
            where = f"{entry.name} on “{unfamiliar}” (AUROC {number(found.value)}, {span(found)})"
            if found.high < 0.5:
                inverted.append(where)
            elif found.low <= 0.5:
                chance.append(where)
    tail = f" Not told apart from chance: {_join(chance)}." if chance else ""
    if inverted:
        text = f"Surer of unfamiliar cases than of familiar ones: {_join(inverted)}.{tail}"
        return Finding(topic="Inverted", text=text, tone="poor")
    text = f"No method is inverted: no AUROC lies wholly below 0.5.{tail}"
    return Finding(topic="Inverted", text=text, tone="neutral" if chance else "good")


def _confidence(report: Report) -> Finding:
    over, under, measured = [], [], 0
    for entry in report.entries:
        for name in ("test", *report.unfamiliar):
            gap = confidence_gap(entry, name)
            if gap is None or not gap.bounded:
                continue
            measured += 1
            where = (abs(gap.value), f"{entry.name} on “{name}” by {_points(gap)}")
            if gap.low > 0 and gap.value >= GAP:
                over.append(where)
            elif gap.high < 0 and gap.value <= -GAP:
                under.append(where)
    if not measured:
        return Finding(
            topic="Over-confident", text="Not measured: no set with labels is stored.", tone="neutral"
        )
    tail = f" Less sure than they are right: {_worst(under)}." if under else ""
    if over:
        text = f"Confidence exceeds accuracy for {_worst(over)}.{tail}"
        return Finding(topic="Over-confident", text=text, tone="poor")
    text = (
        f"No method is shown to be over-confident by {100 * GAP:.0f} points or more on a labelled set.{tail}"
    )
    return Finding(topic="Over-confident", text=text, tone="good")


def _coverage(report: Report) -> Finding:
    over, measured = [], 0
    for entry in report.entries:
        for name in (None, *report.unfamiliar):
            found = metric_estimate(entry, "interval_coverage", name)
            if found is None or not found.bounded:
                continue
            measured += 1
            if found.high < LEVEL and found.value <= LEVEL - GAP:
                where = f"{entry.name} on “{name or 'test'}” ({found.value:.1%}, {_percents(found)})"
                over.append((LEVEL - found.value, where))
    if not measured:
        return Finding(topic="Over-confident", text="Not measured: no coverage is stored.", tone="neutral")
    if over:
        text = f"Too few cases lie inside the nominal {LEVEL:.0%} intervals of {_worst(over)}."
        return Finding(topic="Over-confident", text=text, tone="poor")
    text = f"No method's nominal {LEVEL:.0%} intervals are shown to hold too few cases."
    return Finding(topic="Over-confident", text=text, tone="good")


def _points(gap: Estimate) -> str:
    low, high = sorted((100 * abs(gap.low), 100 * abs(gap.high)))
    return f"{100 * abs(gap.value):.1f} points ({low:.1f} to {high:.1f})"


def _percents(found: Estimate) -> str:
    return f"{found.low:.1%} to {found.high:.1%}"


def _worst(items: list[tuple[float, str]], most: int = 4) -> str:
    texts = [text for _, text in sorted(items, key=lambda item: -item[0])]
    rest = len(texts) - most
    return _join(texts) if rest <= 0 else _join([*texts[:most], f"{rest} more (see the table)"])


def _join(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]
