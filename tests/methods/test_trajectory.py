"""Moments and deviations of a walk: against NumPy in float64, far from 0, resumed, and lent."""

import numpy as np
import pytest
import torch
from torch import Tensor

from singularbayes.methods import trajectory as trajectory_module
from singularbayes.methods.trajectory import Trajectory

SCALES = torch.tensor([1.0, 30.0, 0.02, 5.0, 1.0], dtype=torch.float64)


def walk(n: int = 40, seed: int = 0) -> Tensor:
    """Correlated, badly scaled vectors ``(n, 5)``."""
    source = torch.Generator().manual_seed(seed)
    mix = torch.randn(5, 5, generator=source, dtype=torch.float64)
    return torch.randn(n, 5, generator=source, dtype=torch.float64) @ mix * SCALES + 3 * SCALES


def gathered(vectors: Tensor, **choice) -> Trajectory:
    trajectory = Trajectory(**choice)
    for w in vectors:
        trajectory.add(w)
    return trajectory


def test_the_constants_of_the_reference():
    vectors = torch.tensor([[1.0, 2.0], [3.0, 1.0], [2.0, 4.0], [4.0, 3.0], [5.0, 5.0]])
    trajectory = gathered(vectors)
    assert trajectory.mean.tolist() == [3, 3]
    assert trajectory.variance.tolist() == [2, 2]


@pytest.mark.parametrize("rank", [0, 1, 7, 40, 100])
def test_moments_and_deviations_are_numpys(rank):
    vectors = walk().numpy()
    trajectory = gathered(torch.from_numpy(vectors), rank=rank)
    assert np.allclose(trajectory.mean, vectors.mean(0), rtol=1e-12)
    assert np.allclose(trajectory.variance, vectors.var(0), rtol=1e-12)
    means = np.cumsum(vectors, 0) / np.arange(1, 41)[:, None]
    kept = min(rank, 40)
    assert trajectory.kept == kept
    order = [(40 + i) % rank for i in range(rank)] if rank and rank <= 40 else range(kept)  # oldest first
    assert np.allclose(trajectory.deviations[list(order)], (vectors - means)[40 - kept :], atol=1e-10)


def test_the_variance_far_from_zero_is_right_where_the_difference_of_moments_cancels():
    source = torch.Generator().manual_seed(0)
    vectors = 1000 + 0.01 * torch.randn(50, 200, generator=source)
    exact = vectors.double().var(0, correction=0)
    got = gathered(vectors, rank=0).variance
    assert torch.allclose(got.double(), exact, rtol=0.02)
    cancelling = vectors.square().mean(0) - vectors.mean(0).square()  # seen in public code: here about +-.1
    assert not torch.allclose(cancelling.double(), exact, rtol=0.5)


def test_the_mean_alone_is_taken_of_what_has_no_spread():
    trajectory = gathered(walk(), rank=3, spread=2)
    whole = gathered(walk(), rank=3)
    assert torch.equal(trajectory.mean, whole.mean)
    assert trajectory.variance[2:].tolist() == [0, 0, 0]
    assert torch.equal(trajectory.variance[:2], whole.variance[:2])
    assert not trajectory.deviations[:, 2:].any()
    assert torch.equal(trajectory.deviations[:, :2], whole.deviations[:, :2])


@pytest.mark.parametrize("stop", [0, 1, 4, 5, 13])
@pytest.mark.parametrize("spread", [None, 3])
def test_a_trajectory_put_back_goes_on_to_the_same_bits(stop, spread):
    whole = gathered(walk(20).float(), rank=5, spread=spread)
    part = gathered(walk(20).float()[:stop], rank=5, spread=spread)
    stored = {name: tensor.clone() for name, tensor in part.tensors().items()}
    again = Trajectory(rank=5, spread=spread)
    again.load(stored)
    for w in walk(20).float()[stop:]:
        again.add(w)
    for name, tensor in whole.tensors().items():
        assert torch.equal(tensor, again.tensors()[name]), name


def test_its_own_tensors_may_be_put_back():
    trajectory = gathered(walk(20)[:8], rank=5)
    trajectory.load(trajectory.tensors())
    for w in walk(20)[8:]:
        trajectory.add(w)
    assert torch.equal(trajectory.deviations, gathered(walk(20), rank=5).deviations)


def test_the_state_is_handed_out_without_a_copy():
    trajectory = gathered(walk(20)[:8], rank=5)
    assert trajectory.tensors()["columns"].data_ptr() == trajectory.deviations.data_ptr()


def test_a_factor_lies_in_the_columns_memory_and_stays_when_the_walk_goes_on():
    trajectory = gathered(walk(20)[:8], rank=5)
    place, plain = trajectory.deviations.data_ptr(), trajectory.deviations.clone()
    factor, mean = trajectory.factor(0.3), trajectory.mean
    assert factor.data_ptr() == place
    assert torch.equal(factor, 0.3 * plain.T)
    kept, kept_mean = factor.clone(), mean.clone()
    assert trajectory.factor(0.3).data_ptr() == place
    assert torch.allclose(trajectory.factor(2.0), 2 * plain.T, rtol=1e-14)
    for w in walk(20)[8:]:
        trajectory.add(w)
    assert torch.equal(factor, kept)
    assert torch.equal(mean, kept_mean)
    whole = gathered(walk(20), rank=5)
    assert torch.equal(trajectory.mean, whole.mean)
    assert torch.allclose(trajectory.deviations, whole.deviations, rtol=1e-14)


def test_a_vector_may_come_in_pieces_of_any_shape(monkeypatch):
    whole = gathered(walk(), rank=3, spread=3)
    monkeypatch.setattr(trajectory_module, "_BLOCK", 2)  # and is taken in by blocks
    pieces = Trajectory(rank=3, spread=3)
    for w in walk():
        pieces.add([w[:4].view(2, 2), w[4:], w[:0]])
    for name, tensor in whole.tensors().items():
        assert torch.equal(tensor, pieces.tensors()[name]), name


def test_half_precision_is_summed_in_float32():
    vectors = walk(30).to(torch.bfloat16)
    trajectory = gathered(vectors, rank=2)
    assert trajectory.mean.dtype == torch.float32
    assert torch.allclose(trajectory.variance, vectors.float().var(0, correction=0), rtol=1e-4)


def test_what_cannot_be_taken_in_is_named():
    trajectory = gathered(walk(3))
    with pytest.raises(ValueError, match="5 entries, this one has 4"):
        trajectory.add(torch.zeros(4))
    with pytest.raises(ValueError, match="vector 4 has entries that are nan"):
        trajectory.add(torch.full((5,), torch.nan))
    assert trajectory.count == 3
    for name in ("mean", "variance"):
        with pytest.raises(ValueError, match="nothing was collected"):
            getattr(Trajectory(), name)
    with pytest.raises(ValueError, match="0 or more"):
        Trajectory(rank=-1)
