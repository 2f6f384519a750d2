"""The functions that draws stand for: one network, many weight vectors, as quickly as its modules allow.

Three ways, chosen by module type, never by trying (a refused ``vmap`` has already written BatchNorm's
counter):

* *stacked*: a plain chain of linear layers and elementwise functions (:mod:`.stacked`);
* *vmap* of ``functional_call``: any other network whose modules have batching rules;
* *loop*: recurrent layers and Hugging Face models.

They agree to 1e-5, not bitwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.utils.parametrize import ParametrizationList

from .nn.kernels import plain_attention
from .nn.linearized import Linearized, linearized_network
from .nn.outputs import call, reduce_output
from .nn.recurrence import LowRankRecurrent
from .parameters import Layout, owner
from .stacked import Workspace, evaluate_chain, is_chain

__all__ = ["Way", "call", "evaluate", "reduce_output", "way_for"]

# The fused recurrent kernels and weight_norm have no batching rule.
_LOOPED = (nn.RNNBase, nn.RNNCellBase, LowRankRecurrent, ParametrizationList)


class Way(StrEnum):
    """How the draws of a network are evaluated."""

    STACKED = "stacked"
    VMAP = "vmap"
    LOOP = "loop"


def way_for(network: nn.Module) -> Way:
    """The way for a network in eval mode, by the types of its modules."""
    if is_chain(network):
        return Way.STACKED
    for module in _parts(network):
        hugging_face = any(base.__name__ == "PreTrainedModel" for base in type(module).__mro__)
        if hugging_face or isinstance(module, _LOOPED):
            return Way.LOOP
    return Way.VMAP


def _parts(network: nn.Module) -> list[nn.Module]:
    """Its modules, and the networks that linearised ones among them stand for."""
    modules = list(network.modules())
    return [*modules, *(linearized_network(module) for module in modules if isinstance(module, Linearized))]


def evaluate(
    network: nn.Module, layout: Layout, draws: Tensor, x: Any, way: Way, workspace: Workspace | None = None
) -> Tensor:
    """Outputs ``(S, B, *event)`` of ``S`` draws ``(S, D)`` on one batch ``x``.

    The network's own tensors are read where the layout has none (frozen parameters, other buffers); its
    buffers are passed as clones, so that nothing is written to it.

    Args:
        network: in eval mode.
        layout: of the rows.
        draws: rows of the flat vector.
        x: one batch.
        way: see :func:`way_for`; a chain falls back to vmap for inputs that are not ``(B, features)``.
        workspace: memory that successive blocks share; only the stacked way uses it.
    """
    if way is Way.STACKED and isinstance(x, Tensor) and x.dim() == 2:
        views = layout.views(draws)
        slots = [slot for slot in layout.slots if slot.kind != "likelihood"]
        named = {alias: views[slot.name] for slot in slots for alias in slot.aliases}
        return evaluate_chain(network, named, x, workspace or Workspace())
    names = {place: slot.name for slot in layout.slots if slot.kind != "likelihood" for place in slot.aliases}
    names = _once(network, names)
    buffers = _once(network, dict(network.named_buffers(remove_duplicate=False)))

    def one(w: Tensor) -> Tensor:
        views = layout.views(w)
        clones = {id(buffer): buffer.clone() for buffer in buffers.values()}  # no draw sees another's
        tensors = {place: clones[id(buffer)] for place, buffer in buffers.items()}
        tensors |= {place: views[name] for place, name in names.items()}
        return reduce_output(_functional(network, tensors, x))

    with plain_attention(_parts(network)):
        if way is Way.LOOP:
            return torch.stack([one(w) for w in draws])
        return vmap(one, randomness="error")(draws)


def _once(network: nn.Module, places: Mapping[str, Any]) -> dict[str, Any]:
    """One name for each tensor of each module: torch does not put back one that it swaps twice."""
    found: dict[tuple[int, str], str] = {}
    for place in places:
        module, leaf = owner(network, place)
        found.setdefault((id(module), leaf), place)
    return {place: places[place] for place in found.values()}


def _functional(network: nn.Module, tensors: dict[str, Tensor], x: Any) -> Any:
    if isinstance(x, Mapping):
        return functional_call(network, tensors, (), dict(x), tie_weights=False)
    return functional_call(network, tensors, x if isinstance(x, tuple) else (x,), tie_weights=False)
