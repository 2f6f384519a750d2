"""Results against the severity of a damage to the test data, one line a method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from singularbayes.protocol import SeverityCurve
from singularbayes.report.canvas import blank_figure, grid, some
from singularbayes.report.palette import MethodStyle, drawing, plain, resolve

__all__ = ["severity_plot"]

_USUAL = {
    "gaussian": ("rmse", "negative_log_likelihood", "interval_coverage", "auroc"),
    "categorical": ("accuracy", "negative_log_likelihood", "expected_calibration_error", "auroc"),
    "bernoulli": ("accuracy", "negative_log_likelihood", "expected_calibration_error", "auroc"),
}


def severity_plot(
    curves: Mapping[str, SeverityCurve],
    metrics: Sequence[str] | None = None,
    *,
    styles: Mapping[str, MethodStyle] | None = None,
) -> Figure:
    """One panel a metric, with 95% intervals; at severity 0 stand the test data themselves.

    Args:
        curves: method -> curve, all of one task, corruption and choice of severities.
        metrics: what ``SeverityCurve.metric`` knows; a choice for the task if ``None``.
        styles: method -> style; by order where None.

    Returns:
        The figure.

    Raises:
        ValueError: no curve, curves of different tasks, corruptions or severities, or an unknown metric.
    """
    some(curves, "curves")
    styles = resolve(list(curves), styles)
    kinds = {(c.corruption, c.evaluation.task, c.severities) for c in curves.values()}
    if len(kinds) > 1:
        raise ValueError(
            f"the curves are of {sorted(map(str, kinds))}; expected one damage, task and severities"
        )
    ((corruption, task, severities),) = kinds
    chosen = _USUAL[task] if metrics is None else tuple(metrics)
    cells = {name: {method: curve.metric(name) for method, curve in curves.items()} for name in chosen}
    some(cells, "metrics")
    with drawing():
        rows, columns = grid(len(cells))
        figure = blank_figure(max(4.2, 3.0 * columns), 0.5 + 2.4 * rows)
        axes = figure.subplots(rows, columns, squeeze=False).ravel()
        for ax, (name, found) in zip(axes, cells.items(), strict=False):
            for place, (method, intervals) in enumerate(found.items()):
                style, shift = (
                    styles[method],
                    0.08 * (place - (len(found) - 1) / 2),
                )  # bars stand side by side
                x = np.asarray(severities) + shift
                value, low, high = (
                    np.array([getattr(i, key) for i in intervals]) for key in ("value", "low", "high")
                )
                ax.vlines(x, low, high, color=style.color, linewidth=1.2)
                ax.plot(x, value, color=style.color, marker=style.marker, linestyle=style.line, markersize=4,
                        label=plain(method))  # fmt: skip
            ax.set(title=plain(name.replace("_", " ")), xlabel="severity", xticks=severities)
        for ax in axes[len(cells) :]:
            ax.set_visible(False)
        figure.suptitle(plain(corruption), x=0.01, ha="left", size=10)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower left", ncols=min(3, len(labels)))
    return figure
