"""Scores of features beside a posterior: fitted on training data, ``.score(x) -> (B,)``, higher is more OOD.

    score = Mahalanobis().fit(posterior, train)
    evaluate(posterior, test, ood, scores={"mahalanobis": score, "energy": Energy(posterior)})

Features are the posterior's own (:class:`Penultimate`), any encoder's (:class:`Frozen`), or the inputs.
"""

from .combination import Combination, FittedCombination, InputScore
from .encoders import Features, Frozen, Inputs, Penultimate
from .logits import Energy, MaxLogit
from .mahalanobis import FittedMahalanobis, FittedRelativeMahalanobis, Mahalanobis, RelativeMahalanobis
from .neighbours import FittedNeighbours, NearestNeighbours
from .posterior_score import PosteriorScore

__all__ = [
    "Combination",
    "Energy",
    "Features",
    "FittedCombination",
    "FittedMahalanobis",
    "FittedNeighbours",
    "FittedRelativeMahalanobis",
    "Frozen",
    "InputScore",
    "Inputs",
    "Mahalanobis",
    "MaxLogit",
    "NearestNeighbours",
    "Penultimate",
    "PosteriorScore",
    "RelativeMahalanobis",
]
