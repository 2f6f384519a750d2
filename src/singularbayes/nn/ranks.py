"""Which rank each matrix of a layer gets: one number for all, or ``{pattern: rank}`` by matrix name."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Mapping

from .factors import check_rank

__all__ = ["matrix_ranks"]


def matrix_ranks(
    rank: int | Mapping[str, int],
    matrices: Mapping[str, tuple[int, int]],
    where: str,
    stacklevel: int = 4,
) -> dict[str, int]:
    """The rank of every matrix of a layer that has several.

    Args:
        rank: one for all, cut to the smaller side of a matrix that is narrower; or ``{pattern: rank}`` by
            matrix name, where the first pattern that matches counts.
        matrices: sizes ``(m, n)`` by name.
        where: the layer's name, for messages.
        stacklevel: of the warning.

    Raises:
        ValueError: a rank above the smaller side of all its matrices (one number) or of one (a pattern), a
            pattern that matches nothing, a matrix without a pattern.

    Warns:
        UserWarning: a rank at which a matrix saves no parameters.
    """
    if not isinstance(rank, Mapping):
        widest = max(matrices.values(), key=min)
        check_rank(rank, *widest, where=where, stacklevel=stacklevel)
        ranks = {name: min(int(rank), *sides) for name, sides in matrices.items()}
        for name, own in ranks.items():
            if matrices[name] != widest:
                check_rank(own, *matrices[name], where=f"{where}, {name}", stacklevel=stacklevel)
        return ranks
    names = list(matrices)
    ranks = {}
    for pattern, own in rank.items():
        hits = fnmatch.filter(names, pattern)
        if not hits:
            near = difflib.get_close_matches(pattern, names, n=3, cutoff=0.3) or names
            raise ValueError(
                f"{where}: rank pattern {pattern!r} matches no matrix; nearest names: {', '.join(near)}"
            )
        for name in hits:
            ranks.setdefault(name, own)
    for name, sides in matrices.items():
        if name not in ranks:
            raise ValueError(
                f"{where}: no rank for {name}; add a pattern that matches it, or '*' at the end, to "
                f"{sorted(rank)}"
            )
        check_rank(ranks[name], *sides, where=f"{where}, {name}", stacklevel=stacklevel)
    return {name: int(ranks[name]) for name in names}
