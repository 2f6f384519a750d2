"""Chains whose answer is known, and chains that are hard to read."""

from collections.abc import Callable

import numpy as np
import pytest


def _autoregressive(chains: int, draws: int, phi: float, quantities: int = 1, seed: int = 0) -> np.ndarray:
    """AR(1), N(0, 1) at every step, ``(C, N, Q)``: the ESS of the mean tends to C N (1 - phi) / (1 + phi)."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((chains, draws, quantities))
    for t in range(1, draws):
        x[:, t] = phi * x[:, t - 1] + np.sqrt(1 - phi**2) * x[:, t]
    return x


@pytest.fixture
def autoregressive() -> Callable[..., np.ndarray]:
    return _autoregressive


@pytest.fixture
def problem() -> np.ndarray:
    """Badly scaled, correlated, heavy-tailed, draws repeated as rejections leave them: ``(5, 41, 6)``."""
    rng = np.random.default_rng(0)
    x = _autoregressive(5, 41, 0.5, 6) @ rng.standard_normal((6, 6)) * 10.0 ** np.arange(-3, 3)
    x[..., 1] = rng.standard_cauchy((5, 41))
    x[2, :, 2] += 0.02
    x[3, :, 3] *= 3
    stay = rng.random((5, 41)) < 0.4
    for t in range(1, 41):
        x[stay[:, t], t] = x[stay[:, t], t - 1]
    return x
