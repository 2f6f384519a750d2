"""Scale and bias of each class's logit, by the validation NLL of the mixture over draws.

    logits' = scale * logits + bias,   each draw's, before averaging
    minimise  -mean_i log mean_s p(y_i | logits'_s) + precision / (2 N) (|scale - 1|^2 + |bias|^2)

References:
    Guo et al. 2017, arXiv 1706.04599, section 4.2 (vector scaling, plain: ``prior_precision=0``); Platt 1999
    (one logit; his smoothed targets are not used).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from ..likelihoods import Likelihood
from ..temperature import search_temperature
from .temperature import nll_at

__all__ = ["VectorScaling"]

_BOUND = 50.0  # nats, of the spread and the shift of a scaled logit: the data do not tell them beyond it
_CERTAIN = 1e-4  # a class whose every row is more certain than this is separated: sharper is always better
_GRADIENT = 1e-5  # nats; a larger one at the end means that the search stopped early


@dataclass(frozen=True, kw_only=True)
class VectorScaling:
    """The scale and bias of each class's logit that minimise the validation NLL of the mixture.

    Twice as many numbers as classes: with few validation rows a class, :class:`.Temperature` or a positive
    ``prior_precision`` is safer. It can change which class comes first; a temperature cannot (for one draw).
    A single logit (``Bernoulli``) has one scale and one bias: Platt scaling.

    The search starts at the best temperature, so that its validation NLL is never above that one's.

    Args:
        prior_precision: of a Gaussian prior of each scale around 1 and each bias around 0; 0 as published.

    Warns:
        UserWarning: a class is separated from the others without error, or a scaled logit spreads over more
            than 50 nats: there is no optimum, and the likelihood stays uncalibrated. Or the search stopped
            early.

    Example:
        >>> import torch, singularbayes as sb
        >>> logits, y = torch.tensor([0.5, -0.5] * 10), torch.tensor([1, 0] * 9 + [0, 1])
        >>> found = VectorScaling().fit(sb.Bernoulli(), logits.double().unsqueeze(0), {}, y)
        >>> round(found.scale, 3), abs(found.bias) < 1e-6
        (4.394, True)
    """

    prior_precision: float = 0.0

    def __post_init__(self) -> None:
        if not (self.prior_precision >= 0 and math.isfinite(self.prior_precision)):
            raise ValueError(f"prior_precision must be 0 or positive, got {self.prior_precision}")

    def fit(
        self, likelihood: Likelihood, outputs: Tensor, numbers: Mapping[str, Tensor], labels: Tensor
    ) -> Likelihood:
        """The likelihood with scale and bias; see :class:`.Calibration`.

        Raises:
            TypeError: a likelihood without logits.
            ValueError: a class without a validation row, whose bias would run to minus infinity.
        """
        with_scaling = getattr(likelihood, "with_scaling", None)
        if with_scaling is None:
            raise TypeError(
                f"VectorScaling scales logits of Categorical() or Bernoulli(), got "
                f"{type(likelihood).__name__}; for numbers use Temperature() or IsotonicIntervals()"
            )
        one = likelihood.task == "bernoulli"
        if self.prior_precision == 0:
            _refuse_missing(labels, 2 if one else outputs.shape[-1])
        scale, bias, widest = self._search(likelihood, outputs, numbers, labels, one=one)
        if one:
            found = with_scaling(float(scale[0]), float(bias[0]))
        else:
            found = with_scaling(tuple(map(float, scale)), tuple(map(float, bias)))
        separated = _separated(found.predictive(outputs, numbers).mean, labels)
        if self.prior_precision == 0 and (widest > _BOUND or separated):
            warnings.warn(
                f"vector scaling has no optimum here ({len(separated)} classes are separated from the others "
                f"without error{f', first {separated[0]}' if separated else ''}; the widest scaled logit "
                f"spreads {widest:.3g} nats) and the likelihood stays uncalibrated; use more validation "
                f"data, prior_precision above 0, or Temperature()",
                stacklevel=3,
            )
            return likelihood
        return found

    def _search(
        self,
        likelihood: Likelihood,
        outputs: Tensor,
        numbers: Mapping[str, Tensor],
        labels: Tensor,
        *,
        one: bool,
    ) -> tuple[np.ndarray, np.ndarray, float]:
        logits = outputs.double().reshape(*outputs.shape[:2], -1)
        classes = logits.shape[-1]
        # the search moves in standardised logits: badly scaled ones would slow it down
        centre = logits.mean((0, 1))
        spread = logits.std((0, 1), correction=0)
        spread = torch.where(spread > 1e-8 * (1 + centre.abs()), spread, 1.0)
        standard = (logits - centre) / spread
        prior = self.prior_precision / (2 * logits.shape[1])

        def read(theta: Tensor) -> tuple[Tensor, Tensor]:
            scale = theta[:classes] / spread
            return scale, theta[classes:] - scale * centre

        def objective(values: np.ndarray) -> tuple[float, np.ndarray]:
            with torch.enable_grad():
                theta = torch.from_numpy(values).to(standard).requires_grad_()
                moved = standard * theta[:classes] + theta[classes:]
                predictive = likelihood.predictive(moved.squeeze(-1) if one else moved, numbers)
                scale, bias = read(theta)
                penalty = prior * ((scale - 1).square().sum() + bias.square().sum())
                loss = penalty - predictive.log_prob(labels).mean()
                (gradient,) = torch.autograd.grad(loss, theta)
            return loss.item(), gradient.cpu().numpy().astype(np.float64)

        temperature, inside = search_temperature(
            nll_at(likelihood, outputs, numbers, labels), likelihood.task
        )
        starts = [
            torch.cat([spread, centre]).cpu().numpy() / t for t in ((1.0, temperature) if inside else (1.0,))
        ]
        start = min(starts, key=lambda values: objective(values)[0])
        options = {"maxiter": 1000, "maxfun": 5000, "gtol": 1e-9, "ftol": 1e-15}
        found: Any = minimize(objective, start, jac=True, method="L-BFGS-B", options=options)
        scale, bias = (part.cpu().numpy() for part in read(torch.from_numpy(found.x).to(standard)))
        if not one:
            bias = bias - bias.mean()  # logits are known up to a constant
        if not found.success and float(np.abs(found.jac).max()) > _GRADIENT:
            warnings.warn(
                f"vector scaling stopped before its optimum ({found.message}; gradient "
                f"{float(np.abs(found.jac).max()):.2g} nats); try prior_precision above 0",
                stacklevel=4,
            )
        shifts = found.x[classes:] if one else found.x[classes:] - found.x[classes:].mean()
        return scale, bias, float(np.abs([found.x[:classes], shifts]).max())


def _separated(mean: Tensor, labels: Tensor) -> list[int]:
    """Classes that all rows are told from without error and without doubt."""
    probs = mean if mean.dim() == 2 else torch.stack([1 - mean, mean], 1)
    own = labels.long().unsqueeze(1) == torch.arange(probs.shape[1], device=labels.device)
    doubt = torch.where(own, 1 - probs, probs).amax(0)
    return (doubt < _CERTAIN).nonzero().flatten().tolist()


def _refuse_missing(labels: Tensor, classes: int) -> None:
    counts = torch.bincount(labels.long(), minlength=classes)
    missing = (counts == 0).nonzero().flatten().tolist()
    if missing:
        raise ValueError(
            f"class {missing[0]} has no validation row ({len(missing)} of {classes} classes have none): its "
            f"bias would run to minus infinity; use more validation data, prior_precision above 0, or "
            f"Temperature()"
        )
