"""A posterior's files: :meth:`.Posterior.save` and ``load`` hand over and get its parts.

``posterior.json`` describes distribution, likelihood, layout and facts; the safetensors file that it names
holds the distribution's tensors, and what of the network's state the flat vector does not cover. No pickle.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from . import checkpoint, distributions, likelihoods
from .likelihoods import Likelihood
from .nn import remade
from .parameters import Layout, owner

__all__ = ["FORMAT", "Parts", "read", "write"]

FORMAT = 2
_STEM = "posterior"


class Parts(NamedTuple):
    """What a posterior is made of, in the order of its constructor."""

    network: nn.Module
    distribution: Any
    likelihood: Likelihood
    layout: Layout
    info: Mapping[str, Any]


def write(folder: str | Path, parts: Parts) -> None:
    """Write the parts to ``folder``, whole or not at all.

    Of a likelihood of the user's own only the name is kept: it must be handed to ``load`` again.
    """
    network, distribution, likelihood, layout, info = parts
    kind = type(likelihood).__name__
    known = likelihoods.KINDS.get(kind) is type(likelihood)
    covered = {name for slot in layout.slots for name in slot.aliases}
    state = remade.tensors(network)
    rest = {f"rest.{name}": tensor for name, tensor in state.items() if name not in covered}
    tensors = {f"distribution.{name}": t for name, t in distribution.tensors().items()}
    content = {
        "format": FORMAT,
        "library": "singularbayes",
        "distribution": distributions.describe(distribution),
        "likelihood": {"kind": kind, **likelihood.to_dict()} if known else {"own": kind},
        "layout": layout.to_dict(),
        "changes": remade.describe(network),
        "network": repr(network),
        "info": _plain(info),
    }
    checkpoint.write_pair(folder, _STEM, {**tensors, **rest}, content)


def _plain(value: Any) -> Any:
    """Plain JSON types of an info value."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def read(folder: str | Path, network: nn.Module, likelihood: Likelihood | None) -> Parts:
    """The parts that :func:`write` wrote; arguments and errors: see ``load``."""
    tensors, content = checkpoint.read_pair(folder, _STEM)
    if content.get("library") != "singularbayes" or content.get("format") not in (1, FORMAT):
        raise ValueError(
            f"{folder} holds format {content.get('format')!r}, this version reads formats 1 to {FORMAT}"
        )
    layout = Layout.from_dict(content["layout"])
    changes = content["changes"] if content["format"] == FORMAT else _masks(content["dropout"], layout)
    private = remade.remake(copy.deepcopy(network), changes)
    _check_fit(private, layout)
    _load_rest(private, _part(tensors, "rest"))
    if content.get("network") != repr(private):
        warnings.warn(
            f"the network that was saved in {folder} prints otherwise than this one: parameters fit, but an "
            f"activation or an option may differ, and then the predictions do too",
            stacklevel=3,
        )
    device = next(private.parameters()).device
    own = {name: tensor.to(device) for name, tensor in _part(tensors, "distribution").items()}
    distribution = distributions.rebuild(content["distribution"], own)
    layout.write(private, distribution.mean)
    known = _likelihood(content["likelihood"], folder) if likelihood is None else likelihood
    return Parts(private, distribution, known, layout, content["info"])


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Tensors whose names begin with ``prefix.``, without it."""
    start = f"{prefix}."
    return {name.removeprefix(start): t for name, t in tensors.items() if name.startswith(start)}


def _masks(rates: Mapping[str, float], layout: Layout) -> list[dict[str, Any]]:
    """The changes that format 1 knew: dropout layers whose masks are drawn, and their rates."""
    shapes = {slot.name: slot.shape for slot in layout.of_kind("mask")}
    return [
        {"kind": "dropout_mask", "path": path, "shape": shapes[f"{path}.mask"], "p": p}
        for path, p in rates.items()
    ]


def _check_fit(network: nn.Module, layout: Layout) -> None:
    for slot in layout.slots:
        if slot.kind == "likelihood":
            continue
        try:
            module, leaf = owner(network, slot.name)
            shape = tuple(getattr(module, leaf).shape)
        except AttributeError:
            raise ValueError(
                f"the network does not fit this posterior: it has no {slot.name}; was it factorised the "
                f"same way?"
            ) from None
        if shape != slot.shape:
            raise ValueError(
                f"the network does not fit this posterior: {slot.name} has shape {shape}, saved was "
                f"{slot.shape}"
            )


def _load_rest(network: nn.Module, rest: dict[str, Tensor]) -> None:
    """What the flat vector does not cover: frozen parameters, other buffers."""
    state = remade.tensors(network)
    unknown = [name for name, t in rest.items() if name not in state or state[name].shape != t.shape]
    if unknown:
        raise ValueError(
            f"the network does not fit this posterior: {unknown[0]} is missing or has another shape"
        )
    with torch.no_grad():
        for name, tensor in rest.items():
            state[name].copy_(tensor)


def _likelihood(content: Mapping[str, Any], folder: str | Path) -> Likelihood:
    if "own" in content:
        raise ValueError(
            f"{folder} was saved with a likelihood of your own ({content['own']}); pass it: "
            f"sb.load(folder, network, likelihood={content['own']}(...))"
        )
    fields = dict(content)
    kind = likelihoods.KINDS[fields.pop("kind")]
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()})
