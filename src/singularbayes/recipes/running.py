"""The runner of every recipe: fit, calibrate, evaluate, save; finished jobs are kept and read again.

A run's folder:

    run.json                    recipe and the latest command; there once a job is done
    METHOD/seed-0/posterior.*   the fitted posterior, calibrated where the recipe calibrates
    METHOD/seed-0/evaluation/   of that posterior (what the report shows)
    METHOD/seed-0/uncalibrated/ the same before calibration, where the recipe calibrates
    METHOD/seed-0/job.json      written last: the job is done, and by what command, when, where
    results.csv, report.html
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .. import checkpoint
from ..evaluation import Evaluation, evaluate
from ..evaluation.units import in_units
from ..methods.training import TrainingDiverged
from ..nn import LowRankLinear, LowRankLSTM
from ..random import forked
from .data.splits import Splits
from .folder import (
    JOB,
    RunFolder,
    in_order,
    open_folder,
    read_job,
    read_object,
    results_table,
    slug,
    write_report,
)
from .nearest import did_you_mean
from .overrides import check_overrides, overridden
from .recipe import Plan, Recipe, Run

__all__ = ["RunFolder", "open_folder", "results_table", "run_recipe"]

Say = Callable[[str], None]
_OTHER = "with other settings or data, or by another version of singularbayes"


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
    say: Say = lambda _text: None,
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
            Finished jobs that were not asked for now are in the result too, where their settings fit: the
            recipe's own, or those with ``overrides``.
        command: the command line, for the report.
        say: told one line per job.

    Raises:
        ValueError: unknown methods or fields, missing data, ``out`` in use by something else.
        TrainingDiverged: a fit diverged. Any failure before the first finished job leaves nothing to resume.
    """
    chosen, changes = _chosen(recipe, methods), overrides or {}
    check_overrides({name: recipe.plans[name] for name in chosen}, changes)
    plans = {name: overridden(recipe.plans[name], changes) for name in chosen}
    for key, value, least in (("seeds", seeds, 1), ("bootstrap", bootstrap, 0)):
        if value < least:
            raise ValueError(f"{key} must be at least {least}, got {value}")
    if recipe.needs_data and data is None:
        recipe.load(None, 0)
    if out.exists() and any(out.iterdir()):
        _check_ours(recipe, out, resume=resume)
    splits = _splits_by_seed(recipe, data)

    def prepared(name: str, plan: Plan, seed: int) -> _Job:
        return _job(recipe, name, plan, seed, splits(seed), out, bootstrap)

    jobs = [prepared(name, plan, seed) for seed in range(seeds) for name, plan in plans.items()]
    for job in jobs:
        job.check_finished()
    others, left_out = [], []
    for name, seed in _finished(recipe, out):
        if name in plans and seed < seeds:
            continue
        own = recipe.plans[name]
        fits = [job for plan in (overridden(own, changes), own) if (job := prepared(name, plan, seed)).fits()]
        if fits:
            others.append(fits[0])
        else:
            left_out.append(f"{slug(name)}/seed-{seed}")
            say(f"{name}, seed {seed}: left out, it was made {_OTHER}")
    made = {**_provenance(command), "data": None if data is None else str(data)}
    about = {"recipe": recipe.name, "seeds": seeds, **made, "left_out": left_out}
    new = [folder for folder in (out, *out.parents) if not folder.exists()]
    out.mkdir(parents=True, exist_ok=True)
    runs = [read_job(job.folder, job.network) for job in others]
    for job in jobs:
        try:
            runs.append(_run(recipe, job, bootstrap, made, say))
        except Exception as error:
            _tidy(job, new, diverged=isinstance(error, TrainingDiverged))
            raise
        checkpoint.write_json(out / "run.json", about)  # once a job is done: before, there is nothing to keep
    folder = RunFolder(out, recipe, in_order(recipe, runs), about)
    results_table(folder).to_csv(out / "results.csv", index=False)
    write_report(folder, splits(0))
    return folder


def _splits_by_seed(recipe: Recipe, data: Path | None) -> Callable[[int], Splits]:
    """The splits of a seed, each loaded once."""
    load = cache(partial(recipe.load, data))
    return lambda seed: load(seed if recipe.varies_data else 0)


def _check_ours(recipe: Recipe, out: Path, *, resume: bool) -> None:
    """Raise unless ``resume`` and the folder in use holds a run of this recipe, if only one cut short."""
    if not resume:
        raise ValueError(f"{out} is not empty; add --resume to go on with it, or choose another --out")
    if (out / "run.json").is_file():
        other = read_object(out / "run.json", {"recipe": str})["recipe"]
        if other != recipe.name:
            raise ValueError(
                f"{out} holds a run of recipe {other!r}, not {recipe.name}; choose another --out"
            )
    elif not any(any(out.glob(f"{slug(name)}/seed-*")) for name in recipe.plans):
        raise ValueError(
            f"{out} holds other files and no run of ours (no run.json), which would be written over; "
            "choose another --out"
        )


def _finished(recipe: Recipe, out: Path) -> list[tuple[str, int]]:
    """Plan and seed of every finished job in the folder."""
    jobs = [read_object(path, JOB) for path in sorted(out.glob("*/seed-*/job.json"))]
    return [(job["name"], job["seed"]) for job in jobs if job["name"] in recipe.plans]


def _tidy(job: _Job, new: list[Path], *, diverged: bool) -> None:
    """After a failure: no checkpoint that leads to the same end, no empty folder; the rest is kept."""
    if diverged:
        shutil.rmtree(job.folder / "checkpoint", ignore_errors=True)
    for folder in (job.folder / "checkpoint", job.folder, job.folder.parent, *new):
        with contextlib.suppress(OSError):  # not there, or not empty
            folder.rmdir()


def _chosen(recipe: Recipe, methods: Sequence[str] | None) -> list[str]:
    if not methods:
        return list(recipe.plans)
    chosen = []
    for asked in methods:
        exact = [name for name in recipe.plans if slug(name) == slug(asked)]
        hits = exact or [name for name in recipe.plans if slug(asked) in slug(name)]
        if len(hits) != 1:
            fault = "is not unique" if hits else "is no plan"
            known = ", ".join(slug(name) for name in recipe.plans)
            near = "" if hits else did_you_mean(slug(asked), [slug(name) for name in recipe.plans])
            raise ValueError(f"method {asked!r} {fault} in recipe {recipe.name}; known: {known}{near}")
        chosen += hits
    return [name for name in recipe.plans if name in chosen]


def _provenance(command: str) -> dict[str, str]:
    """What made a job: command, date, machine, versions."""
    system, threads = f"{platform.system()} {platform.machine()}", torch.get_num_threads()
    packages = [f"{name} {metadata.version(name)}" for name in ("singularbayes", "torch", "numpy")]
    return {
        "command": command,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{system}, {os.cpu_count()} CPU cores, {threads} threads",
        "versions": ", ".join([f"Python {sys.version.split()[0]}", *packages]),
    }


def _fingerprint(
    recipe: Recipe, name: str, plan: Plan, network: nn.Module, seed: int, splits: Splits, bootstrap: int
) -> str:
    settings = (plan.method, plan.prior, plan.deterministic, plan.needs_validation, recipe.likelihood)
    rest = (recipe.draws, recipe.calibrate, seed, bootstrap, metadata.version("singularbayes"))
    digest = hashlib.sha256(repr((recipe.name, name, *settings, *rest)).encode())
    digest.update(repr(network).encode())
    for key, (x, y) in splits.named_sets().items():
        digest.update(key.encode() + x.tobytes() + (b"" if y is None else y.tobytes()))
    return digest.hexdigest()


@dataclass(frozen=True, kw_only=True)
class _Job:
    """One plan and seed, with the fingerprint of all that decides its result."""

    name: str
    seed: int
    plan: Plan
    network: nn.Module
    splits: Splits
    folder: Path
    mark: str

    def fits(self) -> bool:
        """Whether it was done before, with the same settings, data and version of the library."""
        path = self.folder / "job.json"
        return path.is_file() and read_object(path, JOB)["job"] == self.mark

    def check_finished(self) -> bool:
        """Whether it was done before; with other settings it is an error."""
        if (self.folder / "job.json").is_file() and not self.fits():
            raise ValueError(f"{self.folder} was made {_OTHER}; choose another --out")
        return self.fits()


def _job(recipe: Recipe, name: str, plan: Plan, seed: int, splits: Splits, out: Path, bootstrap: int) -> _Job:
    with forked(seed, "start"):
        network = plan.network()
    mark = _fingerprint(recipe, name, plan, network, seed, splits, bootstrap)
    folder = out / slug(name) / f"seed-{seed}"
    return _Job(name=name, seed=seed, plan=plan, network=network, splits=splits, folder=folder, mark=mark)


def _run(recipe: Recipe, job: _Job, bootstrap: int, made: Mapping[str, Any], say: Say) -> Run:
    if job.check_finished():
        say(f"{job.name}, seed {job.seed}: finished before")
        return read_job(job.folder, job.network)
    splits, folder = job.splits, job.folder
    model = job.plan.model(job.network, recipe.likelihood)
    held = splits.validation if job.plan.needs_validation else None
    fitted = job.plan.method.fit(model, splits.train, held, seed=job.seed, checkpoint=folder / "checkpoint")
    fitted.info["low_rank"] = any(
        isinstance(module, LowRankLinear | LowRankLSTM) for module in job.network.modules()
    )
    ood = {key: x if y is None else (x, y) for key, (x, y) in splits.ood.items()}
    settings = {"ood": ood, "draws": recipe.draws, "bootstrap": bootstrap, "seed": job.seed, "name": job.name}
    posterior, evaluation = fitted, _stated(evaluate(fitted, splits.test, **settings), splits)
    if recipe.calibrate:
        evaluation.save(folder / "uncalibrated")
        posterior = fitted.calibrate(splits.validation, draws=recipe.draws, seed=job.seed)
        evaluation = _stated(evaluate(posterior, splits.test, **settings), splits)
    posterior.save(folder)
    evaluation.save(folder / "evaluation")
    temperature = posterior.likelihood.temperature
    content = {"job": job.mark, "name": job.name, "seed": job.seed, "temperature": temperature}
    checkpoint.write_json(folder / "job.json", {**content, "made": dict(made)})
    shutil.rmtree(folder / "checkpoint", ignore_errors=True)
    say(f"{job.name}, seed {job.seed}: {fitted.info['seconds']:.1f} s")
    return read_job(folder, job.network)


def _stated(evaluation: Evaluation, splits: Splits) -> Evaluation:
    """In the units of the labels, where they were standardised."""
    units = splits.label_units
    return evaluation if units is None else in_units(evaluation, units.zero, units.one)
