"""Measure a posterior, on test data and at telling out-of-distribution data from it, with intervals.

All sets are predicted with the same seed, hence by the same functions. Resamples are stratified: test rows by
class, ID and OOD apart; every measure of a set uses the same resamples, so that two evaluations can be
compared row by row (:func:`paired_difference`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import scores as scores_module
from ..metrics.bootstrap import check_count
from ..metrics.inputs import Floats
from .data import Reader, checked
from .measures import OOD_MEASURES, measure_ood, measure_set, paired_difference
from .prediction import check_extra_scores, predict_set
from .predictions import evaluate_predictions
from .record import Evaluation, SetArrays

__all__ = ["OOD_MEASURES", "Evaluation", "SetArrays", "evaluate", "evaluate_predictions", "paired_difference"]


def evaluate(
    posterior: Any,
    test: Any,
    ood: Mapping[str, Any] | None = None,
    draws: int = 64,
    bootstrap: int = 1000,
    seed: int = 0,
    name: str | None = None,
    scores: Mapping[str, Any] | None = None,
) -> Evaluation:
    """Predict every set once and measure it.

    Args:
        posterior: with ``predict(x, draws=, seed=)``, ``likelihood.task`` and ``info``.
        test: data with labels in any form that ``fit`` takes: ``(X, y)`` of tensors, arrays or frames, a
            ``Dataset``, a ``DataLoader`` or a list of batches ``(x, y)`` or dicts with ``labels``. Inputs are
            cast to ``posterior.dtype`` (float32 where it has none).
        ood: set name -> data in any of these forms, or ``X`` alone for data without labels: a tensor, array,
            frame, dict of them, or tuple of other than two; a tuple of two is always ``(X, y)``.
        draws: posterior draws of a prediction.
        bootstrap: resamples of the intervals; 0 for values alone.
        seed: of the draws and of the resamples.
        name: of the evaluation; the method's name by default.
        scores: further scores: name -> object with ``score(x) -> (B,)``, higher for more out-of-distribution
            (``sb.feature_scores``). They are measured with the same resamples as the predictive's own.

    Returns:
        Metrics of the test set, and for every OOD set and score the AUROC, AUPR-Out (OOD positive), AUPR-In
        (ID positive, score negated) and the false positive rate at 95% of OOD found.
        ``error_average_precision`` and ``success_average_precision`` rank by the task's default score.

    Raises:
        TypeError, ValueError: unknown kinds of data, no rows, lengths that differ, labels that do not fit the
            task: found before any prediction where they can be.
    """
    task = _task_of(posterior)
    for key, value, least in (("draws", draws, 1), ("bootstrap", bootstrap, 0), ("seed", seed, 0)):
        check_count(key, value, least)
    if ood is not None and not isinstance(ood, Mapping):
        raise TypeError(f"ood must map names to data, got {type(ood).__name__}; write ood={{'far': X}}")
    check_extra_scores(scores, task)
    reader = Reader.of(posterior)
    data = {"test": checked("test", test, task, reader)}
    if data["test"].labels is None:
        raise ValueError("test has no labels; expected (X, y)")
    for key, value in (ood or {}).items():
        if not isinstance(key, str) or not key or key == "test":
            raise ValueError(f"an OOD set is named {key!r}; expected a name other than 'test'")
        data[key] = checked(key, value, task, reader)

    width = _width(task, data["test"].labels)
    sets = {
        key: predict_set(key, item, posterior, task, draws, seed, scores, width) for key, item in data.items()
    }
    info = {k: _scalar(v) for k, v in dict(getattr(posterior, "info", None) or {}).items() if _is_plain(v)}
    outside = [key for key in sets if key != "test"]
    rows = {key: len(arrays.mean) for key, arrays in sets.items()}
    return Evaluation(
        name=name if name is not None else str(info.get("method", type(posterior).__name__)),
        task=task,
        draws=int(draws),
        seed=int(seed),
        bootstrap=int(bootstrap),
        metrics=measure_set("test", sets["test"], task, bootstrap, seed),
        ood={key: measure_ood(key, sets, task, bootstrap, seed) for key in outside},
        ood_metrics={
            key: measure_set(key, sets[key], task, bootstrap, seed)
            for key in outside
            if sets[key].labels is not None
        },
        prevalence={key: rows[key] / (rows[key] + rows["test"]) for key in outside},
        sets=sets,
        info=info,
    )


def _task_of(posterior: Any) -> str:
    task = getattr(getattr(posterior, "likelihood", None), "task", None)
    if not callable(getattr(posterior, "predict", None)) or not isinstance(task, str):
        kind = type(posterior).__name__
        raise TypeError(
            f"got a {kind}, expected a posterior with predict(x, draws=, seed=) and likelihood.task"
        )
    scores_module.for_task(task)
    return task


def _width(task: str, labels: Floats) -> int:
    """Numbers that one draw predicts for one row, as far as the labels tell."""
    if task == "gaussian":
        return max(1, labels.size // len(labels))
    return max(2, int(labels.max()) + 1)


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str | bool | int | float | np.integer | np.floating)


def _scalar(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
