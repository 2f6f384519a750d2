"""When warm-up learns the mass: Stan's windows, each about twice as long as the one before.

    | first | 25 | 50 | 100 | ... | last |

In the first and the last part only the step size moves. Each window's own draws make the next mass, so that
those from far away are forgotten. A window that would leave no room for the next one takes all that is left.

References:
    Carpenter et al. 2017, Journal of Statistical Software 76(1); the Stan reference manual, "HMC algorithm
    parameters", automatic parameter tuning.
"""

from __future__ import annotations

from functools import lru_cache

__all__ = ["collects", "ends", "learned", "windows"]

_FIRST, _WIDTH, _LAST = 75, 25, 50
_FEWEST_LAST = 10  # where there is room: after 2 steps under a new mass 4 in 10 chains accept nearly nothing
_SHORTEST = 20  # a shorter warm-up learns no mass


@lru_cache(maxsize=64)
def windows(steps: int) -> tuple[int, ...]:
    """Lengths of the first part, of each window and of the last part; their sum is ``steps``.

    A warm-up of less than 150 steps has one window between its first 15% and its last 10%. The last part has
    10 steps at least, or 30% where those are less; there Stan has 10%. A warm-up of less than 20 steps has no
    window: all is first part.

    Example:
        >>> windows(1000)
        (75, 25, 50, 100, 200, 500, 50)
        >>> windows(100), windows(20), windows(10)
        ((15, 75, 10), (3, 11, 6), (10, 0))
    """
    if steps < _SHORTEST:
        return steps, 0
    first, width, last = _FIRST, _WIDTH, _LAST
    if steps < first + width + last:
        first, last = 15 * steps // 100, max(steps // 10, min(_FEWEST_LAST, 3 * steps // 10))
        width = steps - first - last
    lengths, left = [], steps - first - last
    while left:
        length = left if left < 3 * width else width
        lengths.append(length)
        left, width = left - length, 2 * width
    return first, *lengths, last


@lru_cache(maxsize=64)
def _edges(steps: int) -> tuple[int, ...]:
    """The first step of each window, and the first after the last window."""
    edges = [windows(steps)[0]]
    for length in windows(steps)[1:-1]:
        edges.append(edges[-1] + length)
    return tuple(edges)


def collects(step: int, steps: int) -> bool:
    """Whether what step ``step`` of ``steps`` (from 0) reaches is part of an estimate."""
    edges = _edges(steps)
    return edges[0] <= step < edges[-1]


def ends(step: int, steps: int) -> bool:
    """Whether a window ends with this step."""
    return step + 1 in _edges(steps)[1:]


def learned(step: int, steps: int) -> bool:
    """Whether step ``step`` of ``steps`` comes after the first of several windows, or there are not several.

    Until then moves may be cut short: what the first mass misses, the next window finds.
    """
    edges = _edges(steps)
    return len(edges) <= 2 or step >= edges[1]
