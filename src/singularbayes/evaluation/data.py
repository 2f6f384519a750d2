"""The data of an evaluation, checked before any work: what is wrong is said with the name of the set."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..data import LABEL_KEYS, Tensors, as_inputs, as_source, gather
from ..metrics.inputs import Floats
from ..model import takes_integers


@dataclass(frozen=True)
class Data:
    """One set, checked: inputs as tensors and, where there are any, labels."""

    x: Any
    labels: Floats | None


@dataclass(frozen=True)
class Reader:
    """Reads data as training does.

    Args:
        dtype: what floating point is cast to.
        integers: whether whole numbers are ids and stay.
    """

    dtype: torch.dtype
    integers: bool

    @classmethod
    def of(cls, posterior: Any) -> Reader:
        """As a posterior's network wants it; without one: float32, and whole numbers stay."""
        dtype, network = getattr(posterior, "dtype", None), getattr(posterior, "network", None)
        return cls(
            dtype if isinstance(dtype, torch.dtype) else torch.float32,
            takes_integers(network) if isinstance(network, nn.Module) else True,
        )

    def read(self, data: Any) -> Tensors:
        """``(X, y)``, a data set or batches, or ``X`` alone, in memory."""
        if isinstance(data, Mapping) and any(data.get(key) is not None for key in LABEL_KEYS):
            data = [data]  # one dict batch
        elif _is_inputs(data):
            return Tensors(as_inputs(data, self.dtype, self.integers), None)
        return gather(as_source(data, self.dtype, self.integers))


def _is_inputs(data: Any) -> bool:
    """Whether data are ``X`` alone: an array, a frame, or a dict or tuple of them; two are ``(X, y)``."""
    if isinstance(data, tuple):
        return len(data) != 2 and all(_is_array(part) for part in data)
    return isinstance(data, Mapping) or _is_array(data)


def _is_array(data: Any) -> bool:
    return isinstance(data, Tensor) or hasattr(data, "__array__") or hasattr(data, "to_numpy")


def checked(name: str, data: Any, task: str, reader: Reader) -> Data:
    """Inputs as tensors and float64 labels ``(B,)`` or ``(B, k)``, or one clear error."""
    try:
        held = reader.read(data)
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"set {name!r}: {error}") from error
    if held.y is None:
        return Data(held.x, None)
    labels = held.y.double().cpu().numpy()
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if task != "gaussian":
        if labels.ndim != 1:
            expected = f"class numbers of shape ({len(labels)},)"
            raise ValueError(f"y of set {name!r} has shape {labels.shape}; expected {expected}")
        check_classes(name, labels, 2 if task == "bernoulli" else None)
    return Data(held.x, labels)


def check_classes(name: str, labels: Floats, classes: int | None) -> None:
    """Raise unless all labels are whole numbers from 0, below ``classes`` where that is known."""
    wrong = np.flatnonzero((labels < 0) | (labels != np.round(labels)) | (labels >= (classes or math.inf)))
    if wrong.size:
        expected = f"0..{classes - 1}" if classes else "whole numbers from 0"
        hint = "" if name == "test" else "; pass X alone if its labels are of other classes"
        raise ValueError(
            f"label {labels[wrong[0]]:g} in row {wrong[0]} of set {name!r}; expected {expected}{hint}"
        )
