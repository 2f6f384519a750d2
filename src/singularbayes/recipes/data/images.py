"""Small images: FashionMNIST with MNIST and notMNIST, and CIFAR-10 with two classes held out.

`fashion`: the first 18,000 of 20,000 training images are train, the last 2,000 validation; the test set is
whole. OOD: the first 5,000 test images of MNIST (digits) and of notMNIST (letters), of the same size.

`cifar`: classes 0 to 7 are in distribution, 1,000 training, 200 validation and 500 test images of each. Near
OOD: the 2,000 test images of ships and trucks, which no other set holds. Far OOD: 2,000 notMNIST letters,
resized once (bilinear, to 32 by 32) and repeated in three channels. The copy is of JPEG files, decoded here
in seconds; accuracies on it are not those of published tables.

For choices (`ood_validation`) nothing of the scored sets is used: "near" are the validation images with their
quadrants swapped diagonally, "far" the validation images with every pixel taken from another image.

Images are (n, channels, height, width) in standard deviations of train, one mean and deviation a channel. The
data are not in the package: see `HOW_TO_GET`.

References:
    H. Xiao et al. (2017), arXiv 1708.07747 (FashionMNIST); Y. LeCun, C. Cortes, C. Burges (MNIST); Y. Bulatov
    (2011), notMNIST; A. Krizhevsky (2009), Learning Multiple Layers of Features from Tiny Images (CIFAR-10).
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from singularbayes.recipes.data import arrays
from singularbayes.recipes.data.splits import MaybeLabelled, Splits

__all__ = ["HELD_OUT", "HOW_TO_GET", "cifar", "fashion", "pixels_mixed", "quadrants_swapped", "standardised"]

HOW_TO_GET = (
    "FashionMNIST, MNIST and notMNIST: numpy.savez(file, x_train=, y_train=, x_test=, y_test=) of uint8 "
    "images (n, 28, 28), of notMNIST the test part alone; CIFAR-10: numpy.savez of JPEG files without their "
    "common header: jpeg_header, and for PART train and test PART_scan (bytes), PART_offset and PART_label"
)
HELD_OUT = (8, 9)
"""CIFAR's ship and truck."""
VALIDATION = 2000
SCORED_OOD = 5000
PER_CLASS = {"train": 1000, "validation": 200, "test": 500}
FAR = 2000
SIDE = 32
_CLOTHES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")
_OBJECTS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse")

Pixels = NDArray[np.uint8]
Classes = NDArray[np.int64]


def fashion(folder: str | Path) -> Splits:
    """FashionMNIST: X (n, 1, 28, 28) float32, y int64 in 0..9; OOD sets "MNIST" and "notMNIST".

    Args:
        folder: with fashion_mnist_20k.npz, mnist.npz and notmnist_10k.npz, or with subfolders fashion_mnist,
            mnist and notmnist that have them.

    Raises:
        FileNotFoundError: a file is not there; the message says what it is.
        ValueError: a damaged file, or one with other sizes.
    """
    clothes = _archive(
        folder, "fashion_mnist", "fashion_mnist_20k.npz", ("x_train", "y_train", "x_test", "y_test")
    )
    digits, letters = _scored(folder, "mnist", "mnist.npz"), _scored(folder, "notmnist", "notmnist_10k.npz")
    X, y = clothes["x_train"][:, None], clothes["y_train"].astype(np.int64)
    ends = slice(None, -VALIDATION), slice(-VALIDATION, None)
    return standardised(
        {
            "train": (X[ends[0]], y[ends[0]]),
            "validation": (X[ends[1]], y[ends[1]]),
            "test": (clothes["x_test"][:, None], clothes["y_test"].astype(np.int64)),
            "ood/MNIST": (digits[:SCORED_OOD, None], None),
            "ood/notMNIST": (letters[:SCORED_OOD, None], None),
        },
        class_names=_CLOTHES,
        notes=(
            (
                f"FashionMNIST: {len(X) - VALIDATION:,} train and {VALIDATION:,} validation images of the "
                f"first {len(X):,}, {len(clothes['x_test']):,} test images."
            ),
            f"OOD: the first {SCORED_OOD:,} test images of MNIST and of notMNIST.",
            "FashionMNIST: MIT, Zalando SE. MNIST: CC BY-SA 3.0. notMNIST: Y. Bulatov, no licence stated.",
        ),
    )


def cifar(folder: str | Path) -> Splits:
    """CIFAR-10 without ships and trucks: X (n, 3, 32, 32) float32, y int64 in 0..7; OOD "near" and "far".

    Args:
        folder: with cifar10_jpeg_30k.npz and notmnist_10k.npz, or with subfolders cifar10_jpeg and notmnist
            that have them.

    Raises:
        FileNotFoundError: a file is not there; the message says what it is.
        ValueError: a damaged file, or one with other sizes.
    """
    names = [f"{part}_{kind}" for part in ("train", "test") for kind in ("scan", "offset", "label")]
    found = _archive(folder, "cifar10_jpeg", "cifar10_jpeg_30k.npz", ("jpeg_header", *names))
    labels = {part: found[f"{part}_label"].astype(np.int64) for part in ("train", "test")}
    first, test, near = [], [], np.flatnonzero(np.isin(labels["test"], HELD_OUT))
    inside = PER_CLASS["train"] + PER_CLASS["validation"]
    for number in range(len(_OBJECTS)):
        first.append(np.flatnonzero(labels["train"] == number)[:inside])
        test.append(np.flatnonzero(labels["test"] == number)[: PER_CLASS["test"]])
    rows = {
        "train": np.sort(np.concatenate([own[: PER_CLASS["train"]] for own in first])),
        "validation": np.sort(np.concatenate([own[PER_CLASS["train"] :] for own in first])),
        "test": np.sort(np.concatenate(test)),
    }
    sets: dict[str, Any] = {}
    for key, own in rows.items():
        part = "test" if key == "test" else "train"
        sets[key] = (_decoded(found, part, own), labels[part][own])
    sets["ood/near"] = (_decoded(found, "test", near), None)
    sets["ood/far"] = (_resized(_scored(folder, "notmnist", "notmnist_10k.npz")[:FAR]), None)
    return standardised(
        sets,
        class_names=_OBJECTS,
        notes=(
            (
                f"CIFAR-10 from JPEG files, classes 0 to 7: {len(rows['train']):,} train, "
                f"{len(rows['validation']):,} validation and {len(rows['test']):,} test images; accuracies "
                f"are not comparable with published ones."
            ),
            (
                f"Near OOD: {len(near):,} ships and trucks, which stand in no other set. Far OOD: {FAR:,} "
                f"notMNIST letters, resized once to {SIDE} by {SIDE}."
            ),
            "CIFAR-10: A. Krizhevsky, no licence stated. notMNIST: Y. Bulatov, no licence stated.",
        ),
    )


def standardised(
    sets: Mapping[str, tuple[Pixels, Classes | None]], class_names: tuple[str, ...], notes: tuple[str, ...]
) -> Splits:
    """The splits, with OOD sets for choices made of the validation images; train alone gives the scale.

    Args:
        sets: "train", "validation", "test", "ood/NAME" -> ((n, channels, height, width) grey levels 0..255,
            classes or `None`).
        class_names: one a class.
        notes: of the source.
    """
    train = sets["train"][0]
    mean = train.mean((0, 2, 3), dtype=np.float64)[:, None, None]
    std = train.std((0, 2, 3), dtype=np.float64)[:, None, None]

    def scaled(pixels: Pixels) -> NDArray[np.float32]:
        return ((pixels - mean) / std).astype(np.float32)

    held = sets["validation"][0]
    ready: dict[str, MaybeLabelled] = {key: (scaled(X), y) for key, (X, y) in sets.items()}
    labelled = {key: (X, y) for key, (X, y) in ready.items() if y is not None}
    channels, height, width = train.shape[1:]
    statistics = ", ".join(f"{m:.4g} ({s:.4g})" for m, s in zip(mean.ravel(), std.ravel(), strict=True))
    return Splits(
        train=labelled["train"],
        validation=labelled["validation"],
        test=labelled["test"],
        ood={key.removeprefix("ood/"): pair for key, pair in ready.items() if key.startswith("ood/")},
        ood_validation={
            "near": (scaled(quadrants_swapped(held)), None),
            "far": (scaled(pixels_mixed(held, seed=0)), None),
        },
        feature_names=tuple(
            f"channel {c} row {i} column {j}"
            for c in range(channels)
            for i in range(height)
            for j in range(width)
        ),
        class_names=class_names,
        notes=(*notes, f"Train alone fixed mean (standard deviation) of each channel: {statistics}."),
    )


def quadrants_swapped(images: Pixels) -> Pixels:
    """Swap top left with bottom right and top right with bottom left in each image."""
    height, width = images.shape[-2:]
    return np.roll(images, (height // 2, width // 2), axis=(-2, -1))


def pixels_mixed(images: Pixels, seed: int) -> Pixels:
    """Each pixel (all channels together) permuted across images: its distribution stays, the objects go."""
    rng = np.random.default_rng(seed)
    n, _, height, width = images.shape
    order = rng.permuted(np.tile(np.arange(n)[:, None, None], (1, height, width)), axis=0)
    return np.take_along_axis(images, order[:, None], axis=0)


def _archive(folder: str | Path, subfolder: str, name: str, keys: tuple[str, ...]) -> dict[str, Any]:
    """The named arrays; those of images (x_...) are checked."""
    path = arrays.find(folder, subfolder, name, HOW_TO_GET)
    found = arrays.read(path, keys)
    for key, array in found.items():
        if key.startswith("x_") and (
            array.dtype != np.uint8 or array.shape[1:] != (28, 28) or not len(array)
        ):
            raise ValueError(
                f"{path}: {key} is {array.dtype} of shape {array.shape}, expected uint8 (n, 28, 28); to get "
                f"it: {HOW_TO_GET}"
            )
    return found


def _scored(folder: str | Path, subfolder: str, name: str) -> Pixels:
    return _archive(folder, subfolder, name, ("x_test",))["x_test"]


def _decoded(found: Mapping[str, Any], part: str, rows: NDArray[np.intp]) -> Pixels:
    """Images (n, 3, 32, 32) of JPEG files whose common header is kept once."""
    header, scan, offset = found["jpeg_header"].tobytes(), found[f"{part}_scan"], found[f"{part}_offset"]
    images = np.empty((len(rows), 3, SIDE, SIDE), np.uint8)
    for place, row in enumerate(rows):
        try:
            with Image.open(io.BytesIO(header + scan[offset[row] : offset[row + 1]].tobytes())) as image:
                images[place] = np.asarray(image.convert("RGB")).transpose(2, 0, 1)
        except (OSError, ValueError) as error:  # no JPEG, cut off, or of another size
            raise ValueError(f"CIFAR-10, {part} image {row}: no image of 32 by 32 pixels ({error})") from None
    return images


def _resized(grey: Pixels) -> Pixels:
    """Grey images (n, height, width), resized once (bilinear) and repeated in three channels."""
    images = [
        np.asarray(Image.fromarray(one).resize((SIDE, SIDE), Image.Resampling.BILINEAR)) for one in grey
    ]
    return np.repeat(np.stack(images)[:, None], 3, axis=1)
