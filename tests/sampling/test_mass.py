"""Masses against dense linear algebra; moments against torch; momenta against their covariance."""

import pytest
import torch

from singularbayes.sampling import Point
from singularbayes.sampling.low_rank_mass import LowRankMass, LowRankMetric
from singularbayes.sampling.mass import DiagonalMass, DiagonalMetric, UnitMass, UnitMetric
from singularbayes.sampling.metric import Estimate, Mass, Metric

MASSES = [UnitMass(), DiagonalMass(), LowRankMass(rank=3)]


def points(rows, gradients=None):
    gradients = -rows if gradients is None else gradients
    return [
        Point(x, torch.zeros(len(x)), g) for x, g in zip(rows.unbind(1), gradients.unbind(1), strict=True)
    ]


def fitted(mass, rows, gradients=None, metric=None):
    seen = points(rows, gradients)
    estimate = mass.estimate(seen[0])
    for point in seen:
        estimate = estimate.add(point)
    return mass.fitted(estimate, mass.start(seen[0]) if metric is None else metric)


def low_rank(chains=2, d=5, k=2, dtype=torch.float64):
    source = torch.Generator().manual_seed(3)
    directions = torch.linalg.qr(torch.randn(chains, d, k, generator=source, dtype=dtype)).Q
    scale = torch.logspace(-2, 2, d, dtype=dtype).expand(chains, d)[:, torch.randperm(d, generator=source)]
    return LowRankMetric(scale, directions, torch.tensor([30.0, 0.04], dtype=dtype).expand(chains, k))


def dense_inverse_mass(metric):
    """Of the formulas, in full matrices, ``(C, d, d)``."""
    if isinstance(metric, UnitMetric):
        return torch.diag_embed(metric.ones)
    if isinstance(metric, DiagonalMetric):
        return torch.diag_embed(metric.inverse_mass)
    s, u, variances = metric.scale, metric.directions, metric.variances
    inner = torch.eye(s.shape[1], dtype=s.dtype) + u @ torch.diag_embed(variances - 1) @ u.mT
    return torch.diag_embed(s) @ inner @ torch.diag_embed(s)


METRICS = [
    UnitMetric(torch.ones(2, 5, dtype=torch.float64)),
    DiagonalMetric(torch.logspace(-4, 4, 10, dtype=torch.float64).view(2, 5)),
    low_rank(),
]


@pytest.mark.parametrize("metric", METRICS, ids=lambda m: type(m).__name__)
def test_velocity_and_kinetic_energy_are_those_of_the_dense_matrix(metric):
    p = torch.randn(2, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    inverse = dense_inverse_mass(metric)
    expected = (inverse @ p.unsqueeze(2)).squeeze(2)
    torch.testing.assert_close(metric.velocity(p), expected, rtol=1e-10, atol=0)
    torch.testing.assert_close(metric.kinetic(p), (p * expected).sum(1) / 2, rtol=1e-10, atol=0)
    facts = metric.facts()
    if facts:
        torch.testing.assert_close(facts["inverse_mass"], inverse.diagonal(dim1=1, dim2=2))
    second = metric.of(torch.tensor([1]))
    torch.testing.assert_close(second.velocity(p[1:]), expected[1:])


def whitened_error(metric, momenta, inverse):
    """Largest gap of the momenta's second moments from M, in standard errors, chain by chain."""
    factor = torch.linalg.cholesky(inverse)  # cov(L^T p) = L^T M L = I
    white = torch.einsum("ncd,cde->nce", momenta, factor)
    n, d = len(momenta), momenta.shape[2]
    moments = torch.einsum("nci,ncj->cij", white, white) / n
    eye = torch.eye(d, dtype=moments.dtype)
    return ((moments - eye).abs() / ((1 + eye) / n).sqrt()).max()


@pytest.mark.parametrize("metric", METRICS, ids=lambda m: type(m).__name__)
def test_momenta_have_the_covariance_of_the_mass(metric):
    # 4 standard errors, 2 chains x 15 moments: false alarm .2% (the seed is fixed). Momenta whose
    # covariance is the inverse of what it should be are off by hundreds of them.
    source = torch.Generator().manual_seed(5)
    momenta = torch.stack([metric.draw(source) for _ in range(4000)])
    inverse = dense_inverse_mass(metric)
    assert whitened_error(metric, momenta, inverse) < 4
    if not isinstance(metric, UnitMetric):
        wrong = torch.einsum("ncd,cde->nce", momenta, inverse)  # N(0, M^-1 M M^-1)
        assert whitened_error(metric, wrong, inverse) > 40


@pytest.mark.parametrize("mass", MASSES, ids=lambda m: type(m).__name__)
def test_masses_are_what_the_protocols_say_and_keep_the_dtype(mass):
    rows = torch.randn(2, 30, 4, generator=torch.Generator().manual_seed(0))
    seen = points(rows)
    assert isinstance(mass, Mass)
    assert isinstance(mass.estimate(seen[0]), Estimate)
    for metric in (mass.start(seen[0]), fitted(mass, rows)):
        assert isinstance(metric, Metric)
        assert metric.draw(torch.Generator().manual_seed(0)).dtype == torch.float32
        assert metric.velocity(rows[:, 0]).dtype == torch.float32
        assert metric.kinetic(rows[:, 0]).dtype == torch.float64


def test_the_diagonal_mass_is_the_shrunk_variance_of_each_chain():
    scale = torch.tensor([[1e-4, 1.0, 1e3], [2.0, 3.0, 1e-3]], dtype=torch.float64)
    rows = torch.randn(2, 40, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rows = rows * scale.unsqueeze(1) + 1e4  # a running sum of squares would cancel: 1e8 against 1e-8
    former = DiagonalMetric(2 * scale.square())
    steep = (
        -2 * (rows - 1e4) / scale.square().unsqueeze(1)
    )  # Var(x) Var(g) is 4: the gradients ask for no more
    got = fitted(DiagonalMass(), rows, steep, metric=former).inverse_mass
    expected = (40 * rows.var(1) + 5e-3 * former.inverse_mass) / 45
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=0)


def test_moments_do_not_cancel_where_the_mean_is_large():
    # float32 positions 4096 +- 1/2: E x^2 - (E x)^2 in float32 is 0 or 2
    rows = 4096 + torch.randn(1, 500, 2, generator=torch.Generator().manual_seed(1)).sign() / 2
    got = fitted(DiagonalMass(), rows, -8 * (rows - 4096)).inverse_mass
    torch.testing.assert_close(got, torch.full((1, 2), 0.25), rtol=0.03, atol=0)


def test_a_chain_that_has_seen_little_of_a_wide_coordinate_takes_its_variance_from_the_gradients():
    # N(0, 9000^2) from 40 positions around 5000 that spread by 300: their variance is 900 times too small.
    sd = torch.tensor([[9000.0, 0.5]], dtype=torch.float64)
    spread = torch.tensor([300.0, 0.5], dtype=torch.float64)
    rows = torch.randn(1, 40, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * spread
    rows[..., 0] += 5000
    former = DiagonalMetric(torch.tensor([[1e4, 1.0]], dtype=torch.float64))
    got = fitted(DiagonalMass(), rows, -rows / sd.square(), former)
    torch.testing.assert_close(got.inverse_mass, sd.square() * 40 / 45, rtol=0.3, atol=0)
    alone = fitted(DiagonalMass(), rows, -100 * rows, former)
    assert alone.inverse_mass[0, 0] < 2e5  # what the positions alone would say


def test_gradients_ask_for_a_bounded_growth_and_constant_ones_for_none():
    rows = torch.randn(1, 40, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    nearly = 1 + 1e-9 * rows  # a tail that is nearly exponential
    nearly[..., 1] = 1.0
    got = fitted(DiagonalMass(), rows, nearly).inverse_mass[0]
    torch.testing.assert_close(
        got[0], 1e4 * torch.tensor(40 / 45).double() * rows[0, :, 0].var().clamp(min=1), rtol=1e-5, atol=0
    )
    torch.testing.assert_close(got[1], (40 * rows[0, :, 1].var() + 5e-3) / 45, rtol=1e-6, atol=0)


@pytest.mark.parametrize("mass", MASSES, ids=lambda m: type(m).__name__)
def test_a_chain_that_stood_still_keeps_its_metric_and_the_other_learns(mass):
    rows = torch.randn(2, 30, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 7
    rows[0] = rows[0, :1]
    p = torch.ones(2, 4, dtype=torch.float64)
    velocity = fitted(mass, rows, -rows / 49).velocity(p)
    assert torch.equal(velocity[0], p[0])  # a variance of 0 is no infinite mass
    if mass.adapts:
        assert (velocity[1] > 10).all()


def test_a_gradient_that_is_not_finite_leaves_the_low_rank_metric_as_it_was():
    rows = torch.randn(2, 30, 4, generator=torch.Generator().manual_seed(0))
    gradients = -rows.clone()
    gradients[1, 7, 2] = float("nan")
    metric = fitted(LowRankMass(rank=2), 3 * rows, gradients)
    p = torch.ones(2, 4)
    assert torch.equal(metric.velocity(p)[1], p[1])
    torch.testing.assert_close(metric.scale[0], torch.full((4,), 3**0.5))
