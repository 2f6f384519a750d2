"""Gaussian processes that a network stands for: its tangent kernel, its prior's, the exact process."""

from .gaussian_process import FittedGaussianProcess, GaussianProcess, Kernel, ProcessMoments
from .prior_covariance import PriorCovariance, nngp
from .tangent import empirical_ntk, jacobian_features, tangent_mean

__all__ = [
    "FittedGaussianProcess",
    "GaussianProcess",
    "Kernel",
    "PriorCovariance",
    "ProcessMoments",
    "empirical_ntk",
    "jacobian_features",
    "nngp",
    "tangent_mean",
]
