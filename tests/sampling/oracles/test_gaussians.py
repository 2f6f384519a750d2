"""HMC and NUTS on correlated Gaussians of condition 1000, and two mutants that must not pass.

Means and mean squares of every coordinate and along every eigenvector within 4 standard errors, and chains
that agree (R-hat 1.05). In 2 and 20 dimensions a right sampler fails one of the 88 comparisons of a method by
chance in .6% of worlds; in 200 dimensions, one of 800 in 5%. Moves are short to save time.
"""

import warnings

import pytest
import torch
from reference_posteriors import Comparison, CorrelatedGaussian, compare, correlated_gaussian
from torch import Tensor

import singularbayes as sb
from singularbayes.sampling import ChainsStuck
from singularbayes.sampling.mass import DiagonalMetric

pytestmark = pytest.mark.usefixtures("unchecked")  # annotations take most of the time otherwise
SHORT = {"HMC": {"max_steps": 32}, "NUTS": {"max_depth": 5}}
METHODS = pytest.mark.parametrize("method", SHORT)


def settings(method: str, draws: int) -> object:
    return getattr(sb, method)(warm_up=120, draws=draws, **SHORT[method])


def drawn(target: CorrelatedGaussian, log_density: object, method: object, chains: int = 16) -> Comparison:
    start = target.start(chains, torch.Generator().manual_seed(1))
    samples = sb.sample(log_density, start, method, seed=0, progress=False)
    return compare(target.values(samples.draws), target.expectations())


@METHODS
@pytest.mark.parametrize("dimension", [2, 20, pytest.param(200, marks=pytest.mark.slow)])
def test_moments_are_those_of_the_gaussian(method: str, dimension: int) -> None:
    target = correlated_gaussian(dimension)
    chosen = settings(method, 250) if dimension < 200 else getattr(sb, method)(warm_up=400, draws=300)
    found = drawn(target, target.log_density, chosen)
    assert found.agrees, (found.worst_mean, found.worst_square, found.r_hat.max())


def agrees(target: CorrelatedGaussian, log_density: object, method: object) -> bool:
    """Whether a mutant passes the same check; it may say itself that it is stuck."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return drawn(target, log_density, method).agrees
        except ChainsStuck:
            return False


@METHODS
def test_momentum_pushed_up_the_energy_does_not_pass(method: str) -> None:
    """The gradient reversed, the energy right: peers' sketches had ``p += eps grad U``."""
    target = correlated_gaussian(2)

    def reversed_gradient(x: Tensor) -> Tensor:
        value = target.log_density(x)
        return 2 * value.detach() - value

    assert not agrees(target, reversed_gradient, settings(method, 100))


@METHODS
def test_acceptance_without_kinetic_energy_does_not_pass(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = correlated_gaussian(2)
    monkeypatch.setattr(DiagonalMetric, "kinetic", lambda self, momentum: momentum[:, 0].double() * 0)
    assert not agrees(target, target.log_density, settings(method, 100))


def test_a_tempered_density_does_not_pass() -> None:
    target = correlated_gaussian(2)
    assert not agrees(target, lambda x: 0.5 * target.log_density(x), settings("HMC", 150))
