"""A folder of finished jobs: read it again, its table of results, its report."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from torch import nn

from ..diagnosis import diagnose
from ..evaluation import Evaluation
from ..posterior import load
from ..random import forked
from ..report import Entry, Report, standard_panels, write
from .data.splits import Splits
from .recipe import Recipe, Run

__all__ = ["RunFolder", "open_folder", "read_job", "results_table", "slug", "write_report"]


def slug(name: str) -> str:
    """A folder name for a method's name."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


@dataclass(frozen=True)
class RunFolder:
    """A folder of finished jobs of one recipe."""

    path: Path
    recipe: Recipe
    runs: tuple[Run, ...]
    about: Mapping[str, Any]

    def of(self, name: str) -> tuple[Run, ...]:
        """The runs of one method, by seed."""
        return tuple(run for run in self.runs if run.name == name)

    @property
    def names(self) -> tuple[str, ...]:
        """Method names, in the recipe's order."""
        return tuple(dict.fromkeys(run.name for run in self.runs))


def open_folder(path: Path, recipes: Mapping[str, Recipe]) -> RunFolder:
    """Read the finished jobs of a run.

    Raises:
        ValueError: no run there, or a recipe that this version does not have.
    """
    if not (path / "run.json").is_file():
        raise ValueError(
            f"{path} holds no run (no run.json); give the --out folder of `singularbayes run` or `demo`"
        )
    about = json.loads((path / "run.json").read_text(encoding="utf-8"))
    if about["recipe"] not in recipes:
        raise ValueError(f"{path} is a run of recipe {about['recipe']!r}, which is not known here")
    recipe = recipes[about["recipe"]]
    runs = [_read(job.parent, recipe) for job in sorted(path.glob("*/seed-*/job.json"))]
    order = {name: number for number, name in enumerate(recipe.plans)}
    runs.sort(key=lambda run: (run.seed, order[run.name]))
    if not runs:
        raise ValueError(f"{path} holds no finished job yet")
    return RunFolder(path, recipe, tuple(runs), about)


def _read(folder: Path, recipe: Recipe) -> Run:
    content = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    with forked(content["seed"], "start"):
        network = recipe.plans[content["name"]].network()
    return read_job(folder, network)


def read_job(folder: Path, network: nn.Module) -> Run:
    """One finished job; ``network`` has the architecture of its plan."""
    content = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    return Run(
        name=content["name"],
        seed=content["seed"],
        posterior=load(folder, network),
        evaluation=Evaluation.load(folder / "evaluation"),
        temperature=content["temperature"],
    )


def results_table(folder: RunFolder) -> pd.DataFrame:
    """Every measured number: one line per method, seed, state of calibration, set, score and measure."""
    parts = []
    for run in folder.runs:
        base = folder.path / slug(run.name) / f"seed-{run.seed}"
        for state, evaluation in (
            ("calibrated", run.evaluation),
            ("uncalibrated", Evaluation.load(base / "uncalibrated")),
        ):
            table = evaluation.table()
            table.insert(0, "calibration", state)
            table.insert(0, "seed", run.seed)
            table.insert(0, "method", run.name)
            table["numbers"], table["seconds"] = evaluation.info["numbers"], evaluation.info["seconds"]
            table["temperature"] = run.temperature
            parts.append(table)
    return pd.concat(parts, ignore_index=True)


def write_report(folder: RunFolder, splits: Splits) -> Path:
    """``report.html`` in the run's folder."""
    recipe, about = folder.recipe, folder.about
    entries = [_entry(folder, name) for name in folder.names]
    first = {name: folder.of(name)[0] for name in folder.names}
    own = recipe.panels(splits, first) if recipe.panels else ()
    temperatures = "; ".join(
        f"{name} {', '.join(f'{run.temperature:.2f}' for run in folder.of(name))}" for name in folder.names
    )
    calibration = (
        f"Every method was calibrated on the same validation set; the temperatures found: {temperatures}. "
        f"results.csv holds the numbers before and after."
        if recipe.calibrate
        else "Nothing was calibrated: the validation set has too few errors to tell a temperature."
    )
    report = Report(
        title=recipe.title,
        recipe=recipe.name,
        about={
            "Recipe": recipe.what,
            "When": about["date"],
            "Machine": about["machine"],
            "Versions": about["versions"],
            "Seeds": str(about["seeds"]),
        },
        entries=entries,
        command=about["command"],
        diagnoses={e.name: e.diagnosis for e in entries if e.diagnosis},
        figures=[*standard_panels(entries), *own],
        notes=[*splits.notes, calibration],
    )
    return write(report, folder.path / "report.html")


def _entry(folder: RunFolder, name: str) -> Entry:
    evaluations = tuple(run.evaluation for run in folder.of(name))
    return Entry(
        name=name,
        evaluations=evaluations,
        diagnosis=diagnose(evaluations[0]),
        numbers=evaluations[0].info["numbers"],
        seconds=sum(e.info["seconds"] for e in evaluations) / len(evaluations),
    )
