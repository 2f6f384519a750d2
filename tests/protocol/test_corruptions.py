"""Every corruption: unchanged at 0, more at each severity, the same for the same seed, of the same shape."""

import numpy as np
import pytest
import torch

from singularbayes import protocol
from singularbayes.protocol import Corruption, Pixels

IMAGES = [
    protocol.PixelNoise(),
    protocol.ShotNoise(),
    protocol.ImpulseNoise(),
    protocol.Blur(),
    protocol.MotionBlur(),
    protocol.Brightness(),
    protocol.Contrast(),
    protocol.Pixelate(),
    protocol.Compression(),
    protocol.Occlusion(),
    protocol.Rotation(),
]
SERIES = [
    protocol.SensorNoise(scale=(1.0, 30.0)),
    protocol.Drift(scale=(1.0, 30.0)),
    protocol.StuckSensor(),
    protocol.Spikes(scale=(1.0, 30.0)),
    protocol.Gaps(),
    protocol.TimeWarp(),
]
TABLES = [
    protocol.FeatureNoise(scale=(1.0, 30.0, 0.01, 1.0, 2.0)),
    protocol.MissingFeatures(),
    protocol.PermutedFeatures(),
    protocol.WrongUnits(),
    protocol.Translation(scale=(1.0, 30.0, 0.01, 1.0, 2.0)),
]


def smooth_images(n: int = 40, side: tuple = (17, 12), channels: int = 3) -> np.ndarray:
    rng = np.random.default_rng(0)
    down, across = np.linspace(0, 6, side[0])[:, None], np.linspace(0, 4, side[1])
    phase = rng.uniform(0, 6, (n, channels, 1, 1))
    return (0.5 + 0.4 * np.sin(down + phase) * np.cos(across * (1 + phase / 6))).astype(np.float32)


def walks(n: int = 60) -> np.ndarray:
    steps = np.random.default_rng(1).normal(size=(n, 48, 2))
    return (steps.cumsum(axis=1) * [1.0, 30.0]).astype(np.float32)


def table(n: int = 300) -> np.ndarray:
    return (np.random.default_rng(2).normal(size=(n, 5)) * [1, 30, 0.01, 1, 2]).astype(np.float32)


CASES = (
    [(c, smooth_images()) for c in IMAGES] + [(c, walks()) for c in SERIES] + [(c, table()) for c in TABLES]
)
each = pytest.mark.parametrize(("corruption", "x"), CASES, ids=[type(c).__name__ for c, _ in CASES])


@each
def test_it_is_deterministic_and_leaves_all_else_alone(corruption, x):
    assert isinstance(corruption, Corruption)
    before, state, torch_state = x.copy(), np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    first, again, other = (corruption.apply(x, 3, seed) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert (first.shape, first.dtype) == (x.shape, x.dtype)
    assert np.isfinite(first).all()
    assert np.array_equal(x, before)
    assert np.array_equal(np.random.get_state()[1], state)  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), torch_state)
    calm = (protocol.Blur, protocol.Brightness, protocol.Contrast, protocol.Pixelate, protocol.Compression, protocol.StuckSensor)  # fmt: skip  # noqa: E501
    assert np.array_equal(first, other) == isinstance(corruption, calm)


@each
def test_severity_0_changes_nothing_and_each_next_one_changes_more(corruption, x):
    unchanged = corruption.apply(x, 0)
    assert np.array_equal(unchanged, x)
    assert unchanged is not x
    unit = x.std(axis=tuple(range(x.ndim - 1)), keepdims=True) if x.ndim == 2 or x.shape[1:] == (48, 2) else 1
    change = [np.sqrt((((corruption.apply(x, s, 5) - x) / unit) ** 2).mean()) for s in range(1, 6)]
    assert change == sorted(change)
    assert change[0] > 0.002
    assert change[4] > 1.5 * change[0]


@pytest.mark.parametrize("corruption", IMAGES, ids=lambda c: type(c).__name__)
def test_images_stay_between_black_and_white(corruption):
    damaged = corruption.apply(smooth_images(), 5)
    assert damaged.min() >= 0
    assert damaged.max() <= 1 + 1e-6


@pytest.mark.parametrize("kind", [type(c) for c in IMAGES], ids=lambda kind: kind.__name__)
def test_flat_rows_and_standardised_channels_are_the_same_images(kind):
    x = smooth_images()
    mean, std = np.array([0.3, 0.5, 0.6]), np.array([0.2, 0.1, 0.3])
    scaled = (x - mean[:, None, None]) / std[:, None, None]
    pixels = Pixels(low=tuple(-mean / std), high=tuple((1 - mean) / std))
    plain = kind().apply(x.astype(np.float64), 2)
    back = kind(pixels=pixels).apply(scaled, 2) * std[:, None, None] + mean[:, None, None]
    # Compression rounds to steps: a value on the edge of one may fall either way
    off = np.abs(back - plain) > 1e-6
    assert off.mean() < (0.05 if kind is protocol.Compression else 1e-3)
    flat = kind(pixels=Pixels(shape=(3, 17, 12))).apply(x.reshape(40, -1), 2)
    assert np.array_equal(flat.reshape(x.shape), kind().apply(x, 2))
    grey = kind().apply(x[:, 0], 2)
    assert grey.shape == (40, 17, 12)


def test_more_severe_damage_holds_the_lesser():
    # independent draws at each severity (the usual way) would blur the curve
    x = table()
    hits = [protocol.MissingFeatures(fill=77.0).apply(x, s) == 77 for s in (1, 3, 5)]
    assert hits[0].sum() < hits[1].sum() < hits[2].sum()
    assert (hits[0] <= hits[1]).all()
    assert (hits[1] <= hits[2]).all()


def test_levels_are_in_the_stated_units():
    # 4 standard errors: a false alarm in 16,000 runs each
    x = np.zeros((4000, 2))
    noise = protocol.FeatureNoise(scale=(1.0, 50.0)).apply(x, 3)
    for std, column in zip((0.5, 25.0), noise.T, strict=True):
        assert abs(column.std() - std) < 4 * std / np.sqrt(2 * 4000)
    moved = protocol.Translation(scale=(1.0, 50.0)).apply(x, 4)
    assert np.ptp(moved, axis=0).max() == 0
    assert np.sqrt(((moved[0] / [1, 50]) ** 2).mean()) == pytest.approx(2)
    drift = protocol.Drift(scale=2.0).apply(np.zeros((5, 11)), 5)
    assert np.abs(drift[:, -1]).tolist() == [6.0] * 5
    assert np.abs(drift[:, 5]).tolist() == [3.0] * 5


def test_units_are_wrong_about_their_own_zero():
    raw = np.array([[10.0], [20.0], [60.0]])
    mean, std = 30.0, 20.0
    damaged = protocol.WrongUnits(zero=-mean / std).apply((raw - mean) / std, 1)
    assert (damaged * std + mean).ravel().tolist() == pytest.approx([100, 200, 600])


def test_permuted_features_keep_their_marginals_alone():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 1)) + 0.1 * rng.normal(size=(500, 4))
    damaged = protocol.PermutedFeatures().apply(x, 5)
    assert np.array_equal(np.sort(damaged, axis=0), np.sort(x, axis=0))
    correlation = np.corrcoef(damaged.T)[np.triu_indices(4, 1)]
    assert np.abs(correlation).max() < 4 / np.sqrt(500)  # 6 pairs, a false alarm in 2,600 runs
    some = protocol.PermutedFeatures().apply(x, 2)
    assert (some != x).any(axis=0).sum() == 2


def test_a_stuck_sensor_and_a_gap_repeat_the_reading_before():
    x = np.arange(20.0)[None]
    assert protocol.StuckSensor().apply(x, 3)[0].tolist() == [*range(12), *([11] * 8)]
    for seed in range(20):
        damaged = protocol.Gaps().apply(x, 4, seed)[0]
        changed = np.flatnonzero(damaged != x[0])
        assert len(changed) == 10
        first = changed[0]
        assert changed.tolist() == list(range(first, first + 10))
        assert set(damaged[changed]) == {float(first - 1 if first else 10)}


def test_a_warp_keeps_the_ends_and_the_order():
    damaged = protocol.TimeWarp().apply(np.arange(30.0)[None].repeat(50, 0), 5)
    assert damaged[:, [0, -1]].tolist() == [[0.0, 29.0]] * 50
    assert (np.diff(damaged) >= 0).all()
    assert len(np.unique(damaged, axis=0)) == 2


def test_a_rotation_by_a_right_angle_turns_a_square_image():
    x = smooth_images(side=(9, 9))
    turned = protocol.Rotation(levels=(1, 2, 3, 4, 90.0)).apply(x, 5)
    ways = np.stack([np.rot90(x, k, axes=(2, 3)) for k in (1, 3)])
    error = np.abs(ways - turned).max(axis=(2, 3, 4))
    assert error.min(axis=0).max() < 1e-5
    assert set(error.argmin(axis=0)) == {0, 1}


@pytest.mark.usefixtures("unchecked")
def test_bad_input_is_named():
    noise = protocol.FeatureNoise()
    x = np.zeros((3, 2))
    for severity in (6, -1, True, 1.5):
        with pytest.raises(ValueError, match="severity must be a whole number from 0 to 5"):
            noise.apply(x, severity)
    with pytest.raises(TypeError, match="X is of int64; expected floating point"):
        noise.apply(np.zeros((3, 2), np.int64), 1)
    with pytest.raises(ValueError, match=r"X has shape \(3, 2\); expected \(n, H, W\)"):
        protocol.Blur().apply(x, 1)
    with pytest.raises(ValueError, match="X holds nan or inf in row 1"):
        noise.apply(np.array([[0.0], [np.nan]]), 1)
    with pytest.raises(ValueError, match=r"scale has shape \(3,\); expected one number, or \(2,\)"):
        protocol.FeatureNoise(scale=(1.0, 2.0, 3.0)).apply(x, 1)
    for part in (protocol.MissingFeatures, protocol.WrongUnits):
        key = "fill" if part is protocol.MissingFeatures else "zero"
        with pytest.raises(ValueError, match=rf"{key} has shape \(3,\); expected one number, or \(2,\)"):
            part(**{key: (1.0, 2.0, 3.0)}).apply(x, 1)
        with pytest.raises(ValueError, match=f"{key} must be finite, got nan"):
            part(**{key: np.nan}).apply(x, 1)
    with pytest.raises(ValueError, match="scale must not be negative, got -2"):
        protocol.FeatureNoise(scale=(1.0, -2.0)).apply(x, 1)
    with pytest.raises(ValueError, match="levels must be 5 finite numbers, rising or falling"):
        protocol.FeatureNoise(levels=(1.0, 2.0, 1.5, 3.0, 4.0)).apply(x, 1)
    with pytest.raises(ValueError, match="expected finite ends with low below high"):
        Pixels(low=1.0, high=1.0)
    with pytest.raises(ValueError, match="X has 2 numbers a row; expected 64"):
        protocol.Blur(pixels=Pixels(shape=(8, 8))).apply(x, 1)
