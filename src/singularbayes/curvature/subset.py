"""Which tensors of a model a curvature is taken in: patterns of names, or the last layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils.parametrize import is_parametrized

from ..data import batch_size_of
from ..functions import call
from ..model import Model
from ..nn.linear import LowRankLinear
from ..parameters import Patterns, Slot, match_names, owner
from .expansion import Expansion

__all__ = ["Chosen", "LastLayer", "choose", "expand"]

Batches = Callable[[], Iterable[tuple[Any, Tensor]]]


@dataclass(frozen=True)
class LastLayer:
    """The layer whose result is the network's output, stock or factorised; found by running two rows.

    Not by its name or place: a layer that is called last but whose result is changed afterwards (scaled,
    rectified, added to) is no last layer.
    """


@dataclass(frozen=True)
class Chosen:
    """The tensors, and the last layer if they all lie in it.

    Attributes:
        slots: believed tensors, in the order of the flat vector.
        last: path of the layer that makes the output, or ``None``.
        event: shape of one row of the network's output.
    """

    slots: tuple[Slot, ...]
    last: str | None
    event: tuple[int, ...]

    def linear(self, network: nn.Module) -> bool:
        """Whether the outputs are linear in the chosen tensors, so that a linearisation changes nothing."""
        if self.last is None:
            return False
        layer = network.get_submodule(self.last)
        leaves = {_leaf(slot, self.last) for slot in self.slots}
        if type(layer) is LowRankLinear:
            return len(leaves & {"A", "B", "s"}) <= 1
        return type(layer) is nn.Linear and not is_parametrized(layer)


def choose(model: Model, network: nn.Module, subset: Patterns | LastLayer, rows: Any) -> Chosen:
    """Resolve a subset, before any work.

    Args:
        model: whose belief is chosen from.
        network: a private copy of its network, in eval mode.
        subset: patterns of names (any alias), or ``LastLayer()``.
        rows: one or two rows of input.

    Raises:
        ValueError: patterns that match no believed parameter; a batch normalisation; no last layer.
    """
    with torch.no_grad():
        event = tuple(call(network, rows).shape[1:])
    believed = model.layout.of_kind("belief")
    found, reason = _find(network, rows)
    if isinstance(subset, LastLayer):
        if found is None:
            raise ValueError(
                f"LastLayer(): {reason}; name the parameters by patterns, such as subset='head.*'"
            )
        slots = tuple(s for s in believed if any(_inside(alias, found) for alias in s.aliases))
        if not slots:
            raise ValueError(
                f"LastLayer(): {found or 'the network'} makes the output, and none of its parameters is "
                f"believed about (frozen, or chosen by deterministic=); name others by patterns, such as "
                f"subset={believed[-1].name!r}"
            )
        tied = [alias for slot in slots for alias in slot.aliases if not _inside(alias, found)]
        if tied:
            raise ValueError(
                f"LastLayer(): {found or 'the network'} makes the output, but its weight is tied to "
                f"{tied[0]}, which also acts before it; use subset='*', or untie them"
            )
    else:
        slots = _matched(model, subset, believed)
    _refuse_batch_norm(network, slots)
    inside = found is not None and all(_inside(alias, found) for slot in slots for alias in slot.aliases)
    return Chosen(slots, found if inside else None, event)


def _matched(model: Model, patterns: Patterns, believed: tuple[Slot, ...]) -> tuple[Slot, ...]:
    trained = model.layout.of_kind("belief", "point")
    chosen: set[str] = set()
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        names = match_names(pattern, [slot.aliases for slot in trained], "subset")
        if not names & {slot.name for slot in believed}:
            raise ValueError(
                f"subset pattern {pattern!r} matches {', '.join(sorted(names)[:3])} alone, which this model "
                f"keeps as point estimates (deterministic=, or a normalisation layer); choose among "
                f"{', '.join(slot.name for slot in believed[:3])}, ..."
            )
        chosen |= names
    if not chosen:
        raise ValueError("subset names no parameter; use '*' for all that are believed about")
    return tuple(slot for slot in believed if slot.name in chosen)


def _refuse_batch_norm(network: nn.Module, slots: tuple[Slot, ...]) -> None:
    for slot in slots:
        module, _ = owner(network, slot.name)
        if isinstance(module, _NormBase):
            raise ValueError(
                f"{slot.name} belongs to a {type(module).__name__}: its running statistics are those of the "
                f"trained weights, so no curvature in it holds for drawn ones. Leave it a point estimate: "
                f"Model(normalization=False), the default, or patterns of subset= without it"
            )


def _inside(name: str, path: str) -> bool:
    return not path or name.startswith(f"{path}.")


def _leaf(slot: Slot, path: str) -> str:
    name = next(alias for alias in slot.aliases if _inside(alias, path))
    return name.removeprefix(f"{path}.") if path else name


def _find(network: nn.Module, rows: Any) -> tuple[str | None, str]:
    """Path of the layer that makes the output, or why there is none."""
    seen: list[tuple[str, Tensor, Tensor, int]] = []  # held, so that no other tensor gets their memory
    layers = {
        path: module
        for path, module in network.named_modules()
        if any(True for _ in module.parameters(recurse=False))
    }

    def watch(path: str) -> Any:
        def note(_layer: nn.Module, inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor) and len(inputs) == 1 and isinstance(inputs[0], Tensor):
                seen.append((path, inputs[0], output, output._version))  # noqa: SLF001

        return note

    handles = [module.register_forward_hook(watch(path)) for path, module in layers.items()]
    try:
        with torch.no_grad():
            output = call(network, rows)
    finally:
        for handle in handles:
            handle.remove()
    for path, features, made, version in reversed(seen):
        untouched = made._version == version  # noqa: SLF001 - counts what is written in place
        if untouched and _same(made, output):
            if sum(other == path for other, *_ in seen) > 1:
                return None, f"{path or 'the network'} makes the output, but is called several times"
            if len(features) != batch_size_of(rows):
                return None, f"{path} makes the output, but the first axis of its input is not the batch"
            return path, ""
    last = f" (called last: {seen[-1][0] or 'the network itself'})" if seen else ""
    return None, f"no layer's result is the network's output{last}"


def _same(made: Tensor, output: Tensor) -> bool:
    """Whether the output is a layer's result in another shape, by its memory.

    Equal values would not do: a rectifier after the layer changes no value that is positive.
    """
    shares = made.untyped_storage().data_ptr() == output.untyped_storage().data_ptr()
    return shares and made.numel() == output.numel() and torch.equal(made.reshape(-1), output.reshape(-1))


class _Shaped(nn.Module):
    """A last layer whose result the network only reshapes."""

    def __init__(self, layer: nn.Module, event: tuple[int, ...]) -> None:
        super().__init__()
        self.layer, self.event = layer, event

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).reshape(len(x), *self.event)


def expand(model: Model, network: nn.Module, chosen: Chosen, batches: Batches) -> Expansion:
    """The expansion of the SUM NLL in the chosen tensors, at the weights of a private copy.

    Of a last layer the rest of the network is run once for each batch, without derivatives, and the layer
    itself stands for the network.
    """
    numbers = {name: number.detach().to(model.device) for name, number in model.likelihood.parameters.items()}
    if chosen.last is None:
        places = tuple(slot.name for slot in chosen.slots)
        return Expansion(network, chosen.slots, places, model.likelihood, numbers, batches)
    layer = network.get_submodule(chosen.last)
    places = tuple(_leaf(slot, chosen.last) for slot in chosen.slots)

    def features() -> Iterator[tuple[Tensor, Tensor]]:
        for x, y in batches():
            yield _features(network, layer, x), y

    with torch.no_grad():
        x, _ = next(iter(features()))
        same = tuple(layer(x[:1]).shape[1:]) == chosen.event
    head = layer if same else _Shaped(layer, chosen.event)
    places = places if same else tuple(f"layer.{place}" for place in places)
    return Expansion(head, chosen.slots, places, model.likelihood, numbers, features)


@torch.no_grad()
def _features(network: nn.Module, layer: nn.Module, x: Any) -> Tensor:
    found: list[Tensor] = []
    handle = layer.register_forward_pre_hook(lambda _layer, inputs: found.append(inputs[0].clone()))
    try:
        call(network, x)
    finally:
        handle.remove()
    return found[-1]
