"""The frame of images: where the axes are and what black and white are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .corruption import Levels, check_levels, check_rows, level_at

__all__ = ["UNIT", "Change", "Images", "Pixels"]

Images = NDArray[np.float64]
Change = Callable[[Images, np.random.Generator, float], Images]


@dataclass(frozen=True, kw_only=True)
class Pixels:
    """How rows are images. Damage is done between 0 (``low``) and 1 (``high``), and clipped to that.

    Args:
        low: what black is in the network's units; one number, or one a channel (after standardising).
        high: what white is.
        shape: ``(H, W)`` or ``(C, H, W)`` of rows that come flat; ``None`` for rows that have it already.

    Raises:
        ValueError: ``high`` not above ``low``.
    """

    low: float | tuple[float, ...] = 0.0
    high: float | tuple[float, ...] = 1.0
    shape: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        low, high = np.atleast_1d(self.low), np.atleast_1d(self.high)
        if low.shape != high.shape or not (np.isfinite(low) & np.isfinite(high) & (low < high)).all():
            raise ValueError(
                f"got low={self.low} and high={self.high}; expected finite ends with low below high"
            )
        if self.shape is not None and len(self.shape) not in (2, 3):
            raise ValueError(f"shape must be (H, W) or (C, H, W), got {self.shape}")

    def changed(self, x: ArrayLike, severity: int, seed: int, levels: Levels, change: Change) -> NDArray[Any]:
        """``x`` with ``change(images (n, C, H, W) in [0, 1], generator, level)`` made to it."""
        check_levels(levels)
        axes, expected = ((3, 4), "(n, H, W) or (n, C, H, W); give Pixels(shape=...) for flat rows")
        if self.shape is not None:
            axes, expected = (2,), f"(n, {np.prod(self.shape)}) for images of {self.shape}"
        rows = check_rows(x, severity, axes, expected)
        if severity == 0 or len(rows) == 0:
            return rows.copy()
        shape = rows.shape[1:] if self.shape is None else self.shape
        if int(np.prod(shape)) != rows[0].size:
            raise ValueError(
                f"X has {rows[0].size} numbers a row; expected {int(np.prod(shape))}, for images of {shape}"
            )
        images = rows.reshape(len(rows), *((1,) if len(shape) == 2 else ()), *shape).astype(np.float64)
        low, high = (np.reshape(np.atleast_1d(end), (-1, 1, 1)) for end in (self.low, self.high))
        if len(low) not in (1, images.shape[1]):
            raise ValueError(
                f"low has {len(low)} entries for {images.shape[1]} channels; expected one, or one each"
            )
        unit = np.clip((images - low) / (high - low), 0, 1)
        damaged = np.clip(change(unit, np.random.default_rng(seed), level_at(levels, severity)), 0, 1)
        return (low + (high - low) * damaged).reshape(rows.shape).astype(rows.dtype)


UNIT = Pixels()
"""Images from 0 (black) to 1 (white), with axes of their own."""
