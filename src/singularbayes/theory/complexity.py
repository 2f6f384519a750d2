"""Gaussian complexity of a chain of linear layers, up to universal constants: a relative diagnostic.

    G ~ (|X|_F / N) { B_1 sqrt(h_1) prod_{i>=2} C_i + sum_{j>=2} C_j sqrt(r_j h_j) prod_{i != j} C_i }

``C_i`` is the product of the spectral norms of a layer's factors (of a full layer its own), ``r_i`` its
rank, ``h_i`` its width, ``B_1`` the Frobenius norm of the first layer's matrix. For layers without biases and
activations of Lipschitz constant 1 with ``s(0) = 0``.

References:
    arXiv 2602.00387, theorem 3.9, with the factors of earlier layers, which its printed form lacks and
    without which a linear network of two layers breaks it (Maurer 2016, chain rule).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..nn.linear import LowRankLinear
from ..stacked import flat_chain, is_chain

__all__ = ["GaussianComplexity", "LayerNorms", "gaussian_complexity"]

_LIPSCHITZ = (nn.ReLU, nn.Tanh, nn.LeakyReLU, nn.Hardtanh, nn.Softsign, nn.Identity, nn.Dropout, nn.ReLU6)


@dataclass(frozen=True)
class LayerNorms:
    """One layer: ``C`` its norm, ``rank``, ``width`` of its output."""

    path: str
    C: float
    rank: int
    width: int


@dataclass(frozen=True)
class GaussianComplexity:
    """The diagnostic and what went into it.

    Attributes:
        value: up to universal constants; compare networks on the same inputs, nothing else.
        layers: their norms, in order.
        biases: names of biases, which the theorem does not have and which were left out.
    """

    value: float
    layers: tuple[LayerNorms, ...]
    biases: tuple[str, ...]

    def __str__(self) -> str:
        left = f"; biases left out: {', '.join(self.biases)}" if self.biases else ""
        norms = ", ".join(f"{each.path or 'network'} C {each.C:.3g} r {each.rank}" for each in self.layers)
        return (
            f"Gaussian complexity {self.value:.4g} up to universal constants ({norms}{left}). A relative "
            f"diagnostic, no bound: the paper prints 45.6 at full rank against 19.0 at low rank, both of "
            f"them vacuous as bounds."
        )


def gaussian_complexity(network: nn.Module, x: Any) -> GaussianComplexity:
    """The Gaussian complexity of the network's class on these inputs, relative to other networks'.

    Args:
        network: a (nested) ``nn.Sequential`` of ``nn.Linear`` or ``LowRankLinear`` and activations of
            Lipschitz constant 1 that map 0 to 0; its present weights give the norms.
        x: inputs ``(N, features)``.

    Raises:
        TypeError: another network, or an activation that the theorem does not cover.
        ValueError: inputs of another shape.

    Example:
        >>> network = nn.Linear(2, 1, bias=False)
        >>> with torch.no_grad():
        ...     _ = network.weight.copy_(torch.tensor([[3.0, 4.0]]))
        >>> gaussian_complexity(network, torch.eye(2)).value  # sqrt(2) / 2 * 5
        3.5355339059327378
    """
    if not is_chain(network):
        raise TypeError(
            f"the Gaussian complexity is that of a chain of linear layers, got {type(network).__name__}"
        )
    layers: list[LayerNorms] = []
    biases, first = [], 0.0
    for path, module in flat_chain(network):
        name = path.rstrip(".")
        if not isinstance(module, nn.Linear | LowRankLinear):
            slope = abs(module.negative_slope) if isinstance(module, nn.LeakyReLU) else 1.0
            if not isinstance(module, _LIPSCHITZ) or slope > 1:
                raise TypeError(
                    f"{name} is {module}: the theorem needs a Lipschitz constant of 1 and a value of 0 at "
                    f"0, as ReLU and Tanh have"
                )
            continue
        weight = module.weight.detach().double()
        if module.bias is not None:
            biases.append(f"{path}bias")
        if not layers:
            first = torch.linalg.matrix_norm(weight).item()
        layers.append(LayerNorms(name, _norm(module, weight), _rank(module, weight), weight.shape[0]))
    inputs = torch.as_tensor(x).detach().double()
    expected = next(m for _, m in flat_chain(network) if isinstance(m, nn.Linear | LowRankLinear)).in_features
    if inputs.dim() != 2 or inputs.shape[1] != expected:
        raise ValueError(f"inputs must be (N, {expected}), got the shape {tuple(inputs.shape)}")
    scale = torch.linalg.matrix_norm(inputs).item() / len(inputs)
    later = math.prod(layer.C for layer in layers[1:])
    total = first * math.sqrt(layers[0].width) * later
    whole = layers[0].C * later
    total += sum(math.sqrt(layer.rank * layer.width) * whole for layer in layers[1:])
    return GaussianComplexity(scale * total, tuple(layers), tuple(biases))


def _norm(module: nn.Module, weight: Tensor) -> float:
    if not isinstance(module, LowRankLinear):
        return torch.linalg.matrix_norm(weight, 2).item()
    left, right = module.A.detach().double(), module.B.detach().double()
    if module.s is not None:
        left = left * module.s.detach().double()
    return (torch.linalg.matrix_norm(left, 2) * torch.linalg.matrix_norm(right, 2)).item()


def _rank(module: nn.Module, weight: Tensor) -> int:
    return module.A.shape[1] if isinstance(module, LowRankLinear) else min(weight.shape)
