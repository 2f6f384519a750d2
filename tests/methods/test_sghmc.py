"""SGHMC on networks: the contract, the exact posterior of a regression; wrong scales must fail."""

import math

import pytest
import torch
from torch import nn

import singularbayes as sb
from singularbayes.methods.network_density import NetworkDensity
from singularbayes.testing import CLAUSES, check_method

# methods.md 9: conjugate regression with a bias, prior variance 1, noise variance .25
X = torch.tensor([[-1.0], [-0.5], [0.5], [1.5], [2.0], [3.0]], dtype=torch.float64)
Y = torch.tensor([-1.1, -1.0, 0.2, 0.9, 1.4, 2.3], dtype=torch.float64)
MEAN = torch.tensor([0.853125, -0.31875], dtype=torch.float64)  # weight, bias
COVARIANCE = torch.tensor([[0.020559, -0.018092], [-0.018092, 0.055921]], dtype=torch.float64)
LOWER = torch.tril_indices(2, 2)


def network_of(kind: str) -> nn.Module:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    return network if kind == "full rank" else sb.factorize(network, rank=2)


DATA, LABELS = torch.randn(40, 4, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 3


@pytest.mark.parametrize(("kind", "batch"), [("full rank", None), ("full rank", 16), ("low rank", 16)])
def test_it_keeps_the_contract(kind, batch):
    method = sb.SGHMC(chains=2, warm_up=3, draws=4, step_size=0.01, batch_size=batch)
    options = {"network": network_of(kind), "likelihood": sb.Categorical(), "data": (DATA, LABELS)}
    assert check_method(method, **options) == list(CLAUSES)


def gaps(**settings) -> tuple[torch.Tensor, torch.Tensor]:
    """Gaps of the 5 moments and their standard errors, in units of the moments; 128 chains."""
    model = sb.Model(nn.Linear(1, 1).double(), sb.Gaussian(noise=0.5))
    settings = {"chains": 128, "warm_up": 60, "draws": 100, "step_size": 0.1, "friction": 3.0} | settings
    method = sb.SGHMC(**settings)
    posterior = method.fit(model, (X, Y), progress=False)
    chains = posterior.distribution.draws.reshape(method.draws, 128, -1)[..., :2].transpose(0, 1)
    gap = chains - MEAN
    products = torch.einsum("cni,cnj->cnij", gap, gap)[..., *LOWER]
    found = torch.cat([gap, products], -1).mean(1)
    right = torch.cat([torch.zeros(2, dtype=torch.float64), COVARIANCE[*LOWER]])
    size = torch.cat([COVARIANCE.diagonal().sqrt(), COVARIANCE[*LOWER].abs()])
    return (found.mean(0) - right) / size, found.std(0) / math.sqrt(128) / size


def test_it_reaches_the_exact_posterior_of_a_regression():
    """5 numbers within 4 standard errors: false alarm 3e-4."""
    gap, error = gaps()
    assert (gap.abs() < 4 * error).all()
    assert (error < 0.1).all()


WRONG = {
    "the mean of the likelihood in place of the sum": 1 / 6,
    "the gradient of another temperature": 0.5,
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_scale_of_the_likelihood_is_found(name, monkeypatch):
    right = NetworkDensity._log_likelihood

    def wrong(self, outputs, y, weight):
        return right(self, outputs, y, weight * WRONG[name])

    monkeypatch.setattr(NetworkDensity, "_log_likelihood", wrong)
    gap, error = gaps()
    assert (gap.abs() > 8 * error).any()


def test_momentum_pushed_up_the_energy_is_found(monkeypatch):
    """The chains run away until every step is taken back."""
    right = NetworkDensity.__call__

    def wrong(self, position):
        value, gradient = right(self, position)
        return value, -gradient

    monkeypatch.setattr(NetworkDensity, "__call__", wrong)
    with pytest.warns(UserWarning, match=r"divergent|never accepted|acceptance"):
        gap, error = gaps()
    assert (gap.abs() > 8 * error).any()


def test_minibatches_bias_it_and_less_so_with_smaller_steps():
    """Batches of 3 of 6: the weight's variance 50% too large at h = .1, less than half of it at h = .025."""
    large, _ = gaps(batch_size=3)
    small, error = gaps(batch_size=3, step_size=0.025, warm_up=150, draws=300)
    assert large[2] > 0.35
    assert error[2] < 0.05
    assert small[2] < 0.5 * large[2]


def test_draws_of_cycles_are_kept_at_their_ends():
    cycle = sb.Cyclical(largest=0.2, period=10)
    method = sb.SGHMC(warm_up=20, draws=3, thin=10, step_size=cycle)
    assert method.sampler().step_sizes == cycle
    for wrong in ({"warm_up": 25}, {"thin": 1}):
        with pytest.raises(ValueError, match="must be a multiple of the cycle's period 10"):
            sb.SGHMC(**({"warm_up": 20, "thin": 10, "step_size": cycle} | wrong))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"step_size": 0.0}, "size must be positive"),
        ({"friction": -1.0}, "friction must be positive"),
        ({"batch_size": 0}, "batch_size must be a whole number"),
        ({"estimate_noise": True}, "give a batch_size"),
        ({"estimate_noise": True, "batch_size": 2, "warm_up": 0}, "learns in warm-up"),
    ],
)
def test_settings_that_cannot_be_are_errors(wrong, message):
    with pytest.raises(ValueError, match=message):
        sb.SGHMC(**wrong)
