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
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .. import checkpoint
from ..evaluation import evaluate
from ..random import forked
from .data.splits import Splits
from .folder import RunFolder, open_folder, read_job, results_table, slug, write_report
from .recipe import Plan, Recipe, Run

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
    jobs = [
        _job(recipe, name, plan, seed, splits[seed if recipe.varies_data else 0], out, bootstrap)
        for seed in range(seeds)
        for name, plan in plans.items()
    ]
    for job in jobs:
        job.check_finished()
    out.mkdir(parents=True, exist_ok=True)
    about = _about(recipe, command, seeds, data)
    checkpoint.write_json(out / "run.json", about)
    folder = RunFolder(out, recipe, tuple(_run(recipe, job, bootstrap, say) for job in jobs), about)
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
            fault = "is not unique" if hits else "is no plan"
            known = ", ".join(slug(name) for name in recipe.plans)
            raise ValueError(f"method {asked!r} {fault} in recipe {recipe.name}; known: {known}")
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
            known = ", ".join(sorted(fields - {"executor", "member"}))
            raise ValueError(f"no chosen method has a field {key!r}; known: {known}")


def _about(recipe: Recipe, command: str, seeds: int, data: Path | None) -> dict[str, Any]:
    system, threads = f"{platform.system()} {platform.machine()}", torch.get_num_threads()
    packages = [f"{name} {metadata.version(name)}" for name in ("singularbayes", "torch", "numpy")]
    return {
        "recipe": recipe.name,
        "command": command,
        "seeds": seeds,
        "data": None if data is None else str(data),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{system}, {os.cpu_count()} CPU cores, {threads} threads",
        "versions": ", ".join([f"Python {sys.version.split()[0]}", *packages]),
    }


def _fingerprint(
    recipe: Recipe, name: str, plan: Plan, network: nn.Module, seed: int, splits: Splits, bootstrap: int
) -> str:
    settings = (plan.method, plan.prior, plan.deterministic, recipe.likelihood, recipe.draws)
    digest = hashlib.sha256(repr((recipe.name, name, *settings, seed, bootstrap)).encode())
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

    def check_finished(self) -> bool:
        """Whether it was done before; with other settings it is an error."""
        if not (self.folder / "job.json").is_file():
            return False
        if json.loads((self.folder / "job.json").read_text(encoding="utf-8"))["job"] != self.mark:
            raise ValueError(f"{self.folder} was made with other settings or data; choose another --out")
        return True


def _job(recipe: Recipe, name: str, plan: Plan, seed: int, splits: Splits, out: Path, bootstrap: int) -> _Job:
    with forked(seed, "start"):
        network = plan.network()
    mark = _fingerprint(recipe, name, plan, network, seed, splits, bootstrap)
    folder = out / slug(name) / f"seed-{seed}"
    return _Job(name=name, seed=seed, plan=plan, network=network, splits=splits, folder=folder, mark=mark)


def _run(recipe: Recipe, job: _Job, bootstrap: int, say: Say) -> Run:
    if job.check_finished():
        say(f"{job.name}, seed {job.seed}: finished before")
        return read_job(job.folder, job.network)
    splits, folder = job.splits, job.folder
    model = job.plan.model(job.network, recipe.likelihood)
    held = splits.validation if job.plan.uses_validation else None
    fitted = job.plan.method.fit(model, splits.train, held, seed=job.seed, checkpoint=folder / "checkpoint")
    calibrated = fitted
    if recipe.calibrate:
        calibrated = fitted.calibrate(splits.validation, draws=recipe.draws, seed=job.seed)
    ood = {key: x if y is None else (x, y) for key, (x, y) in splits.ood.items()}
    settings = {"ood": ood, "draws": recipe.draws, "bootstrap": bootstrap, "seed": job.seed, "name": job.name}
    raw = evaluate(fitted, splits.test, **settings)
    evaluation = evaluate(calibrated, splits.test, **settings)
    calibrated.save(folder)
    raw.save(folder / "uncalibrated")
    evaluation.save(folder / "evaluation")
    temperature = calibrated.likelihood.temperature
    content = {"job": job.mark, "name": job.name, "seed": job.seed, "temperature": temperature}
    checkpoint.write_json(folder / "job.json", content)
    shutil.rmtree(folder / "checkpoint", ignore_errors=True)
    say(f"{job.name}, seed {job.seed}: {fitted.info['seconds']:.1f} s")
    return Run(
        name=job.name, seed=job.seed, posterior=calibrated, evaluation=evaluation, temperature=temperature
    )
