"""MCLMC on networks: the contract, and the exact posterior of a regression."""

import math

import pytest
import torch
from torch import nn

import singularbayes as sb
from singularbayes.testing import CLAUSES, check_method

# methods.md 9: conjugate regression with a bias, prior variance 1, noise variance .25
X = torch.tensor([[-1.0], [-0.5], [0.5], [1.5], [2.0], [3.0]], dtype=torch.float64)
Y = torch.tensor([-1.1, -1.0, 0.2, 0.9, 1.4, 2.3], dtype=torch.float64)
MEAN = torch.tensor([0.853125, -0.31875], dtype=torch.float64)  # weight, bias
COVARIANCE = torch.tensor([[0.020559, -0.018092], [-0.018092, 0.055921]], dtype=torch.float64)


def network_of(kind: str) -> nn.Module:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    return network if kind == "full rank" else sb.factorize(network, rank=2)


DATA, LABELS = torch.randn(40, 4, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 3


@pytest.mark.parametrize("kind", ["full rank", "low rank"])
def test_it_keeps_the_contract(kind):
    method = sb.MCLMC(chains=2, warm_up=5, draws=4)
    options = {"network": network_of(kind), "likelihood": sb.Categorical(), "data": (DATA, LABELS)}
    assert check_method(method, **options) == list(CLAUSES)


def test_it_reaches_the_exact_posterior_of_a_regression():
    """128 chains at v = 1e-5, bias below 1%: 5 numbers within 4 standard errors and 1%, false alarm 3e-4."""
    model = sb.Model(nn.Linear(1, 1).double(), sb.Gaussian(noise=0.5))
    method = sb.MCLMC(chains=128, warm_up=150, draws=100, energy_variance=1e-5)
    posterior = method.fit(model, (X, Y), progress=False)
    chains = posterior.distribution.draws.reshape(100, 128, -1)[..., :2].transpose(0, 1)
    gap = chains - MEAN
    products = torch.einsum("cni,cnj->cnij", gap, gap)[..., *torch.tril_indices(2, 2)]
    found = torch.cat([gap, products], -1).mean(1)
    right = torch.cat([torch.zeros(2, dtype=torch.float64), COVARIANCE[*torch.tril_indices(2, 2)]])
    size = torch.cat([COVARIANCE.diagonal().sqrt(), COVARIANCE[*torch.tril_indices(2, 2)].abs()])
    error = found.std(0) / math.sqrt(128)
    assert ((found.mean(0) - right).abs() < 4 * error + 0.01 * size).all()
    assert (error < 0.12 * size).all()
    assert posterior.info["gradients"] == [2 * 250] * 128  # warm-up counts
