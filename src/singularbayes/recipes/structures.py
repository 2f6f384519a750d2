"""One data set, one size of network, every belief that the library has of its own: digits and beijing.

``digits-structures``: settings were chosen on the validation digits and the OOD sets for choices (never
scored), with ``python benchmarks/choose.py digits-structures``; the mean-field rows are those of ``digits``.

``beijing-structures``: the LSTM of ``beijing`` for 10 epochs. IVON's learning rate and start
curvature were chosen by validation NLL after three epochs (grids of three by three); nothing else was.
Directions after a normalisation and rank-one vectors have no recurrent form here, so their rows, and a
mean-field row beside them, are of a feed-forward network over the flattened window.
"""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from ..likelihoods import Categorical, Gaussian
from ..methods import (
    IVON,
    DirectionPrecision,
    GGNDirections,
    MeanField,
    Precise,
    RandomDirections,
    RankOne,
)
from ..nn import DirectionalLinear, rank_one
from ..priors import Normal, ScaleMixture
from . import beijing, digits
from .data.beijing import HOURS
from .forecaster import FEATURES, flat, full, low
from .recipe import Plan, Recipe


def directional() -> nn.Module:
    """The digits network with directional hidden layers: the activation follows the normalisation."""
    first, second, third, last = digits.SIZES
    return nn.Sequential(
        DirectionalLinear(first, second),
        nn.ReLU(),
        DirectionalLinear(second, third),
        nn.ReLU(),
        nn.Linear(third, last),
    )


def perturbed() -> nn.Module:
    """The digits network with rank-one perturbations of its hidden layers."""
    return rank_one(digits.full(), layers=["0", "2"])


_IVON = IVON(epochs=150, learning_rate=0.1, temperature=0.1, hessian_init=0.1, beta2=0.9995, clip_radius=1.0)
_IVON_LOW = replace(_IVON, learning_rate=0.3, hessian_init=0.01)  # small steps: factors multiply each other
_ALONG = {"epochs": 150, "learning_rate": 3e-3, "temperature": 0.1, "initial_std": 0.3}

DIGITS = Recipe(
    name="digits-structures",
    title="Digits: structures and beliefs side by side",
    what="as digits: every belief of the library side by side",
    load=digits.load,
    likelihood=Categorical(),
    plans={
        "MeanField, full rank": digits.RECIPE.plans["MeanField, full rank"],
        "MeanField, low rank": digits.RECIPE.plans["MeanField, low rank"],
        "IVON, full rank": Plan(network=digits.full, prior=Normal(1.0), method=_IVON),
        "IVON, low rank": Plan(network=digits.low, prior=Normal(1.0), method=_IVON_LOW),
        "RankOne": Plan(
            network=perturbed,
            prior=ScaleMixture(),
            method=RankOne(epochs=150, learning_rate=3e-3, temperature=0.1),
        ),
        "Precise": Plan(
            network=directional,
            prior=Normal(1.0),
            method=Precise(epochs=150, learning_rate=3e-3, temperature=0.1),
        ),
        "DirectionPrecision, random": Plan(
            network=digits.low,
            prior=Normal(1.0),
            method=DirectionPrecision(directions=RandomDirections(8), **_ALONG),
        ),
        "DirectionPrecision, GGN": Plan(
            network=digits.low,
            prior=Normal(1.0),
            method=DirectionPrecision(directions=GGNDirections(k=8, iterations=5, rows=512), **_ALONG),
        ),
    },
    calibrate=False,
)


def directional_window() -> nn.Module:
    """The feed-forward network over the window, its hidden layers directional."""
    return nn.Sequential(
        nn.Flatten(),
        DirectionalLinear(HOURS * FEATURES, 128),
        nn.ReLU(),
        DirectionalLinear(128, 128),
        nn.ReLU(),
        nn.Linear(128, 1),
    )


def perturbed_window() -> nn.Module:
    """The feed-forward network over the window with rank-one perturbations of its hidden layers."""
    return rank_one(flat(128, 128), layers=["1", "3"])


_LOOP = {"epochs": 10, "batch_size": 256, "temperature": 0.09}
_SLOW = {**_LOOP, "learning_rate": 2e-3}
_WAVES = IVON(**_LOOP, learning_rate=0.3, hessian_init=0.1, beta2=0.9995, clip_radius=1.0)

BEIJING = Recipe(
    name="beijing-structures",
    title="Air in Beijing: structures and beliefs side by side",
    what="as beijing: every belief of the library side by side, ten epochs",
    load=beijing.load,
    likelihood=Gaussian(),
    plans={
        "MeanField, full rank": Plan(network=full, prior=ScaleMixture(), method=MeanField(**_SLOW)),
        "MeanField, low rank": Plan(network=low, prior=ScaleMixture(), method=MeanField(**_SLOW)),
        "IVON, full rank": Plan(network=full, prior=Normal(1.0), method=_WAVES),
        "IVON, low rank": Plan(network=low, prior=Normal(1.0), method=_WAVES),
        "DirectionPrecision, random": Plan(
            network=low,
            prior=Normal(1.0),
            method=DirectionPrecision(directions=RandomDirections(8), **_SLOW),
        ),
        "DirectionPrecision, GGN": Plan(
            network=low,
            prior=Normal(1.0),
            method=DirectionPrecision(directions=GGNDirections(k=8, iterations=5, rows=512), **_SLOW),
        ),
        "window: MeanField, full rank": Plan(network=flat, prior=ScaleMixture(), method=MeanField(**_SLOW)),
        "window: RankOne": Plan(network=perturbed_window, prior=ScaleMixture(), method=RankOne(**_SLOW)),
        "window: Precise": Plan(network=directional_window, prior=Normal(1.0), method=Precise(**_SLOW)),
    },
    draws=16,
    needs_data=True,
)
