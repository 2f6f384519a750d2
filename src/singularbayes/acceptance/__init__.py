"""Acceptance for use: a checklist of thresholds, what a prediction costs, and a model card."""

from .accept import Acceptance, Outcome, Result, accept
from .card import model_card
from .checklist import Checklist, Item, Measurement
from .cost import Cost, measure_cost
from .template import TEMPLATE

__all__ = [
    "TEMPLATE",
    "Acceptance",
    "Checklist",
    "Cost",
    "Item",
    "Measurement",
    "Outcome",
    "Result",
    "accept",
    "measure_cost",
    "model_card",
]
