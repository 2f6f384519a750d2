"""Curvature of the loss at a network's weights: products, and Gauss-Newton matrices in several structures."""

from .diagonal import DiagonalCurvature
from .evidence import Evidence, MarginalLikelihood
from .expansion import Curvature, Expansion, Measured, Structure
from .full import FullCurvature
from .gauss_newton import GaussNewton, leading_directions
from .kronecker import KroneckerCurvature
from .online_evidence import OnlineMarginalLikelihood
from .subset import LastLayer
from .validation import Validation

__all__ = [
    "Curvature",
    "DiagonalCurvature",
    "Evidence",
    "Expansion",
    "FullCurvature",
    "GaussNewton",
    "KroneckerCurvature",
    "LastLayer",
    "MarginalLikelihood",
    "Measured",
    "OnlineMarginalLikelihood",
    "Structure",
    "Validation",
    "leading_directions",
]
