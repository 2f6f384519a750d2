"""``icu``: death in hospital from the first 48 hours (PhysioNet 2012), the open stand-in for MIMIC-III.

Net 44-128-128-1, ranks 15/15/1, as in arXiv 2602.00387. The data lie in a folder of the user's (``--data``).

``icu`` has each method at its best by ONE rule, on validation data and the OOD sets for choices alone
(``python benchmarks/choose.py icu ...``, see docs/results.md): of the settings whose calibrated NLL is within
.01 nats of the method's own best, the one with the highest mean AUROC (mutual information), near and far.
The last line is a mixture of eight low-rank posteriors: 108,896 numbers, fewer than five full networks.
``icu-paper`` has the paper's own protocol: 256 epochs for all, KL temperature 32.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torch import nn

from ..likelihoods import Bernoulli
from ..methods import MAP, DeepEnsemble, MCDropout, MeanField
from ..priors import Normal, ScaleMixture
from .data import icu
from .data.splits import Splits
from .panels import distance_and_correlation
from .recipe import Plan, Recipe, all_low_rank, mlp

RANK = 15
SIZES = (44, 128, 128, 1)


def full() -> nn.Module:
    """The deterministic network: 22,401 parameters."""
    return mlp(*SIZES)


def low(rank: int = RANK) -> nn.Module:
    """Ranks 15, 15 and 1: 6,806 parameters, 13,612 variational numbers."""
    return all_low_rank(full(), rank)


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


def _plans(
    point: MAP, dropout: MCDropout, full_rank: MeanField, low_rank: MeanField, std1: float
) -> dict[str, Plan]:
    narrow = ScaleMixture(std1=std1)
    return {
        "MAP": Plan(network=full, prior=Normal(1.0), method=point),
        "DeepEnsemble": Plan(network=full, prior=Normal(1.0), method=DeepEnsemble(members=5, member=point)),
        "MCDropout": Plan(network=dropped, prior=Normal(1.0), method=dropout),
        "MeanField, full rank": Plan(network=full, prior=ScaleMixture(), method=full_rank),
        "MeanField, low rank": Plan(network=low, prior=narrow, method=low_rank),
    }


_MEMBER = MeanField(epochs=5, initial_std=0.05, temperature=8.0)

RECIPE = Recipe(
    name="icu",
    title="ICU mortality: whom does the model not know?",
    what="death in hospital from 44 measurements of 48 h; cardiac surgery held out (near), permuted (far)",
    load=load,
    likelihood=Bernoulli(),
    plans={
        **_plans(
            point=MAP(epochs=2),
            dropout=MCDropout(epochs=2),
            full_rank=MeanField(epochs=20, initial_std=0.6, temperature=1.0),
            low_rank=MeanField(epochs=120, initial_std=0.2, temperature=2.0),
            std1=0.5,
        ),
        "Ensemble of low rank": Plan(
            network=low, prior=ScaleMixture(), method=DeepEnsemble(members=8, member=_MEMBER)
        ),
    },
    draws=256,
    needs_data=True,
    panels=distance_and_correlation,
)

_PAPER = MeanField(epochs=256, initial_std=0.1, temperature=32.0)

PAPER = replace(
    RECIPE,
    name="icu-paper",
    title="ICU mortality by the paper's protocol",
    what="as icu, with the settings of arXiv 2602.00387: 256 epochs for all, KL temperature 32",
    plans=_plans(
        point=MAP(epochs=256),
        dropout=MCDropout(epochs=256),
        full_rank=_PAPER,
        low_rank=_PAPER,
        std1=1.0,
    ),
)
