"""k nearest neighbours: brute force, scikit-learn, and training rows that do not find themselves."""

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestNeighbors as Oracle

from singularbayes.feature_scores import Inputs, NearestNeighbours, neighbours

SCALES = np.array([1.0, 100.0, 0.01])


def rows(count: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (
        rng.normal(size=(count, 3)) @ np.array([[1.0, 0.9, 0.2], [0.0, 0.4, 0.0], [0.0, 0.3, 1.0]]) + 0.5
    ) * SCALES


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("k", [1, 7])
def test_it_is_the_kth_smallest_distance_by_brute_force(k, normalize, monkeypatch):
    monkeypatch.setattr(neighbours, "_ENTRIES", 500)  # several blocks
    train, new = rows(80, 0), rows(15, 1)
    found = NearestNeighbours(k=k, normalize=normalize).fit(Inputs(), train).score(new).numpy()
    if normalize:
        train, new = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (train, new))
    by_loops = [sorted(np.linalg.norm(row - other) for other in train)[k - 1] for row in new]
    assert found == pytest.approx(by_loops, rel=1e-9)
    assert found == pytest.approx(Oracle(n_neighbors=k).fit(train).kneighbors(new)[0][:, -1], rel=1e-9)


def test_training_rows_leave_themselves_out():
    # wrong on purpose: the k-th neighbour of a training row counted from itself, at distance 0
    train = rows(60, 0)
    fitted = NearestNeighbours(k=3, normalize=False).fit(Inputs(), train)
    leave_out = [
        sorted(np.linalg.norm(row - other) for j, other in enumerate(train) if j != i)[2]
        for i, row in enumerate(train)
    ]
    assert fitted.training_scores().numpy() == pytest.approx(leave_out, rel=1e-9)
    assert fitted.score(train).numpy() != pytest.approx(leave_out, rel=1e-2)
    assert NearestNeighbours(k=1, normalize=False).fit(Inputs(), train).score(train).tolist() == [0.0] * 60


def test_close_rows_far_from_the_origin_keep_their_digits():
    # by squared lengths alone, 1e8 + 1e-6 leaves nothing of a distance of 1e-3
    train = 1e4 + np.arange(6)[:, None] * 1e-3
    found = NearestNeighbours(k=2, normalize=False).fit(Inputs(), train).score(train[:1] - 1e-3)
    assert found.item() == pytest.approx(2e-3, rel=1e-6)


def test_lengths_do_not_matter_when_normalised_and_a_row_of_zeros_is_fine():
    train, new = rows(50, 0), rows(10, 1)
    fitted = NearestNeighbours(k=5).fit(Inputs(), train)
    torch.testing.assert_close(fitted.score(new), fitted.score(1000 * new))
    assert fitted.score(np.zeros((1, 3))).tolist() == pytest.approx([1.0])


def test_k_must_leave_another_row():
    with pytest.raises(ValueError, match="50 training rows have no 50-th nearest"):
        NearestNeighbours().fit(Inputs(), rows(50, 0))
    NearestNeighbours().fit(Inputs(), rows(51, 0))
    with pytest.raises(ValueError, match="k must be"):
        NearestNeighbours(k=0)
