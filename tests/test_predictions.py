"""Predictions from files give the numbers of evaluate; what is wrong is named with its place."""

import re

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
