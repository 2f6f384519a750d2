"""Scores of an input's strangeness: predictive -> ``(B,)``, higher is more out-of-distribution.

All are computed in float64 from the draws, so that confident inputs are still ranked by their disagreement
and not by rounding; equal draws (a deterministic network) give exactly 0 for every measure of disagreement.

References:
    Depeweg et al. 2018, arXiv 1710.07283 (mutual information, epistemic variance); Hendrycks and Gimpel 2017,
    arXiv 1610.02136 (maximum probability); Raina 2025, arXiv 2502.15648 (disagreement of logits).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from . import averages

__all__ = [
    "default",
    "entropy",
    "epistemic_variance",
    "for_task",
    "logit_disagreement",
    "max_probability",
    "mutual_information",
    "relative_variance",
    "total_variance",
]

Score = Callable[[Any], Tensor]

ROUNDING = 1e-14  # nats; below it a float64 mutual information is rounding, not disagreement


def mutual_information(predictive: Any) -> Tensor:
    """Mutual information of label and weights, ``mean_s KL(p_s || mean p)``, in nats, never negative.

    The sum of KL terms keeps the digits that "entropy minus mean entropy" cancels: in float32 that difference
    is rounding below about 1e-7 nats, where most confident inputs lie.

    Args:
        predictive: with ``log_probs`` of shape ``(S, B, K)``.

    Returns:
        ``(B,)`` float64; ``ln 2`` for two draws certain of different classes.

    Example:
        >>> import torch
        >>> from singularbayes.predictive import CategoricalPredictive
        >>> round(
        ...     mutual_information(
        ...         CategoricalPredictive(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]).log())
        ...     ).item(),
        ...     6,
        ... )
        0.693147
    """
    log_probs, weights = _log_probs(predictive, "mutual_information"), _weights(predictive)
    probs = log_probs.exp()
    mean = averages.mean(probs, weights)
    # "not equal 0" keeps a NaN a NaN, so that a broken network is seen; a mean may be 0 where a probability
    # is the smallest number there is
    terms = (probs * (log_probs - mean.log())).where(~((probs == 0) | (mean == 0)), 0.0)
    information = averages.mean(terms.sum(-1), weights)
    return information.where(~(information <= ROUNDING), 0.0)


def entropy(predictive: Any) -> Tensor:
    """Total uncertainty, in nats: entropy of the mean probabilities, or of the predictive of numbers."""
    if hasattr(predictive, "log_probs"):
        mean = _mean_probs(predictive, "entropy")
        return -(mean * mean.log()).where(~(mean == 0), 0.0).sum(-1)
    return _over_outputs(predictive.entropy.double())


def max_probability(predictive: Any) -> Tensor:
    """``1 - max_k p_k`` of the mean probabilities: total uncertainty, the usual baseline."""
    return 1 - _mean_probs(predictive, "max_probability").amax(-1)


def epistemic_variance(predictive: Any) -> Tensor:
    """Variance across the draws: of the mean (mean over outputs) or of the probabilities (sum over classes).

    Args:
        predictive: with ``means (S, B, *event)`` or ``log_probs (S, B, K)``.

    Returns:
        ``(B,)`` float64, in squared units of ``y`` for regression; one draw gives 0.
    """
    if hasattr(predictive, "means"):
        return _over_outputs(averages.variance(predictive.means.double(), _weights(predictive)))
    probs = _log_probs(predictive, "epistemic_variance").exp()
    return averages.variance(probs, _weights(predictive)).sum(-1)


def total_variance(predictive: Any) -> Tensor:
    """Epistemic plus noise variance (mean over outputs); for classes ``sum_k p_k (1 - p_k)``."""
    if hasattr(predictive, "means"):
        weights = _weights(predictive)
        epistemic = averages.variance(predictive.means.double(), weights)
        return _over_outputs(epistemic + averages.mean(predictive.variances.double(), weights))
    mean = _mean_probs(predictive, "total_variance")
    return (mean * (1 - mean)).sum(-1)


def relative_variance(predictive: Any) -> Tensor:
    """``sum_k Var_s(p_k) / (2 mean p_k)``: the second-order form of mutual information; 0 / 0 counts as 0."""
    probs, weights = _log_probs(predictive, "relative_variance").exp(), _weights(predictive)
    mean = averages.mean(probs, weights)
    return (averages.variance(probs, weights) / (2 * mean)).where(~(mean == 0), 0.0).sum(-1)


def logit_disagreement(predictive: Any) -> Tensor:
    """Variance across the draws of the centred log probabilities, mean over classes.

    Centring over the classes removes the constant by which logits are undetermined; for two classes the value
    is a quarter of the variance of the log odds. It keeps growing where the probabilities are saturated. In
    the spirit of the cited paper, which compares truncated maximum logits instead.

    Args:
        predictive: with ``log_probs (S, B, K)``; log probabilities below -700 count as -700.
    """
    logits = _log_probs(predictive, "logit_disagreement").clamp_min(-700.0)
    centred = logits - logits.mean(-1, keepdim=True)
    return averages.variance(centred, _weights(predictive)).mean(-1)


_CLASSES: dict[str, Score] = {
    "mutual_information": mutual_information,
    "entropy": entropy,
    "max_probability": max_probability,
    "epistemic_variance": epistemic_variance,
    "relative_variance": relative_variance,
    "logit_disagreement": logit_disagreement,
}
_NUMBERS: dict[str, Score] = {
    "epistemic_variance": epistemic_variance,
    "total_variance": total_variance,
    "entropy": entropy,
}
_TASKS = {"categorical": _CLASSES, "bernoulli": _CLASSES, "gaussian": _NUMBERS}


def for_task(task: str) -> dict[str, Score]:
    """The scores that a task's predictive allows, by name, the default first.

    Example:
        >>> list(for_task("gaussian"))
        ['epistemic_variance', 'total_variance', 'entropy']
    """
    if task not in _TASKS:
        raise ValueError(f"unknown task {task!r}; expected one of {sorted(_TASKS)}")
    return dict(_TASKS[task])


def default(task: str) -> str:
    """The score that results are stated with: mutual information, or epistemic variance for numbers."""
    return next(iter(for_task(task)))


def _log_probs(predictive: Any, score: str) -> Tensor:
    """Log probabilities ``(S, B, K)`` in float64, normalised again after the cast."""
    if not hasattr(predictive, "log_probs"):
        kind = type(predictive).__name__
        raise TypeError(
            f"{score} needs class probabilities, got a {kind}; use epistemic_variance for numbers"
        )
    log_probs = predictive.log_probs.double()
    return log_probs - log_probs.logsumexp(-1, keepdim=True)


def _weights(predictive: Any) -> Tensor | None:
    """Weights of the draws in float64; ``None`` for equal ones."""
    weights = getattr(predictive, "weights", None)
    return None if weights is None else weights.double()


def _mean_probs(predictive: Any, score: str) -> Tensor:
    return averages.mean(_log_probs(predictive, score).exp(), _weights(predictive))


def _over_outputs(values: Tensor) -> Tensor:
    """``(B, *event)`` to ``(B,)``."""
    return values if values.ndim == 1 else values.flatten(1).mean(1)
