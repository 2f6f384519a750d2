"""Bayesian neural networks that stay small and know when they do not know."""

from . import conformal, feature_scores, metrics, nn, scores, theory
from .calibration import IsotonicIntervals, Temperature, VectorScaling
from .conformal import conformal_intervals, conformal_sets
from .curvature import (
    DiagonalCurvature,
    FullCurvature,
    KroneckerCurvature,
    LastLayer,
    MarginalLikelihood,
    OnlineMarginalLikelihood,
    Validation,
)
from .diagnosis import Diagnosis, diagnose
from .divergence import KL, Family
from .evaluation import Evaluation, evaluate
from .likelihoods import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian
from .loading import load
from .methods import (
    IVON,
    MAP,
    SNGP,
    SWA,
    SWAG,
    ByEvidence,
    DeepEnsemble,
    DirectionPrecision,
    Equal,
    GGNDirections,
    Given,
    LaplaceApproximation,
    MCDropout,
    MeanField,
    Mixture,
    Precise,
    RandomDirections,
    RankOne,
    Stacked,
)
from .methods.mean_field import Gradient
from .methods.training import Schedule, TrainingDiverged
from .methods.variational_module import VariationalModule
from .mixture_posterior import MixturePosterior
from .model import Model
from .moments import Exact, MeanFieldLink, Moments, MonteCarlo, Probit, moments
from .nn import factorize, linearize, merge
from .posterior import Posterior
from .predictive import BernoulliPredictive, CategoricalPredictive, GaussianPredictive
from .priors import Laplace, Normal, PerParameter, ScaleMixture

__version__ = "0.1.0"

__all__ = [
    "IVON",
    "KL",
    "MAP",
    "SNGP",
    "SWA",
    "SWAG",
    "Bernoulli",
    "BernoulliPredictive",
    "ByEvidence",
    "Categorical",
    "CategoricalPredictive",
    "DeepEnsemble",
    "Diagnosis",
    "DiagonalCurvature",
    "DirectionPrecision",
    "Equal",
    "Evaluation",
    "Exact",
    "Family",
    "FullCurvature",
    "GGNDirections",
    "Gaussian",
    "GaussianPredictive",
    "Given",
    "Gradient",
    "HeteroscedasticGaussian",
    "IsotonicIntervals",
    "KroneckerCurvature",
    "Laplace",
    "LaplaceApproximation",
    "LastLayer",
    "MCDropout",
    "MarginalLikelihood",
    "MeanField",
    "MeanFieldLink",
    "Mixture",
    "MixturePosterior",
    "Model",
    "Moments",
    "MonteCarlo",
    "Normal",
    "OnlineMarginalLikelihood",
    "PerParameter",
    "Posterior",
    "Precise",
    "Probit",
    "RandomDirections",
    "RankOne",
    "ScaleMixture",
    "Schedule",
    "Stacked",
    "Temperature",
    "TrainingDiverged",
    "Validation",
    "VariationalModule",
    "VectorScaling",
    "conformal",
    "conformal_intervals",
    "conformal_sets",
    "diagnose",
    "evaluate",
    "factorize",
    "feature_scores",
    "linearize",
    "load",
    "merge",
    "metrics",
    "moments",
    "nn",
    "scores",
    "theory",
]
