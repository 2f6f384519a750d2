"""Conformal sets: brute force over candidate labels, coverage whatever the model, files."""

import json
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import singularbayes as sb
from singularbayes.conformal import APS, LAC, ConformalSets, conformal_quantile, conformal_sets
from singularbayes.predictive import BernoulliPredictive, CategoricalPredictive, GaussianPredictive

SCORES = [LAC(), APS(), APS(randomized=False)]


def predictive_of(rows: int, seed: int, draws: int = 3, classes: int = 4) -> CategoricalPredictive:
    source = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(1, rows, classes, generator=source)
    noise = torch.randn(draws, rows, classes, generator=source)
    return CategoricalPredictive((logits + noise).log_softmax(-1))


def labels_of(predictive: CategoricalPredictive, seed: int, *, misled: bool = False) -> Tensor:
    """From the predictive, or from probabilities that have hardly anything to do with it."""
    probs = predictive.mean.flip(-1) ** 2 if misled else predictive.mean
    return torch.multinomial(probs, 1, generator=torch.Generator().manual_seed(seed))[:, 0]


# The quantile


def coverage_of_a_new_point(quantile, seed: int = 0) -> float:
    """Of 20,000 problems with 10 calibration scores each, how often a new score is at most the quantile."""
    scores = torch.randn(11, 20_000, generator=torch.Generator().manual_seed(seed))
    return float((scores[10] <= quantile(scores[:10], scores[10])).double().mean())


def test_a_new_score_lies_below_the_quantile_as_often_as_promised():
    # k = ceil(11 * .8) = 9: exactly 9/11, within [.8, .8 + 1/11]; 4 standard errors: false alarm 6e-5
    error = math.sqrt(9 / 11 * 2 / 11 / 20_000)
    assert abs(coverage_of_a_new_point(lambda s, _: conformal_quantile(s, 0.8)) - 9 / 11) < 4 * error


@pytest.mark.parametrize(
    "wrong",
    [
        lambda s, _: s.kthvalue(math.ceil(10 * 0.8), dim=0).values,  # no + 1: 8/11
        lambda s, new: (
            torch.cat([s, new[None]]).kthvalue(math.ceil(11 * 0.9), 0).values
        ),  # the new point inside
    ],
)
def test_the_coverage_test_catches_a_wrong_quantile(wrong):
    found, error = coverage_of_a_new_point(wrong), math.sqrt(9 / 11 * 2 / 11 / 20_000)
    assert not 0.8 - 4 * error <= found <= 0.8 + 1 / 11 + 4 * error


@pytest.mark.parametrize(
    ("count", "level", "rank"), [(9, 0.9, 9), (24, 0.56, 14), (99, 0.07, 7), (5, 0.5, 3)]
)
def test_the_rank_is_not_moved_by_rounding(count, level, rank):
    # .56 * 25 is 14.000000000000002 and .07 * 100 is 7.000000000000001 in floating point
    assert conformal_quantile(torch.arange(1.0, count + 1), level).item() == rank


def test_too_few_points_warn_with_the_number_needed_and_give_infinity():
    with pytest.warns(UserWarning, match="18 calibration points are too few for the level 0.95: it takes 19"):
        assert conformal_quantile(torch.arange(18.0), 0.95).item() == math.inf
    assert conformal_quantile(torch.arange(19.0), 0.95).item() == 18.0


def test_scores_that_are_no_numbers_are_refused():
    with pytest.raises(ValueError, match="1 of them nan"):
        conformal_quantile(torch.tensor([1.0, math.nan]), 0.5)
    with pytest.raises(ValueError, match="got 0 calibration scores"):
        conformal_quantile(torch.empty(0), 0.5)


# Sets


def slow_score(score, probs: np.ndarray, u: float, k: int) -> float:
    """The score of one class of one row, as the papers write it."""
    if isinstance(score, LAC):
        return 1 - probs[k]
    likelier = sum(p for p in probs if p > probs[k])
    return likelier + (u if score.randomized else 1.0) * probs[k]


@pytest.mark.parametrize("score", SCORES, ids=str)
def test_a_set_holds_the_labels_whose_rank_among_the_calibration_scores_is_not_extreme(score, monkeypatch):
    # k is in the set iff (1 + #{s_i >= s(x, k)}) / (n + 1) > 1 - level: conformal prediction's p-value
    u = torch.rand(60, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    monkeypatch.setattr(torch, "rand", lambda rows, **_: u[:rows])
    calibration, new = predictive_of(60, 1), predictive_of(25, 2)
    y = labels_of(calibration, 3)
    fitted = conformal_sets(calibration, y, level=0.8, score=score)
    probs, rows = calibration.mean.double().numpy(), new.mean.double().numpy()
    own = [slow_score(score, probs[i], float(u[i]), int(y[i])) for i in range(60)]
    for i, found in enumerate(fitted.sets(new).tolist()):
        for k in range(4):
            s = slow_score(score, rows[i], float(u[i]), k)
            p_value = (1 + sum(other >= s - 1e-6 for other in own)) / 61
            assert found[k] == (p_value > 0.2 + 1e-9)


def mean_coverage(score, *, misled: bool, repeats: int = 150, level: float = 0.8) -> tuple[float, float]:
    """Mean coverage over calibration sets of 29 and 40 new points each, and its standard error."""
    found = []
    for repeat in range(repeats):
        predictive = predictive_of(69, 1000 + repeat, draws=2)
        y = labels_of(predictive, 5000 + repeat, misled=misled)
        old, new = (
            CategoricalPredictive(predictive.log_probs[:, part]) for part in (slice(29), slice(29, 69))
        )
        fitted = conformal_sets(old, y[:29], level=level, score=score, seed=repeat)
        inside = fitted.sets(new, seed=repeat).gather(1, y[29:, None])
        found.append(float(inside.double().mean()))
    return float(np.mean(found)), float(np.std(found) / math.sqrt(repeats))


@pytest.mark.parametrize("misled", [False, True])
@pytest.mark.parametrize("score", SCORES, ids=str)
def test_exchangeable_data_are_covered_whatever_the_model(score, misled):
    # within 4 standard errors of [.8, .8 + 1/30]: false alarm 6e-5 a case
    mean, error = mean_coverage(score, misled=misled)
    assert mean > 0.8 - 4 * error
    if score != APS(randomized=False):  # it has ties at a mass of 1: coverage may be higher
        assert mean < 0.8 + 1 / 30 + 4 * error


def test_a_misled_model_without_conformal_sets_is_not_covered():
    # the model's own 80% sets: the smallest with that mass (APS at a threshold of .8)
    predictive = predictive_of(4000, 7)
    y = labels_of(predictive, 8, misled=True)
    own = ConformalSets(APS(randomized=False), 0.8, 0.8, 0)
    assert own.sets(predictive).gather(1, y[:, None]).double().mean() < 0.6


def test_one_logit_has_sets_of_two_classes():
    predictive = BernoulliPredictive(torch.randn(3, 50, generator=torch.Generator().manual_seed(0)))
    y = torch.arange(50) % 2
    fitted = conformal_sets(predictive, y, level=0.9)
    assert fitted.sets(predictive).shape == (50, 2)
    assert fitted.sets(predictive).gather(1, y[:, None]).sum() >= 46


def test_a_posterior_is_calibrated_on_its_own_predictions():
    torch.manual_seed(0)
    x, y = torch.randn(80, 2), torch.randint(0, 3, (80,))
    posterior = sb.MeanField(epochs=1).fit(sb.Model(nn.Linear(2, 3), sb.Categorical()), (x, y))
    fitted = sb.conformal_sets(posterior, (x, y), draws=5, seed=3)
    assert fitted == conformal_sets(posterior.predict(x, draws=5, seed=3), y, seed=3)


def test_randomised_sets_follow_the_seed():
    predictive = predictive_of(200, 1)
    fitted = conformal_sets(predictive, labels_of(predictive, 2), score=APS())
    assert torch.equal(fitted.sets(predictive, seed=1), fitted.sets(predictive, seed=1))
    assert not torch.equal(fitted.sets(predictive, seed=1), fitted.sets(predictive, seed=2))


@pytest.mark.parametrize("score", SCORES, ids=str)
def test_files_are_strict_json_and_give_the_same_sets(tmp_path, score):
    predictive = predictive_of(100, 1)
    fitted = conformal_sets(predictive, labels_of(predictive, 2), score=score)
    fitted.save(tmp_path / "sets.json")
    assert ConformalSets.load(tmp_path / "sets.json") == fitted


def test_an_infinite_threshold_survives_strict_json(tmp_path):
    predictive = predictive_of(5, 1)
    with pytest.warns(UserWarning, match="too few"):
        fitted = conformal_sets(predictive, labels_of(predictive, 2), level=0.9)
    assert fitted.sets(predictive).all()
    assert fitted.to_dict()["threshold"] is None
    fitted.save(tmp_path / "sets.json")
    assert json.loads((tmp_path / "sets.json").read_text())["threshold"] is None
    assert ConformalSets.load(tmp_path / "sets.json") == fitted


def test_damaged_files_and_other_kinds_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no file"):
        ConformalSets.load(tmp_path / "none.json")
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(ValueError, match="not valid JSON"):
        ConformalSets.load(tmp_path / "a.json")
    (tmp_path / "b.json").write_text('{"kind": "ConformalIntervals", "format": 1}')
    with pytest.raises(ValueError, match="expected 'ConformalSets'"):
        ConformalSets.load(tmp_path / "b.json")


def test_bad_input_is_named(unchecked):
    predictive = predictive_of(10, 1)
    y = labels_of(predictive, 2)
    with pytest.raises(ValueError, match="level must lie strictly"):
        conformal_sets(predictive, y, level=1.0)
    with pytest.raises(ValueError, match="label 9"):
        conformal_sets(predictive, torch.full((10,), 9))
    with pytest.raises(TypeError, match="sets of classes, got a GaussianPredictive"):
        conformal_sets(GaussianPredictive(torch.zeros(1, 3), torch.ones(1, 3)), torch.zeros(3))
    with pytest.raises(TypeError, match="a predictive needs its labels alone"):
        conformal_sets(predictive, (torch.zeros(10, 2), y))
    with pytest.raises(TypeError, match="got a str"):
        conformal_sets("posterior", y)


def test_a_score_of_the_users_own_is_not_saved_and_leaves_no_file(tmp_path):
    class Own(LAC):
        pass

    with pytest.raises(TypeError, match="only LAC, APS can be saved, got Own"):
        ConformalSets(Own(), 0.9, 1.0, 20).save(tmp_path / "sets.json")
    assert not list(tmp_path.iterdir())
