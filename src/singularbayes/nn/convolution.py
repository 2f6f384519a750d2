"""Low-rank convolutions: ``r`` spatial filters, then a 1x1 convolution that mixes them.

    W[o] = sum_k A[o, k] s_k B[k],        A (out, r), B (r, in/groups, *kernel)

It is the low-rank form of the weight read as a matrix ``(out, in/groups * prod(kernel))``, whatever the
number of dimensions. With groups the ``r`` filters are shared: each group applies all of them to its own
inputs.

References:
    arXiv 2602.00387, section 3 (factors). Jaderberg et al. 2014, arXiv 1405.3866 (a basis of filters).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .factors import (
    check_rank,
    check_stock,
    fill_layer,
    freeze_as,
    product,
    quiet_ranks,
    reset_factors,
    set_factors,
)

__all__ = ["LowRankConv", "LowRankConv1d", "LowRankConv2d", "LowRankConv3d"]

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d


class LowRankConv(nn.Module):
    """What the three share; use ``LowRankConv1d``, ``LowRankConv2d`` or ``LowRankConv3d``.

    Args:
        in_channels: as in torch.
        out_channels: as in torch.
        kernel_size: as in torch.
        rank: number of spatial filters.
        stride: as in torch, of the spatial filters.
        padding: as in torch: sizes, ``"same"`` or ``"valid"``.
        dilation: as in torch.
        groups: as in torch, below ``in_channels``. The filters are shared by all groups.
        bias: add a bias (full, after the 1x1 convolution).
        padding_mode: as in torch.
        device: as in torch.
        dtype: as in torch.
        diagonal: put a parameter ``s (r,)`` between the factors.

    Raises:
        ValueError: a rank outside ``1..min(out, in/groups * prod(kernel))``, a depthwise convolution
            (one input channel a group), options that torch refuses.
    """

    replaces: ClassVar[type[Any]]
    convolve: ClassVar[Callable[..., Tensor]]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        rank: int,
        stride: int | tuple[int, ...] = 1,
        padding: str | int | tuple[int, ...] = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: Literal["zeros", "reflect", "replicate", "circular"] = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        diagonal: bool = False,
    ) -> None:
        super().__init__()
        if not hasattr(type(self), "replaces"):
            raise TypeError("LowRankConv has no number of dimensions; use LowRankConv1d, 2d or 3d")
        # torch's own layer reads and checks the options; on "meta" it holds no numbers
        stock = self.replaces(in_channels, out_channels, kernel_size, stride, padding, dilation, groups,
                              bias=False, padding_mode=padding_mode, device="meta")  # fmt: skip
        _refuse_depthwise(type(self).__name__, stock)
        check_rank(rank, *self.matrices(stock)["weight"], where=type(self).__name__)
        self.in_channels, self.out_channels, self.rank = in_channels, out_channels, int(rank)
        self.kernel_size: tuple[int, ...] = stock.kernel_size
        self.padding: str | tuple[int, ...] = stock.padding
        self.stride, self.dilation, self.groups = stock.stride, stock.dilation, stock.groups
        self.padding_mode = padding_mode
        kind = {"device": device, "dtype": dtype}
        self.A = nn.Parameter(torch.empty(out_channels, rank, **kind))
        self.B = nn.Parameter(torch.empty(rank, in_channels // groups, *self.kernel_size, **kind))
        self.s = nn.Parameter(torch.empty(rank, **kind)) if diagonal else None
        self.bias = nn.Parameter(torch.empty(out_channels, **kind)) if bias else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Factors whose product has He variance ``2 / fan_in``, torch's bias; see ``reset_factors``."""
        fan_in = self.B[0].numel()
        columns = self.B.new_empty(fan_in, self.rank)
        reset_factors(self.A, columns, self.s, 2 / fan_in)
        self.B.copy_(columns.T.reshape(self.B.shape))
        if self.bias is not None:
            bound = 1 / math.sqrt(fan_in)
            self.bias.uniform_(-bound, bound)

    @torch.no_grad()
    def set_weight(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """Start from a stock weight ``(out, in/groups, *kernel)``: its best rank-``r`` approximation.

        Args:
            weight: dense weight.
            bias: a new bias ``(out,)``; ``None`` leaves the present one.

        Raises:
            ValueError: another shape, or a bias for a layer without one.
        """
        needed = (self.out_channels, *self.B.shape[1:])
        if tuple(weight.shape) != needed:
            raise ValueError(f"weight has shape {tuple(weight.shape)}, this layer needs {needed}")
        if bias is not None and self.bias is None:
            raise ValueError("this layer has no bias; make it with bias=True to keep the given one")
        columns = self.B.new_empty(self.B[0].numel(), self.rank)
        set_factors(self.A, columns, self.s, weight.flatten(1))
        self.B.copy_(columns.T.reshape(self.B.shape))
        if self.bias is not None and bias is not None:
            self.bias.copy_(bias)

    @staticmethod
    def matrices(layer: Convolution) -> dict[str, tuple[int, int]]:
        """Names and sizes ``(m, n)`` of the matrices that would be factorised."""
        return {
            "weight": (layer.out_channels, layer.in_channels // layer.groups * math.prod(layer.kernel_size))
        }

    @classmethod
    def from_layer(
        cls,
        layer: Convolution,
        rank: int,
        *,
        init: Literal["random", "svd"] = "random",
        diagonal: bool = False,
    ) -> LowRankConv:
        """A low-rank layer in the place of a stock one: same options, device, dtype, mode, frozen parts.

        Args:
            layer: stays as it is.
            rank: of the factors.
            init: ``"random"`` starts factors and bias anew, ``"svd"`` from the present ones.
            diagonal: see the class.

        Raises:
            TypeError: not the stock layer of these dimensions; a transposed convolution too.
            ValueError: a depthwise convolution, a rank that is too large.
        """
        check_stock(cls.__name__, cls.replaces, layer)
        with quiet_ranks():
            new = cls(layer.in_channels, layer.out_channels, layer.kernel_size, rank, layer.stride,
                      layer.padding, layer.dilation, layer.groups, layer.bias is not None, layer.padding_mode,
                      layer.weight.device, layer.weight.dtype, diagonal=diagonal)  # fmt: skip
        if init == "svd":
            new.set_weight(layer.weight, layer.bias)
        freeze_as(new, layer.weight, layer.bias)
        return new.train(layer.training)

    @torch.no_grad()
    def to_layer(self) -> Convolution:
        """The stock layer with the same weight, formed once."""
        layer = self.replaces(self.in_channels, self.out_channels, self.kernel_size, self.stride,
                              self.padding, self.dilation, self.groups, self.bias is not None,
                              self.padding_mode, device="meta", dtype=self.A.dtype)  # fmt: skip
        layer = layer.to_empty(device=self.A.device)
        fill_layer(layer, self.weight, self.bias, trained=self.A.requires_grad)
        return layer.train(self.training)

    @property
    def weight(self) -> Tensor:
        """The dense weight ``(out, in/groups, *kernel)``, formed when asked for."""
        return product(self.A, self.B.flatten(1).mT, self.s).view(self.out_channels, *self.B.shape[1:])

    def forward(self, x: Tensor) -> Tensor:
        padding = self.padding
        if self.padding_mode != "zeros":
            x, padding = F.pad(x, self._edges(), mode=self.padding_mode), 0
        spatial = self.B.repeat(self.groups, *[1] * (self.B.dim() - 1)) if self.groups > 1 else self.B
        h = self.convolve(
            x, spatial, None, self.stride, padding, self.dilation, self.groups
        )  # (N, groups r, ...)
        mixing = self.A if self.s is None else self.A * self.s
        mixing = mixing.view(*mixing.shape, *[1] * len(self.kernel_size))
        return self.convolve(h, mixing, self.bias, 1, 0, 1, self.groups)

    def _edges(self) -> list[int]:
        """What ``F.pad`` adds before and after, last dimension first."""
        edges = []
        for i in reversed(range(len(self.kernel_size))):
            if self.padding == "same":
                total = self.dilation[i] * (self.kernel_size[i] - 1)
                edges += [total // 2, total - total // 2]
            else:
                edges += [0, 0] if isinstance(self.padding, str) else [self.padding[i]] * 2
        return edges

    def extra_repr(self) -> str:
        parts = [f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"]
        parts += [f"rank={self.rank}, stride={self.stride}"]
        defaults = {"padding": (0,) * len(self.kernel_size), "dilation": (1,) * len(self.kernel_size),
                    "groups": 1, "padding_mode": "zeros"}  # fmt: skip
        parts += [f"{n}={getattr(self, n)!r}" for n, value in defaults.items() if getattr(self, n) != value]
        parts += [] if self.bias is not None else ["bias=False"]
        return ", ".join(parts + ([] if self.s is None else ["diagonal=True"]))


def _refuse_depthwise(name: str, layer: Convolution) -> None:
    if layer.groups > 1 and layer.groups == layer.in_channels:
        raise ValueError(
            f"{name}: groups={layer.groups} gives every group one input channel (a depthwise convolution), "
            f"whose {layer.out_channels} small filters are no matrix worth a rank: shared filters would cost "
            f"rank times its work. Keep {type(layer).__name__}; low rank pays in the 1x1 layer beside it"
        )


class LowRankConv1d(LowRankConv):
    """``nn.Conv1d`` with ``rank`` spatial filters and a 1x1 convolution; see ``LowRankConv``.

    Example:
        >>> layer = LowRankConv1d(8, 16, 5, rank=3, padding="same")
        >>> layer(torch.ones(2, 8, 20)).shape, layer.weight.shape
        (torch.Size([2, 16, 20]), torch.Size([16, 8, 5]))
    """

    replaces = nn.Conv1d
    convolve = staticmethod(F.conv1d)


class LowRankConv2d(LowRankConv):
    """``nn.Conv2d`` with ``rank`` spatial filters and a 1x1 convolution; see ``LowRankConv``.

    Example:
        >>> layer = LowRankConv2d(8, 16, 3, rank=4, stride=2, padding=1)
        >>> layer(torch.ones(2, 8, 10, 10)).shape, sum(p.numel() for p in layer.parameters())
        (torch.Size([2, 16, 5, 5]), 368)
    """

    replaces = nn.Conv2d
    convolve = staticmethod(F.conv2d)


class LowRankConv3d(LowRankConv):
    """``nn.Conv3d`` with ``rank`` spatial filters and a 1x1 convolution; see ``LowRankConv``.

    Example:
        >>> LowRankConv3d(4, 8, (1, 3, 3), rank=2)(torch.ones(2, 4, 3, 6, 6)).shape
        torch.Size([2, 8, 3, 4, 4])
    """

    replaces = nn.Conv3d
    convolve = staticmethod(F.conv3d)
