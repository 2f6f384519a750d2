"""``factorize``: a copy of a network in which chosen linear layers are low-rank, and a list of what changed and why not.

References:
    arXiv 2602.00387, section 4 (which layers), appendix (LR-SVD start).
"""

from __future__ import annotations

import copy
import difflib
import fnmatch
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import nn
from torch.nn.parameter import is_lazy

from ..random import forked
from .linear import LowRankLinear, check_rank

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
        rows += [(c.name or "(root)", c.layer, " x ".join(map(str, c.shape)), "kept" if c.rank is None else str(c.rank),
                  f"{c.before:,}", f"{c.after:,}", c.reason) for c in self.changes]  # fmt: skip
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

    Args:
        network: any module; a bare ``nn.Linear`` works too.
        rank: one rank for every linear layer (cut to the smaller side of layers that are narrower, and said so), or
            ``{pattern: rank}`` by module name: layers that match none stay, and a rank that is too large is an error.
        init: ``"random"`` starts the factors anew (He variance of the product), ``"svd"`` from the present weights.
        seed: seed of the random start.

    Returns:
        The copy. Its attribute ``factorization`` prints what changed, what stayed and why, with parameter counts.

    Raises:
        ValueError: a rank outside ``1..min(m, n)`` given by pattern, a pattern that matches no linear layer, a lazy
            layer, an unknown ``init``.

    Example:
        >>> net = factorize(nn.Sequential(nn.Linear(44, 128), nn.ReLU(), nn.Linear(128, 1)), rank={"0": 15, "2": 1})
        >>> net.factorization.before, net.factorization.after
        (5889, 2838)
    """
    if not isinstance(network, nn.Module):
        raise TypeError(f"network must be a torch.nn.Module, got {type(network).__name__}")
    if init not in ("random", "svd"):
        raise ValueError(f"init must be 'random' or 'svd', got {init!r}")
    for name, parameter in network.named_parameters():
        if is_lazy(parameter):
            raise ValueError(f"{name} is not initialised yet (a lazy module); run the network on one batch first")
    linear = {name: m for name, m in network.named_modules(remove_duplicate=False) if type(m) is nn.Linear}
    reasons = _reasons_to_keep(network, {n: m for n, m in network.named_modules(remove_duplicate=False) if isinstance(m, nn.Linear)})
    ranks = _ranks(rank, {name: m for name, m in linear.items() if name not in reasons}, reasons)
    if not ranks:
        why = "; ".join(f"{name or 'root'}: {reason}" for name, reason in reasons.items()) or "it has none at all"
        raise ValueError(f"the network has no nn.Linear layer that can be factorised; {why}")
    changes = _changes(network, ranks, reasons, _tied_weights(network))
    with forked(seed, "factorize"):
        result = copy.deepcopy(network)
        layers: dict[int, LowRankLinear] = {}  # a module that stands in two places stays one module
        for name, r in ranks.items():
            old = result.get_submodule(name) if name else result
            new = layers.setdefault(id(old), _converted(old, r, init))
            if not name:
                result = new
            else:
                parent, _, leaf = name.rpartition(".")
                setattr(result.get_submodule(parent), leaf, new)
    result.factorization = Factorization(changes)  # type: ignore[assignment]
    return result


def _converted(old: nn.Module, rank: int, init: str) -> LowRankLinear:
    assert isinstance(old, nn.Linear)  # chosen by type above
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the list says it, layer by layer
        new = LowRankLinear(old.in_features, old.out_features, rank, bias=old.bias is not None,
                            device=old.weight.device, dtype=old.weight.dtype)  # fmt: skip
    if init == "svd":
        new.set_weight(old.weight, old.bias)
    else:
        new.reset_parameters()
    return new.train(old.training)


def _tied_weights(network: nn.Module) -> dict[str, str]:
    """Names of parameters that are the same tensor as an earlier one, with that one's name."""
    first: dict[int, str] = {}
    tied = {}
    for name, parameter in network.named_parameters(remove_duplicate=False):
        if first.setdefault(id(parameter), name) != name:
            tied[name] = first[id(parameter)]
    return tied


def _reasons_to_keep(network: nn.Module, linear: Mapping[str, nn.Linear]) -> dict[str, str]:
    """Linear layers that must stay, each with the reason."""
    reasons: dict[str, str] = {}
    tied = _tied_weights(network)
    partners = set(tied) | set(tied.values())
    modules = dict(network.named_modules(remove_duplicate=False))
    for name, layer in linear.items():
        parent = modules.get(name.rpartition(".")[0]) if name else None
        shared = [k for k, m in linear.items() if m is layer]
        weight = f"{name}.weight" if name else "weight"
        if isinstance(parent, nn.MultiheadAttention):
            reasons[name] = "inside nn.MultiheadAttention, which reads the weight itself"
        elif isinstance(parent, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
            reasons[name] = f"inside a stock {type(parent).__name__}, whose fast path reads the weight itself"
        elif hasattr(layer, "parametrizations"):
            reasons[name] = "its weight is parametrised"
        elif weight in partners and not any(f"{other}.weight" in partners for other in shared if other != name):
            reasons[name] = f"its weight is tied to {tied.get(weight) or next(k for k, v in tied.items() if v == weight)}"
    return reasons


def _ranks(rank: int | Mapping[str, int], linear: Mapping[str, nn.Linear], reasons: dict[str, str]) -> dict[str, int]:
    if not isinstance(rank, Mapping):
        if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
            raise ValueError(f"rank must be a positive integer or {{pattern: rank}}, got {rank!r}")
        ranks = {}
        limits = {name: min(layer.in_features, layer.out_features) for name, layer in linear.items()}
        if limits and rank > max(limits.values()):
            widest = max(limits, key=lambda name: limits[name])
            raise ValueError(f"rank {rank} is above the smaller side of every linear layer; the largest possible is "
                             f"{limits[widest]} ({widest or 'root'})")  # fmt: skip
        for name in linear:
            ranks[name] = min(rank, limits[name])
        return ranks
    ranks = {}
    for pattern, value in rank.items():
        hits = [name for name in linear if fnmatch.fnmatchcase(name, pattern)]
        if not hits:
            held = [n for n in reasons if fnmatch.fnmatchcase(n, pattern)]
            near = difflib.get_close_matches(pattern, linear, n=3, cutoff=0.3) or list(linear)[:3]
            why = f"{held[0]} stays: {reasons[held[0]]}" if held else f"nearest names: {', '.join(near)}"
            raise ValueError(f"rank pattern {pattern!r} matches no linear layer that can be factorised; {why}")
        for name in hits:
            check_rank(value, linear[name].out_features, linear[name].in_features, name or "root")
            ranks.setdefault(name, value)
    reasons.update({name: "no rank pattern matches" for name in linear if name not in ranks})
    return ranks


def _changes(
    network: nn.Module, ranks: Mapping[str, int], reasons: Mapping[str, str], tied: Mapping[str, str]
) -> tuple[LayerChange, ...]:
    changes = []
    seen: set[int] = set()
    for name, module in network.named_modules():
        own = {leaf: p for leaf, p in module.named_parameters(recurse=False) if id(p) not in seen}
        seen |= {id(p) for p in own.values()}
        if not own and name not in ranks:
            continue
        before = sum(p.numel() for p in own.values())
        if name in ranks and isinstance(module, nn.Linear):
            m, n, r = module.out_features, module.in_features, ranks[name]
            bias = 0 if module.bias is None else m
            note = "" if r * (m + n) < m * n else "saves nothing at this rank"
            changes.append(LayerChange(name, "Linear", (m, n), r, before, r * (m + n) + bias, note))
        else:
            main = next(iter(own.values()))
            why = reasons.get(name) or _why_kept(module)
            changes.append(LayerChange(name, type(module).__name__, tuple(main.shape), None, before, before, why))
    return tuple(changes)


def _why_kept(module: nn.Module) -> str:
    if isinstance(module, LowRankLinear):
        return "low-rank already"
    if isinstance(module, nn.Linear):
        return f"{type(module).__name__} is a subclass of nn.Linear with a forward of its own"
    return "only nn.Linear layers are factorised"
