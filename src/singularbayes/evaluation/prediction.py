"""From a posterior and one set to arrays: scores, means and the value of every metric in every row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from .. import scores as scores_module
from ..data import batch_size_of, take
from ..metrics import calibration, regression
from ..metrics.inputs import Floats, Ints
from .data import Data, check_classes
from .record import SetArrays

LEVEL = 0.95  # of the predictive intervals whose coverage and width are reported
BLOCK_NUMBERS = 2**22  # draws x rows x classes predicted at a time: 32 MB, and a few times that in scores
LEAST_ROWS = 64  # of a block: drawing the weights again costs about as much as predicting as many


def check_extra_scores(extra: Mapping[str, Any] | None, task: str) -> None:
    """Scores beside the predictive's own have names of their own and a ``score`` method.

    Raises:
        TypeError, ValueError: naming the one that does not.
    """
    if extra is not None and not isinstance(extra, Mapping):
        raise TypeError(f"scores must map names to objects with score(x), got {type(extra).__name__}")
    own = scores_module.for_task(task)
    for name, rule in (extra or {}).items():
        if not isinstance(name, str) or not name or name in own:
            raise ValueError(f"a score is named {name!r}; expected a name other than {', '.join(own)}")
        if isinstance(rule, type) or not callable(getattr(rule, "score", None)):
            raise TypeError(
                f"score {name!r} is a {type(rule).__name__}; expected a fitted object with score(x)"
            )


def predict_set(
    name: str,
    data: Data,
    posterior: Any,
    task: str,
    draws: int,
    seed: int,
    extra: Mapping[str, Any] | None = None,
    width: int = 1,
) -> SetArrays:
    """Predict one set and keep what its metrics need, as arrays; ``extra`` scores beside the task's own.

    Rows are predicted in blocks by the same functions (the same seed), so that memory does not grow with the
    draws of all rows.

    Args:
        name: of the set, for messages.
        data: checked inputs and labels.
        posterior: with ``predict(x, draws=, seed=)``.
        task: of its likelihood.
        draws: posterior draws.
        seed: of the draws.
        extra: score name -> object with ``score(x)``.
        width: numbers that one draw predicts for one row (classes, outputs): how many rows make a block.
    """
    rows, step = batch_size_of(data.x), max(LEAST_ROWS, BLOCK_NUMBERS // (draws * width))
    parts = []
    for block in (slice(start, start + step) for start in range(0, rows, step)):
        x = data.x if step >= rows else take(data.x, block)
        predictive = posterior.predict(x, draws=draws, seed=seed)
        labels = None if data.labels is None else data.labels[block]
        parts.append(arrays_of(name, predictive, labels, task, scores_module.for_task(task)))
    arrays = joined(parts)
    for key, rule in (extra or {}).items():
        arrays.scores[key] = found = _array(rule.score(data.x))
        if found.shape != (rows,):
            raise ValueError(
                f"score {key!r} gives shape {found.shape} for the {rows} rows of set {name!r}; "
                f"expected ({rows},)"
            )
    for values in (arrays.mean, *arrays.scores.values()):
        finite = np.isfinite(values).reshape(len(values), -1).all(axis=1)
        bad = np.flatnonzero(~finite)
        if bad.size:
            raise ValueError(
                f"predictions of set {name!r} are not finite in {bad.size} of {len(values)} rows, "
                f"first in row {bad[0]}; the network has diverged or overflows on these inputs"
            )
    return arrays


def arrays_of(
    name: str, predictive: Any, labels: Floats | None, task: str, scores: Mapping[str, scores_module.Score]
) -> SetArrays:
    """What the metrics need of one predictive, with or without labels.

    Args:
        name: of the set, for messages.
        predictive: of its rows.
        labels: ``(B,)`` or ``(B, *event)``.
        task: which metrics there are.
        scores: those to compute.
    """
    mean = _array(predictive.mean)
    measured = {key: _array(score(predictive)) for key, score in scores.items()}
    variance = _array(predictive.variance) if task == "gaussian" else None
    if labels is None:
        return SetArrays(measured, None, mean, variance, None)
    if task == "gaussian":
        labels = labels.reshape(mean.shape) if labels.size == mean.size == len(mean) else labels
        if labels.shape != mean.shape:
            raise ValueError(
                f"y of set {name!r} has shape {labels.shape}, predictions {mean.shape}; expected the same"
            )
        rows = _number_rows(predictive, mean, labels)
        return SetArrays(measured, labels, mean, variance, rows["mae"], rows)
    check_classes(name, labels, mean.shape[1] if mean.ndim == 2 else 2)
    classes: Ints = labels.astype(np.int64)
    error = calibration.errors_of(mean, classes)
    rows = {
        "accuracy": 1 - error,
        "negative_log_likelihood": -_log_prob(predictive, classes),
        "brier": calibration.brier_of(mean, classes),
    }
    return SetArrays(measured, labels, mean, None, error, rows)


def joined(parts: Sequence[SetArrays]) -> SetArrays:
    """The rows of several blocks of one set, one after another."""
    if len(parts) == 1:
        return parts[0]

    def whole(values: Sequence[Floats | None]) -> Floats | None:
        known = [value for value in values if value is not None]
        return np.concatenate(known) if known else None

    first = parts[0]
    return SetArrays(
        {key: np.concatenate([part.scores[key] for part in parts]) for key in first.scores},
        whole([part.labels for part in parts]),
        np.concatenate([part.mean for part in parts]),
        whole([part.variance for part in parts]),
        whole([part.error for part in parts]),
        {key: np.concatenate([part.rows[key] for part in parts]) for key in first.rows},
    )


def _array(values: Any) -> np.ndarray:
    """Numbers of a prediction in float64, from a tensor on any device and of any float type."""
    return torch.as_tensor(values).detach().double().cpu().numpy()


def _log_prob(predictive: Any, labels: np.ndarray) -> Floats:
    return _array(predictive.log_prob(torch.from_numpy(labels)))


def _number_rows(predictive: Any, mean: Floats, y: Floats) -> dict[str, Floats]:
    """Values of every row of a regression set: means over several outputs, the log density a sum."""

    def over_outputs(values: np.ndarray) -> Floats:
        return values.reshape(len(values), -1).astype(np.float64).mean(1)

    low, high = _array(predictive.interval(LEVEL))
    weights = getattr(predictive, "weights", None)
    parts = _array(predictive.means), _array(predictive.variances), y
    crps = regression.crps_of(*parts, None if weights is None else _array(weights))
    return {
        "mae": over_outputs(np.abs(mean - y)),
        "squared_error": over_outputs((mean - y) ** 2),
        "negative_log_likelihood": -_log_prob(predictive, y),
        "crps": over_outputs(crps),
        "interval_coverage": over_outputs((low <= y) & (y <= high)),
        "interval_width": over_outputs(high - low),
        "cdf": _array(predictive.cdf(torch.from_numpy(y))).reshape(len(y), -1),
    }
