"""Structures: deterministic layers that hold a low-rank (or otherwise reduced) weight as plain parameters."""

from .attention import LowRankMultiheadAttention
from .convolution import LowRankConv1d, LowRankConv2d, LowRankConv3d
from .directional import DirectionalLinear
from .embedding import LowRankEmbedding
from .factorize import factorize
from .linear import LowRankLinear
from .linearized import Linearized, linearization_point, linearize
from .masks import MaskedDropout
from .merge import merge
from .plan import plan
from .rank_choice import Energy
from .rank_one import RankOneLayers, RankOneLinear, rank_one
from .recurrent import LowRankGRU, LowRankLSTM
from .table import Factorization
from .transposed import LowRankTransposedLinear

__all__ = [
    "DirectionalLinear",
    "Energy",
    "Factorization",
    "Linearized",
    "LowRankConv1d",
    "LowRankConv2d",
    "LowRankConv3d",
    "LowRankEmbedding",
    "LowRankGRU",
    "LowRankLSTM",
    "LowRankLinear",
    "LowRankMultiheadAttention",
    "LowRankTransposedLinear",
    "MaskedDropout",
    "RankOneLayers",
    "RankOneLinear",
    "factorize",
    "linearization_point",
    "linearize",
    "merge",
    "plan",
    "rank_one",
]
