"""Settings that must be positive numbers."""

from __future__ import annotations

import math
from numbers import Real

__all__ = ["check_positive"]


def check_positive(**numbers: object) -> None:
    """Refuse settings that are not positive, finite numbers.

    Raises:
        ValueError: naming the first that is not.
    """
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < math.inf:
            raise ValueError(f"{name} must be positive and finite, got {value!r}")
