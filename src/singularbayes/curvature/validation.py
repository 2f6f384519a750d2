"""The prior precision by the log predictive density of held-out data, on a grid."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..posterior import Posterior

__all__ = ["Validation"]


def _default_grid() -> tuple[float, ...]:
    return tuple(10.0 ** (exponent / 2) for exponent in range(-8, 9))


@dataclass(frozen=True, kw_only=True)
class Validation:
    """One prior precision for all chosen tensors: the best on validation data.

    Args:
        grid: precisions (one over a variance) to try, ascending.
        draws: posterior draws of each predictive; all precisions see the same noise.

    References:
        Ritter et al. 2018, "A scalable Laplace approximation for neural networks", section 4.
    """

    grid: tuple[float, ...] = field(default_factory=_default_grid)
    draws: int = 64

    def __post_init__(self) -> None:
        ascending = all(a < b for a, b in zip(self.grid, self.grid[1:], strict=False))
        if not self.grid or not ascending or not all(0 < p < math.inf for p in self.grid):
            raise ValueError(f"grid must be positive precisions in ascending order, got {self.grid}")
        if isinstance(self.draws, bool) or not isinstance(self.draws, int) or self.draws < 1:
            raise ValueError(f"draws must be a whole number of at least 1, got {self.draws!r}")

    def best(self, build: Callable[[float], Posterior], x: Any, y: Any, seed: int) -> float:
        """The precision of the highest mean log predictive density.

        Args:
            build: the posterior at a precision.
            x: validation inputs.
            y: their labels.
            seed: of the draws.

        Warns:
            UserWarning: the best is the first or the last of the grid.
        """
        scores = [
            build(precision).predict(x, draws=self.draws, seed=seed).log_prob(y).double().mean().item()
            for precision in self.grid
        ]
        best = max(range(len(scores)), key=scores.__getitem__)
        if len(scores) > 1 and best in (0, len(scores) - 1):
            warnings.warn(
                f"the best prior precision on the validation data is the grid's end, {self.grid[best]:g}; "
                f"give a wider grid",
                stacklevel=3,
            )
        return self.grid[best]
