"""A planted leak of each kind is found, by its sets and rows; clean data, of many kinds, give no finding."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, RobustScaler, StandardScaler

from singularbayes.protocol import Protocol
from singularbayes.protocol.duplicates import beyond_chance, exact_copies, near_copies, row_hashes


def correlated(rng, n: int, features: int = 6) -> np.ndarray:
    """Rows with strong correlations and scales from .01 to 1000."""
    mixing = np.random.default_rng(99).normal(size=(features, features))
    return rng.normal(size=(n, features)) @ mixing * np.geomspace(0.01, 1000, features) + 5


def clean(seed: int = 0, make=correlated) -> dict:
    rng = np.random.default_rng(seed)
    sizes = {"train": 300, "validation": 80, "test": 120}
    sets = {name: (make(rng, n), np.arange(n) % 3) for name, n in sizes.items()}
    return sets | {
        "ood": {"near": make(rng, 60) * 1.2, "far": make(rng, 50) * 4},
        "ood_validation": {"near": make(rng, 40) * 1.1},
    }


def uniform_line(rng, n):
    return rng.uniform(-2, 2, size=(n, 1))


def plane_in_nine(rng, n):
    return rng.normal(size=(n, 2)) @ np.random.default_rng(1).normal(size=(2, 9))


def categories(rng, n):
    return np.eye(4)[rng.integers(4, size=n)]


def mixed(rng, n):
    return np.concatenate([np.eye(6)[rng.integers(6, size=n)], rng.normal(size=(n, 2))], axis=1)


@pytest.mark.parametrize("make", [correlated, uniform_line, plane_in_nine, mixed])
@pytest.mark.parametrize("seed", range(5))
def test_clean_data_give_no_finding(make, seed):
    assert Protocol(**clean(seed, make)).check() == ()


def test_clean_digits_give_no_finding():
    images, labels = load_digits(return_X_y=True)
    images = images / 16
    known = labels < 8
    x, y = images[known], labels[known]
    held = {"near": images[~known], "far": np.random.default_rng(0).random((50, 64))}
    parts = [(x[start:stop], y[start:stop]) for start, stop in ((0, 900), (900, 1100), (1100, None))]
    protocol = Protocol(train=parts[0], validation=parts[1], test=parts[2], ood=held)
    assert protocol.check() == ()


def test_dense_rows_near_by_chance_are_no_leak_and_planted_ones_among_them_are():
    # the wrong-on-purpose rule "any near row is a leak" sees hundreds here
    rng = np.random.default_rng(3)
    train, test = uniform_line(rng, 2000), uniform_line(rng, 500)
    chance = near_copies(train, test, 1e-3)
    assert len(chance.rows) > 200
    assert not beyond_chance(train, test, chance)
    test[:200] = train[:200] + 1e-7
    assert beyond_chance(train, test, near_copies(train, test, 1e-3))


def test_repeated_categories_are_a_note_and_no_leak():
    found = Protocol(**clean(make=categories)).check()
    assert found
    assert not any(finding.leak for finding in found)
    assert all("may be chance" in finding.message for finding in found)


@pytest.mark.parametrize(
    ("receiver", "sets"),
    [("validation", ("train", "validation")), ("test", ("train", "test")), ("near", ("train", "ood/near"))],
)
def test_a_planted_copy_is_found_with_its_rows(receiver, sets):
    data = clean()
    x = data["ood"]["near"] if receiver == "near" else data[receiver][0]
    x[[4, 9]] = data["train"][0][[250, 17]]
    (finding,) = Protocol(**data).check()
    assert (finding.kind, finding.leak, finding.sets, finding.rows) == ("duplicates", True, sets, (4, 9))
    assert finding.total == len(x)
    assert "rows 4, 9" in finding.message


def test_one_copy_is_enough():
    data = clean()
    data["test"][0][3] = data["validation"][0][5]
    (finding,) = Protocol(**data).check()
    assert (finding.sets, finding.rows) == (("validation", "test"), (3,))


@pytest.mark.parametrize("count", [1, 2, 30])
def test_planted_near_copies_are_found(count):
    # by bytes alone (the usual check) a row that was rounded, or measured twice, is a new row
    data = clean()
    rng = np.random.default_rng(8)
    noise = 3e-4 * data["train"][0].std(axis=0) * rng.normal(size=(count, 6))
    data["test"][0][:count] = data["train"][0][100 : 100 + count] + noise
    (finding,) = Protocol(**data).check()
    assert (finding.kind, finding.leak, finding.sets) == ("near duplicates", True, ("train", "test"))
    assert finding.rows == tuple(range(count))


def test_a_row_that_was_rounded_to_float32_is_a_near_copy():
    data = clean()
    data["test"][0][7] = data["train"][0][7].astype(np.float32)
    (finding,) = Protocol(**data).check()
    assert (finding.kind, finding.rows) == ("near duplicates", (7,))


def test_an_ood_set_used_for_selection_is_found():
    data = clean()
    data["ood_validation"]["near"][:5] = data["ood"]["near"][20:25]
    (finding,) = Protocol(**data).check()
    assert (finding.kind, finding.sets) == ("selection", ("ood/near", "ood_validation/near"))
    assert "must not be scored" in finding.message


def test_the_same_set_under_another_name_is_found():
    data = clean()
    data["ood_validation"] = {"other name": data["ood"]["far"].copy()}
    (finding,) = Protocol(**data).check()
    assert (finding.kind, finding.count) == ("selection", 50)


SCALERS = [StandardScaler(), MinMaxScaler(), RobustScaler()]


def scaled(data: dict, scaler, names, dtype=np.float64) -> dict:
    scaler.fit(np.concatenate([data[name][0] for name in names]))
    inside = {name: data[name] for name in ("train", "validation", "test")}
    out = {name: (scaler.transform(x).astype(dtype), y) for name, (x, y) in inside.items()}
    for group in ("ood", "ood_validation"):
        out[group] = {name: scaler.transform(x).astype(dtype) for name, x in data[group].items()}
    return out


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("scaler", SCALERS, ids=lambda scaler: type(scaler).__name__)
def test_a_scaler_fitted_on_train_is_clean_in_every_way_of_asking(scaler, dtype):
    raw = clean()
    after = Protocol(**scaled(raw, scaler, ["train"], dtype))
    assert after.check() == ()
    assert after.check(raw=Protocol(**raw)) == ()
    assert Protocol(**raw).check(transform=scaler) == ()


@pytest.mark.parametrize(
    "names", [["train", "test"], ["train", "validation"], ["train", "validation", "test"]]
)
@pytest.mark.parametrize("scaler", SCALERS, ids=lambda scaler: type(scaler).__name__)
def test_a_scaler_fitted_on_more_is_found_in_every_way_of_asking(scaler, names):
    raw = clean()
    for name in ("validation", "test"):  # each holds one new extreme value, or a range shows nothing
        raw[name][0][0] = (2 if name == "test" else -2) * np.abs(raw["train"][0]).max(axis=0)
    after = Protocol(**scaled(raw, scaler, names, np.float32))
    for found in (after.check(), after.check(raw=Protocol(**raw)), Protocol(**raw).check(transform=scaler)):
        scaling = [finding for finding in found if finding.kind == "scaling"]
        assert scaling
        assert all(finding.leak and finding.sets == tuple(names) for finding in scaling)


def test_a_scaler_that_saw_an_ood_set_is_found():
    raw = clean()
    scaler = StandardScaler().fit(np.concatenate([raw["train"][0], raw["ood"]["far"]]))
    (finding,) = Protocol(**raw).check(transform=scaler)
    assert finding.sets == ("train", "ood/far")


def test_one_mean_and_deviation_for_all_pixels_is_seen():
    raw = clean()
    pooled = np.concatenate([raw["train"][0], raw["test"][0]])
    for x in (raw["train"][0], raw["validation"][0], raw["test"][0], *raw["ood"].values()):
        x[:] = (x - pooled.mean()) / pooled.std()
    raw["ood_validation"] = {}
    assert [finding.sets for finding in Protocol(**raw).check()] == [("train", "test")]


def test_a_set_scaled_by_itself_is_found():
    data = clean()
    data["test"] = (StandardScaler().fit_transform(data["test"][0]), data["test"][1])
    (finding,) = Protocol(**data).check()
    assert (finding.kind, finding.sets) == ("scaling", ("test",))


def test_a_fixed_scale_is_no_leak():
    raw = clean()
    half = {k: (v[0] / 255, v[1]) for k, v in raw.items() if k in ("train", "validation", "test")}
    half["ood"] = {k: v / 255 for k, v in raw["ood"].items()}
    half["ood_validation"] = {k: v / 255 for k, v in raw["ood_validation"].items()}
    assert Protocol(**half).check(raw=Protocol(**raw)) == ()


def test_a_pipeline_fitted_on_other_data_is_found():
    raw = clean()
    other = make_pipeline(SimpleImputer(), StandardScaler()).fit(correlated(np.random.default_rng(77), 200))
    (finding,) = Protocol(**raw).check(transform=other)
    assert "fitted neither on train nor on train with other sets" in finding.message


def test_a_bent_map_is_a_note_that_asks_for_the_transform():
    raw = clean()
    logs = {k: (np.arcsinh(v[0]), v[1]) for k, v in raw.items() if k in ("train", "validation", "test")}
    logs["ood"] = {k: np.arcsinh(v) for k, v in raw["ood"].items()}
    logs["ood_validation"] = {k: np.arcsinh(v) for k, v in raw["ood_validation"].items()}
    (finding,) = Protocol(**logs).check(raw=Protocol(**raw))
    assert not finding.leak
    assert "pass the transform itself" in finding.message


def test_a_single_ood_set_is_noted():
    data = clean()
    del data["ood"]["far"]
    (finding,) = Protocol(**data).check()
    assert (finding.kind, finding.leak) == ("incomplete", False)


def test_every_kind_of_input_is_compared():
    ids = torch.arange(40).reshape(20, 2)
    mask = torch.ones(20, 2, dtype=torch.bool)
    batches = {"input_ids": ids, "mask": mask}
    part = lambda a, b: ({k: v[a:b] for k, v in batches.items()}, torch.zeros(b - a))  # noqa: E731
    ood = {name: {"input_ids": ids[:3] + more, "mask": mask[:3]} for name, more in (("a", 100), ("b", 200))}
    protocol = Protocol(train=part(0, 8), validation=part(8, 12), test=part(7, 20), ood=ood)
    found = {finding.sets: finding.rows for finding in protocol.check() if finding.kind == "duplicates"}
    assert found == {("train", "test"): (0,), ("validation", "test"): (1, 2, 3, 4)}


def test_hashes_are_those_of_equal_rows_alone():
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 3, size=(5000, 9)).astype(float)  # small whole numbers: few bits differ
    distinct = np.unique(rows, axis=0)
    assert len(np.unique(row_hashes(rows))) == len(distinct)
    assert row_hashes(np.array([[0.0, -0.0]])) == row_hashes(np.array([[-0.0, 0.0]]))


def test_copies_are_those_of_a_comparison_of_all_pairs():
    rng = np.random.default_rng(5)
    a, b = rng.normal(size=(300, 12)), rng.normal(size=(90, 12))
    a[:, -4:] *= 1e-3  # hardly seen by the projections
    b[:4] = a[10:14]
    b[4:9] = a[20:25] + 4e-4 * rng.normal(size=(5, 12))
    b[9:12] = a[40:43] + 5e-3 * rng.normal(size=(3, 12))  # too far
    b[12] = a[50]
    b[12, -1] += 0.01  # too far, in a direction that no projection looks along
    distance = np.sqrt(((a[None] - b[:, None]) ** 2).mean(-1)).min(1)
    assert exact_copies(a, b).rows.tolist() == np.flatnonzero(distance == 0).tolist() == [0, 1, 2, 3]
    near = near_copies(a, b, 1e-3)
    assert near.rows.tolist() == np.flatnonzero((distance > 0) & (distance <= 1e-3)).tolist()
    assert near.partners.tolist() == [20, 21, 22, 23, 24]


@pytest.mark.usefixtures("unchecked")
def test_bad_data_name_their_set():
    data = clean()
    with pytest.raises(ValueError, match="set 'ood/far' has 2 features a row and train 6"):
        Protocol(**{**data, "ood": {"far": np.ones((3, 2))}})
    bad = data["test"][0].copy()
    bad[1, 2] = np.nan
    with pytest.raises(ValueError, match="set 'test': X holds nan at row 1, column 2"):
        Protocol(**{**data, "test": (bad, data["test"][1])})
    with pytest.raises(TypeError, match="ood must map names to data, got ndarray"):
        Protocol(**{**data, "ood": np.ones((3, 6))})
    with pytest.raises(TypeError, match="expected a fitted object with fit, transform and get_params"):
        Protocol(**data).check(transform=lambda x: x)
    with pytest.raises(ValueError, match="tolerance must be positive, got 0"):
        Protocol(**data).check(tolerance=0)
    few = {**data, "test": (data["test"][0][:5], data["test"][1][:5])}
    with pytest.raises(ValueError, match=r"raw data of set 'test': got \(5, 6\), expected \(120, 6\)"):
        Protocol(**data).check(raw=Protocol(**few))
