"""Calibrations that join a posterior: ``posterior.calibrate(validation, by=...)``.

A calibration is fitted on validation outputs of the posterior's draws and gives a likelihood that carries it,
so that prediction, evaluation and files need to know nothing of it. Each one starts from the uncalibrated
likelihood: calibrating twice is calibrating once.

- :class:`Temperature`: one number. For numbers it is a variance scale.
- :class:`VectorScaling`: scale and bias of each class's logit (one logit: Platt scaling).
- :class:`IsotonicIntervals`: intervals and quantiles of a regression.
"""

from __future__ import annotations

from ..likelihoods import Likelihood
from .calibration import Calibration
from .isotonic import IsotonicIntervals
from .temperature import Temperature
from .vector_scaling import VectorScaling

__all__ = ["Calibration", "IsotonicIntervals", "Temperature", "VectorScaling", "uncalibrated"]


def uncalibrated(likelihood: Likelihood) -> Likelihood:
    """The same likelihood as it was trained: temperature 1, no scale or bias, no recalibration."""
    plain = likelihood.with_temperature(1.0)  # a recalibrated one hands over the likelihood inside
    with_scaling = getattr(plain, "with_scaling", None)
    return plain if with_scaling is None else with_scaling(None, None)
