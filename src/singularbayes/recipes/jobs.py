"""One job of a run: a plan and a seed, fitted, calibrated, evaluated and saved, here or in another process.

    METHOD/seed-0/posterior.*   the fitted posterior, calibrated where the recipe calibrates
    METHOD/seed-0/evaluation/   of that posterior (what the report shows)
    METHOD/seed-0/uncalibrated/ the same before calibration, where the recipe calibrates
    METHOD/seed-0/job.json      written last: the job is done, and by what command, when, where

A job takes along all that it needs; its result is its folder, and only seconds and warnings come back.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, ProcessPoolExecutor, wait
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .. import checkpoint
from ..evaluation import Evaluation, evaluate
from ..evaluation.units import in_units
from ..likelihoods import Likelihood
from ..model import BlockPrior, Model
from ..nn import (
    LowRankConv1d,
    LowRankConv2d,
    LowRankConv3d,
    LowRankEmbedding,
    LowRankGRU,
    LowRankLinear,
    LowRankLSTM,
    LowRankMultiheadAttention,
)
from ..random import forked
from .data.splits import Splits
from .folder import JOB, read_object, slug
from .recipe import Plan, Recipe

__all__ = ["OTHER", "Job", "outcomes", "prepared", "processes", "provenance"]

OTHER = "with other settings or data, or by another version of singularbayes"

_LOW_RANK = (
    LowRankConv1d,
    LowRankConv2d,
    LowRankConv3d,
    LowRankEmbedding,
    LowRankGRU,
    LowRankLinear,
    LowRankLSTM,
    LowRankMultiheadAttention,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """One plan and seed, with all that it needs and the fingerprint of all that decides its result."""

    name: str
    seed: int
    method: Any
    network: nn.Module
    likelihood: Likelihood
    prior: BlockPrior
    deterministic: tuple[str, ...]
    needs_validation: bool
    joins_validation: bool
    splits: Splits
    draws: int
    calibrate: bool
    threads: int
    bootstrap: int
    folder: Path
    mark: str
    command: str
    data: str | None

    @property
    def title(self) -> str:
        """What lines of progress call it."""
        return f"{self.name}, seed {self.seed}"

    def fits(self) -> bool:
        """Whether it was done before, with the same settings, data and version of the library."""
        path = self.folder / "job.json"
        return path.is_file() and read_object(path, JOB)["job"] == self.mark

    def check_finished(self) -> bool:
        """Whether it was done before; with other settings it is an error."""
        if (self.folder / "job.json").is_file() and not self.fits():
            raise ValueError(f"{self.folder} was made {OTHER}; choose another --out")
        return self.fits()

    def run(self, progress: bool | None = None) -> float:
        """Do it and leave the result in its folder; the seconds of the fit.

        Args:
            progress: show a bar (``None``: on a terminal only).
        """
        model = Model(self.network, self.likelihood, prior=self.prior, deterministic=self.deterministic)
        splits, folder = self.splits, self.folder
        train = splits.train_and_validation if self.joins_validation else splits.train
        held = splits.validation if self.needs_validation else None
        fitted = self.method.fit(
            model, train, held, seed=self.seed, checkpoint=folder / "checkpoint", progress=progress
        )
        fitted.info["low_rank"] = any(isinstance(module, _LOW_RANK) for module in self.network.modules())
        posterior, evaluation = fitted, self._evaluated(fitted)
        if self.calibrate:
            evaluation.save(folder / "uncalibrated")
            posterior = fitted.calibrate(splits.validation, draws=self.draws, seed=self.seed)
            evaluation = self._evaluated(posterior)
        posterior.save(folder)
        evaluation.save(folder / "evaluation")
        temperature = posterior.likelihood.temperature
        content = {"job": self.mark, "name": self.name, "seed": self.seed, "temperature": temperature}
        made = provenance(self.command, self.data)
        checkpoint.write_json(folder / "job.json", {**content, "made": made})
        shutil.rmtree(folder / "checkpoint", ignore_errors=True)
        return float(fitted.info["seconds"])

    def _evaluated(self, posterior: Any) -> Evaluation:
        """In the units of the labels, where they were standardised."""
        splits = self.splits
        evaluation = evaluate(
            posterior,
            splits.test,
            ood={key: x if y is None else (x, y) for key, (x, y) in splits.ood.items()},
            draws=self.draws,
            bootstrap=self.bootstrap,
            seed=self.seed,
            name=self.name,
        )
        units = splits.label_units
        return evaluation if units is None else in_units(evaluation, units.zero, units.one)


def prepared(
    recipe: Recipe,
    name: str,
    plan: Plan,
    seed: int,
    splits: Splits,
    out: Path,
    *,
    bootstrap: int,
    command: str,
    data: str | None,
) -> Job:
    """The job of one plan and seed; the start network is drawn here, from the seed alone."""
    with forked(seed, "start"):
        network = plan.network()
    return Job(
        name=name,
        seed=seed,
        method=plan.method,
        network=network,
        likelihood=plan.likelihood or recipe.likelihood,
        prior=plan.prior,
        deterministic=tuple(plan.deterministic),
        needs_validation=plan.needs_validation,
        joins_validation=plan.joins_validation,
        splits=splits,
        draws=recipe.draws,
        calibrate=recipe.calibrate,
        threads=recipe.threads,
        bootstrap=bootstrap,
        folder=out / slug(name) / f"seed-{seed}",
        mark=_fingerprint(recipe, name, plan, network, seed, splits, bootstrap),
        command=command,
        data=data,
    )


def _fingerprint(
    recipe: Recipe, name: str, plan: Plan, network: nn.Module, seed: int, splits: Splits, bootstrap: int
) -> str:
    settings = (plan.method, plan.prior, plan.deterministic, plan.needs_validation, plan.joins_validation)
    rest = (recipe.draws, recipe.calibrate, seed, bootstrap, metadata.version("singularbayes"))
    likelihood = plan.likelihood or recipe.likelihood
    digest = hashlib.sha256(repr((recipe.name, name, *settings, likelihood, *rest)).encode())
    digest.update(repr(network).encode())
    for key, (x, y) in splits.named_sets().items():
        digest.update(key.encode() + x.tobytes() + (b"" if y is None else y.tobytes()))
    return digest.hexdigest()


def provenance(command: str, data: str | None) -> dict[str, str | None]:
    """What made a job: command, date, machine, versions, the folder of the data."""
    system, threads = f"{platform.system()} {platform.machine()}", torch.get_num_threads()
    packages = [f"{name} {metadata.version(name)}" for name in ("singularbayes", "torch", "numpy")]
    return {
        "command": command,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{system}, {os.cpu_count()} CPU cores, {threads} threads",
        "versions": ", ".join([f"Python {sys.version.split()[0]}", *packages]),
        "data": data,
    }


def outcomes(jobs: Sequence[Job], executor: Executor | None) -> Iterator[tuple[Job, float | Exception]]:
    """Do the jobs: each with its seconds, or with the error that ended it, as soon as it is done.

    After an error nothing new is begun; what is under way elsewhere is waited for and given too.

    Args:
        jobs: independent of each other.
        executor: of processes that see the folder of the run; ``None`` does them here, one after another.
    """
    if executor is None:
        for job in jobs:
            try:
                seconds = job.run()
            except Exception as error:  # noqa: BLE001 - handed on
                yield job, error
                return
            yield job, seconds
        return
    futures = {executor.submit(_apart, job): job for job in jobs}
    pending = set(futures)
    try:
        while pending:
            finished, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in [each for each in futures if each in finished]:
                job, error = futures[future], future.exception()
                if error is None:
                    seconds, caught = future.result()
                    for category, text in caught:
                        warnings.warn(f"{job.title}: {text}", category, stacklevel=2)
                    yield job, seconds
                    continue
                pending = {other for other in pending if not other.cancel()}
                if not isinstance(error, Exception):  # an interrupt
                    raise error
                yield job, _named(error, job)
    finally:
        for future in pending:
            future.cancel()


def _named(error: Exception, job: Job) -> Exception:
    if not isinstance(error, BrokenExecutor):
        return error
    found = ChildProcessError(
        f"a process ended without an answer while {job.title} was under way (was it killed, or was memory "
        f"short?); finished jobs are kept: go on with --resume, perhaps with fewer --jobs"
    )
    found.__cause__ = error
    return found


def _apart(job: Job) -> tuple[float, list[tuple[type[Warning], str]]]:
    """Do a job in a process of its own: seconds, and the warnings, for whoever asked."""
    torch.set_num_threads(job.threads)
    with warnings.catch_warnings(record=True) as caught:
        seconds = job.run(progress=False)
    return seconds, [(each.category, str(each.message)) for each in caught]


def processes(count: int) -> ProcessPoolExecutor:
    """Fresh processes for ``outcomes``: none inherits torch's threads, all end at Ctrl-C.

    Args:
        count: of processes, at least 1.
    """
    return ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=_end_at_interrupt)


def _end_at_interrupt() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
