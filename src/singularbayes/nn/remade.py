"""What a method changed in a network, in plain facts, and the same change made again in the user's own.

A posterior's network is not always the user's: dropout became drawn masks, the network was linearised, its
head was replaced. A file keeps the facts (:func:`describe`) and the tensors (:func:`tensors`); a file is read
with the network as the user has it (:func:`remake`). A network that is changed already stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from .linearized import Linearized, linearization_point, linearized_at
from .masks import MaskedDropout

__all__ = ["CHANGES", "Change", "describe", "remake", "tensors"]

Facts = Mapping[str, Any]


class Change(NamedTuple):
    """A kind of change: the facts of one changed module, if it is one; and the module made again."""

    describe: Callable[[nn.Module], Facts | None]
    remake: Callable[[nn.Module, Facts, nn.Parameter], nn.Module]


def _mask(module: nn.Module) -> Facts | None:
    if not isinstance(module, MaskedDropout):
        return None
    return {"shape": list(module.mask.shape), "p": module.p}


def _masked(_module: nn.Module, facts: Facts, like: nn.Parameter) -> nn.Module:
    return MaskedDropout(tuple(facts["shape"]), facts["p"], like.device, like.dtype)


def _linear(module: nn.Module) -> Facts | None:
    return {"parameters": list(linearization_point(module))} if isinstance(module, Linearized) else None


def _linearized(module: nn.Module, facts: Facts, _like: nn.Parameter) -> nn.Module:
    if isinstance(module, Linearized):
        return module
    own = dict(module.named_parameters(remove_duplicate=False))
    missing = [name for name in facts["parameters"] if name not in own]
    if missing:
        raise ValueError(f"the network does not fit this posterior: it has no {missing[0]}")
    return linearized_at(module, {name: own[name].detach() for name in facts["parameters"]})


# In the order in which they are made: a module inside another comes before it.
CHANGES: dict[str, Change] = {
    "dropout_mask": Change(_mask, _masked),
    "linearized": Change(_linear, _linearized),
}


def describe(network: nn.Module) -> list[dict[str, Any]]:
    """The changes of a network in plain types, one for each changed module."""
    found = []
    for kind, change in CHANGES.items():
        for path, module in reversed(list(network.named_modules(remove_duplicate=False))):
            facts = change.describe(module)
            if facts is not None:
                found.append({"kind": kind, "path": path, **facts})
    return found


def remake(network: nn.Module, changes: Sequence[Facts]) -> nn.Module:
    """The changes made again, in place; gives the network.

    Args:
        network: nobody else's; its values do not matter.
        changes: from :func:`describe`.

    Raises:
        ValueError: an unknown kind (a file of another version), a network without the module.
    """
    for entry in changes:
        facts = dict(entry)
        kind, path = facts.pop("kind"), facts.pop("path")
        if kind not in CHANGES:
            raise ValueError(f"unknown change of a network {kind!r}; this file comes from another version")
        try:
            module = network.get_submodule(path)
        except AttributeError:
            raise ValueError(
                f"the network does not fit this posterior: it has no module {path}; pass the network that "
                f"the model was made of"
            ) from None
        made = CHANGES[kind].remake(module, facts, next(network.parameters()))
        parent, _, leaf = path.rpartition(".")
        if path:
            setattr(network.get_submodule(parent), leaf, made)
        else:
            network = made
    return network


def tensors(network: nn.Module) -> dict[str, Tensor]:
    """Every tensor that the network's function depends on, those that a state_dict leaves out too."""
    found: dict[str, Tensor] = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    for path, module in network.named_modules():
        if isinstance(module, Linearized):
            found |= {f"{path}@{name}": tensor for name, tensor in linearization_point(module).items()}
    return found
