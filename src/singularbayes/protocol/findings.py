"""What a check of an evaluation's data found: which sets, how many rows, which rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding", "Kind", "listed"]

Kind = Literal["duplicates", "near duplicates", "selection", "scaling", "incomplete"]
SHOWN = 5  # rows that a message lists


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong with the data of an evaluation, or that a reader of it has to know.

    Args:
        kind: ``duplicates`` (rows of one set in another), ``near duplicates`` (the same up to rounding or a
            little noise), ``selection`` (rows that settings are chosen on are scored too), ``scaling``
            (statistics of more than train), ``incomplete`` (a set that is missing).
        sets: the sets concerned; the rows are of the last one.
        rows: row numbers in the last set.
        total: rows of the last set.
        leak: whether the evaluation tells more than it can know; a note otherwise.
        message: plain words, with what to do.

    Example:
        >>> print(Finding(kind="scaling", sets=("test",), total=9, leak=True, message="test fixed the mean"))
        leak (scaling): test fixed the mean
    """

    kind: Kind
    sets: tuple[str, ...]
    rows: tuple[int, ...] = ()
    total: int = 0
    leak: bool
    message: str

    @property
    def count(self) -> int:
        """Number of rows concerned."""
        return len(self.rows)

    def __str__(self) -> str:
        return f"{'leak' if self.leak else 'note'} ({self.kind}): {self.message}"


def listed(numbers: Iterable[object], shown: int = SHOWN) -> str:
    """The first few of several things in one phrase.

    Example:
        >>> listed([3, 5, 8, 9], shown=2)
        '3, 5 and 2 more'
    """
    items = [str(number) for number in numbers]
    more = f" and {len(items) - shown} more" if len(items) > shown else ""
    return ", ".join(items[:shown]) + more
