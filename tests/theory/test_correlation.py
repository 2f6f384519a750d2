"""Covariance of W = A B^T in closed form against constants, brute force and draws."""

import pytest
import torch

from singularbayes.theory import weight_correlation, weight_covariance

MEAN_A = torch.tensor([[1.0, 0.5], [-0.5, 2.0]], dtype=torch.float64)
STD_A = torch.tensor([[0.1, 0.2], [0.3, 0.4]], dtype=torch.float64)
MEAN_B = torch.tensor([[0.5, -1.0], [1.5, 0.25], [0.0, 1.0]], dtype=torch.float64)
STD_B = torch.tensor([[0.2, 0.1], [0.3, 0.2], [0.5, 0.1]], dtype=torch.float64)
FACTORS = (MEAN_A, STD_A, MEAN_B, STD_B)


def test_variances_are_the_published_constants():
    variance = weight_covariance(*FACTORS).diagonal().reshape(2, 3)
    expected = torch.tensor([[0.0858, 0.1275, 0.2954], [0.2377, 0.4095, 0.2866]], dtype=torch.float64)
    torch.testing.assert_close(variance, expected, atol=5e-5, rtol=0)


def test_covariances_within_a_row_and_a_column_are_the_published_constants():
    covariance = weight_covariance(*FACTORS)
    assert covariance[0, 1].item() == pytest.approx(-0.0025, abs=1e-12)
    assert covariance[0, 3].item() == pytest.approx(-0.01, abs=1e-12)


def test_entries_of_another_row_and_column_are_exactly_uncorrelated():
    covariance = weight_covariance(*FACTORS).reshape(2, 3, 2, 3)
    for i in range(2):
        for j in range(3):
            for k in range(2):
                for m in range(3):
                    if i != k and j != m:
                        assert covariance[i, j, k, m].item() == 0


def _sampled(n: int = 400_000) -> torch.Tensor:
    source = torch.Generator().manual_seed(0)
    a = MEAN_A + STD_A * torch.randn(n, 2, 2, generator=source, dtype=torch.float64)
    b = MEAN_B + STD_B * torch.randn(n, 3, 2, generator=source, dtype=torch.float64)
    return (a @ b.mT).reshape(n, -1)


def _largest_z(covariance: torch.Tensor) -> float:
    """Largest distance from the sample covariance in standard errors (delta method, fourth moments)."""
    w = _sampled()
    w = w - w.mean(0)
    products = torch.einsum("ni,nj->nij", w, w)
    error = products.std(0) / len(w) ** 0.5
    return ((products.mean(0) - covariance).abs() / error).max().item()


def test_the_closed_form_agrees_with_draws_and_mutants_do_not():
    # 21 distinct entries at 4.5 standard errors: a false alarm in about 1 of 7,000 seeds
    covariance = weight_covariance(*FACTORS)
    assert _largest_z(covariance) < 4.5
    assert (
        _largest_z(weight_covariance(MEAN_A, STD_A, MEAN_B, STD_B.flip(1))) > 20
    )  # factors' columns swapped
    assert _largest_z(weight_covariance(MEAN_A, STD_A.square(), MEAN_B, STD_B)) > 20  # variance for std
    diagonal_lost = covariance - torch.diag(torch.einsum("ik,jk->ij", STD_A**2, STD_B**2).flatten())
    assert _largest_z(diagonal_lost) > 20


def test_correlation_has_unit_diagonal_and_survives_entries_without_variance():
    zero = torch.zeros_like(STD_A)
    correlation = weight_correlation(MEAN_A, zero, MEAN_B, torch.zeros_like(STD_B))
    torch.testing.assert_close(correlation, torch.eye(6, dtype=torch.float64))
    assert weight_correlation(*FACTORS).diagonal().eq(1).all()


def test_covariance_is_positive_semidefinite():
    assert torch.linalg.eigvalsh(weight_covariance(*FACTORS)).min() > -1e-12
