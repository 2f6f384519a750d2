"""Interleaved timing: every candidate once per round, so that a slow moment of the machine hits all of them.

Shared by the benchmarks of this folder; needs nothing but the standard library.
"""

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


def interleave(
    candidates: Mapping[str, Callable[[], Any]],
    rounds: int,
    *,
    warmup: int = 3,
    seconds: float | None = None,
    least: int = 10,
) -> dict[str, list[float]]:
    """Times the candidates in turn, a, b, a, b, ..., in one process.

    Args:
        candidates: Name -> a call without arguments. Its result is dropped.
        rounds: Timed calls per candidate.
        warmup: Untimed rounds before the first timed one; with `seconds`, none starts after a fifth of it.
        seconds: Stop after this long (timed rounds only) once `least` rounds are done; None never stops.
        least: Rounds that are always run (never more than `rounds`).

    Returns:
        Name -> wall-clock seconds per call, one entry per round and in their order, so that the entries of
        two candidates pair up.

    Raises:
        ValueError: if there is no candidate, `rounds` or `least` is below 1, or `warmup` below 0.
    """
    if not candidates:
        raise ValueError("got no candidates; expected at least one name and call")
    if rounds < 1 or least < 1 or warmup < 0:
        raise ValueError(f"got rounds={rounds}, least={least}, warmup={warmup}; expected at least 1, 1 and 0")
    times: dict[str, list[float]] = {name: [] for name in candidates}
    begin = time.perf_counter()
    for done in range(warmup):
        if seconds is not None and done >= 1 and time.perf_counter() - begin > seconds / 5:
            break
        for call in candidates.values():
            call()
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        begin = time.perf_counter()
        for done in range(rounds):
            if seconds is not None and done >= least and time.perf_counter() - begin > seconds:
                break
            for name, call in candidates.items():
                start = time.perf_counter()
                call()
                times[name].append(time.perf_counter() - start)
    finally:
        if collecting:
            gc.enable()
    return times


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Median time of a candidate over that of its baseline, with the quartiles of the paired ratios.

    The quartiles say how quiet the machine was; they are not a confidence interval.
    """

    value: float
    low: float
    high: float


def ratio(times: Mapping[str, list[float]], candidate: str, baseline: str) -> Ratio:
    """Compares two candidates of one `interleave` run.

    Args:
        times: What `interleave` returned.
        candidate: Name of the numerator.
        baseline: Name of the denominator.

    Returns:
        The ratio of medians, and the first and third quartile of the ratios round by round.

    Raises:
        KeyError: if a name was not timed.
    """
    paired = [a / b for a, b in zip(times[candidate], times[baseline], strict=True)]
    low, _, high = statistics.quantiles(paired, n=4, method="inclusive") if len(paired) > 1 else paired * 3
    return Ratio(
        value=statistics.median(times[candidate]) / statistics.median(times[baseline]), low=low, high=high
    )
