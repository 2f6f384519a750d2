"""Mean and covariance of a posterior's outputs without draws, and the predictives that they give."""

from .closed_form import moments
from .links import Exact, MeanFieldLink, MonteCarlo, Probit
from .outputs import Link, Moments

__all__ = ["Exact", "Link", "MeanFieldLink", "Moments", "MonteCarlo", "Probit", "moments"]
