"""The bootstrap from counts: equal to copying rows, stratified, seeded, fast, and covering the truth."""

import functools
import time
import tracemalloc

import numpy as np
import pytest
from scipy.stats import norm, spearmanr
from sklearn.metrics import average_precision_score, roc_auc_score

from singularbayes import metrics
from singularbayes.metrics import bootstrap, calibration, regression
from singularbayes.metrics.ranking import ood_ranking, spearman_of
from singularbayes.metrics.weighted import mean_of, median_of


def _scores(rows: int = 60, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    positive = np.arange(rows) >= rows // 3
    return np.round(rng.normal(size=rows) + positive, 1), positive


def _brute_force(metric, arrays, strata, replicates=40, seed=3):
    """Copies the drawn rows, one replicate at a time."""
    (counts,) = bootstrap.resample_counts(strata, replicates, seed)
    drawn = [np.repeat(np.arange(len(strata)), row) for row in counts]
    return np.array([metric(*(array[rows] for array in arrays)) for rows in drawn])


def _fpr(scores, positive):
    threshold = np.sort(scores[positive])[::-1][int(np.ceil(0.95 * positive.sum() - 1e-9)) - 1]
    return np.mean(scores[~positive] >= threshold)


def test_ood_replicates_equal_brute_force():
    scores, out = _scores()
    draws = bootstrap.bootstrap_replicates({"x": ood_ranking(scores, out)}, out, 40, 3)["x"]
    oracles = {
        "auroc": lambda s, p: roc_auc_score(p, s),
        "average_precision_out": lambda s, p: average_precision_score(p, s),
        "average_precision_in": lambda s, p: average_precision_score(~p, -s),
        "fpr95": _fpr,
    }
    for name, oracle in oracles.items():
        np.testing.assert_allclose(draws[name][1:], _brute_force(oracle, (scores, out), out), atol=1e-12)
        assert draws[name][0] == pytest.approx(oracle(scores, out), abs=1e-12)


def test_other_replicates_equal_brute_force():
    rng = np.random.default_rng(2)
    a, b = np.round(rng.normal(size=51), 1), np.round(rng.normal(size=51), 1)
    strata, cdf = np.arange(51) % 2, rng.random((51, 2))
    probability, label = rng.random(51), rng.integers(2, size=51)
    statistics = {
        "spearman": spearman_of(a, b),
        "median": median_of({"median": a}),
        "mean": mean_of({"mean": a}),
        "bins": calibration.calibration_error_of(probability, label.astype(float)),
        "cdf": regression.calibration_error_of(cdf),
    }
    draws = bootstrap.bootstrap_replicates(statistics, strata, 40, 3)
    oracles = {
        "spearman": (lambda x, y: spearmanr(x, y).statistic, (a, b)),
        "median": (np.median, (a,)),
        "mean": (np.mean, (a,)),
        "bins": (metrics.expected_calibration_error, (probability, label)),
        "cdf": (metrics.regression_calibration_error, (cdf,)),
    }
    for name, (oracle, arrays) in oracles.items():
        (values,) = draws[name].values()
        np.testing.assert_allclose(values[1:], _brute_force(oracle, arrays, strata), atol=1e-12)


@pytest.mark.parametrize(
    "metric",
    [
        metrics.auroc,
        metrics.average_precision,
        metrics.fpr_at_tpr,
        metrics.error_average_precision,
        metrics.success_average_precision,
        metrics.selective_risk_area,
    ],
)
def test_the_fast_form_of_a_metric_gives_the_interval_of_the_slow_one(metric):
    scores, positive = _scores()
    fast = metrics.bootstrap_interval(metric, scores, positive, strata=positive, replicates=50)
    slow = metrics.bootstrap_interval(
        functools.partial(metric), scores, positive, strata=positive, replicates=50
    )
    assert (fast.value, fast.low, fast.high) == pytest.approx((slow.value, slow.low, slow.high), abs=1e-12)


@pytest.mark.parametrize(
    "metric",
    [
        metrics.accuracy,
        metrics.brier,
        metrics.negative_log_likelihood,
        metrics.expected_calibration_error,
        metrics.adaptive_calibration_error,
    ],
)
def test_the_fast_form_of_a_probability_metric_gives_the_interval_of_the_slow_one(metric):
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(3), size=50)
    labels = rng.integers(3, size=50)
    fast = metrics.bootstrap_interval(metric, probs, labels, strata=labels, replicates=50)
    slow = metrics.bootstrap_interval(functools.partial(metric), probs, labels, strata=labels, replicates=50)
    assert (fast.value, fast.low, fast.high) == pytest.approx((slow.value, slow.low, slow.high), abs=1e-12)


def test_every_stratum_keeps_its_size_and_every_row_is_drawn_once_on_average():
    strata = np.array([0] * 10 + [1] * 3 + [2])
    counts = np.concatenate(list(bootstrap.resample_counts(strata, 4000, 0)))
    for k, size in enumerate((10, 3, 1)):
        assert (counts[:, strata == k].sum(1) == size).all()
    # the mean of 4000 counts with variance below 1: 4 standard errors are .063, false alarms 14 x 6e-5
    np.testing.assert_allclose(counts.mean(0), 1, atol=4 / np.sqrt(4000))
    variance = counts[:, :10].var(0)
    np.testing.assert_allclose(variance, 0.9, atol=4 * np.sqrt(2.8 / 4000))  # binomial(10, .1): variance .9


def test_replicates_do_not_depend_on_the_size_of_a_block():
    strata = np.arange(50) % 3
    whole = np.concatenate(list(bootstrap.resample_counts(strata, 20, 0)))
    blocks = list(bootstrap.resample_counts(strata, 20, 0, block=150))
    assert [len(block) for block in blocks] == [3] * 6 + [2]
    np.testing.assert_array_equal(np.concatenate(blocks), whole)


def test_another_stratum_at_the_end_leaves_the_first_resamples_alone():
    (alone,) = bootstrap.resample_counts(np.zeros(20), 10, 0)
    (together,) = bootstrap.resample_counts(np.repeat([0, 1], [20, 5]), 10, 0)
    np.testing.assert_array_equal(together[:, :20], alone)


def test_the_same_seed_gives_the_same_interval_and_the_global_generator_is_untouched():
    scores, positive = _scores()
    before = np.random.get_state()[1].copy()  # noqa: NPY002 - the state that must not move
    first, again, other = (
        metrics.bootstrap_interval(metrics.auroc, scores, positive, seed=seed) for seed in (0, 0, 1)
    )
    assert first == again
    assert first != other
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002


def test_undefined_replicates_are_left_out_and_an_undefined_value_has_no_interval():
    scores = np.array([0.9, 0.1, 0.2, 0.3])
    interval = metrics.bootstrap_interval(metrics.auroc, scores, [1, 0, 0, 0], replicates=200)
    assert (interval.value, interval.low, interval.high) == (1.0, 1.0, 1.0)
    with pytest.warns(UserWarning, match="auroc"):
        nothing = metrics.bootstrap_interval(metrics.auroc, scores, [0, 0, 0, 0], replicates=20)
    assert str(nothing) == "undefined"
    assert np.isnan([nothing.value, nothing.low, nothing.high]).all()


def test_infinite_values_give_infinite_ends_and_no_nan():
    interval = metrics.bootstrap_interval(
        metrics.negative_log_likelihood, [0.0, 0.5, 0.5], [1, 1, 0], replicates=200
    )
    assert interval.value == interval.high == np.inf
    assert interval.low == pytest.approx(np.log(2))


def test_the_interval_holds_its_own_value_for_a_biased_statistic():
    rng = np.random.default_rng(0)
    probability = rng.random(200)
    label = rng.random(200) < probability
    interval = metrics.bootstrap_interval(metrics.expected_calibration_error, probability, label)
    assert interval.low <= interval.value <= interval.high


def test_zero_replicates_give_the_value_alone():
    scores, positive = _scores()
    interval = metrics.bootstrap_interval(metrics.auroc, scores, positive, replicates=0)
    assert interval.value == metrics.auroc(scores, positive)
    assert np.isnan([interval.low, interval.high]).all()
    assert str(interval) == f"{interval.value:.3f}"


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match=r"\[2, 3, 2\] rows"):
        metrics.bootstrap_interval(metrics.auroc, [1, 2], [1, 0, 1])
    with pytest.raises(ValueError, match="no arrays"):
        metrics.bootstrap_interval(metrics.auroc)
    with pytest.raises(ValueError, match="level"):
        metrics.bootstrap_interval(metrics.auroc, [1, 2], [1, 0], level=95.0)
    with pytest.raises(TypeError, match=r"replicates must be an integer|Type-check error"):
        metrics.bootstrap_interval(metrics.auroc, [1, 2], [1, 0], replicates=10.0)


def test_a_thousand_replicates_on_eight_thousand_scores_are_fast_and_small():
    rng = np.random.default_rng(0)
    out = np.arange(8000) >= 4000
    statistics = {"x": ood_ranking(rng.normal(size=8000) + out, out)}
    start = time.perf_counter()
    bootstrap.bootstrap_replicates(statistics, out, 1000, 0)
    assert time.perf_counter() - start < 5  # about .4 s on an idle core; one replicate at a time takes 20 s
    tracemalloc.start()
    bootstrap.bootstrap_replicates(statistics, out, 300, 0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (
        peak < 64 * 2**20
    )  # all counts of 1000 replicates at once, as 8-byte numbers, would take 61 MB alone


def _coverage(shrink: float, experiments: int = 300) -> float:
    """Share of simulated experiments whose interval, shrunk about its value, holds the true AUROC."""
    rng, truth, held = np.random.default_rng(0), norm.cdf(1 / np.sqrt(2)), 0
    out = np.arange(200) >= 100
    for k in range(experiments):
        found = metrics.bootstrap_interval(
            metrics.auroc, rng.normal(size=200) + out, out, strata=out, replicates=300, seed=k
        )
        low, high = (found.value + shrink * (end - found.value) for end in (found.low, found.high))
        held += low <= truth <= high
    return held / experiments


def test_the_interval_of_auroc_holds_the_truth_at_its_stated_rate():
    # 4 standard errors at 95% of 300 are .050; percentile intervals run a little low at 100 rows
    assert _coverage(1.0) > 0.90


def test_an_interval_of_half_the_width_fails_the_coverage_test():
    assert _coverage(0.5) < 0.80
