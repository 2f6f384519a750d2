"""Corruptions of images: noise, blur, light, lost detail, covered and turned images.

The kinds are those of Hendrycks and Dietterich; lengths are shares of the image's sides, so that a level
means the same at 8 and at 224 pixels. They are NOT the published CIFAR-C or ImageNet-C files, and results on
them do not compare with results on those.

References:
    Hendrycks and Dietterich 2019, arXiv 1903.12261.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.fft import dctn, idctn
from scipy.ndimage import gaussian_filter
from torch.nn import functional as F

from .corruption import Levels
from .pixels import UNIT, Images, Pixels

__all__ = [
    "Blur",
    "Brightness",
    "Compression",
    "Contrast",
    "ImpulseNoise",
    "MotionBlur",
    "Occlusion",
    "PixelNoise",
    "Pixelate",
    "Rotation",
    "ShotNoise",
]

Array = NDArray[Any]
BLOCK = 8  # side of the blocks that Compression works on
STEPS = 9  # positions that MotionBlur averages


@dataclass(frozen=True, kw_only=True)
class PixelNoise:
    """Gaussian noise on every pixel: a poor sensor.

    Args:
        pixels: how rows are images.
        levels: standard deviations at severity 1 to 5, in shares of the range from black to white.

    Example:
        >>> import numpy as np
        >>> images = np.full((2, 8, 8), 0.5, dtype=np.float32)
        >>> damaged = PixelNoise().apply(images, severity=3, seed=0)
        >>> damaged.shape, damaged.dtype, bool((PixelNoise().apply(images, 0) == images).all())
        ((2, 8, 8), dtype('float32'), True)
    """

    pixels: Pixels = UNIT
    levels: Levels = (0.04, 0.06, 0.08, 0.12, 0.18)

    def apply(self, x: ArrayLike, severity: int, seed: int = 0) -> Array:
        def change(images: Images, rng: np.random.Generator, std: float) -> Images:
            return images + std * rng.normal(size=images.shape)

        return self.pixels.changed(x, severity, seed, self.levels, change)


@dataclass(frozen=True, kw_only=True)
class ShotNoise:
    """Poisson noise, larger where the image is bright: too little light.

    Args:
        pixels: how rows are images.
        levels: photons of a white pixel at severity 1 to 5.
    """

    pixels: Pixels = UNIT
    levels: Levels = (60.0, 25.0, 12.0, 5.0, 3.0)

    def apply(self, x: ArrayLike, severity: int, seed: int = 0) -> Array:
        def change(images: Images, rng: np.random.Generator, photons: float) -> Images:
            return rng.poisson(images * photons) / photons

        return self.pixels.changed(x, severity, seed, self.levels, change)


@dataclass(frozen=True, kw_only=True)
class ImpulseNoise:
    """Single pixels black or white, in each channel by itself: dead pixels, bit errors.

    Args:
        pixels: how rows are images.
        levels: shares of the pixels at severity 1 to 5.
    """

    pixels: Pixels = UNIT
    levels: Levels = (0.01, 0.03, 0.06, 0.1, 0.2)

    def apply(self, x: ArrayLike, severity: int, seed: int = 0) -> Array:
        def change(images: Images, rng: np.random.Generator, share: float) -> Images:
            hit, white = rng.random(images.shape) < share, rng.random(images.shape) < 0.5
            return np.where(hit, white, images)

        return self.pixels.changed(x, severity, seed, self.levels, change)


@dataclass(frozen=True, kw_only=True)
class Blur:
    """Gaussian blur: out of focus.

    Args:
        pixels: how rows are images.
        levels: standard deviations at severity 1 to 5, in shares of the shorter side.
    """

    pixels: Pixels = UNIT
    levels: Levels = (0.05, 0.07, 0.1, 0.14, 0.2)

    def apply(self, x: ArrayLike, severity: int, seed: int = 0) -> Array:
        def change(images: Images, _rng: np.random.Generator, share: float) -> Images:
            sigma = share * min(images.shape[2:])
            return gaussian_filter(images, (0, 0, sigma, sigma), mode="nearest")

        return self.pixels.changed(x, severity, seed, self.levels, change)


@dataclass(frozen=True, kw_only=True)
class MotionBlur:
    """The mean of the image along a short straight path, in another direction for each: a moved camera.

    Args:
        pixels: how rows are images.
        levels: lengths of the path at severity 1 to 5, in shares of the shorter side.
    """

    pixels: Pixels = UNIT
    levels: Levels = (0.08, 0.14, 0.2, 0.3, 0.4)

    def apply(self, x: ArrayLike, severity: int, seed: int = 0) -> Array:
        def change(images: Images, rng: np.random.Generator, share: float) -> Images:
            angle = rng.uniform(0, 2 * math.pi, len(images))
            length = share * min(images.shape[2:])
            # affine_grid counts the image's width and height as 2
            across = 2 * length / images.shape[3] * np.cos(angle)
            down = 2 * length / images.shape[2] * np.sin(angle)
            matrix = np.tile(np.eye(2, 3), (len(images), 1, 1))
            total = np.zeros_like(images)
            for step in np.linspace(-0.5, 0.5, STEPS):
                matrix[:, 0, 2], matrix[:, 1, 2] = step * across, step * down
                total += _moved(images, matrix)
            return total / STEPS

        return self.pixels.changed(x, severity, seed, self.levels, change)


@dataclass(frozen=True, kw_only=True)
class Brightness:
    """The same amount of light added everywhere: overexposure.

    Args:
        pixels: how rows are images.
        levels: what is added at severity 1 to 5, in shares of the range; negative for a dark room.
    """

    pixels: Pixels = UNIT
    levels: Levels = (0.1, 0.2, 0.3, 0.4, 0.5)

    def apply(self, x: ArrayLike, severity: int, seed: int = 0) -> Array:
        return self.pixels.changed(x, severity, seed, self.levels, lambda images, _rng, added: images + added)


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """Every image drawn towards its own mean: fog, a flat exposure.

    Args:
        pixels: how rows are images.
        levels: the share of the contrast that is left at severity 1 to 5.
    """

    pixels: Pixels = UNIT
    levels: Levels = (0.75, 0.6, 0.45, 0.3, 0.15)

    def apply(self, x: ArrayLike, severity: int, seed: int = 0) -> Array:
        def change(images: Images, _rng: np.random.Generator, left: float) -> Images:
            mean = images.mean(axis=(2, 3), keepdims=True)
            return mean + left * (images - mean)

        return self.pixels.changed(x, severity, seed, self.levels, change)


@dataclass(frozen=True, kw_only=True)
class Pixelate:
    """Means of larger pixels: a low resolution, blown up again.

    Args:
        pixels: how rows are images.
        levels: the share of the resolution that is left at severity 1 to 5.
    """

    pixels: Pixels = UNIT
    levels: Levels = (0.8, 0.65, 0.5, 0.4, 0.25)

    def apply(self, x: ArrayLike, severity: int, seed: int = 0) -> Array:
        def change(images: Images, _rng: np.random.Generator, left: float) -> Images:
            size = [max(1, round(left * side)) for side in images.shape[2:]]
            small = F.interpolate(torch.from_numpy(images), size, mode="area")
            return F.interpolate(small, list(images.shape[2:]), mode="nearest").numpy()

        return self.pixels.changed(x, severity, seed, self.levels, change)


@dataclass(frozen=True, kw_only=True)
class Compression:
    """Coarse steps of the cosine transform of 8 by 8 blocks: lossy compression, with its blocks.

    Steps grow with the frequency, ``level (1 + i + j) / 4``. It is NOT the JPEG standard: no colour space, no
    tables.

    Args:
        pixels: how rows are images.
        levels: steps at severity 1 to 5, in shares of the range.
    """

    pixels: Pixels = UNIT
    levels: Levels = (0.1, 0.2, 0.35, 0.5, 0.8)

    def apply(self, x: ArrayLike, severity: int, seed: int = 0) -> Array:
        def change(images: Images, _rng: np.random.Generator, level: float) -> Images:
            count, channels, height, width = images.shape
            pad = [(0, 0), (0, 0), (0, -height % BLOCK), (0, -width % BLOCK)]
            padded = np.pad(images, pad, mode="edge")
            tall, wide = padded.shape[2] // BLOCK, padded.shape[3] // BLOCK
            blocks = padded.reshape(count, channels, tall, BLOCK, wide, BLOCK).swapaxes(3, 4)
            step = level * (1 + np.add.outer(np.arange(BLOCK), np.arange(BLOCK))) / 4
            waves = np.asarray(dctn(blocks, axes=(-2, -1), norm="ortho"))
            back = np.asarray(idctn(np.rint(waves / step) * step, axes=(-2, -1), norm="ortho"))
            return back.swapaxes(3, 4).reshape(padded.shape)[:, :, :height, :width]

        return self.pixels.changed(x, severity, seed, self.levels, change)


@dataclass(frozen=True, kw_only=True)
class Occlusion:
    """A grey square over part of each image, at a place of its own: something in front of the lens.

    Args:
        pixels: how rows are images.
        levels: sides of the square at severity 1 to 5, in shares of the image's sides.
    """

    pixels: Pixels = UNIT
    levels: Levels = (0.15, 0.25, 0.35, 0.5, 0.7)

    def apply(self, x: ArrayLike, severity: int, seed: int = 0) -> Array:
        def change(images: Images, rng: np.random.Generator, share: float) -> Images:
            covered = []
            for side in images.shape[2:]:
                length = max(1, round(share * side))
                middle = rng.random(len(images))  # the square grows about one point
                start = np.rint(middle * (side - length))[:, None]
                place = np.arange(side)
                covered.append((place >= start) & (place < start + length))
            return np.where((covered[0][:, :, None] & covered[1][:, None, :])[:, None], 0.5, images)

        return self.pixels.changed(x, severity, seed, self.levels, change)


@dataclass(frozen=True, kw_only=True)
class Rotation:
    """Each image turned about its middle, to the left or to the right; borders are drawn out.

    Args:
        pixels: how rows are images.
        levels: angles at severity 1 to 5, in degrees.
    """

    pixels: Pixels = UNIT
    levels: Levels = (8.0, 15.0, 25.0, 40.0, 60.0)

    def apply(self, x: ArrayLike, severity: int, seed: int = 0) -> Array:
        def change(images: Images, rng: np.random.Generator, degrees: float) -> Images:
            angle = np.radians(degrees) * rng.choice([-1.0, 1.0], len(images))
            shape = images.shape[2] / images.shape[3]
            matrix = np.zeros((len(images), 2, 3))
            matrix[:, 0, 0] = matrix[:, 1, 1] = np.cos(angle)
            matrix[:, 0, 1], matrix[:, 1, 0] = -np.sin(angle) * shape, np.sin(angle) / shape
            return _moved(images, matrix)

        return self.pixels.changed(x, severity, seed, self.levels, change)


def _moved(images: Images, matrix: NDArray[np.float64]) -> Images:
    """Images read at the places that ``matrix (n, 2, 3)`` sends theirs to, bilinear."""
    grid = F.affine_grid(torch.from_numpy(matrix), list(images.shape), align_corners=False)
    moved = F.grid_sample(torch.from_numpy(images), grid, padding_mode="border", align_corners=False)
    return moved.numpy()
