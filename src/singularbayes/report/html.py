"""The report as ONE self-contained HTML page: styles and figures inside, no script, no external request."""

from __future__ import annotations

import base64
import io
import os
import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure

from singularbayes.report.content import Panel, Report
from singularbayes.report.palette import MethodStyle, drawing, method_styles
from singularbayes.report.tables import (
    Dial,
    cause,
    dials,
    inside_dials,
    label_tables,
    main_table,
    prevalence,
    set_table,
    shared_gaps,
)
from singularbayes.report.verdict import GAP, SCORES, verdict

# A vector picture above this many bytes (a scatter of 1e5 points, say) becomes pixels.
_MOST_SVG = 400_000
_GLYPHS = {"o": "●", "s": "■", "^": "▲", "D": "◆", "v": "▼", "P": "✚", "X": "✖"}


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("singularbayes.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def picture(figure: Figure) -> str:
    """A figure as a data URI: SVG, or PNG where the SVG is above 400 kB. Scripts cannot run inside it.

    Args:
        figure: a matplotlib figure.

    Returns:
        `data:image/...;base64,...`, the same bytes for a figure made again in the same way.
    """
    with drawing(), warnings.catch_warnings():
        # A name in a script that the figure font lacks is drawn as boxes; the page's text still shows it.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
        kind = "svg+xml"
        if buffer.tell() > _MOST_SVG:
            buffer, kind = io.BytesIO(), "png"
            figure.savefig(buffer, format="png", dpi=180, metadata={"Software": None})
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


def _panel(panel: Panel) -> dict[str, Any]:
    width, height = (round(96 * side) for side in panel.figure.get_size_inches())
    alt = panel.alt or f"{panel.title}. {panel.caption}"
    return {
        "title": panel.title, "caption": panel.caption, "alt": alt, "uri": picture(panel.figure),
        "width": width, "height": height, "least": min(width, 540),
    }  # fmt: skip


def _dials(rows: list[list[Dial]]) -> dict[str, Any]:
    gaps, rest = shared_gaps(rows)
    return {"gaps": gaps, "dials": rest, "most": max(map(len, rest), default=0)}


def _mark(style: MethodStyle) -> dict[str, str]:
    return {"color": style.color, "glyph": _GLYPHS[style.marker]}


def render(report: Report) -> str:
    """The page as text.

    Args:
        report: what it shows.

    Returns:
        HTML; the same bytes for a report made again in the same way: no time of writing, no random number.

    Example:
        >>> from singularbayes.evaluation import Evaluation
        >>> from singularbayes.report import Entry
        >>> found = Evaluation("a", "categorical", 8, 0, 0, {}, {}, {}, {}, {}, {})
        >>> entry = Entry(name="a", evaluations=(found,), diagnosis=None, numbers=3, seconds=1.0)
        >>> page = render(Report(title="T", recipe="r", about={}, entries=[entry], command="c"))
        >>> page[:15], "not measured" in page
        ('<!doctype html>', True)
    """
    names = [entry.name for entry in report.entries]
    seeds = [list(dict.fromkeys(e.seed for e in entry.evaluations)) for entry in report.entries]
    first = [entry.evaluations[0] for entry in report.entries]
    (_, main_words), (_, second_words) = SCORES[report.task]
    return _environment().get_template("page.html").render(
        title=report.title,
        recipe=report.recipe,
        task=report.task,
        methods=[{"name": name, **_mark(style)} for name, style in method_styles(names).items()],
        findings=verdict(report),
        several=max(len(entry.evaluations) for entry in report.entries) > 1,
        most=max(len(entry.evaluations) for entry in report.entries),
        diagnosed=any(entry.diagnosis is not None for entry in report.entries),
        fewest=min(len(entry.evaluations) for entry in report.entries),
        main_words=main_words,
        second_words=second_words,
        gap=GAP,
        sets=[
            {
                "name": name,
                **_dials([dials(entry, name) for entry in report.entries]),
                "causes": [cause(entry, name) for entry in report.entries],
                "columns": set_table(report, name),
                "prevalence": prevalence(report, name),
                "cases": _cases(report, name),
            }
            for name in report.unfamiliar
        ],
        inside=_dials([inside_dials(entry) for entry in report.entries]),
        main=main_table(report),
        labels=label_tables(report),
        diagnoses=[(name, report.diagnoses[name].text()) for name in names if name in report.diagnoses],
        panels=[_panel(panel) for panel in report.figures],
        about=list(report.about.items()),
        seeds=list(zip(names, seeds, strict=True)),
        draws=sorted({e.draws for e in first}),
        bootstrap=sorted({e.bootstrap for e in first}),
        cases=_cases(report, "test"),
        notes=list(report.notes),
        command=report.command,
    )  # fmt: skip


def _cases(report: Report, name: str) -> int | None:
    for entry in report.entries:
        arrays = entry.evaluations[0].sets.get(name)
        if arrays is not None:
            return len(arrays.mean)
    return None


def write(report: Report, path: str | Path) -> Path:
    """Write the page in one step: a reader finds the old file or the whole new one, never half of it.

    Args:
        report: what it shows.
        path: the file; its folder is made where it is missing.

    Returns:
        The path.

    Raises:
        IsADirectoryError: `path` is a folder.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(
            f"got the folder {path}; expected a file: give a name such as {path / 'report.html'}"
        )
    text = render(report).encode("utf-8", errors="replace")
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        Path(draft).chmod(0o666 & ~mask)  # mkstemp's 0600 would hide the report from colleagues
        Path(draft).replace(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
    return path
