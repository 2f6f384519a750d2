"""``digits-structures``: one data set, one size of network, every belief that the library has of its own.

Settings were chosen on the validation digits and the OOD sets for choices (never scored), with
``python benchmarks/choose.py digits-structures``; the mean-field rows are those of ``digits``.
"""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from ..likelihoods import Categorical
from ..methods import IVON, DirectionPrecision, GGNDirections, Precise, RandomDirections, RankOne
from ..nn import DirectionalLinear, rank_one
from ..priors import Normal, ScaleMixture
from . import digits
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
    what=digits.RECIPE.what,
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
