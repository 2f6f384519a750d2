"""``icu``: death in hospital from the first 48 hours (PhysioNet 2012).

The data are the open stand-in for the paper's MIMIC-III; they lie in a folder of the user's (``--data``). Net
44-128-128-1, ranks 15/15/1, as in arXiv 2602.00387.
"""

from __future__ import annotations

from pathlib import Path

from torch import nn

from ..likelihoods import Bernoulli
from ..methods import MAP, DeepEnsemble, MCDropout, MeanField
from ..nn import factorize
from ..priors import Normal, ScaleMixture
from .data import icu
from .data.splits import Splits
from .panels import distance_and_correlation
from .recipe import Plan, Recipe, mlp

RANK = 15
SIZES = (44, 128, 128, 1)


def full() -> nn.Module:
    """The deterministic network: 22,401 parameters."""
    return mlp(*SIZES)


def low(rank: int = RANK) -> nn.Module:
    """Ranks 15, 15 and 1: 6,806 parameters, 13,612 variational numbers."""
    return factorize(full(), rank=rank)


def dropped() -> nn.Module:
    """The same with dropout .2."""
    return mlp(*SIZES, dropout=0.2)


def load(folder: Path | None, _seed: int) -> Splits:
    """The splits from the folder that ``--data`` names."""
    if folder is None:
        raise ValueError(
            "the icu recipe reads PhysioNet's data from a folder of yours: add --data FOLDER "
            "(python -m singularbayes.recipes.data.icu_summary says how to make it)"
        )
    return icu.load(folder)


_POINT = MAP(epochs=20, batch_size=64)
_FIELD = {"epochs": 256, "batch_size": 64, "temperature": 32.0}

RECIPE = Recipe(
    name="icu",
    title="ICU mortality: whom does the model not know?",
    what="death in hospital from 44 measurements of the first 48 hours; cardiac surgery held out (near), "
    "permuted (far)",
    load=load,
    likelihood=Bernoulli(),
    plans={
        "MAP": Plan(network=full, prior=Normal(1.0), method=_POINT),
        "DeepEnsemble": Plan(network=full, prior=Normal(1.0), method=DeepEnsemble(members=5, member=_POINT)),
        "MCDropout": Plan(network=dropped, prior=Normal(1.0), method=MCDropout(epochs=20, batch_size=64)),
        "MeanField, full rank": Plan(network=full, prior=ScaleMixture(), method=MeanField(**_FIELD)),
        "MeanField, low rank": Plan(network=low, prior=ScaleMixture(), method=MeanField(**_FIELD)),
    },
    draws=256,
    needs_data=True,
    panels=distance_and_correlation,
)
