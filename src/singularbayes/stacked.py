"""Many draws of a plain chain at once: batched matrix products on activations ``(S, features, B)``.

Features come before the batch: a factor's rank is then the short side that matrix libraries handle well. All
blocks of a prediction share one workspace: fresh memory for each activation is dear for small networks.
:func:`differentiable_chain` is the same chain for autograd, without a workspace.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from .nn.linear import LowRankLinear
from .nn.masks import MaskedDropout
from .nn.rank_one import RankOneLinear

__all__ = ["Workspace", "differentiable_chain", "evaluate_chain", "flat_chain", "is_chain"]

_IN_PLACE: dict[type[nn.Module], Callable[[Tensor], Tensor]] = {
    nn.ReLU: torch.relu_,
    nn.Tanh: torch.tanh_,
    nn.Sigmoid: torch.sigmoid_,
}
_ELEMENTWISE = (
    nn.LeakyReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus, nn.Hardtanh, nn.ReLU6, nn.Softsign,
)  # fmt: skip
_IDENTITY = (nn.Identity, nn.Dropout, nn.AlphaDropout)
_LINEAR = (nn.Linear, LowRankLinear, RankOneLinear)
_ALLOWED = (nn.Sequential, *_LINEAR, MaskedDropout, *_IN_PLACE, *_ELEMENTWISE, *_IDENTITY)


def is_chain(network: nn.Module) -> bool:
    """A (nested) ``nn.Sequential`` of linear layers, elementwise functions and masks, without hooks."""
    if not isinstance(network, (nn.Sequential, *_LINEAR)):
        return False
    return all(
        type(module) in _ALLOWED
        and not (module._forward_pre_hooks or module._forward_hooks)  # noqa: SLF001 - torch has no public way
        and not hasattr(module, "parametrizations")
        for module in network.modules()
    )


class Workspace:
    """Three pieces of memory: one for products with a factor, two that activations alternate between."""

    def __init__(self) -> None:
        self._pieces: dict[str, Tensor] = {}
        self._turn = 0

    def take(self, purpose: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """A tensor of this shape; its memory is used again by the next call with this purpose."""
        size = torch.Size(shape).numel()
        piece = self._pieces.get(purpose)
        if piece is None or piece.numel() < size or piece.dtype != like.dtype or piece.device != like.device:
            piece = self._pieces[purpose] = like.new_empty(size)
        return piece[:size].view(shape)

    def next(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Memory for an activation; that of the one before stays valid."""
        self._turn = 1 - self._turn
        return self.take(f"activation {self._turn}", shape, like)


@torch.no_grad()
def evaluate_chain(network: nn.Module, tensors: dict[str, Tensor], x: Tensor, workspace: Workspace) -> Tensor:
    """Outputs ``(S, B, out)`` for tensors ``(S, ...)`` by parameter name and a shared input ``(B, in)``."""
    draws = len(next(iter(tensors.values())))
    h, shared = x.T.expand(draws, -1, -1), True  # until a layer makes an activation of its own
    for path, module in flat_chain(network):
        if isinstance(module, _IDENTITY):
            continue
        h = _apply(module, path, tensors, h, shared, workspace)
        shared = False
    return h.mT.clone(memory_format=torch.contiguous_format)  # always a copy: h is the workspace's memory


def differentiable_chain(network: nn.Module, tensors: dict[str, Tensor], x: Tensor) -> Tensor:
    """As :func:`evaluate_chain`, with a graph: nothing is written in place.

    A layer that sees the input itself, one for all draws, is a single matrix product, forward and backward.
    """
    draws = len(next(iter(tensors.values())))
    h, shared = x.T.expand(draws, -1, -1), True  # until a layer makes an activation of its own
    for path, module in flat_chain(network):
        if isinstance(module, _IDENTITY):
            continue
        h = _derived(module, path, tensors, h, shared)
        shared = False
    return h.mT


def _derived(module: nn.Module, path: str, tensors: dict[str, Tensor], h: Tensor, shared: bool) -> Tensor:
    bias = _bias(module, path, tensors)
    if isinstance(module, LowRankLinear):
        first, second = (_own(module, path, tensors, leaf, len(h)) for leaf in ("B", "A"))
        reduced = _product(first.mT, h, shared)
        if module.s is not None:
            reduced = reduced * _own(module, path, tensors, "s", len(h)).unsqueeze(-1)
        return _plus(bias, second, reduced)
    if isinstance(module, RankOneLinear):
        weight, s, t = (_own(module, path, tensors, leaf, len(h)) for leaf in ("weight0", "s", "t"))
        output = torch.bmm(weight, h * (1 + t).unsqueeze(-1)) * (1 + s).unsqueeze(-1)
        return output if bias is None else output + bias
    if isinstance(module, nn.Linear):
        weight = _own(module, path, tensors, "weight", len(h))
        if not shared:
            return _plus(bias, weight, h)
        output = _product(weight, h, shared)
        return output if bias is None else output + bias
    if isinstance(module, MaskedDropout):
        return h * _own(module, path, tensors, "mask", len(h)).unsqueeze(-1)
    return module(h)


def _product(matrix: Tensor, h: Tensor, shared: bool) -> Tensor:
    """``(S, out, batch)``: one product for all draws of a shared input."""
    if shared:
        return (matrix.reshape(-1, matrix.shape[2]) @ h[0]).view(len(matrix), matrix.shape[1], -1)
    return torch.bmm(matrix, h)


def _plus(bias: Tensor | None, matrix: Tensor, h: Tensor) -> Tensor:
    return torch.bmm(matrix, h) if bias is None else torch.baddbmm(bias, matrix, h)


def flat_chain(module: nn.Module, path: str = "") -> list[tuple[str, nn.Module]]:
    """The layers of a chain in order, each with the prefix of its parameters' names."""
    if not isinstance(module, nn.Sequential):
        return [(path, module)]
    children = module._modules.items()  # noqa: SLF001 - named_children() leaves out repeated modules
    return [
        leaf for name, child in children if child is not None for leaf in flat_chain(child, f"{path}{name}.")
    ]


def _apply(
    module: nn.Module, path: str, tensors: dict[str, Tensor], h: Tensor, shared: bool, workspace: Workspace
) -> Tensor:
    if isinstance(module, LowRankLinear):
        first, second = (_own(module, path, tensors, leaf, len(h)) for leaf in ("B", "A"))
        if module.s is not None:
            first = first * _own(module, path, tensors, "s", len(h)).unsqueeze(-2)
        reduced = _reduced(first, h, shared, workspace)
        return _affine(second, reduced, _bias(module, path, tensors), workspace)
    if isinstance(module, RankOneLinear):
        weight, s, t = (_own(module, path, tensors, leaf, len(h)) for leaf in ("weight0", "s", "t"))
        room = workspace.take("scaled", tuple(h.shape), h) if shared else h  # a shared input is not ours
        scaled = torch.mul(h, (1 + t).unsqueeze(-1), out=room)
        output = _affine(weight, scaled, None, workspace).mul_((1 + s).unsqueeze(-1))
        bias = _bias(module, path, tensors)
        return output if bias is None else output.add_(bias)
    if isinstance(module, nn.Linear):
        weight = _own(module, path, tensors, "weight", len(h))
        return _affine(weight, h, _bias(module, path, tensors), workspace)
    if isinstance(module, MaskedDropout):
        mask = _own(module, path, tensors, "mask", len(h)).unsqueeze(-1)
        return torch.mul(h, mask, out=workspace.next(tuple(h.shape), h))
    in_place = _IN_PLACE.get(type(module))
    return module(h) if in_place is None or shared else in_place(h)  # a shared input is not ours to overwrite


def _own(module: nn.Module, path: str, tensors: dict[str, Tensor], leaf: str, draws: int) -> Tensor:
    """A tensor with its draws axis; one that is not drawn (frozen) is repeated without a copy."""
    drawn = tensors.get(path + leaf)
    if drawn is not None:
        return drawn
    shared: Tensor = getattr(module, leaf)
    return shared.expand(draws, *shared.shape)


def _bias(module: nn.Module, path: str, tensors: dict[str, Tensor]) -> Tensor | None:
    drawn = tensors.get(f"{path}bias")
    if drawn is not None:
        return drawn.unsqueeze(-1)
    own = getattr(module, "bias", None)
    return None if own is None else own.view(1, -1, 1)


def _reduced(factor: Tensor, h: Tensor, shared: bool, workspace: Workspace) -> Tensor:
    """``B^T h``: ``(S, r, batch)`` from ``B (S, in, r)``; one product for all draws of a shared input."""
    draws, rank, batch = len(factor), factor.shape[2], h.shape[2]
    if shared:
        out = workspace.take("reduced", (draws * rank, batch), h)
        return torch.mm(factor.mT.reshape(draws * rank, -1), h[0], out=out).view(draws, rank, batch)
    return torch.bmm(factor.mT, h, out=workspace.take("reduced", (draws, rank, batch), h))


def _affine(weight: Tensor, h: Tensor, bias: Tensor | None, workspace: Workspace) -> Tensor:
    """``W h + b``: ``(S, out, batch)``."""
    out = workspace.next((len(h), weight.shape[1], h.shape[2]), h)
    return torch.bmm(weight, h, out=out) if bias is None else torch.baddbmm(bias, weight, h, out=out)
