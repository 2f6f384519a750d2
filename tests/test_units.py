"""Results of standardised numbers in the units they came from: as if the network had spoken them itself."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import singularbayes as sb
from singularbayes.evaluation import Evaluation, evaluate
from singularbayes.evaluation.units import in_units
from singularbayes.posterior import Posterior

ZERO, ONE, NOISE = 100.0, 92.0, 0.2


class Speaks(nn.Module):
    """A network whose outputs are ``zero + one * f(x)``."""

    def __init__(self, network: nn.Module, zero: float, one: float) -> None:
        super().__init__()
        self.network, self.zero, self.one = network, zero, one

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.zero + self.one * self.network(x)


@pytest.fixture(scope="module")
def both() -> tuple[Evaluation, Evaluation]:
    """The evaluation of a standardised model, and of the same draws through a network in units."""
    torch.manual_seed(0)
    x, far = torch.randn(60, 2), torch.randn(40, 2) * 3
    y, y_far = x[:, 0] + 0.3 * torch.randn(60), far[:, 0] + torch.randn(40)
    network = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    small = sb.Model(network, sb.Gaussian(noise=NOISE))
    method = sb.MeanField(epochs=2, initial_std=0.5)
    fitted = method.fit(small, (x.double(), y.double()))
    large = sb.Model(Speaks(network, ZERO, ONE), sb.Gaussian(noise=ONE * NOISE))
    spoken = Posterior(large.network, fitted.distribution, large.likelihood, large.layout, dict(fitted.info))
    plain = evaluate(fitted, (x, y), ood={"far": (far, y_far), "bare": far}, draws=9, bootstrap=20)
    ood = {"far": (far, ZERO + ONE * y_far), "bare": far}
    return plain, evaluate(spoken, (x, ZERO + ONE * y), ood=ood, draws=9, bootstrap=20)


def test_every_number_is_that_of_a_network_in_units(both):
    plain, spoken = both
    stated = in_units(plain, ZERO, ONE)
    for of in ("metrics", "ood_metrics"):
        found, expected = getattr(stated, of), getattr(spoken, of)
        pairs = [(found, expected)] if of == "metrics" else [(found["far"], expected["far"])]
        for ours, theirs in pairs:
            assert ours.keys() == theirs.keys()
            for name, cell in ours.items():
                other = theirs[name]
                np.testing.assert_allclose(
                    (cell.value, cell.low, cell.high),
                    (other.value, other.low, other.high),
                    rtol=1e-4,
                    err_msg=name,
                )
    for name, arrays in stated.sets.items():
        other = spoken.sets[name]
        for score in arrays.scores:
            np.testing.assert_allclose(arrays.scores[score], other.scores[score], rtol=1e-4, err_msg=score)
        np.testing.assert_allclose(arrays.mean, other.mean, rtol=1e-5)
        np.testing.assert_allclose(arrays.variance, other.variance, rtol=1e-4)
        for row in arrays.rows:
            np.testing.assert_allclose(arrays.rows[row], other.rows[row], rtol=1e-3, atol=1e-3, err_msg=row)
    assert (
        abs(plain.metrics["negative_log_likelihood"].value - spoken.metrics["negative_log_likelihood"].value)
        > 4
    )


def test_what_ranks_and_covers_stays(both):
    plain, _ = both
    stated = in_units(plain, ZERO, ONE)
    assert stated.ood == plain.ood
    for name in ("interval_coverage", "regression_calibration_error"):
        assert stated.metrics[name] == plain.metrics[name]


def test_classes_several_outputs_and_lengths_of_nothing_are_refused(both):
    plain, _ = both
    with pytest.raises(ValueError, match="classes have no units"):
        in_units(replace(plain, task="bernoulli"), 0.0, 1.0)
    with pytest.raises(ValueError, match="one above 0"):
        in_units(plain, 0.0, -1.0)
    arrays = plain.sets["test"]
    wide = replace(plain, sets={"test": replace(arrays, mean=np.stack([arrays.mean] * 2, 1))})
    with pytest.raises(ValueError, match="several outputs"):
        in_units(wide, 0.0, 1.0)
