"""Samplers of a log density: chains that run side by side as rows ``(C, d)``; they know no networks."""

from .low_rank_mass import LowRankMass
from .mass import DiagonalMass, UnitMass
from .run import ChainsStuck, ChainWarning
from .sample import sample
from .sampler import Info, Point, Sampler, Target
from .samples import Samples, Statistics
from .step_sequences import Cyclical, Decaying

__all__ = [
    "ChainWarning",
    "ChainsStuck",
    "Cyclical",
    "Decaying",
    "DiagonalMass",
    "Info",
    "LowRankMass",
    "Point",
    "Sampler",
    "Samples",
    "Statistics",
    "Target",
    "UnitMass",
    "sample",
]
