"""The digits are divided without overlap, and the OOD sets for choices use nothing of the scored ones."""

import numpy as np
import pytest
from sklearn.datasets import load_digits, load_sample_images
from sklearn.linear_model import LogisticRegression

from singularbayes.recipes.data import Splits, digits


@pytest.fixture(scope="module")
def splits() -> Splits:
    return digits.load()


def _photographs() -> tuple[np.ndarray, np.ndarray]:
    china, flower = load_sample_images().images
    return china.mean(axis=2), flower.mean(axis=2)


def test_the_counts_are_those_of_the_notes(splits: Splits) -> None:
    counts = {name: len(x) for name, (x, _) in splits.named_sets().items()}
    assert counts == {
        "train": 866, "validation": 289, "test": 288,
        "ood/near": 354, "ood/far": 288, "ood_validation/near": 289, "ood_validation/far": 289,
    }  # fmt: skip
    assert "866 train, 289 validation and 288 test" in splits.notes[0]
    assert len(splits.feature_names) == 64
    assert splits.class_names == tuple("01234567")


def test_no_two_rows_of_any_sets_are_equal(splits: Splits) -> None:
    rows = np.concatenate([x for x, _ in splits.named_sets().values()])
    assert len(np.unique(rows, axis=0)) == len(rows)


def test_every_class_has_its_share_in_every_split(splits: Splits) -> None:
    whole = np.bincount(load_digits().target)[:8]
    for (_, y), share in ((splits.train, 0.6), (splits.validation, 0.2), (splits.test, 0.2)):
        assert y.dtype == np.int64
        np.testing.assert_allclose(np.bincount(y), share * whole, atol=1)


def test_the_held_out_digits_stand_in_no_other_set(splits: Splits) -> None:
    images, labels = load_digits(return_X_y=True)
    mean, std = digits.fit_scale(images[digits.divide(labels, 0)[0]])
    held_out = {row.tobytes() for row in ((images[labels >= 8] - mean) / std).astype(np.float32)}
    assert {row.tobytes() for row in splits.ood["near"][0]} == held_out
    for name in splits.named_sets().keys() - {"ood/near"}:
        assert held_out.isdisjoint(row.tobytes() for row in splits.named_sets()[name][0])


def test_training_pixels_have_mean_0_and_standard_deviation_1_over_all_pixels_at_once(splits: Splits) -> None:
    train = splits.train[0].astype(np.float64)
    assert abs(train.mean()) < 1e-6
    assert abs(train.std() - 1) < 1e-6
    assert np.any(train.std(axis=0) == 0), "a scale for each pixel would have hidden that corners are empty"


def test_changed_test_validation_and_ood_rows_leave_train_as_it_is(splits: Splits) -> None:
    images, labels = load_digits(return_X_y=True)
    train = digits.divide(labels, 0)[0]
    others = np.setdiff1d(np.arange(len(images)), train)
    images[others] = images[others] * 3 + 1
    changed = digits.from_images(images, labels, *_photographs(), seed=0)
    np.testing.assert_array_equal(changed.train[0], splits.train[0])
    assert not np.array_equal(changed.test[0], splits.test[0])

    def scale_from_all(pixels: np.ndarray) -> np.ndarray:
        return (pixels[train] - pixels.mean()) / pixels.std()

    assert not np.allclose(scale_from_all(images), scale_from_all(load_digits().data)), "the mutant is caught"


def test_changed_training_rows_do_move_the_test_rows(splits: Splits) -> None:
    images, labels = load_digits(return_X_y=True)
    images[digits.divide(labels, 0)[0]] *= 2
    assert not np.allclose(
        digits.from_images(images, labels, *_photographs(), seed=0).test[0], splits.test[0]
    )


def test_choices_and_scored_patches_come_from_areas_that_do_not_touch() -> None:
    china, flower = _photographs()
    scored, choices = digits.patches(china, flower, 288, 289)
    blank = china.copy()
    blank[:, :160] = 0
    np.testing.assert_array_equal(digits.patches(blank, flower, 288, 289)[0], scored)
    blank = china.copy()
    blank[:, 160:] = 0
    np.testing.assert_array_equal(digits.patches(blank, 0 * flower, 288, 289)[1], choices)


def test_patches_are_connected_pieces_of_the_photograph_in_the_range_of_digits() -> None:
    china, flower = _photographs()
    scored, choices = digits.patches(china, flower, 288, 289)
    np.testing.assert_allclose(choices[0].reshape(8, 8), china[:8, :8] * 16 / 255)
    np.testing.assert_allclose(scored[-1].reshape(8, 8), flower[416:424, 632:640] * 16 / 255)
    assert scored.min() >= 0
    assert scored.max() <= 16
    assert scored.max() > 14


def test_swapped_quadrants_keep_the_grey_levels_and_return_when_swapped_twice() -> None:
    image = np.arange(64.0).reshape(1, 64)
    swapped = digits.swap_quadrants(image)
    np.testing.assert_array_equal(swapped.reshape(8, 8)[:4, :4], image.reshape(8, 8)[4:, 4:])
    np.testing.assert_array_equal(swapped.reshape(8, 8)[:4, 4:], image.reshape(8, 8)[4:, :4])
    np.testing.assert_array_equal(digits.swap_quadrants(swapped), image)


def test_the_seed_decides_the_division_and_not_the_patches(splits: Splits) -> None:
    again, other = digits.load(seed=0), digits.load(seed=1)
    np.testing.assert_array_equal(again.train[0], splits.train[0])
    assert not np.array_equal(np.sort(other.train[0], axis=0), np.sort(splits.train[0], axis=0))
    assert not np.array_equal(other.train[1], splits.train[1])


def test_copies_among_the_images_are_refused() -> None:
    images, labels = load_digits(return_X_y=True)
    images[1500] = images[3]
    with pytest.raises(ValueError, match="got 1 copies among the images, the first in row 1500"):
        digits.from_images(images, labels, *_photographs(), seed=0)


def test_too_small_a_photograph_is_refused() -> None:
    with pytest.raises(ValueError, match="got an area of"):
        digits.patches(np.zeros((16, 64)), np.zeros((16, 64)), 10, 10)


def test_a_linear_model_reads_the_digits(splits: Splits) -> None:
    assert LogisticRegression(max_iter=1000).fit(*splits.train).score(*splits.test) > 0.95
