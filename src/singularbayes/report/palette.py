"""One colour, marker and line for each method, the same in every figure and table of a report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import matplotlib.style

# Okabe and Ito's colour-blind-safe set without its yellow (too faint on white), most distinct first.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#B3568B", "#B67C00", "#3A9BDC", "#222222")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", "-.", ":")
NEUTRAL = "#6B7280"
FAMILIAR = "#C9CDD3"

_SETTINGS = {
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.labelsize": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": NEUTRAL,
    "axes.labelcolor": "#1F2937",
    "xtick.color": "#374151",
    "ytick.color": "#374151",
    "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "svg.fonttype": "path",
    "svg.hashsalt": "singularbayes",
}


@dataclass(frozen=True, kw_only=True)
class MethodStyle:
    """How one method is drawn. Marker and line repeat what the colour says, for readers who cannot see it."""

    color: str
    marker: str
    line: str


def method_styles(names: Sequence[str]) -> dict[str, MethodStyle]:
    """Give each method its style by its place in `names`; no two of the first 28 are equal.

    Args:
        names: all methods of the report, in order. Pass the same list for every figure, even for one that
            shows only some of them: that keeps the colours.

    Returns:
        Name -> style.

    Raises:
        ValueError: a name occurs twice.

    Example:
        >>> method_styles(["mean field", "rank 4"])["rank 4"].color
        '#D55E00'
    """
    twice = sorted({name for name in names if list(names).count(name) > 1})
    if twice:
        raise ValueError(
            f"got the method names {twice} more than once; expected each name once: rename one of them"
        )
    return {
        name: MethodStyle(
            color=COLORS[i % len(COLORS)],
            marker=MARKERS[i % len(MARKERS)],
            line=LINES[i // len(COLORS) % len(LINES)],
        )
        for i, name in enumerate(names)
    }


def resolve(names: Sequence[str], styles: Mapping[str, MethodStyle] | None) -> Mapping[str, MethodStyle]:
    """The given styles, checked to hold every name; styles by order where none are given.

    Args:
        names: the methods that a figure shows.
        styles: name -> style, or None.

    Returns:
        Name -> style, for at least `names`.

    Raises:
        ValueError: a method has no style.
    """
    if styles is None:
        return method_styles(names)
    missing = [name for name in names if name not in styles]
    if missing:
        raise ValueError(
            f"got no style for {missing}; expected one for each method: call method_styles on all names"
        )
    return styles


def plain(text: str) -> str:
    r"""`text` as matplotlib prints it letter by letter: no mathematics in dollars, no hidden label.

    Example:
        >>> plain("cost in $")
        'cost in \\$'
    """
    text = text.replace("$", r"\$")
    return " " + text if text.startswith("_") else text


@contextmanager
def drawing() -> Iterator[None]:
    """The report's drawing defaults inside a `with` block; the user's settings come back after it."""
    with matplotlib.style.context(["default", _SETTINGS]):
        yield
