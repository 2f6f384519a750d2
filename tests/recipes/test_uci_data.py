"""UCI sets: the published splits by their rule, statistics of train alone, errors that name the file."""

from pathlib import Path

import numpy as np
import pytest

from singularbayes.recipes.data import Splits, uci

NAMES = list(uci.SETS)


def _stored(folder: Path, name: str) -> dict[str, np.ndarray]:
    path = folder / uci.SUBFOLDER / f"{uci.SETS[name].file}.npz"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    with np.load(path) as archive:
        return {key: archive[key] for key in archive}


def _made(folder: Path, name: str = "yacht", **changes: np.ndarray) -> Path:
    """A made-up set of the right sizes; two features never change, and .998 is inexact."""
    problem, rng = uci.SETS[name], np.random.default_rng(0)
    X = rng.normal(3, 50, (problem.rows, problem.features))
    X[:, :2] = 288.0, 0.998
    content = {"X": X, "y": rng.normal(100, 7, problem.rows)} | changes
    np.savez(folder / f"{problem.file}.npz", **content)
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_the_rule_gives_the_stored_indices_of_every_split(name: str, shared_data: Path) -> None:
    stored, problem = _stored(shared_data, name), uci.SETS[name]
    assert stored["index_train"].shape[0] == problem.splits
    assert stored["X"].shape == (problem.rows, problem.features)
    picked = range(problem.splits) if problem.rows < 2000 else (0, problem.splits - 1)
    for split in picked:
        train, test = uci.published_rows(problem.rows, split)
        np.testing.assert_array_equal(train, stored["index_train"][split])
        np.testing.assert_array_equal(test, stored["index_test"][split])


@pytest.mark.parametrize("name", NAMES)
def test_train_validation_and_test_are_the_published_rows_in_order(name: str, shared_data: Path) -> None:
    stored, splits = _stored(shared_data, name), uci.load(shared_data, name, 1)
    assert splits.label_units is not None
    y = np.concatenate([splits.train[1], splits.validation[1]]).astype(np.float64)
    back = splits.label_units.zero + splits.label_units.one * y
    scale = 1e-6 * np.abs(stored["y"]).max()  # float32
    np.testing.assert_allclose(back, stored["y"][stored["index_train"][1]], atol=scale)
    tests = splits.label_units.zero + splits.label_units.one * splits.test[1].astype(np.float64)
    np.testing.assert_allclose(tests, stored["y"][stored["index_test"][1]], atol=scale)
    assert len(splits.train[0]) == int(0.8 * len(stored["index_train"][1]))


def test_train_has_mean_0_and_deviation_1_and_navals_constant_features_are_0(shared_data: Path) -> None:
    _stored(shared_data, "naval")
    splits = uci.load(shared_data, "naval", 3)
    x = splits.train[0].astype(np.float64)
    std = x.std(0)
    assert std[[8, 11]].tolist() == [0, 0]  # a division by their computed deviations gives up to 1e16
    for other, _ in splits.named_sets().values():
        assert (other[:, [8, 11]] == 0).all()
    np.testing.assert_allclose(np.delete(std, [8, 11]), 1, atol=1e-5)
    np.testing.assert_allclose(x.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(splits.train[1].astype(np.float64).std(), 1, atol=1e-5)


def test_rows_outside_train_change_no_statistic(tmp_path: Path) -> None:
    plain = uci.load(_made(tmp_path), "yacht", 2)
    order, test = uci.published_rows(308, 2)
    outside = np.concatenate([order[int(0.8 * len(order)) :], test])
    with np.load(tmp_path / "yacht.npz") as archive:
        X, y = archive["X"].copy(), archive["y"].copy()
    X[outside] += 1000
    y[outside] *= 9
    moved = uci.load(_made(tmp_path, X=X, y=y), "yacht", 2)
    assert _equal(moved.train, plain.train)
    assert moved.label_units == plain.label_units
    X[order[0]] += 1000
    assert not _equal(uci.load(_made(tmp_path, X=X, y=y), "yacht", 2).train, plain.train), "mutant"
    assert np.abs(moved.test[0][:, :2]).min() > 999, "a feature constant in train stays in its own units"


def _equal(one: tuple, other: tuple) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_another_split_is_another_division_of_the_same_rows(tmp_path: Path) -> None:
    first, second = (uci.load(_made(tmp_path), "yacht", split) for split in (0, 1))
    assert not _equal(first.test, second.test)

    def targets(splits: Splits) -> np.ndarray:
        unit = splits.label_units
        assert unit is not None
        parts = [splits.train[1], splits.validation[1], splits.test[1]]
        return np.sort(unit.zero + unit.one * np.concatenate(parts).astype(np.float64))

    np.testing.assert_allclose(targets(first), targets(second), atol=1e-4)


def test_what_is_wrong_with_a_file_or_a_request_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"yacht\.npz not found: looked for .*uci_regression"):
        uci.load(tmp_path, "yacht", 0)
    with pytest.raises(ValueError, match="unknown set 'bosten'; expected one of boston"):
        uci.load(tmp_path, "bosten", 0)
    with pytest.raises(ValueError, match="protein has 5 published splits, numbered from 0, got 5"):
        uci.load(tmp_path, "protein", 5)
    _made(tmp_path, X=np.zeros((307, 6)))
    with pytest.raises(
        ValueError, match=r"yacht\.npz: got X \(307, 6\) and 308 targets, expected X \(308, 6\)"
    ):
        uci.load(tmp_path, "yacht", 0)
    X = np.random.default_rng(0).normal(size=(308, 6))
    X[5, 2] = np.nan
    with pytest.raises(ValueError, match="nan or inf"):
        uci.load(_made(tmp_path, X=X), "yacht", 0)
    np.savez(tmp_path / "yacht.npz", X=X)
    with pytest.raises(ValueError, match=r"yacht\.npz has no array 'y'; expected X, y, found X"):
        uci.load(tmp_path, "yacht", 0)
    (tmp_path / "yacht.npz").write_bytes(b"PK\x03\x04 cut off")
    with pytest.raises(ValueError, match=r"yacht\.npz is no archive of arrays, or is damaged"):
        uci.load(tmp_path, "yacht", 0)
