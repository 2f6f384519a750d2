"""Handwritten digits of 8 by 8 pixels, part of scikit-learn, with two kinds of OOD images.

In distribution are the digits 0..7. Scored as OOD:

- near: every image of the digits 8 and 9, which no other set holds (no labels: they are none of the eight
  classes);
- far: 8 by 8 grey patches of scikit-learn's two photographs, 0..255 mapped to the digits' range 0..16.

For choices (`ood_validation`), nothing of the scored sets is used:

- near: validation digits with their quadrants swapped diagonally. Strokes and grey levels stay those of
  digits, but no digit is left. Halving the 8s and 9s would have shown the scored classes to whoever chooses,
  hence a third kind;
- far: patches from the left quarter of one photograph, an area that the scored patches leave out.

References:
    E. Alpaydin, C. Kaynak (1998), Optical Recognition of Handwritten Digits, UCI Machine Learning Repository.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits, load_sample_images

from singularbayes.recipes.data.splits import Splits

HELD_OUT = (8, 9)
IN_DISTRIBUTION = (0, 1, 2, 3, 4, 5, 6, 7)
SIDE = 8
HIGHEST = 16.0
SHARES = (0.6, 0.2)
"""Shares of train and validation in each class; the rest is test."""

Array = NDArray[np.float64]


def load(seed: int = 0) -> Splits:
    """The digits recipe's data: X (n, 64) float32 in units of train's standard deviation, y int64 in 0..7.

    Args:
        seed: decides which images of each class go to train, validation and test; the OOD patches don't
            depend on it.

    Returns:
        Splits with `ood` and `ood_validation` sets "near" and "far", without labels.

    Raises:
        ImportError: Pillow, with which scikit-learn reads its photographs, is not installed.
    """
    source = load_digits(return_X_y=True)
    images, labels = np.asarray(source[0], dtype=np.float64), np.asarray(source[1], dtype=np.int64)
    china, flower = (photograph.mean(axis=2) for photograph in load_sample_images().images)
    return from_images(images, labels, china, flower, seed)


def from_images(images: Array, labels: NDArray[np.integer], first: Array, second: Array, seed: int) -> Splits:
    """Divide and standardise digit images, and cut the OOD patches from two grey photographs.

    X = (pixel - m) / s with ONE mean m and ONE standard deviation s, over all pixels of the training images.

    Args:
        images: (n, 64), grey levels 0..16.
        labels: (n,) digits 0..9.
        first: (height, width), grey levels 0..255; its left quarter gives the OOD patches for choices.
        second: (height, width), grey levels 0..255.
        seed: seed of the division.

    Raises:
        ValueError: two images are equal, so that one could stand in two sets.
    """
    _, originals = np.unique(images, axis=0, return_index=True)
    if len(originals) < len(images):
        copies = np.setdiff1d(np.arange(len(images)), originals)
        raise ValueError(
            f"got {len(copies)} copies among the images, the first in row {copies[0]}; drop them first"
        )

    train, validation, test = divide(labels, seed)
    far_count = len(test)
    scored, choices = patches(first, second, far_count, len(validation))
    mean, std = fit_scale(images[train])

    def scale(raw: Array) -> NDArray[np.float32]:
        return ((raw - mean) / std).astype(np.float32)

    near = images[np.isin(labels, HELD_OUT)]
    return Splits(
        train=(scale(images[train]), labels[train].astype(np.int64)),
        validation=(scale(images[validation]), labels[validation].astype(np.int64)),
        test=(scale(images[test]), labels[test].astype(np.int64)),
        ood={"near": (scale(near), None), "far": (scale(scored), None)},
        ood_validation={
            "near": (scale(swap_quadrants(images[validation])), None),
            "far": (scale(choices), None),
        },
        feature_names=tuple(f"row {row} column {column}" for row in range(SIDE) for column in range(SIDE)),
        class_names=tuple(str(digit) for digit in IN_DISTRIBUTION),
        notes=(
            (
                f"{len(train)} train, {len(validation)} validation and {len(test)} test images of the digits "
                f"0 to 7, divided within each class with seed {seed}; no two images are equal."
            ),
            "The source doesn't say who wrote which digit, so a writer may stand in several sets.",
            (
                f"Train alone fixed the one mean ({mean:.4g}) and the one standard deviation ({std:.4g}) of "
                "the pixels."
            ),
            f"Near OOD: all {len(near)} images of the digits 8 and 9, which stand in no other set.",
            f"Far OOD: {len(scored)} grey 8 by 8 patches of two photographs, rescaled from 0..255 to 0..16.",
            (
                f"OOD for choices: {len(validation)} validation digits with quadrants swapped, and "
                f"{len(choices)} patches of an area that the scored patches leave out."
            ),
            (
                "Digits: Alpaydin and Kaynak, UCI Machine Learning Repository, CC BY 4.0. Photographs "
                "china.jpg and flower.jpg of scikit-learn: Flickr users danielbuechele and vultilion, CC BY "
                "2.0."
            ),
        ),
    )


def divide(labels: NDArray[np.integer], seed: int) -> tuple[NDArray[np.intp], ...]:
    """Row numbers of train, validation and test: a random division within each of the digits 0..7."""
    rng = np.random.default_rng(seed)
    parts: tuple[list[NDArray[np.intp]], ...] = ([], [], [])
    for digit in IN_DISTRIBUTION:
        rows = rng.permutation(np.flatnonzero(labels == digit))
        ends = np.rint(np.cumsum(SHARES) * len(rows)).astype(int)
        for part, piece in zip(parts, np.split(rows, ends), strict=True):
            part.append(piece)
    return tuple(rng.permutation(np.concatenate(part)) for part in parts)


def fit_scale(train: Array) -> tuple[float, float]:
    """Mean and standard deviation over all pixels of the training images, in grey levels."""
    return float(train.mean()), float(train.std())


def swap_quadrants(images: Array) -> Array:
    """Swap top left with bottom right and top right with bottom left in each image of shape (64,)."""
    square = images.reshape(-1, SIDE, SIDE)
    return np.roll(square, (SIDE // 2, SIDE // 2), axis=(1, 2)).reshape(len(images), -1)


def patches(first: Array, second: Array, scored: int, choices: int) -> tuple[Array, Array]:
    """Patches for `ood` and for `ood_validation`, from areas that don't touch, the same on every call.

    The photographs are cut into a grid of 8 by 8 tiles. Choices come from the left quarter of the first one;
    the next column of tiles is left out; half of the scored ones come from the rest of it and half from the
    second one. Within an area the tiles are taken at even steps.

    Args:
        first: (height, width) grey levels 0..255.
        second: (height, width) grey levels 0..255.
        scored: number of patches for `ood`.
        choices: number of patches for `ood_validation`.

    Returns:
        (scored, 64) and (choices, 64), in 0..16.

    Raises:
        ValueError: an area has fewer tiles than are asked of it.
    """
    edge = first.shape[1] // SIDE // 4 * SIDE
    half = scored // 2
    right, left = first[:, edge + SIDE :], first[:, :edge]
    return np.concatenate([_tiles(right, half), _tiles(second, scored - half)]), _tiles(left, choices)


def _tiles(area: Array, count: int) -> Array:
    rows, columns = area.shape[0] // SIDE, area.shape[1] // SIDE
    if rows * columns < count:
        raise ValueError(
            f"got an area of {rows * columns} tiles, expected at least {count}; give a larger photograph"
        )
    tiles = (
        area[: rows * SIDE, : columns * SIDE]
        .reshape(rows, SIDE, columns, SIDE)
        .swapaxes(1, 2)
        .reshape(-1, SIDE**2)
    )
    picked = np.linspace(0, len(tiles) - 1, count).round().astype(int)
    return tiles[picked] * (HIGHEST / 255.0)
