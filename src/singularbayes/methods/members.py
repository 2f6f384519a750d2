"""Fits that do not depend on each other, here or in the processes of an executor."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Job", "check_executor", "fit_all"]


@dataclass(frozen=True)
class Job:
    """One fit: a method, a model and what else ``fit`` takes."""

    method: Any
    model: Any
    train: Any
    validation: Any
    seed: int
    checkpoint: Path | None
    progress: bool | None


def check_executor(executor: Executor | None) -> None:
    """Refuse threads.

    Raises:
        TypeError: a pool of threads.
    """
    if isinstance(executor, ThreadPoolExecutor):
        raise TypeError(
            "threads share torch's global random state, so members would not be reproducible; use a "
            "ProcessPoolExecutor"
        )


def fit_all(jobs: Sequence[Job], executor: Executor | None) -> list[Any]:
    """The posteriors of all jobs, in their order; ``None`` fits them one after another."""
    if executor is None:
        return [_fit(job) for job in jobs]
    futures = [executor.submit(_fit, job) for job in jobs]
    return [future.result() for future in futures]


def _fit(job: Job) -> Any:
    return job.method.fit(
        job.model, job.train, job.validation, seed=job.seed, checkpoint=job.checkpoint, progress=job.progress
    )
