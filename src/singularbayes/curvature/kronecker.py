"""KFAC: for each matrix of a network the Kronecker product of an input and an output covariance.

    H_W ~ (1 / P) (sum_p a_p a_p^T) kron (sum_p sum_c g_pc g_pc^T),        W = G-side x A-side, p = 1..P

``a_p`` is what the matrix is multiplied by at position ``p`` (of all data, and of all time steps or pixels of
each: the *expand* setting), ``g_pc`` the gradient there for column ``c`` of the root ``R_n`` of the output
Hessian: all ``K`` columns, no sampling. Blocks are single tensors: what lies between two is left out, between
a weight and its bias too. The block of a bias (or of a diagonal ``s``) is exact where the first axis of the
layer's output is the data; where it is not (time first, or time steps as rows) what lies between the
positions of a datum is left out. A matrix's block is exact for one position in all, or where all positions
share ``a a^T`` or share ``g g^T`` (linear networks, Gaussian noise).

With a prior precision ``p`` for the block: ``H_W + p I`` has the factors' eigenvectors and the eigenvalues
``l_i m_j + p``; nothing is damped.

References:
    Martens and Grosse 2015, arXiv 1503.05671, section 3. Grosse and Martens 2016, arXiv 1602.01407
    (convolutions). Eschenhagen et al. 2023, arXiv 2311.00636, eq. 9 (expand). Ritter et al. 2018, "A scalable
    Laplace approximation for neural networks".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..data import batch_size_of, take
from ..functions import call
from ..gaussians import KroneckerGaussian
from ..nn.kernels import plain_attention
from .expansion import Expansion, Measured, Tally, finite
from .kronecker_sides import Sides, sides_of

__all__ = ["Kronecker", "KroneckerBlock", "KroneckerCurvature"]


class KroneckerBlock(NamedTuple):
    """``H ~ left kron right`` over a stretch of the flat vector, by eigenvalues and eigenvectors.

    Attributes:
        slot: number of the chosen tensor.
        start: first entry in the flat vector; the block covers ``m n`` entries, row by row.
        left_values: ``(m,)``, with ``left_vectors (m, m)``.
        right_values: ``(n,)``, with ``right_vectors (n, n)``.
    """

    slot: int
    start: int
    left_values: Float[Tensor, " m"]
    left_vectors: Float[Tensor, "m m"]
    right_values: Float[Tensor, " n"]
    right_vectors: Float[Tensor, "n n"]

    def values(self, precision: Tensor, scale: Tensor) -> Float[Tensor, "m n"]:
        """Eigenvalues of ``scale H + P``."""
        own = precision[self.slot if len(precision) > 1 else 0]
        return scale * torch.outer(self.left_values, self.right_values) + own


@dataclass(frozen=True, eq=False)
class Kronecker:
    """Blocks of chosen tensors."""

    blocks: tuple[KroneckerBlock, ...]

    def log_determinant(self, precision: Tensor, scale: Tensor) -> Tensor:
        return torch.stack([block.values(precision, scale).log().sum() for block in self.blocks]).sum()

    def gaussian(self, row: Tensor, precision: Tensor, scale: Tensor) -> KroneckerGaussian:
        std, shapes = torch.zeros_like(row), []
        for block in self.blocks:
            values = block.values(precision, scale)
            std[block.start : block.start + values.numel()] = values.rsqrt().flatten().to(row)
            shapes.append([block.start, *values.shape])
        left = torch.cat([block.left_vectors.flatten() for block in self.blocks]).to(row)
        right = torch.cat([block.right_vectors.flatten() for block in self.blocks]).to(row)
        places = torch.tensor(shapes, device=row.device)
        return KroneckerGaussian(row, std, places, left, right, row.new_zeros(len(row), 0))

    def jitter(self, precision: Tensor, scale: Tensor) -> float:
        return 0.0


class _Place(NamedTuple):
    """A chosen tensor in a layer."""

    slot: int
    leaf: str


class _Sums:
    """Sums over all data of one matrix's sides, by group, or of a vector's products."""

    def __init__(self) -> None:
        self.inputs: Tensor | None = None
        self.outputs: Tensor | None = None
        self.positions = 0

    def add_inputs(self, a: Tensor) -> None:
        product = (a.mT @ a).double()
        self.inputs = product if self.inputs is None else self.inputs + product
        self.positions += a.shape[1]

    def add_outputs(self, g: Tensor) -> None:
        product = (g.mT @ g).double()
        self.outputs = product if self.outputs is None else self.outputs + product


class _Call(NamedTuple):
    """One use of a layer in a forward pass."""

    layer: nn.Module
    x: Tensor
    output: Tensor


@dataclass(frozen=True)
class KroneckerCurvature:
    """Keep two small matrices for each matrix of the network (KFAC).

    For ``nn.Linear``, ``nn.Conv1d/2d/3d`` and the library's factorised forms of both, with any leading axes,
    groups, tied or called several times. Each factor of a factorised layer is a block of its own.
    """

    def check(self, expansion: Expansion) -> None:
        _layers(expansion)

    def measure(self, expansion: Expansion) -> Measured:
        layers, tally = _layers(expansion), Tally()
        sums = [_Sums() for _ in expansion.slots]
        data_first: list[bool] | None = None  # of each use
        device = expansion.leaves[0].device.type
        plain = [torch.autocast(device, enabled=False), plain_attention(expansion.network.modules())]
        plain += [torch.backends.cudnn.flags(enabled=False), _differentiated(expansion), torch.enable_grad()]
        with ExitStack() as stack:
            for context in plain:
                stack.enter_context(context)
            for x, y in expansion.batches():
                calls: list[_Call] = []
                with _watched(layers, calls):
                    outputs = call(expansion.network, x)
                data_first = _data_first(expansion, layers, calls, x) if data_first is None else data_first
                bent = expansion.bend(outputs.detach(), y)
                tally.add(bent)
                _add_batch(layers, sums, calls, outputs, bent.root, data_first)
        return Measured(Kronecker(tuple(_blocks(expansion, layers, sums))), tally)


_Layers = dict[nn.Module, tuple[Sides, list[_Place]]]


def _layers(expansion: Expansion) -> _Layers:
    """The layers that hold the chosen tensors, with all uses of a tied one.

    Raises:
        ValueError: a tensor in a module without known factors, named.
    """
    number = {id(leaf): slot for slot, leaf in enumerate(expansion.leaves)}
    found: _Layers = {}
    for path, module in expansion.network.named_modules():
        own = [(leaf, p) for leaf, p in module.named_parameters(recurse=False) if id(p) in number]
        sides = sides_of(module) if own else None
        for leaf, parameter in own:
            if sides is None or leaf not in (*sides.matrices, *sides.vectors):
                name = expansion.slots[number[id(parameter)]].name
                raise ValueError(
                    f"KroneckerCurvature has no factors for {name}, a parameter of {type(module).__name__}"
                    f"{f' ({path})' if path else ''}; it covers nn.Linear, nn.Conv1d/2d/3d and their "
                    f"factorised forms. Use structure=DiagonalCurvature(), subset=LastLayer(), or patterns "
                    f"that leave it out"
                )
            found.setdefault(module, (sides, []))[1].append(_Place(number[id(parameter)], leaf))
    return found


@contextmanager
def _differentiated(expansion: Expansion) -> Iterator[None]:
    before = [leaf.requires_grad for leaf in expansion.leaves]
    try:
        for leaf in expansion.leaves:
            leaf.requires_grad_()
        yield
    finally:
        for leaf, flag in zip(expansion.leaves, before, strict=True):
            leaf.requires_grad_(flag)


@contextmanager
def _watched(layers: _Layers, calls: list[_Call]) -> Iterator[None]:
    """Note each use of the layers. The output goes on as a copy: what changes it in place leaves ours."""

    def note(layer: nn.Module, inputs: Any, named: Any, output: Tensor) -> Tensor:
        x = inputs[0] if inputs else next(iter(named.values()))
        calls.append(_Call(layer, x.detach().clone(), output))
        return output.clone()

    handles = [layer.register_forward_hook(note, with_kwargs=True) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def _data_first(expansion: Expansion, layers: _Layers, calls: list[_Call], x: Any) -> list[bool]:
    """Whether the first axis of each use is the data: it is as long as they are, for one of them too."""
    alone: list[_Call] = []
    with _watched(layers, alone):
        call(expansion.network, take(x, slice(0, 1)))
    count = batch_size_of(x)
    if len(alone) != len(calls):
        return [False] * len(calls)
    return [
        len(one.output) == 1 and len(each.output) == count for one, each in zip(alone, calls, strict=True)
    ]


def _add_batch(
    layers: _Layers,
    sums: list[_Sums],
    calls: list[_Call],
    outputs: Tensor,
    root: Tensor,
    data_first: list[bool],
) -> None:
    _refuse_unseen(layers, calls)
    with torch.no_grad():
        for layer, x, _ in calls:
            sides, places = layers[layer]
            inputs = sides.inputs(layer, x)
            for slot, leaf in places:
                if leaf in sides.matrices:
                    sums[slot].add_inputs(inputs[leaf])
    points = [each.output for each in calls]
    for column in root.unbind(2):
        gradients = torch.autograd.grad(
            outputs, points, column.to(outputs).view_as(outputs), retain_graph=True, allow_unused=True
        )
        with torch.no_grad():
            _add_column(layers, sums, calls, gradients, data_first)


def _add_column(
    layers: _Layers, sums: list[_Sums], calls: list[_Call], gradients: Any, data_first: list[bool]
) -> None:
    by_datum: dict[int, Tensor] = {}
    for (layer, x, output), found, first in zip(calls, gradients, data_first, strict=True):
        g = torch.zeros_like(output) if found is None else found
        sides, places = layers[layer]
        matrices = sides.outputs(layer, g)
        vectors = (
            sides.by_datum(layer, x, g, first) if any(leaf in sides.vectors for _, leaf in places) else {}
        )
        for slot, leaf in places:
            if leaf in sides.matrices:
                sums[slot].add_outputs(matrices[leaf])
            elif not first:
                sums[slot].add_outputs(vectors[leaf].unsqueeze(0))
            else:
                by_datum[slot] = by_datum[slot] + vectors[leaf] if slot in by_datum else vectors[leaf]
    for slot, rows in by_datum.items():  # all uses of a datum together: exact
        sums[slot].add_outputs(rows.unsqueeze(0))


def _refuse_unseen(layers: _Layers, calls: list[_Call]) -> None:
    used = {each.layer for each in calls}
    for layer in layers:
        if layer not in used:
            raise ValueError(
                f"KroneckerCurvature: the network never calls its {type(layer).__name__} "
                f"({layer.extra_repr()}); another module reads its weight, as nn.MultiheadAttention does. "
                f"Use structure=DiagonalCurvature(), subset=LastLayer(), or patterns that leave it out"
            )


def _eigen(matrix: Tensor) -> tuple[Tensor, Tensor]:
    values, vectors = torch.linalg.eigh(0.5 * (finite(matrix) + matrix.T))
    return values.clamp(min=0), vectors  # what is negative is rounding


def _blocks(expansion: Expansion, layers: _Layers, sums: list[_Sums]) -> Iterator[KroneckerBlock]:
    done: set[int] = set()
    for sides, places in layers.values():
        for slot, leaf in places:
            if slot in done:
                continue
            done.add(slot)
            start, found = expansion.slots[slot].start, sums[slot]
            if found.outputs is None:
                raise ValueError("the data are empty")
            if leaf in sides.vectors:
                one = torch.ones(1, 1, dtype=torch.float64, device=found.outputs.device)
                yield KroneckerBlock(slot, start, *_eigen(found.outputs[0]), one[0], one)
                continue
            if found.inputs is None:
                raise ValueError("the data are empty")
            for a, g in zip(found.inputs / found.positions, found.outputs, strict=True):
                left, right = (a, g) if leaf in sides.turned else (g, a)
                yield KroneckerBlock(slot, start, *_eigen(left), *_eigen(right))
                start += len(a) * len(g)
