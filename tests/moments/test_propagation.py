"""Moment propagation on whole networks: what it runs, what it names, what it is close to."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import singularbayes as sb
from singularbayes.distributions import DiagonalGaussian, DiagonalLaplace
from singularbayes.moments import covered
from singularbayes.moments.random_tensor import RandomTensor, UncoveredError
from singularbayes.parameters import Layout
from singularbayes.posterior import Posterior

pytestmark = pytest.mark.filterwarnings("ignore:.*saves no parameters", "ignore:the rank saves")
DOUBLE = torch.float64


def rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def posterior_of(network: nn.Module, share: float = 0.2, **choice) -> Posterior:
    """Standard deviations up to ``share`` of a layer's own scale, of different sizes."""
    network = network.double()
    layout = Layout.of(network, **choice)
    mean = layout.flatten(network)
    std = torch.zeros_like(mean)
    for slot in layout.of_kind("belief"):
        scale = mean[slot.start : slot.stop].std(unbiased=False) + 1e-2
        std[slot.start : slot.stop] = share * scale * torch.rand(slot.size, generator=rng(1), dtype=DOUBLE)
    return Posterior(network, DiagonalGaussian(mean, std), sb.Categorical(), layout, {})


def mlp(*, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 32), activation(), nn.Linear(32, 32), activation(), nn.Linear(32, 3))


class Free(nn.Module):
    """Attention, a gate, a class token and residual sums as a user writes them."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.q, self.k, self.v, self.gate = (nn.Linear(8, 8) for _ in range(4))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1)
        q, k, v = self.q(x), self.k(x), self.v(x)
        weights = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(8), dim=-1)
        x = self.norm(x + weights @ v)
        x += torch.sigmoid(self.gate(x)) * F.gelu(x)
        return self.head(x[:, 0])


class Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.max_pool2d(torch.tanh(self.norm(self.conv(x))), 2)
        return self.head(h.mean((2, 3)))


def encoder() -> nn.Sequential:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True, norm_first=True)
    return nn.Sequential(
        nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Flatten(), nn.Linear(40, 3)
    )


ROWS = torch.randn(5, 6, generator=rng(2), dtype=DOUBLE)
WORDS = torch.randn(4, 5, 8, generator=rng(3), dtype=DOUBLE)
PICTURES = torch.rand(4, 1, 6, 6, generator=rng(4), dtype=DOUBLE)
# name: network, inputs, allowed median error of the mean (in standard deviations) and of the sd (relative).
# Propagation ignores correlations after activations, and those of positions: these are measured, not derived.
NETWORKS = {
    "relu": (mlp, ROWS, 0.06, 0.06),
    "tanh": (lambda: mlp(activation=nn.Tanh), ROWS, 0.06, 0.06),
    "low rank": (lambda: sb.factorize(mlp(), rank=4), ROWS, 0.06, 0.3),
    "encoder": (encoder, WORDS, 0.08, 0.12),
    "low-rank encoder": (lambda: sb.factorize(encoder(), rank=2), WORDS, 0.1, 0.2),
    "free code": (Free, WORDS, 0.15, 0.3),
    "pooled": (Pooled, PICTURES, 0.3, 0.5),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_whole_networks_are_close_to_their_draws(name):
    torch.manual_seed(0)
    make, x, of_mean, of_std = NETWORKS[name]
    posterior = posterior_of(make())
    drawn = posterior.functions(posterior.draw(2000), x)
    found = sb.moments(posterior, x, sb.Propagation())
    std = drawn.std(0)
    assert ((found.mean - drawn.mean(0)) / std).abs().median() < of_mean
    assert ((found.variance.sqrt() - std) / std).abs().median() < of_std
    assert found.info == {"method": "Propagation", "exact": False}
    assert torch.allclose(found.covariance, found.covariance.mT)
    assert torch.linalg.eigvalsh(found.covariance).min() > -1e-12


def test_a_padded_key_adds_nothing_and_another_item_is_not_touched():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = layer, nn.Linear(8, 2)

        def forward(self, x: Tensor, padding: Tensor) -> Tensor:
            return self.head(self.layer(x, src_key_padding_mask=padding)[:, 0])

    posterior = posterior_of(Padded())
    padding = torch.zeros(4, 5, dtype=torch.bool)
    padding[1, 3:] = True
    whole = sb.moments(posterior, (WORDS, padding), sb.Propagation())
    changed = WORDS.clone()
    changed[1, 3:] = 100.0
    again = sb.moments(posterior, (changed, padding), sb.Propagation())
    assert torch.allclose(whole.covariance, again.covariance)
    assert torch.isfinite(whole.covariance).all()


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x.tanh()) + self.other(x)


def test_a_covariance_that_is_not_followed_is_said_to_be_missing():
    for network in (
        nn.Sequential(mlp(), nn.Tanh()),
        nn.Sequential(mlp(), nn.ReLU()),
        nn.Sequential(nn.Linear(6, 6), Branches()),
    ):
        found = sb.moments(posterior_of(network), ROWS, sb.Propagation())
        assert torch.equal(found.covariance, found.variance.diag_embed())
        assert "variances alone" in found.info["covariance"]
    alone = posterior_of(nn.Linear(6, 3))  # here 0 is the covariance
    found = sb.moments(alone, ROWS, sb.Propagation())
    assert torch.allclose(found.covariance, sb.moments(alone, ROWS, sb.ClosedForm()).covariance)
    assert "covariance" not in found.info


def test_the_default_says_which_method_and_why():
    posterior = posterior_of(mlp())
    assert sb.moments(posterior, ROWS).info["method"] == "Propagation"
    assert sb.moments(posterior_of(mlp(), bayesian="4.*"), ROWS).info["method"] == "ClosedForm"
    laplace = DiagonalLaplace(posterior.distribution.mean, posterior.distribution.std)
    other = Posterior(posterior.network, laplace, posterior.likelihood, posterior.layout, {})
    found = sb.moments(other, ROWS)
    # twice the variance of a Gaussian of the same scale
    assert (laplace.variance / posterior.distribution.variance).nan_to_num().max() == pytest.approx(2)
    assert (found.variance > 1.5 * sb.moments(posterior, ROWS).variance).all()


class Sorted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).cumsum(1)


def test_an_operation_without_a_rule_is_named_with_its_path_and_the_default_goes_on_to_delta():
    posterior = posterior_of(nn.Sequential(nn.Linear(6, 6), nn.ReLU(), Sorted()))
    with pytest.raises(UncoveredError, match=r"the operation cumsum in 2 is not covered"):
        sb.moments(posterior, ROWS, sb.Propagation())
    found = sb.moments(posterior, ROWS)
    assert found.info["method"] == "Delta"
    assert "the operation cumsum in 2" in found.info["reason"]
    assert torch.equal(found.covariance, sb.moments(posterior, ROWS, sb.Delta()).covariance)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTM(8, 3, batch_first=True), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, -1])


@pytest.mark.parametrize(
    "name", ["lstm", "product of weights", "in place on a view", "two outputs of dropout"]
)
def test_what_has_no_rule_never_passes_silently(name):
    class OfWeights(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:  # noqa: A002
            return F.linear(input, self.weight @ self.weight.T @ self.weight)

    class InPlace(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:  # noqa: A002
            h = super().forward(input)
            h[:, :1].add_(h[:, 1:2])
            return h

    class On(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:  # noqa: A002
            return F.dropout(super().forward(input), 0.5, training=True)

    network, x = {
        "lstm": (Recurrent(), WORDS), "product of weights": (OfWeights(6, 6), ROWS),
        "in place on a view": (InPlace(6, 6), ROWS), "two outputs of dropout": (On(6, 6), ROWS),
    }[name]  # fmt: skip
    with pytest.raises(UncoveredError, match="not covered by moment propagation"):
        sb.moments(posterior_of(network), x, sb.Propagation())


def test_the_network_and_the_rows_beside_change_nothing():
    posterior = posterior_of(encoder())
    before = copy.deepcopy(posterior.network.state_dict())
    whole = sb.moments(posterior, WORDS, sb.Propagation())
    parts = sb.moments(posterior, WORDS, sb.Propagation(batch_size=3))
    assert torch.allclose(whole.covariance, parts.covariance, atol=1e-12)
    assert torch.allclose(sb.moments(posterior, WORDS[1:2], sb.Propagation()).mean, whole.mean[1:2])
    assert all(torch.equal(tensor, before[name]) for name, tensor in posterior.network.state_dict().items())
    assert not any(module._forward_hooks for module in posterior.network.modules())
    assert all("forward" not in vars(module) for module in posterior.network.modules())
    assert not any(isinstance(p, RandomTensor) for p in posterior.network.parameters())


def test_correlated_positions_have_a_wider_average():
    torch.manual_seed(0)
    posterior = posterior_of(Pooled())
    drawn = posterior.functions(posterior.draw(1000), PICTURES).std(0)
    stds = [sb.moments(posterior, PICTURES, sb.Propagation(correlation=rho)).variance.sqrt()
            for rho in (0.0, 0.5, 1.0)]  # fmt: skip
    assert (stds[0] < stds[1]).all()
    assert (stds[1] < stds[2]).all()
    # 9 positions: as independent ones the noise before them is lost; peers' sd is .5 to .8 of the draws'
    assert (stds[0] / drawn).median() < 0.85
    assert (stds[2] / drawn).median() > 0.95


def test_average_pooling_is_the_mean_of_its_windows():
    class Net(nn.Module):
        def __init__(self, pool: nn.Module) -> None:
            super().__init__()
            self.conv, self.pool = nn.Conv2d(1, 2, 1), pool

        def forward(self, x: Tensor) -> Tensor:
            return self.pool(self.conv(x)).flatten(1)

    torch.manual_seed(0)
    one, other = posterior_of(Net(nn.AvgPool2d(2))), posterior_of(Net(nn.AdaptiveAvgPool2d(3)))
    for rho, factor in ((0.0, 0.25), (1.0, 1.0)):
        method = sb.Propagation(correlation=rho)
        found = sb.moments(one, torch.ones(1, 1, 6, 6, dtype=DOUBLE), method)
        point = sb.moments(one, torch.ones(1, 1, 2, 2, dtype=DOUBLE), sb.Propagation())
        assert torch.allclose(found.variance[0, 0], factor * point.variance[0, 0])
        other.distribution.mean.copy_(one.distribution.mean)
        other.distribution.std.copy_(one.distribution.std)
        same = sb.moments(other, torch.ones(1, 1, 6, 6, dtype=DOUBLE), method)
        assert torch.allclose(same.variance, found.variance)


@pytest.mark.usefixtures("unchecked")
def test_bad_settings_are_refused():
    posterior = posterior_of(mlp())
    with pytest.raises(ValueError, match=r"correlation must be between 0 and 1, got 1\.5"):
        sb.Propagation(correlation=1.5)
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        sb.Propagation(batch_size=0)
    for method in (sb.Propagation, "delta"):
        with pytest.raises(TypeError, match=r"method must be an object such as Propagation\(\)"):
            sb.moments(posterior, ROWS, method)  # pyright: ignore[reportArgumentType]
    with pytest.raises(NotImplementedError, match=r"a linearised network .*ClosedForm\(\) is exact"):
        sb.moments(posterior_of(sb.linearize(mlp())), ROWS, sb.Propagation())


def test_the_list_of_what_is_covered_names_operations_and_modules():
    found = covered()
    assert {"linear", "conv2d", "layer_norm", "scaled_dot_product_attention"} <= set(found["operations"])
    assert "LowRankMultiheadAttention" in found["modules"]
    assert "cumsum" not in found["operations"]
