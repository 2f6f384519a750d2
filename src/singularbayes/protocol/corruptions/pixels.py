"""The frame of images: where the axes are and what black and white are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .corruption import Change, Levels, changed

__all__ = ["UNIT", "Images", "Pixels"]

Images = NDArray[np.float64]


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
        axes, expected = ((3, 4), "(n, H, W) or (n, C, H, W); give Pixels(shape=...) for flat rows")
        if self.shape is not None:
            axes, expected = (2,), f"(n, {np.prod(self.shape)}) for images of {self.shape}"
        return changed(
            x,
            severity,
            seed,
            levels,
            axes,
            expected,
            lambda rows, rng, level: self._damaged(rows, rng, level, change),
        )

    def _damaged(
        self, rows: NDArray[np.float64], rng: np.random.Generator, level: float, change: Change
    ) -> NDArray[np.float64]:
        shape = rows.shape[1:] if self.shape is None else self.shape
        if int(np.prod(shape)) != rows[0].size:
            raise ValueError(
                f"X has {rows[0].size} numbers a row; expected {int(np.prod(shape))}, for images of {shape}"
            )
        images = rows.reshape(len(rows), *((1,) if len(shape) == 2 else ()), *shape)
        low, high = (np.reshape(np.atleast_1d(end), (-1, 1, 1)) for end in (self.low, self.high))
        if len(low) not in (1, images.shape[1]):
            raise ValueError(
                f"low has {len(low)} entries for {images.shape[1]} channels; expected one, or one each"
            )
        unit = np.clip((images - low) / (high - low), 0, 1)
        return low + (high - low) * np.clip(change(unit, rng, level), 0, 1)


UNIT = Pixels()
"""Images from 0 (black) to 1 (white), with axes of their own."""
