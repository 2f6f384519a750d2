"""The runner: folders that are whole, resume, clear errors, and a report."""

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import singularbayes as sb
from singularbayes.recipes import ALL, Plan, Recipe, run_recipe, sine
from singularbayes.recipes.data.splits import Splits
from singularbayes.recipes.panels import distance_and_correlation, distance_from, layer_correlation
from singularbayes.recipes.recipe import mlp
from singularbayes.recipes.running import open_folder, slug
from singularbayes.report import method_styles, uncertainty_by_distance, variance_field

pytestmark = pytest.mark.filterwarnings("ignore:the calibration temperature")  # 40 easy cases, all right


def low() -> nn.Module:
    return sb.factorize(mlp(3, 8, 8, 2), rank={"2": 2})


def load(folder, seed):
    rng = np.random.default_rng(0)

    def part(n, shift=0.0):
        x = (rng.normal(size=(n, 3)) + shift).astype(np.float32)
        return x, (x[:, 0] > shift).astype(np.int64)

    return Splits(
        train=part(60),
        validation=part(40),
        test=part(40),
        ood={"far": (part(30, 5.0)[0], None)},
        feature_names=("a", "b", "c"),
        class_names=("no", "yes"),
        notes=("made <for> the test",),
    )


def plain() -> nn.Module:
    return mlp(3, 8, 8, 2)


POINT = sb.MAP(epochs=2)
RECIPE = Recipe(
    name="tiny",
    title="Tiny",
    what="a test",
    load=load,
    likelihood=sb.Categorical(),
    draws=8,
    panels=distance_and_correlation,
    plans={
        "MAP": Plan(network=plain, prior=sb.Normal(), method=POINT),
        "Ensemble": Plan(network=plain, prior=sb.Normal(), method=sb.DeepEnsemble(members=2, member=POINT)),
        "Low rank": Plan(network=low, prior=sb.ScaleMixture(), method=sb.MeanField(epochs=3)),
    },
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory):
    return run_recipe(
        RECIPE,
        tmp_path_factory.mktemp("runs") / "tiny",
        seeds=2,
        bootstrap=20,
        command="singularbayes run tiny",
    )


def test_a_run_leaves_posteriors_evaluations_a_table_and_a_report(finished):
    table = finished.path / "results.csv"
    assert table.is_file()
    assert {run.seed for run in finished.runs} == {0, 1}
    page = (finished.path / "report.html").read_text(encoding="utf-8")
    for expected in ("singularbayes run tiny", "Low rank", "made &lt;for&gt; the test"):
        assert expected in page
    assert (finished.path / slug("Low rank") / "seed-1" / "posterior.json").is_file()


def test_resume_fits_nothing_again_and_gives_the_same_numbers(finished, monkeypatch):
    def fail(*args, **kwargs):
        raise AssertionError("fitted again")

    monkeypatch.setattr("singularbayes.methods.map.MAP.fit", fail)
    monkeypatch.setattr("singularbayes.methods.mean_field.MeanField.fit", fail)
    again = run_recipe(RECIPE, finished.path, seeds=2, bootstrap=20, resume=True, command="again")
    for before, after in zip(finished.runs, again.runs, strict=True):
        assert (
            before.evaluation.metrics["negative_log_likelihood"]
            == after.evaluation.metrics["negative_log_likelihood"]
        )


def test_a_job_that_was_cut_short_is_done_again(finished, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(finished.path, copy)
    (copy / "low-rank" / "seed-0" / "job.json").unlink()
    again = run_recipe(RECIPE, copy, seeds=2, bootstrap=20, resume=True)
    names = [(run.name, run.seed) for run in again.runs]
    redone, before = again.runs[names.index(("Low rank", 0))], finished.runs[names.index(("Low rank", 0))]
    assert torch.equal(redone.posterior.draw(3), before.posterior.draw(3))


def test_results_of_other_settings_are_refused(finished):
    with pytest.raises(ValueError, match="other settings"):
        run_recipe(RECIPE, finished.path, seeds=2, bootstrap=20, resume=True, overrides={"epochs": 4})


def test_a_folder_in_use_is_refused_without_resume(finished):
    with pytest.raises(ValueError, match="not empty"):
        run_recipe(RECIPE, finished.path)


def test_unknown_methods_and_fields_are_named_before_any_work(tmp_path):
    with pytest.raises(ValueError, match="known: map, ensemble, low-rank"):
        run_recipe(RECIPE, tmp_path / "out", methods=["swag"])
    with pytest.raises(ValueError, match="no chosen method has a field 'epoch'"):
        run_recipe(RECIPE, tmp_path / "out", overrides={"epoch": 3})
    with pytest.raises(ValueError, match="seeds"):
        run_recipe(RECIPE, tmp_path / "out", seeds=0)
    assert not (tmp_path / "out").exists()


def test_a_recipe_that_needs_data_says_so_and_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match="--data"):
        run_recipe(ALL["icu"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_overrides_reach_the_members_of_an_ensemble(tmp_path):
    folder = run_recipe(
        RECIPE, tmp_path / "out", methods=["ensemble"], overrides={"epochs": 1, "members": 3}, bootstrap=5
    )
    posterior = folder.runs[0].posterior
    assert posterior.distribution.support == 3
    assert posterior.info["epochs"] == 1


def test_a_mixture_runs_is_calibrated_reported_and_opened_as_any_method(tmp_path):
    mixture = sb.Mixture(members=(POINT, sb.MeanField(epochs=1)), weights=sb.Stacked(draws=4))
    plans = {"Mixture": Plan(network=low, prior=sb.Normal(), method=mixture, uses_validation=True)}
    recipe = replace(RECIPE, plans=plans)
    folder = run_recipe(recipe, tmp_path / "out", overrides={"epochs": 1}, bootstrap=5)
    (run,) = folder.runs
    assert [member.info["epochs"] for member in run.posterior.members] == [1, 1]
    assert run.temperature == run.posterior.likelihood.temperature
    assert "Mixture" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    (again,) = run_recipe(recipe, tmp_path / "out", overrides={"epochs": 1}, bootstrap=5, resume=True).runs
    x = load(None, 0).test[0]
    assert torch.equal(again.posterior.predict(x).log_probs, run.posterior.predict(x).log_probs)


def test_a_finished_folder_opens_again(finished):
    opened = open_folder(finished.path, {"tiny": RECIPE})
    assert [(r.name, r.seed) for r in opened.runs] == [(r.name, r.seed) for r in finished.runs]
    assert torch.equal(opened.runs[-1].posterior.draw(2), finished.runs[-1].posterior.draw(2))
    with pytest.raises(ValueError, match="no run"):
        open_folder(finished.path / "nowhere", {"tiny": RECIPE})
    about = json.loads((finished.path / "run.json").read_text(encoding="utf-8"))
    assert about["command"] in {"singularbayes run tiny", "again"}


def test_calibration_does_not_touch_the_posterior_draws(finished):
    run = next(run for run in finished.runs if run.name == "Low rank")
    assert run.temperature == run.posterior.likelihood.temperature
    assert run.evaluation.info["temperature"] == pytest.approx(run.temperature)


def test_every_recipe_counts_what_the_paper_counts():
    recipe = ALL["icu"]
    counts = {}
    for name, plan in recipe.plans.items():
        layout = plan.model(plan.network(), recipe.likelihood).layout
        counts[name] = layout.trained + (layout.belief if name.startswith("MeanField") else 0)
    assert counts["MeanField, low rank"] == 13_612
    assert counts["MeanField, full rank"] == 44_802
    assert counts["MAP"] == 22_401


def test_distance_is_the_mean_to_the_ten_nearest():
    train = np.zeros((12, 2), np.float32)
    train[10:] = 100
    assert distance_from(train, np.array([[3.0, 4.0]], np.float32)) == pytest.approx([5.0])


def test_layer_correlation_is_the_identity_for_full_rank_and_has_blocks_for_low(finished):
    low_rank = next(run.posterior for run in finished.runs if run.name == "Low rank")
    matrix = layer_correlation(low_rank, "2", rows=2, columns=3)
    assert matrix is not None
    assert matrix.shape == (6, 6)
    assert abs(matrix[0, 1]) > 0
    assert matrix[0, 4] == 0
    point = next(run.posterior for run in finished.runs if run.name == "MAP")
    assert layer_correlation(point, "2") is None


def only(finished, tmp_path, *names):
    """A copy of the finished folder with these methods alone."""
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in names:
        shutil.copytree(finished.path / slug(name), copy / slug(name))
    shutil.copy(finished.path / "run.json", copy)
    return copy


def test_a_recipe_without_calibration_is_evaluated_once_and_says_uncalibrated(tmp_path, monkeypatch):
    calls = []

    def counted(*args, **options):
        calls.append(options["name"])
        return sb.evaluate(*args, **options)

    monkeypatch.setattr("singularbayes.recipes.jobs.evaluate", counted)
    recipe = replace(RECIPE, calibrate=False)
    folder = run_recipe(recipe, tmp_path / "out", methods=["map"], bootstrap=5)
    assert calls == ["MAP"]
    table = pd.read_csv(folder.path / "results.csv")
    assert set(table["calibration"]) == {"uncalibrated"}
    assert not (folder.path / "map" / "seed-0" / "uncalibrated").exists()
    assert not folder.runs[0].posterior.info["low_rank"]


def test_every_job_keeps_what_made_it_and_the_report_gives_the_range(finished, tmp_path):
    copy = only(finished, tmp_path, "MAP", "Ensemble")
    path = copy / "map" / "seed-0" / "job.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content["made"]["command"] == "singularbayes run tiny"
    content["made"] |= {"date": "2001-02-03 04:05 UTC", "versions": "Python 3.0", "machine": "an old one"}
    path.write_text(json.dumps(content), encoding="utf-8")
    run_recipe(RECIPE, copy, seeds=2, bootstrap=20, resume=True, command="the second command")
    page = (copy / "report.html").read_text(encoding="utf-8")
    for expected in (
        "2001-02-03 04:05 UTC to 2",
        "Python 3.0; Python",
        "an old one; ",
        "singularbayes run tiny",
    ):
        assert expected in page
    about = json.loads((copy / "run.json").read_text(encoding="utf-8"))
    assert about["command"] == "the second command"


def test_results_of_another_version_are_refused(finished, monkeypatch):
    monkeypatch.setattr("singularbayes.recipes.jobs.metadata.version", lambda name: "0.0.0")
    with pytest.raises(ValueError, match="another version of singularbayes"):
        run_recipe(RECIPE, finished.path, seeds=2, bootstrap=20, resume=True)


def test_resume_with_one_method_keeps_the_other_finished_jobs(finished, tmp_path):
    copy = only(finished, tmp_path, "MAP", "Low rank")
    again = run_recipe(RECIPE, copy, methods=["ensemble"], bootstrap=20, resume=True)
    assert again.names == ("MAP", "Ensemble", "Low rank")
    assert set(pd.read_csv(copy / "results.csv")["method"]) == {"MAP", "Ensemble", "Low rank"}
    assert [run.seed for run in again.of("MAP")] == [0, 1]


def test_jobs_of_other_settings_are_left_out_and_named(finished, tmp_path):
    copy, said = only(finished, tmp_path, "MAP"), []
    own = replace(RECIPE.plans["MAP"], prior=sb.Normal(3.0))
    recipe = replace(RECIPE, plans={**RECIPE.plans, "MAP": own})
    again = run_recipe(recipe, copy, methods=["ensemble"], bootstrap=20, resume=True, say=said.append)
    assert again.names == ("Ensemble",)
    assert "MAP, seed 0: left out" in said[0]
    assert open_folder(copy, {"tiny": recipe}).names == ("Ensemble",)


def test_a_folder_of_something_else_is_not_written_over(tmp_path):
    (tmp_path / "report.html").write_text("a stranger's")
    with pytest.raises(ValueError, match="holds other files and no run of ours"):
        run_recipe(RECIPE, tmp_path, bootstrap=5, resume=True)
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert (tmp_path / "report.html").read_text() == "a stranger's"


def test_a_run_of_another_recipe_is_not_gone_on_with(finished):
    with pytest.raises(ValueError, match="holds a run of recipe 'tiny', not other"):
        run_recipe(replace(RECIPE, name="other"), finished.path, bootstrap=5, resume=True)


def test_a_run_stopped_in_its_first_job_can_be_gone_on_with(tmp_path, monkeypatch):
    out = tmp_path / "out"
    (out / "map" / "seed-0" / "checkpoint").mkdir(parents=True)
    folder = run_recipe(RECIPE, out, methods=["map"], bootstrap=5, resume=True)
    assert folder.names == ("MAP",)


DAMAGED = [("run.json", "{}"), ("run.json", "[]"), ("run.json", "{"), ("map/seed-0/job.json", "{}")]


@pytest.mark.parametrize(("name", "text"), DAMAGED)
def test_a_damaged_file_of_a_run_is_named(name, text, finished, tmp_path):
    copy = only(finished, tmp_path, "MAP")
    (copy / name).write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=rf"{name} is damaged"):
        open_folder(copy, {"tiny": RECIPE})
    with pytest.raises(ValueError, match=rf"{name} is damaged"):
        run_recipe(RECIPE, copy, seeds=2, bootstrap=20, resume=True)


@pytest.mark.usefixtures("unchecked")
def test_a_method_has_the_same_style_in_every_figure(finished, monkeypatch):
    seen = {}

    def drawn(*args, styles, **options):
        seen["distance"] = styles
        return uncertainty_by_distance(*args, styles=styles, **options)

    def field(*args, styles, **options):
        seen["field"] = styles
        return variance_field(*args, styles=styles, **options)

    monkeypatch.setattr("singularbayes.recipes.panels.uncertainty_by_distance", drawn)
    monkeypatch.setattr("singularbayes.recipes.sine.variance_field", field)
    distance_and_correlation(load(None, 0), {name: finished.of(name)[0] for name in finished.names})
    assert seen["distance"] == method_styles(["MAP", "Ensemble", "Low rank"])  # MAP has no line there
    run = SimpleNamespace(posterior=LineModel())
    sine.panels(ALL["sine"].load(None, 0), {"a": run, "b": run})
    assert seen["field"] == method_styles(["a", "b"])


class LineModel:
    """What a panel asks of a posterior, over one input."""

    def predict(self, x, draws):
        one = torch.ones(len(x))
        return SimpleNamespace(mean=one, variance=one, epistemic=one)


def test_patience_is_handed_the_validation_set(tmp_path):
    folder = run_recipe(RECIPE, tmp_path / "out", overrides={"patience": 1, "epochs": 2}, bootstrap=5)
    for name in ("MAP", "Ensemble", "Low rank"):
        info = folder.of(name)[0].posterior.info
        history = info["history"][0] if name == "Ensemble" else info["history"]
        assert "validation_nll" in history[0]


def test_a_run_that_diverges_leaves_nothing_and_a_wrong_bootstrap_trains_nothing(tmp_path, monkeypatch):
    out = tmp_path / "out"
    with pytest.raises(FloatingPointError, match="nan or infinite"):
        run_recipe(RECIPE, out, overrides={"learning_rate": 1e30}, bootstrap=5)
    assert not out.exists()
    monkeypatch.setattr("singularbayes.methods.map.MAP.fit", lambda *args, **options: pytest.fail("trained"))
    with pytest.raises(ValueError, match="bootstrap must be at least 0, got -1"):
        run_recipe(RECIPE, out, bootstrap=-1)
    assert not out.exists()
