"""The runner of every recipe: fit, calibrate, evaluate, save; finished jobs are kept and read again.

A run's folder:

    run.json                    recipe, settings, command, machine, versions
    METHOD/seed-0/posterior.*   the fitted posterior, calibrated
    METHOD/seed-0/evaluation/   of the calibrated posterior (what the report shows)
    METHOD/seed-0/uncalibrated/ the same before calibration
    METHOD/seed-0/job.json      written last: the job is done
    results.csv, report.html
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

from .. import checkpoint
from ..diagnosis import diagnose
from ..evaluation import Evaluation, evaluate
from ..posterior import load
from ..random import forked
from ..report import Entry, Report, standard_panels, write
from .data.splits import Splits
from .recipe import Plan, Recipe, Run

__all__ = ["RunFolder", "results_table", "run_recipe"]

Say = Callable[[str], None]


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


def run_recipe(
    recipe: Recipe,
    out: Path,
    *,
    data: Path | None = None,
    seeds: int = 1,
    methods: Sequence[str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    bootstrap: int = 1000,
    resume: bool = False,
    command: str = "",
    say: Say = lambda text: None,
) -> RunFolder:
    """Run a recipe's plans for every seed; the folder and ``report.html`` in it are the result.

    Args:
        recipe: what to run.
        out: folder for the results.
        data: folder with the recipe's data, where it needs one.
        seeds: number of seeds, from 0.
        methods: names of the plans to run (all if ``None``); any part of a name that is unique will do.
        overrides: method fields to change, for every plan that has them.
        bootstrap: resamples of the intervals.
        resume: keep what is finished in ``out`` and go on; without it the folder must be new or empty.
        command: the command line, for the report.
        say: told one line per job.

    Raises:
        ValueError: unknown methods or fields, missing data, ``out`` in use.
    """
    plans = {name: _overridden(recipe.plans[name], overrides or {}) for name in _chosen(recipe, methods)}
    _check_fields(plans, overrides or {})
    if seeds < 1:
        raise ValueError(f"seeds must be at least 1, got {seeds}")
    if recipe.needs_data and data is None:
        recipe.load(None, 0)
    if out.exists() and any(out.iterdir()) and not resume:
        raise ValueError(f"{out} is not empty; add --resume to go on with it, or choose another --out")
    splits = {seed: recipe.load(data, seed) for seed in range(seeds if recipe.varies_data else 1)}
    out.mkdir(parents=True, exist_ok=True)
    about = _about(recipe, command, seeds, data)
    checkpoint.write_json(out / "run.json", about)
    runs = []
    for seed in range(seeds):
        for name, plan in plans.items():
            runs.append(
                _job(recipe, name, plan, seed, splits[seed if recipe.varies_data else 0], out, bootstrap, say)
            )  # noqa: PERF401
    folder = RunFolder(out, recipe, tuple(runs), about)
    results_table(folder).to_csv(out / "results.csv", index=False)
    write_report(folder, splits[0])
    return folder


def _chosen(recipe: Recipe, methods: Sequence[str] | None) -> list[str]:
    if not methods:
        return list(recipe.plans)
    chosen = []
    for asked in methods:
        exact = [name for name in recipe.plans if slug(name) == slug(asked)]
        hits = exact or [name for name in recipe.plans if slug(asked) in slug(name)]
        if len(hits) != 1:
            known = ", ".join(slug(name) for name in recipe.plans)
            raise ValueError(
                f"method {asked!r} {'is no plan' if not hits else 'is not unique'} in recipe {recipe.name}; known: {known}"
            )
        chosen += hits
    return [name for name in recipe.plans if name in chosen]


def _overridden(plan: Plan, overrides: Mapping[str, Any]) -> Plan:
    def changed(method: Any) -> Any:
        known = {
            key: value
            for key, value in overrides.items()
            if key in method.__dataclass_fields__ and key != "member"
        }
        if "member" in method.__dataclass_fields__:
            known["member"] = changed(method.member)
        return replace(method, **known)

    return replace(plan, method=changed(plan.method))


def _check_fields(plans: Mapping[str, Plan], overrides: Mapping[str, Any]) -> None:
    fields = {
        field
        for plan in plans.values()
        for m in (plan.method, getattr(plan.method, "member", plan.method))
        for field in m.__dataclass_fields__
    }
    for key in overrides:
        if key not in fields:
            raise ValueError(
                f"no chosen method has a field {key!r}; known: {', '.join(sorted(fields - {'executor', 'member'}))}"
            )


def _about(recipe: Recipe, command: str, seeds: int, data: Path | None) -> dict[str, Any]:
    return {
        "recipe": recipe.name,
        "command": command,
        "seeds": seeds,
        "data": None if data is None else str(data),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPU cores, {torch.get_num_threads()} threads",
        "versions": ", ".join(
            [
                f"Python {sys.version.split()[0]}",
                *(f"{p} {metadata.version(p)}" for p in ("singularbayes", "torch", "numpy")),
            ]
        ),
    }


def _fingerprint(
    recipe: Recipe, name: str, plan: Plan, network: nn.Module, seed: int, splits: Splits, bootstrap: int
) -> str:
    digest = hashlib.sha256(
        repr(
            (
                recipe.name,
                name,
                plan.method,
                plan.prior,
                plan.deterministic,
                recipe.likelihood,
                recipe.draws,
                seed,
                bootstrap,
            )
        ).encode()
    )
    digest.update(repr(network).encode())
    for key, (x, y) in splits.named_sets().items():
        digest.update(key.encode() + x.tobytes() + (b"" if y is None else y.tobytes()))
    return digest.hexdigest()


def _job(
    recipe: Recipe, name: str, plan: Plan, seed: int, splits: Splits, out: Path, bootstrap: int, say: Say
) -> Run:
    folder = out / slug(name) / f"seed-{seed}"
    with forked(seed, "start"):
        network = plan.network()
    mark = _fingerprint(recipe, name, plan, network, seed, splits, bootstrap)
    if (folder / "job.json").is_file():
        content = json.loads((folder / "job.json").read_text(encoding="utf-8"))
        if content["job"] != mark:
            raise ValueError(f"{folder} was made with other settings or data; choose another --out")
        say(f"{name}, seed {seed}: finished before")
        posterior = load(folder, network)
        return Run(name=name, seed=seed, posterior=posterior, evaluation=Evaluation.load(folder / "evaluation"),
                   temperature=content["temperature"])  # fmt: skip
    model = plan.model(network, recipe.likelihood)
    held = splits.validation if plan.uses_validation else None
    fitted = plan.method.fit(model, splits.train, held, seed=seed, checkpoint=folder / "checkpoint")
    with warnings.catch_warnings():
        warnings.filterwarnings("always")
        calibrated = fitted.calibrate(splits.validation, draws=recipe.draws, seed=seed)
    ood = {key: x if y is None else (x, y) for key, (x, y) in splits.ood.items()}
    settings = {"ood": ood, "draws": recipe.draws, "bootstrap": bootstrap, "seed": seed, "name": name}
    raw = evaluate(fitted, splits.test, **settings)
    evaluation = evaluate(calibrated, splits.test, **settings)
    calibrated.save(folder)
    raw.save(folder / "uncalibrated")
    evaluation.save(folder / "evaluation")
    temperature = calibrated.likelihood.temperature
    checkpoint.write_json(
        folder / "job.json", {"job": mark, "name": name, "seed": seed, "temperature": temperature}
    )
    shutil.rmtree(folder / "checkpoint", ignore_errors=True)
    say(f"{name}, seed {seed}: {fitted.info['seconds']:.1f} s")
    return Run(name=name, seed=seed, posterior=calibrated, evaluation=evaluation, temperature=temperature)


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
    entries = []
    for name in folder.names:
        evaluations = tuple(run.evaluation for run in folder.of(name))
        seconds = sum(e.info["seconds"] for e in evaluations) / len(evaluations)
        entries.append(Entry(name=name, evaluations=evaluations, diagnosis=diagnose(evaluations[0]),
                             numbers=evaluations[0].info["numbers"], seconds=seconds))  # fmt: skip
    own = (
        folder.recipe.panels(splits, {name: folder.of(name)[0] for name in folder.names})
        if folder.recipe.panels
        else ()
    )
    about = {"Recipe": folder.recipe.what, "When": folder.about["date"], "Machine": folder.about["machine"],
             "Versions": folder.about["versions"], "Seeds": str(folder.about["seeds"])}  # fmt: skip
    temperatures = "; ".join(
        f"{name} {', '.join(f'{run.temperature:.2f}' for run in folder.of(name))}" for name in folder.names
    )
    notes = [*splits.notes,
             f"Every method was calibrated on the same validation set; the temperatures found: {temperatures}. results.csv "
             f"holds the numbers before and after."]  # fmt: skip
    report = Report(title=folder.recipe.title, recipe=folder.recipe.name, about=about, entries=entries,
                    command=folder.about["command"], diagnoses={e.name: e.diagnosis for e in entries if e.diagnosis},
                    figures=[*standard_panels(entries), *own], notes=notes)  # fmt: skip
    return write(report, folder.path / "report.html")


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
    runs = []
    for job in sorted(path.glob("*/seed-*/job.json")):
        content = json.loads(job.read_text(encoding="utf-8"))
        plan = recipe.plans[content["name"]]
        with forked(content["seed"], "start"):
            network = plan.network()
        runs.append(Run(name=content["name"], seed=content["seed"], posterior=load(job.parent, network),
                        evaluation=Evaluation.load(job.parent / "evaluation"), temperature=content["temperature"]))  # fmt: skip
    order = {name: number for number, name in enumerate(recipe.plans)}
    runs.sort(key=lambda run: (run.seed, order[run.name]))
    if not runs:
        raise ValueError(f"{path} holds no finished job yet")
    return RunFolder(path, recipe, tuple(runs), about)
