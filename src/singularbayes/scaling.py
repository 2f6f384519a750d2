"""Scale, bias and temperature of logits: what calibration of a classifier leaves in its likelihood.

logits' = (scale * logits + bias) / temperature
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["Numbers", "check_scaling", "check_temperature", "scaled", "wide"]

Numbers = float | tuple[float, ...]  # one for a single logit, one a class otherwise


def wide(outputs: Tensor) -> Tensor:
    """Outputs in float32 or float64: log densities and means over draws are not left to half precision."""
    return outputs if outputs.dtype in (torch.float32, torch.float64) else outputs.float()


def check_temperature(temperature: float) -> None:
    """A temperature must be positive and finite.

    Raises:
        ValueError: it is not.
    """
    if not (temperature > 0 and math.isfinite(temperature)):
        raise ValueError(f"temperature must be positive and finite, got {temperature}")


def check_scaling(scale: Numbers | None, bias: Numbers | None) -> None:
    """Scale and bias must be given together, finite, and of one length.

    Raises:
        ValueError: naming what is wrong.
    """
    if (scale is None) != (bias is None):
        raise ValueError(f"scale and bias of the logits go together, got scale={scale}, bias={bias}")
    if scale is None or bias is None:
        return
    pair = [value if isinstance(value, tuple) else (value,) for value in (scale, bias)]
    if len(pair[0]) != len(pair[1]):
        raise ValueError(f"scale has {len(pair[0])} entries and bias {len(pair[1])}; one a class each")
    if not all(math.isfinite(value) for part in pair for value in part):
        raise ValueError(f"scale and bias must be finite, got scale={scale}, bias={bias}")


def scaled(logits: Tensor, temperature: float, scale: Numbers | None, bias: Numbers | None) -> Tensor:
    """``(scale * logits + bias) / temperature``; a scale of several entries runs over the last axis.

    Raises:
        ValueError: another number of logits than the scale has entries.
    """
    if scale is not None and bias is not None:
        if isinstance(scale, tuple) and logits.shape[-1] != len(scale):
            raise ValueError(
                f"the likelihood scales {len(scale)} logits and the network gives {logits.shape[-1]}; it was "
                f"calibrated with another network"
            )
        logits = logits * logits.new_tensor(scale) + logits.new_tensor(bias)
    return logits if temperature == 1 else logits / temperature
