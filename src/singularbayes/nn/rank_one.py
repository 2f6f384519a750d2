"""Rank-one multiplicative perturbations of a dense layer, and the conversion of a network's linear layers.

    W = W0 o ((1 + s)(1 + t)^T),        y = ((x o (1 + t)) W0^T) o (1 + s) + bias

``s`` and ``t`` centre on 0, where priors are symmetric: ``N(1, .1^2)`` on the factors ``1 + s`` and ``1 + t``
is ``Normal(0.1)`` on ``s`` and ``t``.

References:
    arXiv 2602.00387, section 5 (the rank-1 baseline). Dusenberry et al. 2020, arXiv 2005.07186, section 3.
    Wen et al. 2020, arXiv 2002.06715 (the same layer with several deterministic ``s`` and ``t``).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from .conversion import PART_OF_ATTENTION, Network, Place, refuse
from .factorize import put
from .factors import check_stock, fill_layer
from .rank_choice import matches, nearest

__all__ = ["RankOneLayers", "RankOneLinear", "rank_one"]


class RankOneLinear(nn.Module):
    """Linear layer with ``weight = weight0 * outer(1 + s, 1 + t)``, ``s (out,)`` and ``t (in,)``.

    It draws nothing by itself: ``RankOne`` holds a belief over ``s`` and ``t`` and trains ``weight0`` and
    ``bias`` as point estimates. Each tensor may carry a leading draws axis ``S`` (as ``functional_call`` sees
    them), any of them alone too; for an input ``(B, in)`` or ``(S, B, in)`` the output is ``(S, B, out)``.

    Args:
        in_features: size of each input row.
        out_features: size of each output row.
        bias: add a bias.
        device: as in torch.
        dtype: as in torch.

    Example:
        >>> layer = RankOneLinear(20, 10)
        >>> layer(torch.ones(4, 20)).shape, [tuple(p.shape) for p in layer.parameters()]
        (torch.Size([4, 10]), [(10, 20), (10,), (20,), (10,)])
    """

    replaces: ClassVar[type[nn.Module]] = nn.Linear

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features

        def empty(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(*shape, device=device, dtype=dtype))

        self.weight0 = empty(out_features, in_features)
        self.s, self.t = empty(out_features), empty(in_features)
        self.bias = empty(out_features) if bias else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Torch's start of weight and bias; ``s`` and ``t`` are 0."""
        bound = 1 / math.sqrt(self.in_features) if self.in_features else 0.0
        for tensor in (self.weight0, self.bias):
            if tensor is not None:
                tensor.uniform_(-bound, bound)
        self.s.zero_()
        self.t.zero_()

    @classmethod
    def from_layer(cls, layer: nn.Linear) -> RankOneLinear:
        """The same function as a stock layer, which stays as it is: ``weight0`` is its weight, ``s = t = 0``.

        Device, dtype, mode and frozen parts are kept; ``s`` and ``t`` always require a gradient.

        Raises:
            TypeError: not an ``nn.Linear``.
        """
        check_stock(cls.__name__, cls.replaces, layer)
        new = cls(layer.in_features, layer.out_features, layer.bias is not None,
                  layer.weight.device, layer.weight.dtype)  # fmt: skip
        with torch.no_grad():
            for own, given in ((new.weight0, layer.weight), (new.bias, layer.bias)):
                if own is not None:
                    own.copy_(given)
                    own.requires_grad_(given.requires_grad)
        return new.train(layer.training)

    @torch.no_grad()
    def to_layer(self) -> nn.Linear:
        """The stock layer with the same weight, formed once."""
        layer = nn.Linear(self.in_features, self.out_features, self.bias is not None,
                          device="meta", dtype=self.weight0.dtype)  # fmt: skip
        layer = layer.to_empty(device=self.weight0.device)
        fill_layer(layer, self.weight, self.bias, trained=self.weight0.requires_grad)
        return layer.train(self.training)

    @property
    def weight(self) -> Float[Tensor, "out in"]:
        """The dense weight, formed when asked for."""
        return self.weight0 * (1 + self.s).unsqueeze(-1) * (1 + self.t).unsqueeze(-2)

    def forward(self, x: Tensor) -> Tensor:
        if self.s.dim() == self.t.dim() == 1 and (self.bias is None or self.bias.dim() == 1):
            return self.perturbed(x, self.s, self.t, self.bias)
        bias = None if self.bias is None else _before_features(self.bias)
        return self.perturbed(x, _before_features(self.s), _before_features(self.t), bias)

    def perturbed(self, x: Tensor, s: Tensor, t: Tensor, bias: Tensor | None) -> Tensor:
        """The layer with other ``s``, ``t``, ``bias``, of shapes that broadcast against output and input."""
        h = (x * (1 + t)) @ self.weight0.mT if self.weight0.dim() > 2 else F.linear(x * (1 + t), self.weight0)
        return h * (1 + s) if bias is None else torch.addcmul(bias, h, 1 + s)

    def extra_repr(self) -> str:
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, bias={self.bias is not None}"


def _before_features(draws: Tensor) -> Tensor:
    """``(S, features)`` as ``(S, 1, features)``; one vector for all draws stays as it is."""
    return draws.unsqueeze(-2) if draws.dim() == 2 else draws


@dataclass(frozen=True)
class RankOneLayers:
    """What ``rank_one`` replaced, and what stayed and why; printed as a list."""

    replaced: tuple[str, ...]
    kept: Mapping[str, str]

    def __str__(self) -> str:
        lines = [f"{name or '(root)'}: rank-one" for name in self.replaced]
        return "\n".join(lines + [f"{name or '(root)'}: kept, {why}" for name, why in self.kept.items()])


def rank_one(network: nn.Module, layers: str | Sequence[str] = "*") -> nn.Module:
    """A copy of ``network`` with rank-one perturbations of chosen linear layers; the original is untouched.

    The copy computes the same function: weights are kept and the perturbations start at 0. A layer that
    stands in several places stays one layer, and patterns match any of its names.

    Args:
        network: any module; a bare ``nn.Linear`` works too.
        layers: name patterns of the linear layers to perturb. Layers that cannot be replaced without changing
            what the network does (tied, parametrised, with hooks) are kept.

    Returns:
        The copy. Its attribute ``rank_one_layers`` says what was replaced, and what stayed and why.

    Raises:
        TypeError: not a module.
        ValueError: a pattern that matches no linear layer (convolution and recurrent layers have no rank-one
            form here), a lazy or compiled network.

    Example:
        >>> net = rank_one(nn.Sequential(nn.Linear(44, 128), nn.ReLU(), nn.Linear(128, 1)), layers="0")
        >>> print(net.rank_one_layers)
        0: rank-one
        2: kept, no pattern matches
    """
    refuse(network)
    known = Network(network, random=False)
    places = _places(known)
    patterns = [layers] if isinstance(layers, str) else list(layers)
    kept = {place.key: why for place in places if (why := _why_kept(known, place))}
    chosen: set[str] = set()
    for pattern in patterns:
        hits = {place.key for place in places if matches(pattern, place.names)}
        if not hits - set(kept):
            raise ValueError(_no_hit(pattern, places, hits, kept))
        chosen |= hits - set(kept)
    kept |= {place.key: "no pattern matches" for place in places if place.key not in chosen | set(kept)}
    result = copy.deepcopy(network)
    olds = {name: result.get_submodule(name) for name in chosen}  # all, before the first is replaced
    for place in places:
        old = olds.get(place.key)
        if isinstance(old, nn.Linear):
            result = put(result, place.names, RankOneLinear.from_layer(old))
    order = [place.key for place in places]
    ordered = {name: kept[name] for name in order if name in kept}
    report = RankOneLayers(tuple(name for name in order if name in chosen), ordered)
    result.rank_one_layers = report  # type: ignore[assignment]
    return result


def _places(known: Network) -> list[Place]:
    """Every module with parameters of its own, once."""
    found = []
    for name, module in known.modules.items():
        holds = next(module.parameters(recurse=False), None) is not None
        if known.first[id(module)] == name and (holds or isinstance(module, nn.Linear)):
            found.append(known.places.get(name) or Place((name,), module, None, PART_OF_ATTENTION))
    return found


def _why_kept(known: Network, place: Place) -> str:
    layer = place.module
    if isinstance(layer, RankOneLinear):
        return "rank-one already"
    if not isinstance(layer, nn.Linear):
        return f"{type(layer).__name__}: only nn.Linear layers have a rank-one form here"
    if place.reason:
        return place.reason
    for leaf, parameter in layer.named_parameters(recurse=False):
        others = known.elsewhere(place.names, leaf, parameter)
        if others:
            return f"its {leaf} is tied to {others[0]}"
    return ""


def _no_hit(pattern: str, places: Sequence[Place], hits: set[str], kept: Mapping[str, str]) -> str:
    start = f"pattern {pattern!r} matches no linear layer that can be made rank-one"
    if hits:
        name = min(hits)
        return f"{start}; {name or 'the network'} stays: {kept[name]}. Use MeanField for a belief about it"
    names = [name for place in places if isinstance(place.module, nn.Linear) for name in place.names]
    return f"{start}; {nearest(pattern, names) if names else 'nearest names: none, it has no nn.Linear'}"
