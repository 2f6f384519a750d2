"""Bases of subspaces: principal components against NumPy and scikit-learn, random ones, curve planes."""

import numpy as np
import pytest
import torch
from sklearn import decomposition
from torch import nn

import singularbayes as sb
from singularbayes.methods.subspace_bases import iterates
from singularbayes.methods.trajectory import Trajectory

# correlated, badly scaled, and far from 0, as weights are
SOURCE = torch.Generator().manual_seed(1)
ROOT = torch.randn(6, 6, generator=SOURCE, dtype=torch.float64) * torch.logspace(
    1, -2, 6, dtype=torch.float64
)
WALK = torch.randn(15, 6, generator=SOURCE, dtype=torch.float64) @ ROOT + 50


def top_of_covariance(points: np.ndarray, k: int) -> np.ndarray:
    values, vectors = np.linalg.eigh(np.cov(points.T))
    return vectors[:, -k:] * values[-k:] @ vectors[:, -k:].T


@pytest.mark.parametrize("k", [1, 3, 6])
def test_pca_spans_the_leading_part_of_the_covariance_once_divided(k):
    P = sb.PCA(k).directions(WALK, seed=0).numpy()
    right = top_of_covariance(WALK.numpy(), k)
    np.testing.assert_allclose(P @ P.T, right, rtol=1e-9, atol=1e-9 * right.max())
    twice = P / np.sqrt(len(WALK) - 1)  # a peer divides its deviations, then the singular values again
    assert np.abs(twice @ twice.T - right).max() > 0.9 * right.max()


def test_pca_is_scikit_learns_up_to_sign():
    reference = decomposition.PCA(4).fit(WALK.numpy())
    columns = reference.components_.T * np.sqrt(reference.explained_variance_)
    P = sb.PCA(4).directions(WALK, seed=0).numpy()
    np.testing.assert_allclose(np.abs((P / np.linalg.norm(P, axis=0)).T @ columns),
                               np.diag(np.linalg.norm(columns, axis=0)), atol=1e-9)  # fmt: skip
    np.testing.assert_allclose(np.linalg.norm(P, axis=0), np.linalg.norm(columns, axis=0), rtol=1e-12)


def test_the_last_snapshots_alone_count():
    P = sb.PCA(2, snapshots=5).directions(WALK, seed=0).numpy()
    np.testing.assert_allclose(P @ P.T, top_of_covariance(WALK[-5:].numpy(), 2), rtol=1e-8, atol=1e-8)


def test_a_shift_of_all_iterates_changes_nothing():
    one, two = (sb.PCA(3).directions(points, seed=0) for points in (WALK, WALK - WALK[3]))
    assert torch.allclose(one @ one.T, two @ two.T, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("rank", [4, 15, 40])
def test_iterates_come_back_from_a_trajectory(rank):
    """From deviations of the mean of their time, whether the oldest were dropped or not."""
    trajectory = Trajectory(rank=rank)
    for w in WALK:
        trajectory.add(w)
    right = WALK[-rank:] - WALK.mean(0)
    assert torch.allclose(iterates(trajectory), right, atol=1e-11)
    assert not torch.allclose(trajectory.deviations[-3:], right[-3:], atol=1e-2), "the two differ"


def test_float32_iterates_keep_their_digits():
    trajectory, walk = Trajectory(rank=15), 1e-3 * (WALK - 50) + 50
    for w in walk.float():
        trajectory.add(w)
    right = walk.float().double() - walk.float().double().mean(0)
    # each step rounds at 50 * 2^-24 = 3e-6; the differences of the iterates are 1e-2
    assert (iterates(trajectory).double() - right).abs().max() < 2e-5


def test_random_directions_are_orthogonal_and_as_long_as_pcas_on_average():
    wide = torch.randn(15, 200, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    P, principal = sb.RandomProjection(5).directions(wide, seed=3), sb.PCA(5).directions(wide, seed=3)
    length = principal.norm(dim=0).mean()
    assert torch.allclose(P.T @ P, length**2 * torch.eye(5, dtype=torch.float64), atol=1e-10)
    other = sb.RandomProjection(5).directions(wide, seed=4)
    assert (P.T @ other).abs().max() < 0.5 * length**2, "another seed, other directions"
    assert torch.equal(P, sb.RandomProjection(5).directions(wide, seed=3))


@pytest.mark.parametrize("kind", [sb.PCA, sb.RandomProjection])
class TestBadInput:
    def test_more_dimensions_than_snapshots_span(self, kind):
        with pytest.raises(
            ValueError, match="4 snapshots span at most 3 directions about their mean, got dimension=4"
        ):
            kind(4).directions(WALK[:4], seed=0)
        with pytest.raises(ValueError, match="raise snapshots or lower dimension"):
            kind(4, snapshots=4)

    def test_snapshots_that_do_not_move(self, kind):
        with pytest.raises(ValueError, match="the 5 snapshots span 0 directions only, got dimension=1"):
            kind(1).directions(WALK[:1].repeat(5, 1), seed=0)
        line = torch.arange(5.0, dtype=torch.float64).unsqueeze(1) * torch.ones(1, 6, dtype=torch.float64)
        with pytest.raises(ValueError, match="span 1 directions only, got dimension=2"):
            kind(2).directions(line, seed=0)

    def test_whole_numbers(self, kind):
        with pytest.raises(ValueError, match="dimension must be a whole number"):
            kind(0)
        with pytest.raises(ValueError, match="snapshots must be a whole number"):
            kind(1, snapshots=0)


def test_the_curves_plane_holds_both_networks_and_the_middle():
    torch.manual_seed(0)
    x = torch.randn(30, 2)
    y = (x[:, 0] > 0).long()
    model = sb.Model(nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2)), sb.Categorical())
    for curve in (sb.Bezier(), sb.Polychain()):
        modes = sb.DeepEnsemble(members=2, member=sb.MAP(epochs=3)).fit(model, (x, y))
        method = sb.ModeCurve(modes=modes, curve=curve, epochs=5, learning_rate=0.05)
        settings = {"seed": 4, "checkpoint": None, "progress": False}
        plane, _ = sb.CurvePlane(method).plane(model, (x, y), None, **settings)
        connection = method.connect(model, (x, y), seed=4)
        z = torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        expected = connection.rows(0, torch.tensor([0.0, 1.0, 0.5]))
        assert torch.allclose(plane.rows(z), expected, atol=1e-6)
        assert (plane.rows(z)[2] - plane.center).norm() > 0.1, "the curve was trained away from the line"


def test_a_plane_of_three_networks_is_refused():
    x, y = torch.randn(20, 2), torch.arange(20) % 2
    model = sb.Model(nn.Linear(2, 2), sb.Categorical())
    modes = sb.DeepEnsemble(members=3, member=sb.MAP(epochs=1))
    method = sb.Subspace(basis=sb.CurvePlane(sb.ModeCurve(modes=modes, epochs=1)))
    with pytest.raises(ValueError, match="a plane needs a curve between 2 networks, got 3"):
        method.fit(model, (x, y))


@pytest.mark.usefixtures("unchecked")
def test_a_plane_needs_a_curve():
    with pytest.raises(TypeError, match="curve must be an object such as ModeCurve"):
        sb.CurvePlane(sb.Bezier())
