"""The KL's warm-up: some epochs without it, then a line to its full weight.

References:
    Bowman et al. 2016, arXiv 1511.06349, section 3.1 (KL annealing).
"""

from __future__ import annotations

import math

__all__ = ["check_warm_up", "share_of_kl"]


def check_warm_up(start: float, full: float) -> None:
    """Refuse a warm-up that goes back in time.

    Args:
        start: epochs without KL.
        full: epoch of the full weight; 0 means at ``start``, at once.

    Raises:
        ValueError: not finite, negative, or ``full`` before ``start``.
    """
    finite = math.isfinite(start) and math.isfinite(full)
    if not finite or start < 0 or full < 0 or (full and full < start):
        raise ValueError(f"the KL's warm-up needs 0 <= kl_start <= kl_full, got {start} and {full}")


def share_of_kl(progress: float, start: float, full: float) -> float:
    """Share of the KL's weight after ``progress`` epochs.

    Example:
        >>> share_of_kl(3.0, 2.0, 4.0)
        0.5
    """
    if progress >= max(full, start):
        return 1.0
    return 0.0 if progress < start else (progress - start) / (full - start)
