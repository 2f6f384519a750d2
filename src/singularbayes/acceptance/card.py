"""A model card in Markdown: what the model is, its data, its results, its limits and the checklist."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ..diagnosis import diagnose
from ..evaluation import Evaluation
from ..metrics import Interval
from .accept import Acceptance

__all__ = ["model_card"]

FEW = 30  # rows below which intervals are wide


def model_card(
    evaluation: Evaluation,
    acceptance: Acceptance | None = None,
    data: Sequence[str] = (),
    limits: Sequence[str] = (),
) -> str:
    """The card of one evaluated model.

    Args:
        evaluation: with its arrays, for A, B and C.
        acceptance: the checklist's results, or ``None``.
        data: sentences about the data: where they come from, how they were divided, findings of
            ``Protocol.check``.
        limits: sentences beside those that follow from the evaluation.

    Returns:
        Markdown, with a line at its end.

    References:
        Mitchell et al. 2019, "Model Cards for Model Reporting", arXiv 1810.03993.
    """
    return "\n".join(_lines(evaluation, acceptance, data, limits)) + "\n"


def _lines(
    evaluation: Evaluation, acceptance: Acceptance | None, data: Sequence[str], limits: Sequence[str]
) -> Iterator[str]:
    yield f"# Model card: {_safe(evaluation.name)}"
    if acceptance is not None:
        yield f"\n**{_safe(acceptance.verdict)}**"
    yield "\n## Model\n"
    drawn = f"{evaluation.draws} posterior draws, seed {evaluation.seed}"
    yield f"- Task: {evaluation.task}; predictions from {drawn}."
    yield from (f"- {_safe(key)}: {_safe(_plain(value))}" for key, value in evaluation.info.items())
    yield "\n## Data\n"
    rows = {name: len(arrays.mean) for name, arrays in evaluation.sets.items()}
    yield from (f"- {_safe(name)}: {count:,} rows" for name, count in rows.items())
    yield from (f"- {_safe(sentence)}" for sentence in data)
    yield "\n## Results\n"
    yield f"Values with 95% intervals of {evaluation.bootstrap:,} bootstrap resamples.\n"
    yield "| set | measure | value |\n|---|---|---|"
    yield from (_row("test", key, cell) for key, cell in evaluation.metrics.items())
    for name, cells in evaluation.ood_metrics.items():
        yield from (_row(name, key, cell) for key, cell in cells.items())
    for name, by_score in evaluation.ood.items():
        against = f"{name} against test ({evaluation.prevalence[name]:.0%} of the rows)"
        for score, cells in by_score.items():
            words = score.replace("_", " ")
            yield from (_row(against, f"{key} by {words}", cell) for key, cell in cells.items())
    if evaluation.sets:
        yield "\n## Ranking (A), scale (B), mass (C)\n"
        yield from _criteria(evaluation)
    yield "\n## Limits\n"
    yield from (f"- {_safe(sentence)}" for sentence in (*_limits(evaluation, rows), *limits))
    if acceptance is not None:
        yield "\n## Checklist\n"
        yield "| outcome | item | asked | found |\n|---|---|---|---|"
        for result in acceptance.results:
            cells = (result.outcome, result.item.key, result.item.asked, result.found)
            yield f"| {' | '.join(map(_safe, cells))} |"
        if acceptance.cost is not None:
            yield f"\nOne prediction: {_safe(str(acceptance.cost))}."


def _criteria(evaluation: Evaluation) -> Iterator[str]:
    diagnosis = diagnose(evaluation)
    for name, criteria in (("test", diagnosis.in_distribution), *diagnosis.criteria.items()):
        for criterion in criteria:
            cell = Interval(criterion.value, criterion.low, criterion.high)
            number = "" if math.isnan(cell.value) else f" {cell}"
            yield _safe(
                f"- {name}, {criterion.key} {criterion.name}{number}: {criterion.status}; {criterion.verdict}"
            )
        if name in diagnosis.criteria:
            yield _safe(f"- {name} points to: {diagnosis.points_to(name)}")


def _limits(evaluation: Evaluation, rows: dict[str, int]) -> Iterator[str]:
    if not evaluation.ood:
        yield "No out-of-distribution set was scored: nothing is known of unfamiliar cases."
    else:
        names = ", ".join(evaluation.ood)
        yield f"Unfamiliar cases were scored on {names} alone; other kinds may go unnoticed."
    few = [name for name, count in rows.items() if count < FEW]
    if few:
        yield f"Fewer than {FEW} rows in {', '.join(few)}: intervals there are wide."
    unlabelled = [name for name in evaluation.ood if name not in evaluation.ood_metrics]
    if unlabelled:
        yield f"No labels on {', '.join(unlabelled)}: stated probabilities could not be checked there."
    if not evaluation.bootstrap:
        yield "No resamples were drawn, so no number has an interval."


def _row(on: str, measure: str, cell: Interval) -> str:
    return f"| {_safe(on)} | {_safe(measure.replace('_', ' '))} | {cell} |"


def _plain(value: object) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


def _safe(text: str) -> str:
    """Names as text: no markup of Markdown or HTML in them, no new line, no new cell."""
    for sign in "\\`*_[]<>#|":
        text = text.replace(sign, f"\\{sign}" if sign not in "<>" else {"<": "&lt;", ">": "&gt;"}[sign])
    return " ".join(text.split())
