"""Evaluation: every task, strict files, checks before work, and paired differences on the same resamples."""

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import accuracy_score, average_precision_score, log_loss, roc_auc_score
from torch.utils.data import DataLoader, Dataset, TensorDataset

from singularbayes import metrics
from singularbayes.evaluation import Evaluation, evaluate, paired_difference
from singularbayes.evaluation.measures import ood_strata_of, set_replicates, strata_of
from singularbayes.metrics.bootstrap import resample_counts
from singularbayes.predictive import BernoulliPredictive, CategoricalPredictive, GaussianPredictive


class LinearPosterior:
    """Draws of a linear map: the smallest thing with a posterior's interface."""

    def __init__(self, task: str, outputs: int = 3, spread: float = 0.3) -> None:
        self.likelihood = SimpleNamespace(task=task)
        self.info = {"method": "Linear", "numbers": 12, "seconds": 0.5, "epochs": 3, "settings": {"a": 1}}
        self.outputs, self.spread, self.calls = outputs, spread, 0
        self.dtype = torch.float64

    def predict(self, x, draws=64, seed=0):
        self.calls += 1
        x = x["x"] if isinstance(x, dict) else x[0] if isinstance(x, tuple) else x
        x = torch.as_tensor(x, dtype=torch.float64)
        generator = torch.Generator().manual_seed(seed)
        weight = torch.randn(1, x.shape[1], self.outputs, generator=generator, dtype=torch.float64)
        noise = torch.randn(draws, x.shape[1], self.outputs, generator=generator, dtype=torch.float64)
        outputs = x @ (weight + self.spread * noise)
        if self.likelihood.task == "categorical":
            return CategoricalPredictive(outputs.log_softmax(-1))
        outputs = outputs[..., 0] if self.outputs == 1 else outputs
        if self.likelihood.task == "bernoulli":
            return BernoulliPredictive(outputs)
        return GaussianPredictive(outputs, torch.full_like(outputs, 0.25))


def _data(task: str, rows: int = 120, seed: int = 0, scale: float = 1.0):
    rng = np.random.default_rng(seed)
    x = scale * rng.normal(size=(rows, 4))
    if task == "gaussian":
        return torch.tensor(x), torch.tensor(x[:, 0] + 0.5 * rng.normal(size=rows))
    return torch.tensor(x), torch.tensor(rng.integers(3 if task == "categorical" else 2, size=rows))


def _posterior(task: str, spread: float = 0.3) -> LinearPosterior:
    return LinearPosterior(task, outputs=3 if task == "categorical" else 1, spread=spread)


def _evaluated(task: str, **changes) -> Evaluation:
    ood = {"near": _data(task, 80, 1, 1.5), "far/é": _data(task, 90, 2, 5.0)[0]}
    return evaluate(_posterior(task), _data(task), **{"ood": ood, "bootstrap": 50, "draws": 8, **changes})


TASKS = ("categorical", "bernoulli", "gaussian")
CLASS_METRICS = {
    "accuracy",
    "negative_log_likelihood",
    "brier",
    "expected_calibration_error",
    "adaptive_calibration_error",
    "error_average_precision",
    "success_average_precision",
    "selective_risk_area",
}
NUMBER_METRICS = {
    "rmse",
    "mae",
    "negative_log_likelihood",
    "crps",
    "interval_coverage",
    "interval_width",
    "regression_calibration_error",
    "selective_risk_area",
}
EXPECTED = {"categorical": CLASS_METRICS, "bernoulli": CLASS_METRICS | {"auroc"}, "gaussian": NUMBER_METRICS}


@pytest.mark.parametrize("task", TASKS)
def test_every_task_has_its_metrics_scores_and_sets(task):
    evaluation = _evaluated(task)
    assert set(evaluation.metrics) == EXPECTED[task] == set(evaluation.ood_metrics["near"])
    assert list(evaluation.ood_metrics) == ["near"]
    assert list(evaluation.sets) == ["test", "near", "far/é"]
    assert (evaluation.name, evaluation.task, evaluation.draws, evaluation.seed) == ("Linear", task, 8, 0)
    assert evaluation.prevalence == {"near": 80 / 200, "far/é": 90 / 210}
    assert evaluation.info == {"method": "Linear", "numbers": 12, "seconds": 0.5, "epochs": 3}
    for by_score in evaluation.ood.values():
        assert next(iter(by_score)) == evaluation.score
        for measures in by_score.values():
            assert list(measures) == ["auroc", "average_precision_out", "average_precision_in", "fpr95"]
            assert all(cell.low <= cell.value <= cell.high for cell in measures.values())
    # mutual information falls where the probabilities saturate; the logits still disagree there
    score = "epistemic_variance" if task == "gaussian" else "logit_disagreement"
    assert evaluation.ood["far/é"][score]["auroc"].value > 0.9


def test_class_metrics_equal_scikit_learn():
    x, y = _data("categorical")
    evaluation = _evaluated("categorical")
    predictive = _posterior("categorical").predict(x, draws=8)
    probs = predictive.mean.numpy()
    found = {key: cell.value for key, cell in evaluation.metrics.items()}
    assert found["accuracy"] == pytest.approx(accuracy_score(y, probs.argmax(1)), abs=1e-12)
    assert found["negative_log_likelihood"] == pytest.approx(log_loss(y, probs), abs=1e-9)
    assert found["brier"] == pytest.approx(metrics.brier(probs, y), abs=1e-12)
    assert found["expected_calibration_error"] == pytest.approx(
        metrics.expected_calibration_error(probs, y), abs=1e-12
    )
    wrong, uncertainty = probs.argmax(1) != y.numpy(), predictive.epistemic.numpy()
    assert found["error_average_precision"] == pytest.approx(
        average_precision_score(wrong, uncertainty), abs=1e-9
    )


def test_ood_measures_state_ood_as_positive():
    evaluation = _evaluated("gaussian")
    inside, outside = (evaluation.sets[key].scores["epistemic_variance"] for key in ("test", "near"))
    both, is_out = np.concatenate([inside, outside]), np.repeat([0, 1], [len(inside), len(outside)])
    found = evaluation.ood["near"]["epistemic_variance"]
    assert found["auroc"].value == pytest.approx(roc_auc_score(is_out, both), abs=1e-12)
    assert found["average_precision_out"].value == pytest.approx(
        average_precision_score(is_out, both), abs=1e-12
    )
    assert found["average_precision_in"].value == pytest.approx(
        average_precision_score(1 - is_out, -both), abs=1e-12
    )
    assert found["fpr95"].value == metrics.fpr_at_tpr(both, is_out)


def test_number_metrics_are_those_of_the_mixture():
    x, y = _data("gaussian")
    predictive = _posterior("gaussian").predict(x, draws=8)
    found = {key: cell.value for key, cell in _evaluated("gaussian").metrics.items()}
    low, high = predictive.interval(0.95).numpy()
    assert found["rmse"] == pytest.approx(metrics.root_mean_squared_error(predictive.mean, y), abs=1e-12)
    assert found["negative_log_likelihood"] == pytest.approx(-predictive.log_prob(y).mean().item(), abs=1e-9)
    assert found["crps"] == pytest.approx(metrics.crps(predictive.means, predictive.variances, y), abs=1e-12)
    assert found["interval_coverage"] == pytest.approx(metrics.interval_coverage(low, high, y), abs=1e-12)
    assert found["interval_width"] == pytest.approx(metrics.interval_width(low, high), abs=1e-9)


@pytest.mark.parametrize("task", TASKS)
def test_integer_float_column_and_array_labels_give_the_same_numbers(task):
    x, y = _data(task)
    expected = evaluate(_posterior(task), (x, y), bootstrap=0).to_dict()
    for labels in (y[:, None], y.numpy(), y.double(), y.numpy()[:, None]):
        assert evaluate(_posterior(task), (x, labels), bootstrap=0).to_dict() == expected
    assert evaluate(_posterior(task), (x.numpy(), y), bootstrap=0).to_dict() == expected


def test_inputs_may_be_dicts_and_tuples_of_arrays():
    x, y = _data("categorical")
    expected = evaluate(_posterior("categorical"), (x, y), {"far": x}, bootstrap=5).to_dict()
    for form in ({"x": x, "mask": None}, (x, torch.ones(120))):
        found = evaluate(_posterior("categorical"), (form, y), {"far": (form, y)}, bootstrap=5).to_dict()
        assert found["metrics"] == expected["metrics"]
        assert found["ood"] == expected["ood"]
    with pytest.raises(ValueError, match=r"set 'test': the parts of X have \[5, 120\] rows"):
        evaluate(_posterior("categorical"), ((x, x[:5]), y))


class Examples(Dataset):
    """A map-style data set of the classification problem."""

    def __len__(self) -> int:
        return 120

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = _data("categorical")
        return x[index], y[index]


def _forms():
    x, y = _data("categorical")
    half = slice(0, 60), slice(60, 120)
    return {
        "arrays": (x.numpy(), y.numpy()),
        "list pair": [x, y],
        "frames": (pd.DataFrame(x.numpy()), pd.Series(y.numpy())),
        "lists": (x.tolist(), y.tolist()),
        "dataset": Examples(),
        "loader": DataLoader(TensorDataset(x, y), batch_size=50),
        "two batches": [(x[part], y[part]) for part in half],
        "batches": tuple((x[i : i + 40], y[i : i + 40]) for i in (0, 40, 80)),
        "dict batches": [{"x": x[part], "labels": y[part]} for part in half],
        "one dict batch": {"x": x, "label": y},
    }


@pytest.mark.parametrize("form", _forms())
def test_test_and_ood_sets_may_be_of_every_form_that_fit_takes(form):
    posterior, data = _posterior("categorical"), _data("categorical")
    expected = evaluate(posterior, data, {"far": data}, bootstrap=5).to_dict()
    assert evaluate(posterior, _forms()[form], {"far": _forms()[form]}, bootstrap=5).to_dict() == expected


@pytest.mark.parametrize("form", ["tensor", "array", "frame", "dict", "three"])
def test_ood_sets_without_labels_may_be_tensors_arrays_frames_and_structures(form):
    x = _data("categorical")[0]
    forms = {"tensor": x, "array": x.numpy(), "frame": pd.DataFrame(x.numpy()), "dict": {"x": x.numpy()}}
    given = {**forms, "three": (x, x, x)}[form]
    evaluation = evaluate(
        _posterior("categorical"), (x, _data("categorical")[1]), {"far": given}, bootstrap=0
    )
    assert evaluation.sets["far"].labels is None
    np.testing.assert_array_equal(evaluation.sets["far"].mean, evaluation.sets["test"].mean)


def test_a_shuffling_loader_is_evaluated_in_the_same_order_twice_and_moves_no_state():
    loader = DataLoader(TensorDataset(*_data("categorical")), batch_size=7, shuffle=True)
    before = torch.get_rng_state()
    a, b = (evaluate(_posterior("categorical"), loader, bootstrap=0) for _ in range(2))
    np.testing.assert_array_equal(a.sets["test"].labels, b.sets["test"].labels)
    assert torch.equal(torch.get_rng_state(), before)


class Recorder(LinearPosterior):
    """Keeps the inputs that it was given."""

    def predict(self, x, draws=64, seed=0):
        self.given = x
        return super().predict(x, draws, seed)


def test_a_posterior_without_a_dtype_gets_float32_and_whole_numbers_and_masks_as_they_are():
    x, y = _data("categorical")
    posterior = Recorder("categorical")
    del posterior.dtype
    evaluate(posterior, ((x, torch.arange(120), torch.ones(120, 2, dtype=torch.bool)), y), bootstrap=0)
    assert [part.dtype for part in posterior.given] == [torch.float32, torch.int64, torch.bool]


def test_whole_numbers_are_cast_for_a_network_that_takes_no_ids():
    x, y = torch.arange(40).reshape(10, 4), torch.arange(10) % 3
    posterior = Recorder("categorical")
    for network, dtype in (
        (torch.nn.Linear(4, 3), torch.float64),
        (torch.nn.Embedding(40, 3), torch.int64),
    ):
        posterior.network = network
        evaluate(posterior, (x, y), bootstrap=0)
        assert posterior.given.dtype == dtype


def test_several_outputs_are_measured_together():
    x = _data("gaussian")[0]
    evaluation = evaluate(LinearPosterior("gaussian", outputs=2), (x, torch.zeros(120, 2)), bootstrap=5)
    assert evaluation.sets["test"].error.shape == (120,)
    assert evaluation.sets["test"].mean.shape == (120, 2)
    expected = metrics.root_mean_squared_error(evaluation.sets["test"].mean, np.zeros((120, 2)))
    assert evaluation.metrics["rmse"].value == pytest.approx(expected, abs=1e-12)


def test_a_posterior_of_equal_draws_has_no_ood_signal_rather_than_rounding():
    evaluation = evaluate(
        _posterior("categorical", spread=0.0), _data("categorical"), {"far": _data("categorical", 50, 3)[0]}
    )
    cell = evaluation.ood["far"]["mutual_information"]["auroc"]
    assert (cell.value, cell.low, cell.high) == (0.5, 0.5, 0.5)


def test_one_class_only_is_undefined_with_a_warning_that_names_metric_and_set():
    x, y = _data("bernoulli")
    with pytest.warns(UserWarning, match="auroc of set 'test' is undefined"):
        evaluation = evaluate(_posterior("bernoulli"), (x, torch.zeros_like(y)), bootstrap=10)
    assert str(evaluation.metrics["auroc"]) == "undefined"
    assert np.isnan(evaluation.table().set_index("measure").loc["auroc", "value"])


def test_evaluating_twice_gives_the_same_numbers_and_leaves_global_generators_alone():
    states = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002 - must not move
    first, again = _evaluated("categorical"), _evaluated("categorical")
    assert first.to_dict() == again.to_dict()
    assert _evaluated("categorical", seed=1).metrics != first.metrics
    assert torch.equal(torch.get_rng_state(), states[0])
    np.testing.assert_array_equal(np.random.get_state()[1], states[1])  # noqa: NPY002


def test_the_table_prints_prevalence_beside_ood_measures():
    table = _evaluated("categorical").table()
    assert list(table.columns) == ["set", "score", "measure", "value", "low", "high", "prevalence"]
    assert len(table) == 2 * 8 + 2 * 6 * 4
    row = table[(table.set == "near") & (table.score == "entropy") & (table.measure == "auroc")].iloc[0]
    assert row.prevalence == 0.4


@pytest.mark.parametrize("task", TASKS)
def test_a_saved_evaluation_loads_to_the_same_numbers_and_arrays(task, tmp_path):
    evaluation = _evaluated(task, name='a "name" <b> ü')
    folder = evaluation.save(tmp_path / "runs" / "seed 0")
    loaded = Evaluation.load(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["arrays.npz", "evaluation.json"]
    assert loaded.to_dict() == evaluation.to_dict()
    assert list(loaded.sets) == list(evaluation.sets)
    for name, arrays in evaluation.sets.items():
        again = loaded.sets[name]
        for key in ("labels", "mean", "variance", "error"):
            np.testing.assert_equal(getattr(again, key), getattr(arrays, key))
        np.testing.assert_equal(again.scores, arrays.scores)
        np.testing.assert_equal(again.rows, arrays.rows)
        assert list(again.scores) == list(arrays.scores)


def test_json_is_strict_with_null_for_nan_and_text_for_infinity(tmp_path):
    x, y = _data("bernoulli")
    with pytest.warns(UserWarning, match="undefined"):
        evaluation = evaluate(_posterior("bernoulli"), (x, torch.zeros_like(y)), bootstrap=0)
    evaluation.metrics["brier"] = metrics.Interval(np.inf, -np.inf, np.nan)
    text = (evaluation.save(tmp_path / "run") / "evaluation.json").read_text(encoding="utf-8")

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    data = json.loads(text, parse_constant=refuse)
    assert data["metrics"]["auroc"] == {"value": None, "low": None, "high": None}
    assert data["metrics"]["brier"] == {"value": "Infinity", "low": "-Infinity", "high": None}
    again = Evaluation.load(tmp_path / "run").metrics
    assert np.isnan(again["auroc"].value)
    assert (again["brier"].value, again["brier"].low) == (np.inf, -np.inf)


def test_an_interrupted_save_leaves_the_earlier_evaluation_whole(tmp_path, monkeypatch):
    evaluation = _evaluated("categorical")
    evaluation.save(tmp_path / "run")

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(np, "savez_compressed", interrupted)
        for name in ("run", "other"):
            with pytest.raises(KeyboardInterrupt):
                evaluation.save(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert Evaluation.load(tmp_path / "run").to_dict() == evaluation.to_dict()
    _evaluated("categorical", name="second").save(tmp_path / "run")
    assert Evaluation.load(tmp_path / "run").name == "second"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("task", TASKS)
def test_the_representation_is_short_and_names_sets_and_numbers(task):
    evaluation = _evaluated(task, name="mine")
    text = repr(evaluation)
    assert text.startswith(f"Evaluation('mine', {task}, rows: test 120, near 80, far/é 90; ")
    assert "AUROC on near" in text
    assert len(text) < 300
    assert "array" not in text


@pytest.mark.usefixtures("unchecked")
def test_damaged_files_are_named(tmp_path):
    folder = _evaluated("categorical").save(tmp_path / "e")
    arrays, record = folder / "arrays.npz", folder / "evaluation.json"
    whole, text = arrays.read_bytes(), record.read_text(encoding="utf-8")
    for size in (0, 10, len(whole) // 2, len(whole) - 30):
        arrays.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"arrays\.npz is damaged"):
            Evaluation.load(folder)
    arrays.write_bytes(whole)
    for damaged in ("[]", "{}", "{", '"a"', text.replace('"metrics": {', '"metrics": 3, "x": {')):
        record.write_text(damaged, encoding="utf-8")
        with pytest.raises(ValueError, match=r"evaluation\.json"):
            Evaluation.load(folder)


def test_saving_over_something_else_and_loading_nothing_are_refused(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(FileExistsError, match="is no evaluation"):
        _evaluated("categorical").save(tmp_path / "mine")
    with pytest.raises(FileNotFoundError, match=r"no evaluation\.json"):
        Evaluation.load(tmp_path / "mine")
    folder = _evaluated("categorical").save(tmp_path / "run")
    (folder / "evaluation.json").write_text("{half")
    with pytest.raises(ValueError, match="not valid JSON"):
        Evaluation.load(folder)
    (folder / "evaluation.json").write_text("{}")
    with pytest.raises(ValueError, match="format None"):
        Evaluation.load(folder)


X, Y = _data("categorical", 10)
WRONG = {
    "no labels": ((X, {}), "test has no labels"),
    "no rows": (((X[:0], Y[:0]), {}), "set 'test': X is empty"),
    "lengths": (((X, Y[:5]), {}), "set 'test': X has 10 rows and y has 5"),
    "kind of data": (
        ("data.csv", {}),
        r"set 'test': data must be \(X, y\), a Dataset, or an iterable of batches, got str",
    ),
    "kind of OOD data": (((X, Y), {"far": 3}), "set 'far': data must be .* got int"),
    "OOD set named test": (((X, Y), {"test": X}), "other than 'test'"),
    "empty OOD": (((X, Y), {"far": X[:0]}), "set 'far': X is empty"),
    "half labels": (((X, Y + 0.5), {}), "in row 0 of set 'test'; expected whole numbers"),
    "negative labels": (((X, Y - 5), {}), "expected whole numbers from 0"),
    "one-hot labels": (((X, torch.eye(3)[Y]), {}), r"shape \(10, 3\)"),
    "NaN inputs": (((X * float("nan"), Y), {}), "set 'test': X holds nan at row 0, column 0"),
    "NaN labels": (((X, Y * float("nan")), {}), "set 'test': y holds nan at row 0"),
    "an iterator": ((iter([(X, Y)]), {}), "set 'test': .* read only once"),
    "OOD batches without labels": (((X, Y), {"far": [[X]]}), r"set 'far': a batch must be \(x, y\)"),
    "no inputs": (((X, Y), {"far": {}}), "set 'far': X is empty"),
    "text labels": (((X, ["a"] * 10), {}), "set 'test': y must be numeric"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_data_are_refused_in_one_line_before_any_prediction(case):
    (test, ood), message = WRONG[case]
    posterior = _posterior("categorical")
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        evaluate(posterior, test, ood)
    assert "\n" not in str(caught.value)
    assert posterior.calls == 0


def test_wrong_settings_and_posteriors_are_refused():
    for settings, message in (
        ({"draws": 0}, "draws must be at least 1, got 0"),
        ({"bootstrap": -1}, "bootstrap must be at least 0"),
        (
            {"seed": 1.5},
            "seed must be an integer|Type-check error",
        ),  # the check of annotations in tests is first
        ({"ood": X}, "ood must map names to data|Type-check error"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            evaluate(_posterior("categorical"), (X, Y), **settings)
    with pytest.raises(TypeError, match="expected a posterior"):
        evaluate(torch.nn.Linear(4, 3), (X, Y))
    with pytest.raises(ValueError, match="unknown task"):
        evaluate(LinearPosterior("ranking"), (X, Y))


def test_labels_of_other_classes_say_what_to_do():
    with pytest.raises(ValueError, match=r"label 9 in row 0 of set 'far'.*pass X alone"):
        evaluate(_posterior("categorical"), (X, Y), {"far": (X, torch.full((10,), 9))})


def test_a_vector_of_labels_against_two_outputs_is_one_clear_message():
    with pytest.raises(ValueError, match=r"y of set 'test' has shape \(10,\), predictions \(10, 2\)"):
        evaluate(LinearPosterior("gaussian", outputs=2), (X, Y))


def test_predictions_that_are_not_finite_name_set_and_row():
    x = X.clone()
    x[3] = 1e308
    with pytest.raises(ValueError, match=r"'far' are not finite in 1 of 10 rows, first in row 3"):
        evaluate(_posterior("categorical"), (X, Y), {"far": x})


def test_paired_differences_use_the_same_resamples_of_both():
    test, ood = _data("categorical"), {"far": _data("categorical", 80, 1, 1.5)[0]}
    a, b = (evaluate(_posterior("categorical", s), test, ood, bootstrap=400) for s in (0.3, 0.35))
    nll = paired_difference(a, b, "negative_log_likelihood")
    assert nll.value == pytest.approx(
        a.metrics["negative_log_likelihood"].value - b.metrics["negative_log_likelihood"].value, abs=1e-12
    )
    assert nll.low <= nll.value <= nll.high
    unpaired = a.metrics["negative_log_likelihood"].high - a.metrics["negative_log_likelihood"].low
    assert nll.high - nll.low < unpaired / 3
    auroc = paired_difference(a, b, "auroc", on="far")
    default = "mutual_information"
    assert auroc.value == pytest.approx(
        a.ood["far"][default]["auroc"].value - b.ood["far"][default]["auroc"].value, abs=1e-12
    )
    assert paired_difference(a, b, "auroc", on="far", score="entropy") != auroc


def test_an_evaluation_differs_from_itself_by_exactly_zero():
    a = _evaluated("gaussian")
    for metric in ("rmse", "crps", "regression_calibration_error"):
        assert paired_difference(a, a, metric) == metrics.Interval(0.0, 0.0, 0.0)
    assert paired_difference(a, a, "fpr95", on="near") == metrics.Interval(0.0, 0.0, 0.0)


def test_unpaired_resamples_would_fail_the_test_above():
    a = _evaluated("gaussian")
    first, second = (set_replicates(a.sets["test"], "gaussian", 50, seed)["rmse"] for seed in (0, 1))
    assert np.ptp(first - second) > 0


def test_evaluations_of_other_data_are_not_compared():
    a = _evaluated("gaussian")
    other = evaluate(_posterior("gaussian"), _data("gaussian", seed=9), bootstrap=10)
    with pytest.raises(ValueError, match="other rows or labels in set 'test'"):
        paired_difference(a, other, "rmse")
    with pytest.raises(ValueError, match="the tasks differ"):
        paired_difference(a, _evaluated("categorical"), "rmse")
    with pytest.raises(ValueError, match="unknown metric 'accuracy'"):
        paired_difference(a, a, "accuracy")
    with pytest.raises(ValueError, match="none of 'mars'"):
        paired_difference(a, a, "auroc", on="mars")
    with pytest.raises(ValueError, match="unknown score"):
        paired_difference(a, a, "auroc", on="near", score="beauty")
    with pytest.raises(ValueError, match="score='entropy' applies to"):
        paired_difference(a, a, "rmse", score="entropy")


def _counts(strata: np.ndarray) -> np.ndarray:
    return np.concatenate(list(resample_counts(strata, 40, seed=0)))


@pytest.mark.parametrize("task", ["categorical", "bernoulli"])
def test_every_resample_has_the_class_sizes_of_the_test_set(task):
    evaluation = _evaluated(task, bootstrap=0)
    test, far = evaluation.sets["test"], evaluation.sets["near"]
    for counts in (_counts(strata_of(test, task)), _counts(ood_strata_of(test, far, task))):
        for label in np.unique(test.labels):
            rows = np.flatnonzero(test.labels == label)
            assert (counts[:, rows].sum(1) == len(rows)).all()


@pytest.mark.parametrize("task", TASKS)
def test_every_resample_has_the_size_of_the_ood_set(task):
    sets = _evaluated(task, bootstrap=0).sets
    counts = _counts(ood_strata_of(sets["test"], sets["near"], task))
    assert (counts[:, len(sets["test"].mean) :].sum(1) == len(sets["near"].mean)).all()
    assert np.array_equal(counts[:, : len(sets["test"].mean)], _counts(strata_of(sets["test"], task)))


@pytest.mark.parametrize("task", TASKS)
def test_prediction_in_blocks_of_rows_changes_no_number(task, monkeypatch):
    whole = _evaluated(task)
    monkeypatch.setattr("singularbayes.evaluation.prediction.BLOCK_NUMBERS", 1)
    monkeypatch.setattr("singularbayes.evaluation.prediction.LEAST_ROWS", 7)
    rows: list[int] = []

    class Counted(LinearPosterior):
        def predict(self, x, draws=64, seed=0):
            rows.append(len(x))
            return super().predict(x, draws, seed)

    posterior = Counted(task, outputs=3 if task == "categorical" else 1)
    ood = {"near": _data(task, 80, 1, 1.5), "far/é": _data(task, 90, 2, 5.0)[0]}
    blocks = evaluate(posterior, _data(task), ood=ood, bootstrap=50, draws=8, name="Linear")
    assert max(rows) == 7
    assert sum(rows) == 120 + 80 + 90
    for name, arrays in whole.sets.items():  # another seed for every block would be other functions
        for score, values in arrays.scores.items():
            np.testing.assert_allclose(blocks.sets[name].scores[score], values, rtol=1e-9, atol=1e-13)
    for key, cell in whole.metrics.items():
        assert blocks.metrics[key].value == pytest.approx(cell.value, abs=1e-9)
