"""Hugging Face models tie weights by name: the names follow the factors, and come back.

A ``PreTrainedModel`` lists its ties as ``{"lm_head.weight": "transformer.wte.weight"}`` in
``_tied_weights_keys`` (the class) and ``all_tied_weights_keys`` (the instance). ``tie_weights()`` and
``save_pretrained`` go by them, so a model whose tied layers hold factors lists the factors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

__all__ = ["factor_ties", "tied_names", "weight_ties"]

_KEYS, _ALL = "_tied_weights_keys", "all_tied_weights_keys"
_FACTORS = ("A", "B", "s")


def _models(network: nn.Module) -> Iterator[Any]:
    for module in network.modules():
        if isinstance(getattr(module, _ALL, None), dict) and hasattr(
            module, "get_expanded_tied_weights_keys"
        ):
            yield module


def tied_names(network: nn.Module) -> list[tuple[Any, dict[str, str]]]:
    """Every model inside, with the ties of its own, as full names; to be read before layers are replaced."""
    return [(model, model.get_expanded_tied_weights_keys(all_submodels=False)) for model in _models(network)]


def factor_ties(before: list[tuple[Any, dict[str, str]]]) -> None:
    """List the factors where a tied weight is now a product of them; models are written to."""
    for model, own in before:
        names = _to_factors(model, own)
        if names != own:
            vars(model)[_KEYS] = names  # the class keeps its own
        setattr(model, _ALL, _to_factors(model, getattr(model, _ALL)))


def _to_factors(model: nn.Module, ties: dict[str, str]) -> dict[str, str]:
    names: dict[str, str] = {}
    for target, source in ties.items():
        path, _, leaf = target.rpartition(".")
        held = dict(model.get_submodule(path).named_parameters(recurse=False))
        if leaf == "weight" and leaf not in held and {"A", "B"} <= held.keys():
            stem = source.rpartition(".")[0]
            names |= {f"{path}.{factor}": f"{stem}.{factor}" for factor in _FACTORS if factor in held}
        else:
            names[target] = source
    return names


def weight_ties(network: nn.Module) -> None:
    """List weights again, once the stock layers are back; models are written to."""
    for model in _models(network):
        own = vars(model).get(_KEYS)
        if own and dict(_to_weights(model, own)) != own:
            del vars(model)[_KEYS]  # the class has its own
        setattr(model, _ALL, dict(_to_weights(model, getattr(model, _ALL))))


def _to_weights(model: nn.Module, ties: dict[str, str]) -> Iterator[tuple[str, str]]:
    for target, source in ties.items():
        path, _, leaf = target.rpartition(".")
        held = dict(model.get_submodule(path).named_parameters(recurse=False))
        if leaf in held:
            yield target, source
        elif leaf == _FACTORS[0]:
            yield f"{path}.weight", f"{source.rpartition('.')[0]}.weight"
