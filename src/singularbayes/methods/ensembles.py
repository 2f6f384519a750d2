"""Several networks from one model: starts of their own, and the fitted ones as one posterior."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized

from ..distributions import MixtureDistribution, StoredDraws
from ..mixture_posterior import MixturePosterior
from ..model import Model
from ..nn import remade
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
            stacklevel=3,
        )
    fresh = copy.copy(model)
    fresh.network = network
    return fresh


def _join(path: str, leaf: str) -> str:
    return f"{path}.{leaf}" if path else leaf


def joined(
    fitted: Sequence[Any], name: str, seed: int, settings: Mapping[str, Any]
) -> Posterior | MixturePosterior:
    """The members as one posterior, equal weights: a mixture of posteriors where one network is not enough.

    Args:
        fitted: posteriors of one model.
        name: of the ensemble's method.
        seed: of the ensemble's fit.
        settings: go into ``info["settings"]`` before the members' own, which count where both have one.
    """
    first = fitted[0]
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
    if not _differ_in_the_vector_alone(fitted):
        return MixturePosterior(fitted, [1 / len(fitted)] * len(fitted), info)
    parts = [posterior.distribution for posterior in fitted]
    if all(isinstance(part, StoredDraws) for part in parts):
        distribution: Any = StoredDraws(torch.cat([part.draws for part in parts]))
    else:
        distribution = MixtureDistribution(tuple(parts))
    return Posterior(first.network, distribution, first.likelihood, first.layout, info)


def _differ_in_the_vector_alone(fitted: Sequence[Any]) -> bool:
    """Whether one network and likelihood stand for all: what is outside the flat vector is equal."""
    if not all(isinstance(posterior, Posterior) for posterior in fitted):
        return False
    first, *others = fitted
    starts = first.likelihood.parameters
    inside = {alias for slot in first.layout.slots for alias in slot.aliases}

    def said(posterior: Posterior) -> Any:
        likelihood = posterior.likelihood
        if likelihood.parameters.keys() == starts.keys():
            likelihood = likelihood.started_at(starts)  # where learned numbers started is no part of it
        changes = remade.describe(posterior.network)
        return type(likelihood), likelihood.to_dict(), posterior.layout.to_dict(), changes

    def outside(posterior: Posterior) -> dict[str, torch.Tensor]:
        """Tensors outside the vector, counters aside."""
        found = remade.tensors(posterior.network)
        return {
            n: t for n, t in found.items() if n not in inside and (t.is_floating_point() or t.is_complex())
        }

    own = outside(first)
    return all(
        said(other) == said(first)
        and own.keys() == tensors.keys()
        and all(torch.equal(own[name], tensors[name]) for name in own)
        for other, tensors in ((other, outside(other)) for other in others)
    )
