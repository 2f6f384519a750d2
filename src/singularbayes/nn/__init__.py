"""Structures: deterministic layers that hold a low-rank (or otherwise reduced) weight as plain parameters."""

from .convolution import LowRankConv1d, LowRankConv2d, LowRankConv3d
from .factorize import Factorization, factorize
from .linear import LowRankLinear
from .masks import MaskedDropout
from .rank_one import RankOneLayers, RankOneLinear, rank_one
from .recurrent import LowRankGRU, LowRankLSTM

__all__ = [
    "Factorization",
    "LowRankConv1d",
    "LowRankConv2d",
    "LowRankConv3d",
    "LowRankGRU",
    "LowRankLSTM",
    "LowRankLinear",
    "MaskedDropout",
    "RankOneLayers",
    "RankOneLinear",
    "factorize",
    "rank_one",
]
