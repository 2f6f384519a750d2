"""Bayesian neural networks that stay small and know when they do not know."""

from . import metrics, nn, scores, theory
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
from .methods import (
    IVON,
    MAP,
    DeepEnsemble,
    DirectionPrecision,
    GGNDirections,
    LaplaceApproximation,
    MCDropout,
    MeanField,
    Precise,
    RandomDirections,
    RankOne,
)
from .methods.mean_field import Gradient
from .methods.training import Schedule, TrainingDiverged
from .methods.variational_module import VariationalModule
from .model import Model
from .nn import factorize, linearize, merge
from .posterior import Posterior, load
from .predictive import BernoulliPredictive, CategoricalPredictive, GaussianPredictive
from .priors import Laplace, Normal, PerParameter, ScaleMixture

__version__ = "0.1.0"

__all__ = [
    "IVON",
    "KL",
    "MAP",
    "Bernoulli",
    "BernoulliPredictive",
    "Categorical",
    "CategoricalPredictive",
    "DeepEnsemble",
    "Diagnosis",
    "DiagonalCurvature",
    "DirectionPrecision",
    "Evaluation",
    "Family",
    "FullCurvature",
    "GGNDirections",
    "Gaussian",
    "GaussianPredictive",
    "Gradient",
    "HeteroscedasticGaussian",
    "KroneckerCurvature",
    "Laplace",
    "LaplaceApproximation",
    "LastLayer",
    "MCDropout",
    "MarginalLikelihood",
    "MeanField",
    "Model",
    "Normal",
    "OnlineMarginalLikelihood",
    "PerParameter",
    "Posterior",
    "Precise",
    "RandomDirections",
    "RankOne",
    "ScaleMixture",
    "Schedule",
    "TrainingDiverged",
    "Validation",
    "VariationalModule",
    "diagnose",
    "evaluate",
    "factorize",
    "linearize",
    "load",
    "merge",
    "metrics",
    "nn",
    "scores",
    "theory",
]
