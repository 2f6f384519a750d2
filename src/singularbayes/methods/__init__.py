"""Every inference method, one file each. A method is added by its file and one line here."""

from .anchored_ensemble import AnchoredEnsemble, MemberStart
from .collection import Collection
from .covariances import FullCovariance, Kronecker, KroneckerPlusLowRank, LowRankPlusDiagonal
from .curve_profile import CurveProfile
from .curve_weights import BetaWeights, LikelihoodWeights
from .curves import Bezier, Polychain
from .deep_ensemble import DeepEnsemble
from .deep_ensemble_mcmc import DeepEnsembleMCMC
from .direction_precision import DirectionPrecision, GGNDirections, RandomDirections
from .elliptical_slice import EllipticalSlice
from .exact_inference import ExactInference
from .hmc import HMC
from .hybrid_hmc import HybridHMC
from .ivon import IVON
from .laplace_approximation import LaplaceApproximation
from .map import MAP
from .mc_dropout import MCDropout
from .mclmc import MCLMC
from .mean_field import MeanField
from .mixture import Mixture
from .mixture_weights import ByEvidence, Equal, Given, Stacked
from .mode_curve import ModeCurve
from .nuts import NUTS
from .pac_bayes import PACBayes
from .precise import Precise
from .pretrained import Pretrained
from .random_features import RandomFeatures
from .rank_one import RankOne
from .rest import Frozen, Redrawn, SpreadAdded
from .selection import (
    AllParameters,
    Candidates,
    GradientVariance,
    NamedParameters,
    RandomSelection,
    Sensitivity,
)
from .sghmc import SGHMC
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
    DeepEnsembleMCMC,
    AnchoredEnsemble,
    MCDropout,
    MeanField,
    StructuredVI,
    RankOne,
    IVON,
    PACBayes,
    Precise,
    DirectionPrecision,
    SWAG,
    LaplaceApproximation,
    SNGP,
    RandomFeatures,
    Mixture,
    ModeCurve,
    Subspace,
    HMC,
    NUTS,
    MCLMC,
    SGHMC,
    HybridHMC,
)

__all__ = [
    "ALL",
    "HMC",
    "IVON",
    "MAP",
    "MCLMC",
    "NUTS",
    "PCA",
    "SGHMC",
    "SNGP",
    "SWA",
    "SWAG",
    "AllParameters",
    "AnchoredEnsemble",
    "BetaWeights",
    "Bezier",
    "ByEvidence",
    "Candidates",
    "Collection",
    "CurvePlane",
    "CurveProfile",
    "DeepEnsemble",
    "DeepEnsembleMCMC",
    "DirectionPrecision",
    "EllipticalSlice",
    "Equal",
    "ExactInference",
    "Frozen",
    "FullCovariance",
    "GGNDirections",
    "Given",
    "GradientVariance",
    "HybridHMC",
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
    "NamedParameters",
    "PACBayes",
    "Polychain",
    "Precise",
    "Pretrained",
    "RandomDirections",
    "RandomFeatures",
    "RandomProjection",
    "RandomSelection",
    "RankOne",
    "Redrawn",
    "Sensitivity",
    "SpreadAdded",
    "Stacked",
    "StructuredVI",
    "Subspace",
    "SubspaceVI",
]
