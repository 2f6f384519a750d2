"""Which rank each matrix gets: one for all, by pattern of names, or by the energy that trained weights keep.

    Energy(share): the smallest r with  sum_{i<=r} s_i^2 >= share * sum_i s_i^2,  s the singular values

References:
    Eckart and Young 1936: what the best rank-r approximation leaves out is the sum of the other s_i^2.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from .. import spectrum

__all__ = [
    "Energy",
    "Matrices",
    "Rank",
    "energies",
    "matches",
    "matrix_names",
    "nearest",
    "ranks_of",
    "reads_weights",
]


def energies(matrix: Tensor) -> Tensor:
    """The energy that each rank of a matrix ``(m, n)`` keeps: ``sum_{i<=r} s_i^2``, ``(min(m, n),)``.

    What is below the rounding of the matrix's own precision counts as 0.
    """
    return spectrum.energy(spectrum.values(matrix))


@dataclass(frozen=True)
class Energy:
    """A rank by the share of a trained weight's squared Frobenius norm that it keeps.

    Each matrix gets the smallest rank whose best approximation keeps at least ``share``; a matrix of zeros
    gets rank 1.

    Args:
        share: in (0, 1]; at 1 every singular value above the rounding of the weight's own precision is kept.
        cap: no rank above this one.

    Raises:
        ValueError: a share outside (0, 1], a cap below 1.

    Example:
        >>> Energy(0.9).rank_of(torch.diag(torch.tensor([3.0, 2.0, 1.0])))
        2
    """

    share: float
    cap: int | None = None

    def __post_init__(self) -> None:
        real = isinstance(self.share, Real) and not isinstance(self.share, bool)
        if not real or not 0 < self.share <= 1:
            percent = real and 1 < self.share <= 100
            hint = f"; {self.share:g}% is {self.share / 100:g}" if percent else ""
            raise ValueError(f"the share of energy must lie in (0, 1], got {self.share!r}{hint}")
        if self.cap is not None and not _is_rank(self.cap):
            raise ValueError(f"the cap must be a positive integer or None, got {self.cap!r}")

    def rank_of(self, matrix: Tensor) -> int:
        """The rank of one matrix ``(m, n)``."""
        return self.rank_at(energies(matrix))

    def rank_at(self, energy: Tensor) -> int:
        """The same, given the matrix's :func:`energies`."""
        needed = self.share * energy[-1] * (1 - 1e-12)  # the sum's own rounding must not ask for one more
        rank = int(torch.searchsorted(energy, needed)) + 1
        return min(rank, len(energy)) if self.cap is None else min(rank, len(energy), int(self.cap))


Rank = int | Energy | Mapping[str, int | Energy]


@runtime_checkable
class Matrices(Protocol):
    """What gets ranks: a layer, or several that share their weight."""

    @property
    def names(self) -> tuple[str, ...]:
        """All names that it has in the network."""
        ...

    @property
    def matrices(self) -> Mapping[str, tuple[int, int]]:
        """Its matrices by torch's names, ``(m, n)``."""
        ...


def matches(pattern: str, names: Iterable[str]) -> bool:
    """Whether a shell pattern matches one of the names."""
    return any(fnmatch.fnmatchcase(name, pattern) for name in names)


def nearest(pattern: str, known: Sequence[str]) -> str:
    """The names that a pattern may have meant, for an error."""
    near = difflib.get_close_matches(pattern, known, n=3, cutoff=0.3) or known[:3]
    return f"nearest names: {', '.join(name or 'the network itself' for name in near)}"


def matrix_names(item: Matrices, matrix: str) -> tuple[str, ...]:
    """What a pattern may match to mean one matrix: ``rnn`` and ``rnn.weight_ih_l0``."""
    return (*item.names, *(f"{name}.{matrix}" if name else matrix for name in item.names))


def ranks_of(
    rank: Rank,
    items: Mapping[str, Matrices],
    energy: Callable[[str, str], Tensor],
    why_no_hit: Callable[[str], str],
    left_out: Callable[[], str],
) -> dict[str, dict[str, int]]:
    """The rank of every matrix of every item that gets any.

    Args:
        rank: see ``factorize``.
        items: what may be factorised, by name.
        energy: :func:`energies` of the present values of an item's matrix, for :class:`Energy`.
        why_no_hit: the reason to name in the error when a pattern matches nothing.
        left_out: what to name in the error when a rank is too large for all that is left.

    Raises:
        ValueError: no rank at all, a rank outside ``1..min(m, n)``, a pattern without a hit, one that an
            earlier one leaves nothing, a layer of which only some matrices are matched.
    """
    if isinstance(rank, Mapping):
        return _by_pattern(rank, items, energy, why_no_hit)
    if isinstance(rank, Energy):
        return {
            name: {matrix: rank.rank_at(energy(name, matrix)) for matrix in item.matrices}
            for name, item in items.items()
        }
    return _same(rank, items, left_out)


def reads_weights(rank: Rank) -> bool:
    """Whether a rank is chosen by the present weights, all or some."""
    return any(isinstance(each, Energy) for each in (rank.values() if isinstance(rank, Mapping) else [rank]))


def _is_rank(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1


def _meant(value: object) -> str:
    """A hint for a number that looks like a share of energy."""
    share = isinstance(value, float) and 0 < value <= 1
    return f"; a share of the energy is sb.nn.Energy({value})" if share else ""


def _same(rank: int, items: Mapping[str, Matrices], left_out: Callable[[], str]) -> dict[str, dict[str, int]]:
    if not _is_rank(rank):
        raise ValueError(f"rank must be a positive integer, Energy(share) or {{pattern: rank}}, got {rank!r}"
                         f"{_meant(rank)}")  # fmt: skip
    sides = {(name, x): min(pair) for name, item in items.items() for x, pair in item.matrices.items()}
    widest = max(sides, key=lambda key: sides[key])
    if rank > sides[widest]:
        raise ValueError(
            f"rank {rank} is above the smaller side of every weight that can be replaced; the largest "
            f"possible is {sides[widest]} ({widest[0] or 'root'}){left_out()}"
        )
    return {
        name: {matrix: min(int(rank), *pair) for matrix, pair in item.matrices.items()}
        for name, item in items.items()
    }


def _by_pattern(
    rank: Mapping[str, int | Energy],
    items: Mapping[str, Matrices],
    energy: Callable[[str, str], Tensor],
    why_no_hit: Callable[[str], str],
) -> dict[str, dict[str, int]]:
    if not rank:
        raise ValueError("rank must be a positive integer, Energy(share) or {pattern: rank} with at least "
                         "one pattern, got {}")  # fmt: skip
    places = {(n, x): matrix_names(item, x) for n, item in items.items() for x in item.matrices}
    chosen: dict[tuple[str, str], tuple[str, int | Energy]] = {}
    for pattern, value in rank.items():
        if not isinstance(pattern, str):
            known = next(iter(items)) or "*"
            example = str(pattern) if str(pattern) in items else known
            raise ValueError(f"a rank pattern is a string of names, such as {example!r}, got {pattern!r}")
        if not isinstance(value, Energy) and not _is_rank(value):
            raise ValueError(
                f"rank of pattern {pattern!r} must be a positive integer or Energy(share), got {value!r}"
                f"{_meant(value)}"
            )
        hits = [key for key, names in places.items() if matches(pattern, names)]
        if not hits:
            raise ValueError(
                f"rank pattern {pattern!r} matches no layer that can be factorised; {why_no_hit(pattern)}"
            )
        earlier = [chosen[key] for key in hits if key in chosen]
        if len(earlier) == len(hits) and any(other != value for _, other in earlier):
            before = list(dict.fromkeys(repr(other) for other, _ in earlier))
            take = "take" if len(before) > 1 else "takes"
            raise ValueError(f"rank pattern {pattern!r} is never used: {', '.join(before)} before it "
                             f"{take} the same layers; put the narrower one first")  # fmt: skip
        for key in hits:
            chosen.setdefault(key, (pattern, value))
    return {name: _each(name, item, chosen, energy) for name, item in items.items()
            if any((name, matrix) in chosen for matrix in item.matrices)}  # fmt: skip


def _each(
    name: str,
    item: Matrices,
    chosen: Mapping[tuple[str, str], tuple[str, int | Energy]],
    energy: Callable[[str, str], Tensor],
) -> dict[str, int]:
    missing = [matrix for matrix in item.matrices if (name, matrix) not in chosen]
    if missing:
        full = f"{name}.{missing[0]}" if name else missing[0]
        raise ValueError(f"no rank pattern matches {full}, but other matrices of {name or 'root'} have one; "
                         f"add a pattern for it")  # fmt: skip
    ranks = {}
    for matrix, (m, n) in item.matrices.items():
        pattern, value = chosen[name, matrix]
        if isinstance(value, Energy):
            ranks[matrix] = value.rank_at(energy(name, matrix))
            continue
        if value > min(m, n):
            single = len(item.matrices) == 1
            where = name or "root" if single else f"{name}.{matrix}".lstrip(".")
            cure = "" if single or pattern == where else (
                f"; put {{{where!r}: {min(m, n)}}} before {pattern!r}, or give one rank for all, which is cut"
            )  # fmt: skip
            raise ValueError(f"{where}: rank {value} is outside 1..{min(m, n)}, the smaller side of the "
                             f"{m} x {n} weight{cure}")  # fmt: skip
        ranks[matrix] = int(value)
    return ranks
