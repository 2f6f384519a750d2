"""``factorize``: a copy of a network whose chosen linear layers are low-rank, and a list of what changed.

References:
    arXiv 2602.00387, section 4 (which layers), appendix (LR-SVD start).
"""

from __future__ import annotations

import copy
import difflib
import fnmatch
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Literal

from torch import nn
from torch.nn.parameter import is_lazy

from ..random import forked
from .factors import check_rank
from .linear import LowRankLinear

__all__ = ["Factorization", "factorize"]


@dataclass(frozen=True)
class LayerChange:
    """One line of the list: a layer that holds parameters, and what became of it."""

    name: str
    layer: str
    shape: tuple[int, ...]
    rank: int | None
    before: int
    after: int
    reason: str


@dataclass(frozen=True)
class Factorization:
    """What ``factorize`` did, layer by layer; printed as a table."""

    changes: tuple[LayerChange, ...]

    @property
    def before(self) -> int:
        """Parameters before."""
        return sum(change.before for change in self.changes)

    @property
    def after(self) -> int:
        """Parameters after."""
        return sum(change.after for change in self.changes)

    def __str__(self) -> str:
        rows = [("layer", "kind", "shape", "rank", "before", "after", "")]
        rows += [(c.name or "(root)", c.layer, " x ".join(map(str, c.shape)),
                  "kept" if c.rank is None else str(c.rank), f"{c.before:,}", f"{c.after:,}", c.reason)
                 for c in self.changes]  # fmt: skip
        rows.append(("total", "", "", "", f"{self.before:,}", f"{self.after:,}", ""))
        widths = [max(len(row[i]) for row in rows) for i in range(6)]
        lines = []
        for row in rows:
            left = "  ".join(cell.ljust(w) for cell, w in zip(row[:4], widths[:4], strict=True))
            right = "  ".join(cell.rjust(w) for cell, w in zip(row[4:6], widths[4:], strict=True))
            lines.append(f"{left}  {right}  {row[6]}".rstrip())
        return "\n".join(lines)


def factorize(
    network: nn.Module,
    rank: int | Mapping[str, int],
    *,
    init: Literal["random", "svd"] = "random",
    seed: int = 0,
) -> nn.Module:
    """A copy of ``network`` with low-rank linear layers; the original is untouched.

    A layer that stands in several places stays one layer, and patterns match any of its names. Layers that
    cannot be replaced without changing what the network does (tied, parametrised, read by their parent, ...)
    are kept.

    Args:
        network: any module; a bare ``nn.Linear`` works too.
        rank: one rank for every linear layer (cut to the smaller side of layers that are narrower, and said
            so), or ``{pattern: rank}`` by module name: the first pattern that matches counts, layers that
            match none stay, and a rank that is too large is an error.
        init: ``"random"`` starts factors and bias anew (He variance of the product), ``"svd"`` from the
            present ones.
        seed: seed of the random start.

    Returns:
        The copy. Its attribute ``factorization`` prints what changed, what stayed and why, with parameter
        counts.

    Raises:
        TypeError: not a module.
        ValueError: a rank outside ``1..min(m, n)`` given by pattern, a pattern that matches no linear layer,
            a lazy layer, a compiled network, an unknown ``init``.

    Warns:
        UserWarning: a rank at which a layer saves no parameters.

    Example:
        >>> net = factorize(
        ...     nn.Sequential(nn.Linear(44, 128), nn.ReLU(), nn.Linear(128, 2)), rank={"0": 15, "2": 1}
        ... )
        >>> net.factorization.before, net.factorization.after
        (6018, 2840)
    """
    if not isinstance(network, nn.Module):
        raise TypeError(f"network must be a torch.nn.Module, got {type(network).__name__}")
    if init not in ("random", "svd"):
        raise ValueError(f"init must be 'random' or 'svd', got {init!r}")
    _refuse(network)
    places = _linear_places(network)
    reasons = _reasons_to_keep(network, places, init)
    ranks = _ranks(rank, network, places, reasons)
    changes = _changes(network, rank, places, ranks, reasons)
    if not isinstance(rank, Mapping):
        _warn_of_waste(changes)
    device = next((parameter.device for parameter in network.parameters()), None)
    with forked(seed, "factorize", device=device):
        result = copy.deepcopy(network)
        olds = {name: result.get_submodule(name) for name in ranks}  # all, before the first is replaced
        for name, r in ranks.items():
            new = _converted(olds[name], r, init)
            for place in places[name]:
                parent, _, leaf = place.rpartition(".")
                if leaf:
                    setattr(result.get_submodule(parent), leaf, new)
                else:
                    result = new
    result.factorization = Factorization(changes)  # type: ignore[assignment]
    return result


def _warn_of_waste(changes: Sequence[LayerChange]) -> None:
    """One warning for all layers that one rank for all makes no smaller."""
    wasted = [c.name or "root" for c in changes if c.rank is not None and c.after >= c.before]
    if wasted:
        warnings.warn(
            f"the rank saves no parameters in {', '.join(wasted)}; give {{pattern: rank}} to leave them as "
            f"they are",
            stacklevel=3,
        )


def _refuse(network: nn.Module) -> None:
    for name, module in network.named_modules():
        if hasattr(module, "_orig_mod"):
            raise ValueError(
                f"{name or 'the network'} was compiled; use its ._orig_mod instead, and compile afterwards"
            )
    for name, parameter in network.named_parameters():
        if is_lazy(parameter):
            raise ValueError(
                f"{name} is not initialised yet (a lazy module); run the network on one batch first"
            )


def _linear_places(network: nn.Module) -> dict[str, tuple[str, ...]]:
    """Every linear layer by its first name, with all names that it has."""
    first: dict[int, str] = {}
    places: dict[str, tuple[str, ...]] = {}
    for name, module in network.named_modules(remove_duplicate=False):
        if isinstance(module, nn.Linear):
            key = first.setdefault(id(module), name)
            places[key] = (*places.get(key, ()), name)
    return places


def _converted(old: nn.Module, rank: int, init: str) -> LowRankLinear:
    if not isinstance(old, nn.Linear):
        raise TypeError(f"only nn.Linear layers are factorised, got {type(old).__name__}")
    return LowRankLinear.from_layer(old, rank, init="svd" if init == "svd" else "random")


def _parameter_names(network: nn.Module) -> dict[int, list[str]]:
    """All names of every distinct parameter, by its identity."""
    names: dict[int, list[str]] = {}
    for name, parameter in network.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return names


def _reasons_to_keep(network: nn.Module, places: Mapping[str, tuple[str, ...]], init: str) -> dict[str, str]:
    """Linear layers that must stay, each with the reason."""
    names = _parameter_names(network)
    modules = dict(network.named_modules(remove_duplicate=False))
    reasons = {}
    for first, own in places.items():
        layer = modules[first]
        parents = [modules[name.rpartition(".")[0]] for name in own if name]
        reason = _reason(layer, parents, init) or _tie(layer, own, names)
        if reason:
            reasons[first] = reason
    return reasons


def _reason(layer: nn.Module, parents: Sequence[nn.Module], init: str) -> str | None:  # noqa: PLR0911
    if any(isinstance(parent, nn.MultiheadAttention) for parent in parents):
        return "inside nn.MultiheadAttention, which reads the weight itself"
    if any(isinstance(parent, nn.TransformerEncoderLayer) for parent in parents):
        return "inside a stock nn.TransformerEncoderLayer, whose fast path reads the weight itself"
    own = dict(layer.named_parameters(recurse=False))
    if hasattr(layer, "parametrizations"):
        return "its weight is parametrised"
    if type(layer) is not nn.Linear:
        return f"{type(layer).__name__} is a subclass of nn.Linear, whose forward may be its own"
    if "weight" not in own:
        return "its weight is no parameter: a hook computes it (weight_norm, spectral_norm, pruning)"
    if layer._forward_hooks or layer._forward_pre_hooks:  # noqa: SLF001
        return "it has forward hooks, which a new layer would lose"
    if init == "random" and not own["weight"].requires_grad:
        return "frozen: a random start would never be trained; init='svd' keeps its weight"
    return None


def _tie(layer: nn.Module, places: Sequence[str], names: Mapping[int, list[str]]) -> str | None:
    """Why a tie holds the layer: one of its parameters stands elsewhere too."""
    for leaf, parameter in layer.named_parameters(recurse=False):
        own = {f"{place}.{leaf}" if place else leaf for place in places}
        others = [name for name in names[id(parameter)] if name not in own]
        if others:
            return f"its {leaf} is tied to {others[0]}"
    return None


def _ranks(
    rank: int | Mapping[str, int],
    network: nn.Module,
    places: Mapping[str, tuple[str, ...]],
    reasons: dict[str, str],
) -> dict[str, int]:
    """The rank of every layer to factorise, by first name; adds to ``reasons`` what no pattern matches."""
    layers = {name: network.get_submodule(name) for name in places if name not in reasons}
    sides = {name: (m.out_features, m.in_features) for name, m in layers.items() if isinstance(m, nn.Linear)}
    if not sides:
        why = (
            "; ".join(f"{name or 'root'}: {reason}" for name, reason in reasons.items())
            or "it has none at all"
        )
        raise ValueError(f"the network has no nn.Linear layer that can be factorised; {why}")
    if not isinstance(rank, Mapping):
        return _same_rank(rank, sides)
    if not rank:
        raise ValueError(
            "rank must be a positive integer or {pattern: rank} with at least one pattern, got {}"
        )
    ranks: dict[str, int] = {}
    for pattern, value in rank.items():
        hits = [name for name in sides if _matches(pattern, places[name])]
        if not hits:
            why = _why_no_hit(pattern, network, places, reasons)
            raise ValueError(
                f"rank pattern {pattern!r} matches no linear layer that can be factorised; {why}"
            )
        for name in hits:
            if name not in ranks:
                check_rank(value, *sides[name], name or "root", stacklevel=4)
                ranks[name] = int(value)
    reasons.update({name: "no rank pattern matches" for name in sides if name not in ranks})
    return ranks


def _matches(pattern: str, names: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for name in names)


def _same_rank(rank: int, sides: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    if isinstance(rank, bool) or not isinstance(rank, Integral) or rank < 1:
        raise ValueError(f"rank must be a positive integer or {{pattern: rank}}, got {rank!r}")
    widest = max(sides, key=lambda name: min(sides[name]))
    if rank > min(sides[widest]):
        raise ValueError(f"rank {rank} is above the smaller side of every linear layer; the largest "
                         f"possible is {min(sides[widest])} ({widest or 'root'})")  # fmt: skip
    return {name: min(int(rank), *pair) for name, pair in sides.items()}


def _why_no_hit(
    pattern: str, network: nn.Module, places: Mapping[str, tuple[str, ...]], reasons: Mapping[str, str]
) -> str:
    kept = [name for name in reasons if _matches(pattern, places[name])]
    if kept:
        return f"{kept[0]} stays: {reasons[kept[0]]}"
    others = [(n, m) for n, m in network.named_modules() if n and fnmatch.fnmatchcase(n, pattern)]
    if others:
        name, module = others[0]
        return f"{name} is a {type(module).__name__}"
    known = [name for names in places.values() for name in names]
    near = difflib.get_close_matches(pattern, known, n=3, cutoff=0.3) or known[:3]
    return f"nearest names: {', '.join(name or 'the network itself' for name in near)}"


def _changes(
    network: nn.Module,
    rank: int | Mapping[str, int],
    places: Mapping[str, tuple[str, ...]],
    ranks: Mapping[str, int],
    reasons: Mapping[str, str],
) -> tuple[LayerChange, ...]:
    changes = []
    names = _parameter_names(network)
    seen: set[int] = set()
    for name, module in network.named_modules():
        parameters = list(module.parameters(recurse=False))
        fresh = [p for p in parameters if id(p) not in seen]
        seen |= {id(p) for p in fresh}
        if not parameters and name not in places:
            continue
        before = sum(p.numel() for p in fresh)
        also = f"also at {', '.join(places[name][1:])}" if len(places.get(name, ())) > 1 else ""
        if name in ranks and isinstance(module, nn.Linear):
            m, n, r = module.out_features, module.in_features, ranks[name]
            cut = f"cut from {rank}" if not isinstance(rank, Mapping) and r < rank else ""
            spare = "" if r * (m + n) < m * n else "saves nothing at this rank"
            after = r * (m + n) + (0 if module.bias is None else m)
            note = ", ".join(filter(None, (cut, spare, also)))
            changes.append(LayerChange(name, "Linear", (m, n), r, before, after, note))
            continue
        why = reasons.get(name) or _why_kept(name, module)
        if parameters and not fresh and name not in reasons:
            why = f"tied to {names[id(parameters[0])][0]}"
        shape = (
            (module.out_features, module.in_features)
            if isinstance(module, nn.Linear)
            else tuple(parameters[0].shape)
        )
        note = ", ".join(filter(None, (why, also)))
        changes.append(LayerChange(name, type(module).__name__, shape, None, before, before, note))
    return tuple(changes)


def _why_kept(name: str, module: nn.Module) -> str:
    if isinstance(module, LowRankLinear):
        return "low-rank already"
    if "parametrizations" in name.split("."):
        return "part of a parametrised layer"
    return "only nn.Linear layers are factorised"
