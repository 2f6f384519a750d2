"""Fits that do not depend on each other, here or in the processes of an executor."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Job", "check_executor", "check_pickles", "fit_all"]


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


class _Nowhere:
    """A file that forgets."""

    def write(self, data: Any) -> int:
        return len(data)


def check_pickles(work: Any, executor: Executor) -> None:
    """What a pool of processes is given must be picklable.

    Raises:
        TypeError: it is not.
    """
    if not isinstance(executor, ProcessPoolExecutor):  # others have picklers of their own
        return
    try:
        pickle.Pickler(_Nowhere()).dump(work)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(
            f"an executor of processes needs a network, data and settings that can be pickled: {error}. "
            f"Define classes and functions at the top of a module, or leave executor=None"
        ) from error


def fit_all(jobs: Sequence[Job], executor: Executor | None) -> list[Any]:
    """The posteriors of all jobs, in their order; ``None`` fits them one after another.

    Raises:
        TypeError: an executor of processes for what cannot be pickled.
    """
    if executor is None:
        return [_fit(job) for job in jobs]
    check_pickles(jobs[0], executor)
    futures = [executor.submit(_fit, job) for job in jobs]
    return [future.result() for future in futures]


def _fit(job: Job) -> Any:
    return job.method.fit(
        job.model, job.train, job.validation, seed=job.seed, checkpoint=job.checkpoint, progress=job.progress
    )
