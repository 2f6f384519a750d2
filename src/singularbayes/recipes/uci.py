"""``uci-...``: nine regression problems with published splits, one hidden layer of 50; a seed is a split.

``--seeds 20`` runs all splits of one set (protein has 5). Results are in the target's own units. MC dropout
and the ensemble have their authors' protocols, so that their published RMSE can be met: dropout (on inputs
too) for 400 epochs in batches of 32, rate and noise level by validation log-likelihood; five networks that
predict their noise, 40 epochs in batches of 100. What chooses nothing is fitted to train and validation
together, as published; its settings are one for all sets, SWAG's step size aside. ``benchmarks/uci.py`` makes
the table.

Settings that were chosen had the least validation NLL, uncalibrated, of ``benchmarks/choose.py`` on the first
splits: the ensemble's learning rate of .1 (the authors'), .03, .01, .003 by the mean over the five small
sets; dropout's batch of 32 and 128 on boston and energy; SWAG's step size for each set.

The data lie in a folder of the user's (``--data``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from ..curvature import FullCurvature, MarginalLikelihood
from ..likelihoods import Gaussian, HeteroscedasticGaussian, Likelihood
from ..methods import (
    MAP,
    PCA,
    SNGP,
    SWAG,
    DeepEnsemble,
    LaplaceApproximation,
    MCDropout,
    MeanField,
    Pretrained,
    StructuredVI,
    Subspace,
)
from ..methods.collection import Collection
from ..nn import factorize
from ..priors import Normal
from .data import uci
from .data.splits import Splits
from .recipe import Plan, Recipe, mlp
from .tuned_dropout import TunedDropout

__all__ = ["RECIPES"]

HIDDEN = 50


def full(features: int) -> nn.Module:
    """One hidden layer of 50."""
    return mlp(features, HIDDEN, 1)


def low(features: int) -> nn.Module:
    """The same with a hidden matrix of half its rank, 4 at most; the last layer has rank 1 anyway."""
    return factorize(full(features), rank={"0": min(4, features // 2)})


def noisy(features: int) -> nn.Module:
    """The same with two outputs, mean and log variance."""
    return mlp(features, HIDDEN, 2)


def dropped(features: int) -> nn.Module:
    """The same with dropout before both layers, as published; the rate is chosen."""
    return nn.Sequential(
        nn.Dropout(0.05), nn.Linear(features, HIDDEN), nn.ReLU(), nn.Dropout(0.05), nn.Linear(HIDDEN, 1)
    )


def load(name: str, folder: Path | None, split: int) -> Splits:
    """One split from the folder that ``--data`` names."""
    if folder is None:
        raise ValueError(
            f"the uci-{name} recipe reads {uci.SETS[name].file}.npz from a folder of yours: add --data "
            f"FOLDER; to get it: {uci.HOW_TO_GET}"
        )
    return uci.load(folder, name, split)


def plan(
    network: Callable[[int], nn.Module], features: int, method: Any, likelihood: Likelihood | None = None
) -> Plan:
    """A line of the table for a method that chooses nothing."""
    return Plan(
        network=partial(network, features),
        prior=Normal(1.0),
        method=method,
        likelihood=likelihood,
        joins_validation=True,
    )


LARGE = 5000
"""From so many rows on: batches of 128 in place of 32, 100 epochs of what has no published number in place of
400, and dropout rates tried for a quarter of the epochs."""


COLLECT_RATE = {
    "boston": 3e-3, "concrete": 3e-3, "energy": 1e-4, "kin8nm": 3e-3, "naval": 1e-5, "power": 3e-4,
    "protein": 1e-3, "wine": 1e-2, "yacht": 1e-4,
}  # fmt: skip
"""SWAG's step size: what is stable falls with the noise, by three orders of magnitude between the sets."""


def plans(name: str, problem: uci.Problem) -> Mapping[str, Plan]:
    """The methods for one set; one more method is one more line."""
    features, large = problem.features, problem.rows >= LARGE
    batch_size = 128 if large else 32
    epochs = 100 if large else 400
    point = MAP(epochs=epochs, batch_size=batch_size)
    member = MAP(epochs=40, batch_size=100, learning_rate=0.01, temperature=0.0)
    field = MeanField(epochs=epochs, batch_size=batch_size, learning_rate=3e-3)
    joint = StructuredVI(epochs=epochs, batch_size=batch_size, learning_rate=3e-3)
    laplace = LaplaceApproximation(
        structure=FullCurvature(), prior_precision=MarginalLikelihood(per_tensor=True, noise=True)
    )
    dropout = MCDropout(epochs=400, batch_size=32)
    walk = Collection(epochs=40, start_epoch=0, collect_rate=COLLECT_RATE[name], batch_size=batch_size)
    own: Likelihood = HeteroscedasticGaussian()
    return {
        "MAP": plan(full, features, point),
        "DeepEnsemble": plan(noisy, features, DeepEnsemble(members=5, member=member), likelihood=own),
        "MCDropout": Plan(
            network=partial(dropped, features),
            prior=Normal(100.0),
            method=TunedDropout(member=dropout, share=0.25 if large else 1.0),
            likelihood=Gaussian(noise=1.0),
            uses_validation=True,
        ),
        "MeanField, full rank": plan(full, features, field),
        "MeanField, low rank": plan(low, features, field),
        "StructuredVI": plan(full, features, joint),
        "Laplace": plan(full, features, Pretrained(point=point, member=laplace)),
        "SWAG": plan(full, features, Pretrained(point=point, member=SWAG(**vars(walk)))),
        "Subspace": plan(
            full, features, Pretrained(point=point, member=Subspace(trajectory=walk, basis=PCA(5)))
        ),
        "SNGP": plan(full, features, SNGP(epochs=epochs, batch_size=batch_size)),
    }


RECIPES = tuple(
    Recipe(
        name=f"uci-{name}",
        title=f"UCI {name}: error and log-likelihood on the published splits",
        what=f"{problem.rows:,} rows, {problem.features} features, published split = seed",
        load=partial(load, name),
        likelihood=Gaussian(),
        plans=plans(name, problem),
        draws=256,
        needs_data=True,
        varies_data=True,
        calibrate=False,
    )
    for name, problem in uci.SETS.items()
)
