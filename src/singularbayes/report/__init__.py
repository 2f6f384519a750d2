"""Figures and the HTML report."""

from singularbayes.report.chains import chain_panels, rank_plot, trace_plot
from singularbayes.report.content import Entry, Panel, Report
from singularbayes.report.covariance import (
    Field,
    correlation_pictures,
    uncertainty_by_distance,
    variance_field,
)
from singularbayes.report.estimate import Estimate, pool
from singularbayes.report.figures import (
    coverage_curve,
    forest_plot,
    reliability_diagram,
    uncertainty_histograms,
)
from singularbayes.report.html import picture, render, write
from singularbayes.report.palette import MethodStyle, method_styles
from singularbayes.report.panels import standard_panels
from singularbayes.report.severity import severity_plot
from singularbayes.report.spectra import (
    bound_against_rank,
    crossing,
    loss_against_rank,
    singular_value_plot,
)
from singularbayes.report.verdict import Finding, verdict

__all__ = [
    "Entry",
    "Estimate",
    "Field",
    "Finding",
    "MethodStyle",
    "Panel",
    "Report",
    "bound_against_rank",
    "chain_panels",
    "correlation_pictures",
    "coverage_curve",
    "crossing",
    "forest_plot",
    "loss_against_rank",
    "method_styles",
    "picture",
    "pool",
    "rank_plot",
    "reliability_diagram",
    "render",
    "severity_plot",
    "singular_value_plot",
    "standard_panels",
    "trace_plot",
    "uncertainty_by_distance",
    "uncertainty_histograms",
    "variance_field",
    "verdict",
    "write",
]
