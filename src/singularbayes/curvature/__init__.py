"""Curvature of the loss at a network's weights, by matrix-vector products."""

from .gauss_newton import GaussNewton, leading_directions

__all__ = ["GaussNewton", "leading_directions"]
