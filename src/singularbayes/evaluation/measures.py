"""Metrics of predicted sets with bootstrap intervals, and paired differences of two evaluations."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ..metrics import Interval, calibration, ranking, regression, risk
from ..metrics.bootstrap import bootstrap_replicates, check_count, percentile_interval
from ..metrics.inputs import Floats
from ..metrics.weighted import Counts, Statistic, mean_of
from .record import Evaluation, SetArrays, main_score

OOD_MEASURES = ("auroc", "average_precision_out", "average_precision_in", "fpr95")
_WHY_UNDEFINED = {
    "auroc": "it needs rows of both classes",
    "error_average_precision": "it needs both errors and correct predictions",
    "success_average_precision": "it needs both errors and correct predictions",
}


def statistics_of(arrays: SetArrays, task: str) -> dict[str, Statistic]:
    """The weighted forms of every metric of a labelled set; each gives one or more named values."""
    if arrays.labels is None or arrays.error is None:
        raise ValueError("the set has no labels, so its metrics cannot be computed; evaluate it with (X, y)")
    uncertainty = arrays.scores[main_score(arrays.scores, task)]
    if task == "gaussian":
        columns = {key: values for key, values in arrays.rows.items() if key != "cdf"}
        return {
            "rows": _number_metrics(columns),
            "quantiles": regression.calibration_error_of(arrays.rows["cdf"]),
            "selection": risk.risk_area_of(uncertainty, arrays.error),
        }
    labels, wrong = arrays.labels.astype(np.int64), arrays.error == 1
    stated = calibration.confidence_of(arrays.mean, labels)
    statistics = {
        "rows": mean_of(arrays.rows),
        "bins": calibration.calibration_error_of(*stated),
        "adaptive": calibration.adaptive_error_of(*stated),
        "errors": risk.error_precision_of(uncertainty, wrong),
        "successes": risk.success_precision_of(uncertainty, wrong),
        "selection": risk.risk_area_of(uncertainty, arrays.error),
    }
    if task == "bernoulli":
        statistics["labels"] = ranking.auroc_of(arrays.mean, labels == 1)
    return statistics


def _number_metrics(columns: Mapping[str, Floats]) -> Statistic:
    means = mean_of(columns)

    def statistic(counts: Counts) -> dict[str, Floats]:
        values = means(counts)
        return {"rmse": np.sqrt(values.pop("squared_error")), **values}

    return statistic


def strata_of(arrays: SetArrays, task: str) -> NDArray[np.int64]:
    """Rows that are resampled together: those of a class; all, for numbers and sets without labels."""
    if arrays.labels is None or task == "gaussian":
        return np.zeros(len(arrays.mean), np.int64)
    return np.unique(arrays.labels, return_inverse=True)[1].astype(np.int64)


def ood_strata_of(test: SetArrays, far: SetArrays, task: str) -> NDArray[np.int64]:
    """The strata of the test rows, then one for the OOD rows: test resamples are the same for every set."""
    inside = strata_of(test, task)
    return np.concatenate([inside, np.full(len(far.mean), inside.max() + 1)])


def ood_statistic(test: SetArrays, far: SetArrays, score: str) -> Statistic:
    """The four measures of telling ``far`` from ``test`` by a score."""
    if score not in test.scores:
        raise ValueError(f"unknown score {score!r}; expected one of {sorted(test.scores)}")
    inside, outside = test.scores[score], far.scores[score]
    is_out = np.arange(len(inside) + len(outside)) >= len(inside)
    return ranking.ood_ranking(np.concatenate([inside, outside]), is_out)


def set_replicates(arrays: SetArrays, task: str, replicates: int, seed: int) -> dict[str, Floats]:
    """Metric -> the set's own value, then those of the resamples: ``(1 + replicates,)``."""
    draws = bootstrap_replicates(statistics_of(arrays, task), strata_of(arrays, task), replicates, seed)
    return {key: values for group in draws.values() for key, values in group.items()}


def measure_set(name: str, arrays: SetArrays, task: str, replicates: int, seed: int) -> dict[str, Interval]:
    """Every metric of one labelled set with its interval; warns by name of those that are undefined."""
    intervals = {
        key: percentile_interval(v) for key, v in set_replicates(arrays, task, replicates, seed).items()
    }
    for key, interval in intervals.items():
        if np.isnan(interval.value):
            reason = _WHY_UNDEFINED.get(key, "its values are not numbers")
            warnings.warn(f"{key} of set {name!r} is undefined (nan): {reason}", stacklevel=3)
    return intervals


def measure_ood(
    name: str, sets: Mapping[str, SetArrays], task: str, replicates: int, seed: int
) -> dict[str, dict[str, Interval]]:
    """Score -> measure -> interval of telling the OOD set ``name`` from the test set."""
    test, far = sets["test"], sets[name]
    statistics = {score: ood_statistic(test, far, score) for score in test.scores}
    draws = bootstrap_replicates(statistics, ood_strata_of(test, far, task), replicates, seed)
    return {
        score: {key: percentile_interval(v) for key, v in group.items()} for score, group in draws.items()
    }


def paired_difference(
    evaluation_a: Evaluation,
    evaluation_b: Evaluation,
    metric: str,
    on: str = "test",
    score: str | None = None,
    replicates: int | None = None,
    seed: int | None = None,
) -> Interval:
    """``a - b`` of one metric, with the interval of the difference on the SAME resampled rows.

    The interval is that of the difference, usually much narrower than the two intervals suggest, because what
    is hard for one model is hard for the other.

    Args:
        evaluation_a: the first evaluation.
        evaluation_b: the second, of the same sets with rows in the same order.
        metric: a metric of the set ``on``; for an OOD set also ``auroc``, ``average_precision_out``,
            ``average_precision_in`` and ``fpr95`` of telling it from the test set.
        on: the set.
        score: the score for the OOD measures; the task's default if ``None``.
        replicates: of the bootstrap; those of ``evaluation_a`` if ``None``.
        seed: of the bootstrap; that of ``evaluation_a`` if ``None``.

    Raises:
        ValueError: the evaluations are not of the same rows, or know no such metric, set or score.
    """
    a, b = _matching_set(evaluation_a, evaluation_b, "test")
    replicates = evaluation_a.bootstrap if replicates is None else replicates
    seed = evaluation_a.seed if seed is None else seed
    check_count("replicates", replicates, least=0)
    task = evaluation_a.task
    if on != "test" and metric in OOD_MEASURES:
        far_a, far_b = _matching_set(evaluation_a, evaluation_b, on)
        name = evaluation_a.score if score is None else score
        statistics = {"a": ood_statistic(a, far_a, name), "b": ood_statistic(b, far_b, name)}
        draws = bootstrap_replicates(statistics, ood_strata_of(a, far_a, task), replicates, seed)
        return percentile_interval(draws["a"][metric] - draws["b"][metric])
    if score is not None:
        raise ValueError(
            f"score={score!r} applies to {', '.join(OOD_MEASURES)} on an OOD set, not to {metric!r} on {on!r}"
        )
    a, b = _matching_set(evaluation_a, evaluation_b, on)
    of_a, of_b = (set_replicates(arrays, task, replicates, seed) for arrays in (a, b))
    if metric not in of_a:
        raise ValueError(f"unknown metric {metric!r} on {on!r}; expected one of {sorted(of_a)}")
    with np.errstate(invalid="ignore"):  # infinite minus infinite is undefined
        return percentile_interval(of_a[metric] - of_b[metric])


def _matching_set(
    evaluation_a: Evaluation, evaluation_b: Evaluation, name: str
) -> tuple[SetArrays, SetArrays]:
    if evaluation_a.task != evaluation_b.task:
        raise ValueError(
            f"the tasks differ: {evaluation_a.task} and {evaluation_b.task}; compare the same task"
        )
    for evaluation in (evaluation_a, evaluation_b):
        if name not in evaluation.sets:
            raise ValueError(
                f"evaluation {evaluation.name!r} has arrays of {list(evaluation.sets)}, none of {name!r}"
            )
    a, b = evaluation_a.sets[name], evaluation_b.sets[name]
    same = (a.labels is None) == (b.labels is None) and len(a.mean) == len(b.mean)
    if not same or (a.labels is not None and b.labels is not None and not np.array_equal(a.labels, b.labels)):
        raise ValueError(
            f"the two evaluations have other rows or labels in set {name!r}; compare them on the same data"
        )
    return a, b
