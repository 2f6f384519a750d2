"""What a calibration is: validation outputs in, a calibrated likelihood out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from torch import Tensor

from ..likelihoods import Likelihood

__all__ = ["Calibration"]


@runtime_checkable
class Calibration(Protocol):
    """What :meth:`.Posterior.calibrate` needs of a calibration."""

    def fit(
        self, likelihood: Likelihood, outputs: Tensor, numbers: Mapping[str, Tensor], labels: Tensor
    ) -> Likelihood:
        """The likelihood with this calibration.

        Args:
            likelihood: uncalibrated.
            outputs: of the draws for the validation rows, ``(S, B, *event)``, float64.
            numbers: learned numbers of the likelihood, of each draw.
            labels: checked by the likelihood, ``(B,)`` or ``(B, *event)``.
        """
        ...
