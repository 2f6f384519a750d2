"""Conformal intervals: brute force over candidate labels, coverage whatever the model, files."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import singularbayes as sb
from singularbayes.conformal import (
    CQR,
    AbsoluteResidual,
    ConformalIntervals,
    NormalizedResidual,
    conformal_intervals,
)
from singularbayes.predictive import CategoricalPredictive, GaussianPredictive
from singularbayes.recalibrated import LevelMap, RecalibratedPredictive

SCORES = [AbsoluteResidual(), NormalizedResidual(), CQR()]


def problem(rows: int, seed: int, *, misled: bool = False) -> tuple[GaussianPredictive, Tensor]:
    """Noise that grows with the input, and a predictive that is right about it, or badly wrong."""
    source = torch.Generator().manual_seed(seed)
    x = 100 * torch.rand(rows, generator=source, dtype=torch.float64)
    y = x + 0.1 * x * torch.randn(rows, generator=source, dtype=torch.float64)
    means = torch.stack([x - 1, x + 1]) + (30 * (x / 20).sin() if misled else 0)
    std = torch.full_like(means, 0.5) if misled else 0.1 * x.expand(2, -1)
    return GaussianPredictive(means, std**2), y


def rows_of(predictive: GaussianPredictive, part: slice) -> GaussianPredictive:
    return GaussianPredictive(predictive.means[:, part], predictive.variances[:, part])


@pytest.mark.parametrize("misled", [False, True])
@pytest.mark.parametrize("score", SCORES, ids=str)
def test_exchangeable_data_are_covered_whatever_the_model(score, misled):
    # mean over 150 calibration sets of 29, within 4 standard errors of [.8, .8 + 1/30]: false alarm 6e-5
    repeats = [problem(69, repeat, misled=misled) for repeat in range(150)]  # side by side, as 150 outputs
    means, variances = (
        torch.stack([getattr(p, key) for p, _ in repeats], -1) for key in ("means", "variances")
    )
    predictive, y = GaussianPredictive(means, variances), torch.stack([y for _, y in repeats], -1)
    fitted = conformal_intervals(rows_of(predictive, slice(29)), y[:29], level=0.8, score=score)
    low, high = fitted.interval(rows_of(predictive, slice(29, 69)))
    found = ((low <= y[29:]) & (y[29:] <= high)).double().mean(0).numpy()
    mean, error = np.mean(found), np.std(found) / math.sqrt(150)
    assert 0.8 - 4 * error < mean < 0.8 + 1 / 30 + 4 * error


def test_a_misled_model_alone_is_not_covered():
    predictive, y = problem(2000, 1, misled=True)
    low, high = predictive.interval(0.8)
    assert ((low <= y) & (y <= high)).double().mean() < 0.4


def slow_score(score, predictive: GaussianPredictive, row: int, y: float, edges: np.ndarray) -> float:
    means, variances = predictive.means[:, row].numpy(), predictive.variances[:, row].numpy()
    if isinstance(score, CQR):
        return max(edges[0, row] - y, y - edges[1, row])
    std = math.sqrt(variances.mean() + means.var()) if isinstance(score, NormalizedResidual) else 1.0
    return abs(y - means.mean()) / std


@pytest.mark.parametrize("score", SCORES, ids=str)
def test_an_interval_holds_the_labels_that_are_no_stranger_than_the_calibration_rows(score):
    predictive, y = problem(30, 1)
    new, _ = problem(5, 2)
    low, high = conformal_intervals(predictive, y, level=0.7, score=score).interval(new).numpy()
    old_edges, new_edges = (each.interval(0.7).numpy() for each in (predictive, new))
    own = [slow_score(score, predictive, i, float(y[i]), old_edges) for i in range(30)]
    for row in range(5):
        for candidate in np.linspace(-20, 150, 400):
            s = slow_score(score, new, row, candidate, new_edges)
            p_value = (1 + sum(other >= s for other in own)) / 31
            assert (low[row] <= candidate <= high[row]) == (p_value > 0.3)


def test_normalised_and_quantile_intervals_are_wide_where_the_posterior_is_unsure():
    predictive, y = problem(500, 1)
    order = predictive.mean.argsort()
    for score, varies in ((AbsoluteResidual(), False), (NormalizedResidual(), True), (CQR(), True)):
        low, high = conformal_intervals(predictive, y, score=score).interval(predictive)
        width = (high - low)[order]
        assert (width[-50:].mean() > 3 * width[:50].mean()).item() is varies


def test_intervals_that_are_too_wide_shrink_and_never_turn_inside_out():
    means = torch.linspace(-1, 1, 200, dtype=torch.float64).unsqueeze(0)
    std = torch.linspace(1.0, 100.0, 200, dtype=torch.float64).unsqueeze(0)
    predictive = GaussianPredictive(means, std**2)
    fitted = conformal_intervals(predictive, means[0] + 0.01, level=0.9)
    assert fitted.threshold < 0
    narrow = GaussianPredictive(torch.zeros(1, 1).double(), torch.full((1, 1), 1e-4).double())
    assert fitted.interval(narrow)[:, 0].tolist() == pytest.approx([0.0, 0.0], abs=1e-9)


def test_intervals_that_are_infinite_already_stay_infinite_and_are_never_nan():
    # a recalibrated tail ends at infinity; infinity minus infinity would be nan
    never = LevelMap((0.4, 0.6), (0.4, 0.6))
    ends = LevelMap((0.0, 1.0), (0.5, 0.6))
    means, ones = torch.zeros(1, 30, dtype=torch.float64), torch.ones(1, 30, dtype=torch.float64)
    for rule, infinite in ((ends, True), (never, False)):
        predictive = RecalibratedPredictive(means, ones, maps=(rule,))
        edges = conformal_intervals(predictive, torch.linspace(-9, 9, 30).double()).interval(predictive)
        assert not edges.isnan().any()
        assert bool(edges.isinf().all()) is infinite


def test_each_output_has_its_own_threshold():
    source = torch.Generator().manual_seed(0)
    y = torch.randn(999, 2, generator=source, dtype=torch.float64) * torch.tensor([0.2, 30.0])
    predictive = GaussianPredictive(torch.zeros(1, 999, 2).double(), torch.ones(1, 999, 2).double())
    fitted = conformal_intervals(predictive, y, score=AbsoluteResidual())
    expected = [sorted(y[:, k].abs().tolist())[900 - 1] for k in range(2)]  # ceil(1000 * .9) = 900
    assert fitted.threshold.tolist() == expected
    assert fitted.interval(predictive).shape == (2, 999, 2)


@pytest.mark.parametrize("score", SCORES, ids=str)
def test_files_give_the_same_intervals(tmp_path, score):
    predictive, y = problem(100, 1)
    fitted = conformal_intervals(predictive, y, score=score)
    fitted.save(tmp_path / "intervals.json")
    loaded = ConformalIntervals.load(tmp_path / "intervals.json")
    assert torch.equal(loaded.interval(predictive), fitted.interval(predictive))
    assert (loaded.size, loaded.level, loaded.score) == (100, 0.9, score)


def test_too_few_points_make_infinite_intervals(tmp_path):
    predictive, y = problem(5, 1)
    with pytest.warns(UserWarning, match="5 calibration points are too few for the level 0.9: it takes 9"):
        fitted = conformal_intervals(predictive, y)
    assert fitted.interval(predictive).abs().min().item() == math.inf
    fitted.save(tmp_path / "intervals.json")
    assert ConformalIntervals.load(tmp_path / "intervals.json").threshold.item() == math.inf


def test_a_posterior_is_calibrated_on_its_own_predictions():
    torch.manual_seed(0)
    x = torch.randn(60, 2)
    y = x[:, :1] + 0.1 * torch.randn(60, 1)
    posterior = sb.MeanField(epochs=1).fit(sb.Model(nn.Linear(2, 1), sb.Gaussian(noise=0.1)), (x, y))
    fitted = sb.conformal_intervals(posterior, (x, y), draws=5, seed=3)
    assert torch.equal(
        fitted.threshold, conformal_intervals(posterior.predict(x, draws=5, seed=3), y).threshold
    )
    with pytest.raises(ValueError, match="needs labels"):
        sb.conformal_intervals(posterior, x)


def test_bad_input_is_named():
    predictive, y = problem(20, 1)
    with pytest.raises(ValueError, match="level must lie strictly"):
        conformal_intervals(predictive, y, level=90)
    with pytest.raises(ValueError, match="labels have shape"):
        conformal_intervals(predictive, y[:5])
    with pytest.raises(TypeError, match="of numbers, got a CategoricalPredictive"):
        conformal_intervals(CategoricalPredictive(torch.zeros(1, 3, 2).log_softmax(-1)), torch.zeros(3))
    wide = GaussianPredictive(torch.zeros(1, 4, 2), torch.ones(1, 4, 2))
    with pytest.raises(ValueError, match="calibrate on this posterior"):
        conformal_intervals(predictive, y).interval(wide)
