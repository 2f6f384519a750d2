"""The exact part of moment propagation: products with weights, against draws and closed forms in float64."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import singularbayes as sb
from singularbayes.distributions import DiagonalGaussian
from singularbayes.moments import products
from singularbayes.moments.random_tensor import RandomTensor
from singularbayes.parameters import Layout
from singularbayes.posterior import Posterior
from singularbayes.theory import weight_covariance

pytestmark = pytest.mark.filterwarnings("ignore:.*saves no parameters")
DOUBLE = torch.float64
N = 6_000  # draws


def rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def posterior_of(network: nn.Module, size: float = 0.7, **choice: Any) -> Posterior:
    """Badly scaled standard deviations over all weights: two decades."""
    network = network.double()
    layout = Layout.of(network, **choice)
    mean = layout.flatten(network)
    std = torch.zeros_like(mean)
    for slot in layout.of_kind("belief"):
        scale = 10 ** (-2 * torch.rand(slot.size, generator=rng(slot.start), dtype=DOUBLE))
        std[slot.start : slot.stop] = size * scale
    return Posterior(network, DiagonalGaussian(mean, std), sb.Categorical(), layout, {})


class Written(nn.Module):
    """The low-rank product as a user writes it, with a constant gain, a shift and a turn of sign."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(3, 2)), nn.Parameter(torch.randn(4, 2))
        self.gain = nn.Parameter(torch.tensor([1.0, -2.0, 0.5]))

    def forward(self, x: Tensor) -> Tensor:
        return 1 - 2 * ((x @ self.b) @ self.a.T) * self.gain


class Shifted(nn.Module):
    """A bias as a user writes it: a parameter beside the product."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 3, bias=False)
        self.shift = nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.shift - self.last(self.first(x))


class Tokens(nn.Module):
    def __init__(self, table: nn.Module) -> None:
        super().__init__()
        self.table, self.head = table, nn.Linear(3, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.table(ids)).select(1, 0)


X = torch.randn(3, 4, generator=rng(0), dtype=DOUBLE) * torch.tensor([1.0, 3.0, 0.1, 1.0], dtype=DOUBLE)
IMAGES = torch.randn(2, 2, 5, 5, generator=rng(1), dtype=DOUBLE)
IDS = torch.tensor([[1, 2], [5, 0]])
LowLinear, LowConv = sb.nn.LowRankLinear, sb.nn.LowRankConv2d
CHAINS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "two linear layers": (lambda: nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3)), X),
    "low rank after linear": (lambda: nn.Sequential(nn.Linear(4, 5), LowLinear(5, 3, 2)), X),
    "low rank twice": (lambda: nn.Sequential(LowLinear(4, 4, 2), LowLinear(4, 3, 2)), X),
    "with a diagonal": (lambda: nn.Sequential(nn.Linear(4, 4), LowLinear(4, 3, 2, diagonal=True)), X),
    "written by hand": (Written, X),
    "a bias by hand": (Shifted, X),
    "normalised": (lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), X),
    "convolution": (lambda: nn.Conv2d(2, 2, 3, stride=2, padding=1), IMAGES),
    "low-rank convolution": (lambda: LowConv(2, 3, 3, 2, stride=2, padding=1), IMAGES),
    "after a 1x1": (lambda: nn.Sequential(nn.Conv2d(2, 4, 1), LowConv(4, 4, 1, 2, groups=2)), IMAGES),
    "its diagonal": (lambda: nn.Sequential(nn.Conv2d(2, 2, 1), LowConv(2, 3, 1, 2, diagonal=True)), IMAGES),
    "circular edges": (lambda: LowConv(2, 2, 3, 1, padding=1, padding_mode="circular"), IMAGES),
    "embedding": (lambda: Tokens(nn.Embedding(6, 3)), IDS),
    "low-rank embedding": (lambda: Tokens(sb.nn.LowRankEmbedding(6, 3, 2, padding_idx=0)), IDS),
}  # fmt: skip
VECTORS = [name for name, (_, x) in CHAINS.items() if x is not IMAGES]


def chain(name: str, **choice: Any) -> tuple[Posterior, Tensor, Tensor]:
    torch.manual_seed(0)
    make, x = CHAINS[name]
    network = make()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm1d) and module.running_var is not None:
            module.running_var.copy_(torch.rand(4, generator=rng(9)) + 0.2)
    posterior = posterior_of(network, **choice)
    return posterior, x, posterior.functions(posterior.draw(N, seed=1), x).flatten(2)


def misses(samples: Tensor, claim: Tensor) -> float:
    """The largest deviation of the mean of ``samples`` from the claim, in standard errors."""
    spread = samples.std(0) / math.sqrt(len(samples))
    return ((samples.mean(0) - claim).abs() / spread.clamp_min(1e-12)).max().item()


# At most 108 entries a network at 6,000 draws: 5 standard errors, a false alarm in at most 1 of 15,000.
@pytest.mark.parametrize("name", CHAINS)
def test_means_and_variances_of_linear_chains_are_those_of_draws(name):
    posterior, x, drawn = chain(name)
    found = sb.moments(posterior, x, sb.Propagation())
    assert misses(drawn, found.mean) < 5
    assert misses((drawn - found.mean).square(), found.variance) < 5
    assert misses((drawn - found.mean).square(), found.variance * 1.4) > 5


@pytest.mark.parametrize(
    "name", ["two linear layers", "low rank after linear", "low rank twice", "a bias by hand", "normalised"]
)
def test_covariances_of_linear_chains_are_those_of_draws(name):
    posterior, x, drawn = chain(name)
    found = sb.moments(posterior, x, sb.Propagation())
    centred = drawn - found.mean
    products = centred.unsqueeze(3) * centred.unsqueeze(2)
    assert misses(products, found.covariance) < 5
    assert misses(products, found.variance.diag_embed()) > 5  # independent outputs
    assert "covariance" not in found.info


def test_a_low_rank_layer_has_the_variance_of_its_product_in_closed_form():
    torch.manual_seed(0)
    layer = LowLinear(4, 3, 2, bias=False)
    posterior = posterior_of(layer)
    views = posterior.layout.views(posterior.distribution.mean)
    spreads = posterior.layout.views(posterior.distribution.std)
    covariance = weight_covariance(views["A"], spreads["A"], views["B"], spreads["B"]).view(3, 4, 3, 4)
    expected = torch.einsum("bj,ijkl,bl->bik", X, covariance, X)
    found = sb.moments(posterior, X, sb.Propagation())
    assert torch.allclose(found.covariance, expected, atol=1e-12)
    # a sum over ranks as if h's entries were independent of nothing: without E B^T diag(v) E B
    assert not torch.allclose(found.covariance.diagonal(dim1=1, dim2=2).diag_embed(), expected, atol=1e-2)


def test_ignoring_the_variance_of_inputs_or_their_covariance_is_seen(monkeypatch):
    """Wrong on purpose: ``x`` taken for a constant; the rank's sum without the covariance of ``B^T x``."""
    posterior, x, drawn = chain("low rank after linear")
    squares = (drawn - drawn.mean(0)).square()
    right = sb.moments(posterior, x, sb.Propagation()).variance
    assert misses(squares, right) < 5
    with monkeypatch.context() as patch:
        patch.setattr(products, "_second", lambda value: products.expected_of(value).square())
        assert misses(squares, sb.moments(posterior, x, sb.Propagation()).variance) > 5
    new = RandomTensor.__new__

    def alone(cls: type, mean: Tensor, noise: Tensor | None, shares: Any = (), weight: bool = False) -> Any:
        return new(cls, mean, new(cls, mean, noise, shares, weight).variance, (), weight)

    with monkeypatch.context() as patch:
        patch.setattr(RandomTensor, "__new__", staticmethod(alone))
        assert misses(squares, sb.moments(posterior, x, sb.Propagation()).variance) > 5


def test_a_tensor_of_points_alone_has_no_variance_and_a_frozen_part_none_of_its_own():
    network = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3)).double()
    network[1].requires_grad_(False)
    posterior = posterior_of(network)
    found = sb.moments(posterior, X, sb.Propagation())
    exact = sb.moments(posterior, X, sb.ClosedForm())
    assert torch.allclose(found.covariance, exact.covariance, atol=1e-12)
    nothing = sb.moments(posterior.at_mean(), X, sb.Propagation())
    assert (nothing.covariance == 0).all()
    assert torch.allclose(nothing.mean, network(X))
