"""The table of results on a terminal, or in a pipe."""

from __future__ import annotations

import textwrap
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .recipes import summary

__all__ = ["print_results"]

_PIPE = 200  # columns of a table that does not go to a terminal


def print_results(console: Console, folder: Any) -> None:
    """The report's main table, each value over its interval; more tables where one is too wide."""
    state = "calibrated on validation" if folder.recipe.calibrate else "uncalibrated"
    seeds = len({run.seed for run in folder.runs})
    console.print(f"\nTest set, {state}, seeds: {seeds}; each value over its 95% interval", highlight=False)
    wide = console if console.is_terminal else Console(width=_PIPE)
    numbers, *measures, seconds = summary(folder).columns
    part: list[Any] = []
    for column in (numbers, seconds, *measures):
        if part and _width(_table(folder.names, [*part, column])) > wide.width:
            wide.print(_table(folder.names, part))
            part = []
        part.append(column)
    wide.print(_table(folder.names, part))


def _width(table: Table) -> int:
    return Console(width=10_000).measure(table).maximum


def _table(names: Any, columns: Any) -> Table:
    def folded(text: str, width: int) -> str:
        return textwrap.fill(text, width, break_long_words=False)

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    table.add_column("method")
    for column in columns:
        group = column.group.replace(" against test", "") if column.group != "Test set" else ""
        arrow = len(column.sub) == 1
        lines = (group, f"{column.head} {column.sub}" if arrow else column.head, "" if arrow else column.sub)
        table.add_column("\n".join(folded(line, 14) for line in lines if line), justify="right")
    for row, name in enumerate(names):
        cells = [column.cells[row] for column in columns]
        texts = [Text(f"{c.text}\n{c.interval}".strip(), "bold" if c.best else "") for c in cells]
        table.add_row(Text(folded(name, 12)), *texts)
    return table
