"""Structures: deterministic layers that hold a low-rank (or otherwise reduced) weight as plain parameters."""

from .attention import LowRankMultiheadAttention
from .embedding import LowRankEmbedding
from .factorize import Factorization, factorize
from .linear import LowRankLinear
from .masks import MaskedDropout

__all__ = [
    "Factorization",
    "LowRankEmbedding",
    "LowRankLinear",
    "LowRankMultiheadAttention",
    "MaskedDropout",
    "factorize",
]
