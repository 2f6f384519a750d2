"""The checks that every metric makes before it computes: shapes, ranges and lengths.

``(N, 1)`` counts as ``(N,)`` everywhere, so a column never broadcasts against a vector to ``(N, N)``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


def numbers(values: ArrayLike, name: str) -> Floats:
    """Numbers as float64, ``(N, 1)`` squeezed to ``(N,)``; empty, non-numeric or NaN input is an error.

    Args:
        values: array of any shape ``(N, ...)``.
        name: what the error message calls it.

    Raises:
        TypeError: the values are not numbers.
        ValueError: no rows, a scalar, or a NaN.
    """
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{name} holds {array.dtype}, expected numbers")
    if array.ndim == 0 or array.size == 0:
        raise ValueError(f"{name} has shape {array.shape}, expected at least one row")
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    array = array.astype(np.float64)
    if np.isnan(array).any():
        place = tuple(int(i) for i in np.argwhere(np.isnan(array))[0])
        raise ValueError(f"{name} is NaN at {place}; remove or repair such rows first")
    return array


def vector(values: ArrayLike, name: str) -> Floats:
    """Numbers of shape ``(N,)``; ``(N, 1)`` is squeezed, any other shape is an error."""
    array = numbers(values, name)
    if array.ndim != 1:
        raise ValueError(f"{name} has shape {array.shape}, expected (N,): one number per row")
    return array


def flags(values: ArrayLike, name: str) -> Bools:
    """Booleans of shape ``(N,)`` from 0/1 numbers or booleans."""
    array = vector(values, name)
    wrong = np.flatnonzero((array != 0) & (array != 1))
    if wrong.size:
        raise ValueError(f"{name} is {array[wrong[0]]:g} in row {wrong[0]}, expected 0 or 1")
    return array == 1


def same_shape(**arrays: NDArray[np.generic]) -> None:
    """Raise when the named arrays differ in shape: nothing is ever broadcast."""
    if len({array.shape for array in arrays.values()}) > 1:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise ValueError(f"shapes differ: {shapes}; expected one entry of each per row")


def class_probabilities(values: ArrayLike) -> Floats:
    """Class probabilities ``(N, K)`` that sum to 1 per row, or ``(N,)`` probabilities of class 1."""
    array = numbers(values, "probabilities")
    if array.ndim > 2:
        raise ValueError(f"probabilities have shape {array.shape}, expected (N, K), or (N,) for P(y = 1)")
    if array.min() < -1e-6 or array.max() > 1 + 1e-6:
        raise ValueError(
            f"probabilities lie in [{array.min():g}, {array.max():g}], expected [0, 1]; "
            "turn logits into probabilities first"
        )
    if array.ndim == 2 and not np.allclose(array.sum(1), 1, atol=1e-3):
        row = int(np.argmax(np.abs(array.sum(1) - 1)))
        raise ValueError(
            f"probabilities of row {row} sum to {array[row].sum():g}, expected 1 over the K classes"
        )
    return np.clip(array, 0, 1)


def class_labels(values: ArrayLike, probs: Floats) -> Ints:
    """Integer labels ``(N,)`` within the classes of ``probs``; floats and booleans are the same labels."""
    array = vector(values, "labels")
    classes = probs.shape[1] if probs.ndim == 2 else 2
    if len(array) != len(probs):
        raise ValueError(
            f"{len(array)} labels for {len(probs)} rows of probabilities; expected one label per row"
        )
    wrong = np.flatnonzero((array != np.round(array)) | (array < 0) | (array >= classes))
    if wrong.size:
        raise ValueError(
            f"label {array[wrong[0]]:g} in row {wrong[0]} is not a class, expected 0..{classes - 1}"
        )
    return array.astype(np.int64)
