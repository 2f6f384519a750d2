"""``sine``: the 1-D control. Trained on [-2, 2], looked at on [4, 6] and its mirror image.

Network 1-64-64-1, noise known; tanh and ReLU. Does the variance grow or fall with distance from the data?
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from torch import nn

from ..likelihoods import Gaussian
from ..methods import MAP, DeepEnsemble, MeanField
from ..nn import factorize
from ..priors import Normal, ScaleMixture
from ..report import Field, Panel, method_styles, variance_field
from .data import sine
from .data.splits import Splits
from .recipe import Plan, Recipe, Run, mlp

NOISE = 0.1
RANK = 4
SIZES = (1, 64, 64, 1)


def full(activation: type[nn.Module]) -> nn.Module:
    """The network 1-64-64-1."""
    return mlp(*SIZES, activation=activation)


def low(activation: type[nn.Module]) -> nn.Module:
    """The same with a hidden matrix of rank 4; first and last layer have rank 1 anyway and stay."""
    return factorize(full(activation), rank={"2": RANK})


def load(_folder: Path | None, seed: int) -> Splits:
    """New data for every seed."""
    return sine.load(noise_std=NOISE, seed=seed)


def panels(splits: Splits, runs: Mapping[str, Run]) -> Sequence[Panel]:
    """The variance field of every method over the line."""
    x = sine.grid()
    fields = {}
    for name, run in runs.items():
        pred = run.posterior.predict(x, draws=256)
        fields[name] = Field(
            mean=pred.mean.numpy(),
            total_std=pred.variance.sqrt().numpy(),
            epistemic_std=pred.epistemic.sqrt().numpy(),
        )
    figure = variance_field(
        x[:, 0],
        fields,
        train=(splits.train[0][:, 0], np.asarray(splits.train[1]).ravel()),
        unfamiliar=list(sine.OOD_INTERVALS.values()),
        truth=sine.true_function(x[:, 0]),
        styles=method_styles(list(runs)),
    )
    caption = (
        "The band should widen where there are no points; where it narrows with distance, the model is most "
        "certain where it knows least."
    )
    return [Panel(title="The variance field", caption=caption, figure=figure)]


def plans(activation: type[nn.Module]) -> dict[str, Plan]:
    """The methods with one activation."""
    point = MAP(epochs=300, batch_size=32, learning_rate=5e-3)
    field = MeanField(epochs=400, batch_size=32, learning_rate=5e-3, temperature=0.1)
    return {
        "MAP": Plan(network=partial(full, activation), prior=Normal(1.0), method=point),
        "DeepEnsemble": Plan(
            network=partial(full, activation), prior=Normal(1.0), method=DeepEnsemble(member=point)
        ),
        "MeanField, full rank": Plan(network=partial(full, activation), prior=ScaleMixture(), method=field),
        "MeanField, low rank": Plan(network=partial(low, activation), prior=ScaleMixture(), method=field),
    }


RECIPE = Recipe(
    name="sine",
    title="The 1-D control: where does the variance go?",
    what="a noisy sine on [-2, 2] with OOD inputs on [4, 6] and [-6, -4]; tanh network",
    load=load,
    likelihood=Gaussian(noise=NOISE),
    plans=plans(nn.Tanh),
    draws=256,
    panels=panels,
    varies_data=True,
)
RELU = replace(
    RECIPE,
    name="sine-relu",
    title="The 1-D control with ReLU",
    what="as sine, with a ReLU network",
    plans=plans(nn.ReLU),
)
