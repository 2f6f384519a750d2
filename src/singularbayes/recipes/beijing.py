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
from matplotlib.figure import Figure

from ..evaluation.record import SetArrays
from ..likelihoods import Gaussian
from ..methods import MAP, DeepEnsemble, MeanField
from ..priors import Normal, ScaleMixture
from ..report import Field, Panel, method_styles, variance_field
from .data import beijing
from .data.splits import Splits
from .forecaster import full, low, low_from
from .recipe import Plan, Recipe, Run
from .trained_start import FromTrained

STRETCH = 14 * 24


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
