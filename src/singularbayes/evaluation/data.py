"""The data of an evaluation, checked before any work: what is wrong is said with the name of the set."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..metrics.inputs import Floats


@dataclass(frozen=True)
class Data:
    """One set as given, checked: inputs and, where there are any, labels."""

    x: Any
    labels: Floats | None


def to_numpy(values: Any, name: str = "prediction") -> np.ndarray:
    """A tensor on any device, of any float type, or an array or frame, as NumPy."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        return (values.double() if values.is_floating_point() else values).numpy()
    array = values.toto_numpy() if hasattr(values, "toto_numpy") else np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{name} holds {array.dtype}, expected numbers; encode text and categories first")
    return array


def _parts(x: Any) -> list[Any]:
    """The arrays of an input: itself, or those of a dict (entries of ``None`` left out) or tuple."""
    if isinstance(x, Mapping):
        return [part for part in x.values() if part is not None]
    return list(x) if isinstance(x, tuple) else [x]


def _rows_of(name: str, x: Any) -> int:
    parts = _parts(x)
    if not parts or not all(hasattr(part, "shape") and len(part.shape) for part in parts):
        kind = type(x).__name__
        raise TypeError(f"set {name!r} is a {kind}; expected a tensor or array X, or (X, y) with rows first")
    counts = {int(part.shape[0]) for part in parts}
    if len(counts) > 1:
        raise ValueError(f"inputs of set {name!r} have {sorted(counts)} rows; expected the same number each")
    return counts.pop()


def checked(name: str, data: Any, task: str) -> Data:
    """``(X, y)`` or ``X`` as inputs and float64 labels ``(B,)`` or ``(B, k)``, or one clear error."""
    x, y = data if isinstance(data, tuple | list) and len(data) == 2 else (data, None)
    rows = _rows_of(name, x)
    if rows == 0:
        raise ValueError(f"set {name!r} is empty; expected at least one row")
    for part in _parts(x):
        values = to_numpy(part, f"X of set {name!r}")
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            place = tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])
            raise ValueError(
                f"X of set {name!r} is {values[place]} at {place}; fill or remove missing values first"
            )
    if y is None:
        return Data(x, None)
    labels = np.asarray(
        to_numpy(y if hasattr(y, "shape") else np.asarray(y), f"y of set {name!r}"), np.float64
    )
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim == 0 or len(labels) != rows:
        raise ValueError(
            f"set {name!r} has {rows} rows of X and labels of shape {labels.shape}; expected one per row"
        )
    if not np.isfinite(labels).all():
        raise ValueError(
            f"y of set {name!r} is not finite in row {int(np.argwhere(~np.isfinite(labels))[0][0])}"
        )
    if task != "gaussian":
        if labels.ndim != 1:
            raise ValueError(
                f"y of set {name!r} has shape {labels.shape}; expected class numbers of shape ({rows},)"
            )
        check_classes(name, labels, 2 if task == "bernoulli" else None)
    return Data(x, labels)


def check_classes(name: str, labels: Floats, classes: int | None) -> None:
    """Raise unless all labels are whole numbers from 0, below ``classes`` where that is known."""
    wrong = np.flatnonzero((labels < 0) | (labels != np.round(labels)) | (labels >= (classes or math.inf)))
    if wrong.size:
        expected = f"0..{classes - 1}" if classes else "whole numbers from 0"
        hint = "" if name == "test" else "; pass X alone if its labels are of other classes"
        raise ValueError(
            f"label {labels[wrong[0]]:g} in row {wrong[0]} of set {name!r}; expected {expected}{hint}"
        )
