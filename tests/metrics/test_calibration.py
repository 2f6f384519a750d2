"""Calibration metrics: stated bins, exact values, and torchmetrics and scikit-learn as oracles."""

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss

from singularbayes import metrics

CONFIDENCE = [0.6, 0.62, 0.58]
RIGHT = [0, 1, 1]


def _classes(seed: int, rows: int = 400, classes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(rows, classes)) * 2
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return probs, rng.integers(classes, size=rows)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_calibration_error_on_a_bin_edge_is_the_same_in_both_precisions(dtype):
    probability = np.array(CONFIDENCE, dtype)
    two_columns = np.stack([1 - probability, probability], 1)
    assert metrics.expected_calibration_error(probability, RIGHT) == pytest.approx(0.186667, abs=1e-6)
    assert metrics.expected_calibration_error(two_columns, RIGHT) == pytest.approx(0.186667, abs=1e-6)


def test_edges_from_linspace_in_float32_would_fail_the_case_above():
    edges = torch.linspace(0, 1, 16).numpy()  # its tenth edge lies one rounding below 9/15
    probability = np.array(CONFIDENCE, np.float32)
    index = np.searchsorted(edges, probability, "left")
    gap = sum(
        abs((probability[index == k] - np.array(RIGHT)[index == k]).sum()) / 3 for k in np.unique(index)
    )
    assert gap == pytest.approx(0.213333, abs=1e-6)


def test_every_edge_falls_into_the_bin_that_it_closes_in_both_precisions():
    edges = np.arange(1, 16) / 15
    for dtype in (np.float32, np.float64):
        bins = metrics.calibration_bins(edges.astype(dtype), np.ones(15))
        assert bins.rows.tolist() == [1] * 15


def test_bins_cover_confidence_zero_and_one():
    bins = metrics.calibration_bins([0.0, 1.0], [1, 0])
    assert (bins.rows[0], bins.rows[-1], bins.rows.sum()) == (1, 1, 2)
    assert metrics.expected_calibration_error([0.0, 1.0], [1, 0]) == 1.0
    assert metrics.expected_calibration_error([0.0, 1.0], [0, 1]) == 0.0


def test_empty_bins_are_nan_and_weigh_nothing():
    bins = metrics.calibration_bins(CONFIDENCE, RIGHT)
    assert np.isnan(bins.confidence[bins.rows == 0]).all()
    gaps = np.abs(bins.confidence - bins.frequency)
    total = np.nansum(bins.rows / 3 * gaps)
    assert total == pytest.approx(metrics.expected_calibration_error(CONFIDENCE, RIGHT), abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_calibration_error_equals_torchmetrics_away_from_edges(seed):
    functional = pytest.importorskip("torchmetrics.functional.classification")
    probs, labels = _classes(seed)
    expected = functional.multiclass_calibration_error(
        torch.tensor(probs), torch.tensor(labels), num_classes=4, n_bins=15, norm="l1"
    )
    assert metrics.expected_calibration_error(probs, labels) == pytest.approx(expected.item(), abs=1e-6)
    positive = probs[:, 1] / (probs[:, 0] + probs[:, 1])
    expected = functional.binary_calibration_error(
        torch.tensor(positive), torch.tensor(labels % 2), n_bins=15, norm="l1"
    )
    assert metrics.expected_calibration_error(positive, labels % 2) == pytest.approx(
        expected.item(), abs=1e-6
    )


def test_probability_metrics_of_classes_equal_scikit_learn():
    probs, labels = _classes(5)
    assert metrics.negative_log_likelihood(probs, labels) == pytest.approx(log_loss(labels, probs), abs=1e-12)
    assert metrics.accuracy(probs, labels) == accuracy_score(labels, probs.argmax(1))
    by_class = [((probs[:, k] - (labels == k)) ** 2).mean() for k in range(4)]
    assert metrics.brier(probs, labels) == pytest.approx(sum(by_class), abs=1e-12)


def test_probability_metrics_of_one_column_equal_scikit_learn():
    probs, labels = _classes(6, classes=2)
    one = probs[:, 1]
    assert metrics.negative_log_likelihood(one, labels) == pytest.approx(log_loss(labels, one), abs=1e-12)
    assert metrics.brier(one, labels) == pytest.approx(brier_score_loss(labels, one), abs=1e-12)
    assert metrics.accuracy(one, labels) == metrics.accuracy(probs, labels)
    assert metrics.brier(probs, labels) == pytest.approx(2 * metrics.brier(one, labels), abs=1e-12)


def test_probability_zero_for_the_label_is_an_infinite_log_likelihood():
    assert metrics.negative_log_likelihood([[1.0, 0.0]], [1]) == np.inf
    assert metrics.negative_log_likelihood([0.0], [1]) == np.inf


def test_integer_float_boolean_and_column_labels_are_the_same():
    expected = metrics.brier(CONFIDENCE, RIGHT)
    for labels in (np.array(RIGHT, float), np.array(RIGHT, bool), np.array(RIGHT)[:, None]):
        assert metrics.brier(CONFIDENCE, labels) == expected
        assert metrics.brier(np.array(CONFIDENCE)[:, None], labels) == expected


def test_bad_probabilities_and_labels_are_named():
    with pytest.raises(ValueError, match="turn logits into probabilities"):
        metrics.brier([[2.0, -1.0]], [0])
    with pytest.raises(ValueError, match=r"row 0 sum to 0\.5"):
        metrics.brier([[0.25, 0.25]], [0])
    with pytest.raises(ValueError, match="label 2 in row 0"):
        metrics.brier([[0.5, 0.5]], [2])
    with pytest.raises(ValueError, match="2 labels for 1 rows"):
        metrics.brier([[0.5, 0.5]], [0, 1])
    with pytest.raises(ValueError, match="bins"):
        metrics.expected_calibration_error(CONFIDENCE, RIGHT, bins=0)


def test_class_one_is_predicted_above_a_half_alone():
    assert metrics.accuracy([0.5], [1]) == 0.0
    assert metrics.accuracy([0.5], [0]) == 1.0
    assert metrics.accuracy([np.nextafter(0.5, 1)], [1]) == 1.0
    assert metrics.bootstrap_interval(metrics.accuracy, [0.5, 0.5], [1, 1], replicates=5).value == 0.0


def _equal_mass(confidence, outcome, bins):
    """Slow and right: every row cut into `bins` pieces, so that bins of equal mass are whole pieces."""
    gap = np.array([np.mean((confidence - outcome)[confidence == c]) for c in confidence])
    pieces = np.repeat(gap[np.argsort(confidence, kind="stable")], bins).reshape(bins, -1)
    return float(np.abs(pieces.mean(1)).mean())


@pytest.mark.parametrize("rows", [7, 60, 601])
def test_adaptive_calibration_error_holds_equally_many_rows_in_every_bin(rows):
    rng = np.random.default_rng(rows)
    probs = rng.dirichlet([8, 1, 0.2], size=rows)  # badly scaled: most confidences lie close to 1
    probs[: rows // 3] = probs[0]  # and many are equal
    labels = rng.integers(3, size=rows)
    confidence, right = probs.max(1), (probs.argmax(1) == labels).astype(float)
    expected = _equal_mass(confidence, right, 15)
    assert metrics.adaptive_calibration_error(probs, labels) == pytest.approx(expected, abs=1e-12)
    binary = metrics.adaptive_calibration_error(probs[:, 0], labels > 0, bins=4)
    assert binary == pytest.approx(_equal_mass(probs[:, 0], labels > 0, 4), abs=1e-12)


def test_adaptive_calibration_error_sees_what_one_wide_bin_averages_away():
    # all confidences lie in one of 15 equal bins: half too high by .03, half too low by .03
    confidence = np.repeat([0.94, 0.999], 1000)
    labels = np.concatenate([np.arange(1000) < 970, np.arange(1000) < 969]).astype(int)
    assert metrics.expected_calibration_error(confidence, labels) == pytest.approx(0, abs=1e-12)
    assert metrics.adaptive_calibration_error(confidence, labels, bins=2) == pytest.approx(0.03, abs=1e-12)


def test_adaptive_calibration_error_does_not_depend_on_the_order_of_tied_rows():
    # edges that fall among tied rows: the order of the file would move the value between .05 and .4
    confidence, labels = np.full(20, 0.75), np.arange(20) < 14
    assert metrics.adaptive_calibration_error(confidence, labels, bins=2) == pytest.approx(0.05, abs=1e-12)
    shuffled = np.random.default_rng(0).permutation(labels)
    assert metrics.adaptive_calibration_error(confidence, shuffled, bins=2) == pytest.approx(0.05, abs=1e-12)


def test_adaptive_calibration_error_needs_a_bin():
    with pytest.raises(ValueError, match="bins must be at least 1, got 0"):
        metrics.adaptive_calibration_error([0.5], [1], bins=0)
