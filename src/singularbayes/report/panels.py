"""The figures that every report can have: all that follows from the evaluations alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from singularbayes.report.content import Entry, Panel
from singularbayes.report.figures import (
    coverage_curve,
    forest_plot,
    reliability_diagram,
    uncertainty_histograms,
)
from singularbayes.report.palette import MethodStyle, method_styles
from singularbayes.report.verdict import SCORES, confidence_and_hits, ood_estimate


def standard_panels(
    entries: Sequence[Entry], styles: Mapping[str, MethodStyle] | None = None
) -> tuple[Panel, ...]:
    """Forest plot of the AUROC, histograms of uncertainty, and reliability or coverage on each labelled set.

    Histograms and curves show the first seed; the forest plot pools all seeds.

    Args:
        entries: the methods, at least one, all of one task.
        styles: method -> style; by order where None.

    Returns:
        The panels; those whose data are missing are left out.

    Raises:
        ValueError: no entry.
    """
    if not entries:
        raise ValueError("got no entry; expected at least one method")
    styles = method_styles([entry.name for entry in entries]) if styles is None else styles
    score, words = SCORES[entries[0].task][0]
    sets = list(dict.fromkeys(s for entry in entries for e in entry.evaluations for s in e.ood))
    panels = []
    if sets:
        panels.append(_forest(entries, sets, score, words, styles))
    if histograms := _histograms(entries, score, words, styles):
        panels.append(histograms)
    draw = _coverage if entries[0].task == "gaussian" else _reliability
    panels += [panel for name in ("test", *sets) if (panel := draw(entries, name, styles))]
    return tuple(panels)


def _forest(
    entries: Sequence[Entry], sets: Sequence[str], score: str, words: str, styles: Mapping[str, MethodStyle]
) -> Panel:
    groups = {}
    for unfamiliar in sets:
        found = {entry.name: ood_estimate(entry, unfamiliar, score, "auroc") for entry in entries}
        groups[unfamiliar] = {name: estimate for name, estimate in found.items() if estimate is not None}
    return Panel(
        title="How well uncertainty ranks unfamiliar cases",
        caption="Further right is better; two methods whose bars overlap are not told apart, and left of "
        "the dotted line the ranking is upside down.",
        figure=forest_plot(groups, label=f"AUROC by {words}", reference=0.5, styles=styles),
    )


def _histograms(
    entries: Sequence[Entry], score: str, words: str, styles: Mapping[str, MethodStyle]
) -> Panel | None:
    scores = {}
    for entry in entries:
        sets = entry.evaluations[0].sets
        found = {name: np.asarray(a.scores[score]).ravel() for name, a in sets.items() if score in a.scores}
        if found:
            scores[entry.name] = found
    if not scores:
        return None
    unit = "" if entries[0].task == "gaussian" else " (nats)"
    return Panel(
        title="Uncertainty on familiar and unfamiliar cases",
        caption="The further an outline lies to the right of the grey area, the better that method sees that "
        "the set is unfamiliar; all rows share their bins (first seed).",
        figure=uncertainty_histograms(scores, label=words + unit, styles=styles),
    )


def _reliability(entries: Sequence[Entry], name: str, styles: Mapping[str, MethodStyle]) -> Panel | None:
    confidence, correct = {}, {}
    for entry in entries:
        arrays = entry.evaluations[0].sets.get(name)
        if arrays is not None and arrays.error is not None:
            confidence[entry.name], correct[entry.name] = confidence_and_hits(arrays)
    if not confidence:
        return None
    return Panel(
        title=f"Reliability on “{name}”",
        caption="A line below the dotted diagonal is over-confident there; short columns below mean few "
        "cases and little weight (first seed, bars are 95% intervals).",
        figure=reliability_diagram(confidence, correct, styles=styles),
    )


def _coverage(entries: Sequence[Entry], name: str, styles: Mapping[str, MethodStyle]) -> Panel | None:
    means, variances, target = {}, {}, None
    for entry in entries:
        arrays = entry.evaluations[0].sets.get(name)
        if arrays is not None and arrays.labels is not None and arrays.variance is not None:
            target = np.asarray(arrays.labels, dtype=np.float64)
            means[entry.name] = np.asarray(arrays.mean, dtype=np.float64).reshape(target.shape)
            variances[entry.name] = np.asarray(arrays.variance, dtype=np.float64).reshape(target.shape)
    if target is None:
        return None
    return Panel(
        title=f"Coverage on “{name}”",
        caption="A curve below the dotted diagonal holds fewer cases than it claims: it is over-confident "
        "(first seed).",
        figure=coverage_curve(means, variances, target, styles=styles),
    )
