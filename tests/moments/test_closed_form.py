"""Moments against dense Jacobians and covariances in float64, and against draws."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.functional import jacobian
from torch.func import functional_call

import singularbayes as sb
from singularbayes.curvature import jacobian as jacobian_module
from singularbayes.distributions import (
    DiagonalGaussian,
    DiagonalLaplace,
    FullGaussian,
    KroneckerGaussian,
    LowRankGaussian,
    MixtureDistribution,
    StoredDraws,
)
from singularbayes.parameters import Layout
from singularbayes.posterior import Posterior

DOUBLE = torch.float64


def rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def diagonal(mean: Tensor, beliefs: int) -> Any:
    std = torch.zeros_like(mean)
    std[:beliefs] = torch.rand(beliefs, generator=rng(1), dtype=DOUBLE)
    return DiagonalGaussian(mean, std)


def low_rank(mean: Tensor, beliefs: int) -> Any:
    factor = torch.zeros(len(mean), 3, dtype=DOUBLE)
    factor[:beliefs] = torch.randn(beliefs, 3, generator=rng(2), dtype=DOUBLE)
    return LowRankGaussian(mean, diagonal(mean, beliefs).std, factor)


def full(mean: Tensor, beliefs: int) -> Any:
    factor = torch.randn(beliefs, beliefs, generator=rng(3), dtype=DOUBLE)
    return FullGaussian(mean, factor * torch.logspace(-1, 0.5, beliefs).double(), torch.randperm(beliefs))


def some(mean: Tensor, beliefs: int) -> Any:
    """A full covariance of every third entry."""
    n = len(range(0, beliefs, 3))
    return FullGaussian(
        mean, torch.randn(n, n, generator=rng(4), dtype=DOUBLE), torch.arange(0, beliefs, 3).flip(0)
    )


def kronecker(mean: Tensor, beliefs: int) -> Any:
    blocks = torch.tensor([[0, 2, 3], [8, 3, 2]])
    left, right = (torch.randn(13, generator=rng(seed), dtype=DOUBLE) for seed in (5, 6))
    return KroneckerGaussian(
        mean, diagonal(mean, beliefs).std, blocks, left, right, low_rank(mean, beliefs).factor
    )


KINDS: dict[str, Callable[[Tensor, int], Any]] = {
    "diagonal": diagonal, "low rank": low_rank, "full": full, "some": some, "kronecker": kronecker,
}  # fmt: skip
each_kind = pytest.mark.parametrize("kind", KINDS)


def dense_covariance(distribution: Any) -> Tensor:
    """From how the distribution draws: ``sample`` is affine in its noise."""
    zero = torch.zeros(1, distribution.noise_size, dtype=DOUBLE)
    root = jacobian(lambda noise: distribution.sample(noise)[0], zero).squeeze(1)
    return root @ root.T


def dense_moments(posterior: Posterior, x: Tensor) -> tuple[Tensor, Tensor]:
    network, row = posterior.network, posterior.distribution.mean
    slots = posterior.layout.of_kind("belief")
    own = {name: tensor for name, tensor in posterior.layout.views(row).items() if "running" not in name}

    def function(*beliefs: Tensor) -> Tensor:
        chosen = dict(zip([slot.name for slot in slots], beliefs, strict=True))
        return functional_call(network, {**own, **chosen}, (x,)).reshape(len(x), -1)

    point = tuple(own[slot.name] for slot in slots)
    blocks = [block.flatten(2) for block in jacobian(function, point)]
    jac = torch.cat(blocks, 2)
    covariance = dense_covariance(posterior.distribution)[: jac.shape[2], : jac.shape[2]]
    return function(*point), jac @ covariance @ jac.mT


def of(network: nn.Module, kind: str, likelihood: Any = None, **choice: Any) -> Posterior:
    network = network.double()
    layout = Layout.of(network, **choice)
    mean = layout.flatten(network)
    distribution = KINDS[kind](mean, layout.belief)
    return Posterior(network, distribution, likelihood or sb.Categorical(), layout, {})


def mlp(outputs: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.BatchNorm1d(4), nn.Linear(4, outputs))


X = torch.randn(7, 2, generator=rng(0), dtype=DOUBLE) * torch.tensor([1.0, 5.0], dtype=DOUBLE)


@each_kind
def test_a_linearised_posterior_has_the_dense_moments(kind):
    posterior = of(sb.linearize(mlp()), kind)
    shift = torch.zeros_like(posterior.distribution.mean)
    shift[: posterior.layout.trained] = 0.3  # away from the point of linearisation
    moved = KINDS[kind](posterior.distribution.mean + shift, posterior.layout.belief)
    posterior = Posterior(posterior.network, moved, posterior.likelihood, posterior.layout, {})
    moments = sb.moments(posterior, X)
    mean, covariance = dense_moments(posterior, X)
    assert torch.allclose(moments.mean, mean, atol=1e-10)
    assert torch.allclose(moments.covariance, covariance, atol=1e-9)
    assert covariance.abs().max() > 0.1


@each_kind
def test_a_last_layer_posterior_has_the_dense_moments(kind):
    posterior = of(mlp(), kind, bayesian="3.*")
    moments = sb.moments(posterior, X)
    mean, covariance = dense_moments(posterior, X)
    assert torch.allclose(moments.mean, mean, atol=1e-10)
    assert torch.allclose(moments.covariance, covariance, atol=1e-9)


def test_points_before_a_believed_last_layer_do_not_stand_in_the_way():
    posterior = of(mlp(), "diagonal")
    std = posterior.distribution.std.clone()
    for slot in posterior.layout.slots:
        std[slot.start : slot.stop] *= slot.name.startswith("3.")
    distribution = DiagonalGaussian(posterior.distribution.mean, std)
    posterior = Posterior(posterior.network, distribution, posterior.likelihood, posterior.layout, {})
    assert torch.allclose(sb.moments(posterior, X).covariance, dense_moments(posterior, X)[1], atol=1e-10)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTM(2, 3, batch_first=True), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, -1])


def wide(network: nn.Module, x: Tensor, **choice: Any) -> tuple[Posterior, Tensor]:
    return of(network, "low rank", **choice), x


def problems() -> dict[str, Callable[[], tuple[Posterior, Tensor]]]:
    steps = torch.randn(3, 4, 2, generator=rng(7), dtype=DOUBLE)
    images = torch.randn(3, 1, 6, 6, generator=rng(8), dtype=DOUBLE)
    convolution = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(32, 2))
    tower = sb.factorize(mlp(), rank=1)
    attention = nn.Sequential(
        nn.TransformerEncoderLayer(2, 1, 4, batch_first=True), nn.Flatten(), nn.Linear(8, 2)
    )
    low = nn.Sequential(nn.Tanh(), sb.nn.LowRankLinear(2, 3, 1))
    return {
        "lstm": lambda: wide(sb.linearize(Recurrent()), steps),
        "lstm's last layer": lambda: wide(Recurrent(), steps, bayesian="head.*"),
        "convolution": lambda: wide(sb.linearize(convolution), images),
        "factors": lambda: wide(sb.linearize(tower), X),
        "attention": lambda: wide(sb.linearize(attention), steps),
        "one factor of the last layer": lambda: wide(low, X, bayesian="1.A"),
        "outputs in a shape": lambda: wide(nn.Sequential(nn.Linear(2, 4), nn.Unflatten(1, (2, 2))), X),
        "one output": lambda: wide(nn.Sequential(nn.Linear(2, 1), nn.Flatten(0)), X),
    }  # fmt: skip


@pytest.mark.parametrize("name", problems())
def test_other_networks_have_the_dense_moments(name):
    torch.manual_seed(0)
    posterior, x = problems()[name]()
    moments = sb.moments(posterior, x)
    mean, covariance = dense_moments(posterior, x)
    assert torch.allclose(moments.mean, mean, atol=1e-10)
    assert torch.allclose(moments.covariance, covariance, atol=1e-9)
    assert moments.event == posterior.functions(posterior.draw(1), x).shape[2:]


def test_the_number_of_rows_at_a_time_changes_nothing(monkeypatch):
    posterior = of(sb.linearize(mlp()), "low rank")
    whole = sb.moments(posterior, X)
    monkeypatch.setattr(jacobian_module, "_CHUNK_BYTES", 3 * 27 * 8 * 2)  # two rows
    assert torch.allclose(sb.moments(posterior, X).covariance, whole.covariance, atol=1e-12)


def misses(posterior: Posterior, covariance: Tensor, n: int = 1500) -> float:
    """Largest deviation of the draws' covariance, in standard errors."""
    outputs = posterior.functions(posterior.draw(n), X)
    centred = outputs - sb.moments(posterior, X).mean
    products = centred.unsqueeze(3) * centred.unsqueeze(2)
    return ((products.mean(0) - covariance).abs() / (products.std(0) / math.sqrt(n))).max().item()


def test_the_draws_have_the_moments_and_a_standard_deviation_for_a_variance_misses():
    posterior = of(sb.linearize(mlp()), "kronecker")
    covariance = sb.moments(posterior, X).covariance
    assert misses(posterior, covariance) < 5  # 42 entries at 1500 draws: false alarm below 1e-4
    roots = covariance.diagonal(dim1=1, dim2=2).sqrt()
    assert misses(posterior, covariance / (roots.unsqueeze(1) * roots.unsqueeze(2)).sqrt()) > 10


def test_an_atom_has_no_covariance():
    network = mlp()
    layout = Layout.of(network.double())
    atom = StoredDraws(layout.flatten(network).unsqueeze(0))
    moments = sb.moments(Posterior(network, atom, sb.Categorical(), layout, {}), X)
    assert torch.allclose(moments.mean, network(X))
    assert (moments.covariance == 0).all()


def test_what_has_no_closed_form_is_refused_by_name():
    with pytest.raises(ValueError, match=r"not affine in 0\.weight, 0\.bias, \.\.\..*sb\.linearize"):
        sb.moments(of(mlp(), "diagonal"), X, sb.ClosedForm())
    factors = nn.Sequential(nn.Tanh(), sb.nn.LowRankLinear(2, 3, 1, bias=False))
    with pytest.raises(ValueError, match=r"not affine in 1\.A, 1\.B"):
        sb.moments(of(factors, "low rank"), X, sb.ClosedForm())
    posterior = of(mlp(), "diagonal", bayesian="3.*")
    mean, std = posterior.distribution.mean, posterior.distribution.std
    for distribution, methods in (
        (DiagonalLaplace(mean, std), (sb.ClosedForm(), sb.Delta())),
        (StoredDraws(mean.repeat(2, 1)), (sb.ClosedForm(), sb.Delta(), sb.Propagation(), None)),
        (MixtureDistribution((posterior.distribution, posterior.distribution)), (sb.Propagation(), None)),
        (KINDS["low rank"](mean, posterior.layout.belief), (sb.Propagation(),)),
    ):
        other = Posterior(posterior.network, distribution, posterior.likelihood, posterior.layout, {})
        for method in methods:
            with pytest.raises(TypeError, match=rf"(?s)the kind {distribution.kind}; posterior\.predict"):
                sb.moments(other, X, method)


@each_kind
def test_the_delta_method_has_the_dense_jacobian_of_any_network(kind):
    posterior = of(mlp(), kind)
    moments = sb.moments(posterior, X, sb.Delta())
    mean, covariance = dense_moments(posterior, X)
    assert torch.allclose(moments.mean, mean, atol=1e-10)
    assert torch.allclose(moments.covariance, covariance, atol=1e-9)
    assert moments.info == {"method": "Delta", "exact": False}


def test_weights_that_are_not_independent_go_to_the_delta_method_and_say_so():
    moments = sb.moments(of(mlp(), "low rank"), X)
    assert moments.info["method"] == "Delta"
    assert "low_rank_gaussian, whose weights are not independent" in moments.info["reason"]
    assert sb.moments(of(sb.linearize(mlp()), "low rank"), X).info == {"method": "ClosedForm", "exact": True}
    with pytest.raises(ValueError, match=r"linearised already: ClosedForm\(\)"):
        sb.moments(of(sb.linearize(mlp()), "low rank"), X, sb.Delta())


def test_a_parameter_that_was_frozen_when_the_network_was_linearised_is_named():
    network = mlp()
    network[0].requires_grad_(False)
    linear = sb.linearize(network).requires_grad_(True)
    with pytest.raises(ValueError, match=r"0\.weight has a distribution, but the network is not linear"):
        sb.moments(of(linear, "diagonal"), X)


def test_statistics_with_a_distribution_are_refused():
    posterior = of(sb.linearize(mlp()), "diagonal")
    std = posterior.distribution.std + 0.1
    distribution = DiagonalGaussian(posterior.distribution.mean, std)
    with pytest.raises(ValueError, match=r"2\.weight has a distribution"):
        sb.moments(Posterior(posterior.network, distribution, posterior.likelihood, posterior.layout, {}), X)


@pytest.mark.usefixtures("unchecked")
def test_networks_and_mixtures_have_no_moments():
    x = torch.linspace(-1, 1, 8).unsqueeze(1)
    net = nn.Linear(1, 1)
    posterior = sb.MAP(epochs=1).fit(sb.Model(net, sb.Gaussian(noise=0.5)), (x, x))
    with pytest.raises(TypeError, match=r"got a Linear: fit one, such as LaplaceApproximation"):
        sb.moments(net, x)
    with pytest.raises(TypeError, match=r"got a MixturePosterior; take one of its \.members"):
        sb.moments(sb.Mixture(members=(posterior, posterior)).join(), x)
