"""``digits``: handwritten digits inside the package; 8 and 9 held out as near OOD, photographs as far OOD.

Settings were chosen on the validation digits and the OOD sets for choices (never scored), with
``python benchmarks/choose.py digits``.
"""

from __future__ import annotations

from pathlib import Path

from torch import nn

from ..likelihoods import Categorical
from ..methods import MAP, DeepEnsemble, MCDropout, MeanField
from ..priors import Normal, ScaleMixture
from .data import digits
from .data.splits import Splits
from .panels import distance_and_correlation
from .recipe import Plan, Recipe, all_low_rank, mlp

RANK = 15
SIZES = (64, 128, 128, 8)


def full() -> nn.Module:
    """The deterministic network 64-128-128-8."""
    return mlp(*SIZES)


def low(rank: int = RANK) -> nn.Module:
    """The same with hidden layers of rank 15 (head: 8, its smaller side)."""
    return all_low_rank(full(), rank)


def dropped() -> nn.Module:
    """The same with dropout .2."""
    return mlp(*SIZES, dropout=0.2)


def load(_folder: Path | None, _seed: int) -> Splits:
    """The splits; nothing is read from a folder."""
    return digits.load()


_POINT = MAP(epochs=30)
_FIELD = MeanField(epochs=150, learning_rate=3e-3, temperature=0.1, initial_std=0.3)

RECIPE = Recipe(
    name="digits",
    title="Digits: does the network know what it has not seen?",
    what="scikit-learn's handwritten digits 0 to 7; 8 and 9 held out (near), patches of photographs (far)",
    load=load,
    likelihood=Categorical(),
    plans={
        "MAP": Plan(network=full, prior=Normal(1.0), method=_POINT),
        "DeepEnsemble": Plan(network=full, prior=Normal(1.0), method=DeepEnsemble(members=5, member=_POINT)),
        "MCDropout": Plan(network=dropped, prior=Normal(1.0), method=MCDropout(epochs=120)),
        "MeanField, full rank": Plan(network=full, prior=ScaleMixture(), method=_FIELD),
        "MeanField, low rank": Plan(network=low, prior=ScaleMixture(), method=_FIELD),
    },
    panels=distance_and_correlation,
    calibrate=False,
)
