"""The temperature of a posterior: what it cannot be found on, and where the warnings point to."""

import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

import singularbayes as sb
from singularbayes.conformal import conformal_sets
from singularbayes.predictive import CategoricalPredictive


class Breaking(nn.Module):
    """A linear layer that gives nan where the first input is above 1, once it is broken."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.layer, self.broken = nn.Linear(2, outputs), False

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x[:, :1] > 1, torch.nan, self.layer(x)) if self.broken else self.layer(x)


@pytest.mark.parametrize("likelihood", [sb.Categorical(), sb.Gaussian(noise=1.0)], ids=["classes", "numbers"])
def test_outputs_that_are_not_finite_are_no_ground_for_a_calibration(likelihood):
    # once: a temperature of .0277, or .0002 of the variance, without a word
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    model = sb.Model(Breaking(2 if likelihood.task == "categorical" else 1), likelihood)
    posterior = sb.MAP(epochs=1).fit(model, (x, y if likelihood.task == "categorical" else x[:, 0]))
    posterior.network.broken = True
    count = int((x[:, 0] > 1).sum())
    with pytest.raises(ValueError, match=rf"not finite in {count} of 40 validation rows, first in row"):
        posterior.calibrate((x, y))
    with pytest.raises(ValueError, match="NLL is nan"):
        sb.MixturePosterior([posterior], [1.0]).calibrate((x, y))


def test_conformal_sets_of_nan_are_an_error_and_not_empty():
    fitted = conformal_sets(CategoricalPredictive(torch.zeros(1, 9, 2).log_softmax(-1)), torch.ones(9).long())
    with pytest.raises(ValueError, match="probabilities of 1 of 2 rows are nan, first of row 1"):
        fitted.sets(CategoricalPredictive(torch.tensor([[[-0.7, -0.7], [torch.nan, torch.nan]]])))


SCRIPT = """
import warnings
import torch
import singularbayes as sb
from singularbayes.conformal import conformal_intervals, conformal_sets
x = torch.linspace(-1, 1, 8).unsqueeze(1)
network = torch.nn.Linear(1, 2)
with torch.no_grad():
    network.weight.copy_(torch.tensor([[-9.0], [9.0]])), network.bias.zero_()
y = (x[:, 0] > 0).long()
gain = type("Own", (torch.nn.Module,), {"forward": lambda self, x: x * self.gain})()
gain.gain = torch.nn.Parameter(torch.ones(1))
one = sb.MAP(epochs=1).fit(sb.Model(network, sb.Categorical()), (x, y))
numbers = sb.MAP(epochs=1).fit(sb.Model(torch.nn.Linear(1, 1), sb.Gaussian(noise=1.0)), (x, x))
for act in (
    lambda: one.calibrate((x, y)),
    lambda: one.calibrate((x, y), by=sb.VectorScaling()),
    lambda: sb.MixturePosterior([one], [1.0]).calibrate((x, y)),
    lambda: conformal_sets(one, (x, y), 0.95),
    lambda: conformal_intervals(numbers, (x, x), 0.95),
    lambda: sb.DeepEnsemble(members=1, member=sb.MAP(epochs=1)).fit(sb.Model(gain, sb.Gaussian()), (x, x)),
):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        act()
    print(*[each.filename for each in caught], sep=",")
"""


def test_warnings_point_to_the_line_of_the_user():  # in a process of its own: type checks add frames here
    found = subprocess.run(
        [sys.executable, "-"], input=SCRIPT, capture_output=True, text=True, check=True, timeout=120
    )
    assert found.stdout.split() == ["<stdin>"] * 6
