import dataclasses
import math

import numpy as np
import pytest

from singularbayes.evaluation import SetArrays
from singularbayes.metrics import Interval
from singularbayes.report import Entry, Report, verdict
from singularbayes.report.verdict import auroc_difference, confidence_gap


def findings(entries) -> dict:
    report = Report(title="t", recipe="r", about={}, entries=entries, command="c")
    return {finding.topic: finding for finding in verdict(report)}


def test_the_best_is_named_where_its_interval_lies_apart(make_entry):
    found = findings([make_entry("a", 0.6, 0.7), make_entry("b", 0.8, 0.9)])["Ranking of “near”"]
    assert found.tone == "good"
    assert found.text.startswith("b ranks best (AUROC 0.800, 95% interval 0.780 to 0.820)")
    assert "the next is a with 0.600" in found.text


def test_overlap_and_paired_comparison_are_one_statement(make_entry):
    found = findings([make_entry("a", 0.79, 0.7), make_entry("b", 0.8, 0.9), make_entry("c", 0.6, 0.5)])
    near = found["Ranking of “near”"]
    assert near.tone == "neutral"
    assert near.text.startswith("b is highest (AUROC 0.800")
    assert ("it is ahead of a, the next, on the same cases (by " in near.text) != ("no winner" in near.text)


def test_who_ranks_as_well_by_the_other_score_is_named(make_entry):
    point, best = make_entry("point", 0.5, 0.7), make_entry("best", 0.8, 0.9)
    (evaluation,) = point.evaluations
    alike = {**evaluation.ood["near"], "entropy": {"auroc": Interval(0.81, 0.79, 0.83)}}
    ranked = dataclasses.replace(evaluation, ood={**evaluation.ood, "near": alike})
    said = findings([dataclasses.replace(point, evaluations=(ranked,)), best])["Ranking of “near”"].text
    assert "By entropy, point (0.810)" in said
    assert "best (0.770)" in said  # its interval reaches that of the best by mutual information
    assert "By entropy" not in findings([make_entry("point", 0.5, 0.7), best])["Inverted"].text
    assert "point (" not in findings([point, best])["Ranking of “near”"].text


def test_difference_is_paired_by_seed_and_absent_without_shared_seeds(make_entry):
    first, second = make_entry("a", 0.79, 0.7, seeds=2), make_entry("b", 0.6, 0.9, seeds=2)
    found = auroc_difference(first, second, "near", "mutual_information")
    assert found.seeds == 2
    assert found.value > 0.1
    moved = tuple(dataclasses.replace(e, seed=e.seed + 10) for e in second.evaluations)
    assert auroc_difference(first, dataclasses.replace(second, evaluations=moved), "near", "entropy") is None
    empty = tuple(dataclasses.replace(e, sets={}) for e in second.evaluations)
    assert auroc_difference(first, dataclasses.replace(second, evaluations=empty), "near", "entropy") is None


def test_chance_is_not_called_a_ranking(make_entry):
    found = findings([make_entry("a", 0.51, 0.7), make_entry("b", 0.45, 0.9)])["Ranking of “near”"]
    assert found.tone == "poor"
    assert "better than chance" in found.text


def test_inversion_is_said_only_where_the_whole_interval_is_below_half(make_entry):
    found = findings([make_entry("a", 0.38, 0.7), make_entry("b", 0.49, 0.9)])["Inverted"]
    assert found.tone == "poor"
    assert found.text.startswith("Surer of unfamiliar cases than of familiar ones: a on “near” (AUROC 0.380")
    assert "Not told apart from chance: b on “near”" in found.text
    assert findings([make_entry("a", 0.7, 0.9)])["Inverted"].tone == "good"


def test_over_confidence_is_found_on_every_labelled_set(make_entry):
    found = findings([make_entry("sure", 0.7, 0.9, gap=0.2), make_entry("fair", 0.7, 0.9)])["Over-confident"]
    assert found.tone == "poor"
    assert "sure on “test” by" in found.text
    assert "sure on “near” by" in found.text
    assert "fair" not in found.text
    assert "far" not in found.text.replace("fair", "")


def test_gap_is_confidence_minus_accuracy(make_entry):
    entry = make_entry("a", 0.7, 0.9)
    arrays = SetArrays({}, np.zeros(4), np.array([0.9, 0.2, 0.6, 0.5]), None, np.array([0.0, 1.0, 0.0, 1.0]))
    evaluation = dataclasses.replace(entry.evaluations[0], task="bernoulli", sets={"test": arrays})
    gap = confidence_gap(dataclasses.replace(entry, evaluations=(evaluation,)), "test")
    assert gap.value == pytest.approx((0.9 + 0.8 + 0.6 + 0.5) / 4 - 0.5)
    assert confidence_gap(entry, "far") is None  # no labels


def test_too_narrow_intervals_of_a_regression_are_over_confident(make_regressor):
    entries = [
        Entry(name=n, evaluations=(make_regressor(n, 0.9, c),), diagnosis=None, numbers=1, seconds=1.0)
        for n, c in (("narrow", 0.8), ("fair", 0.94))
    ]
    found = findings(entries)["Over-confident"]
    assert "narrow on “test” (80.0%" in found.text
    assert "fair" not in found.text


def test_undefined_and_unmeasured_sets_do_not_break_the_verdict(make_entry):
    a, b = make_entry("a", 0.7, 0.9), make_entry("b", 0.6, 0.9)
    blank = Interval(math.nan, math.nan, math.nan)
    gone = {"near": {"mutual_information": {"auroc": blank}}}
    b = dataclasses.replace(b, evaluations=(dataclasses.replace(b.evaluations[0], ood=gone),))
    found = findings([a, b])
    assert "Undefined or not measured for b." in found["Ranking of “near”"].text
    assert findings([b])["Ranking of “near”"].tone == "neutral"


def test_values_without_intervals_claim_no_difference(make_entry):
    found = findings([make_entry("a", 0.7, 0.9, half=math.nan), make_entry("b", 0.6, 0.8, half=math.nan)])
    assert "no difference is claimed" in found["Ranking of “near”"].text
