"""Every inference method, one file each. A method is added by its file and one line here."""

from .deep_ensemble import DeepEnsemble
from .direction_precision import DirectionPrecision, GGNDirections, RandomDirections
from .ivon import IVON
from .laplace_approximation import LaplaceApproximation
from .map import MAP
from .mc_dropout import MCDropout
from .mean_field import MeanField
from .mixture import Mixture
from .mixture_weights import ByEvidence, Equal, Given, Stacked
from .precise import Precise
from .rank_one import RankOne
from .sngp import SNGP
from .swa import SWA
from .swag import SWAG

ALL = (
    MAP,
    SWA,
    DeepEnsemble,
    MCDropout,
    MeanField,
    RankOne,
    IVON,
    Precise,
    DirectionPrecision,
    SWAG,
    LaplaceApproximation,
    SNGP,
    Mixture,
)

__all__ = [
    "ALL",
    "IVON",
    "MAP",
    "SNGP",
    "SWA",
    "SWAG",
    "ByEvidence",
    "DeepEnsemble",
    "DirectionPrecision",
    "Equal",
    "GGNDirections",
    "Given",
    "LaplaceApproximation",
    "MCDropout",
    "MeanField",
    "Mixture",
    "Precise",
    "RandomDirections",
    "RankOne",
    "Stacked",
]
