"""The known name that a misspelt one is nearest to."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["did_you_mean"]


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """The end of an error message: a question with the nearest known name, or nothing.

    Args:
        name: what was asked for.
        known: what there is.
        cutoff: likeness from which a name is near, between 0 and 1.

    Example:
        >>> did_you_mean("digitz", ["digits", "sine"])
        '; did you mean digits?'
    """
    found = get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"; did you mean {found[0]}?" if found else ""
