"""Compiled, bfloat16 and float64 training: what runs in which precision, and the same numbers."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import singularbayes as sb
from singularbayes import Gradient
from singularbayes.distributions import positive
from singularbayes.divergence import KL, bound
from singularbayes.methods.mean_field import MeanFieldLearner
from singularbayes.nn import LowRankLinear

PROGRAM = Path(__file__).with_name("compiled.py")
SPEC = importlib.util.spec_from_file_location("compiled", PROGRAM)
compiled = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(compiled)
NETWORKS, Y, fit = compiled.NETWORKS, compiled.Y, compiled.fit


# torch.compile


def differences(backend: str) -> dict[str, float]:
    environment = {**os.environ, "PYTHONPATH": str(Path(sb.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(PROGRAM), backend]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_fits_and_predictions_have_the_eager_ones_numbers(backend):
    # aot_eager: dynamo and autograd as in production, kernels eager: no compiler, little time
    found = differences(backend)
    assert len(found) == 7
    assert max(found.values()) < 1e-5, found


# bfloat16


class Spy(sb.Categorical):
    """Notes what the loss is taken of."""

    def loss(self, outputs, y, parameters):
        seen.append(outputs.dtype)
        loss = super().loss(outputs, y, parameters)
        seen.append(loss.dtype)
        return loss


seen: list[torch.dtype] = []


@pytest.mark.parametrize("gradient", Gradient)
@pytest.mark.parametrize("name", NETWORKS)
def test_autocast_runs_the_network_alone_in_bfloat16(name, gradient, monkeypatch):
    # trap 13: peers summed the KL in half precision, where 1000 + 1 is 1000
    make, x = NETWORKS[name]
    seen.clear()
    inner: list[torch.dtype] = []
    regulariser = MeanFieldLearner.regulariser

    def spy(self):
        noted = regulariser(self)
        sigma = positive(self.rho).double()
        exact = sum(
            bound(self.family, prior, self.mean[block].double(), sigma[block]).sum()
            for block, prior in self.bound.model.prior_blocks
        )
        assert noted == pytest.approx(float(exact), rel=1e-5)
        assert {self.vector.dtype, self.gradient.dtype, self.sigma.dtype} == {torch.float32}
        return noted

    monkeypatch.setattr(MeanFieldLearner, "regulariser", spy)
    linear = LowRankLinear.forward

    def noted(self, x):
        out = linear(self, x)
        inner.append(out.dtype)
        return out

    if gradient is not Gradient.LOCAL:
        monkeypatch.setattr(LowRankLinear, "forward", noted)
    method = sb.MeanField(epochs=2, autocast=True, gradient=gradient, kl=KL.BOUND)
    posterior = method.fit(sb.Model(make(), Spy(), prior=sb.ScaleMixture()), (x, Y), seed=3)
    assert set(seen) == {torch.float32}
    if gradient is not Gradient.LOCAL:
        assert torch.bfloat16 in inner
    exact = fit(sb.MeanField(epochs=2, gradient=gradient, kl=KL.BOUND), make(), x)
    assert posterior.draw(2).dtype == torch.float32
    torch.testing.assert_close(posterior.predict(x).mean, exact.predict(x).mean, atol=0.02, rtol=0)
    assert not torch.equal(posterior.draw(2), exact.draw(2))


# float64


@pytest.mark.parametrize("gradient", Gradient)
@pytest.mark.parametrize("name", NETWORKS)
def test_float64_stays_float64(name, gradient):
    make, x = NETWORKS[name]
    x = x.double() if x.is_floating_point() else x
    posterior = fit(sb.MeanField(epochs=1, gradient=gradient), make().double(), x)
    assert posterior.draw(2).dtype == torch.float64
    assert posterior.predict(x).mean.dtype == torch.float64
    low = fit(sb.MeanField(epochs=1, gradient=gradient), make(), x.float() if x.is_floating_point() else x)
    torch.testing.assert_close(
        posterior.distribution.mean.float(), low.distribution.mean, atol=0.02, rtol=0.0
    )
