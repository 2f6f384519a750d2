"""The sine problem lies where it says, and its noise is the stated one."""

import copy
import pickle

import numpy as np
import pytest

from singularbayes.recipes.data import Splits, sine


def _same(first: Splits, second: Splits) -> bool:
    return all(
        np.array_equal(a, c) and np.array_equal(b, d)
        for (a, b), (c, d) in zip(first.named_sets().values(), second.named_sets().values(), strict=True)
    )


def test_every_set_lies_in_its_own_interval() -> None:
    splits = sine.load(n_train=500, seed=3)
    bounds = {
        "train": (-2, 2), "validation": (-2, 2), "test": (-2, 2),
        "ood/right": (4, 6), "ood/left": (-6, -4),
        "ood_validation/right": (2.5, 3.5), "ood_validation/left": (-3.5, -2.5),
    }  # fmt: skip
    assert splits.named_sets().keys() == bounds.keys()
    for name, (x, y) in splits.named_sets().items():
        low, high = bounds[name]
        assert y is not None
        assert x.shape == y.shape == (len(x), 1)
        assert x.dtype == y.dtype == np.float32
        assert low <= x.min() < low + 0.1 * (high - low)
        assert high - 0.1 * (high - low) < x.max() <= high


@pytest.mark.parametrize("name", ["train", "ood/right", "ood/left"])
def test_the_noise_about_the_true_function_has_the_stated_standard_deviation(name: str) -> None:
    n, std = 20_000, 0.3
    x, y = sine.load(n_train=n, n_test=n, noise_std=std, seed=1).named_sets()[name]
    assert y is not None
    residual = y - np.sin(2 * x)
    # 4 standard errors of a mean and of a standard deviation: false alarm about 1 in 8,000 for each set.
    assert abs(residual.mean()) < 4 * std / np.sqrt(n)
    assert abs(residual.std() - std) < 4 * std / np.sqrt(2 * n)
    variance_taken_for_std = np.sin(2 * x) + (y - np.sin(2 * x)) * std
    assert abs((variance_taken_for_std - np.sin(2 * x)).std() - std) > 4 * std / np.sqrt(2 * n)


def test_no_noise_gives_the_function_itself() -> None:
    x, y = sine.load(noise_std=0.0).test
    np.testing.assert_allclose(y, sine.true_function(x), atol=1e-6)


def test_the_same_seed_gives_the_same_sets_and_another_seed_others() -> None:
    assert _same(sine.load(seed=4), sine.load(seed=4))
    assert not _same(sine.load(seed=4), sine.load(seed=5))


def test_the_number_of_training_points_leaves_the_other_sets_as_they_are() -> None:
    small, large = sine.load(n_train=10).named_sets(), sine.load(n_train=1000).named_sets()
    for name in small.keys() - {"train"}:
        np.testing.assert_array_equal(small[name][0], large[name][0])


def test_the_splits_share_no_point() -> None:
    x = np.concatenate([x for x, _ in sine.load().named_sets().values()])
    assert len(np.unique(x)) == len(x)


def test_the_grid_covers_both_ood_intervals_evenly() -> None:
    x = sine.grid()
    assert x.shape == (281, 1)
    assert x.dtype == np.float32
    np.testing.assert_allclose(np.diff(x[:, 0]), 0.05, atol=1e-6)
    assert x[0, 0] == -7
    assert x[-1, 0] == 7


@pytest.mark.parametrize(
    "wrong", [{"n_train": 0}, {"n_test": -1}, {"noise_std": -0.1}, {"noise_std": float("nan")}]
)
def test_impossible_settings_are_refused_by_name(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        sine.load(**wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="expected low < high"):
        sine.grid(1.0, 1.0)


def test_splits_survive_pickle_and_deepcopy() -> None:
    splits = sine.load()
    assert _same(splits, pickle.loads(pickle.dumps(splits)))
    assert _same(splits, copy.deepcopy(splits))


def test_splits_refuse_what_does_not_fit_together() -> None:
    x, y = np.ones((3, 1), np.float32), np.ones(3)
    good = (x, y)

    def build(train: tuple[np.ndarray, np.ndarray]) -> Splits:
        return Splits(train=train, validation=good, test=good, ood={"far": (x, None)}, feature_names=("x",))

    assert build(good).ood["far"][1] is None
    for train, words in [
        ((x[:, 0], y), r"train: got X of float32 with shape \(3,\)"),
        ((x, y[:2]), "3 rows and 2 labels"),
        ((x[:0], y[:0]), "got no rows"),
        ((np.ones((3, 2), np.float32), y), "got 2 features a row, expected 1"),
        ((np.array([[1], [np.nan], [1]], np.float32), y), "nan or inf in row 1, column 0"),
    ]:
        with pytest.raises(ValueError, match=words):
            build(train)
