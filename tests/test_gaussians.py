"""Covariances that join entries: draws against the dense covariance, files, bad shapes."""

import dataclasses

import pytest
import torch

from singularbayes import distributions
from singularbayes.gaussians import FullGaussian, KroneckerGaussian

DRAWS = 40_000


def full() -> FullGaussian:
    factor = torch.tensor([[2.0, 0.0, 0.0], [-1.5, 0.3, 0.0], [40.0, 3.0, 5.0]], dtype=torch.float64)
    mean = torch.tensor([1.0, -2.0, 3.0, 0.5, 7.0], dtype=torch.float64)
    return FullGaussian(mean, factor, torch.tensor([3, 0, 4]))


def kronecker(k: int = 2) -> KroneckerGaussian:
    source = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=source, dtype=torch.float64)

    size = 6 + 2 + 4 + 1
    blocks = torch.tensor([[8, 4, 1], [0, 2, 3]])  # entries 6, 7 and 12 belong to none
    std = normal(size).abs() * torch.logspace(-1, 1, size, dtype=torch.float64)
    std[12] = 0
    factor = normal(size, k)
    factor[12] = 0
    left, right = (torch.cat([normal(s, s).flatten() for s in sides]) for sides in ((4, 2), (1, 3)))
    return KroneckerGaussian(normal(size), std, blocks, left, right, factor)


def dense(gaussian: FullGaussian | KroneckerGaussian) -> torch.Tensor:
    """The covariance entry by entry."""
    size = gaussian.size
    covariance = torch.zeros(size, size, dtype=torch.float64)
    if isinstance(gaussian, FullGaussian):
        for a, i in enumerate(gaussian.positions.tolist()):
            for b, j in enumerate(gaussian.positions.tolist()):
                covariance[i, j] = sum(gaussian.factor[a, c] * gaussian.factor[b, c] for c in range(3))
        return covariance
    covariance += torch.diag(gaussian.std**2)
    p = q = 0
    for start, m, n in gaussian.blocks.tolist():
        L, R = gaussian.left[p : p + m * m].view(m, m), gaussian.right[q : q + n * n].view(n, n)
        p, q = p + m * m, q + n * n
        both = torch.kron(L, R) @ torch.diag(gaussian.std[start : start + m * n])
        covariance[start : start + m * n, start : start + m * n] = both @ both.T
    return covariance + gaussian.factor @ gaussian.factor.T


def drawn(gaussian: FullGaussian | KroneckerGaussian) -> torch.Tensor:
    noise = torch.randn(
        DRAWS, gaussian.noise_size, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    return gaussian.sample(noise)


def worst(rows: torch.Tensor, gaussian: FullGaussian | KroneckerGaussian) -> float:
    """Largest error of the covariance in standard errors: of 91 entries one passes 4 in 170 runs."""
    exact = dense(gaussian)
    seen = (rows - gaussian.mean).T @ (rows - gaussian.mean) / len(rows)
    variance = exact.diagonal()
    error = ((variance[:, None] * variance + exact.square()) / len(rows)).sqrt()
    return ((seen - exact).abs() / error.clamp_min(1e-12)).max().item()


@pytest.mark.parametrize(
    "gaussian", [full(), kronecker(), kronecker(0)], ids=["full", "kronecker", "no factor"]
)
def test_draws_have_the_dense_covariance(gaussian: FullGaussian | KroneckerGaussian) -> None:
    assert torch.allclose(gaussian.variance, dense(gaussian).diagonal(), rtol=1e-12)
    assert worst(drawn(gaussian), gaussian) < 4


def test_a_transposed_factor_has_another_covariance() -> None:
    wrong = dataclasses.replace(full(), factor=full().factor.T.contiguous())
    assert worst(drawn(wrong), full()) > 40


def test_transposed_sides_have_another_covariance() -> None:
    right = kronecker()
    first, second = right.left[:16].view(4, 4).T, right.left[16:].view(2, 2).T
    wrong = dataclasses.replace(right, left=torch.cat([first.flatten(), second.flatten()]))
    assert worst(drawn(wrong), right) > 40


@pytest.mark.parametrize("gaussian", [full(), kronecker()], ids=["full", "kronecker"])
def test_a_file_gives_it_back(gaussian: FullGaussian | KroneckerGaussian) -> None:
    again = distributions.rebuild(distributions.describe(gaussian), gaussian.tensors())
    assert torch.equal(drawn(again), drawn(gaussian))


def test_float32_noise_and_half_means_give_float32_rows() -> None:
    small = FullGaussian(torch.zeros(2).bfloat16(), torch.eye(2).bfloat16(), torch.arange(2))
    assert small.sample(torch.ones(3, 2)).dtype == torch.float32


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"positions": torch.tensor([0, 1])}, "2 positions need a factor"),
        ({"positions": torch.tensor([0, 1, 1])}, "named twice"),
        ({"positions": torch.tensor([0, 1, 5])}, r"must lie in 0\.\.4"),
    ],
)
def test_a_full_gaussian_refuses_what_does_not_fit(unchecked: None, change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(full(), **change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"std": torch.ones(3, dtype=torch.float64)}, "needs std"),
        ({"std": -torch.ones(13, dtype=torch.float64)}, "0 or positive"),
        ({"left": torch.ones(3, dtype=torch.float64)}, "need 20 and 10 entries"),
        ({"blocks": torch.tensor([[5, 4, 1], [0, 2, 3]])}, "overlaps another"),
        ({"blocks": torch.tensor([[10, 4, 1], [0, 2, 3]])}, "ends beyond 13"),
    ],
)
def test_a_kronecker_gaussian_refuses_what_does_not_fit(unchecked: None, change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(kronecker(), **change)
