"""Effective draws of single chains against a slow sum and the known value of an autoregression."""

import math

import pytest
import torch

from singularbayes.sampling.autocorrelation import effective_draws


def slow(chain: list[float]) -> float:
    """Geyer's initial monotone sequence, term by term."""
    n = len(chain)
    mean = sum(chain) / n
    x = [value - mean for value in chain]
    rho = [
        sum(x[i] * x[i + lag] for i in range(n - lag)) / sum(value * value for value in x) for lag in range(n)
    ]
    total, before = 0.0, math.inf
    for j in range(n // 2):
        pair = rho[2 * j] + rho[2 * j + 1]
        if pair <= 0:
            break
        before = min(before, pair)
        total += before
    return n / max(2 * total - 1, 1 / math.log10(n))


def autoregression(rho: float, n: int, seed: int = 0) -> torch.Tensor:
    noise = torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    values = [noise[0].item()]
    for z in noise[1:].tolist():
        values.append(rho * values[-1] + math.sqrt(1 - rho**2) * z)
    return torch.tensor(values, dtype=torch.float64)


def test_it_is_the_slow_sum():
    chains = torch.stack(
        [torch.stack([autoregression(rho, 51, 7 * c + k) for k, rho in enumerate((0.0, 0.9, -0.8))], 1)
         for c in range(2)]
    )  # fmt: skip
    found = effective_draws(chains)
    assert found.shape == (2, 3)
    for c in range(2):
        for k in range(3):
            assert found[c, k].item() == pytest.approx(slow(chains[c, :, k].tolist()), rel=1e-9)


@pytest.mark.parametrize("rho", [0.0, 0.9])
def test_an_autoregression_has_its_known_value(rho):
    """n (1 - rho) / (1 + rho); the estimate of 20,000 draws is good to some percent."""
    chain = autoregression(rho, 20_000).reshape(1, -1, 1)
    assert effective_draws(chain).item() == pytest.approx(20_000 * (1 - rho) / (1 + rho), rel=0.15)


def test_shift_and_scale_do_not_matter():
    chain = autoregression(0.5, 200).reshape(1, -1, 1)
    torch.testing.assert_close(effective_draws(1e6 + 1e-3 * chain), effective_draws(chain), rtol=1e-4, atol=0)


def test_a_coordinate_that_never_moved_is_nan():
    chain = torch.stack([torch.full((50,), 0.1), torch.randn(50)], 1).unsqueeze(0)
    found = effective_draws(chain)
    assert found[0, 0].isnan()
    assert found[0, 1] > 0


def test_too_few_draws_are_an_error():
    with pytest.raises(ValueError, match="at least 4 draws"):
        effective_draws(torch.zeros(1, 3, 1))
