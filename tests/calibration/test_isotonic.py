"""Isotonic intervals: the map by brute force, coverage that is mended, and what must stay as it was."""

import json
import math

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor, nn

import singularbayes as sb
from singularbayes.distributions import StoredDraws
from singularbayes.parameters import Layout
from singularbayes.posterior import Posterior
from singularbayes.predictive import GaussianPredictive
from singularbayes.recalibrated import LevelMap, Recalibrated, RecalibratedPredictive


def skewed(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Means of three draws, badly scaled, and labels whose noise is skewed: no variance mends that."""
    source = torch.Generator().manual_seed(seed)
    x = 100 * torch.randn(rows, generator=source, dtype=torch.float64)
    noise = torch.empty(rows, dtype=torch.float64).exponential_(generator=source) - 1
    means = x + torch.tensor([[-0.3], [0.1], [0.4]])
    return means, x + 0.8 * noise


def fitted(means: Tensor, y: Tensor, **settings) -> Recalibrated:
    found = sb.IsotonicIntervals(**settings).fit(sb.Gaussian(noise=1.0), means, {}, y)
    assert isinstance(found, Recalibrated)
    return found


def test_the_map_is_the_share_of_labels_below_each_level_by_brute_force():
    means, y = skewed(60, 0)
    rule = fitted(means, y).maps[0]
    levels = [float(np.mean([norm.cdf(y[i], m[i], 1.0) for m in means])) for i in range(60)]
    for level in levels:
        share = sum(other <= level for other in levels) / 61
        assert float(rule(np.array([level]))[0]) == pytest.approx(share, abs=1e-9)
        assert rule.inverse(share) == pytest.approx(level, abs=1e-9)
    assert rule(np.array([0.0, 1.0])).tolist() == [0.0, 1.0]


def coverage(likelihood, level: float = 0.9) -> tuple[float, float]:
    means, y = skewed(4000, 2)
    low, high = likelihood.predictive(means, {}).interval(level)
    return float((y < low).double().mean()), float((y > high).double().mean())


def test_both_tails_hold_their_share_after_it_and_not_after_a_variance_scale():
    # Shares of 4000 test and 2000 validation rows: 4 standard errors sqrt(.05 .95 (1/4000 + 1/2000)), two
    # tails: false alarm 1.3e-4. Wrong on purpose: the variance scale, symmetric, leaves the low tail empty.
    means, y = skewed(2000, 1)
    bound = 4 * math.sqrt(0.05 * 0.95 * (1 / 4000 + 1 / 2000))
    assert all(abs(tail - 0.05) < bound for tail in coverage(fitted(means, y)))
    scaled = sb.Temperature().fit(sb.Gaussian(noise=1.0), means, {}, y)
    assert not all(abs(tail - 0.05) < bound for tail in coverage(scaled))
    assert all(abs(tail - 0.05) < bound for tail in coverage(fitted(means, y, after=sb.Temperature())))


def test_quantiles_invert_the_distribution_function():
    likelihood = fitted(*skewed(500, 1))
    predictive = likelihood.predictive(skewed(7, 3)[0], {})
    for probability in (0.01, 0.05, 0.5, 0.95):
        assert predictive.cdf(predictive.quantile(probability)) == pytest.approx(
            np.full(7, probability), abs=1e-6
        )
    low, high = predictive.interval(0.8)
    assert torch.equal(low, predictive.quantile((1 - 0.8) / 2))
    assert torch.equal(high, predictive.quantile((1 + 0.8) / 2))


def test_mean_variance_and_density_stay_those_of_the_mixture():
    means, y = skewed(300, 1)
    plain, mended = (each.predictive(means, {}) for each in (sb.Gaussian(noise=1.0), fitted(means, y)))
    assert isinstance(mended, RecalibratedPredictive)
    for name in ("mean", "variance", "epistemic", "aleatoric", "entropy"):
        assert torch.equal(getattr(plain, name), getattr(mended, name))
    assert torch.equal(plain.log_prob(y), mended.log_prob(y))
    assert not torch.equal(plain.interval(), mended.interval())


def test_each_output_has_its_own_map():
    source = torch.Generator().manual_seed(0)
    y = torch.randn(800, 2, generator=source, dtype=torch.float64) * torch.tensor([0.2, 1.5])
    means = torch.tensor([0.0, 100.0]).double().expand(1, 800, 2)
    low, high = fitted(means, means[0] + y).predictive(means[:, :1], {}).interval(0.9)
    assert ((low + high) / 2)[0].tolist() == pytest.approx([0.0, 100.0], abs=0.3)
    assert (high - low)[0].tolist() == pytest.approx([2 * 1.645 * 0.2, 2 * 1.645 * 1.5], rel=0.15)


def test_labels_beyond_all_mass_warn_and_make_the_interval_infinite():
    means, y = torch.zeros(1, 20).double(), torch.linspace(-1, 1, 20).double()
    y[:3] = 1e6
    with pytest.warns(UserWarning, match="3 of 20 validation labels"):
        likelihood = fitted(means, y)
    low, high = likelihood.predictive(means[:, :1], {}).interval(0.9)
    assert (math.isfinite(low.item()), high.item()) == (True, math.inf)


def test_it_goes_through_files_and_evaluation(tmp_path):
    torch.manual_seed(0)
    network = nn.Linear(2, 1)
    layout = Layout.of(network)
    draws = layout.flatten(network) + 0.1 * torch.randn(4, 3)
    posterior = Posterior(network, StoredDraws(draws), sb.Gaussian(noise=0.7), layout, {"method": "hand"})
    x = torch.randn(600, 2) * torch.tensor([1.0, 10.0])
    y = network(x)[:, 0].detach() + 4 * torch.rand(600) ** 4 - 0.8
    calibrated = posterior.calibrate((x[:300], y[:300]), by=sb.IsotonicIntervals())
    before, after = (
        sb.evaluate(each, (x[300:], y[300:]), bootstrap=0).metrics for each in (posterior, calibrated)
    )
    assert before["interval_coverage"].value < 0.9
    assert abs(after["interval_coverage"].value - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 150)
    assert after["regression_calibration_error"].value < before["regression_calibration_error"].value
    assert after["negative_log_likelihood"].value == pytest.approx(
        before["negative_log_likelihood"].value, abs=1e-6
    )
    calibrated.save(tmp_path)
    json.loads((tmp_path / "posterior.json").read_text())
    loaded = sb.load(tmp_path, network)
    assert loaded.likelihood == calibrated.likelihood
    assert torch.equal(loaded.predict(x).interval(), calibrated.predict(x).interval())
    again = calibrated.calibrate((x[:300], y[:300]), by=sb.Temperature())
    assert again.likelihood == posterior.calibrate((x[:300], y[:300])).likelihood


def test_classes_and_other_outputs_are_refused():
    with pytest.raises(TypeError, match="intervals of numbers, got Categorical"):
        sb.IsotonicIntervals().fit(sb.Categorical(), torch.zeros(1, 4, 2).double(), {}, torch.zeros(4).long())
    likelihood = fitted(*skewed(50, 0))
    with pytest.raises(ValueError, match="1 outputs and the network gives 2"):
        likelihood.predictive(torch.zeros(1, 4, 2), {})
    with pytest.raises(ValueError, match="recalibrated, got Bernoulli"):
        Recalibrated(sb.Bernoulli(), likelihood.maps)
    for stated, found in [((0.5, 0.4), (0.1, 0.2)), ((0.1, 0.2), (0.5, 0.5)), ((), ()), ((0.1,), (0.1, 0.2))]:
        with pytest.raises(ValueError, match="levels"):
            LevelMap(stated, found)


@pytest.mark.parametrize("probability", [-0.1, 1.1])
def test_a_quantile_outside_of_probabilities_is_refused(probability):
    with pytest.raises(ValueError, match="must lie in"):
        GaussianPredictive(torch.zeros(1, 1), torch.ones(1, 1)).quantile(probability)


def test_quantiles_at_the_ends_are_infinite():
    predictive = GaussianPredictive(torch.tensor([[0.0], [2.0]]), torch.ones(2, 1))
    assert (predictive.quantile(0.0).item(), predictive.quantile(1.0).item()) == (-math.inf, math.inf)
    assert predictive.quantile(0.5).item() == pytest.approx(1.0, abs=1e-6)
