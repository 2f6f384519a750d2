"""The list of what ``factorize`` changed, or would change: every layer that holds parameters, and why."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Factorization", "LayerChange"]

Row = tuple[str, str, str, str, str, str, str, str]

_ALIKE = 3  # more kept layers of one kind and reason than this are printed as one line


@dataclass(frozen=True)
class LayerChange:
    """A layer that holds parameters, and what becomes of it.

    Args:
        name: in the network; its first one, if it stands in several places.
        layer: the type's name; ``Parameter`` for one that a module holds beside its layers.
        shapes: of its matrices, by torch's names; of its first parameter, if it is kept.
        ranks: of its matrices; empty if it is kept.
        before: its parameters, those that an earlier layer holds too not counted again.
        after: the same once it is factorised.
        reason: why it is kept, or a note.
        keeps: the share of each matrix's energy (squared Frobenius norm) that its rank keeps, where the
            factors start from the weights.
        notes: on single matrices, where it has several.
    """

    name: str
    layer: str
    shapes: Mapping[str, tuple[int, ...]]
    ranks: Mapping[str, int]
    before: int
    after: int
    reason: str
    keeps: Mapping[str, float] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)

    def rows(self) -> list[Row]:
        """Its lines in the table: one, and one a matrix where it has several."""
        counts = f"{self.before:,}", f"{self.after:,}", self.reason
        name = self.name or "(root)"
        if len(self.shapes) == 1:
            (matrix,) = self.shapes
            rank = str(self.ranks.get(matrix, "kept"))
            return [(name, self.layer, _times(self.shapes[matrix]), rank, self._share(matrix), *counts)]
        head = (name, self.layer, "", "" if self.ranks else "kept", "", *counts)
        return [
            head,
            *(
                (f"  {matrix}", "", _times(shape), str(self.ranks.get(matrix, "")), self._share(matrix),
                 "", "", self.notes.get(matrix, ""))
                for matrix, shape in self.shapes.items()
            ),
        ]  # fmt: skip

    def _share(self, matrix: str) -> str:
        """In percent, rounded down: 100% is all of it."""
        share = self.keeps.get(matrix)
        return "" if share is None else f"{math.floor(share * 1000 + 1e-6) / 10:.1f}%"


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _together(changes: list[LayerChange]) -> Row:
    """One line for many kept layers of one kind and reason."""
    shapes = {_times(shape) for change in changes for shape in change.shapes.values()}
    shape = shapes.pop() if len(shapes) == 1 else ""
    before, after = sum(change.before for change in changes), sum(change.after for change in changes)
    many = f"{len(changes)} {changes[0].layer}s"
    return (many, "", shape, "kept", "", f"{before:,}", f"{after:,}", changes[0].reason)


@dataclass(frozen=True)
class Factorization:
    """What becomes of a network, layer by layer; printed as a table.

    Many kept layers of one kind, for one reason, are one line of the table; ``changes`` has them all.

    Args:
        changes: every layer that holds parameters.
        start: of the factors: drawn anew, or from the present weights. The table of the latter has a column
            ``keeps``, see :class:`LayerChange`.
        notes: what else is done to the network, a line each.
    """

    changes: tuple[LayerChange, ...]
    start: Literal["random", "svd"] = "random"
    notes: tuple[str, ...] = ()

    @property
    def before(self) -> int:
        """Parameters before."""
        return sum(change.before for change in self.changes)

    @property
    def after(self) -> int:
        """Parameters after."""
        return sum(change.after for change in self.changes)

    def __str__(self) -> str:
        rows: list[Row] = [("layer", "kind", "shape", "rank", "keeps", "before", "after", ""), *self._rows()]
        rows.append(("total", "", "", "", "", f"{self.before:,}", f"{self.after:,}", ""))
        widths = [max(len(row[i]) for row in rows) for i in range(7)]
        columns = [i for i in range(7) if i != 4 or self.start == "svd"]
        lines = []
        for row in rows:
            cells = [row[i].ljust(widths[i]) if i < 4 else row[i].rjust(widths[i]) for i in columns]
            lines.append("  ".join([*cells, row[7]]).rstrip())
        return "\n".join([*lines, f"start: {self.start}", *self.notes])

    def _rows(self) -> list[Row]:
        alike = Counter((change.layer, change.reason) for change in self.changes if not change.ranks)
        rows: list[Row] = []
        done: set[tuple[str, str]] = set()
        for change in self.changes:
            group = change.layer, change.reason
            if change.ranks or alike[group] <= _ALIKE:
                rows += change.rows()
            elif group not in done:
                done.add(group)
                rows.append(
                    _together([c for c in self.changes if not c.ranks and (c.layer, c.reason) == group])
                )
        return rows
