"""R-hat: how far chains that should be one distribution are from being one.

    R-hat = sqrt((B / W + H - 1) / H)

``B`` is ``H`` times the variance of the chains' means, ``W`` the mean of their variances, over halves of
``H`` draws, so that a chain that drifts differs from itself. Draws are rank-normalised first (heavy tails),
and once more folded about their median (equal centres, different widths); the larger counts. 1 is perfect;
the authors ask for less than 1.01.

References:
    Vehtari, Gelman, Simpson, Carpenter and Bürkner 2021, arXiv 1903.08008, section 3; chain by chain: Sommer
    et al. 2025, arXiv 2502.06335 (MILE), appendix.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from .ranks import folded, halves, normal_scores
from .reading import Quantities, each

__all__ = ["potential_scale_reduction", "rhat", "rhat_by_chain", "split_rhat"]

Array = NDArray[np.float64]


def potential_scale_reduction(values: Float[np.ndarray, "Q C N"]) -> Float[np.ndarray, " Q"]:
    """R-hat of chains as they are: neither split nor ranked.

    Infinite where no chain moves and they stand apart.
    """
    length = values.shape[2]
    between = length * values.mean(2).var(1, ddof=1)
    variances = values.var(2, ddof=1)
    variances[(values == values[..., :1]).all(2)] = 0  # not what rounding makes of it
    within = variances.mean(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt((between / within + length - 1) / length)


def split_rhat(
    values: Float[np.ndarray, "Q C N"], scores: Float[np.ndarray, "Q C2 H"] | None = None
) -> Float[np.ndarray, " Q"]:
    """The larger of R-hat for location and for width; see :func:`rhat`.

    Args:
        values: draws.
        scores: normal scores of their halves, where they are known.
    """
    split = halves(values)
    place = potential_scale_reduction(normal_scores(split) if scores is None else scores)
    width = potential_scale_reduction(normal_scores(folded(split)))
    return np.fmax(place, width)


def rhat(draws: Any) -> Array:
    """Rank-normalised split R-hat of every quantity.

    One chain is compared with itself, half against half: that says nothing of modes that it never saw.

    Args:
        draws: ``(C, N, ...)``: an array, a tensor, or ``Samples``.

    Returns:
        ``(...)``. nan for a quantity that is constant or not finite, and below 4 draws of a chain; infinite
        where every chain stands still at a place of its own.

    Raises:
        TypeError, ValueError: no numbers, or another shape.

    Example:
        >>> source = np.random.default_rng(0)
        >>> mixed = source.standard_normal((4, 500, 2))
        >>> apart = mixed + np.arange(4.0)[:, None, None]
        >>> rhat(mixed).round(2), rhat(apart).round(1)
        (array([1., 1.]), array([1.6, 1.6]))
    """
    return each(draws, split_rhat)


def rhat_by_chain(draws: Any) -> Array:
    """Split R-hat of each chain alone: whether it has settled, wherever that is.

    Chains of a network usually sit in modes of their own, so that R-hat over chains is large for weights and
    says little; this one says whether each chain is done with its own mode.

    Args:
        draws: ``(C, N, ...)``, as for :func:`rhat`.

    Returns:
        ``(C, ...)``; nan as for :func:`rhat`.
    """
    quantities = Quantities(draws)
    out = np.full((quantities.chains, quantities.count), np.nan)
    for part, values in quantities.chunks():
        for chain in range(quantities.chains):
            alone = np.moveaxis(values[:, chain : chain + 1], 0, 2)
            out[chain, part] = rhat(alone)
    return out.reshape(quantities.chains, *quantities.shape)
