"""A noisy sine on an interval, with OOD points outside of it: the control with a known answer.

y = sin(2 x) + noise_std * e, e ~ N(0, 1)

Train, validation and test x are uniform on [-2, 2]. Epistemic variance should be larger on [4, 6] and on [-6,
-4]; the true function goes on there, so that errors and coverage under shift are known as well.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from singularbayes.recipes.data.splits import Labelled, Splits

FREQUENCY = 2.0
TRAIN_INTERVAL = (-2.0, 2.0)
OOD_INTERVALS = {"right": (4.0, 6.0), "left": (-6.0, -4.0)}
OOD_VALIDATION_INTERVALS = {"right": (2.5, 3.5), "left": (-3.5, -2.5)}


def true_function(x: NDArray[np.floating]) -> NDArray[np.floating]:
    """The function without noise, sin(2 x), of the same shape and type as `x` (x in radians)."""
    return np.sin(FREQUENCY * x)


def grid(low: float = -7.0, high: float = 7.0, points: int = 281) -> NDArray[np.float32]:
    """Evenly spaced x, shape (points, 1), for drawing the mean and the variance field.

    Args:
        low: first x.
        high: last x, above `low`.
        points: number of x, at least 2.

    Raises:
        ValueError: `high` is not above `low`, or there are fewer than 2 points.
    """
    if not low < high or points < 2:
        raise ValueError(
            f"got low={low}, high={high}, points={points}, expected low < high and at least 2 points"
        )
    return np.linspace(low, high, points, dtype=np.float32)[:, None]


def load(
    n_train: int = 200, noise_std: float = 0.1, seed: int = 0, *, n_validation: int = 200, n_test: int = 400
) -> Splits:
    """The sine problem; X and y of every set have shape (n, 1) in float32.

    Each set draws from its own random stream: changing `n_train` leaves the other sets as they are.

    Args:
        n_train: number of training points.
        noise_std: known standard deviation of the noise, in units of y; give the same to
            `Gaussian(noise=...)`.
        seed: seed of all sets.
        n_validation: number of points in `validation` and in each `ood_validation` set.
        n_test: number of points in `test` and in each `ood` set.

    Returns:
        Splits with `ood` and `ood_validation` sets "right" and "left", all with y.

    Raises:
        ValueError: a count below 1, or a noise_std that is negative or not finite.
    """
    for name, count in (("n_train", n_train), ("n_validation", n_validation), ("n_test", n_test)):
        if count < 1:
            raise ValueError(f"got {name}={count}, expected at least 1 point")
    if not (math.isfinite(noise_std) and noise_std >= 0):
        raise ValueError(f"got noise_std={noise_std}, expected a finite standard deviation of at least 0")
    streams = iter(np.random.SeedSequence(seed).spawn(7))

    def draw(count: int, interval: tuple[float, float]) -> Labelled:
        rng = np.random.default_rng(next(streams))
        x = rng.uniform(*interval, size=(count, 1))
        y = true_function(x) + noise_std * rng.standard_normal((count, 1))
        return x.astype(np.float32), y.astype(np.float32)

    return Splits(
        train=draw(n_train, TRAIN_INTERVAL),
        validation=draw(n_validation, TRAIN_INTERVAL),
        test=draw(n_test, TRAIN_INTERVAL),
        ood={name: draw(n_test, interval) for name, interval in OOD_INTERVALS.items()},
        ood_validation={
            name: draw(n_validation, interval) for name, interval in OOD_VALIDATION_INTERVALS.items()
        },
        feature_names=("x",),
        notes=(
            (
                f"y = sin({FREQUENCY:g} x) + noise of known standard deviation {noise_std:g}; made with seed "
                f"{seed}."
            ),
            (
                f"{n_train} train, {n_validation} validation and {n_test} test points, x uniform on [-2, 2]; "
                "nothing is standardised, so nothing is fitted."
            ),
            (
                f"OOD: {n_test} points each on [4, 6] (right) and [-6, -4] (left), y from the same function "
                "and noise."
            ),
            (
                f"OOD for choices: {n_validation} points each on [2.5, 3.5] and [-3.5, -2.5], apart from "
                "both scored sets."
            ),
        ),
    )
