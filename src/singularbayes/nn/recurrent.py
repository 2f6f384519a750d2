"""Low-rank LSTM and GRU: ``W_ih`` and ``W_hh`` of each layer and direction are factorised apart.

    W_ih (G H x in) = A diag(s) B^T,    W_hh (G H x H) = A diag(s) B^T,    G = 4 gates (LSTM) or 3 (GRU)

The gates are packed as torch packs them, all gates of one matrix share ``B``. Each ``W`` is formed once in a
forward pass, so once for a whole sequence, and handed to torch's fused kernel: a step of training costs about
what the stock layer's costs, and a belief about the factors sees one weight at all steps. Nothing about the
sequence's length enters the parameters, nor then a KL.

References:
    arXiv 2602.00387, section 4 (recurrent layers). Hochreiter and Schmidhuber 1997 (LSTM). Cho et al. 2014,
    arXiv 1406.1078 (GRU).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import overload

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from .recurrence import LowRankRecurrent, refuse_projection

__all__ = ["LowRankGRU", "LowRankLSTM"]


class LowRankLSTM(LowRankRecurrent):
    """``nn.LSTM`` whose ``weight_ih`` and ``weight_hh`` are ``A diag(s) B^T``, ``A (4 H, r)``, ``B (n, r)``.

    Called as ``nn.LSTM`` is, with the same outputs: tensors ``(T, B, F)``, ``(B, T, F)`` with
    ``batch_first``, unbatched ``(T, F)`` or packed sequences, and initial states ``(h_0, c_0)``. Its
    parameters are ``A_ih_l0, B_ih_l0, A_hh_l0, B_hh_l0, bias_ih_l0, bias_hh_l0, ...``.

    Args:
        input_size: features ``F`` of each step.
        hidden_size: ``H``.
        rank: of all matrices, cut to the smaller side where one is narrower; or ``{pattern: rank}`` by
            torch's names of them, such as ``{"weight_ih_*": 14, "weight_hh_*": 20}``.
        num_layers: as in torch, like all up to ``dtype``. Dropout acts between layers, in train mode only.
        bias: as in torch.
        batch_first: as in torch.
        dropout: as in torch.
        bidirectional: as in torch.
        proj_size: only 0; a projection is not supported.
        device: as in torch.
        dtype: as in torch.
        diagonal: put a parameter ``s (r,)`` between each pair of factors, at 1 to start with.

    Raises:
        ValueError: ``proj_size``, a size below 1, or a rank that :func:`.ranks.matrix_ranks` refuses.
        TypeError: a size or rank that is no integer.

    Example:
        >>> layer = LowRankLSTM(15, 64, {"weight_ih_*": 10, "weight_hh_*": 20}, num_layers=2)
        >>> output, (h, c) = layer(torch.ones(24, 3, 15))
        >>> output.shape, h.shape, layer.weight_hh_l1.shape
        (torch.Size([24, 3, 64]), torch.Size([2, 3, 64]), torch.Size([256, 64]))
    """

    replaces = nn.LSTM
    gates = 4
    open_gate = 1
    state_names = ("h_0", "c_0")

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        rank: int | Mapping[str, int],
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        diagonal: bool = False,
    ) -> None:
        refuse_projection(type(self).__name__, proj_size)
        super().__init__(input_size, hidden_size, rank, num_layers, bias, batch_first, dropout,
                         bidirectional, device, dtype, diagonal=diagonal)  # fmt: skip

    @overload
    def forward(
        self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]: ...

    @overload
    def forward(
        self, input: PackedSequence, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[PackedSequence, tuple[Tensor, Tensor]]: ...

    def forward(
        self,
        input: Tensor | PackedSequence,  # noqa: A002 - torch's name
        hx: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor | PackedSequence, tuple[Tensor, Tensor]]:
        if hx is not None and (not isinstance(hx, tuple | list) or len(hx) != 2):
            got = f"{len(hx)} of them" if isinstance(hx, tuple | list) else type(hx).__name__
            raise TypeError(f"LowRankLSTM: the initial states are a pair (h_0, c_0), got {got}")
        output, (h, c) = self._run(input, hx)
        return output, (h, c)

    def _kernel(
        self, x: Tensor, batch_sizes: Tensor | None, states: tuple[Tensor, ...], weights: list[Tensor]
    ) -> tuple[Tensor, ...]:
        options = self.bias, self.num_layers, self.dropout, self.training, self.bidirectional
        if batch_sizes is None:
            return torch._VF.lstm(x, states, weights, *options, self.batch_first)  # noqa: SLF001 - as nn.LSTM
        return torch._VF.lstm(x, batch_sizes, states, weights, *options)  # noqa: SLF001


class LowRankGRU(LowRankRecurrent):
    """``nn.GRU`` whose ``weight_ih`` and ``weight_hh`` are ``A diag(s) B^T``, ``A (3 H, r)``, ``B (n, r)``.

    Called as ``nn.GRU`` is, with the same outputs. Arguments and errors are :class:`LowRankLSTM`'s, without
    ``proj_size``; the initial state is one tensor.

    Example:
        >>> layer = LowRankGRU(9, 32, 4, batch_first=True, bidirectional=True)
        >>> output, h = layer(torch.ones(5, 7, 9))
        >>> output.shape, h.shape, layer.weight_ih_l0_reverse.shape
        (torch.Size([5, 7, 64]), torch.Size([2, 5, 32]), torch.Size([96, 9]))
    """

    replaces = nn.GRU
    gates = 3
    open_gate = None
    state_names = ("h_0",)

    @overload
    def forward(self, input: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]: ...

    @overload
    def forward(self, input: PackedSequence, hx: Tensor | None = None) -> tuple[PackedSequence, Tensor]: ...

    def forward(
        self,
        input: Tensor | PackedSequence,  # noqa: A002 - torch's name
        hx: Tensor | None = None,
    ) -> tuple[Tensor | PackedSequence, Tensor]:
        output, (h,) = self._run(input, None if hx is None else (hx,))
        return output, h

    def _kernel(
        self, x: Tensor, batch_sizes: Tensor | None, states: tuple[Tensor, ...], weights: list[Tensor]
    ) -> tuple[Tensor, ...]:
        options = self.bias, self.num_layers, self.dropout, self.training, self.bidirectional
        if batch_sizes is None:
            return torch._VF.gru(x, states[0], weights, *options, self.batch_first)  # noqa: SLF001 - as nn.GRU
        return torch._VF.gru(x, batch_sizes, states[0], weights, *options)  # noqa: SLF001
