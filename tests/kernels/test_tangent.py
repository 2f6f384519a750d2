"""Jacobian features and the empirical NTK, against differences, dense products and Laplace's predictive."""

import functools

import pytest
import torch
from torch import Tensor, nn

import singularbayes as sb
from singularbayes.kernels import GaussianProcess, empirical_ntk, jacobian_features, tangent, tangent_mean

DOUBLE = torch.float64
SOURCE = torch.Generator().manual_seed(0)
X = torch.randn(12, 3, generator=SOURCE, dtype=DOUBLE) * torch.tensor([1.0, 5.0, 0.2], dtype=DOUBLE)
Z = torch.randn(5, 3, generator=SOURCE, dtype=DOUBLE)
Y = torch.stack([X[:, 0].sin(), X[:, 1] / 5], 1)


def mlp(outputs: int = 2) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 9), nn.Tanh(), nn.LayerNorm(9), nn.Linear(9, outputs)).double()


def differences(network: nn.Module, x: Tensor) -> Tensor:
    """Central differences in each parameter that is trained, one after the other ``(B, K, d)``."""
    columns = []
    with torch.no_grad():
        for parameter in (p for p in network.parameters() if p.requires_grad):
            for place in range(parameter.numel()):
                flat = parameter.view(-1)
                flat[place] += 1e-6
                above = network(x)
                flat[place] -= 2e-6
                columns.append((above - network(x)) / 2e-6)
                flat[place] += 1e-6
    return torch.stack(columns, -1)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 3, bias=False)
        self.last.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).tanh())


def frozen() -> nn.Module:
    network = mlp()
    network[0].requires_grad_(False)
    return network


NETWORKS = {
    "plain": mlp,
    "factors": lambda: sb.factorize(mlp(), rank={"0": 2, "3": 1}).double(),
    "tied": lambda: Tied().double(),
    "frozen": frozen,
}


@pytest.mark.parametrize("name", NETWORKS)
def test_features_are_derivatives_in_every_trained_parameter_once(name):
    network = NETWORKS[name]()
    features = jacobian_features(network, X)
    expected = differences(network, X)
    assert features.dtype == DOUBLE
    assert features.shape == expected.shape  # a tied weight once, frozen ones never
    assert torch.allclose(features, expected, atol=1e-6)


def test_of_a_network_that_is_frozen_whole_every_parameter_counts():
    network = mlp()
    assert torch.equal(jacobian_features(mlp().requires_grad_(False), X), jacobian_features(network, X))


def test_of_a_linearised_network_the_features_are_those_at_its_point():
    network = mlp()
    linear = sb.linearize(network)
    with torch.no_grad():
        linear.get_parameter("0.weight").add_(3.0)  # it is linear: its Jacobian does not move
    assert torch.allclose(jacobian_features(linear, X), jacobian_features(network, X))


PRIOR = sb.PerParameter(
    {"0.*": sb.Normal(0.5), "2.*": sb.Normal(0.1), "3.bias": sb.Normal(4.0), "*": sb.Normal(2.0)}
)


@pytest.mark.parametrize("prior", [None, PRIOR])
def test_the_kernel_is_the_product_of_the_features(prior):
    network = mlp()
    one, two = jacobian_features(network, X, prior), jacobian_features(network, Z, prior)
    full = torch.einsum("bkv,zlv->kblz", one, two)
    assert torch.allclose(empirical_ntk(network, X, Z, prior=prior, full=True), full, atol=1e-10)
    per_output = torch.stack([full[k, :, k] for k in range(2)])
    assert torch.allclose(empirical_ntk(network, X, Z, prior=prior), per_output, atol=1e-10)
    own = torch.einsum("bkv,zkv->kbz", one, one)
    assert torch.allclose(empirical_ntk(network, X, prior=prior), own, atol=1e-10)


def test_small_memory_gives_the_same_kernel_and_never_holds_all_features(monkeypatch):
    network, sizes = mlp(), []
    whole = empirical_ntk(network, X, Z, full=True)
    whole_own = empirical_ntk(network, X)
    budget = 8 * 2 * 27 * 4  # two outputs, the first weight's 27 entries, 4 rows
    monkeypatch.setattr(tangent, "_BYTES", budget)
    features = tangent.Tangent.features

    def noted(self: tangent.Tangent, x: Tensor, outputs: int, slots: tuple) -> Tensor:
        found = features(self, x, outputs, slots)
        sizes.append(8 * found.numel())
        return found

    monkeypatch.setattr(tangent.Tangent, "features", noted)
    assert torch.allclose(empirical_ntk(network, X, Z, full=True), whole, atol=1e-10)
    assert torch.allclose(empirical_ntk(network, X), whole_own, atol=1e-10)
    assert max(sizes) <= budget / 2  # two sides are held
    assert len(sizes) > 10


def test_the_kernel_of_random_relu_features_comes_near_its_limit():
    """The NTK of a wide ReLU network in closed form (Arora et al. 2019, arXiv 1904.11955, eq. 8 and 9)."""
    width, gap = 4000, []
    x = torch.tensor([[1.0, 0.0], [0.6, 0.8], [-0.8, 0.6]], dtype=DOUBLE)
    for seed in range(3):
        torch.manual_seed(seed)
        network = nn.Sequential(
            nn.Linear(2, width, bias=False), nn.ReLU(), nn.Linear(width, 1, bias=False)
        ).double()
        with torch.no_grad():
            network[0].weight.normal_()
            network[2].weight.normal_()
        # sqrt(2 / width) before the last layer, as the standard parametrisation of the limit has it
        gap.append(2 / width * empirical_ntk(network, x)[0])
    cosine = x @ x.T
    angle = cosine.clamp(-1, 1).acos()
    k0, k1 = (torch.pi - angle) / torch.pi, ((torch.pi - angle) * cosine + angle.sin()) / torch.pi
    exact, estimate = cosine * k0 + k1, torch.stack(gap)
    error = estimate.std(0) / 3**0.5
    assert ((estimate.mean(0) - exact).abs() < 0.05 + 4 * error).all()
    assert not ((estimate.mean(0) - k1).abs() < 0.05 + 4 * error).all()  # the last layer's part alone


@pytest.mark.parametrize("name", ["plain", "factors"])
def test_the_process_with_this_kernel_is_laplaces_linearised_predictive(name):
    network, prior, noise = NETWORKS[name](), sb.Normal(0.7), 0.3
    model = sb.Model(network, sb.Gaussian(noise=noise), prior=prior, normalization=True)
    moments = sb.moments(sb.LaplaceApproximation(structure=sb.FullCurvature()).fit(model, (X, Y)), Z)
    # one process of the stacked outputs, its mean that of the linearised network under the prior
    residuals = (Y - tangent_mean(network, X)).T.reshape(-1)
    process = (
        GaussianProcess(functools.partial(_full, network, prior), noise=noise).fit(X, residuals).predict(Z)
    )
    found = process.covariance[0].view(2, 5, 2, 5)
    covariance = torch.stack([found[:, i, :, i] for i in range(5)])
    assert torch.allclose(covariance, moments.covariance, rtol=1e-5, atol=1e-8)
    # Laplace's mean is the network's own output; the process is at the optimum of the linearisation
    rows = jacobian_features(network, X).transpose(0, 1).flatten(0, 1)
    precision = rows.T @ rows / noise**2 + torch.eye(rows.shape[1], dtype=DOUBLE) / 0.7**2
    weights = torch.linalg.solve(precision, rows.T @ residuals / noise**2)
    mean = jacobian_features(network, Z) @ weights
    assert torch.allclose(process.mean[:, 0].view(2, 5).T, mean, rtol=1e-6, atol=1e-8)
    wrong = GaussianProcess(functools.partial(_full, network, None), noise=noise).fit(X, residuals)
    variance = wrong.predict(Z).variance[:, 0].view(2, 5).T
    assert not torch.allclose(variance, moments.variance, rtol=1e-2)  # the NTK without the prior


def _full(network: nn.Module, prior: sb.Normal | None, x: Tensor, z: Tensor) -> Tensor:
    found = empirical_ntk(network, x, z, prior=prior, full=True)
    return found.reshape(found.shape[0] * found.shape[1], -1)


def test_a_linear_networks_process_is_bayesian_linear_regression():
    x = torch.tensor([-1.0, -0.5, 0.5, 1.5, 2.0, 3.0], dtype=DOUBLE).unsqueeze(1)
    y = torch.tensor([-1.1, -1.0, 0.2, 0.9, 1.4, 2.3], dtype=DOUBLE)
    network = nn.Linear(1, 1).double()
    kernel = functools.partial(empirical_ntk, network, prior=sb.Normal(1.0))
    fitted = GaussianProcess(kernel, noise=0.5, mean=functools.partial(tangent_mean, network)).fit(x, y)
    assert abs(fitted.log_evidence - -5.492971647) < 1e-8
    assert abs(fitted.predict(torch.tensor([[-5.0]], dtype=DOUBLE)).variance.item() - 0.750822) < 1e-6
    assert fitted.jitter == 0


def test_recurrent_networks_have_kernels_too():
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.LSTM(2, 3, batch_first=True), nn.Linear(3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(x)[0][:, -1])

    torch.manual_seed(0)
    network, x = Last().double(), torch.randn(4, 5, 2, dtype=DOUBLE)
    expected = differences(network, x)[:, 0]
    assert torch.allclose(empirical_ntk(network, x)[0], expected @ expected.T, atol=1e-6)


def test_bad_input_is_named(unchecked):
    with pytest.raises(TypeError, match=r"Normal\(std\) alone, got Laplace"):
        empirical_ntk(mlp(), X, prior=sb.PerParameter({"*": sb.Laplace(1.0)}))
    with pytest.raises(ValueError, match="matches no parameter"):
        empirical_ntk(mlp(), X, prior=sb.PerParameter({"conv*": sb.Normal(1.0), "*": sb.Normal(1.0)}))
    with pytest.raises(TypeError, match=r"a kernel is of a torch\.nn\.Module, got str"):
        empirical_ntk("mlp", X)  # type: ignore[arg-type]


def test_the_users_network_is_untouched():
    network = mlp().train()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    empirical_ntk(network, X)
    tangent_mean(network, X)
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
    assert network.training
    assert all(p.grad is None for p in network.parameters())
