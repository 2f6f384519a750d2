"""What a corruption is: data in, the same data damaged at severity 0 (not at all) to 5."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["SEVERITIES", "Change", "Corruption", "Levels", "changed", "per_feature", "unit_of"]

Levels = tuple[float, float, float, float, float]
SEVERITIES = (1, 2, 3, 4, 5)
Array = NDArray[Any]
Change = Callable[[NDArray[np.float64], np.random.Generator, float], NDArray[np.float64]]


@runtime_checkable
class Corruption(Protocol):
    """Anything that damages inputs by degrees; one of your own needs this method alone.

    One seed means one damage: a higher severity is more of the same (the same cells and more, the same noise
    and larger), so that a curve over severities is not blurred by new draws.
    """

    def apply(self, x: Any, severity: int, seed: int = 0) -> Array:
        """The damaged inputs, of the shape and dtype of ``x``, which stays as it is.

        Args:
            x: ``(n, *features)`` floating point.
            severity: 0 (unchanged) to 5.
            seed: of a private generator.
        """
        ...


def check_levels(levels: Levels) -> None:
    """Raise unless there are five finite numbers that go one way."""
    steps = np.diff(levels) if len(levels) == len(SEVERITIES) else np.zeros(1)
    if not np.isfinite(steps).all() or not ((steps > 0).all() or (steps < 0).all()):
        raise ValueError(
            f"levels must be {len(SEVERITIES)} finite numbers, rising or falling, for severity 1 to 5; "
            f"got {levels}"
        )


def check_rows(x: ArrayLike, severity: int, axes: tuple[int, ...], expected: str) -> Array:
    """``x`` as an array, after the checks that every corruption makes.

    Raises:
        ValueError: another severity than 0 to 5, another number of axes, values that are not finite.
        TypeError: not floating point.
    """
    if isinstance(severity, bool) or severity not in (0, *SEVERITIES):
        raise ValueError(f"severity must be a whole number from 0 to 5, got {severity!r}")
    rows = np.asarray(x)
    if rows.dtype.kind != "f":
        raise TypeError(f"X is of {rows.dtype}; expected floating point in the units that the network sees")
    if rows.ndim not in axes:
        raise ValueError(f"X has shape {rows.shape}; expected {expected}")
    if not np.isfinite(rows).all():
        place = np.argwhere(~np.isfinite(rows))[0]
        raise ValueError(f"X holds nan or inf in row {place[0]}; replace or drop missing values first")
    return rows


def changed(
    x: ArrayLike,
    severity: int,
    seed: int,
    levels: Levels,
    axes: tuple[int, ...],
    expected: str,
    change: Change,
) -> Array:
    """``x`` with ``change(rows in float64, generator, level)`` made to it, in its own shape and dtype.

    Raises:
        ValueError, TypeError: as :func:`check_levels` and :func:`check_rows`.
    """
    check_levels(levels)
    rows = check_rows(x, severity, axes, expected)
    if severity == 0 or len(rows) == 0:
        return rows.copy()
    damaged = change(rows.astype(np.float64), np.random.default_rng(seed), levels[severity - 1])
    return damaged.reshape(rows.shape).astype(rows.dtype)


def per_feature(name: str, value: Any, features: int) -> NDArray[np.float64]:
    """One number for every feature ``(features,)`` from one number or one each.

    Raises:
        ValueError: another number of them, or one that is not finite.
    """
    found = np.asarray(value, np.float64)
    if found.ndim > 1 or found.size not in (1, features):
        raise ValueError(
            f"{name} has shape {found.shape}; expected one number, or ({features},) for the features"
        )
    if not np.isfinite(found).all():
        raise ValueError(f"{name} must be finite, got {value}")
    return np.broadcast_to(found.reshape(-1), (features,))


def unit_of(scale: Any, features: int) -> NDArray[np.float64]:
    """The unit of every feature, as :func:`per_feature`; a negative one is a ValueError too."""
    unit = per_feature("scale", scale, features)
    if (unit < 0).any():
        raise ValueError(f"scale must not be negative, got {unit.min():g}")
    return unit
