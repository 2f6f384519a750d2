"""A folder of finished jobs: read it again, its table of results, its report."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from torch import nn

from ..diagnosis import diagnose
from ..evaluation import Evaluation
from ..loading import load
from ..random import forked
from ..report import Entry, Report, chain_panels, standard_panels, write
from ..report.tables import Table, main_table
from .data.splits import Splits
from .recipe import Recipe, Run

__all__ = [
    "JOB",
    "RunFolder",
    "in_order",
    "open_folder",
    "read_job",
    "read_object",
    "results_table",
    "slug",
    "summary",
    "write_report",
]


_ABOUT = {"recipe": str, "command": str, "date": str, "machine": str, "versions": str}
JOB = {"job": str, "name": str, "seed": int, "temperature": int | float}


def read_object(path: Path, entries: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON file that holds an object with these entries of these types.

    Raises:
        ValueError: it does not; the message names the file.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # no JSON, or no UTF-8
        raise ValueError(f"{path} is damaged: {error}; run it again in a new folder") from None
    found = content if isinstance(content, dict) else {}
    wrong = [key for key, kind in entries.items() if not isinstance(found.get(key), kind)]
    if wrong:
        raise ValueError(
            f"{path} is damaged: no valid {', '.join(wrong)} in it; run it again in a new folder"
        )
    return found


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
    about = read_object(path / "run.json", _ABOUT)
    if about["recipe"] not in recipes:
        raise ValueError(f"{path} is a run of recipe {about['recipe']!r}, which is not known here")
    recipe = recipes[about["recipe"]]
    left_out = {path / job for job in about.get("left_out", ())}
    jobs = [job.parent for job in path.glob("*/seed-*/job.json") if job.parent not in left_out]
    if not jobs:
        raise ValueError(f"{path} holds no finished job yet")
    return RunFolder(path, recipe, in_order(recipe, [_read(job, recipe) for job in jobs]), about)


def in_order(recipe: Recipe, runs: Iterable[Run]) -> tuple[Run, ...]:
    """By seed, then in the recipe's order of methods."""
    order = list(recipe.plans)
    return tuple(sorted(runs, key=lambda run: (run.seed, order.index(run.name))))


def _read(folder: Path, recipe: Recipe) -> Run:
    content = read_object(folder / "job.json", JOB)
    if content["name"] not in recipe.plans:
        raise ValueError(
            f"{folder / 'job.json'} is of the method {content['name']!r}, which recipe {recipe.name} lacks; "
            f"delete {folder} and run it again"
        )
    with forked(content["seed"], "start"):
        network = recipe.plans[content["name"]].network()
    return read_job(folder, network)


def read_job(folder: Path, network: nn.Module) -> Run:
    """One finished job; ``network`` has the architecture of its plan."""
    content = read_object(folder / "job.json", JOB)
    return Run(
        name=content["name"],
        seed=content["seed"],
        posterior=load(folder, network),
        evaluation=Evaluation.load(folder / "evaluation"),
        temperature=content["temperature"],
        made=content.get("made", {}),
    )


def results_table(folder: RunFolder) -> pd.DataFrame:
    """Every measured number: one line per method, seed, state of calibration, set, score and measure."""
    parts = []
    for run in folder.runs:
        states = {"uncalibrated": run.evaluation}
        if folder.recipe.calibrate:
            base = folder.path / slug(run.name) / f"seed-{run.seed}"
            states = {"calibrated": run.evaluation, "uncalibrated": Evaluation.load(base / "uncalibrated")}
        for state, evaluation in states.items():
            table = evaluation.table()
            table.insert(0, "calibration", state)
            table.insert(0, "seed", run.seed)
            table.insert(0, "method", run.name)
            table["numbers"], table["seconds"] = evaluation.info["numbers"], evaluation.info["seconds"]
            table["temperature"] = run.temperature
            parts.append(table)
    return pd.concat(parts, ignore_index=True)


def summary(folder: RunFolder) -> Table:
    """The report's main table."""
    entries = [_entry(folder, name, diagnosed=False) for name in folder.names]
    return main_table(
        Report(title=folder.recipe.title, recipe=folder.recipe.name, about={}, entries=entries, command="")
    )


def write_report(folder: RunFolder, splits: Splits) -> Path:
    """``report.html`` in the run's folder."""
    recipe = folder.recipe
    entries = [_entry(folder, name, diagnosed=True) for name in folder.names]
    first = {name: folder.of(name)[0] for name in folder.names}
    own = recipe.panels(splits, first) if recipe.panels else ()
    chains = chain_panels({name: run.posterior for name, run in first.items()}, splits.test[0])
    temperatures = "; ".join(
        f"{name} {', '.join(f'{run.temperature:.2f}' for run in folder.of(name))}" for name in folder.names
    )
    calibration = (
        f"Every method was calibrated on the same validation set; the temperatures found: {temperatures}. "
        f"results.csv holds the numbers before and after."
        if recipe.calibrate
        else "Nothing was calibrated: the validation set has too few errors to tell a temperature."
    )
    dates = sorted(_made(folder, "date"))
    report = Report(
        title=recipe.title,
        recipe=recipe.name,
        about={
            "Recipe": recipe.what,
            "When": dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}",
            "Machine": "; ".join(_made(folder, "machine")),
            "Versions": "; ".join(_made(folder, "versions")),
        },
        entries=entries,
        command="\n".join(_made(folder, "command")),
        diagnoses={e.name: e.diagnosis for e in entries if e.diagnosis},
        figures=[*standard_panels(entries), *own, *chains],
        notes=[*splits.notes, calibration],
    )
    return write(report, folder.path / "report.html")


def _made(folder: RunFolder, key: str) -> list[str]:
    """What the jobs say of how they were made, each answer once; the run's own where a job says nothing."""
    return list(dict.fromkeys(str(run.made.get(key, folder.about[key])) for run in folder.runs))


def _entry(folder: RunFolder, name: str, *, diagnosed: bool) -> Entry:
    evaluations = tuple(run.evaluation for run in folder.of(name))
    return Entry(
        name=name,
        evaluations=evaluations,
        diagnosis=diagnose(evaluations[0]) if diagnosed else None,
        numbers=evaluations[0].info["numbers"],
        seconds=sum(e.info["seconds"] for e in evaluations) / len(evaluations),
    )
