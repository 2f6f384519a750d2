"""Halves of chains, ranks of all draws together, and what a normal distribution has at those ranks.

    z = Phi^-1((rank - 3/8) / (S + 1/4)),    S draws in all, the mean rank where values are equal

References:
    Vehtari, Gelman, Simpson, Carpenter and Bürkner 2021, arXiv 1903.08008, eq. 14.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.special import ndtri

__all__ = ["folded", "halves", "normal_scores", "ranks"]

Array = NDArray[np.float64]


def halves(values: Float[np.ndarray, "Q C N"]) -> Float[np.ndarray, "Q C2 H"]:
    """Both halves of each chain as chains of their own; the middle draw of an odd number is left out."""
    half = values.shape[2] // 2
    return np.concatenate([values[..., :half], values[..., values.shape[2] - half :]], 1)


def ranks(values: Float[np.ndarray, "Q C N"]) -> Float[np.ndarray, "Q C N"]:
    """Ranks from 1 among all draws of a quantity; equal values share the mean of theirs.

    A sampler that rejects repeats a position, so ties are usual.
    """
    flat = values.reshape(len(values), -1)
    order = np.argsort(flat, axis=1)
    ascending = np.take_along_axis(flat, order, 1)
    first = np.ones(flat.shape, bool)  # of a run of equal values; a row starts a new one
    np.not_equal(ascending[:, 1:], ascending[:, :-1], out=first[:, 1:])
    if first.all():
        mean = np.broadcast_to(np.arange(1.0, flat.shape[1] + 1), flat.shape)
    else:
        starts = np.flatnonzero(first)
        lengths = np.diff(starts, append=first.size)
        mean = np.repeat(starts % flat.shape[1] + (lengths + 1) / 2, lengths).reshape(flat.shape)
    out = np.empty_like(flat)
    np.put_along_axis(out, order, mean, 1)
    return out.reshape(values.shape)


def normal_scores(values: Float[np.ndarray, "Q C N"]) -> Float[np.ndarray, "Q C N"]:
    """Rank-normalised values."""
    count = values.shape[1] * values.shape[2]
    halfway = np.arange(2.0, 2 * count + 1) / 2  # every rank there is, by steps of a half
    table = ndtri((halfway - 0.375) / (count + 0.25))
    return table[(2 * ranks(values)).astype(np.intp) - 2]


def folded(values: Float[np.ndarray, "Q C N"]) -> Float[np.ndarray, "Q C N"]:
    """Distance from the median of all draws: chains of one centre and different widths differ in it."""
    return np.abs(values - np.median(values, axis=(1, 2), keepdims=True))
