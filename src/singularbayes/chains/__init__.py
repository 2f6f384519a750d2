"""Diagnostics of chains: are the draws of a sampler enough, and from one distribution?

On arrays ``(C, N, ...)`` (chains, draws of each, quantities), on ``Samples``, and on posteriors.

A network's posterior has many arrangements of its hidden units that predict the same (label switching), and
each chain stays in its own. So R-hat of weights over chains is usually far above 1 while R-hat of
predictions is near it. Judge by :func:`summary` ``(posterior, x)``; weights say through
:func:`rhat_by_chain` whether each chain has settled.
"""

from .cumulative import CumulativeLogDensity, cumulative_log_density
from .effective_size import ess_bulk, ess_by_chain, ess_mean, ess_quantile, ess_std, ess_tail
from .mixing import rhat, rhat_by_chain
from .posteriors import by_chain, predictions
from .standard_error import mcse_mean, mcse_quantile, mcse_std
from .summary import overview, summary

__all__ = [
    "CumulativeLogDensity",
    "by_chain",
    "cumulative_log_density",
    "ess_bulk",
    "ess_by_chain",
    "ess_mean",
    "ess_quantile",
    "ess_std",
    "ess_tail",
    "mcse_mean",
    "mcse_quantile",
    "mcse_std",
    "overview",
    "predictions",
    "rhat",
    "rhat_by_chain",
    "summary",
]
