"""Where the warnings of calibration point to."""

import subprocess
import sys

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
