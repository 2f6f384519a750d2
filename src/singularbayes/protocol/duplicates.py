"""Rows of one set that stand in another: exact copies by hashing, near copies by a bound on projections.

Exact copies: rows are hashed to 64 bits and every match of hashes is compared, so nothing is missed and
nothing is found that is not there. Near copies: with features in units of a scale, row ``b`` is a near copy
of ``a`` when the root mean square of ``a - b`` is at most a tolerance. A projection on orthonormal directions
never lengthens a difference, so a search of radius ``tolerance * sqrt(features)`` among a few projections
finds all of them; each is then compared in full.

In few dimensions rows come close by chance. A near copy by chance is not much closer than the next rows are:
with intrinsic dimension D, P(d_1 < u d_k) = 1 - (1 - u^D)^(k - 1). Near copies count as found only where
there are more of these than that (:func:`beyond_chance`).

References:
    Levina and Bickel 2004, "Maximum likelihood estimation of intrinsic dimension", equation 8.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import KDTree

from ..provenance import hash_of_bits, mixed_bits

__all__ = ["Copies", "beyond_chance", "exact_copies", "near_copies", "repeated_share"]

Matrix = NDArray[np.float64]
Ints = NDArray[np.int64]

DIRECTIONS = 8  # projections that near copies are searched in
BLOCK = 4096  # rows at a time
NEIGHBOURS = 5  # k: up to four near copies of one row in the same set are still seen
CLOSER = 1 / 32  # u: how much closer than its k-th neighbour a copy has to be
SAMPLE = 200  # rows that the dimension is estimated from
JUDGED = 1000  # most near copies that are compared with chance
CAUTION = 0.9  # of the estimated dimension
ERRORS = 4.0  # standard errors above chance


@dataclass(frozen=True)
class Copies:
    """Rows of a set that have a copy in another one, and one such row there each."""

    rows: Ints
    partners: Ints


def row_hashes(rows: Matrix) -> NDArray[np.uint64]:
    """64 bits a row ``(n,)``; equal for equal rows (-0 and 0 are equal)."""
    bits = np.ascontiguousarray(rows + 0.0).view(np.uint64)
    return hash_of_bits(mixed_bits(bits), 0)  # mixed first: of small numbers only the upper bits are not 0


def exact_copies(others: Matrix, rows: Matrix) -> Copies:
    """The rows of ``rows (n, k)`` that stand in ``others (m, k)``."""
    theirs = row_hashes(others)
    order = np.argsort(theirs, kind="stable")
    theirs = theirs[order]
    ours = row_hashes(rows)
    first, stop = (np.searchsorted(theirs, ours, side) for side in ("left", "right"))
    found, partners = [], []
    for row in np.flatnonzero(first < stop):
        same = order[first[row] : stop[row]]
        equal = same[(others[same] == rows[row]).all(axis=1)]
        if equal.size:
            found.append(row)
            partners.append(equal[0])
    return Copies(np.asarray(found, np.int64), np.asarray(partners, np.int64))


def repeated_share(rows: Matrix) -> float:
    """Share of rows that stand in their own set more than once."""
    _, index, counts = np.unique(row_hashes(rows), return_inverse=True, return_counts=True)
    return float((counts[index] > 1).mean())


def near_copies(others: Matrix, rows: Matrix, tolerance: float) -> Copies:
    """The rows that are near copies of a row of ``others`` and no exact copy of any.

    Args:
        others: ``(m, k)``, in units of a scale for each feature.
        rows: ``(n, k)`` in the same units.
        tolerance: root mean square difference up to which two rows count as the same.
    """
    directions = _directions(others)
    radius = tolerance * math.sqrt(rows.shape[1])
    tree = KDTree(others @ directions)
    found, partners = [], []
    slack = 1e-9 * (1 + np.abs(others).max(initial=0.0))  # rounding of the projections
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK]
        for row, near in enumerate(tree.query_ball_point(block @ directions, radius + slack)):
            if not near:
                continue
            distance = np.linalg.norm(others[near] - block[row], axis=1)
            best = int(distance.argmin())
            if 0 < distance[best] <= radius:
                found.append(start + row)
                partners.append(near[best])
    return Copies(np.asarray(found, np.int64), np.asarray(partners, np.int64))


def _directions(rows: Matrix) -> Matrix:
    """Orthonormal columns ``(k, r)`` along which some of the rows differ most."""
    some = rows[np.linspace(0, len(rows) - 1, min(len(rows), 1000)).astype(int)]
    _, _, directions = np.linalg.svd(some - some.mean(axis=0), full_matrices=False)
    return directions[:DIRECTIONS].T


def beyond_chance(others: Matrix, rows: Matrix, copies: Copies, seed: int = 0) -> bool:
    """Whether near copies are more, and closer, than rows that come close by chance.

    Args:
        others: ``(m, k)``, as for :func:`near_copies`.
        rows: ``(n, k)``.
        copies: what :func:`near_copies` found.
        seed: of the rows that the dimension is estimated from.
    """
    count = len(copies.rows)
    distinct = others[np.unique(row_hashes(others), return_index=True)[1]]
    if not count or len(distinct) <= NEIGHBOURS:
        return bool(count)
    rng = np.random.default_rng(seed)
    judged = rng.permutation(copies.rows)[:JUDGED]
    tree = KDTree(distinct)
    distance = _nearest(tree, rows[judged], NEIGHBOURS)
    closer = int((distance[:, 0] < CLOSER * distance[:, -1]).sum())
    some = rng.permutation(len(distinct))[:SAMPLE]
    dimension = _dimension(
        _nearest(tree, distinct[some], NEIGHBOURS + 1)[:, 1:]
    )  # the first is the row itself
    chance = 1 - (1 - CLOSER**dimension) ** (NEIGHBOURS - 1)
    expected = chance * len(rows) * len(judged) / count  # of all rows, whether near or not
    return bool(closer > expected + ERRORS * math.sqrt(expected))


def _nearest(tree: KDTree, rows: Matrix, count: int) -> Matrix:
    """Distances ``(n, count)`` to the nearest rows of the tree, ascending."""
    return np.asarray(tree.query(rows, k=count)[0], np.float64).reshape(len(rows), count)


def _dimension(distance: Matrix) -> float:
    """Intrinsic dimension, at least 1, without the nearest row (copies).

    ``D log(d_k / d_j)`` are k - 1 ordered standard exponentials, whose sum without the largest is
    ``k - 1 - (1 + 1/2 + ... + 1/(k - 1))`` in expectation.
    """
    inner, outer = distance[:, 1:-1], distance[:, -1:]
    usable = (inner > 0).all(axis=1)
    if not usable.any():
        return 1.0
    spread = np.log(outer[usable] / inner[usable]).sum(axis=1).mean()
    exponentials = NEIGHBOURS - 1 - sum(1 / j for j in range(1, NEIGHBOURS))
    return max(1.0, CAUTION * exponentials / spread) if spread > 0 else 1.0
