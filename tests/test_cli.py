"""The command line: exit codes, one clear line for what is wrong, nothing half-written."""

import io
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from rich.console import Console

import singularbayes
from singularbayes import KL
from singularbayes.cli import main, parse_overrides
from singularbayes.metrics import Interval
from singularbayes.recipes import ALL, run_recipe, summary
from singularbayes.recipes.overrides import overridden
from singularbayes.terminal import print_results
from singularbayes.theory import certify

# typer hands over a context of its own class; warnings of tiny fits are not what is tested here
pytestmark = [
    pytest.mark.usefixtures("unchecked"),
    pytest.mark.filterwarnings("ignore:the calibration temperature"),
]


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    text = capsys.readouterr()
    return int(stop.value.code or 0), text.out, text.err


BAD = [
    (["run", "digitz"], "no recipe 'digitz'; known: digits, digits-structures, sine, "),
    (["run", "digits", "--epoch", "3"], "no chosen method has a field 'epoch'"),
    (["run", "digits", "--epochs"], "flag --epochs needs a value"),
    (["run", "digits", "--epochs", "0"], "epochs must be a whole number of at least 1, got 0"),
    (["run", "digits", "--epochs", "many"], "epochs must be a whole number, got 'many'"),
    (["run", "digits", "--learning-rate", "abc"], "learning_rate must be a number, got 'abc'"),
    (["run", "digits", "--patience", "1.5"], "patience must be a whole number or none, got 1.5"),
    (["run", "digits", "--autocast", "3"], "autocast must be true or false, got 3"),
    (["run", "digits", "--schedule", "linear"], "schedule must be one of constant, cosine, got 'linear'"),
    (["run", "digits", "--device", "foo"], "device 'foo' cannot be used here"),
    (["run", "digits", "--device", "cuda:99"], "device 'cuda:99' cannot be used here"),
    (["run", "digits", "--executor", "3"], "no chosen method has a field 'executor'; known: autocast,"),
    (["run", "digits", "--member", "x"], "no chosen method has a field 'member'; known: autocast,"),
    (["run", "digits", "--bootstrap", "-1"], "bootstrap must be at least 0, got -1"),
    (["run", "digits", "--out", 300 * "x"], "File name too long"),
    (["run", "digits", "--learning-rate", "1e30", "--method", "map"], "the loss became nan or infinite"),
    (["run", "digits", "--jobs", "0"], "jobs must be at least 1, got 0"),
    (["run", "digits", "--jobs", "1.5"], "Invalid value for '--jobs'"),
    (["run", "digits", "--job", "2"], "run has no flag --job; did you mean --jobs?"),
    (["run", "digits", "--seeds", "0"], "seeds must be at least 1"),
    (["run", "digits", "--method", "swag"], "method 'swag' is no plan in recipe digits; known: map,"),
    (["run", "digits", "--kl", "exact"], "kl must be one of closed, bound, monte_carlo, got 'exact'"),
    (["run", "icu"], "--data FOLDER"),
    (["run", "icu", "--data", "no such folder"], "no such folder"),
    (["run"], "Missing argument"),
    (["demo", "--speed", "3"], "No such option"),
    (["report", "nowhere"], "nowhere holds no run"),
    (["diagnose", "nowhere"], "nowhere holds no run"),
    (["evaluate", "nowhere"], "nowhere holds no run"),
    (["bound", "nowhere"], "nowhere holds no run"),
    (["walk"], "No such command"),
    (["run", "digitz"], "did you mean digits?"),
    (["run", "digits", "--epoch", "3"], "did you mean epochs?"),
    (["run", "digits", "--seed", "3"], "run has no flag --seed; did you mean --seeds?"),
    (["run", "digits", "--method", "drop-out"], "did you mean mcdropout?"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=[" ".join(arguments) for arguments, _ in BAD])
def test_bad_usage_is_one_line_and_exit_code_2(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = call(capsys, *arguments)
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == [], "something was left behind"


def test_cuda_is_refused_where_there_is_none(capsys, tmp_path, monkeypatch):
    if torch.cuda.is_available():
        pytest.skip("there is one here")
    code, _, err = call(capsys, "run", "digits", "--device", "cuda", "--out", str(tmp_path / "out"))
    assert (code, len(err.strip().splitlines())) == (2, 1)
    assert "device 'cuda' cannot be used here" in err


def test_a_corrected_rerun_of_a_failed_run_needs_no_resume(capsys, tmp_path):
    out = ["--method", "ensemble", "--epochs", "1", "--bootstrap", "5", "--out", str(tmp_path / "out")]
    code, _, _ = call(capsys, "run", "digits", "--learning-rate", "1e30", *out)
    assert code == 2
    code, _, err = call(capsys, "run", "digits", *out)
    assert code == 0, err


@pytest.mark.parametrize("task", ["digits", "sine"])
@pytest.mark.parametrize("columns", [80, 160])
def test_no_number_of_the_table_is_cut_on_a_narrow_terminal(task, columns, tmp_path):
    recipe = ALL[task]
    folder = run_recipe(
        recipe, tmp_path / "out", methods=["map", "low-rank"], overrides={"epochs": 1}, bootstrap=5
    )
    stream = io.StringIO()
    console = Console(file=stream, width=columns, force_terminal=True, color_system=None)
    print_results(console, folder)
    text = stream.getvalue()
    assert max(len(line.rstrip()) for line in text.splitlines()) <= columns
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    printed = [cell for column in summary(folder).columns for cell in column.cells]
    for cell in printed:
        assert cell.text in text
        assert cell.interval in text


def test_a_share_over_several_seeds_never_prints_above_one(tmp_path):
    once = run_recipe(ALL["digits"], tmp_path / "out", methods=["map"], overrides={"epochs": 1}, bootstrap=5)
    shares = (Interval(0.9, 0.8, 1.0), Interval(1.0, 0.99, 1.0))  # unclipped, the upper end is 1.6
    runs = [
        replace(
            run,
            seed=seed,
            evaluation=replace(run.evaluation, metrics={**run.evaluation.metrics, "accuracy": e}),
        )
        for run in once.runs
        for seed, e in enumerate(shares)
    ]
    stream = io.StringIO()
    print_results(Console(file=stream, width=160, force_terminal=True), replace(once, runs=tuple(runs)))
    assert "seeds: 2" in stream.getvalue()
    (accuracy,) = [c for c in summary(replace(once, runs=tuple(runs))).columns if c.head == "Accuracy"]
    assert accuracy.cells[0].interval.endswith("to 1.000")
    assert accuracy.cells[0].interval in stream.getvalue()


def test_flags_become_fields():
    found = parse_overrides(
        ["--learning-rate", "0.01", "--epochs=3", "--autocast", "true", "--patience", "none"]
    )
    assert found == {"learning_rate": 0.01, "epochs": 3, "autocast": True, "patience": None}


def test_recipes_are_listed_with_their_methods(capsys):
    code, out, _ = call(capsys, "recipes")
    assert code == 0
    assert "digits:" in out
    assert "meanfield-low-rank" in out
    assert "needs --data" in out


def test_version_is_printed(capsys):
    assert call(capsys, "--version") == (0, f"singularbayes {singularbayes.__version__}\n", "")


def test_help_of_run_lists_the_fields_of_every_method(capsys):
    code, out, _ = call(capsys, "run", "--help")
    assert code == 0
    for field in ("--epochs", "--members", "--initial-std", "--learning-rate"):
        assert field in out
    assert "--executor" not in out


STOPPED = [
    (["run", "digits"], "interrupted; go on with the same command plus --resume"),
    (["run", "digits", "--resume"], "interrupted; go on with the same command"),
    (["demo"], "interrupted; go on with the same command"),
]


@pytest.mark.parametrize(("arguments", "said"), STOPPED)
def test_ctrl_c_is_one_line_and_exit_code_130(arguments, said, capsys, tmp_path, monkeypatch):
    def stopped(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("singularbayes.recipes.run_recipe", stopped)
    monkeypatch.chdir(tmp_path)
    code, _, err = call(capsys, *arguments)
    assert (code, err.strip()) == (130, said)


@pytest.mark.parametrize("command", [["demo"], ["run", "digits", "--resume"]])
def test_a_folder_of_something_else_is_refused(command, capsys, tmp_path):
    (tmp_path / "results.csv").write_text("mine")
    code, _, err = call(capsys, *command, "--out", str(tmp_path))
    assert code == 2
    assert "no run of ours" in err
    assert (tmp_path / "results.csv").read_text() == "mine"


def test_a_damaged_run_is_one_line(capsys, tmp_path):
    (tmp_path / "run.json").write_text("{}")
    for command in ("report", "evaluate", "diagnose"):
        code, _, err = call(capsys, command, str(tmp_path))
        assert (code, len(err.strip().splitlines())) == (2, 1)
        assert "run.json is damaged" in err


def test_doctor_checks_a_small_fit(capsys):
    code, out, _ = call(capsys, "doctor")
    assert code == 0
    assert "checks of a small fit passed" in out


def test_a_run_can_be_evaluated_diagnosed_and_reported_again(capsys, tmp_path):
    out = tmp_path / "a run with spaces é"
    few = ["--method", "map", "--method", "low-rank", "--epochs", "1", "--bootstrap", "10"]
    code, text, err = call(capsys, "run", "digits", *few, "--out", str(out))
    assert code == 0, err
    assert "report:" in text
    assert "MeanField, low rank" in text
    code, text, _ = call(capsys, "evaluate", str(out), "--csv")
    assert code == 0
    assert text.startswith("set,score,measure,value,low,high,prevalence")
    code, _, text = call(capsys, "evaluate", str(out / "map" / "seed-0" / "evaluation"), "--bootstrap", "9")
    assert code == 2
    assert "--bootstrap is for a file of predictions" in text
    code, text, _ = call(capsys, "evaluate", str(out / "map" / "seed-0" / "evaluation"))
    assert code == 0
    assert "accuracy" in text
    code, text, _ = call(capsys, "diagnose", str(out))
    assert code == 0
    assert "A" in text
    (out / "report.html").unlink()
    code, text, _ = call(capsys, "report", str(out))
    assert code == 0
    assert (out / "report.html").is_file()
    code, _, err = call(capsys, "run", "digits", "--out", str(out))
    assert code == 2
    assert "--resume" in err


def test_the_module_runs_as_a_program():
    done = subprocess.run(
        [sys.executable, "-m", "singularbayes", "--help"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert "demo" in done.stdout


def test_a_word_chooses_an_estimator():
    plan = ALL["digits"].plans["MeanField, low rank"]
    assert overridden(plan, {"kl": "bound", "schedule": "cosine"}).method.kl is KL.BOUND


def test_bound_certifies_a_run_and_prints_a_saved_certificate(capsys, tmp_path):
    folder = tmp_path / "run"
    asked = ["run", "digits", "--method", "map", "--method", "low", "--epochs", "1", "--bootstrap", "0"]
    assert call(capsys, *asked, "--out", str(folder))[0] == 0
    code, out, _ = call(capsys, "bound", str(folder), "--draws", "16", "--subset", "50")
    assert code == 0
    assert "MAP, seed 0\nno certificate: a PAC-Bayes KL needs a posterior with a density" in out
    assert "MeanField, low rank, seed 0\ncertified risk" in out
    assert call(capsys, "bound", str(folder), "--delta", "2")[0] == 2
    model = singularbayes.Model(torch.nn.Linear(2, 2), singularbayes.Categorical())
    data = (torch.randn(20, 2), torch.arange(20) % 2)
    certify(singularbayes.MeanField(epochs=1).fit(model, data), data, draws=16).save(tmp_path / "one")
    assert "ZeroOne()" in call(capsys, "bound", str(tmp_path / "one"))[1]
