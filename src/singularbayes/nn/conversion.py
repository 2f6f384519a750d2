"""Which layers have a low-rank form, and which layers of a network can take it without changing what it does.

A structure is added by its line in ``STRUCTURES``: a class with ``replaces`` (the stock class, or its full
name where its package may be missing), ``matrices(layer)``, ``from_layer(layer, rank, ...)`` and
``to_layer()``.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from .attention import LowRankMultiheadAttention
from .convolution import LowRankConv1d, LowRankConv2d, LowRankConv3d
from .embedding import LowRankEmbedding
from .factors import quiet_ranks
from .linear import LowRankLinear
from .linearized import Linearized
from .recurrent import LowRankGRU, LowRankLSTM
from .references import plain_references
from .transposed import LowRankTransposedLinear

__all__ = [
    "FROZEN",
    "LOW_RANK",
    "NO_FORM",
    "PART_OF_ATTENTION",
    "STRUCTURES",
    "Network",
    "Place",
    "dense",
    "of_layer",
    "refuse",
    "share_factors",
    "trial",
]

STRUCTURES: tuple[Any, ...] = (
    LowRankLinear,
    LowRankTransposedLinear,
    LowRankEmbedding,
    LowRankConv1d,
    LowRankConv2d,
    LowRankConv3d,
    LowRankLSTM,
    LowRankGRU,
    LowRankMultiheadAttention,
)

FROZEN = "frozen: a random start would never be trained; init='svd' keeps its weight"
LOW_RANK = "low-rank already"
NO_FORM = "has no low-rank form"
PART_OF_ATTENTION = "inside nn.MultiheadAttention, which reads the weight itself"
_STAYS = {"relative_attention_bias": "a bias of attention scores by distance, a table of no features"}


def _full_name(kind: Any) -> str:
    return kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"


_BY_STOCK = {_full_name(structure.replaces): structure for structure in STRUCTURES}


@dataclass(frozen=True)
class Place:
    """A module, where it stands, and its low-rank form if it can take one.

    Args:
        names: all names of the module, the first one first.
        module: in the user's network; only read.
        structure: the low-rank class, if there is one for it.
        reason: why it stays; empty if it can be replaced.
    """

    names: tuple[str, ...]
    module: nn.Module
    structure: Any
    reason: str

    @property
    def key(self) -> str:
        """Its first name."""
        return self.names[0]


def refuse(network: nn.Module) -> None:
    """Networks that cannot be copied: compiled ones, lazy ones before a first batch, computed weights."""
    if not isinstance(network, nn.Module):
        raise TypeError(f"network must be a torch.nn.Module, got {type(network).__name__}")
    for name, module in network.named_modules():
        if hasattr(module, "_orig_mod"):
            raise ValueError(
                f"{name or 'the network'} was compiled; use its ._orig_mod instead, and compile afterwards"
            )
        if isinstance(module, Linearized):
            raise ValueError(
                f"{name or 'the network'} is linearised around the tensors that it has: its layers cannot be "
                f"replaced. Convert the network first, then linearise it"
            )
        computed = [leaf for leaf, value in vars(module).items()
                    if isinstance(value, Tensor) and value.grad_fn is not None]  # fmt: skip
        if computed:
            raise ValueError(
                f"{name}.{computed[0]}".lstrip(".") + " is computed by a hook (weight_norm, spectral_norm, "
                "pruning) and carries its gradient, which torch cannot copy; use "
                "torch.nn.utils.parametrizations, or remove the hook"
            )
    for name, parameter in network.named_parameters():
        if is_lazy(parameter):
            raise ValueError(
                f"{name} is not initialised yet (a lazy module); run the network on one batch first"
            )


def share_factors(one: type[Any], other: type[Any]) -> bool:
    """Whether two low-rank classes read one pair ``A``, ``B`` the same way round."""
    return one is other or {one, other} == {LowRankLinear, LowRankEmbedding}


def dense(layer: nn.Module, matrix: str) -> Tensor:
    """One matrix of a stock layer as a view, by torch's name; its rows and columns may be swapped."""
    with torch.enable_grad():  # a view made without it would not say whether it is trained
        weight = operator.attrgetter(matrix)(layer)
        if weight is None:  # attention packs the three that have one size
            packed = operator.attrgetter("in_proj_weight")(layer)
            weight = packed.chunk(3)["qkv".index(matrix[0])]
        return weight.flatten(1)


def trial(structure: Any, layer: nn.Module, ranks: Mapping[str, int], diagonal: bool) -> Any:
    """The low-rank layer without values, on "meta": its shapes, or the error that says what it refuses."""
    memo: dict[int, Any] = {}
    for parameter in layer.parameters():
        empty = torch.empty_like(parameter, device="meta")
        memo[id(parameter)] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
    blank = copy.deepcopy(layer, memo)  # no value is copied
    with quiet_ranks():
        return structure.from_layer(blank, of_layer(ranks), diagonal=diagonal)


def of_layer(ranks: Mapping[str, int]) -> Any:
    """Ranks as ``from_layer`` takes them: a number for a layer of one matrix."""
    return next(iter(ranks.values())) if len(ranks) == 1 else dict(ranks)


class Network:
    """A network read once: where its modules and parameters stand, and why a layer must stay.

    Args:
        network: only read.
        random: the factors are to start anew.

    Attributes:
        modules: by all their names.
        first: a module's first name, by its identity.
        owners: all names of every distinct parameter, by its identity.
        places: every module by its first name, parts of a layer that can be replaced whole left out.
        inside: those parts, with the first name of that layer.
    """

    def __init__(self, network: nn.Module, random: bool) -> None:
        self._random = random
        self._held = plain_references(network)
        self.modules: dict[str, nn.Module] = {}
        self.first: dict[int, str] = {}
        self.owners: dict[int, list[str]] = {}
        self.places: dict[str, Place] = {}
        self.inside: dict[str, str] = {}
        names: dict[str, tuple[str, ...]] = {}
        for name, module in network.named_modules(remove_duplicate=False):
            self.modules[name] = module
            key = self.first.setdefault(id(module), name)
            names[key] = (*names.get(key, ()), name)
        for name, parameter in network.named_parameters(remove_duplicate=False):
            self.owners.setdefault(id(parameter), []).append(name)
        for key, own in names.items():
            if key in self.inside:
                continue
            place = self._place(own)
            self.places[key] = place
            if place.structure is not None and not place.reason:
                parts = [part for part in place.module.modules() if part is not place.module]
                self.inside |= {self.first[id(part)]: key for part in parts}

    def elsewhere(self, names: Sequence[str], leaf: str, parameter: Tensor) -> list[str]:
        """Other names of a layer's parameter: what it is tied to."""
        own = {f"{name}.{leaf}" if name else leaf for name in names}
        return [name for name in self.owners[id(parameter)] if name not in own]

    def _place(self, names: tuple[str, ...]) -> Place:
        module = self.modules[names[0]]
        structure = _BY_STOCK.get(_full_name(type(module)))
        if any(isinstance(self.modules[name.rpartition(".")[0]], nn.MultiheadAttention)
               for name in names if name):  # fmt: skip
            return Place(names, module, structure, PART_OF_ATTENTION)
        if structure is None:
            return Place(names, module, None, _why_kept(names[0], module))
        reason = (
            next((why for leaf, why in _STAYS.items() if names[0].rpartition(".")[2] == leaf), "")
            or _state(module)
            or self._references(module)
            or self._weights(module, structure)
            or self._form(names, module, structure)
        )
        return Place(names, module, structure, reason)

    def _references(self, module: nn.Module) -> str:
        held = next((self._held[id(part)] for part in module.modules() if id(part) in self._held), "")
        return held and (
            f"{held}, a plain attribute, refers to it and would keep the old layer; use nn.ModuleList or "
            f"nn.ModuleDict"
        )

    def _weights(self, module: nn.Module, structure: Any) -> str:
        weights = [dense(module, matrix) for matrix in structure.matrices(module)]
        if not all(weight.is_floating_point() for weight in weights):
            return f"its weight is {weights[0].dtype}, not real floating point"
        if self._random and not all(weight.requires_grad for weight in weights):
            return FROZEN
        return ""

    def _form(self, names: tuple[str, ...], module: nn.Module, structure: Any) -> str:
        if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d) and 1 < module.groups == module.in_channels:
            return "depthwise: no matrix worth a rank"
        try:
            low = trial(structure, module, dict.fromkeys(structure.matrices(module), 1), diagonal=False)
        except ValueError as error:
            return str(error)
        extra = _tensors(module) - _tensors(low.to_layer())
        if extra:
            return f"it holds more than a {type(module).__name__} does: {', '.join(sorted(extra))}"
        kept = {leaf for leaf, _ in low.named_parameters()} | {"weight"}
        for leaf, parameter in module.named_parameters():
            others = self.elsewhere(names, leaf, parameter)
            if others and leaf not in kept:
                return f"its {leaf} is tied to {others[0]}"
        return ""


def _tensors(module: nn.Module) -> set[str]:
    return {name for named in (module.named_parameters(), module.named_buffers()) for name, _ in named}


def _state(module: nn.Module) -> str:
    """What a layer carries that a new one would lose."""
    if any(isinstance(value, Tensor) for part in module.modules() for value in vars(part).values()):
        return "its weight is no parameter: a hook computes it (weight_norm, spectral_norm, pruning)"
    if any(hasattr(part, "parametrizations") for part in module.modules()):
        return "a part of it is parametrised"
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    if any(getattr(part, kind) for part in module.modules() for kind in kinds):
        return "it has hooks, which a new layer would lose"
    if "forward" in vars(module):
        return "its forward was replaced"
    return ""


def _why_kept(name: str, module: nn.Module) -> str:
    kind = type(module).__name__
    if hasattr(module, "parametrizations"):
        return "its weight is parametrised"
    if "parametrizations" in name.split("."):
        return "part of a parametrised layer"
    if isinstance(module, STRUCTURES):
        return LOW_RANK
    for stock, structure in _BY_STOCK.items():
        if not isinstance(structure.replaces, str) and isinstance(module, structure.replaces):
            return f"{kind} is a subclass of nn.{stock.rpartition('.')[2]}, whose forward may be its own"
    return f"{kind} {NO_FORM}"
