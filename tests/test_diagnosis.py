"""Diagnosis: the textbook inversion, its indifference to scale, and verdicts in plain words."""

import dataclasses

import numpy as np
import pytest

from singularbayes.diagnosis import diagnose
from singularbayes.evaluation import Evaluation, SetArrays
from singularbayes.evaluation.measures import measure_ood, measure_set
from singularbayes.metrics import Interval

TEST = np.full(100, 1.0)
# 62 of 100 far rows lie below every test row and 38 above: AUROC .38; the ratio of means is 1.125
INVERTED = np.concatenate([np.full(62, 0.5), np.full(38, (112.5 - 31) / 38)])
RNG = np.random.default_rng(0)
BELL = RNG.lognormal(size=400)


def _arrays(scores, labels=None, mean=None) -> SetArrays:
    rows = len(scores)
    probs = np.full((rows, 2), 0.5) if mean is None else mean
    if labels is None:
        return SetArrays({"mutual_information": scores}, None, probs, None, None)
    error = (probs.argmax(1) != labels).astype(float)
    columns = {"accuracy": 1 - error, "negative_log_likelihood": error, "brier": error}
    return SetArrays({"mutual_information": scores}, labels, probs, None, error, columns)


def _probs(rows: int, confidence: float, right: float) -> tuple[np.ndarray, np.ndarray]:
    """Predictions of class 0 with one confidence, and labels that make a share ``right`` of them correct."""
    labels = (np.arange(rows) >= right * rows).astype(float)
    return labels, np.tile([confidence, 1 - confidence], (rows, 1))


def _evaluation(sets: dict[str, SetArrays], bootstrap: int = 200, task: str = "categorical") -> Evaluation:
    measured = {k: measure_set(k, v, task, bootstrap, 0) for k, v in sets.items() if v.labels is not None}
    outside = [key for key in sets if key != "test"]
    return Evaluation(
        name="model", task=task, draws=8, seed=0, bootstrap=bootstrap, metrics=measured.pop("test"),
        ood={key: measure_ood(key, sets, task, bootstrap, 0) for key in outside}, ood_metrics=measured,
        prevalence={k: len(sets[k].mean) / (len(sets[k].mean) + len(sets["test"].mean)) for k in outside},
        sets=sets, info={},
    )  # fmt: skip


def _classes(
    test, far, *, scale: float = 1.0, confidence: float = 0.8, bootstrap: int = 200, far_labels=None
):
    labels, mean = _probs(len(test), confidence, 0.8)
    labels = labels[np.argsort(test, kind="stable").argsort()] if np.ptp(test) else labels
    sets = {"test": _arrays(scale * test, labels, mean), "far": _arrays(scale * far)}
    if far_labels is not None:
        sets["far"] = _arrays(scale * far, *far_labels)
    return _evaluation(sets, bootstrap)


def test_a_ratio_above_one_with_auroc_below_one_half_is_the_textbook_inversion():
    diagnosis = diagnose(_classes(TEST, INVERTED))
    a, b, _ = diagnosis.criteria["far"]
    assert (round(a.value, 6), round(b.value, 6)) == (0.38, 1.125)
    assert a.verdict == "inverted: the model is MORE certain on far than on test data"
    assert (a.status, b.status) == ("poor", "poor")
    assert "1.125 times as large" in b.verdict
    assert b.verdict.startswith("misleading")
    assert diagnosis.median_ratio["far"].value == 0.5
    assert "structure" in diagnosis.points_to("far")


def test_ten_times_the_uncertainty_changes_neither_ranking_nor_ratio():
    small, large = (diagnose(_classes(TEST, INVERTED, scale=scale)).criteria["far"] for scale in (1.0, 10.0))
    for before, after in zip(small, large, strict=True):
        assert (before.verdict, before.status) == (after.verdict, after.status)
        np.testing.assert_allclose(
            [before.value, before.low, before.high], [after.value, after.low, after.high], rtol=1e-12
        )


def test_every_ood_set_has_exactly_a_b_and_c():
    diagnosis = diagnose(_classes(BELL, 3 * BELL))
    assert [criterion.key for criterion in diagnosis.criteria["far"]] == ["A", "B", "C"]


def test_a_good_model_is_called_good():
    diagnosis = diagnose(_classes(BELL, 20 * BELL))
    a, b, c = diagnosis.criteria["far"]
    assert (a.status, b.status, c.status) == ("good", "good", "not measured")
    assert b.value == pytest.approx(20)
    assert diagnosis.median_ratio["far"].value == pytest.approx(20)
    assert "no labels" in c.verdict
    assert diagnosis.in_distribution[1].status == "good"
    assert diagnosis.points_to("far") == "nothing to mend here"


def test_the_same_distribution_is_no_signal():
    a = diagnose(_classes(BELL, RNG.permutation(BELL))).criteria["far"][0]
    assert (a.status, a.value) == ("poor", 0.5)
    assert a.verdict == "no signal: the uncertainty cannot tell far from test data"


def test_a_deterministic_model_is_no_signal_and_has_no_ratio():
    diagnosis = diagnose(_classes(np.zeros(50), np.zeros(40)))
    a, b, _ = diagnosis.criteria["far"]
    assert a.verdict == "no signal: every row of test and far gets the same uncertainty"
    assert b.status == "not measured"
    assert np.isnan(b.value)
    assert "more than one draw" in diagnosis.points_to("far")
    assert "nan" not in diagnosis.text()


def test_ranking_and_scale_both_poor_point_to_a_sharp_centre():
    diagnosis = diagnose(_classes(BELL, 0.5 * BELL))
    a, b, _ = diagnosis.criteria["far"]
    assert a.verdict.startswith("inverted")
    assert b.verdict.startswith("points down")
    assert "flatter minimum" in diagnosis.points_to("far")


def test_a_scale_that_does_not_point_up_is_no_normal_size():
    diagnosis = diagnose(_classes(BELL, 1.02 * RNG.permutation(BELL)))
    a, b, _ = diagnosis.criteria["far"]
    assert b.value > 1
    assert (a.status, b.status, b.low < 1) == ("poor", "poor", True)
    assert not a.verdict.startswith("inverted")
    assert "sharp centre" in diagnosis.points_to("far")


INFO = [
    ({"method": "MeanField"}, "if the posterior is diagonal on full weights, cross terms", "members"),
    ({"method": "DeepEnsemble", "low_rank": True}, "members differ more", "cross terms"),
    ({"method": "DeepEnsemble"}, "members differ more", "low rank"),
    ({"method": "MeanField", "low_rank": True}, "another rank or a subspace", "cross terms"),
]


@pytest.mark.parametrize("far", [INVERTED, 0.5 * TEST], ids=["structure", "sharp centre"])
@pytest.mark.parametrize(("info", "said", "unsaid"), INFO)
def test_the_advice_fits_the_method(far, info, said, unsaid):
    evaluation = dataclasses.replace(_classes(TEST, far), info=info)
    advice = diagnose(evaluation).points_to("far")
    assert said in advice
    assert unsaid not in advice


def test_a_fine_ranking_with_wrong_probabilities_points_to_the_temperature():
    diagnosis = diagnose(_classes(BELL, 20 * BELL, confidence=0.99))
    mass = diagnosis.in_distribution[1]
    assert (mass.key, mass.status) == ("C", "poor")
    assert mass.verdict == "too sure of itself: on test it is 99% sure on average and right in 80% of cases"
    assert "calibrate" in diagnosis.points_to("far")


def test_mass_is_measured_on_ood_sets_with_labels():
    far = 20 * BELL
    c = diagnose(_classes(BELL, far, far_labels=_probs(400, 0.6, 0.9))).criteria["far"][2]
    assert c.value == pytest.approx(0.3)
    assert c.verdict == "too cautious: on far it is 60% sure on average and right in 90% of cases"


def test_uncertainty_that_follows_errors_is_good_and_its_reverse_inverted():
    followed = diagnose(_classes(BELL, BELL)).in_distribution[0]
    assert (followed.key, followed.status) == ("A", "good")
    evaluation = _classes(BELL, BELL)
    arrays = evaluation.sets["test"]
    reverse = dataclasses.replace(
        arrays, scores={"mutual_information": 1 / arrays.scores["mutual_information"]}
    )
    inverted = diagnose(dataclasses.replace(evaluation, sets={**evaluation.sets, "test": reverse}))
    assert inverted.in_distribution[0].verdict == "inverted: MORE certain where it is wrong"
    assert inverted.in_distribution[0].value == pytest.approx(-followed.value)


def test_regression_is_judged_by_the_coverage_of_its_intervals():
    def arrays(scores, covered):
        inside = (np.arange(len(scores)) < covered * len(scores)).astype(float)
        error = np.abs(scores)
        rows = {
            "mae": error,
            "squared_error": error**2,
            "negative_log_likelihood": error,
            "crps": error,
            "interval_coverage": inside,
            "interval_width": np.full(len(scores), 2.0),
            "cdf": np.full((len(scores), 1), 0.5),
        }
        named = {"epistemic_variance": scores}
        return SetArrays(named, np.zeros(len(scores)), np.zeros(len(scores)), scores, error, rows)

    sets = {"test": arrays(BELL, 0.95), "far": arrays(20 * BELL, 0.31)}
    diagnosis = diagnose(_evaluation(sets, task="gaussian"))
    assert diagnosis.score == "epistemic_variance"
    assert diagnosis.in_distribution[1].status == "good"
    c = diagnosis.criteria["far"][2]
    assert c.name == "mass (coverage of 95% intervals)"
    assert c.verdict.startswith("too sure of itself: 31% of outcomes on far lie inside the 95% intervals")


def test_without_resamples_the_values_alone_decide():
    diagnosis = diagnose(_classes(TEST, INVERTED, bootstrap=0))
    a = diagnosis.criteria["far"][0]
    assert a.verdict.startswith("inverted")
    assert np.isnan(a.low)


def test_the_text_names_sets_prevalence_and_verdicts():
    text = diagnose(_classes(TEST, INVERTED)).text()
    assert "on far (50% of test and far together)" in text
    assert f"A ranking {Interval(0.38, 0.28, 0.48)}"[:15] in text
    assert "poor; inverted: the model is MORE certain on far than on test data" in text
    assert "points to: the structure of the posterior" in text


@pytest.mark.filterwarnings("ignore:.*is undefined")
@pytest.mark.parametrize(
    ("test", "far", "few"), [(50, 9, "far has only 9 rows"), (1, 50, "test has only 1 row,")]
)
def test_fewer_than_ten_rows_on_a_side_are_not_measured(test, far, few):
    labels = (np.zeros(far), np.tile([0.9, 0.1], (far, 1)))
    diagnosis = diagnose(_classes(BELL[:test], BELL[:far], far_labels=labels))
    a, b, c = diagnosis.criteria["far"]
    assert (a.status, b.status) == ("not measured", "not measured")
    assert few in a.verdict
    assert (c.status == "not measured") == (far < 10)
    assert {x.status == "not measured" for x in diagnosis.in_distribution} == {test < 10}
    assert few in diagnosis.points_to("far")
    assert "nan" not in diagnosis.text()
    ten = diagnose(_classes(BELL[:10], BELL[:10])).criteria["far"][0]
    assert ten.status != "not measured"


def test_wrong_arguments_are_refused():
    with pytest.raises(TypeError, match=r"got a dict, expected the result of evaluate|Type-check error"):
        diagnose({})
    with pytest.raises(ValueError, match="has no arrays"):
        diagnose(dataclasses.replace(_classes(TEST, INVERTED), sets={}))
