"""Simulation-based calibration of a conjugate regression and of a network of five weights, right and wrong.

A right sampler fails a statistic with probability 6.3e-5; these tests look at 5 + 6 of them: 7e-4 in all.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import singularbayes as sb

from .calibration import ALPHA, Simulation, calibration, normal, p_value, ranks

METHOD = sb.HMC(warm_up=100, draws=63, thin=3, max_steps=32)
pytestmark = pytest.mark.usefixtures("unchecked")  # annotations take most of the time otherwise
Part = Callable[[Tensor], Tensor]


def simulated(
    truth: Tensor, predict: Part, noise: float, statistics: dict[str, Part], **wrong: float
) -> Simulation:
    """Prior N(0, 1) on all weights, Gaussian noise; ``predict`` takes ``(R, d)`` to ``(R, n)``.

    ``temperature`` of the likelihood and ``prior_std`` are right at 1; others are what a sampler must not do.
    """
    temperature, prior_std = wrong.get("temperature", 1.0), wrong.get("prior_std", 1.0)
    mean = predict(truth)
    seen = mean + noise * normal(*mean.shape, seed=3)

    def log_likelihood(w: Tensor) -> Tensor:
        return -0.5 * ((seen - predict(w)) / noise).square().sum(1)

    return Simulation(
        truth=truth,
        log_density=lambda w: log_likelihood(w) / temperature - 0.5 * (w / prior_std).square().sum(1),
        start=normal(*truth.shape, seed=4),
        statistics=statistics | {"log likelihood": log_likelihood},
    )


def regression(replications: int, **wrong: float) -> Simulation:
    """Three correlated columns, one of them a tenth of the others."""
    x = normal(8, 3, seed=1) @ torch.tensor([[1.0, 0.9, 0.0], [0.0, 0.4, 0.0], [0.5, 0.0, 0.1]]).double()
    return simulated(
        normal(replications, 3, seed=2),
        lambda w: w @ x.T,
        2.0,
        {f"w{i}": lambda w, i=i: w[:, i] for i in range(3)} | {"f": lambda w: w @ x.new_tensor([2.0, -1, 3])},
        **wrong,
    )


def network_outputs(w: Tensor, x: Tensor) -> Tensor:
    """``Linear(2, 1)``, tanh, ``Linear(1, 1)``: weights ``(R, 5)`` and inputs ``(n, 2)`` to ``(R, n)``."""
    return w[:, 3:4] * torch.tanh(w[:, :2] @ x.T + w[:, 2:3]) + w[:, 4:]


def network(replications: int, **wrong: float) -> Simulation:
    """Turning the signs of ``w0 .. w3`` changes no output: ranks are of what that symmetry leaves alone."""
    x, far = normal(12, 2, seed=1), torch.tensor([[0.0, 0.0], [1.0, -1.0], [4.0, 2.0]]).double()
    functions: dict[str, Part] = {f"f{i}": lambda w, i=i: network_outputs(w, far)[:, i] for i in range(3)}
    functions |= {"output bias": lambda w: w[:, 4], "slope": lambda w: w[:, 0] * w[:, 3]}
    return simulated(
        normal(replications, 5, seed=2), lambda w: network_outputs(w, x), 0.3, functions, **wrong
    )


@pytest.mark.parametrize("model", [regression, network])
def test_hmc_is_calibrated(model: Callable[..., Simulation]) -> None:
    found = calibration(model(500), METHOD)
    assert min(found.values()) > ALPHA, found


@pytest.mark.parametrize(
    ("model", "wrong"),
    [(regression, {"temperature": 0.5}), (regression, {"prior_std": 4.0}), (network, {"temperature": 0.5})],
)
@pytest.mark.filterwarnings("ignore:chain")  # they may be hard to sample, too
def test_a_wrong_posterior_is_found(model: Callable[..., Simulation], wrong: dict[str, float]) -> None:
    """A tempered likelihood; the prior of the simulation, but hardly one in the density."""
    found = calibration(model(200, **wrong), METHOD)
    assert min(found.values()) < ALPHA**2, found


def test_draws_from_the_prior_are_found_by_the_likelihood_alone() -> None:
    simulation = network(800)
    draws = torch.stack([normal(800, 5, seed=100 + n) for n in range(63)], 1)
    found = {name: p_value(rank, 63) for name, rank in ranks(simulation, draws).items()}
    assert found.pop("log likelihood") < ALPHA**2
    assert min(found.values()) > ALPHA


def test_ranks_of_exact_draws_are_uniform_and_of_shifted_ones_are_not() -> None:
    """Exact draws of the conjugate posterior, so that the harness is checked without a sampler."""
    simulation = regression(800)
    curvature = torch.autograd.functional.hessian(
        lambda w: -simulation.log_density(w.expand(800, 3))[0], torch.zeros(3).double()
    )
    point = torch.zeros(800, 3).double().requires_grad_()
    (slope,) = torch.autograd.grad(simulation.log_density(point).sum(), point)
    mean, root = slope @ torch.linalg.inv(curvature), torch.linalg.cholesky(torch.linalg.inv(curvature))
    draws = torch.stack([mean + normal(800, 3, seed=100 + n) @ root.T for n in range(63)], 1)
    right = {name: p_value(rank, 63) for name, rank in ranks(simulation, draws).items()}
    assert min(right.values()) > ALPHA
    shifted = ranks(simulation, draws + 0.3 * root.diagonal())
    assert min(p_value(rank, 63) for rank in shifted.values()) < ALPHA**2


def test_a_chain_in_one_of_two_symmetric_modes_has_uneven_ranks_of_weights() -> None:
    """Why ranks are of functions: half of the truths lie in the other mode, far from every draw."""
    draws = torch.stack([5 + normal(800, 1, seed=n) for n in range(63)], 1)
    truth = 5 + normal(800, 1, seed=99)
    truth[::2] *= -1
    sides = Simulation(
        truth=truth,
        log_density=lambda w: w[:, 0],
        start=truth,
        statistics={"w": lambda w: w[:, 0], "|w|": lambda w: w[:, 0].abs()},
    )
    found = {name: p_value(rank, 63) for name, rank in ranks(sides, draws).items()}
    assert found["w"] < ALPHA**2
    assert found["|w|"] > ALPHA


def test_p_values_of_uniform_ranks_are_spread_evenly() -> None:
    source = np.random.default_rng(0)
    found = [p_value(source.integers(0, 64, size=500), 63) for _ in range(200)]
    assert 0.01 < np.quantile(found, 0.05) < 0.12
    assert 0.4 < np.median(found) < 0.6
    with pytest.raises(ValueError, match="64 ranks do not fill 10 equal bins"):
        p_value(np.zeros(5, dtype=int), 63, bins=10)
