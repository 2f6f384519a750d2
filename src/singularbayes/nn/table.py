"""The list of what ``factorize`` changed, or would change: every layer that holds parameters, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Factorization", "LayerChange"]

Row = tuple[str, str, str, str, str, str, str]


@dataclass(frozen=True)
class LayerChange:
    """A layer that holds parameters, and what becomes of it.

    Args:
        name: in the network; its first one, if it stands in several places.
        layer: the type's name.
        shapes: of its matrices, by torch's names; of its first parameter, if it is kept.
        ranks: of its matrices; empty if it is kept.
        before: its parameters, those that an earlier layer holds too not counted again.
        after: the same once it is factorised.
        reason: why it is kept, or a note.
    """

    name: str
    layer: str
    shapes: Mapping[str, tuple[int, ...]]
    ranks: Mapping[str, int]
    before: int
    after: int
    reason: str

    def rows(self) -> list[Row]:
        """Its lines in the table: one, and one a matrix where it has several."""
        counts = f"{self.before:,}", f"{self.after:,}", self.reason
        name = self.name or "(root)"
        if len(self.shapes) == 1:
            rank = next((str(rank) for rank in self.ranks.values()), "kept")
            return [(name, self.layer, _times(*self.shapes.values()), rank, *counts)]
        head = (name, self.layer, "", "" if self.ranks else "kept", *counts)
        return [
            head,
            *(
                (f"  {matrix}", "", _times(shape), str(self.ranks.get(matrix, "")), "", "", "")
                for matrix, shape in self.shapes.items()
            ),
        ]


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


@dataclass(frozen=True)
class Factorization:
    """What becomes of a network, layer by layer; printed as a table.

    Args:
        changes: every layer that holds parameters.
        notes: what else is done to the network, a line each.
    """

    changes: tuple[LayerChange, ...]
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
        rows: list[Row] = [("layer", "kind", "shape", "rank", "before", "after", "")]
        for change in self.changes:
            rows += change.rows()
        rows.append(("total", "", "", "", f"{self.before:,}", f"{self.after:,}", ""))
        widths = [max(len(row[i]) for row in rows) for i in range(6)]
        lines = []
        for row in rows:
            left = "  ".join(cell.ljust(w) for cell, w in zip(row[:4], widths[:4], strict=True))
            right = "  ".join(cell.rjust(w) for cell, w in zip(row[4:6], widths[4:], strict=True))
            lines.append(f"{left}  {right}  {row[6]}".rstrip())
        return "\n".join([*lines, *self.notes])
