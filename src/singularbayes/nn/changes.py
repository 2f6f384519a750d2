"""What is to be replaced at which ranks, told layer by layer: the rows of ``factorize``'s list."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import nn

from .conversion import NO_FORM, PART_OF_ATTENTION, Network, Place, trial
from .table import LayerChange

__all__ = ["Decided", "Unit", "changes_of", "smaller"]


@dataclass(frozen=True)
class Unit:
    """Layers that are replaced together: one, or several that share their weight."""

    places: tuple[Place, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """All names of all its layers."""
        return tuple(name for place in self.places for name in place.names)

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """Sizes ``(m, n)`` of its matrices, by torch's names."""
        first = self.places[0]
        return first.structure.matrices(first.module)


@dataclass(frozen=True)
class Decided:
    """Everything that the list tells.

    Args:
        units: what is replaced, by the first name of the first layer.
        ranks: of each unit's matrices.
        keeps: shares of their energy that the ranks keep, where the factors start from the weights.
        reasons: why other layers stay.
        asked: one rank for all, if there is one.
        diagonal: whether there is a parameter between the factors.
    """

    units: Mapping[str, Unit]
    ranks: Mapping[str, Mapping[str, int]]
    keeps: Mapping[str, Mapping[str, float]]
    reasons: Mapping[str, str]
    asked: int | None
    diagonal: bool


def smaller(unit: Unit, ranks: Mapping[str, int], diagonal: bool) -> bool:
    """Whether a layer as a whole has fewer parameters once it is low-rank."""
    place = unit.places[0]
    low = trial(place.structure, place.module, ranks, diagonal)
    return _size(low) < _size(place.module)


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def changes_of(known: Network, decided: Decided) -> tuple[LayerChange, ...]:
    """Every layer that holds parameters; numbers that an earlier one holds too are not counted again."""
    unit_of = {place.key: key for key, unit in decided.units.items() for place in unit.places}
    changes: list[LayerChange] = []
    seen: set[int] = set()
    for name, module in known.modules.items():
        key = known.first[id(module)]
        if key != name or known.inside.get(key) in unit_of:
            continue
        replaced = key in unit_of
        parameters = dict(module.named_parameters(recurse=replaced))
        fresh = {leaf: p.numel() for leaf, p in parameters.items() if id(p) not in seen}
        seen |= {id(p) for p in parameters.values()}
        if not parameters:
            continue
        place = known.places.get(key) or Place((key,), module, None, PART_OF_ATTENTION)
        if replaced:
            changes.append(_replaced(place, unit_of[key], decided, fresh))
        else:
            why = decided.reasons.get(key) or PART_OF_ATTENTION
            changes += _kept(place, why, known, fresh)
    return tuple(changes)


def _also(place: Place) -> str:
    return f"also at {', '.join(place.names[1:])}" if len(place.names) > 1 else ""


def _joined(*notes: str) -> str:
    return ", ".join(filter(None, notes))


def _replaced(place: Place, name: str, decided: Decided, fresh: Mapping[str, int]) -> LayerChange:
    unit, ranks = decided.units[name], decided.ranks[name]
    parameters = dict(place.module.named_parameters())
    low = trial(place.structure, place.module, ranks, decided.diagonal)
    first = unit.places[0].key == place.key
    after = sum(p.numel() if leaf not in parameters else fresh.get(leaf, 0)
                for leaf, p in low.named_parameters() if leaf in parameters or first)  # fmt: skip
    notes = {x: note for x in ranks if first and (note := _note(unit, x, ranks[x], decided))}
    shares = "" if first else f"shares its factors with {unit.places[0].key}"
    if len(ranks) == 1:
        shares, notes = _joined(*notes.values(), shares), {}
    return LayerChange(place.key, type(place.module).__name__, unit.matrices, dict(ranks),
                       sum(fresh.values()), after, _joined(shares, _also(place)),
                       dict(decided.keeps.get(name, {})), notes)  # fmt: skip


def _note(unit: Unit, matrix: str, rank: int, decided: Decided) -> str:
    """Where one rank for all was cut, and where it saves nothing."""
    m, n = unit.matrices[matrix]
    cut = decided.asked is not None and rank < decided.asked
    wasted = rank * (m + n + decided.diagonal) >= m * n
    return _joined(f"cut from {decided.asked}" if cut else "",
                   "saves nothing at this rank" if wasted else "")  # fmt: skip


def _kept(place: Place, why: str, known: Network, fresh: Mapping[str, int]) -> Iterator[LayerChange]:
    module, kind = place.module, type(place.module).__name__
    parameters = dict(module.named_parameters(recurse=False))
    if why == f"{kind} {NO_FORM}" and any(True for _ in module.children()):  # no layer, but what holds layers
        for leaf, parameter in parameters.items():
            count = fresh.get(leaf, 0)
            tie = "" if count else f"tied to {known.owners[id(parameter)][0]}"
            yield LayerChange(f"{place.key}.{leaf}".lstrip("."), "Parameter", {leaf: tuple(parameter.shape)},
                              {}, count, count, tie or f"no layer's: {kind} holds it itself")  # fmt: skip
        return
    leaf, parameter = next(iter(parameters.items()))
    shapes: dict[str, tuple[int, ...]] = {leaf: tuple(parameter.shape)}
    if place.structure is None:
        why = why if fresh else f"tied to {known.owners[id(parameter)][0]}"
    elif len(matrices := place.structure.matrices(module)) == 1:
        shapes = dict(matrices)  # as it would be printed if it were replaced
    count = sum(fresh.values())
    yield LayerChange(place.key, kind, shapes, {}, count, count, _joined(why, _also(place)))
