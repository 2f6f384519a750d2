"""``factorize``: a copy of a network whose layers are low-rank, and a list of what changed.

References:
    arXiv 2602.00387, section 4 (which layers), appendix (LR-SVD start).
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from torch import nn

from ..random import forked
from .changes import Unit
from .conversion import of_layer
from .embedding import LowRankEmbedding
from .nested import switch_off
from .plan import Layers, Plan, prepare
from .pretrained import factor_ties, tied_names
from .rank_choice import Rank, reads_weights

__all__ = ["factorize", "put"]


def factorize(
    network: nn.Module,
    rank: Rank,
    *,
    layers: Layers = "*",
    init: Literal["random", "svd"] = "random",
    diagonal: bool = False,
    only_where_smaller: bool = False,
    seed: int = 0,
) -> nn.Module:
    """A copy of ``network`` with low-rank layers; the original is untouched.

    Linear layers (GPT-2's ``Conv1D`` too), embeddings, convolutions, LSTM, GRU and multi-head attention are
    replaced, alone or inside torch's encoder and decoder layers and Hugging Face models. A layer that stands
    in several places stays one layer, and linear layers and embeddings that share their weight share their
    factors. Layers that cannot be replaced without changing what the network does (parametrised, hooked, tied
    to what stays, subclasses, read by their parent, ...) are kept, with the reason in the list.

    Patterns are shell patterns of the names of layers (any of them), or of matrices by torch's names:
    ``"rnn"`` or ``"rnn.weight_ih_l0"``.

    Args:
        network: any module; a bare layer works too.
        rank: one rank for everything (cut to the smaller side of matrices that are narrower, and said so);
            ``Energy(share)``, by the singular values of the present weights; or ``{pattern: either}``: the
            first pattern that matches counts, layers that match none stay; a rank that is too large is an
            error, and so is a pattern that is never used because earlier ones take its layers.
            ``{"rnn.weight_ih*": 14, "rnn.weight_hh*": 20, "head": 1}`` is the paper's LSTM.
        layers: pattern or patterns of the layers that may be replaced.
        init: ``"random"`` starts factors and biases anew (a bias that is tied to another stays), ``"svd"``
            from the present ones.
        diagonal: put a parameter ``s`` between the factors, ``W = A diag(s) B^T``.
        only_where_smaller: keep a layer whose factors would have no fewer numbers than it has.
        seed: seed of the random start.

    Returns:
        The copy. Its attribute ``factorization`` prints what changed, what stayed and why, with parameter
        counts, and for ``"svd"`` the share of its energy that each matrix keeps;
        :func:`.plan` gives the same list without a copy.

    Raises:
        TypeError: not a module.
        ValueError: a rank outside ``1..min(m, n)`` given by pattern, a pattern that matches nothing, a layer
            of which only some matrices have a rank, a lazy layer, a compiled network, weights without finite
            values where they are needed, an unknown ``init``.

    Warns:
        UserWarning: layers that their rank makes no smaller; nothing that ``only_where_smaller`` leaves to
            replace; ``Energy``, which reads the weights, with a start that throws them away.

    Example:
        >>> net = factorize(
        ...     nn.Sequential(nn.Linear(44, 128), nn.ReLU(), nn.Linear(128, 2)), rank={"0": 15, "2": 1}
        ... )
        >>> net.factorization.before, net.factorization.after
        (6018, 2840)
    """
    what = prepare(network, rank, layers, init, diagonal, only_where_smaller)
    if not what.units:
        warnings.warn("no layer is smaller at this rank: everything stays as it is", stacklevel=2)
    elif init == "random" and reads_weights(rank):
        warnings.warn(
            "Energy chose ranks by the present weights, and init='random' throws these away: the factors "
            "start anew. init='svd' starts from the weights",
            stacklevel=2,
        )
    if what.wasted:
        listed = ", ".join(what.wasted[:3]) + _more(len(what.wasted) - 3)
        without = "a rank for none of them" if isinstance(rank, Mapping) else "{pattern: rank} for the others"
        warnings.warn(
            f"the rank saves no parameters in {listed}; only_where_smaller=True, or {without}, leaves layers "
            f"as they are",
            stacklevel=2,
        )
    device = next((parameter.device for parameter in network.parameters()), None)
    with forked(seed, "factorize", device=device):
        result = copy.deepcopy(network)
        ties = tied_names(result)
        for name in what.encoders:
            switch_off(result.get_submodule(name))
        olds = {
            place.key: result.get_submodule(place.key)
            for unit in what.units.values()
            for place in unit.places
        }  # all, before the first is replaced
        for key, unit in what.units.items():
            result = _replace(result, unit, olds, what, key, init, diagonal)
        factor_ties(ties)
    result.factorization = what.factorization  # type: ignore[assignment]
    return result


def _more(number: int) -> str:
    return f" and {number} more" if number > 0 else ""


def _replace(
    result: nn.Module,
    unit: Unit,
    olds: Mapping[str, nn.Module],
    what: Plan,
    key: str,
    init: Literal["random", "svd"],
    diagonal: bool,
) -> nn.Module:
    """Put the low-rank layers of a unit in all their places; gives the network."""
    ranks = of_layer(what.ranks[key])
    head: Any = None
    for place in unit.places:
        old = olds[place.key]
        start = init if head is None else "random"  # the factors are the first layer's
        new = place.structure.from_layer(old, ranks, init=start, diagonal=diagonal)
        if head is not None:
            new.A, new.B, new.s = head.A, head.B, head.s
        if len({type(other.module) for other in unit.places}) > 1 and isinstance(new, LowRankEmbedding):
            new.padding_idx = None  # a tied head trains that row too, and torch looks it up as it is
        head = new if head is None else head
        _keep_parameters(place.module, old, new, what.owners, all_of_them=init == "svd")
        result = put(result, place.names, new)
    return result


def _keep_parameters(
    original: nn.Module,
    old: nn.Module,
    new: nn.Module,
    owners: Mapping[int, Sequence[str]],
    all_of_them: bool,
) -> None:
    """Parameters that both layers have by name (biases) stay the old one's: those that are tied, or all."""
    held = dict(old.named_parameters())
    originals = dict(original.named_parameters())
    for name, _ in list(new.named_parameters()):
        if name in held and (all_of_them or len(owners[id(originals[name])]) > 1):
            path, _, leaf = name.rpartition(".")
            setattr(new.get_submodule(path), leaf, held[name])


def put(network: nn.Module, names: Sequence[str], layer: nn.Module) -> nn.Module:
    """Put a layer in all its places; gives the network, which is the layer itself where it is bare."""
    for name in names:
        parent, _, leaf = name.rpartition(".")
        if not leaf:
            return layer
        setattr(network.get_submodule(parent), leaf, layer)
    return network
