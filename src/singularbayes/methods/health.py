"""What a fit says when something is wrong with it: an error with the last good state, or a warning."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from ..posterior import Posterior

__all__ = ["TrainingDiverged", "warn_if_constant", "warn_of_frozen"]


class TrainingDiverged(FloatingPointError):  # noqa: N818 - public; it names what happened
    """The loss became nan or infinite.

    Attributes:
        posterior: the last good state, from the end of the epoch before.
    """

    def __init__(self, message: str, posterior: Posterior) -> None:
        super().__init__(message)
        self.posterior = posterior


def warn_of_frozen(parts: dict[str, list[str]]) -> None:
    """Warn of parts that are not trained, yet change in train mode.

    Args:
        parts: what of each part is restless (see ``restless_frozen_parts``).
    """
    for path, names in parts.items():
        warnings.warn(
            f"nothing in {path} is trained, yet train mode changes what it computes: {', '.join(names[:3])}"
            f"{', ...' if len(names) > 3 else ''} (dropout, or statistics of a normalisation, that run while "
            f"the rest is trained). To keep it as it is, let its class stay in eval mode: "
            f"def train(self, mode=True): return super().train(False)",
            stacklevel=4,
        )


def warn_if_constant(x: Any, outputs: Tensor, temperature: float) -> None:
    """Warn of a fit that predicts the same for inputs that differ.

    Args:
        x: some training inputs.
        outputs: of the fitted network ``(B, *event)``.
        temperature: of the fit.
    """
    if isinstance(x, Tensor) and bool((x == x[:1]).all()):
        return  # equal inputs: equal predictions are right
    spread = outputs.std(0) if len(outputs) > 1 else torch.ones(())
    if bool((spread <= 1e-5 * (1 + outputs.abs().amax(0))).all()):
        warnings.warn(
            f"the fit predicts the same for every input: it collapsed to the prior, or is far from the "
            f"optimum; lower temperature (now {temperature}), weaken the prior, or train longer",
            stacklevel=5,
        )
