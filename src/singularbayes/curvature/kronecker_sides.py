"""The two sides of a Kronecker factor, layer by layer: what a matrix is multiplied by, and what comes back.

A matrix ``W (m, n)`` of a layer maps ``a`` to ``W a``, at every position of every datum (time steps, pixels):
its *input side* is ``a``, its *output side* the gradient ``g`` at ``W a``. A factorised layer has two
matrices; ``A`` sees ``x B``, and ``B`` sees ``x`` and the gradient pulled back through ``A``.

A parameter of one axis (a bias, the diagonal ``s``) has a gradient for each datum instead, and no factors.
Where the first axis of a linear layer is not the data (time first, or time steps as rows), each row counts as
one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from ..nn.convolution import LowRankConv
from ..nn.linear import LowRankLinear

__all__ = ["Sides", "sides_of"]

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d


@dataclass(frozen=True)
class Sides:
    """How one kind of layer shows its factors.

    Attributes:
        matrices: names of its matrices.
        vectors: names of its parameters of one axis.
        turned: matrices stored ``(n, m)``.
        inputs: of the layer's input, for each matrix ``(groups, P, n)``, ``P`` positions of all data.
        outputs: of the gradient at the layer's output, for each matrix ``(groups, P, m)``.
        by_datum: of input and gradient, and whether their first axis is the data: for each vector the
            gradient of each datum ``(B, m)``, or else of each position ``(P, m)``.
    """

    matrices: tuple[str, ...]
    vectors: tuple[str, ...]
    turned: tuple[str, ...]
    inputs: Callable[[Any, Tensor], dict[str, Tensor]]
    outputs: Callable[[Any, Tensor], dict[str, Tensor]]
    by_datum: Callable[[Any, Tensor, Tensor, bool], dict[str, Tensor]]


def _rows(x: Tensor) -> Float[Tensor, "1 P n"]:
    """All positions as one axis."""
    return x.reshape(1, -1, x.shape[-1])


def _summed(g: Tensor, data_first: bool) -> Float[Tensor, "B m"]:
    """Over the positions of each datum, where it is known which these are."""
    return g.reshape(len(g), -1, g.shape[-1]).sum(1) if data_first else g.reshape(-1, g.shape[-1])


# Linear layers


def _linear_inputs(_layer: nn.Linear, x: Tensor) -> dict[str, Tensor]:
    return {"weight": _rows(x)}


def _linear_outputs(_layer: nn.Linear, g: Tensor) -> dict[str, Tensor]:
    return {"weight": _rows(g)}


def _linear_by_datum(_layer: Any, _x: Tensor, g: Tensor, data_first: bool) -> dict[str, Tensor]:
    return {"bias": _summed(g, data_first)}


def _low_rank_inputs(layer: LowRankLinear, x: Tensor) -> dict[str, Tensor]:
    reduced = x @ layer.B
    return {"A": _rows(reduced if layer.s is None else reduced * layer.s), "B": _rows(x)}


def _low_rank_outputs(layer: LowRankLinear, g: Tensor) -> dict[str, Tensor]:
    pulled = g @ layer.A
    return {"A": _rows(g), "B": _rows(pulled if layer.s is None else pulled * layer.s)}


def _low_rank_by_datum(layer: LowRankLinear, x: Tensor, g: Tensor, data_first: bool) -> dict[str, Tensor]:
    return {"bias": _summed(g, data_first), "s": _summed((x @ layer.B) * (g @ layer.A), data_first)}


# Convolutions


def _convolve(layer: Any, x: Tensor, kernel: Tensor, groups: int) -> Tensor:
    """A convolution with the layer's stride, dilation and padding."""
    dims, padding = len(layer.kernel_size), layer.padding
    if layer.padding_mode != "zeros":
        edges = []
        for i in reversed(range(dims)):
            total = layer.dilation[i] * (layer.kernel_size[i] - 1) if padding == "same" else 0
            own = 0 if isinstance(padding, str) else padding[i]
            edges += [total // 2, total - total // 2] if padding == "same" else [own, own]
        x, padding = F.pad(x, edges, mode=layer.padding_mode), 0
    convolve = (F.conv1d, F.conv2d, F.conv3d)[dims - 1]
    return convolve(x, kernel, None, layer.stride, padding, layer.dilation, groups)


def _patches(layer: Any, x: Tensor) -> Float[Tensor, "groups P n"]:
    """What the kernel sees at every position: a convolution with one-hot kernels, so with all its options."""
    channels, size = layer.in_channels, layer.kernel_size
    entries = torch.Size(size).numel()
    hot = (
        torch.eye(entries, dtype=x.dtype, device=x.device)
        .view(entries, 1, *size)
        .repeat(channels, *[1] * (1 + len(size)))
    )
    seen = _convolve(layer, x, hot, channels)  # (B, in * entries, *positions)
    return _by_groups(seen, layer.groups)


def _by_groups(x: Tensor, groups: int) -> Float[Tensor, "groups P n"]:
    """Channels ``(B, groups * n, *positions)`` with all positions of all data as one axis."""
    x = x.flatten(2) if x.dim() > 2 else x.unsqueeze(2)
    return x.unflatten(1, (groups, -1)).permute(1, 0, 3, 2).flatten(1, 2)


def _convolution_inputs(layer: Convolution, x: Tensor) -> dict[str, Tensor]:
    return {"weight": _patches(layer, x)}


def _convolution_outputs(layer: Convolution, g: Tensor) -> dict[str, Tensor]:
    return {"weight": _by_groups(g, layer.groups)}


def _convolution_by_datum(_layer: Any, _x: Tensor, g: Tensor, _data_first: bool) -> dict[str, Tensor]:
    return {"bias": g.flatten(2).sum(2)}


def _spatial(layer: LowRankConv, x: Tensor) -> Tensor:
    """The shared filters' result ``(B, groups * r, *positions)``."""
    return _convolve(layer, x, layer.B.repeat(layer.groups, *[1] * (layer.B.dim() - 1)), layer.groups)


def _mixed_back(layer: LowRankConv, g: Tensor) -> Tensor:
    """The gradient at :func:`_spatial`, without ``s``."""
    per_group = layer.A.unflatten(0, (layer.groups, -1))  # (groups, out / groups, r)
    return torch.einsum("bgo...,gor->bgr...", g.unflatten(1, (layer.groups, -1)), per_group).flatten(1, 2)


def _scaled(layer: LowRankConv, x: Tensor) -> Tensor:
    if layer.s is None:
        return x
    return x * layer.s.repeat(layer.groups).view(-1, *[1] * (x.dim() - 2))


def _low_rank_convolution_inputs(layer: LowRankConv, x: Tensor) -> dict[str, Tensor]:
    spatial = _scaled(layer, _spatial(layer, x))
    # the filters B are shared by the groups: their positions are those of every group
    return {"A": _by_groups(spatial, layer.groups), "B": _patches(layer, x).flatten(0, 1).unsqueeze(0)}


def _low_rank_convolution_outputs(layer: LowRankConv, g: Tensor) -> dict[str, Tensor]:
    pulled = _scaled(layer, _mixed_back(layer, g))
    return {
        "A": _by_groups(g, layer.groups),
        "B": _by_groups(pulled, layer.groups).flatten(0, 1).unsqueeze(0),
    }


def _low_rank_convolution_by_datum(
    layer: LowRankConv, x: Tensor, g: Tensor, _data_first: bool
) -> dict[str, Tensor]:
    by_filter = (_spatial(layer, x) * _mixed_back(layer, g)).unflatten(1, (layer.groups, -1))
    return {"bias": g.flatten(2).sum(2), "s": by_filter.sum(1).flatten(2).sum(2)}


_LINEAR = Sides(("weight",), ("bias",), (), _linear_inputs, _linear_outputs, _linear_by_datum)
_LOW_RANK = Sides(("A", "B"), ("bias", "s"), ("B",), _low_rank_inputs, _low_rank_outputs, _low_rank_by_datum)
_CONVOLUTION = Sides(
    ("weight",), ("bias",), (), _convolution_inputs, _convolution_outputs, _convolution_by_datum
)
_LOW_RANK_CONVOLUTION = Sides(
    ("A", "B"),
    ("bias", "s"),
    (),
    _low_rank_convolution_inputs,
    _low_rank_convolution_outputs,
    _low_rank_convolution_by_datum,
)


def sides_of(layer: nn.Module) -> Sides | None:
    """How a layer shows its factors; ``None`` if it has none that are known.

    A subclass counts only if its ``forward`` is its parent's.
    """
    if is_parametrized(layer):
        return None
    forward = type(layer).forward
    if isinstance(layer, nn.Linear) and forward is nn.Linear.forward:
        return _LINEAR
    if isinstance(layer, Convolution) and forward in (
        nn.Conv1d.forward,
        nn.Conv2d.forward,
        nn.Conv3d.forward,
    ):
        return _CONVOLUTION
    if isinstance(layer, LowRankLinear) and forward is LowRankLinear.forward:
        return _LOW_RANK
    return (
        _LOW_RANK_CONVOLUTION if isinstance(layer, LowRankConv) and forward is LowRankConv.forward else None
    )
