"""The prior's kernel by Monte Carlo, against closed forms and the arc-cosine recursion of wide networks."""

import math

import pytest
import torch
from torch import Tensor, nn

import singularbayes as sb
from singularbayes.kernels import nngp, prior_covariance

DOUBLE = torch.float64
X = torch.tensor([[1.0, 0.5], [-2.0, 0.3], [0.1, 4.0]], dtype=DOUBLE)
Z = torch.tensor([[0.5, 0.5], [3.0, -1.0]], dtype=DOUBLE)


def arc_cosine(x: Tensor, depth: int, weight: float, bias: float) -> Tensor:
    """Cho and Saul 2009, order 1: the kernel of ``depth`` hidden ReLU layers of infinite width.

    ``weight / fan_in`` and ``bias`` are the variances of every layer.
    """
    kernel = bias + weight * x @ x.T / x.shape[1]
    for _ in range(depth):
        size = kernel.diagonal().sqrt()
        angle = (kernel / size.outer(size)).clamp(-1, 1).acos()
        kernel = bias + weight / (2 * math.pi) * size.outer(size) * (
            angle.sin() + (math.pi - angle) * angle.cos()
        )
    return kernel


def relu(width: int, depth: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for size in [2] + [width] * (depth - 1):
        layers += [nn.Linear(size, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 1)).double()


def scaled_prior(network: nn.Sequential, weight: float, bias: float) -> sb.PerParameter:
    priors = {f"{i}.weight": sb.Normal((weight / m.in_features) ** 0.5)
              for i, m in enumerate(network) if isinstance(m, nn.Linear)}  # fmt: skip
    return sb.PerParameter({**priors, "*.bias": sb.Normal(bias**0.5)})


@pytest.mark.parametrize("depth", [1, 2])
def test_a_wide_relu_networks_kernel_is_the_arc_cosine_recursion(depth):
    network = relu(200, depth)
    found = nngp(network, scaled_prior(network, 1.7, 0.4), X, draws=1000, seed=1)
    exact = arc_cosine(X, depth, 1.7, 0.4)
    near = 4.5 * found.standard_error[0]  # 6 distinct numbers: false alarm 4e-5
    assert ((found.kernel[0] - exact).abs() < near + 0.01 * exact.abs()).all()  # 1 / width
    # without 1 / fan_in, the bias twice, or one layer fewer
    for wrong in (
        arc_cosine(X, depth, 3.4, 0.4),
        arc_cosine(X, depth, 1.7, 1.6),
        arc_cosine(X, depth + 1, 1.7, 0.4),
    ):
        assert not ((found.kernel[0] - wrong).abs() < near + 0.01 * exact.abs()).all()


@pytest.mark.parametrize(
    ("prior", "variance"),
    [
        (sb.Normal(0.7), 0.49),
        (sb.Laplace(0.7), 0.98),
        (sb.ScaleMixture(0.25, 2.0, 0.1), 0.25 * 4 + 0.75 * 0.01),
    ],
)
def test_a_linear_models_kernel_is_its_inputs_products_times_the_priors_variance(prior, variance):
    network = nn.Linear(2, 3).double()
    found = nngp(network, prior, X, Z, draws=4000)
    assert found.kernel.shape == (3, 3, 2)
    exact = variance * (X @ Z.T + 1)
    assert ((found.kernel - exact).abs() < 4.5 * found.standard_error).all()  # 18 numbers: false alarm 1e-4
    assert not ((found.kernel - variance * X @ Z.T).abs() < 4.5 * found.standard_error).all()  # no bias


def test_the_standard_error_is_that_of_repeated_estimates():
    network = relu(8, 1)
    estimates = [nngp(network, sb.Normal(1.0), X, draws=50, seed=seed) for seed in range(120)]
    spread = torch.stack([each.kernel for each in estimates]).std(0)
    told = torch.stack([each.standard_error.square() for each in estimates]).mean(0).sqrt()
    assert ((spread / told - 1).abs() < 0.35).all()  # products of heavy tails; a factor sqrt(50) is far off


def test_parts_of_the_inputs_have_the_same_functions(monkeypatch):
    network = relu(8, 1)
    whole = nngp(network, sb.Normal(1.0), torch.cat([X, Z]), draws=40).kernel
    assert torch.allclose(nngp(network, sb.Normal(1.0), X, Z, draws=40).kernel, whole[:, :3, 3:])
    assert torch.linalg.eigvalsh(whole[0])[0] > -1e-10 * whole.max()
    monkeypatch.setattr(prior_covariance, "_ROWS", 2)
    assert torch.allclose(nngp(network, sb.Normal(1.0), X, Z, draws=40).kernel, whole[:, :3, 3:])


def test_frozen_parameters_and_gains_stay_as_they_are():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 4), nn.LayerNorm(4), nn.Linear(4, 1, bias=False)).double()
    network[0].requires_grad_(False)
    found = nngp(network, sb.Normal(1.0), X, draws=4000)
    hidden = network[:2](X)
    assert ((found.kernel[0] - hidden @ hidden.T).abs() < 4.5 * found.standard_error[0]).all()


def test_the_global_random_state_is_untouched_and_the_seed_counts():
    network = nn.Linear(2, 1)
    state = torch.get_rng_state()
    one, two, other = (nngp(network, sb.Normal(1.0), X, draws=5, seed=seed).kernel for seed in (0, 0, 1))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(ValueError, match="at least 2 draws"):
        nngp(network, sb.Normal(1.0), X, draws=1)
