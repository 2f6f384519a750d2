"""The networks of the ``beijing`` recipe: an LSTM forecaster, full or of low rank; a feed-forward one."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..nn import LowRankLinear, LowRankLSTM
from ..nn.factors import quiet_ranks
from ..nn.recurrence import LowRankRecurrent
from .data import beijing
from .recipe import mlp

__all__ = ["Forecaster", "flat", "full", "low", "low_from"]

RANKS = {"weight_ih_*": 14, "weight_hh_*": 20}
FEATURES, HIDDEN, LAYERS = len(beijing.FEATURES), 64, 2


class Forecaster(nn.Module):
    """A recurrent layer over ``(B, hours, features)`` and a linear head on its last state: ``(B, 1)``.

    Its parts are as they are given; :meth:`open_forget_gates` is for those that start anew.
    """

    def __init__(self, lstm: nn.LSTM | LowRankRecurrent, head: nn.Linear | LowRankLinear) -> None:
        super().__init__()
        self.lstm, self.head = lstm, head

    @torch.no_grad()
    def open_forget_gates(self) -> Forecaster:
        """Every forget gate starts open: its bias is 1, all other biases of the LSTM are 0."""
        for name, bias in self.lstm.named_parameters():
            if name.startswith("bias_"):
                bias.zero_()
                if name.startswith("bias_ih"):
                    bias[HIDDEN : 2 * HIDDEN] = 1.0  # torch's order of gates: input, forget, cell, output
        return self

    def reset_parameters(self) -> None:
        """Draw all weights anew, as a member of an ensemble starts."""
        self.lstm.reset_parameters()
        self.head.reset_parameters()
        self.open_forget_gates()

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(x)  # (B, hours, hidden)
        return self.head(states[:, -1])


def full() -> Forecaster:
    """The deterministic network."""
    lstm = nn.LSTM(FEATURES, HIDDEN, LAYERS, batch_first=True)
    return Forecaster(lstm, nn.Linear(HIDDEN, 1)).open_forget_gates()


def low() -> Forecaster:
    """Ranks 14, 20 and 1; the head's rank saves nothing, but is the paper's."""
    with quiet_ranks():
        lstm = LowRankLSTM(FEATURES, HIDDEN, RANKS, num_layers=LAYERS, batch_first=True)
        return Forecaster(lstm, LowRankLinear(HIDDEN, 1, 1)).open_forget_gates()


def low_from(network: nn.Module) -> Forecaster:
    """A trained :func:`full` in the form of :func:`low`: the best approximation of every weight."""
    lstm, head = network.get_submodule("lstm"), network.get_submodule("head")
    if not (isinstance(lstm, nn.LSTM) and isinstance(head, nn.Linear)):
        raise TypeError(
            f"got parts {type(lstm).__name__} and {type(head).__name__}, expected nn.LSTM and nn.Linear, as "
            "full() makes them"
        )
    with quiet_ranks():
        return Forecaster(
            LowRankLSTM.from_layer(lstm, RANKS, init="svd"), LowRankLinear.from_layer(head, 1, init="svd")
        )


def flat(*hidden: int) -> nn.Sequential:
    """A feed-forward network over the flattened window, for methods that normalise activations (Precise).

    Args:
        hidden: widths of the hidden layers, (128, 128) by default.
    """
    widths = hidden or (128, 128)
    return nn.Sequential(nn.Flatten(), *mlp(beijing.HOURS * FEATURES, *widths, 1))
