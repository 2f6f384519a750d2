"""Networks that were trained before: posteriors or modules of the model's architecture, as rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..distributions import MixtureDistribution, StoredDraws
from ..model import Model
from ..parameters import owner
from ..posterior import Posterior

__all__ = ["given_rows"]


def given_rows(model: Model, given: Any, what: str) -> Float[Tensor, "M D"]:
    """The trained networks as rows of the model's flat vector, on its device.

    Args:
        model: whose layout they must have.
        given: a posterior (one row for each network that it holds; of a continuous one the mean), a network,
            or a list or tuple of them. Only a posterior holds a learned noise level.
        what: their name in messages, in the singular.

    Raises:
        TypeError: something else.
        ValueError: none; parameters of other names or shapes; frozen parts that differ from the model's; bare
            networks for a likelihood with learned numbers.
    """
    several = list(given) if isinstance(given, list | tuple) else [given]
    if not several:
        raise ValueError(f"got no {what}; expected trained networks, or posteriors of them")
    rows = []
    for number, one in enumerate(several):
        name = what if len(several) == 1 else f"{what} {number}"
        if isinstance(one, Posterior):
            rows.append(_of_posterior(model, one, name))
            _check_frozen(model, one.network, name)
        elif isinstance(one, nn.Module):
            rows.append(_of_network(model, one, name))
            _check_frozen(model, one, name)
        else:
            raise TypeError(
                f"{name} is a {type(one).__name__}; expected a posterior or a network (torch.nn.Module), or "
                f"a list of them"
            )
    return torch.cat([part.to(device=model.device, dtype=model.dtype) for part in rows])


def _of_posterior(model: Model, posterior: Posterior, name: str) -> Tensor:
    slots = {slot.name: slot for slot in posterior.layout.slots if slot.kind != "mask"}
    both = (slots.values(), model.layout.slots)
    theirs, ours = ({slot.name: (slot.shape, slot.kind) for slot in part} for part in both)
    _compare(theirs, ours, name)
    rows = _networks(posterior.distribution).detach()
    # by name: modules registered in another order lie elsewhere
    places = [slots[own.name] for own in model.layout.slots]
    return torch.cat([rows[:, place.start : place.stop] for place in places], 1)


def _networks(distribution: Any) -> Tensor:
    """One row for each network that a distribution holds."""
    if isinstance(distribution, StoredDraws):
        return distribution.draws
    if isinstance(distribution, MixtureDistribution):
        return torch.cat([_networks(part) for part in distribution.components])
    return distribution.mean.unsqueeze(0)


def _of_network(model: Model, network: nn.Module, name: str) -> Tensor:
    learned = model.layout.of_kind("likelihood")
    if learned:
        raise ValueError(
            f"the likelihood learns {learned[0].name}, which {name}, a bare network, does not hold; give "
            f"posteriors of the networks, or fix the noise: Gaussian(noise=...)"
        )
    ours = {s.name: (s.shape, s.kind) for s in model.layout.slots}
    tensors = {**dict(network.named_parameters(remove_duplicate=False)), **dict(network.named_buffers())}
    theirs = {key: (tuple(tensors[key].shape), kind) for key, (_, kind) in ours.items() if key in tensors}
    _compare(theirs, ours, name)
    for slot in model.layout.of_kind("belief", "point"):
        for alias in slot.aliases[1:]:
            if alias in tensors and not torch.equal(tensors[alias], tensors[slot.name]):
                raise ValueError(
                    f"{name}: {slot.name} and {alias} differ, and are one parameter in the model"
                )
    return model.layout.flatten(network, model.likelihood.parameters).unsqueeze(0)


def _compare(theirs: Mapping[str, Any], ours: Mapping[str, Any], name: str) -> None:
    if theirs == ours:
        return
    for key in [*ours, *theirs]:
        if theirs.get(key) != ours.get(key):
            got, expected = (_described(part.get(key)) for part in (theirs, ours))
            raise ValueError(
                f"{name} has another layout than the model: {key} is {got}, expected {expected}. Give "
                f"networks of one architecture, factorised the same way, with the same patterns of what is "
                f"believed about"
            )


def _described(entry: tuple[tuple[int, ...], str] | None) -> str:
    return "missing" if entry is None else f"{entry[1]} of shape {entry[0]}"


def _check_frozen(model: Model, network: nn.Module, name: str) -> None:
    """What lies outside the flat vector is one for all draws, so it must be equal."""
    inside = {alias for slot in model.layout.slots for alias in slot.aliases}
    own = {**dict(model.network.named_parameters()), **dict(model.network.named_buffers())}
    for key, tensor in own.items():
        if key in inside or not tensor.is_floating_point():
            continue
        try:
            other = getattr(*owner(network, key))
        except AttributeError:
            other = None
        if other is None or not torch.equal(other.detach().to(tensor), tensor.detach()):
            raise ValueError(
                f"{key} is frozen, and differs between the model's network and {name}: draws would be read "
                f"with the wrong one. Give networks that share their frozen parts"
            )
