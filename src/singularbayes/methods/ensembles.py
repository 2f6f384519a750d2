"""Several networks from one model: starts of their own, and the fitted ones as one posterior."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized

from ..distributions import MixtureDistribution, StoredDraws
from ..model import Model
from ..posterior import Posterior
from ..random import forked

__all__ = ["joined", "reinitialized"]


def reinitialized(model: Model, seed: int) -> Model:
    """The same model, its trained layers drawn anew by their ``reset_parameters``; frozen tensors are kept.

    Warns:
        UserWarning: modules with parameters of their own that cannot be reset (named); they keep their start.
    """
    network = model.copy_network()
    trained = {alias for slot in model.layout.of_kind("belief", "point") for alias in slot.aliases}
    stuck, renewed = [], set(trained)
    with forked(seed, "init", device=model.device), torch.no_grad():
        for path, module in reversed(
            list(network.named_modules())
        ):  # a parent's start overrides its children's
            names = {_join(path, leaf) for leaf, _ in module.named_parameters()}
            if not names & trained or isinstance(module, ParametrizationList):
                continue
            reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
            own = {_join(path, leaf) for leaf, _ in module.named_parameters(recurse=False)} & trained
            if is_parametrized(module) or (not callable(reset) and own):
                stuck.append(path or type(module).__name__)
            elif callable(reset):
                reset()
                if own:
                    renewed |= {_join(path, leaf) for leaf, _ in module.named_buffers(recurse=False)}
        before = model.network.state_dict()
        for name, tensor in network.state_dict().items():
            if name not in renewed:
                tensor.copy_(before[name])
    if stuck:
        warnings.warn(
            f"{', '.join(reversed(stuck))} cannot be drawn anew (no reset_parameters(), or a "
            f"parametrization): every member starts from the same values there",
            stacklevel=2,
        )
    fresh = copy.copy(model)
    fresh.network = network
    return fresh


def _join(path: str, leaf: str) -> str:
    return f"{path}.{leaf}" if path else leaf


def joined(fitted: Sequence[Posterior], name: str, seed: int, settings: Mapping[str, Any]) -> Posterior:
    """The members as one posterior, equal weights.

    Args:
        fitted: of one layout.
        name: of the ensemble's method.
        seed: of the ensemble's fit.
        settings: go into ``info["settings"]`` before the members' own, which count where both have one.
    """
    parts = [posterior.distribution for posterior in fitted]
    if all(isinstance(part, StoredDraws) for part in parts):
        distribution: Any = StoredDraws(torch.cat([part.draws for part in parts]))
    else:
        distribution = MixtureDistribution(tuple(parts))
    first = fitted[0]
    moved = _moved_outside(fitted)
    if moved:
        warnings.warn(
            f"{', '.join(moved)} moved in training, differs between members and is no part of the flat "
            f"vector: every member is read with the first one's",
            stacklevel=3,
        )
    info = {
        "method": name,
        "numbers": sum(posterior.info.get("numbers", 0) for posterior in fitted),
        "seconds": sum(posterior.info.get("seconds", 0.0) for posterior in fitted),
        "epochs": max(posterior.info.get("epochs", 0) for posterior in fitted),
        "seed": seed,
        "num_data": first.info.get("num_data"),
        "settings": {**settings, **first.info.get("settings", {})},
        "history": [posterior.info.get("history") for posterior in fitted],
    }
    return Posterior(first.network, distribution, first.likelihood, first.layout, info)


def _moved_outside(fitted: Sequence[Posterior]) -> list[str]:
    """Tensors outside the flat vector, counters aside, that differ between members."""
    first = fitted[0]
    inside = {name for slot in first.layout.slots for name in slot.aliases}
    states = [dict(posterior.network.named_buffers()) for posterior in fitted]
    return [
        name
        for name, tensor in states[0].items()
        if name not in inside
        and tensor.is_floating_point()
        and not all(torch.equal(tensor, state[name]) for state in states[1:])
    ]
