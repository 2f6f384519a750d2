"""Structures: deterministic layers that hold a low-rank (or otherwise reduced) weight as plain parameters."""

from .attention import LowRankMultiheadAttention
from .convolution import LowRankConv1d, LowRankConv2d, LowRankConv3d
from .embedding import LowRankEmbedding
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
    "LowRankEmbedding",
    "LowRankGRU",
    "LowRankLSTM",
    "LowRankLinear",
    "LowRankMultiheadAttention",
    "MaskedDropout",
    "RankOneLayers",
    "RankOneLinear",
    "factorize",
    "rank_one",
]
