"""``plan``: what ``factorize`` would do to a network, without doing it."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from ..random import forked
from ..spectrum import share_kept
from .changes import Decided, Unit, changes_of, smaller
from .conversion import FROZEN, LOW_RANK, Network, Place, dense, refuse, share_factors
from .nested import nested_encoders
from .rank_choice import Energy, Rank, energies, matches, matrix_names, nearest, ranks_of
from .table import Factorization

__all__ = ["Layers", "Plan", "Unit", "plan", "prepare"]

Layers = str | Sequence[str]


@dataclass(frozen=True)
class Plan:
    """What is to be replaced, at which ranks, and the list of it.

    Args:
        units: by the first name of their first layer.
        ranks: of each unit's matrices.
        owners: all names of every distinct parameter, by its identity.
        factorization: the list.
        encoders: names of those whose nested path is to be switched off.
        wasted: layers that their ranks make no smaller.
    """

    units: Mapping[str, Unit]
    ranks: Mapping[str, Mapping[str, int]]
    owners: Mapping[int, Sequence[str]]
    factorization: Factorization
    encoders: tuple[str, ...]
    wasted: tuple[str, ...]


def plan(
    network: nn.Module,
    rank: Rank,
    *,
    layers: Layers = "*",
    init: Literal["random", "svd"] = "random",
    diagonal: bool = False,
    only_where_smaller: bool = False,
) -> Factorization:
    """What ``sb.factorize`` would do with these arguments: the list that it prints, and nothing else.

    Arguments and errors are those of ``factorize``. A network on the "meta" device can be planned too.

    Example:
        >>> print(plan(nn.Sequential(nn.Linear(44, 128), nn.ReLU(), nn.Linear(128, 2)), {"0": 15}))
        layer  kind    shape     rank  before  after
        0      Linear  128 x 44  15     5,760  2,708
        2      Linear  2 x 128   kept     258    258  no rank pattern matches
        total                           6,018  2,966
        start: random
    """
    return prepare(network, rank, layers, init, diagonal, only_where_smaller).factorization


def prepare(
    network: nn.Module, rank: Rank, layers: Layers, init: str, diagonal: bool, only_where_smaller: bool
) -> Plan:
    """All checks, before any work; see ``factorize``."""
    refuse(network)
    if init not in ("random", "svd"):
        raise ValueError(f"init must be 'random' or 'svd', got {init!r}")
    start: Literal["random", "svd"] = "svd" if init == "svd" else "random"
    with forked(0, "plan"):  # layers without values draw nothing, but torch does not promise that
        known = Network(network, random=init == "random")
        reasons = {key: place.reason for key, place in known.places.items() if place.reason}
        units = _units(known, reasons)
        if not units:
            raise ValueError(f"the network has no layer that can be factorised; {_why_none(known, reasons)}")
        every = units = _within(layers, units, known, reasons)
        energy = functools.cache(lambda key, matrix: energies(_values(every[key], matrix)))
        ranks = ranks_of(rank, units, energy, lambda pattern: _why_no_hit(pattern, known, units, reasons),
                         lambda: _left_out(reasons))  # fmt: skip
        for key, unit in units.items():
            if key not in ranks:
                _keep(unit, reasons, "no rank pattern matches")
            elif only_where_smaller and not smaller(unit, ranks[key], diagonal):
                _keep(unit, reasons, f"no smaller at rank {', '.join(map(str, ranks.pop(key).values()))}")
        units = {key: unit for key, unit in units.items() if key in ranks}
        keeps = {key: {x: share_kept(energy(key, x), r) for x, r in ranks[key].items()}
                 for key in units if init == "svd"}  # fmt: skip
        decided = Decided(
            units, ranks, keeps, reasons, None if isinstance(rank, Mapping | Energy) else int(rank), diagonal
        )
        changes = changes_of(known, decided)
        wasted = tuple(
            key or "root" for key, unit in units.items() if not smaller(unit, ranks[key], diagonal)
        )
    replaced = {id(place.module) for unit in units.values() for place in unit.places}
    encoders = nested_encoders(network, replaced)
    notes = tuple(f"{name or '(root)'}: torch's nested fast path, which zeroes padded rows in eval, is off"
                  for name in encoders)  # fmt: skip
    return Plan(units, ranks, known.owners, Factorization(changes, start, notes), encoders, wasted)


def _full(key: str, matrix: str, unit: Unit) -> str:
    """A matrix's name for a message: the layer's where it has only one."""
    return (key or "root") if len(unit.matrices) == 1 else f"{key}.{matrix}".lstrip(".")


def _keep(unit: Unit, reasons: dict[str, str], reason: str) -> None:
    reasons.update({place.key: reason for place in unit.places})


def _units(known: Network, reasons: dict[str, str]) -> dict[str, Unit]:
    """What can be replaced; adds to ``reasons`` the layers that a tie holds."""
    free = {key: place for key, place in known.places.items() if place.structure and not place.reason}
    partners = {key: _partners(known, place, free) for key, place in free.items()}
    for key, found in partners.items():
        if isinstance(found, str):
            reasons[key] = f"its weight is tied to {found}, which stays"
    units: dict[str, Unit] = {}
    done: set[str] = set()
    for key, found in partners.items():
        if isinstance(found, str) or key in done:
            continue
        group = (free[key], *(free[other] for other in found))
        done |= {place.key for place in group}
        units[key] = Unit(group)
    return units


def _partners(known: Network, place: Place, free: Mapping[str, Place]) -> list[str] | str:
    """Layers that hold the same weight and can share its factors, or the name where it stands that cannot."""
    weight = dict(place.module.named_parameters(recurse=False)).get("weight")
    found = []
    for name in [] if weight is None else known.elsewhere(place.names, "weight", weight):
        path, _, leaf = name.rpartition(".")
        key = known.first[id(known.modules[path])]
        other = free.get(key)
        if other is None or leaf != "weight" or not share_factors(place.structure, other.structure):
            return name
        if key not in found:
            found.append(key)
    return found


def _within(
    layers: Layers, units: Mapping[str, Unit], known: Network, reasons: dict[str, str]
) -> dict[str, Unit]:
    """The units that a pattern of ``layers`` matches; adds the others to ``reasons``."""
    patterns = [layers] if isinstance(layers, str) else list(layers) if isinstance(layers, Iterable) else []
    if not patterns or not all(isinstance(pattern, str) for pattern in patterns):
        raise ValueError(f"layers must be a pattern of names, or several, such as "
                         f"{next(iter(units)) or '*'!r}; got {layers!r}")  # fmt: skip
    for pattern in patterns:
        if not any(matches(pattern, unit.names) for unit in units.values()):
            raise ValueError(f"layers pattern {pattern!r} matches no layer that can be factorised; "
                             f"{_why_no_hit(pattern, known, units, reasons)}")  # fmt: skip
    chosen = {}
    for key, unit in units.items():
        if any(matches(pattern, unit.names) for pattern in patterns):
            chosen[key] = unit
        else:
            _keep(unit, reasons, "no pattern of layers matches")
    return chosen


def _values(unit: Unit, matrix: str) -> Tensor:
    """The present values of a matrix, to take singular values of."""
    place = unit.places[0]
    values = dense(place.module, matrix).detach()
    where = _full(place.key, matrix, unit)
    if values.is_meta:
        raise ValueError(f"{where} has no values (it is on the meta device); load them first")
    if not bool(values.isfinite().all()):
        raise ValueError(f"{where} has values that are not finite: it has no singular values; "
                         f"init='random' with ranks by number needs none")  # fmt: skip
    return values


def _holds_parameters(module: nn.Module) -> bool:
    return next(module.parameters(recurse=False), None) is not None


def _why_none(known: Network, reasons: Mapping[str, str]) -> str:
    holding = [
        key for key, place in known.places.items() if any(True for _ in place.module.parameters(False))
    ]
    return "; ".join(f"{key or 'root'}: {reasons[key]}" for key in holding[:5]) or "it has no parameters"


def _left_out(reasons: Mapping[str, str]) -> str:
    """Layers that a larger rank may have been meant for: low-rank already, or frozen."""
    low = [key for key, reason in reasons.items() if reason == LOW_RANK]
    low = [key for key in low if not any(key.startswith(f"{other}.") for other in low)]
    frozen = [key for key, reason in reasons.items() if reason == FROZEN]
    parts = []
    if low:
        parts.append(f"{_are(low)} low-rank already")
    if frozen:
        parts.append(f"{_are(frozen)} frozen (init='svd' takes {'it' if len(frozen) == 1 else 'them'})")
    return "".join(f"; {part}" for part in parts)


def _are(names: Sequence[str]) -> str:
    listed = ", ".join(names) if len(names) <= 3 else f"{len(names)} layers"
    return f"{listed} {'is' if len(names) == 1 else 'are'}"


def _why_no_hit(pattern: str, known: Network, units: Mapping[str, Unit], reasons: Mapping[str, str]) -> str:
    for key, reason in reasons.items():
        place = known.places[key]
        if matches(pattern, place.names) and _holds_parameters(place.module):
            return f"{key or 'the network itself'} stays: {reason}"
    for name, module in known.modules.items():
        if name and matches(pattern, [name]):
            inner = [other for unit in units.values() for other in unit.names if other.startswith(f"{name}.")]
            below = f", which holds {inner[0]}: {name}.* matches what is inside" if inner else ""
            return f"{name} is a {type(module).__name__}{below}"
    for key, unit in units.items():
        leaves = [leaf for leaf, _ in unit.places[0].module.named_parameters()]
        if any(matches(pattern, matrix_names(unit, leaf)) for leaf in leaves):
            kind = type(unit.places[0].module).__name__
            return f"the matrices of {key or 'the network'}, a {kind}, are {', '.join(unit.matrices)}"
    known_names = [x for unit in units.values() for x in unit.names]
    known_names += [full for unit in units.values() if len(unit.matrices) > 1 for x in unit.matrices
                    for full in matrix_names(unit, x)[len(unit.names):]]  # fmt: skip
    return nearest(pattern, known_names)
