"""Compiled, bfloat16 and float64 training: what runs in which precision, and the same numbers."""

import functools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import singularbayes as sb
from singularbayes import Gradient
from singularbayes.distributions import positive
from singularbayes.divergence import KL, bound
from singularbayes.methods.mean_field import MeanFieldLearner
from singularbayes.nn import LowRankLinear
from singularbayes.nn.embedding import LowRankEmbedding

SOURCE = torch.Generator().manual_seed(1)
X = torch.randn(24, 6, generator=SOURCE) * torch.tensor([1.0, 3.0, 0.1, 1.0, 1.0, 1.0])
IDS = torch.randint(0, 30, (24, 5), generator=SOURCE)
Y = (X[:, 0] > 0).long()


def chain() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(LowRankLinear(6, 16, 3), nn.Tanh(), nn.Linear(16, 2))


class Words(nn.Module):
    """A low-rank table and head around a stock encoder layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = LowRankEmbedding(30, 8, 2)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True)
        self.head = LowRankLinear(8, 2, 1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.encoder(self.table(ids)).mean(1))


class Series(nn.Module):
    """A stock recurrent layer, which torch leaves out of its graphs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lstm, self.head = nn.LSTM(1, 4, batch_first=True), LowRankLinear(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x.unsqueeze(-1))[0][:, -1])


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "chain": (chain, X),
    "words": (Words, IDS),
    "series": (Series, X),
}


def fit(method, network: nn.Module, x: Tensor) -> sb.Posterior:
    return method.fit(sb.Model(network, sb.Categorical(), prior=sb.ScaleMixture()), (x, Y), seed=3)


def agree(name: str, method: Callable[..., object]) -> None:
    make, x = NETWORKS[name]
    eager, compiled = fit(method(), make(), x), fit(method(compile=True), make(), x)
    torch.testing.assert_close(compiled.draw(3), eager.draw(3), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(compiled.predict(x).mean, eager.predict(x).mean, atol=1e-5, rtol=1e-5)


# Its table draws all rows when compiled: the same numbers need the same KL and noise.
MONTE_CARLO = functools.partial(sb.MeanField, epochs=2, batch_size=8, kl=KL.MONTE_CARLO)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_compiled_fit_has_the_eager_fits_numbers(name, monkeypatch):
    # dynamo and autograd as in production; the kernels eager, which need no compiler and little time
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    agree(name, MONTE_CARLO)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["chain", "words"])
@pytest.mark.parametrize("method", [MONTE_CARLO, functools.partial(sb.MAP, epochs=2, batch_size=8)])
def test_a_fit_compiled_by_inductor_has_the_eager_fits_numbers(name, method):
    agree(name, method)


def test_a_compiled_prediction_has_the_eager_ones_numbers():
    # no method of our own: the gain is small, see the docs
    posterior = fit(sb.MeanField(epochs=1), chain(), X)
    draws = posterior.draw(4)
    compiled = torch.compile(posterior.functions, backend="aot_eager")
    torch.testing.assert_close(compiled(draws, X), posterior.functions(draws, X), atol=1e-5, rtol=1e-5)


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
