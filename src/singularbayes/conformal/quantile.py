"""The quantile of split-conformal prediction: the order statistic that covers one more point.

    q = the k-th smallest of n scores,   k = ceil((n + 1) level);   infinite where k > n

For exchangeable points, the score of a new one is at most ``q`` with probability at least ``level``, and at
most ``level + 1 / (n + 1)`` where scores have no ties.

References:
    Vovk et al. 2005; Lei et al. 2018, arXiv 1604.04173, eq. 2.
"""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor

__all__ = ["check_level", "conformal_quantile"]


def check_level(level: float) -> None:
    """A coverage level lies strictly between 0 and 1.

    Raises:
        ValueError: it does not.
    """
    if not 0 < level < 1:
        raise ValueError(f"level must lie strictly between 0 and 1, got {level}; 0.9 asks for 90% coverage")


def conformal_quantile(scores: Tensor, level: float) -> Tensor:
    """The threshold that a new point's score stays below with probability ``level``.

    Args:
        scores: of the calibration points, ``(n, *event)``; each entry of the event has its own threshold.
        level: of the coverage.

    Returns:
        ``(*event)``.

    Raises:
        ValueError: no scores, a score that is nan, or a level outside (0, 1).

    Warns:
        UserWarning: too few points for the level: the threshold is infinite.

    Example:
        >>> conformal_quantile(torch.arange(1.0, 10.0), 0.9)
        tensor(9.)
    """
    check_level(level)
    count = len(scores)
    if count == 0 or bool(scores.isnan().any()):
        raise ValueError(f"got {count} calibration scores, {int(scores.isnan().sum())} of them nan; expected "
                         f"at least one, all numbers")  # fmt: skip
    rank = math.ceil(round((count + 1) * level, 9))  # 0.07 * 100 is 7.000000000000001
    if rank > count:
        needed = math.ceil(round(level / (1 - level), 9))
        warnings.warn(
            f"{count} calibration points are too few for the level {level:g}: it takes {needed}; every set "
            f"holds all classes, every interval all numbers",
            stacklevel=3,
        )
        return torch.full_like(scores[0], math.inf)
    return scores.kthvalue(rank, dim=0).values
