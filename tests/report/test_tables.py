import math

from singularbayes.diagnosis import Criterion
from singularbayes.report import Report
from singularbayes.report.estimate import Estimate
from singularbayes.report.tables import _dial, clearly_best, dials, main_table, set_table, shared_gaps


def of(value: float, low: float, high: float) -> Estimate:
    return Estimate(value=value, low=low, high=high, defined=1, seeds=1)


def naive(estimates, better):  # the mutant: the highest value is bold whatever its interval
    return max(range(len(estimates)), key=lambda i: better * estimates[i].value)


def test_bold_needs_intervals_that_lie_apart_and_the_mutant_does_not():
    apart = [of(0.9, 0.88, 0.92), of(0.8, 0.78, 0.82), of(0.85, 0.83, 0.87)]
    touching = [of(0.9, 0.85, 0.95), of(0.8, 0.75, 0.85)]
    assert clearly_best(apart, 1) == 0
    assert clearly_best(apart, -1) == 1
    assert clearly_best(touching, 1) is None
    assert naive(touching, 1) == 0


def test_nothing_is_bold_alone_or_beside_a_value_that_is_missing():
    assert clearly_best([of(0.9, 0.88, 0.92)], 1) is None
    assert clearly_best([of(0.9, 0.88, 0.92), None], 1) is None
    assert clearly_best([of(0.9, 0.88, 0.92), of(math.nan, math.nan, math.nan)], 1) is None
    assert clearly_best([of(0.9, 0.88, 0.92), of(0.1, 0.0, 0.2)], 0) is None


def make_report(entries) -> Report:
    return Report(title="t", recipe="r", about={}, entries=entries, command="c")


def test_guessing_is_printed_beside_every_average_precision(make_entry):
    table = set_table(make_report([make_entry("a", 0.7, 0.9)]), "near")
    subs = {column.head.split("\xa0")[0].replace("\u2011", "-"): column.sub for column in table.columns}
    assert subs["AUPR-Out"] == "guess 0.308"
    assert subs["AUPR-In"] == "guess 0.692"


def test_main_table_has_auroc_of_each_set_by_both_scores(make_entry):
    table = main_table(make_report([make_entry("a", 0.7, 0.9)]))
    found = [(c.group, c.head) for c in table.columns if "AUROC" in c.group]
    assert [head for _, head in found] == ["by mutual information", "by entropy"] * 2
    assert sum(width for _, width in table.groups) == len(table.columns)


def test_dials_place_the_value_on_its_scale():
    ratio = _dial(Criterion("B", "scale", 4.0, 1.0, 64.0, "", "good"))
    assert (ratio.reference, ratio.point, ratio.low, ratio.high) == (50.0, 75.0, 50.0, 100.0)
    assert ratio.text == "×4.000"
    auroc = _dial(Criterion("A", "ranking", 0.38, 0.35, 0.41, "", "poor"))
    assert (auroc.reference, auroc.point) == (50.0, 38.0)
    spearman = _dial(Criterion("A", "uncertainty against error (Spearman)", -0.5, -0.6, -0.4, "", "poor"))
    assert (spearman.reference, spearman.point) == (50.0, 25.0)
    coverage = _dial(Criterion("C", "mass (coverage of 95% intervals)", 0.8, 0.7, 0.9, "", "poor"))
    assert coverage.reference == 95.0


def test_a_value_beyond_the_scale_ends_in_an_arrow():
    def beyond(key, value, name=""):
        return _dial(Criterion(key, name, value, value, value, "", "good")).beyond

    assert [beyond("B", v) for v in (0.01, 1 / 16, 16.0, 17.0)] == ["low", "", "", "high"]
    assert beyond("A", 1.0) == ""
    assert [beyond("B", v) for v in (math.nan, math.inf, 0.0)] == ["", "", ""]


def test_a_criterion_that_no_method_has_is_said_once(make_entry):
    rows = [dials(make_entry("a", 0.7, 0.9), "far"), dials(make_entry("b", 0.6, 0.9), "far")]
    gaps, rest = shared_gaps(rows)
    assert [dial.key for dial in gaps] == ["C"]
    assert [[dial.key for dial in row] for row in rest] == [["A", "B"]] * 2
    gaps, rest = shared_gaps([rows[0], dials(make_entry("b", 0.6, 0.9), "near")])
    assert gaps == []
    assert [len(row) for row in rest] == [3, 3]
    assert shared_gaps([]) == ([], [])


def test_a_criterion_without_a_value_has_no_point(make_entry):
    far = {dial.key: dial for dial in dials(make_entry("a", 0.7, 0.9), "far")}
    assert far["C"].point is None
    assert far["C"].text == "not measured"
    assert [dial.status for dial in dials(make_entry("a", 0.7, 0.9), "unknown")] == ["not measured"] * 3
