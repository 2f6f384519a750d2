"""ICU stays: statistics from train alone, no outcome among the inputs, broken cells named by row, column."""

import gzip
import lzma
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from singularbayes.recipes.data import Splits, icu, icu_summary, icu_table


def _real(folder: Path) -> Path:
    try:
        icu_table.find(folder)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    return folder


def _table(stays: int = 160, seed: int = 0) -> pd.DataFrame:
    """Made-up stays of the three sets with plausible values, a tenth of them missing."""
    rng = np.random.default_rng(seed)
    low, high = np.array([icu.LIMITS[name.split("_")[0]] for name in icu.FEATURES]).T
    values = low + (high - low) * rng.beta(2, 5, (3 * stays, 44))
    values[:, 1] = rng.integers(0, 2, 3 * stays)
    values[rng.random(values.shape) < 0.1] = np.nan
    table = pd.DataFrame(values, columns=list(icu.FEATURES))
    table.insert(0, "record_id", np.arange(3 * stays))
    table.insert(1, "set", np.repeat(list("abc"), stays))
    for name, top in (("ICUType", 4), ("SAPS_I", 30), ("SOFA", 20), ("Length_of_stay", 40), ("Survival", 90)):
        table[name] = rng.integers(1, top + 1, 3 * stays)
    table["death"] = (rng.random(3 * stays) < 0.3).astype(int)
    return table


def _write(folder: Path, table: pd.DataFrame) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    table.to_csv(folder / icu_table.FILE_NAME, index=False)
    return folder


def _raw(folder: Path, text: bytes) -> Path:
    (folder / icu_table.FILE_NAME).write_bytes(text)
    return folder


def _all_equal(first: Splits, second: Splits) -> bool:
    pairs = zip(first.named_sets().values(), second.named_sets().values(), strict=True)
    return all(np.array_equal(a, c) and np.array_equal(np.array(b), np.array(d)) for (a, b), (c, d) in pairs)


def test_exactly_44_features_with_limits_and_none_of_the_forbidden_columns() -> None:
    assert len(icu.FEATURES) == len(set(icu.FEATURES)) == 44
    assert not set(icu.FEATURES) & set(icu.FORBIDDEN)
    for name in ("SAPS_I", "SOFA", "Length_of_stay", "Survival", "set", "record_id", "ICUType", "death"):
        assert name in icu.FORBIDDEN
    assert {name.split("_")[0] for name in icu.FEATURES} == set(icu.LIMITS)


def test_forbidden_columns_change_no_input(tmp_path: Path) -> None:
    table = _table()
    changed = table.assign(record_id=table["record_id"] + 10**6)
    for name in ("SAPS_I", "SOFA", "Length_of_stay", "Survival"):
        changed[name] = 1 - 2 * table["death"]
    changed["ICUType"] = table["ICUType"].map({1: 3, 3: 4, 4: 1, 2: 2})
    assert _all_equal(icu.load(_write(tmp_path / "a", table)), icu.load(_write(tmp_path / "b", changed)))
    leaking = [*icu.FEATURES[:-1], "SAPS_I"]
    assert not np.array_equal(table[leaking].to_numpy(), changed[leaking].to_numpy(), equal_nan=True), (
        "mutant"
    )


def test_changed_rows_outside_train_leave_train_and_the_statistics_as_they_are() -> None:
    table = _table()
    before = icu.from_table(table)
    outside = (table["set"] != "a") | (table["ICUType"] == 2)
    changed = table.copy()
    rng = np.random.default_rng(1)
    low, high = np.array([icu.LIMITS[name.split("_")[0]] for name in icu.FEATURES]).T
    changed.loc[outside, list(icu.FEATURES)] = high - 0.1 * (high - low) * rng.random((outside.sum(), 44))
    after = icu.from_table(changed)
    np.testing.assert_array_equal(after.train[0], before.train[0])
    assert not np.array_equal(after.test[0], before.test[0])

    def fit_on_all(rows: pd.DataFrame) -> np.ndarray:
        return icu.fit(icu.mark_missing(rows[list(icu.FEATURES)].to_numpy())).median

    assert not np.allclose(fit_on_all(changed), fit_on_all(table)), "statistics of all rows would be caught"


def test_rows_outside_train_are_standardised_with_train_alone() -> None:
    table = _table()
    whole = icu.from_table(table)
    in_train = (table["set"] == "a") & (table["ICUType"] != 2)
    values = icu.mark_missing(table.loc[in_train, list(icu.FEATURES)].to_numpy())
    clipped = np.clip(values, np.nanpercentile(values, 0.1, axis=0), np.nanpercentile(values, 99.9, axis=0))
    filled = np.where(np.isnan(clipped), np.nanmedian(clipped, axis=0), clipped)
    expected = (filled - filled.mean(axis=0)) / filled.std(axis=0)
    np.testing.assert_allclose(whole.train[0], expected, atol=1e-5)
    np.testing.assert_allclose(whole.train[0].astype(np.float64).std(axis=0), 1, atol=1e-5)
    inside = whole.test[0] <= whole.train[0].max(axis=0) + 1e-6
    assert inside.all(), "test values are moved to train's limits"


def test_the_splits_share_no_stay_and_hold_the_units_they_should() -> None:
    table = _table()
    table["Age"] = 15 + table["record_id"] * 0.1
    splits = icu.from_table(table)
    counts = table.groupby(["set", table["ICUType"] == 2]).size()
    sizes = {name: len(x) for name, (x, _) in splits.named_sets().items()}
    assert sizes == {
        "train": counts["a", False], "validation": counts["b", False], "test": counts["c", False],
        "ood/near": counts["c", True], "ood/far": counts["c", False],
        "ood_validation/near": counts["b", True], "ood_validation/far": counts["b", False],
    }  # fmt: skip
    rows = np.concatenate([x for x, _ in splits.named_sets().values()])
    assert len(np.unique(rows, axis=0)) == len(rows)
    _, near_labels = splits.ood["near"]
    expected = table[(table["set"] == "c") & (table["ICUType"] == 2)]["death"].to_numpy()
    np.testing.assert_array_equal(near_labels, expected)


def test_the_far_set_permutes_each_feature_on_its_own() -> None:
    splits = icu.from_table(_table())
    far, labels = splits.ood["far"]
    assert labels is None
    np.testing.assert_array_equal(np.sort(far, axis=0), np.sort(splits.test[0], axis=0))
    whole_rows = np.random.default_rng(0).permutation(splits.test[0])
    assert len(np.unique(np.concatenate([far, splits.test[0]]), axis=0)) == 2 * len(far)
    assert len(np.unique(np.concatenate([whole_rows, splits.test[0]]), axis=0)) == len(far), "the mutant"
    again, other = icu.from_table(_table(), seed=0), icu.from_table(_table(), seed=1)
    np.testing.assert_array_equal(again.ood["far"][0], far)
    assert not np.array_equal(other.ood["far"][0], far)
    np.testing.assert_array_equal(other.test[0], splits.test[0])


def test_unknown_and_impossible_values_become_medians_and_are_counted() -> None:
    table = _table().assign(Height=170.0, Temp_min=36.0, Age=60.0)
    table.loc[table.index % 2 == 0, ["Height", "Temp_min", "Age"]] = [180.0, 37.0, 70.0]
    clean = icu.from_table(table)
    table.loc[0, ["Height", "Temp_min", "Age"]] = [1.8, -17.8, -1]
    table.loc[0, "ICUType"] = 3
    reference = table.copy()
    reference.loc[0, ["Height", "Temp_min", "Age"]] = np.nan
    marked, missing = icu.from_table(table), icu.from_table(reference)
    np.testing.assert_array_equal(marked.train[0], missing.train[0])
    assert not np.array_equal(marked.train[0][0], clean.train[0][0])
    assert "of which 2 held impossible values" in marked.notes[1]
    assert "of which 0 held impossible values" in missing.notes[1]
    assert "base rate" in marked.notes[1]
    assert "ODC-BY" not in marked.notes[1]
    assert "Open Data Commons Attribution License" in marked.notes[-1]


def test_a_missing_folder_is_one_line_with_both_paths_and_how_to_get_the_data(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        icu.load(tmp_path / "keine Däten")
    message = str(caught.value)
    assert "\n" not in message
    assert "physionet.org/content/challenge-2012" in message
    assert str(tmp_path / "keine Däten" / "summary.csv.xz") in message
    assert str(Path("icu_physionet2012") / "summary.csv.xz") in message


@pytest.mark.parametrize("subfolder", [".", "icu_physionet2012"])
def test_the_table_is_found_in_the_folder_or_its_subfolder(tmp_path: Path, subfolder: str) -> None:
    _write(tmp_path / "with space é" / subfolder, _table())
    assert len(icu.load(tmp_path / "with space é").train[0]) > 0


def test_broken_files_are_one_line_with_the_path(tmp_path: Path) -> None:
    whole = (_write(tmp_path, _table()) / icu_table.FILE_NAME).read_bytes()
    text = lzma.decompress(whole)
    latin = text.replace(b"Survival", "Überleben".encode("latin-1"), 1)
    longer = text.replace(b"\n", b"\n1,", 1)
    for broken in (
        whole[: len(whole) // 2], b"", b"not xz at all", gzip.compress(text), lzma.compress(b""),
        lzma.compress(text.replace(b",", b";")), lzma.compress(latin), lzma.compress(longer),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="expected") as caught:
            icu.load(_raw(tmp_path, broken))
        message = str(caught.value)
        assert message.startswith(str(tmp_path / icu_table.FILE_NAME))
        assert "\n" not in message
        assert "expected" in message
        assert "physionet.org" in message


@pytest.mark.parametrize(
    ("row", "column", "cell"),
    [
        (2, "HR_mean", "eighty"), (7, "Age", "54,5"), (9, "pH_mean", "inf"), (3, "death", "2"),
        (4, "death", ""), (5, "set", "d"), (6, "ICUType", "2.5"), (8, "record_id", "0"),
        (11, "record_id", "1.5"), (12, "set", ""), (13, "record_id", ""), (481, "WBC_max", "1e"),
    ],
)  # fmt: skip
def test_a_malformed_cell_is_named_by_file_row_and_column(
    tmp_path: Path, row: int, column: str, cell: str
) -> None:
    table = _table().astype(object)
    table.loc[row - 2, column] = cell
    with pytest.raises(ValueError, match="expected") as caught:
        icu.load(_write(tmp_path, table))
    message = str(caught.value)
    assert f"summary.csv.xz: row {row}, column {column}: got " in message
    assert "expected" in message
    assert "\n" not in message
    assert (repr(cell) if cell else "an empty cell") in message


def test_rows_are_counted_over_blank_lines_and_a_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    text = lzma.decompress((_write(tmp_path, _table()) / icu_table.FILE_NAME).read_bytes())
    plain = icu.load(tmp_path)
    lines = text.split(b"\n")
    padded = b"\xef\xbb\xbf" + b"\r\n".join([*lines[:5], b"", *lines[5:], b"", b""])
    assert _all_equal(icu.load(_raw(tmp_path, lzma.compress(padded))), plain)
    lines[7] = lines[7].replace(b",b,", b",x,").replace(b",a,", b",x,")
    padded = b"\n".join([*lines[:5], b"", *lines[5:]])
    with pytest.raises(ValueError, match="row 9, column set: got 'x'"):
        icu.load(_raw(tmp_path, lzma.compress(padded)))


def test_an_absent_column_an_absent_set_and_a_feature_without_spread_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="got no column, or several, of the name HR_mean"):
        icu.load(_write(tmp_path, _table().drop(columns="HR_mean")))
    with pytest.raises(ValueError, match="got no stays for validation"):
        icu.from_table(_table()[lambda table: table["set"] != "b"])
    with pytest.raises(ValueError, match="column Age: got one value in all of train"):
        icu.from_table(_table().assign(Age=50.0))
    with pytest.raises(ValueError, match="column Lactate_mean: got no possible value in train"):
        icu.from_table(_table().assign(Lactate_mean=-1.0))


def _raw_download(folder: Path) -> None:
    """PhysioNet's layout with one stay a set, a nameless line and two values at one minute."""
    lines = [
        "Time,Parameter,Value", "00:00,RecordID,{}", "00:00,Age,54", "00:00,Gender,0", "00:00,Height,-1",
        "00:00,ICUType,4", "00:00,Weight,-1", "01:30,HR,80", "00:07,HR,73", "01:30,HR,77", "02:00,,5",
        "47:10,Temp,36.6",
    ]  # fmt: skip
    for number, letter in enumerate("abc", start=1):
        (folder / f"set-{letter}").mkdir(parents=True)
        (folder / f"set-{letter}" / f"{number}.txt").write_text("\n".join(lines).format(number))
        header = "RecordID,SAPS-I,SOFA,Length_of_stay,Survival,In-hospital_death"
        (folder / f"Outcomes-{letter}.txt").write_text(f"{header}\n{number},6,1,5,-1,{number % 2}\n")


def test_the_table_made_from_a_download_holds_mean_min_max_last_and_count(tmp_path: Path) -> None:
    _raw_download(tmp_path)
    table = icu_table.read(icu_summary.write(tmp_path), (*icu.FEATURES, "HR_n"))
    stay = table.iloc[0]
    assert table["set"].tolist() == ["a", "b", "c"]
    assert table["death"].tolist() == [1, 0, 1]
    assert stay["Age"] == 54
    assert np.isnan(stay["Height"])
    assert np.isnan(stay["Weight_mean"])
    assert [stay[f"HR_{part}"] for part in ("mean", "min", "max", "last", "n")] == [76.667, 73, 80, 77, 3]
    assert stay["ICUType"] == 4
    assert stay["Temp_max"] == 36.6


def test_a_broken_download_is_named_and_leaves_no_table(tmp_path: Path) -> None:
    _raw_download(tmp_path)
    with (tmp_path / "set-b" / "2.txt").open("a") as stay:
        stay.write("\n03:00,HR,fast")
    with pytest.raises(ValueError, match=r"2\.txt: row 13: got '03:00,HR,fast'"):
        icu_summary.write(tmp_path)
    (tmp_path / "Outcomes-a.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"Outcomes-a\.txt not found"):
        icu_summary.write(tmp_path)
    assert not list(tmp_path.glob("*summary*"))
    run = [sys.executable, "-m", "singularbayes.recipes.data.icu_summary", str(tmp_path)]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "Outcomes-a.txt" in done.stderr


def test_stays_without_a_measurement_are_left_out_and_counted() -> None:
    table = _table()
    chosen = {"train": ("a", 3), "validation": ("b", 4), "test": ("c", 1)}
    for letter, unit in chosen.values():
        row = table.index[(table["set"] == letter) & (table["ICUType"] == unit)][0]
        table.loc[row, list(icu.FEATURES[2:])] = np.nan
        table.loc[row, ["Age", "Gender"]] = [49, 1]
    before, after = icu.from_table(_table()), icu.from_table(table)
    for name in chosen:
        assert len(after.named_sets()[name][0]) == len(before.named_sets()[name][0]) - 1
    words = "1 of train, 1 of validation, 1 of test, 0 of near OOD, 0 of near OOD for choices"
    assert any(words in note for note in after.notes)


def test_the_real_table_has_the_known_counts_and_no_row_twice(shared_data: Path) -> None:
    splits = icu.load(_real(shared_data))
    counts = {
        name: (len(x), None if y is None else int(y.sum())) for name, (x, y) in splits.named_sets().items()
    }
    assert counts == {
        "train": (3123, 511), "validation": (3213, 534), "test": (3124, 539),
        "ood/near": (873, 46), "ood/far": (3124, None),
        "ood_validation/near": (780, 34), "ood_validation/far": (3213, None),
    }  # fmt: skip
    rows = np.concatenate([x for x, _ in splits.named_sets().values()])
    assert len(np.unique(rows, axis=0)) == len(rows)


def test_logistic_regression_ranks_deaths_of_the_real_test_set_at_about_080(shared_data: Path) -> None:
    splits = icu.load(_real(shared_data))
    model = LogisticRegression(C=0.1, max_iter=2000).fit(*splits.train)
    ranking = roc_auc_score(splits.test[1], model.predict_proba(splits.test[0])[:, 1])
    assert 0.80 < ranking < 0.87, "below: inputs lost; above: an outcome leaked in"
