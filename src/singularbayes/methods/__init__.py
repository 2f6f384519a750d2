"""Every inference method, one file each. A method is added by its file and one line here."""

from .deep_ensemble import DeepEnsemble
from .direction_precision import DirectionPrecision, GGNDirections, RandomDirections
from .ivon import IVON
from .laplace_approximation import LaplaceApproximation
from .map import MAP
from .mc_dropout import MCDropout
from .mean_field import MeanField
from .precise import Precise
from .rank_one import RankOne

ALL = (
    MAP,
    DeepEnsemble,
    MCDropout,
    MeanField,
    RankOne,
    IVON,
    Precise,
    DirectionPrecision,
    LaplaceApproximation,
)

__all__ = [
    "ALL",
    "IVON",
    "MAP",
    "DeepEnsemble",
    "DirectionPrecision",
    "GGNDirections",
    "LaplaceApproximation",
    "MCDropout",
    "MeanField",
    "Precise",
    "RandomDirections",
    "RankOne",
]
