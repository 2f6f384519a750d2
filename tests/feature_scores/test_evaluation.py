"""Scores beside a posterior in an evaluation: measured with the same resamples, saved and reported."""

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import nn

import singularbayes as sb
from singularbayes.evaluation import Evaluation, paired_difference
from singularbayes.feature_scores import Combination, Energy, Mahalanobis, NearestNeighbours, PosteriorScore
from singularbayes.report import Entry, Report, render
from singularbayes.report.tables import set_table


@pytest.fixture(scope="module")
def problem():
    torch.manual_seed(0)
    x = torch.randn(400, 3) * torch.tensor([1.0, 10.0, 0.1])
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    network = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3))
    posterior = sb.MeanField(epochs=2).fit(sb.Model(network, sb.Categorical()), (x[:200], y[:200]))
    far = 3 + torch.randn(100, 3)
    scores = {
        "mahalanobis": Mahalanobis().fit(posterior, (x[:200], y[:200])),
        "neighbours": NearestNeighbours(k=5).fit(posterior, x[:200]),
        "energy": Energy(posterior, draws=8),
    }
    scores["together/é"] = Combination().fit(
        scores | {"information": PosteriorScore(posterior, draws=8)}, x[200:250], far[:40] * 2
    )
    return posterior, (x[250:], y[250:]), {"far": far[40:]}, scores


@pytest.fixture(scope="module")
def evaluation(problem) -> Evaluation:
    posterior, test, ood, scores = problem
    return sb.evaluate(posterior, test, ood, draws=8, bootstrap=30, scores=scores)


def test_they_stand_beside_the_predictives_own(problem, evaluation):
    _, test, ood, scores = problem
    own = list(sb.scores.for_task("categorical"))
    assert list(evaluation.ood["far"]) == [*own, *scores]
    for name, rule in scores.items():
        values = torch.cat([rule.score(test[0]), rule.score(ood["far"])]).numpy()
        labels = np.repeat([0, 1], [150, 60])
        found = evaluation.ood["far"][name]
        assert found["auroc"].value == pytest.approx(roc_auc_score(labels, values), abs=1e-12)
        assert list(found) == ["auroc", "average_precision_out", "average_precision_in", "fpr95"]
    assert set(scores) < set(evaluation.table()["score"])


def test_they_do_not_change_the_numbers_of_the_others(problem, evaluation):
    posterior, test, ood, _ = problem
    without = sb.evaluate(posterior, test, ood, draws=8, bootstrap=30)
    assert without.metrics == evaluation.metrics
    for name, measures in without.ood["far"].items():
        assert evaluation.ood["far"][name] == measures


def test_they_are_saved_compared_and_reported(problem, evaluation, tmp_path):
    evaluation.save(tmp_path / "evaluation")
    loaded = Evaluation.load(tmp_path / "evaluation")
    assert loaded.ood == evaluation.ood
    for name, values in evaluation.sets["far"].scores.items():
        assert np.array_equal(loaded.sets["far"].scores[name], values)
    difference = paired_difference(loaded, evaluation, "auroc", on="far", score="together/é")
    assert (difference.value, difference.low, difference.high) == (0, 0, 0)
    assert sb.diagnose(loaded).score == "mutual_information"
    plain = sb.evaluate(problem[0], problem[1], problem[2], draws=2, bootstrap=0, name="plain")
    entries = [Entry(name=e.name, evaluations=(e,), diagnosis=None, numbers=1, seconds=1.0)
               for e in (loaded, plain)]  # fmt: skip
    report = Report(title="t", recipe="r", about={}, entries=entries, command="c")
    columns = [c for c in set_table(report, "far").columns if c.group == "by together/é"]
    assert columns[0].cells[0].text == f"{loaded.ood['far']['together/é']['auroc'].value:.3f}"
    assert columns[0].cells[1].text == "not measured"
    page = render(report)
    assert all(f"by {name}</span>" in page for name in problem[3])
    assert "by relative_variance" not in page  # the task's other scores are in results.csv


def test_wrong_scores_are_named_before_any_work(problem, unchecked):
    posterior, test, ood, scores = problem
    for wrong, error, match in [
        ({"entropy": scores["energy"]}, ValueError, "expected a name other than mutual_information, entropy"),
        ({"energy": lambda x: x}, TypeError, "expected a fitted object with score"),
        ({"m": Mahalanobis}, TypeError, "expected a fitted object"),
        ([scores["energy"]], TypeError, "must map names to objects"),
    ]:
        with pytest.raises(error, match=match):
            sb.evaluate(posterior, test, ood, draws=2, bootstrap=0, scores=wrong)


def test_scores_of_another_shape_are_named(problem):
    posterior, test, ood, _ = problem

    class Wide:
        def score(self, x) -> torch.Tensor:
            return torch.zeros(len(x), 2)

    with pytest.raises(ValueError, match=r"score 'wide' gives shape \(150, 2\) for the 150 rows"):
        sb.evaluate(posterior, test, ood, draws=2, bootstrap=0, scores={"wide": Wide()})


def test_the_report_is_drawn_with_them(evaluation):
    entry = Entry(
        name="MeanField", evaluations=(evaluation,), diagnosis=sb.diagnose(evaluation), numbers=9, seconds=1.0
    )
    page = render(Report(title="T", recipe="r", about={}, entries=[entry], command="c"))
    assert "MeanField" in page
