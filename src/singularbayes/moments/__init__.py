"""Mean and covariance of a posterior's outputs without draws, and the predictives that they give."""

from .choice import moments
from .closed_form import ClosedForm
from .delta import Delta
from .links import Exact, MeanFieldLink, MonteCarlo, Probit
from .outputs import Link, Method, Moments
from .propagation import Propagation, covered

__all__ = [
    "ClosedForm",
    "Delta",
    "Exact",
    "Link",
    "MeanFieldLink",
    "Method",
    "Moments",
    "MonteCarlo",
    "Probit",
    "Propagation",
    "covered",
    "moments",
]
