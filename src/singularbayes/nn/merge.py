"""The inverse of ``factorize``: stock layers that hold the weights which the factors stand for.

    weight = A diag(s) B^T,   formed once

The result needs nothing of this library: its state dict has torch's names and loads into the network as it
was before ``factorize``.
"""

from __future__ import annotations

import copy
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..random import forked
from .conversion import refuse
from .embedding import LowRankEmbedding
from .factorize import put
from .linear import LowRankLinear
from .linearized import Linearized
from .nested import keep_off
from .pretrained import weight_ties
from .random_feature_head import RandomFeatureHead
from .references import plain_references

__all__ = ["Mergeable", "merge", "merge_own"]


@runtime_checkable
class Mergeable(Protocol):
    """A belief about a network that can be put into stock layers: a ``Posterior``."""

    def merged(self, draw: Float[Tensor, "D"] | None = None) -> nn.Module:
        """One of its functions as a network of stock layers."""
        ...


_TAKES = "merge takes a network or a posterior"


def merge(source: nn.Module | Mergeable, draw: Float[Tensor, "D"] | None = None) -> nn.Module:
    """A copy of a network with stock layers in the place of low-rank ones; the original is untouched.

    Ties come back: layers that share their factors share the weight. A network without low-rank layers is
    copied. A posterior is merged at its mean, or at one draw.

    An ``nn.TransformerEncoder`` with low-rank attention comes back with torch's nested path off, as it was
    while its attention was low-rank, so that it gives at padded positions what the low-rank network gives.

    Args:
        source: any module (a bare layer works too), or a posterior.
        draw: of a posterior, a row of ``posterior.draw(n)``; see :meth:`.Posterior.merged`.

    Raises:
        TypeError: neither a module nor a posterior; a ``VariationalModule`` or its network, whose weights are
            those of the last draw: merge its ``posterior()``.
        ValueError: a compiled network, a low-rank layer with hooks (they would be lost) or in a plain list,
            a draw beside a network, a draw of dropout masks, which no stock layer does.

    Example:
        >>> low = LowRankLinear(20, 10, rank=3)
        >>> merge(low), torch.equal(merge(low).weight, low.weight)
        (Linear(in_features=20, out_features=10, bias=True), True)
    """
    if isinstance(source, nn.Module):
        if draw is not None:
            raise ValueError("a draw belongs to a posterior: merge(posterior, draw)")
        _refuse_variational(source)
        refuse(source)
        _refuse_entangled(source)
        return merge_own(copy.deepcopy(source))
    if isinstance(source, Mergeable):
        return source.merged(draw)
    raise TypeError(f"{_TAKES}, got {type(source).__name__}")


def _refuse_variational(network: nn.Module) -> None:
    """A module that holds a belief, or the network that it draws into: plain tensors as parameters."""
    for module in network.modules():
        own = module._parameters  # noqa: SLF001 - where drawn weights are put
        holds = callable(getattr(module, "posterior", None)) and {"mean", "rho"} <= own.keys()
        drawn = any(value is not None and not isinstance(value, nn.Parameter) for value in own.values())
        if holds or drawn:
            raise TypeError(f"{_TAKES}; for a VariationalModule write sb.merge(module.posterior())")


def _refuse_entangled(network: nn.Module) -> None:
    references = plain_references(network)
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    for name, module in network.named_modules():
        if hasattr(module, "to_layer") and any(getattr(module, kind) for kind in kinds):
            raise ValueError(f"{name or 'the network'} has hooks, which the stock layer would lose; remove "
                             f"them first")  # fmt: skip
        if hasattr(module, "to_layer") and id(module) in references:
            raise ValueError(
                f"{references[id(module)]}, a plain attribute, refers to {name or 'the network'} and would "
                f"keep the low-rank layer; use nn.ModuleList or nn.ModuleDict"
            )


def merge_own(network: nn.Module) -> nn.Module:
    """:func:`merge` in place, for a network that is nobody else's; gives the network."""
    if any(isinstance(module, Linearized) for module in network.modules()):
        raise ValueError(
            "a linearised network is no network of stock layers; posterior.functions(draws, x) gives its "
            "outputs"
        )
    if any(isinstance(module, RandomFeatureHead) for module in network.modules()):
        raise ValueError(
            "a head of random features (SNGP) is no stock layer; save the posterior, or deploy its network "
            "as it is: posterior.functions(draws, x) gives its outputs"
        )
    found: dict[int, list[str]] = {}
    for name, module in network.named_modules(remove_duplicate=False):
        if hasattr(module, "to_layer"):
            found.setdefault(id(module), []).append(name)
    keep_off(network)  # while it can be seen
    modules = [(names, network.get_submodule(names[0])) for names in found.values()]
    inside = {id(part) for _, module in modules for part in module.modules() if part is not module}
    weights: dict[Any, nn.Parameter] = {}
    with forked(0, "merge"):  # of a user's own structure, the constructor may draw
        for names, low in modules:
            if id(low) in inside:
                continue
            stock = low.to_layer()  # type: ignore[operator]
            _restore_ties(low, stock, weights)
            network = put(network, names, stock)
    for module in network.modules():
        for note in ("factorization", "rank_one_layers"):  # of what was put in, no longer true
            vars(module).pop(note, None)
    weight_ties(network)
    return network


def _restore_ties(low: nn.Module, stock: nn.Module, weights: dict[Any, nn.Parameter]) -> None:
    """One weight for layers that share their factors; biases stay the parameters that they are."""
    held = dict(low.named_parameters())
    for name, _ in list(stock.named_parameters()):
        if name in held:
            path, _, leaf = name.rpartition(".")
            setattr(stock.get_submodule(path), leaf, held[name])
    if "weight" in dict(stock.named_parameters(recurse=False)) and {"A", "B"} <= held.keys():
        kind = LowRankLinear if type(low) is LowRankEmbedding else type(low)
        key = (kind, *(id(held[factor]) for factor in ("A", "B", "s") if factor in held))
        weight = weights.setdefault(key, stock.weight)  # type: ignore[arg-type]
        same = weight is stock.weight or weight.is_meta or torch.equal(weight, _tensor(stock.weight))
        if same:  # else each does what it did, and the tie is lost
            stock.weight = weight


def _tensor(value: Tensor | nn.Module) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(f"expected a weight, got {type(value).__name__}")
    return value
