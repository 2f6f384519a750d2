import math

import numpy as np
import pytest

from singularbayes.metrics import Interval
from singularbayes.report.estimate import Estimate, duration, number, pool, span

NAN = math.nan


def test_one_seed_keeps_its_bootstrap_interval():
    assert pool([Interval(0.8, 0.7, 0.85)], "auroc") == Estimate(
        value=0.8, low=0.7, high=0.85, defined=1, seeds=1
    )


def test_seeds_are_averaged_and_both_sources_of_noise_widen_the_interval():
    found = pool([Interval(0.7, 0.68, 0.74), Interval(0.8, 0.78, 0.84)], "auroc")
    spread = 12.706204736 * math.sqrt(0.005) / math.sqrt(2)  # t(1, .975) times the standard error
    assert found.value == pytest.approx(0.75)
    assert found.low == pytest.approx(max(0, 0.75 - math.hypot(0.02, spread)))
    assert found.high == 1.0  # .75 + .64 would pass the natural limit


def test_a_seed_without_a_value_is_counted_and_not_averaged():
    found = pool([Interval(0.8, 0.7, 0.9), Interval(NAN, NAN, NAN), None])
    assert (found.value, found.defined, found.seeds) == (0.8, 1, 3)


def test_undefined_and_not_measured_differ():
    assert not pool([Interval(NAN, NAN, NAN)]).exists
    assert pool([None, None]) is None
    assert number(NAN) == "undefined"
    assert number(None) == "not measured"


def coverage(interval) -> float:
    """Share of 2000 runs of 4 seeds whose interval holds the truth, 0; cases and seeds both add noise."""
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(2000):
        values = rng.normal(0, 0.02) + rng.normal(0, 0.03, 4)  # the first is shared: same test cases
        low, high = interval([Interval(v, v - 1.96 * 0.02, v + 1.96 * 0.02) for v in values])
        hits += low <= 0 <= high
    return hits / 2000


def pooled(intervals):
    found = pool(intervals)
    return found.low, found.high


def without_the_seeds(intervals):  # the mutant: the ends are averaged, the spread of the seeds is left out
    return np.mean([i.low for i in intervals]), np.mean([i.high for i in intervals])


def test_pooled_interval_holds_the_truth_in_95_percent_of_runs_and_the_mutant_fails():
    floor = 0.95 - 4 * math.sqrt(
        0.95 * 0.05 / 2000
    )  # four standard errors: a false alarm in 3e5 at exactly 95%
    assert coverage(pooled) >= floor
    assert coverage(without_the_seeds) < floor


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.93456, "0.935"),
        (-0.5, "−0.500"),
        (0.0, "0.000"),
        (41.25, "41.25"),
        (412.34, "412.3"),
        (150000.0, "150,000"),
        (0.00042, "0.0004"),
        (3e-7, "3.00e−07"),
        (math.inf, "infinite"),
    ],
)
def test_numbers_are_printed_for_readers(value, text):
    assert number(value) == text


def test_interval_is_printed_only_where_there_is_one():
    assert span(None) == ""
    assert span(pool([Interval(0.5, NAN, NAN)])) == ""
    assert span(pool([Interval(0.5, 0.4, 0.6)])) == "0.400 to 0.600"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.5, "0.5 s"), (59.9, "59.9 s"), (3725, "1 h 2 min"), (NAN, "not measured")]
)
def test_durations_are_printed_for_readers(seconds, text):
    assert duration(float(seconds)) == text
