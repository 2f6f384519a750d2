"""What a running fit or sampler shows: a bar on a terminal, nothing elsewhere unless asked."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

__all__ = ["Progress", "shown"]


@runtime_checkable
class Progress(Protocol):
    """Told after every epoch or step; ``facts`` hold its losses, or acceptance and divergences so far."""

    def __call__(self, done: int, total: int, facts: dict[str, float], /) -> None: ...


def _silent(_done: int, _total: int, _facts: dict[str, float]) -> None:
    return None


def _words(facts: dict[str, float]) -> str:
    """Counts are whole numbers, everything else has four digits."""
    return "  ".join(
        f"{name} {value}" if isinstance(value, int) else f"{name} {value:.4f}"
        for name, value in facts.items()
    )


@contextmanager
def shown(label: str, total: int, show: bool | None, unit: str = "epoch") -> Iterator[Progress]:
    """A progress display: ``None`` shows a bar on a terminal only; ``True`` prints plain lines elsewhere.

    Args:
        label: what runs.
        total: epochs or steps.
        show: see above.
        unit: what is counted, for the plain lines.
    """
    terminal = sys.stderr.isatty()
    if show is False or (show is None and not terminal):
        yield _silent
        return
    if not terminal:
        last = time.monotonic()

        def line(done: int, of: int, facts: dict[str, float]) -> None:
            nonlocal last
            if done == of or time.monotonic() - last > 10:
                last = time.monotonic()
                print(f"{label}: {unit} {done}/{of}  {_words(facts)}", file=sys.stderr, flush=True)

        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[words]}"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total, words="")

        def update(done: int, _total: int, facts: dict[str, float]) -> None:
            bar.update(task, completed=done, words=_words(facts))

        yield update
