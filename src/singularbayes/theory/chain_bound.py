"""The Eckart-Young bound of a whole network: a plain chain of linear layers and 1-Lipschitz activations.

Cut layer by layer from the input on, with ``x_i`` the input of layer i behind the cut layers before it:

    |mean l(f(x)) - mean l(f_r(x))| <= sum_i L (prod_{j>i} |W_j|) (mean |x_i|) s_{r_i+1}(W_i)

``|x_i|`` is the norm of all that one case of the loss sees of the layer's input: a row, or several that a
later ``nn.Flatten`` puts side by side.

Theorem 3.6 for each layer, with what is behind it as the loss, and a telescoping sum. It holds for the mean
over the given inputs; the norms behind a layer make it loose for deep chains.

References:
    arXiv 2602.00387, theorem 3.6.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor, nn

from .. import spectrum
from ..nn import merge
from .lipschitz import LipschitzLoss

__all__ = ["Chain", "NetworkBound", "network_bound"]

# |f(u) - f(v)| <= |u - v|. GELU (1.13) and SiLU (1.10) are not among them.
_ACTIVATIONS = (
    nn.ReLU,
    nn.ReLU6,
    nn.Tanh,
    nn.Sigmoid,
    nn.Softplus,  # for every beta
    nn.Hardtanh,
    nn.Softsign,
    nn.LogSigmoid,
    nn.Identity,
    nn.Flatten,
    nn.Dropout,  # off in eval
)


@dataclass(frozen=True, kw_only=True)
class NetworkBound:
    """A bound on the change of the mean loss over given inputs, in units of the loss.

    Args:
        total: of all layers together.
        layers: the part of each layer, by name.
        ranks: of each layer.
        loss: the loss it is about.
    """

    total: float
    layers: Mapping[str, float]
    ranks: Mapping[str, int]
    loss: LipschitzLoss

    def __str__(self) -> str:
        table = pd.DataFrame({"rank": self.ranks, "bound": self.layers}).rename_axis("layer").reset_index()
        lines = table.to_string(index=False, float_format=lambda value: f"{value:.4g}")
        return f"{lines}\nthe mean loss ({type(self.loss).__name__}) changes by at most {self.total:.4g}"


class Chain:
    """A plain chain read once: its linear layers, and what a cut of each costs.

    Args:
        network: an ``nn.Linear`` or an ``nn.Sequential`` (nested or not) of linear layers (low-rank ones are
            read as products) and 1-Lipschitz activations; only read.

    Raises:
        ValueError: a module that is none of these, named.
    """

    def __init__(self, network: nn.Module) -> None:
        self._parts: list[tuple[str, nn.Module]] = []
        self._collect("", merge(network).double().eval())
        self.names = [name for name, part in self._parts if isinstance(part, nn.Linear)]
        if not self.names:
            raise ValueError("the network has no linear layer: there is nothing to cut")
        self._weights = {n: p.weight.detach() for n, p in self._parts if isinstance(p, nn.Linear)}
        self._values = {name: spectrum.values(weight) for name, weight in self._weights.items()}

    def _collect(self, name: str, module: nn.Module) -> None:
        if type(module) is nn.Sequential:
            for child, part in module.named_children():
                self._collect(f"{name}.{child}".lstrip("."), part)
        elif type(module) is nn.Linear or self._is_contraction(module):
            self._parts.append((name, module))
        else:
            raise ValueError(
                f"{name or 'the network'} is a {type(module).__name__}: the bound of a whole network is "
                f"known for nn.Sequential of linear layers and 1-Lipschitz activations (ReLU, Tanh, Sigmoid, "
                f"...). For others bound one matrix with eckart_young_bound, or choose ranks by energy or "
                f"validation"
            )

    @staticmethod
    def _is_contraction(module: nn.Module) -> bool:
        if type(module) is nn.LeakyReLU:
            return abs(module.negative_slope) <= 1
        if type(module) is nn.ELU:
            return 0 <= module.alpha <= 1
        return type(module) in _ACTIVATIONS

    def limits(self) -> dict[str, int]:
        """The largest rank of each layer."""
        return {name: len(values) for name, values in self._values.items()}

    @torch.no_grad()
    def walk(
        self, x: Float[Tensor, "B *event"], loss: LipschitzLoss, rank_of: Callable[[str, Tensor], int]
    ) -> NetworkBound:
        """Go through the layers from the input on, cutting each to the rank that ``rank_of`` answers.

        Args:
            x: inputs.
            loss: with its constant.
            rank_of: given a layer's name and what each rank would add to the bound, ``(min(m, n),)``.
        """
        behind = 1.0
        downstream: dict[str, float] = {}
        for name in reversed(self.names):
            downstream[name] = behind
            behind *= float(self._values[name][0])
        h, costs, ranks = x.to(torch.float64, copy=True), {}, {}  # activations may write in place
        cases = len(nn.Sequential(*(part for _, part in self._parts))(h.clone()))
        for name, part in self._parts:
            if not isinstance(part, nn.Linear):
                h = part(h)
                continue
            radius = float(torch.linalg.vector_norm(h.reshape(cases, -1), dim=1).mean())
            tail = torch.cat([self._values[name][1:], h.new_zeros(1)])
            added = loss.lipschitz * downstream[name] * radius * tail
            ranks[name] = rank_of(name, added)
            costs[name] = float(added[ranks[name] - 1])
            weight, rank = self._weights[name], ranks[name]
            cut = weight if rank == min(weight.shape) else spectrum.truncated(weight, rank)
            h = nn.functional.linear(h, cut, part.bias)
        return NetworkBound(total=sum(costs.values()), layers=costs, ranks=ranks, loss=loss)


def network_bound(
    network: nn.Module, ranks: Mapping[str, int], x: Float[Tensor, "B *event"], loss: LipschitzLoss
) -> NetworkBound:
    """How much the mean loss over ``x`` can change when layers of a plain chain are cut to lower ranks.

    Args:
        network: see :class:`Chain`; only read.
        ranks: of layers by name; layers that are not named stay as they are.
        x: inputs of the network. For the expectation over a distribution take many: the mean norms are
            estimates then.
        loss: with its Lipschitz constant in the network's output.

    Raises:
        ValueError: a network that is no plain chain, an unknown layer, a rank outside ``1..min(m, n)``.

    Example:
        >>> from singularbayes.theory import SoftmaxCrossEntropy
        >>> network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> network_bound(network, {"0": 4}, torch.ones(2, 4), SoftmaxCrossEntropy()).total
        0.0
    """
    chain = Chain(network)
    limits = chain.limits()
    for name, rank in ranks.items():
        if name not in limits:
            raise ValueError(f"no linear layer {name!r}; there are {', '.join(limits)}")
        if isinstance(rank, bool) or not 1 <= rank <= limits[name]:
            raise ValueError(
                f"{name or 'root'}: rank {rank!r} is outside 1..{limits[name]}, the smaller side of its "
                f"weight"
            )
    return chain.walk(x, loss, lambda name, _: ranks.get(name, limits[name]))
