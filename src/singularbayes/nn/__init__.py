"""Structures: deterministic layers that hold a low-rank (or otherwise reduced) weight as plain parameters."""

from .factorize import Factorization, factorize
from .linear import LowRankLinear
from .masks import MaskedDropout
from .recurrent import LowRankGRU, LowRankLSTM

__all__ = ["Factorization", "LowRankGRU", "LowRankLSTM", "LowRankLinear", "MaskedDropout", "factorize"]
