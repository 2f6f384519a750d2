"""Draws as the diagnostics read them: rows of quantities ``(Q, C, N)`` in float64, some at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from ..sampling import Samples

__all__ = ["LEAST", "Array", "Quantities", "each", "reason"]

Array = NDArray[np.float64]

LEAST = 4
"""Draws of a chain below which its halves have no variance."""
_CHUNK = 2**20  # numbers at a time: 8 MB in float64


class Quantities:
    """Draws of many quantities, read in chunks; the source keeps its own precision until then.

    Args:
        draws: ``(C, N, ...)``, an array or a tensor, or ``Samples``.

    Raises:
        TypeError: no numbers.
        ValueError: fewer than two axes, or an empty one.
    """

    def __init__(self, draws: Any) -> None:
        held = draws.draws if isinstance(draws, Samples) else draws
        if isinstance(held, Tensor):
            held = held.detach().cpu()
            array = (held.float() if held.dtype is torch.bfloat16 else held).numpy()
        else:
            array = np.asarray(held)
        if array.dtype.kind not in "fiub":
            raise TypeError(
                f"draws must be numbers: an array (chains, draws, ...), a tensor or Samples; got "
                f"{type(draws).__name__} of {array.dtype}. Of a sampled posterior give "
                f"sb.chains.predictions(posterior, x) or sb.chains.by_chain(posterior)"
            )
        if array.ndim < 2 or 0 in array.shape:
            raise ValueError(
                f"draws have shape {array.shape}; expected (chains, draws, ...), none of them empty; one "
                f"chain needs an axis too: draws[None]"
            )
        self.chains, self.steps, *event = array.shape
        self.shape = tuple(event)
        self._array = array.reshape(self.chains, self.steps, -1)
        self.count = self._array.shape[2]

    def chunks(self) -> Iterator[tuple[slice, Float[np.ndarray, "Q C N"]]]:
        """Which quantities, and their draws."""
        together = max(1, _CHUNK // (self.chains * self.steps))
        for start in range(0, self.count, together):
            part = slice(start, min(start + together, self.count))
            values = np.moveaxis(self._array[:, :, part], 2, 0)
            yield part, np.ascontiguousarray(values, dtype=np.float64)


def reason(values: Float[np.ndarray, "Q C N"]) -> np.ndarray:
    """Why a quantity has no R-hat and no effective size; empty where it has.

    Returns:
        ``(Q,)`` texts.
    """
    finite = np.isfinite(values).all((1, 2))
    constant = (values == values[:, :1, :1]).all((1, 2))
    few = f"fewer than {LEAST} draws of a chain" if values.shape[2] < LEAST else ""
    return np.where(~finite, "not finite", np.where(constant, "constant", few))


def each(draws: Any, measure: Callable[[Array], Array]) -> Array:
    """``measure`` of every quantity, in the shape ``(...)`` of one draw; nan where :func:`reason` says why.

    Args:
        draws: ``(C, N, ...)``.
        measure: ``(Q, C, N)`` to ``(Q,)``; it is asked of quantities that are finite and move.
    """
    quantities = Quantities(draws)
    out = np.full(quantities.count, np.nan)
    for part, values in quantities.chunks():
        fine = reason(values) == ""
        if fine.any():
            out[part][fine] = measure(values[fine])
    return out.reshape(quantities.shape)
