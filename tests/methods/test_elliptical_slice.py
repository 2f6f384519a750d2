"""Elliptical slice sampling against the exact posterior of a Gaussian likelihood; wrong ones must fail."""

import inspect
import math

import pytest
import torch

import singularbayes as sb
from singularbayes.methods import elliptical_slice as module

CHAINS, DRAWS, TEMPERATURE = 64, 150, 4.0
# correlated and badly scaled, centred away from the prior's mean
ROOT = torch.tensor([[3.0, 0.0, 0.0], [-6.0, 1.0, 0.0], [0.5, 0.2, 0.1]], dtype=torch.float64)
PRECISION = ROOT @ ROOT.T
CENTER = torch.tensor([0.5, -0.8, 2.0], dtype=torch.float64)


def log_likelihood(z: torch.Tensor) -> torch.Tensor:
    gap = z - CENTER
    return -0.5 * torch.einsum("si,ij,sj->s", gap, PRECISION, gap)


def exact() -> tuple[torch.Tensor, torch.Tensor]:
    tempered = PRECISION / TEMPERATURE
    covariance = torch.linalg.inv(tempered + torch.eye(3, dtype=torch.float64))
    return covariance @ tempered @ CENTER, covariance


def worst_gap(step=None, temperature: float = TEMPERATURE) -> float:
    """Largest gap of mean and covariance in standard errors, which come from the independent chains' own."""
    kept = module.elliptical_slice
    module.elliptical_slice = step or kept
    try:
        method = sb.EllipticalSlice(draws=CHAINS * DRAWS, chains=CHAINS, burn_in=30, temperature=temperature)
        start = torch.zeros(CHAINS, 3, dtype=torch.float64)
        draws, seen = method.sample(log_likelihood, start, seed=1)
    finally:
        module.elliptical_slice = kept
    assert seen >= CHAINS * (DRAWS + 30)
    mean, covariance = exact()
    gaps = draws - mean
    products = torch.einsum("cni,cnj->cnij", gaps, gaps)[..., *torch.tril_indices(3, 3)]
    found = torch.cat([draws, products], -1).mean(1)  # one row a chain: autocorrelation is inside
    right = torch.cat([mean, covariance[*torch.tril_indices(3, 3)]])
    return ((found.mean(0) - right).abs() / (found.std(0) / math.sqrt(CHAINS))).max().item()


def test_draws_have_the_exact_mean_and_covariance():
    """9 numbers within 4 standard errors: false alarm 6e-4."""
    assert worst_gap() < 4


WRONG = {
    "the bracket lies on one side of 0": (
        "low, high = angle - 2 * math.pi, angle.clone()",
        "low, high = torch.zeros_like(angle), angle.clone()",
    ),
    "the angle is halved, not drawn in the bracket": (
        "low[active] + (high[active] - low[active]) * uniform(len(active))",
        "a / 2",
    ),
    "the prior is wider": ("around = torch.randn(", "around = 1.3 * torch.randn("),
    "no slice: every proposal is taken": (
        "taken = values >= threshold[active]",
        "taken = values > -math.inf",
    ),
    "the slice lies too high": ("torch.log(1 - uniform(len(z)))", "torch.log(1 - uniform(len(z)) / 4)"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_step_is_found(name):
    source, (right, wrong) = inspect.getsource(module.elliptical_slice), WRONG[name]
    assert right in source
    space = dict(vars(module))
    exec(source.replace(right, wrong), space)
    assert worst_gap(space["elliptical_slice"]) > 4


def test_a_missing_temperature_is_found():
    assert worst_gap(temperature=1.0) > 4


def test_nan_is_no_likelihood():
    """A region where the likelihood is nan is never entered, and the rest is sampled."""

    def broken(z):
        return torch.where(z[:, 0] > 0, 0.0, math.nan)

    start = torch.ones(8, 2, dtype=torch.float64)
    draws, _ = sb.EllipticalSlice(draws=800, chains=8).sample(broken, start, seed=0)
    assert (draws[..., 0] > 0).all()
    # the half-normal's mean, 100 draws a chain: within 4 standard errors of the chains' means (1e-4)
    means = draws[..., 0].mean(1)
    assert abs(means.mean() - math.sqrt(2 / math.pi)) < 4 * means.std() / math.sqrt(8)


def test_a_closed_bracket_is_the_end_of_a_step():
    """The present point, looked at anew, may fall below the slice by rounding: the chain stays there."""

    def rounded(z):
        calls.append(len(z))
        assert len(calls) < 500, "the bracket has closed, and goes on"
        return torch.full((len(z),), -1e-6, dtype=torch.float64)

    calls, start = [], torch.randn(4, 2, dtype=torch.float64)
    source = torch.Generator().manual_seed(0)
    level = torch.full((4,), 10.0, dtype=torch.float64)  # above everything, so that no point is on the slice
    z, kept, seen = module.elliptical_slice(rounded, start, level, source)
    assert torch.equal(z, start)
    assert torch.equal(kept, level)
    assert seen == sum(calls)


def test_a_start_without_likelihood_is_an_error():
    start = torch.zeros(4, 2, dtype=torch.float64)
    with pytest.raises(ValueError, match="the log likelihood at the start of chain 0 is nan"):
        sb.EllipticalSlice().sample(lambda z: z[:, 0] * math.nan, start, seed=0)


def test_thinned_draws_are_every_so_manyth():
    start = torch.zeros(2, 3, dtype=torch.float64)
    fine, _ = sb.EllipticalSlice(draws=24, chains=2, burn_in=5).sample(log_likelihood, start, seed=3)
    coarse, _ = sb.EllipticalSlice(draws=8, chains=2, burn_in=5, thin=3).sample(log_likelihood, start, seed=3)
    assert torch.equal(coarse, fine[:, 2::3])


def test_settings_are_checked():
    with pytest.raises(
        ValueError, match="draws must be a multiple of chains, got 10 and 4; the nearest above is 12"
    ):
        sb.EllipticalSlice(draws=10, chains=4)
    with pytest.raises(ValueError, match="temperature must be positive and finite, got 0"):
        sb.EllipticalSlice(temperature=0)
    with pytest.raises(ValueError, match="thin must be a whole number"):
        sb.EllipticalSlice(thin=0)
