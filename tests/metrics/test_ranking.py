"""Ranking metrics: exact values, ties, one class only, and scikit-learn as the oracle."""

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from singularbayes import metrics
from singularbayes.metrics.ranking import ood_ranking
from singularbayes.metrics.weighted import once

ID = np.array([0.1, 0.2, 0.3, 0.4, 0.9])
OOD = np.array([0.35, 0.5, 0.6, 0.7, 0.95])
SCORES = np.concatenate([ID, OOD])
IS_OOD = np.array([0] * 5 + [1] * 5)


def _scores_with_ties(seed: int, rows: int = 300) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    positive = rng.random(rows) < 0.2
    return np.round(rng.normal(size=rows) + positive, 1), positive


def test_fpr95_with_ood_positive_is_two_fifths():
    assert metrics.fpr_at_tpr(SCORES, IS_OOD) == 0.4


def test_aupr_out_and_in_state_which_class_is_positive():
    assert metrics.average_precision(SCORES, IS_OOD) == pytest.approx(0.786190, abs=5e-7)
    assert metrics.average_precision(-SCORES, 1 - IS_OOD) == pytest.approx(0.871111, abs=5e-7)


def test_the_four_ood_measures_come_from_one_sort():
    measured = {key: value[0] for key, value in ood_ranking(SCORES, IS_OOD == 1)(once(10)).items()}
    assert measured["fpr95"] == 0.4
    assert measured["average_precision_out"] == pytest.approx(0.786190, abs=5e-7)
    assert measured["average_precision_in"] == pytest.approx(0.871111, abs=5e-7)
    assert measured["auroc"] == pytest.approx(roc_auc_score(IS_OOD, SCORES), abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_ranking_metrics_with_ties_equal_scikit_learn(seed):
    scores, positive = _scores_with_ties(seed)
    assert metrics.auroc(scores, positive) == pytest.approx(roc_auc_score(positive, scores), abs=1e-12)
    assert metrics.average_precision(scores, positive) == pytest.approx(
        average_precision_score(positive, scores), abs=1e-12
    )
    fpr, tpr, _ = roc_curve(positive, scores, drop_intermediate=False)
    for wanted in (0.5, 0.8, 0.95, 1.0):
        expected = fpr[np.argmax(tpr >= wanted - 1e-12)]
        assert metrics.fpr_at_tpr(scores, positive, wanted) == pytest.approx(expected, abs=1e-12)


def test_ranking_metrics_do_not_depend_on_the_order_of_tied_rows():
    scores, positive = _scores_with_ties(7)
    first_positives = np.argsort(~positive, kind="stable")
    last_positives = np.argsort(positive, kind="stable")
    for metric in (metrics.auroc, metrics.average_precision, metrics.fpr_at_tpr):
        values = [metric(scores[order], positive[order]) for order in (first_positives, last_positives)]
        assert values[0] == values[1]


def test_equal_scores_give_auroc_one_half_and_the_prevalence_as_average_precision():
    positive = np.array([1, 0, 0, 0])
    assert metrics.auroc(np.ones(4), positive) == 0.5
    assert metrics.average_precision(np.ones(4), positive) == 0.25
    assert metrics.fpr_at_tpr(np.ones(4), positive) == 1.0


def test_float32_and_float64_scores_give_the_same_ranking_metrics():
    scores, positive = _scores_with_ties(3)
    for metric in (metrics.auroc, metrics.average_precision, metrics.fpr_at_tpr):
        assert metric(scores.astype(np.float32), positive) == metric(scores, positive)


@pytest.mark.parametrize("metric", [metrics.auroc, metrics.average_precision, metrics.fpr_at_tpr])
@pytest.mark.parametrize(("flag", "word"), [(0, "negative"), (1, "positive")])
def test_one_class_only_is_nan_with_a_warning_that_names_metric_and_class(metric, flag, word):
    with pytest.warns(UserWarning, match=f"{metric.__name__}.*undefined.*{word}"):
        assert np.isnan(metric([0.1, 0.2], [flag, flag]))


def test_a_column_of_scores_never_broadcasts_against_flags():
    assert metrics.auroc(SCORES[:, None], IS_OOD) == metrics.auroc(SCORES, IS_OOD[:, None])
    with pytest.raises(ValueError, match="shapes differ"):
        metrics.auroc(SCORES, IS_OOD[:4])
    with pytest.raises(ValueError, match=r"shape \(10, 2\)"):
        metrics.auroc(np.zeros((10, 2)), IS_OOD)


def test_bad_scores_and_flags_are_named():
    with pytest.raises(ValueError, match="scores is NaN"):
        metrics.auroc([0.1, np.nan], [0, 1])
    with pytest.raises(ValueError, match="positive is 2 in row 1"):
        metrics.auroc([0.1, 0.2], [0, 2])
    with pytest.raises(ValueError, match="at least one row"):
        metrics.auroc([], [])
    with pytest.raises(TypeError, match=r"expected numbers|Type-check error"):
        metrics.auroc(["a", "b"], [0, 1])
    with pytest.raises(ValueError, match="tpr"):
        metrics.fpr_at_tpr([0.1, 0.2], [0, 1], tpr=95.0)


def test_ninety_five_percent_of_twenty_positives_is_nineteen():
    scores = np.concatenate([[0.0], np.arange(1, 21), [0.5]])  # one positive lies below both negatives
    positive = np.array([1] + [1] * 19 + [0] * 2)
    scores[-2:] = (0.5, 0.6)
    assert metrics.fpr_at_tpr(scores, positive) == 0.0


def test_spearman_with_ties_equals_scipy():
    rng = np.random.default_rng(0)
    first = np.round(rng.normal(size=200), 1)
    second = np.round(first + rng.normal(size=200), 1)
    assert metrics.spearman(first, second) == pytest.approx(spearmanr(first, second).statistic, abs=1e-12)


def test_spearman_of_a_constant_column_is_nan_with_a_warning():
    with pytest.warns(UserWarning, match="constant"):
        assert np.isnan(metrics.spearman([1, 1, 1], [1, 2, 3]))
