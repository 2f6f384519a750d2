"""Curves over severities: the test set at 0, one set of draws and resamples, the worked case."""

import matplotlib.figure
import numpy as np
import pytest
import torch
from torch import nn

import singularbayes as sb
from singularbayes.protocol import Drift, FeatureNoise, severity_curve
from singularbayes.report import severity_plot


@pytest.fixture(scope="module")
def regression():
    x = torch.randn(400, 3, generator=torch.Generator().manual_seed(0))
    y = x @ torch.tensor([2.0, -1.0, 0.5])
    model = sb.Model(nn.Linear(3, 1), sb.Gaussian(noise=0.1))
    return sb.MeanField(epochs=60, learning_rate=0.05).fit(model, (x, y)), (x, y)


def test_the_error_of_a_linear_model_grows_as_the_noise_does(regression):
    posterior, test = regression
    curve = severity_curve(posterior, test, FeatureNoise(), draws=8, bootstrap=20)
    rmse = [cell.value for cell in curve.metric("rmse")]
    size = np.sqrt(2**2 + 1 + 0.5**2)  # |w|: noise of std s adds |w| s to the error
    # 400 rows, 4 standard errors of a standard deviation: a false alarm in 16,000 runs a level
    for level, found in zip(FeatureNoise().levels, rmse[1:], strict=True):
        assert found == pytest.approx(np.hypot(rmse[0], size * level), rel=4 / np.sqrt(800) + 0.02)
    assert curve.metric("rmse")[0] == curve.evaluation.metrics["rmse"]
    auroc = curve.metric("auroc")
    assert auroc[0].value == 0.5
    assert auroc[5].value > 0.6


def test_severities_share_rows_draws_and_seed(regression):
    posterior, test = regression
    curve = severity_curve(posterior, test, FeatureNoise(), (1, 5), draws=4, bootstrap=5, seed=3)
    assert curve.severities == (0, 1, 5)
    damaged = FeatureNoise().apply(test[0].numpy(), 5, 3)
    alone = sb.evaluate(posterior, (damaged, test[1]), draws=4, bootstrap=5, seed=3)
    assert curve.evaluation.ood_metrics["severity 5"] == alone.metrics
    again = severity_curve(posterior, test, FeatureNoise(), (1, 5), draws=4, bootstrap=5, seed=3)
    assert again.table().equals(curve.table())
    table = curve.table()
    assert set(table["severity"]) == {0, 1, 5}
    assert set(table["corruption"]) == {"FeatureNoise"}


def test_a_figure_has_a_panel_a_metric_and_a_line_a_method(regression):
    posterior, test = regression
    curve = severity_curve(posterior, test, FeatureNoise(), (1, 3), draws=4, bootstrap=5)
    figure = severity_plot({"one": curve, "two": curve}, ["rmse", "auroc"])
    assert isinstance(figure, matplotlib.figure.Figure)
    panels = [ax for ax in figure.axes if ax.get_visible()]
    assert [ax.get_title("left") for ax in panels] == ["rmse", "auroc"]
    assert all(len(ax.lines) == 2 for ax in panels)
    other = severity_curve(posterior, test, FeatureNoise(), (1, 2), draws=4, bootstrap=0)
    with pytest.raises(ValueError, match="expected one damage, task and severities"):
        severity_plot({"one": curve, "two": other})


@pytest.mark.usefixtures("unchecked")
def test_bad_input_is_named(regression):
    posterior, test = regression
    with pytest.raises(TypeError, match="expected an object with apply"):
        severity_curve(posterior, test, FeatureNoise)
    with pytest.raises(ValueError, match=r"severities must rise within 1\.\.5, got \(2, 1\)"):
        severity_curve(posterior, test, FeatureNoise(), (2, 1))
    with pytest.raises(ValueError, match="test has no labels"):
        severity_curve(posterior, test[0], FeatureNoise())
    with pytest.raises(TypeError, match="test inputs are dict"):
        severity_curve(posterior, ({"x": test[0]}, test[1]), FeatureNoise())
    curve = severity_curve(posterior, test, FeatureNoise(), (1,), draws=2, bootstrap=0)
    with pytest.raises(ValueError, match="unknown metric 'acuracy'; expected one of auroc"):
        curve.metric("acuracy")
    with pytest.raises(
        ValueError, match="unknown metric 'rmse'; expected one of auroc, average_precision_in, "
    ):
        curve.metric("rmse", score="entropy")
    with pytest.raises(ValueError, match="unknown score 'entropi'"):
        curve.metric("auroc", score="entropi")
    with pytest.raises(ValueError, match="at least two points in time"):
        severity_curve(posterior, (test[0][:, :1], test[1]), Drift())
