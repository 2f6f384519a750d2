"""The runner of every recipe: fit, calibrate, evaluate, save; finished jobs are kept and read again.

A run's folder:

    run.json            recipe and the latest command; there once a job is done
    METHOD/seed-0/      one job's posterior and evaluations: see :mod:`.jobs`
    results.csv, report.html
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

from .. import checkpoint
from ..methods.training import TrainingDiverged
from ..nearest import did_you_mean
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
from .jobs import OTHER, Job, outcomes, prepared, provenance
from .overrides import check_overrides, overridden
from .recipe import Plan, Recipe

__all__ = ["RunFolder", "open_folder", "results_table", "run_recipe"]

Say = Callable[[str], None]


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
    executor: Executor | None = None,
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
        executor: any ``concurrent.futures.Executor`` of processes, here or on machines that see ``out``; jobs
            are independent and go there one by one (``processes(2)`` makes a pool). ``None`` does one after
            another here. The numbers are the same. After a failure nothing new is begun, and what is under
            way is waited for and kept.
        command: the command line, for the report.
        say: told one line per job, in the order in which they are done.

    Raises:
        ValueError: unknown methods or fields, missing data, ``out`` in use by something else.
        TypeError: an executor of threads, which share torch's global random state.
        TrainingDiverged: a fit diverged. Any failure before the first finished job leaves nothing to resume.
        ChildProcessError: a process of the executor was killed.
    """
    _check_options(executor, seeds=seeds, bootstrap=bootstrap)
    chosen, changes = _chosen(recipe, methods), overrides or {}
    check_overrides({name: recipe.plans[name] for name in chosen}, changes)
    plans = {name: overridden(recipe.plans[name], changes) for name in chosen}
    if recipe.needs_data and data is None:
        recipe.load(None, 0)
    if out.exists() and any(out.iterdir()):
        _check_ours(recipe, out, resume=resume)
    splits = _splits_by_seed(recipe, data)

    made = {"bootstrap": bootstrap, "command": command, "data": None if data is None else str(data)}

    def job_of(name: str, plan: Plan, seed: int) -> Job:
        return prepared(recipe, name, plan, seed, splits(seed), out, **made)

    jobs = [job_of(name, plan, seed) for seed in range(seeds) for name, plan in plans.items()]
    finished = [job for job in jobs if job.check_finished()]
    asked = {(job.name, job.seed) for job in jobs}
    others, left_out = _others(
        recipe, [key for key in _finished(recipe, out) if key not in asked], changes, job_of
    )
    for name, seed in left_out:
        say(f"{name}, seed {seed}: left out, it was made {OTHER}")
    absent = [f"{slug(name)}/seed-{seed}" for name, seed in left_out]
    about = {"recipe": recipe.name, "seeds": seeds, **provenance(command, made["data"]), "left_out": absent}
    new = [folder for folder in (out, *out.parents) if not folder.exists()]
    out.mkdir(parents=True, exist_ok=True)
    if finished:
        checkpoint.write_json(out / "run.json", about)
    for job in finished:
        say(f"{job.title}: finished before")
    failure: Exception | None = None
    for job, outcome in outcomes([job for job in jobs if job not in finished], executor):
        if isinstance(outcome, Exception):
            failure = failure or outcome
            _tidy(job, new, diverged=isinstance(outcome, TrainingDiverged))
        else:
            checkpoint.write_json(out / "run.json", about)  # before a job is done there is nothing to keep
            say(f"{job.title}: {outcome:.1f} s")
    if failure is not None:
        raise failure
    runs = [read_job(job.folder, job.network) for job in (*others, *jobs)]
    folder = RunFolder(out, recipe, in_order(recipe, runs), about)
    results_table(folder).to_csv(out / "results.csv", index=False)
    write_report(folder, splits(0))
    return folder


def _others(
    recipe: Recipe,
    keys: Sequence[tuple[str, int]],
    changes: Mapping[str, Any],
    job_of: Callable[[str, Plan, int], Job],
) -> tuple[list[Job], list[tuple[str, int]]]:
    """Finished jobs that were not asked for: those whose settings fit, and the rest by plan and seed."""
    others, left_out = [], []
    for name, seed in keys:
        own = recipe.plans[name]
        jobs = [job_of(name, plan, seed) for plan in (overridden(own, changes), own)]
        fits = [job for job in jobs if job.fits()]
        if fits:
            others.append(fits[0])
        else:
            left_out.append((name, seed))
    return others, left_out


def _check_options(executor: Executor | None, *, seeds: int, bootstrap: int) -> None:
    for key, value, least in (("seeds", seeds, 1), ("bootstrap", bootstrap, 0)):
        if value < least:
            raise ValueError(f"{key} must be at least {least}, got {value}")
    if isinstance(executor, ThreadPoolExecutor):
        raise TypeError(
            "threads share torch's global random state, so fits would not be reproducible; use a "
            "ProcessPoolExecutor"
        )


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


def _tidy(job: Job, new: list[Path], *, diverged: bool) -> None:
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
