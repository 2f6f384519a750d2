"""The low-rank mass: exact where it can be, good from few draws, a window that thins."""

import pytest
import torch

from singularbayes.sampling import Point
from singularbayes.sampling.low_rank_mass import LowRankMass


def gaussian(d, variances, seed=0):
    """Covariance ``S (I + U (L - I) U^T) S`` with scales from .01 to 100."""
    source = torch.Generator().manual_seed(seed)
    u = torch.linalg.qr(torch.randn(d, len(variances), generator=source, dtype=torch.float64)).Q
    s = torch.logspace(-2, 2, d, dtype=torch.float64)[torch.randperm(d, generator=source)]
    inner = torch.eye(d, dtype=torch.float64) + u * (torch.tensor(variances).double() - 1) @ u.mT
    return s.unsqueeze(1) * inner * s


def fitted(mass, covariance, draws, seed=1):
    source = torch.Generator().manual_seed(seed)
    d = len(covariance)
    x = torch.randn(draws, 2, d, generator=source, dtype=torch.float64) @ torch.linalg.cholesky(covariance).mT
    g = -x @ torch.linalg.inv(covariance)
    seen = [Point(a, torch.zeros(2), b) for a, b in zip(x, g, strict=True)]
    window = mass.estimate(seen[0])
    for point in seen:
        window = window.add(point)
    return mass.fitted(window, mass.start(seen[0]))


def dense(metric, chain=0):
    d = metric.scale.shape[1]
    one = metric.of(torch.tensor([chain]))
    return torch.cat([one.velocity(row.unsqueeze(0)) for row in torch.eye(d, dtype=torch.float64)])


def condition(inverse_mass, covariance):
    """Of the target as the sampler sees it: ``L^T C^-1 L`` with ``L L^T = M^-1``; 1 is perfect."""
    root = torch.linalg.cholesky(inverse_mass)
    values = torch.linalg.eigvalsh(root.mT @ torch.linalg.inv(covariance) @ root)
    return (values[-1] / values[0]).item()


def test_at_full_rank_it_finds_the_covariance_of_a_gaussian_from_few_more_draws_than_dimensions():
    # Fisher's divergence is 0 there: the noise of the draws cancels, which no covariance of draws can do
    covariance = gaussian(6, [200.0, 0.005])
    metric = fitted(LowRankMass(rank=6), covariance, 60)
    got, scale = dense(metric), covariance.diagonal().sqrt()
    off = (got - covariance) / (scale * scale.unsqueeze(1))
    assert off.abs().max() < 0.1  # variances within a factor of 2 of the diagonal fit are left alone
    assert condition(got, covariance) < 2.1**2 < fitted_diagonal(covariance) / 100


def fitted_diagonal(covariance):
    """Condition under the best diagonal of draws, the true variances."""
    return condition(torch.diag(covariance.diagonal()), covariance)


@pytest.mark.parametrize("draws", [75, 250])
def test_few_strong_directions_in_200_dimensions_are_found_from_few_draws(draws):
    covariance = gaussian(200, [1e3, 1e2, 30, 1e-3, 1e-2, 1e-4])
    metric = fitted(LowRankMass(rank=10), covariance, draws)
    assert fitted_diagonal(covariance) > 1e6
    assert condition(dense(metric), covariance) < 300
    assert condition(dense(metric, 1), covariance) < 300


def test_directions_are_orthonormal_and_no_more_than_the_rank():
    metric = fitted(LowRankMass(rank=4), gaussian(30, [100.0, 0.01]), 50)
    assert metric.directions.shape == (2, 30, 4)
    eye = torch.eye(4, dtype=torch.float64).expand(2, 4, 4)
    torch.testing.assert_close(metric.directions.mT @ metric.directions, eye)
    assert ((metric.variances == 1) | (metric.variances > 2) | (metric.variances < 0.5)).all()
    assert fitted(LowRankMass(rank=40), gaussian(5, [9.0]), 50).directions.shape == (2, 5, 5)


def test_fewer_draws_than_directions_fill_up_with_nothing():
    metric = fitted(LowRankMass(rank=10), gaussian(40, [1e3, 1e-3]), 4)
    assert metric.directions.shape == (2, 40, 10)
    assert (metric.variances[:, 8:] == 1).all()
    assert torch.isfinite(dense(metric)).all()
    assert (torch.linalg.eigvalsh(dense(metric)) > 0).all()


def test_a_full_window_lets_every_second_point_go_and_spans_all_that_was_seen():
    mass = LowRankMass(rank=1, stored=8)
    window = mass.estimate(Point(torch.zeros(1, 1), torch.zeros(1), torch.zeros(1, 1)))
    spans = []
    for number in range(100):
        row = torch.full((1, 1), float(number))
        window = window.add(Point(row, torch.zeros(1), -row))
        kept = int(window.kept)
        rows = window.positions[0, :kept, 0].tolist()
        assert rows == [i * int(window.stride) for i in range(kept)]  # from all over, in order
        assert torch.equal(window.gradients[0, :kept], -window.positions[0, :kept])
        assert rows[-1] > number - int(window.stride)
        spans.append(kept)
    assert int(window.seen) == 100
    assert spans[:9] == [1, 2, 3, 4, 5, 6, 7, 8, 5]
    assert min(spans[8:]) >= 4


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"rank": 0}, "rank"), ({"rank": 2.5}, "rank"), ({"stored": 2}, "stored"), ({"stored": 11}, "even")],
)
def test_settings_that_make_no_sense_are_refused_by_name(settings, words, unchecked):
    with pytest.raises(ValueError, match=words):
        LowRankMass(**settings)
