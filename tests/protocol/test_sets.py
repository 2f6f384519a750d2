"""Builders of OOD sets: the rows they promise, the same for the same seed."""

import numpy as np
import pytest

from singularbayes.protocol import (
    biased_sample,
    gaussian_noise,
    hold_out_classes,
    hold_out_groups,
    hold_out_tail,
    permuted_features,
    uniform_noise,
)

RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 3)) @ np.array([[1, 0.9, 0], [0, 0.4, 9], [0, 0, 0.01]]) + [3, 0, -50]


def test_held_out_classes_are_gone_and_the_rest_is_numbered_anew():
    y = np.arange(400) % 5
    held = hold_out_classes(X, y, [1, 3])
    assert set(held.outside[1].tolist()) == {1, 3}
    assert np.array_equal(held.inside[1], np.searchsorted([0, 2, 4], y[held.inside_rows]))
    assert np.array_equal(held.inside[0], X[held.inside_rows])
    assert sorted([*held.inside_rows, *held.outside_rows]) == list(range(400))


def test_groups_and_tails_are_held_out_whole():
    groups = np.array(["Beijing", "Guangzhou", "Shanghai", "Beijing"] * 100)
    held = hold_out_groups(X, X[:, 0], groups, ["Guangzhou"])
    assert set(groups[held.outside_rows]) == {"Guangzhou"}
    assert "Guangzhou" not in groups[held.inside_rows]
    ages = np.floor(RNG.uniform(20, 90, 400))
    for lower in (False, True):
        tail = hold_out_tail(X, ages, ages, share=0.2, lower=lower)
        sign = -1 if lower else 1
        assert (sign * tail.outside[1]).min() > (sign * tail.inside[1]).max()  # equal ages stay together
        assert 0.15 < len(tail.outside_rows) / 400 <= 0.2


def test_a_biased_sample_moves_the_mean_by_its_strength():
    # z ~ N(0, 1): weights exp(s z) make it N(s, 1); 4 standard errors, a false alarm in 16,000 runs
    z = np.random.default_rng(4).normal(size=100_000)
    for strength in (-1.0, 0.0, 0.7):
        rows, labels = biased_sample(z[:, None], z, z, strength, 1000, seed=2)
        assert abs(labels.mean() - strength) < 4 / np.sqrt(1000) + 0.02  # .02: drawn without repeats
        assert len(np.unique(rows)) == 1000
    assert np.array_equal(biased_sample(X, X, z[:400], 1, 9)[0], biased_sample(X, X, z[:400], 1, 9)[0])


def test_permuted_features_and_noise_keep_what_they_say():
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    permuted = permuted_features(X, seed=1)
    assert np.array_equal(np.sort(permuted, axis=0), np.sort(X, axis=0))
    assert abs(np.corrcoef(X.T)[0, 1]) > 0.7
    assert abs(np.corrcoef(permuted.T)[0, 1]) < 4 / np.sqrt(400)  # a false alarm in 16,000 runs
    noise = gaussian_noise(X.astype(np.float32), 5000, seed=1)
    assert noise.dtype == np.float32
    standard = (noise - X.mean(axis=0)) / X.std(axis=0)
    assert np.abs(standard.mean(axis=0)).max() < 4 / np.sqrt(5000)
    assert np.abs(standard.std(axis=0) - 1).max() < 4 / np.sqrt(2 * 5000)
    flat = uniform_noise(X, 5000)
    assert (flat.min(axis=0) >= X.min(axis=0)).all()
    assert (flat.max(axis=0) <= X.max(axis=0)).all()
    assert np.array_equal(np.random.get_state()[1], state)  # noqa: NPY002
    for make in (lambda seed: permuted_features(X, seed), lambda seed: gaussian_noise(X, 5, seed)):
        assert np.array_equal(make(3), make(3))
        assert not np.array_equal(make(3), make(4))


@pytest.mark.usefixtures("unchecked")
def test_bad_input_is_named():
    y = np.arange(400) % 5
    with pytest.raises(ValueError, match="no row has the class 7; there are 0, 1, 2, 3, 4"):
        hold_out_classes(X, y, [1, 7])
    with pytest.raises(ValueError, match="no row is inside"):
        hold_out_classes(X, y, range(5))
    with pytest.raises(ValueError, match="got 400 rows, 399 labels"):
        hold_out_groups(X, y[1:], y, [1])
    with pytest.raises(ValueError, match="no row is outside"):
        hold_out_tail(X, y, np.zeros(400))
    with pytest.raises(ValueError, match="share must lie strictly between 0 and 1"):
        hold_out_tail(X, y, y, share=1)
    with pytest.raises(ValueError, match=r"count must lie in 1\.\.400"):
        biased_sample(X, y, y, 1.0, 401)
    with pytest.raises(ValueError, match="the covariate is the same in every row"):
        biased_sample(X, y, np.ones(400), 1.0, 4)
    for build in (lambda by: hold_out_tail(X, y, by), lambda by: biased_sample(X, y, by, 1.0, 4)):
        with pytest.raises(ValueError, match="the covariate is nan in row 7; expected finite"):
            build(np.where(np.arange(400) == 7, np.nan, X[:, 0]))
    with pytest.raises(ValueError, match="expected at least two rows and two features"):
        permuted_features(np.ones((5, 1)))
    with pytest.raises(ValueError, match="expected floating point"):
        gaussian_noise(np.ones((5, 1), int), 3)
