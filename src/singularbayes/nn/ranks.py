"""Ranks of a structure that holds several matrices: one for all of them, or one by pattern of their names."""

from __future__ import annotations

import difflib
import fnmatch
import warnings
from collections.abc import Mapping
from numbers import Integral

from .factors import check_rank, quiet_ranks

__all__ = ["matrix_ranks"]


def matrix_ranks(
    rank: int | Mapping[str, int], sizes: Mapping[str, tuple[int, int]], where: str, stacklevel: int = 3
) -> dict[str, int]:
    """The rank of every matrix.

    Args:
        rank: one rank for all, cut to the smaller side of matrices that are narrower; or
            ``{pattern: rank}`` by the matrices' names, where the first pattern that matches counts.
        sizes: ``(m, n)`` of each matrix by its name.
        where: the structure, for messages.
        stacklevel: of the warning; 3 is the caller of the caller.

    Returns:
        ``{name: rank}`` in the order of ``sizes``.

    Raises:
        TypeError: a rank that is no integer.
        ValueError: a rank outside ``1..min(m, n)`` of its matrix (one rank for all: of every matrix), a
            pattern that matches none, a matrix that no pattern matches.

    Warns:
        UserWarning: matrices that their rank makes no smaller, all in one warning.

    Example:
        >>> matrix_ranks({"*_ih_*": 2, "*": 3}, {"weight_ih_l0": (32, 9), "weight_hh_l0": (32, 8)}, "LSTM")
        {'weight_ih_l0': 2, 'weight_hh_l0': 3}
    """
    ranks = _by_pattern(rank, sizes, where) if isinstance(rank, Mapping) else _same(rank, sizes, where)
    wasted = {name: sizes[name] for name, r in ranks.items() if r * sum(sizes[name]) >= _area(sizes[name])}
    if wasted:
        limits = ", ".join(
            f"{name} ({m} x {n}, rank {ranks[name]}: below {m * n / (m + n):.1f})"
            for name, (m, n) in wasted.items()
        )
        warnings.warn(f"{where}: the rank saves no parameters in {limits}", stacklevel=stacklevel)
    return ranks


def _area(size: tuple[int, int]) -> int:
    return size[0] * size[1]


def _same(rank: int, sizes: Mapping[str, tuple[int, int]], where: str) -> dict[str, int]:
    if isinstance(rank, bool) or not isinstance(rank, Integral):
        raise TypeError(
            f"{where}: rank must be an integer or {{pattern: rank}}, got {type(rank).__name__} {rank!r}"
        )
    widest = max(sizes, key=lambda name: min(sizes[name]))
    limit = min(sizes[widest])
    if not 1 <= rank <= limit:
        m, n = sizes[widest]
        raise ValueError(
            f"{where}: rank {rank} is outside 1..{limit}, the smaller side of {widest} ({m} x {n}), the "
            f"largest of its matrices"
        )
    return {name: min(int(rank), *size) for name, size in sizes.items()}


def _by_pattern(
    patterns: Mapping[str, int], sizes: Mapping[str, tuple[int, int]], where: str
) -> dict[str, int]:
    if not patterns:
        raise ValueError(f"{where}: rank must be an integer or {{pattern: rank}} with at least one pattern")
    ranks: dict[str, int] = {}
    for pattern, value in patterns.items():
        hits = [name for name in sizes if fnmatch.fnmatchcase(name, pattern)]
        if not hits:
            near = difflib.get_close_matches(pattern, sizes, n=3, cutoff=0.3) or list(sizes)[:3]
            raise ValueError(
                f"{where}: rank pattern {pattern!r} matches no matrix; nearest names: {', '.join(near)}"
            )
        if all(name in ranks for name in hits) and any(ranks[name] != value for name in hits):
            raise ValueError(f"{where}: rank pattern {pattern!r} is never used: patterns before it take "
                             f"the same matrices; put the narrower one first")  # fmt: skip
        for name in hits:
            if name not in ranks:
                with quiet_ranks():
                    check_rank(value, *sizes[name], f"{where}, {name}")
                ranks[name] = int(value)
    missing = [name for name in sizes if name not in ranks]
    if missing:
        raise ValueError(
            f"{where}: no rank pattern matches {', '.join(missing)}; patterns given: "
            f"{', '.join(map(repr, patterns))}. A last pattern '*' is for all the others"
        )
    return {name: ranks[name] for name in sizes}
