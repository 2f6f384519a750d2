"""What a prediction costs: its time and the memory of a process that does nothing else.

A fresh process loads the library and the model, predicts, and is measured: the memory of training, of earlier
predictions and of the caller is not in it.
"""

from __future__ import annotations

import platform
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..data import batch_size_of, take
from .checklist import Measurement

__all__ = ["Cost", "measure_cost"]

MEGABYTE = 1e6
_STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class Cost:
    """The cost of one prediction.

    Args:
        latency_ms: median time of a prediction, in milliseconds.
        slowest_ms: the slowest of them.
        memory_mb: peak resident memory of the process, library and model included, in 10^6 bytes; ``None``
            where the system does not tell.
        added_mb: how much of it came with predicting.
        batch_size: rows of a prediction.
        draws: of a prediction.
        repeats: predictions that were timed.
        threads: of torch.
        machine: what it ran on.
    """

    latency_ms: float
    slowest_ms: float
    memory_mb: float | None
    added_mb: float | None
    batch_size: int
    draws: int
    repeats: int
    threads: int
    machine: str

    def __str__(self) -> str:
        memory = "memory not known" if self.memory_mb is None else f"{self.memory_mb:.0f} MB at the peak"
        return (
            f"{self.latency_ms:.3g} ms (slowest {self.slowest_ms:.3g} ms), {memory}; {self.batch_size} rows, "
            f"{self.draws} draws, {self.threads} thread{'s' if self.threads > 1 else ''}, {self.machine}"
        )


def measure_cost(posterior: Any, x: Any, measurement: Measurement | None = None) -> Cost:
    """Time ``posterior.predict`` in a fresh process and read its peak memory.

    Args:
        posterior: that can be pickled, its network importable from a module (a script that calls this
            needs ``if __name__ == "__main__":`` around the call).
        x: inputs as ``predict`` takes them, repeated where there are fewer than a batch.
        measurement: batch size, draws, repeats and threads.

    Raises:
        RuntimeError: the process ended before it had an answer.
    """
    how = Measurement() if measurement is None else measurement
    inputs = torch.as_tensor(x) if isinstance(x, np.ndarray) else x
    rows = torch.arange(how.batch_size) % batch_size_of(inputs)
    try:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            return pool.submit(_measured, posterior, take(inputs, rows), how).result()
    except BrokenProcessPool as error:
        raise RuntimeError(
            "the process that measures latency and memory ended early; in a script, put the call under "
            "`if __name__ == '__main__':` and define the network in a module"
        ) from error


def _measured(posterior: Any, x: Any, how: Measurement) -> Cost:
    torch.set_num_threads(how.threads)
    before = _peak()
    posterior.predict(x, draws=how.draws, seed=0)  # compiles and allocates what later ones find
    times = []
    for seed in range(how.repeats):
        start = time.perf_counter()
        posterior.predict(x, draws=how.draws, seed=seed)
        times.append(1000 * (time.perf_counter() - start))
    peak = _peak()
    added = None if peak is None or before is None else peak - before
    machine = f"{platform.system()} {platform.machine()}, torch {torch.__version__}"
    return Cost(
        float(np.median(times)),
        max(times),
        peak,
        added,
        how.batch_size,
        how.draws,
        how.repeats,
        how.threads,
        machine,
    )


def _peak() -> float | None:
    """Peak resident memory of this process so far.

    Not ``ru_maxrss`` where there is /proc: Linux hands the parent's peak on to a child.
    """
    if _STATUS.is_file():
        for line in _STATUS.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / MEGABYTE
    if platform.system() == "Darwin":
        import resource  # noqa: PLC0415 - not on Windows

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MEGABYTE
    return None
