"""Predictions from files give the numbers of evaluate; what is wrong is named with its place."""

import re
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import log_loss, roc_auc_score

from singularbayes.cli import main
from singularbayes.evaluation import evaluate_predictions, paired_difference
from singularbayes.evaluation.prediction import arrays_of
from singularbayes.predictive import CategoricalPredictive, GaussianPredictive
from singularbayes.scores import for_task


def _frame(rows: int = 90, seed: int = 0, model: str | None = None) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet([3, 1, 0.3], size=rows)
    frame = pd.DataFrame(probs, columns=["p_0", "p_1", "p_2"])
    frame.insert(0, "label", np.arange(rows) % 3)
    frame.insert(0, "set", np.where(np.arange(rows) < rows // 2, "test", "weit é"))
    frame["score_distance"] = rng.gamma(1, size=rows) + (np.arange(rows) >= rows // 2)
    if model is not None:
        frame.insert(0, "model", model)
    return frame


def test_class_probabilities_of_a_csv_file_give_scikit_learns_numbers(tmp_path):
    frame = _frame()
    path = tmp_path / "mit Leer é.csv"
    frame.to_csv(path, index=False)
    (found,) = evaluate_predictions(path, bootstrap=50).values()
    test = frame[frame["set"] == "test"]
    assert (found.name, found.task, found.score) == ("mit Leer é", "categorical", "entropy")
    expected = log_loss(test["label"], test[["p_0", "p_1", "p_2"]])
    assert found.metrics["negative_log_likelihood"].value == pytest.approx(expected, abs=1e-9)
    auroc = roc_auc_score(frame["set"] != "test", frame["score_distance"])
    assert found.ood["weit é"]["distance"]["auroc"].value == pytest.approx(auroc, abs=1e-12)


@pytest.mark.parametrize("write", [
    lambda f, p: f.to_csv(p, index=False, encoding="utf-8-sig"),
    lambda f, p: f.to_csv(p, index=False, encoding="utf-16"),
    lambda f, p: f.to_csv(p, index=False, sep=";", decimal=","),
    lambda f, p: f.to_csv(p, index=False, sep="\t"),
], ids=["bom", "utf-16", "decimal comma", "tab"])  # fmt: skip
def test_encodings_and_decimal_commas_give_the_same_numbers(write, tmp_path):
    _frame().to_csv(tmp_path / "p.csv", index=False)
    expected = evaluate_predictions(tmp_path / "p.csv", bootstrap=0)["p"].to_dict()
    (tmp_path / "other").mkdir()
    write(_frame(), tmp_path / "other" / "p.csv")
    assert evaluate_predictions(tmp_path / "other" / "p.csv", bootstrap=0)["p"].to_dict() == expected


def test_draws_of_an_npz_file_give_mutual_information(tmp_path):
    log_probs = torch.randn(8, 60, 3, generator=torch.Generator().manual_seed(0)).double().log_softmax(-1)
    labels = np.arange(60) % 3.0
    names = np.repeat(["test", "far"], 30)
    np.savez(tmp_path / "d.npz", draws_p=log_probs.exp().numpy(), label=labels, set=names)
    found = evaluate_predictions(tmp_path / "d.npz", bootstrap=0)["d"]
    predictive = CategoricalPredictive(log_probs[:, :30])
    expected = arrays_of("test", predictive, labels[:30], "categorical", for_task("categorical"))
    assert (found.draws, found.score) == (8, "mutual_information")
    for key, values in expected.scores.items():
        np.testing.assert_allclose(found.sets["test"].scores[key], values, atol=1e-12)


def test_mean_and_variance_are_those_of_a_gaussian(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"label": rng.normal(size=80), "mean": rng.normal(size=80),
                          "variance": rng.gamma(2, size=80)})  # fmt: skip
    frame["epistemic"] = 0.3 * frame["variance"]
    frame.to_csv(tmp_path / "g.csv", index=False)
    found = evaluate_predictions(tmp_path / "g.csv", bootstrap=0)["g"]
    parts = (torch.tensor(frame[key].to_numpy())[None] for key in ("mean", "variance"))
    expected = -GaussianPredictive(*parts).log_prob(torch.tensor(frame["label"].to_numpy())).mean()
    assert found.metrics["negative_log_likelihood"].value == pytest.approx(expected.item(), abs=1e-9)
    assert found.score == "epistemic_variance"
    np.testing.assert_allclose(found.sets["test"].scores[found.score], frame["epistemic"], rtol=1e-9)


def test_models_of_one_file_are_compared_in_pairs(tmp_path):
    pd.concat([_frame(seed=0, model="a"), _frame(seed=1, model="b")]).to_csv(tmp_path / "m.csv", index=False)
    found = evaluate_predictions(tmp_path / "m.csv", bootstrap=50)
    gap = paired_difference(found["a"], found["b"], "accuracy")
    assert gap.value == pytest.approx(
        found["a"].metrics["accuracy"].value - found["b"].metrics["accuracy"].value
    )


WRONG = {
    "no label": (lambda f: f.drop(columns="label"), "has no column label; found set, p_0"),
    "no prediction": (lambda f: f[["set", "label"]], "has no prediction: found set, label; expected p_0"),
    "gap": (lambda f: f.drop(columns="p_1"), "has p_0, p_2; expected p_0, p_1, ... without a gap"),
    "sum": (lambda f: f.assign(p_0=f["p_0"] * 0.5), "row 2, column p_0 ...: got"),
    "logits": (lambda f: f.assign(p_0=f["p_0"] * 5), "expected a probability from 0 to 1"),
    "nan": (lambda f: f.assign(score_distance=f["score_distance"].where(f.index != 4)),
            "row 6, column score_distance: got nan, expected a finite number"),
    "word": (lambda f: f.assign(p_1=f["p_1"].astype(object).where(f.index != 3, "n/k")),
             "row 5, column p_1: got 'n/k', expected a number"),
    "half labels": (lambda f: f.assign(label=f["label"].where(f.index != 7)), "row 9, column label: empty"),
    "class": (lambda f: f.assign(label=f["label"] + 1), "expected 0..2"),
    "no test": (lambda f: f.assign(set="far"), "none called 'test'"),
    "no name": (lambda f: f.assign(set=""), "row 2 has an empty set"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_file_is_one_error_that_names_file_and_place(case, tmp_path):
    change, message = WRONG[case]
    change(_frame()).to_csv(tmp_path / "w.csv", index=False)
    with pytest.raises(ValueError, match=r"w\.csv.*" + re.escape(message)):
        evaluate_predictions(tmp_path / "w.csv", bootstrap=0)


@pytest.mark.usefixtures("unchecked")
def test_the_command_line_judges_a_file_and_refuses_a_wrong_one_with_exit_code_2(tmp_path, capsys):
    _frame().to_csv(tmp_path / "p.csv", index=False)
    with pytest.raises(SystemExit) as stop:
        main(["evaluate", str(tmp_path / "p.csv"), "--bootstrap", "20"])
    assert not stop.value.code
    assert "adaptive_calibration_error" in capsys.readouterr().out
    _frame().drop(columns="label").to_csv(tmp_path / "w.csv", index=False)
    with pytest.raises(SystemExit) as stop:
        main(["evaluate", str(tmp_path / "w.csv")])
    assert stop.value.code == 2
    assert "has no column label" in capsys.readouterr().err


def test_a_binary_probability_gives_scikit_learns_numbers(tmp_path):
    rng = np.random.default_rng(2)
    frame = pd.DataFrame({"label": np.arange(70) % 2, "p": rng.beta(0.5, 2, size=70)})
    frame.to_csv(tmp_path / "b.csv", index=False)
    found = evaluate_predictions(tmp_path / "b.csv", bootstrap=0)["b"]
    assert (found.task, found.draws) == ("bernoulli", 1)
    expected = log_loss(frame["label"], frame["p"])
    assert found.metrics["negative_log_likelihood"].value == pytest.approx(expected, abs=1e-9)
    auroc = roc_auc_score(frame["label"], frame["p"])
    assert found.metrics["auroc"].value == pytest.approx(auroc, abs=1e-12)
    np.savez(tmp_path / "b.npz", label=frame["label"], p=frame["p"])
    again = evaluate_predictions(tmp_path / "b.npz", bootstrap=0)["b"]
    assert (again.task, again.metrics) == ("bernoulli", found.metrics)


def test_printed_probabilities_are_scaled_to_sum_to_one(tmp_path):
    frame = _frame()
    columns = ["p_0", "p_1", "p_2"]
    frame[columns] = frame[columns].round(4).clip(lower=0.0001)
    frame.to_csv(tmp_path / "r.csv", index=False)
    mean = evaluate_predictions(tmp_path / "r.csv", bootstrap=0)["r"].sets["test"].mean
    np.testing.assert_allclose(mean.sum(1), 1, atol=1e-12)


def test_eleven_classes_stand_in_the_order_of_their_numbers(tmp_path):
    probs = np.random.default_rng(0).dirichlet(np.arange(1, 12), size=40)
    frame = pd.DataFrame(probs, columns=[f"p_{k}" for k in range(11)]).assign(label=np.arange(40) % 11)
    frame[sorted(frame.columns)].to_csv(tmp_path / "k.csv", index=False)
    found = evaluate_predictions(tmp_path / "k.csv", bootstrap=0)["k"].sets["test"].mean
    np.testing.assert_allclose(found, probs, atol=1e-12)


def test_sets_have_their_own_share_and_metrics_where_they_have_labels(tmp_path):
    frame = _frame(rows=90)
    frame["set"] = np.repeat(["near", "test", "far"], [10, 30, 50])  # test comes first all the same
    frame["label"] = frame["label"].where(frame["set"] != "far")
    frame.to_csv(tmp_path / "s.csv", index=False)
    found = evaluate_predictions(tmp_path / "s.csv", bootstrap=0)["s"]
    assert list(found.sets) == ["test", "near", "far"]
    assert found.prevalence == pytest.approx({"near": 10 / 40, "far": 50 / 80})
    assert list(found.ood_metrics) == ["near"]


@pytest.mark.parametrize("kind", ["csv", "npz"])
def test_chunks_of_a_file_change_no_number_and_no_place(kind, tmp_path, monkeypatch):
    frame = pd.concat([_frame(seed=0, model="a"), _frame(seed=1, model="b")])
    path = tmp_path / f"c.{kind}"

    def written(label):
        changed = frame.assign(label=label)
        if kind == "csv":
            changed.to_csv(path, index=False)
        else:
            probs = changed[["p_0", "p_1", "p_2"]].to_numpy()
            names = {key: changed[key].to_numpy().astype(str) for key in ("model", "set")}
            np.savez(path, draws_p=np.stack([probs, probs[:, ::-1]]), label=changed["label"], **names)

    written(frame["label"])
    whole = evaluate_predictions(path, bootstrap=20)
    monkeypatch.setattr("singularbayes.evaluation.tables.CHUNK", 7)
    parts = evaluate_predictions(path, bootstrap=20)
    for model, evaluation in whole.items():
        assert parts[model].draws == evaluation.draws == (1 if kind == "csv" else 2)
        for name, arrays in evaluation.sets.items():
            np.testing.assert_allclose(parts[model].sets[name].mean, arrays.mean, rtol=1e-12)
            assert np.array_equal(parts[model].sets[name].labels, arrays.labels)
    written(np.where(np.arange(len(frame)) == 24, np.inf, frame["label"]))
    with pytest.raises(ValueError, match=rf"row {24 + 2 * (kind == 'csv')}, column label: got inf"):
        evaluate_predictions(path, bootstrap=0)
    half = np.where(np.arange(len(frame)) < 7, np.nan, frame["label"])
    written(half)
    with pytest.raises(ValueError, match="some rows of set 'test' have labels and some have none"):
        evaluate_predictions(path, bootstrap=0)


PROBS = np.random.default_rng(0).dirichlet([1, 1, 1], 6)
ARRAYS = {
    "one axis of draws": ({"draws_p": PROBS[0], "label": np.arange(3)},
                          r"draws_p has shape \(3,\); expected 2 or 3 axes"),
    "no axis": ({"p": np.array(0.3), "label": np.arange(3)}, r"p has shape \(\); expected 1 or 2 axes"),
    "three axes": ({"p": PROBS[None], "label": np.arange(6)}, r"p has shape \(1, 6, 3\)"),
    "wide label": ({"p": PROBS, "label": PROBS}, r"label has shape \(6, 3\); expected 1 axes \(rows\)"),
    "one set": ({"p": PROBS, "label": np.arange(6) % 3, "set": np.array("test")}, r"set has shape \(\)"),
    "wide score": ({"p": PROBS, "label": np.arange(6) % 3, "score_a": PROBS}, "score_a has shape"),
    "rows": ({"p": PROBS, "label": np.arange(5) % 3}, "different numbers of rows: {'label': 5, 'p': 6}"),
    "draws": ({"draws_mean": np.ones((4, 6)), "draws_variance": np.ones((3, 6)), "label": np.arange(6)},
              "expected as many draws of each"),
    "no draws": ({"draws_p": np.ones((0, 6, 3)), "label": np.arange(6) % 3}, "at least one"),
    "no rows": ({"p": PROBS[:0], "label": np.arange(0)}, "has no rows"),
    "objects": ({"p": PROBS, "label": np.array([None] * 6)}, "can't be read"),
    "own score": ({"p": PROBS, "label": np.arange(6) % 3, "score_entropy": PROBS[:, 0]},
                  "column score_entropy, and entropy is worked out"),
}  # fmt: skip


@pytest.mark.parametrize("case", ARRAYS)
def test_a_wrong_npz_file_is_one_error_that_names_the_array(case, tmp_path):
    arrays, message = ARRAYS[case]
    np.savez(tmp_path / "w.npz", **arrays)
    with pytest.raises(ValueError, match=r"w\.npz.*" + message):
        evaluate_predictions(tmp_path / "w.npz", bootstrap=0)


TEXTS = {
    "decimal comma": ("label,mean,variance\n1,0,4,0,2\n", "row 2 has 5 cells for 3 names"),
    "no names": ("", "row 1 has no names"),
    "twice": ("label,p,p\n1,0.1,0.1\n", "row 1 has the name 'p' twice"),
    "no rows": ("label,p\n", "has no rows"),
    "unlabelled test": ("label,p\n,0.1\n,0.2\n", "'test' of model 'w' has no labels"),
    "negative": ("label,p\n1,0.1\n0,-0.2\n", "row 3, column p: got -0.2, expected a probability"),
    "no variance": ("label,mean,variance\n1,0.1,0\n", "column variance: got 0, expected a variance above 0"),
    "epistemic": ("label,mean,variance,epistemic\n1,0,1,1.1\n", "column epistemic: got 1.1, expected a part"),
    "blank line": ("label,p\n1,0.1\n\n0,x\n", "row 4, column p: got 'x', expected a number"),
    "thousands": ("label;mean;variance\n1;1.234,5;1\n", r"row 2, column mean: got '1\.234,5'"),
}


@pytest.mark.parametrize("case", TEXTS)
def test_a_wrong_csv_file_is_one_error_that_names_the_place(case, tmp_path):
    text, message = TEXTS[case]
    (tmp_path / "w.csv").write_text(text)
    with pytest.raises(ValueError, match=r"w\.csv.*" + message):
        evaluate_predictions(tmp_path / "w.csv", bootstrap=0)


def test_spaces_around_the_names_do_not_count(tmp_path):
    (tmp_path / "s.csv").write_text("label , p\n1, 0.4\n0, 0.3\n1, 0.2\n")
    found = evaluate_predictions(tmp_path / "s.csv", bootstrap=0)["s"]
    assert found.sets["test"].mean.tolist() == pytest.approx([0.4, 0.3, 0.2])


@pytest.mark.usefixtures("unchecked")
def test_parquet_without_its_package_is_exit_code_2_and_says_what_to_install(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (tmp_path / "p.parquet").write_bytes(b"PAR1")
    with pytest.raises(SystemExit) as stop:
        main(["evaluate", str(tmp_path / "p.parquet")])
    assert stop.value.code == 2
    assert "needs pyarrow: pip install pyarrow, or save it as .csv" in capsys.readouterr().err


def test_batches_of_a_parquet_file_give_the_numbers_of_a_csv_file(tmp_path, monkeypatch):
    frame = _frame()

    class Batch:
        def __init__(self, rows):
            self.to_pandas = lambda: rows

    class ParquetFile:  # what is used of pyarrow's
        def __init__(self, path):
            self.schema_arrow = SimpleNamespace(names=list(frame.columns))

        def iter_batches(self, batch_size, columns):
            return (Batch(frame[columns][start : start + 7]) for start in range(0, len(frame), 7))

    monkeypatch.setitem(sys.modules, "pyarrow", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", SimpleNamespace(ParquetFile=ParquetFile))
    frame.to_csv(tmp_path / "f.csv", index=False)
    (tmp_path / "f.parquet").write_bytes(b"PAR1")
    expected = evaluate_predictions(tmp_path / "f.csv", bootstrap=0)["f"]
    found = evaluate_predictions(tmp_path / "f.parquet", bootstrap=0)["f"]
    for name, arrays in expected.sets.items():
        np.testing.assert_allclose(found.sets[name].mean, arrays.mean, rtol=1e-12)
    frame.loc[40, "set"] = None
    with pytest.raises(ValueError, match=r"f\.parquet: row 40 has an empty set"):
        evaluate_predictions(tmp_path / "f.parquet", bootstrap=0)
