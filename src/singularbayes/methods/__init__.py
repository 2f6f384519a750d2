"""Every inference method, one file each. A method is added by its file and one line here."""

from .anchored_ensemble import AnchoredEnsemble, MemberStart
from .collection import Collection
from .covariances import FullCovariance, Kronecker, KroneckerPlusLowRank, LowRankPlusDiagonal
from .curve_profile import CurveProfile
from .curve_weights import BetaWeights, LikelihoodWeights
from .curves import Bezier, Polychain
from .deep_ensemble import DeepEnsemble
from .direction_precision import DirectionPrecision, GGNDirections, RandomDirections
from .elliptical_slice import EllipticalSlice
from .ivon import IVON
from .laplace_approximation import LaplaceApproximation
from .map import MAP
from .mc_dropout import MCDropout
from .mean_field import MeanField
from .mixture import Mixture
from .mixture_weights import ByEvidence, Equal, Given, Stacked
from .mode_curve import ModeCurve
from .precise import Precise
from .pretrained import Pretrained
from .rank_one import RankOne
from .sngp import SNGP
from .structured_vi import StructuredVI
from .subspace import Subspace
from .subspace_bases import PCA, CurvePlane, RandomProjection
from .subspace_vi import SubspaceVI
from .swa import SWA
from .swag import SWAG

ALL = (
    MAP,
    SWA,
    DeepEnsemble,
    AnchoredEnsemble,
    MCDropout,
    MeanField,
    StructuredVI,
    RankOne,
    IVON,
    Precise,
    DirectionPrecision,
    SWAG,
    LaplaceApproximation,
    SNGP,
    Mixture,
    ModeCurve,
    Subspace,
)

__all__ = [
    "ALL",
    "IVON",
    "MAP",
    "PCA",
    "SNGP",
    "SWA",
    "SWAG",
    "AnchoredEnsemble",
    "BetaWeights",
    "Bezier",
    "ByEvidence",
    "Collection",
    "CurvePlane",
    "CurveProfile",
    "DeepEnsemble",
    "DirectionPrecision",
    "EllipticalSlice",
    "Equal",
    "FullCovariance",
    "GGNDirections",
    "Given",
    "Kronecker",
    "KroneckerPlusLowRank",
    "LaplaceApproximation",
    "LikelihoodWeights",
    "LowRankPlusDiagonal",
    "MCDropout",
    "MeanField",
    "MemberStart",
    "Mixture",
    "ModeCurve",
    "Polychain",
    "Precise",
    "Pretrained",
    "RandomDirections",
    "RandomProjection",
    "RankOne",
    "Stacked",
    "StructuredVI",
    "Subspace",
    "SubspaceVI",
]
