"""``singularbayes ranks``: spectra of a run, a saved posterior, a checkpoint; one line for what is none."""

import io
from dataclasses import replace

import pandas as pd
import pytest
import torch
from torch import nn

import singularbayes as sb
from singularbayes.cli import main
from singularbayes.recipes import ALL, rank_lines, run_recipe
from singularbayes.recipes.saved_spectra import read_spectra
from singularbayes.theory import singular_values

# typer hands over a context of its own class
pytestmark = pytest.mark.usefixtures("unchecked")


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    text = capsys.readouterr()
    return int(stop.value.code or 0), text.out, text.err


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    names = "MAP", "DeepEnsemble", "MeanField, low rank"
    plans = {name: ALL["digits"].plans[name] for name in names}
    folder = tmp_path_factory.mktemp("run") / "digits"
    return run_recipe(replace(ALL["digits"], plans=plans), folder, overrides={"epochs": 1}, bootstrap=0)


def test_a_run_has_the_spectra_of_every_method_and_of_an_ensemble_s_first_network(run):
    found = read_spectra(run.path, ALL)
    assert list(found) == ["MAP", "DeepEnsemble", "MeanField, low rank"]
    assert [layer.rank for layer in found["MeanField, low rank"]] == [15, 15, 8]
    ensemble = run.of("DeepEnsemble")[0].posterior
    first = singular_values(ensemble.merged(ensemble.draw(5)[0]))
    for one, other in zip(found["DeepEnsemble"], first, strict=True):
        torch.testing.assert_close(one.values, other.values)


def test_a_saved_posterior_has_the_spectra_of_its_mean_without_any_network(run):
    for slug, name in (("map", "MAP"), ("meanfield-low-rank", "MeanField, low rank")):
        (saved,) = read_spectra(run.path / slug / "seed-0", ALL).values()
        for one, other in zip(saved, read_spectra(run.path, ALL)[name], strict=True):
            assert one.shape == other.shape
            torch.testing.assert_close(one.values, other.values, rtol=1e-5, atol=1e-5)


def test_frozen_weights_of_a_saved_posterior_are_read_too(tmp_path):
    network = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 2))
    network[0].requires_grad_(False)
    data = torch.randn(8, 5), torch.tensor([0, 1] * 4)
    sb.MAP(epochs=1).fit(sb.Model(network, sb.Categorical()), data).save(tmp_path)
    (saved,) = read_spectra(tmp_path, ALL).values()
    assert {layer.shape for layer in saved} == {(7, 5), (2, 7)}


def test_the_command_prints_tables_csv_and_a_picture(run, capsys, tmp_path):
    code, out, _ = call(capsys, "ranks", str(run.path), "--figure", str(tmp_path / "x.png"))
    assert code == 0
    assert "MeanField, low rank\nlayer" in out
    assert (tmp_path / "x.png").stat().st_size > 10_000
    code, out, _ = call(capsys, "ranks", str(run.path), "--csv")
    table = pd.read_csv(io.StringIO(out))
    assert len(table) == 9
    assert set(table["network"]) == {"MAP", "DeepEnsemble", "MeanField, low rank"}
    torch.save(nn.Linear(4, 6).state_dict(), tmp_path / "a.pt")
    code, out, _ = call(capsys, "ranks", str(tmp_path / "a.pt"))
    assert code == 0
    assert "6 x 4" in out


def test_what_holds_no_weights_is_told_in_one_line(capsys, tmp_path):
    (tmp_path / "text.pt").write_text("nothing")
    for path, message in ((tmp_path, "holds no run (run.json)"), (tmp_path / "no.pt", "is no file"),
                          (tmp_path / "text.pt", "cannot be read as tensors alone")):  # fmt: skip
        code, out, error = call(capsys, "ranks", str(path))
        assert (code, out, len(error.splitlines())) == (2, "", 1)
        assert message in error


def test_lines_are_made_one_network_after_another(run):
    assert sum("break-even  decay" in line for line in rank_lines(run.path, ALL, False, None)) == 3
