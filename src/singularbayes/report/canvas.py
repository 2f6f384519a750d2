"""An empty figure, and the checks of what is drawn on it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def blank_figure(width: float, height: float) -> Figure:
    """A figure of `width` x `height` inches on the Agg canvas; pyplot does not know it: no window."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def vector(values: ArrayLike, what: str, length: int | None = None) -> Array:
    """`values` as float64 (B,); a ValueError that says `what` has another shape."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or (length is not None and array.shape[0] != length):
        wanted = "(B,)" if length is None else f"({length},)"
        raise ValueError(f"{what} has shape {array.shape}; expected {wanted}: pass one number for each case")
    return array


def some(mapping: Mapping[str, object], what: str) -> None:
    """A ValueError where there is nothing to draw."""
    if not mapping:
        raise ValueError(f"{what} is empty; expected at least one method: nothing can be drawn")


def grid(count: int, most: int = 3) -> tuple[int, int]:
    """Rows and columns for `count` panels, at most `most` a row."""
    columns = count if count <= most else (2 if count == 4 else most)
    return math.ceil(count / columns), columns
