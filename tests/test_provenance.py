"""Sketches of data: what two sets share is found, what they do not share is not."""

import numpy as np
import torch

from singularbayes.provenance import DataSketch, row_hashes

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(4000, 7, generator=GENERATOR)
Y = torch.randint(0, 3, (4000,), generator=GENERATOR)


def test_a_shared_twentieth_is_found_and_disjoint_rows_are_not():
    sketch = DataSketch.of(X[:2000], Y[:2000])
    assert sketch.shared(X[1900:], Y[1900:]) > 0  # missed with probability (1 - .05)^256 = 2e-6
    assert sketch.shared(X[2000:], Y[2000:]) == 0
    assert sketch.shared(X[:2000].double().flip(0), Y[:2000].flip(0).int()) == 256  # other order and types


def test_one_changed_number_or_label_makes_another_row():
    x = X[:50].repeat(7, 1)
    for column in range(7):
        x[50 * column : 50 * (column + 1), column] += 1e-6
    assert not np.isin(row_hashes(x, Y[:50].repeat(7)), row_hashes(X[:50], Y[:50])).any()
    assert not np.isin(row_hashes(X[:50], Y[:50] + 1), row_hashes(X[:50], Y[:50])).any()
    assert len(np.unique(row_hashes(X[:, :2].flip(1), Y))) == 4000


def test_permuted_columns_are_another_row_and_parts_of_a_dict_count():
    assert not np.isin(row_hashes(X.flip(1), Y), row_hashes(X, Y)).any()
    both, other = {"a": X, "b": Y}, {"a": X, "b": Y + 1}
    assert not np.isin(row_hashes(both, None), row_hashes(other, None)).any()


def test_sketches_join_to_that_of_all_rows_and_survive_a_file():
    joined = DataSketch.of(X[:1000], Y[:1000]).joined(DataSketch.of(X[1000:], Y[1000:]))
    assert joined == DataSketch.of(X, Y)
    assert DataSketch.from_dict(joined.to_dict()) == joined
    assert len(joined.hashes) == 256
