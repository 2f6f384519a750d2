"""What a running fit shows: a bar on a terminal, nothing elsewhere unless asked; a callback for programs."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

__all__ = ["Progress", "shown"]


@runtime_checkable
class Progress(Protocol):
    """Told after every epoch; ``facts`` hold its loss and, where there is one, the validation loss."""

    def __call__(self, epoch: int, epochs: int, facts: dict[str, float], /) -> None: ...


def _silent(_epoch: int, _epochs: int, _facts: dict[str, float]) -> None:
    return None


def _words(facts: dict[str, float]) -> str:
    return "  ".join(f"{name} {value:.4f}" for name, value in facts.items())


@contextmanager
def shown(label: str, epochs: int, show: bool | None) -> Iterator[Progress]:
    """A progress display: ``None`` shows a bar on a terminal only; ``True`` prints plain lines elsewhere."""
    terminal = sys.stderr.isatty()
    if show is False or (show is None and not terminal):
        yield _silent
        return
    if not terminal:
        last = time.monotonic()

        def line(epoch: int, epochs: int, facts: dict[str, float]) -> None:
            nonlocal last
            if epoch == epochs or time.monotonic() - last > 10:
                last = time.monotonic()
                print(f"{label}: epoch {epoch}/{epochs}  {_words(facts)}", file=sys.stderr, flush=True)

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
        task = bar.add_task(label, total=epochs, words="")

        def update(epoch: int, _epochs: int, facts: dict[str, float]) -> None:
            bar.update(task, completed=epoch, words=_words(facts))

        yield update
