"""The theory of singular posteriors, computed."""

from .correlation import weight_correlation, weight_covariance

__all__ = ["weight_correlation", "weight_covariance"]
