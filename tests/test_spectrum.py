"""Singular values, energy, ranks of several kinds, decay."""

import math

import numpy as np
import pytest
import torch

from singularbayes import spectrum


def matrix(*values: float, sides: tuple[int, int] = (7, 5), seed: int = 0) -> torch.Tensor:
    """A matrix of these singular values, with random singular vectors."""
    source = torch.Generator().manual_seed(seed)
    u, v = (torch.linalg.qr(torch.randn(n, n, generator=source, dtype=torch.float64))[0] for n in sides)
    return u[:, : len(values)] * torch.tensor(values, dtype=torch.float64) @ v[:, : len(values)].T


def test_values_are_those_of_a_dense_decomposition_at_bad_scales():
    scaled = matrix(3.0, 2.0, 1.0, 0.5, 0.1) * torch.logspace(-3, 3, 5, dtype=torch.float64)
    expected = np.linalg.svd(scaled.numpy(), compute_uv=False)
    torch.testing.assert_close(spectrum.values(scaled), torch.from_numpy(expected), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_what_is_below_the_rounding_of_the_matrix_is_zero(dtype):
    found = spectrum.values(matrix(4.0, 2.5, 1.2).to(dtype))
    assert found.dtype == torch.float64
    assert spectrum.numerical_rank(found) == 3
    assert found[3:].eq(0).all()


def test_the_effective_rank_of_a_covariance_is_the_published_constant():
    covariance = torch.diag(torch.tensor([4.0, 1.0, 1.0]))
    assert spectrum.effective_rank(spectrum.values(covariance)) == 2.0
    rotated = matrix(4.0, 1.0, 1.0, sides=(3, 3))
    assert spectrum.effective_rank(spectrum.values(rotated)) == pytest.approx(2.0, rel=1e-12)
    # the number of nonzero eigenvalues, the usual mistake, is 3
    assert spectrum.numerical_rank(spectrum.values(covariance)) == 3


def test_ranks_are_those_of_the_formulas_and_do_not_depend_on_the_scale():
    values = torch.tensor([5.0, 3.0, 0.5], dtype=torch.float64)
    for scale in (1e-200, 1.0, 1e200):  # squares would be 0 or infinite
        assert spectrum.stable_rank(scale * values) == pytest.approx((25 + 9 + 0.25) / 25, rel=1e-12)
        assert spectrum.effective_rank(scale * values) == pytest.approx(8.5**2 / 34.25, rel=1e-12)
    assert spectrum.stable_rank(values) <= spectrum.effective_rank(values) <= 3


def test_equal_values_have_their_number_as_every_rank_and_no_decay():
    values = torch.ones(6, dtype=torch.float64)
    assert (
        spectrum.effective_rank(values)
        == spectrum.stable_rank(values)
        == spectrum.numerical_rank(values)
        == 6
    )
    assert spectrum.decay(values) == pytest.approx(0.0, abs=1e-12)


def test_a_matrix_of_zeros_has_rank_zero_and_keeps_everything():
    values = spectrum.values(torch.zeros(4, 3))
    assert (
        spectrum.effective_rank(values)
        == spectrum.stable_rank(values)
        == spectrum.numerical_rank(values)
        == 0
    )
    assert spectrum.share_kept(spectrum.energy(values), 1) == 1.0
    assert math.isnan(spectrum.decay(values))


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_decay_is_the_power_of_a_power_law_scaled_and_cut_anyhow(power):
    values = 7.0 / torch.arange(1, 41, dtype=torch.float64) ** power
    assert spectrum.decay(values) == pytest.approx(power, rel=1e-9)
    assert spectrum.decay(torch.cat([values, torch.zeros(5)])) == pytest.approx(power, rel=1e-9)


def test_what_has_no_spectrum_is_refused():
    with pytest.raises(ValueError, match="no entries"):
        spectrum.values(torch.zeros(0, 3))
    with pytest.raises(ValueError, match="not finite"):
        spectrum.values(torch.tensor([[1.0, math.nan]]))
    for rank in (spectrum.effective_rank, spectrum.stable_rank):
        with pytest.raises(ValueError, match=r"0 or positive, got -0.5"):
            rank(torch.tensor([1.0, -0.5]))


def test_the_truncated_matrix_leaves_out_what_its_spectrum_says():
    whole = matrix(3.0, 2.0, 1.0, 0.5) * torch.logspace(-1, 1, 5, dtype=torch.float64)
    found = spectrum.values(whole)
    for rank in range(1, 6):
        rest = whole - spectrum.truncated(whole, rank)
        frobenius, spectral = spectrum.left_out(found, rank)
        assert rest.norm().item() == pytest.approx(frobenius, rel=1e-9, abs=1e-12)
        assert torch.linalg.matrix_norm(rest, 2).item() == pytest.approx(spectral, rel=1e-9, abs=1e-12)
