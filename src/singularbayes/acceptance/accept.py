"""Hold an evaluation to a checklist: every item passes, fails, or is not measured."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ..diagnosis import Criterion, Diagnosis, diagnose
from ..evaluation import OOD_MEASURES, Evaluation
from ..metrics import Interval
from ..nearest import did_you_mean
from .checklist import Checklist, Item, nearest_known
from .cost import Cost

__all__ = ["Acceptance", "Outcome", "Result", "accept"]

Outcome = Literal["pass", "fail", "not measured"]
MISSPELT = 0.7  # likeness from which the name of a set that is not there is taken for another one


@dataclass(frozen=True)
class Result:
    """What became of one item.

    Args:
        item: what was asked.
        outcome: ``pass``, ``fail`` or ``not measured``.
        found: what was found, or why nothing was, in words.
    """

    item: Item
    outcome: Outcome
    found: str

    def __str__(self) -> str:
        return f"{self.outcome}: {self.item.key} {self.item.asked}; found {self.found}"


@dataclass(frozen=True)
class Acceptance:
    """The checklist's results for one model.

    Args:
        name: of the evaluation.
        results: one an item, in the file's order.
        cost: what was measured of latency and memory, or ``None``.
    """

    name: str
    results: tuple[Result, ...]
    cost: Cost | None = None

    @property
    def accepted(self) -> bool:
        """Whether no item failed and none stayed unmeasured that may not."""
        return not self.failed and not self.open

    @property
    def failed(self) -> tuple[Result, ...]:
        """The items that failed."""
        return tuple(result for result in self.results if result.outcome == "fail")

    @property
    def open(self) -> tuple[Result, ...]:
        """The items that were not measured and are not optional."""
        return tuple(r for r in self.results if r.outcome == "not measured" and not r.item.optional)

    @property
    def verdict(self) -> str:
        """One line."""
        if self.accepted:
            return f"{self.name}: accepted, {_counted(r.outcome for r in self.results)}"
        reasons = [f"{len(self.failed)} failed"] if self.failed else []
        reasons += (
            [f"{len(self.open)} not measured (optional = true lets an item stay so)"] if self.open else []
        )
        return f"{self.name}: not accepted, {', '.join(reasons)} of {len(self.results)} items"

    def text(self) -> str:
        """The verdict and a line an item."""
        return "\n".join([self.verdict, *(f"  {result}" for result in self.results)])


def _counted(outcomes: Iterable[str]) -> str:
    words = list(outcomes)
    return ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))


def accept(checklist: Checklist, evaluation: Evaluation, cost: Cost | None = None) -> Acceptance:
    r"""Hold an evaluation, and what its predictions cost, to a checklist.

    Args:
        checklist: what is asked.
        evaluation: with its arrays where A, B or C are asked for.
        cost: from :func:`measure_cost`; ``None`` leaves latency and memory unmeasured.

    Raises:
        ValueError: an item that asks for a metric, measure or score that evaluations of this task do not
            have, or for a set whose name is nearly that of one that there is.

    Example:
        >>> import singularbayes as sb
        >>> from singularbayes.acceptance import Checklist, accept
        >>> evaluation = sb.Evaluation(
        ...     name="mine", task="categorical", draws=8, seed=0, bootstrap=9, ood={}, ood_metrics={},
        ...     metrics={"accuracy": sb.metrics.Interval(0.93, 0.89, 0.96)}, prevalence={}, sets={}, info={},
        ... )
        >>> checklist = Checklist.parse("[test]\naccuracy = { at_least = 0.9, at = 'low' }")
        >>> print(accept(checklist, evaluation).text())
        mine: not accepted, 1 failed of 1 items
          fail: test.accuracy >= 0.9 at the low end of the interval; found 0.930 [0.890, 0.960]
    """  # fmt: skip
    for item in checklist.items:
        _check_names(item, evaluation)
    asked = any(item.section == "criteria" for item in checklist.items)
    diagnosis = diagnose(evaluation) if asked and evaluation.sets else None
    results = tuple(_result(item, evaluation, diagnosis, cost) for item in checklist.items)
    return Acceptance(evaluation.name, results, cost)


def _check_names(item: Item, evaluation: Evaluation) -> None:
    kind = f"{evaluation.task} evaluation {evaluation.name!r}"
    if item.section == "test":
        nearest_known(f"metric of the {kind}:", item.what, evaluation.metrics)
    if item.section == "ood":
        nearest_known(f"measure of the {kind}:", item.what, (*OOD_MEASURES, *evaluation.metrics))
        if item.score is not None and item.what not in OOD_MEASURES:
            raise ValueError(
                f"{item.key} has a score, which belongs to {', '.join(OOD_MEASURES)} alone; leave it out"
            )
        if item.score is not None and item.on in evaluation.ood:
            nearest_known(f"score of set {item.on!r}:", item.score, evaluation.ood[item.on])
    if item.section in ("ood", "criteria") and item.on not in ("test", *evaluation.ood):
        near = did_you_mean(item.on, evaluation.ood, MISSPELT)
        if near:
            raise ValueError(
                f"{item.key}: the {kind} has no set {item.on!r}, it has {', '.join(evaluation.ood)}{near}"
            )
    if item.section == "ood" and item.on == "test":
        raise ValueError(f"{item.key}: test is no OOD set; write [test] for its metrics")


def _result(item: Item, evaluation: Evaluation, diagnosis: Diagnosis | None, cost: Cost | None) -> Result:
    if item.on and item.on != "test" and item.on not in evaluation.ood:
        have = ", ".join(evaluation.ood) or "none"
        return Result(item, "not measured", f"no set {item.on!r} in the evaluation (OOD sets: {have})")
    if item.section == "cost":
        return _cost(item, evaluation, cost)
    if item.section == "criteria":
        return _criterion(item, diagnosis)
    return _measure(item, evaluation)


def _measure(item: Item, evaluation: Evaluation) -> Result:
    if item.section == "test":
        return _held(item, evaluation.metrics[item.what])
    if item.what in OOD_MEASURES:
        return _held(item, evaluation.ood[item.on][item.score or evaluation.score][item.what])
    if item.on not in evaluation.ood_metrics:
        return Result(item, "not measured", f"{item.on} has no labels")
    return _held(item, evaluation.ood_metrics[item.on][item.what])


def _held(item: Item, interval: Interval) -> Result:
    """The number that the item is about, held to its bounds."""
    number = getattr(interval, item.at)
    if math.isnan(interval.value):
        return Result(item, "not measured", "it is undefined on these data")
    if math.isnan(number):
        return Result(
            item, "not measured", f"{interval}, without an interval; evaluate with bootstrap above 0"
        )
    kept = (item.at_least is None or number >= item.at_least) and (
        item.at_most is None or number <= item.at_most
    )
    return Result(item, "pass" if kept else "fail", str(interval))


def _criterion(item: Item, diagnosis: Diagnosis | None) -> Result:
    if diagnosis is None:
        return Result(item, "not measured", "the evaluation has no arrays to diagnose")
    criteria: tuple[Criterion, ...] = (
        diagnosis.in_distribution if item.on == "test" else diagnosis.criteria[item.on]
    )
    found = next(criterion for criterion in criteria if criterion.key == item.what)
    if found.status == "not measured":
        return Result(item, "not measured", found.verdict)
    if item.status is None:
        return _held(item, Interval(found.value, found.low, found.high))
    return Result(item, "pass" if found.status == item.status else "fail", f"{found.status}: {found.verdict}")


def _cost(item: Item, evaluation: Evaluation, cost: Cost | None) -> Result:
    if item.what == "parameters":
        number = evaluation.info.get("numbers")
        why = "the evaluation does not say how many numbers the posterior stores"
        words = "" if number is None else f"{number:,.0f} stored numbers"
    else:
        number = None if cost is None else getattr(cost, item.what)
        why = "no posterior was given to measure" if cost is None else "this system does not tell it"
        words = "" if cost is None else str(cost)
    if number is None:
        return Result(item, "not measured", why)
    held = _held(item, Interval(float(number), math.nan, math.nan))
    return Result(item, held.outcome, words)
