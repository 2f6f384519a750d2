"""``beijing``: PM2.5 of the next hour from the last 24; Guangzhou and Shanghai are other cities (OOD).

Net 2 x LSTM 64 + linear, ranks 14 (ih), 20 (hh) and 1 (head), as in arXiv 2602.00387. The data lie in a
folder of the user's (``--data``); y is standardised for training, results are in ug/m3. Gaussian noise of one
learned level: a network that predicts its noise would hide in it what this example asks of the weights.

``beijing`` fits two cores: batches of 256 and at most 60 epochs, stopped early by validation.
``beijing-paper`` has the paper's own protocol: batches of 64, at most 150 epochs (patience 30), KL
temperature .09, 150 draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from ..evaluation.record import SetArrays
from ..likelihoods import Gaussian
from ..methods import MAP, DeepEnsemble, MeanField
from ..nn import LowRankLinear, LowRankLSTM
from ..nn.factors import quiet_ranks
from ..nn.recurrence import LowRankRecurrent
from ..priors import Normal, ScaleMixture
from ..report import Field, Panel, method_styles, variance_field
from .data import beijing
from .data.splits import Splits
from .recipe import Plan, Recipe, Run, mlp
from .trained_start import FromTrained

RANKS = {"weight_ih_*": 14, "weight_hh_*": 20}
FEATURES, HIDDEN, LAYERS = len(beijing.FEATURES), 64, 2
STRETCH = 14 * 24


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


def load(folder: Path | None, _seed: int) -> Splits:
    """The splits from the folder that ``--data`` names."""
    if folder is None:
        raise ValueError(
            "the beijing recipe reads three files from a folder of yours: add --data FOLDER; to get them: "
            f"{beijing.HOW_TO_GET}"
        )
    return beijing.load(folder)


def panels(splits: Splits, runs: Mapping[str, Run]) -> Sequence[Panel]:
    """Two weeks in Beijing and two in Guangzhou: measured, predicted, and how sure each method was."""
    unit = splits.label_units.name if splits.label_units else "y"
    caption = (
        f"Dots: PM2.5 as measured, in {unit}. Bands: two standard deviations, dark of the epistemic part, "
        "light in total. The rows are hours with PM2.5, the first 336 of the set. First seed."
    )
    return [
        Panel(title=f"{title}, hour by hour", caption=caption, figure=_stretch(key, runs))
        for key, title in (("test", "Beijing, test set"), ("Guangzhou", "Guangzhou, never seen"))
    ]


def _stretch(key: str, runs: Mapping[str, Run]) -> Figure:
    found = {name: run.evaluation.sets[key] for name, run in runs.items()}
    labels = next(iter(found.values())).labels
    if labels is None:
        raise ValueError(f"set {key!r} has no labels; expected PM2.5 as measured")
    observed = labels[:STRETCH]
    hours = np.arange(len(observed), dtype=np.float64)
    return variance_field(
        hours,
        {name: _field(arrays) for name, arrays in found.items()},
        train=(hours, observed),
        styles=method_styles(list(runs)),
        label="hours with PM2.5",
    )


def _field(arrays: SetArrays) -> Field:
    if arrays.variance is None:
        raise ValueError("the evaluation has no predictive variance; expected one of a Gaussian likelihood")
    return Field(
        mean=arrays.mean[:STRETCH],
        total_std=np.sqrt(arrays.variance[:STRETCH]),
        epistemic_std=np.sqrt(arrays.scores["epistemic_variance"][:STRETCH]),
    )


def _plans(point: MAP, full_rank: MeanField, low_rank: MeanField) -> dict[str, Plan]:
    narrow, mixture = Normal(1.0), ScaleMixture()
    from_svd = FromTrained(member=low_rank, point=point, network=full, convert=low_from)
    return {
        "MAP": Plan(network=full, prior=narrow, method=point),
        "DeepEnsemble": Plan(network=full, prior=narrow, method=DeepEnsemble(members=5, member=point)),
        "MeanField, full rank": Plan(network=full, prior=mixture, method=full_rank),
        "MeanField, low rank": Plan(network=low, prior=mixture, method=low_rank),
        "MeanField, low rank from SVD": Plan(network=low, prior=mixture, method=from_svd),
    }


_POINT = MAP(epochs=60, batch_size=256, learning_rate=2e-3, patience=10)
_FIELD = MeanField(
    epochs=60, batch_size=256, learning_rate=2e-3, patience=15, temperature=0.09, initial_std=0.1
)

RECIPE = Recipe(
    name="beijing",
    title="Air in Beijing: does the forecast know that it is elsewhere?",
    what="PM2.5 of the next hour from 24 hours of air and weather; Guangzhou and Shanghai are other cities",
    load=load,
    likelihood=Gaussian(),
    plans=_plans(point=_POINT, full_rank=_FIELD, low_rank=_FIELD),
    draws=64,
    needs_data=True,
    panels=panels,
)

_PAPER = MeanField(epochs=150, patience=30, temperature=0.09, initial_std=0.1)

PAPER = replace(
    RECIPE,
    name="beijing-paper",
    title="Air in Beijing by the paper's protocol",
    what="as beijing, with the settings of arXiv 2602.00387: up to 150 epochs, KL temperature .09, 150 draws",
    plans=_plans(
        point=MAP(epochs=150, patience=30), full_rank=replace(_PAPER, initial_std=0.7), low_rank=_PAPER
    ),
    draws=150,
)
