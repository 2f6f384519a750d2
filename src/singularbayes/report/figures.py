"""Figures of a report: arrays in, a matplotlib `Figure` out. Nothing global is changed, no window opens."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm

from singularbayes.metrics.calibration import bin_of
from singularbayes.report.canvas import blank_figure, grid, some, vector
from singularbayes.report.palette import FAMILIAR, LINES, NEUTRAL, MethodStyle, drawing, plain, resolve

Array = NDArray[np.float64]
Styles = Mapping[str, MethodStyle]


@runtime_checkable
class HasInterval(Protocol):
    """Anything with a value and the two ends of its interval; nan where undefined."""

    @property
    def value(self) -> float: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...


def uncertainty_histograms(
    scores: Mapping[str, Mapping[str, ArrayLike]],
    *,
    label: str = "mutual information (nats)",
    bins: int = 40,
    log: bool = True,
    styles: Styles | None = None,
) -> Figure:
    """Histograms of uncertainty, one row a method, the SAME bins for all methods and sets.

    Heights are shares of each set's cases, so sets of different size compare. Values below the first edge
    (exact zeros on a log axis) count in the first bin.

    Args:
        scores: method -> set -> (B,) uncertainty; the first set is the familiar one (grey).
        label: the horizontal axis, with the unit.
        bins: number of bins.
        log: bins of equal width in log10 of the uncertainty.
        styles: method -> style; by order where None.

    Returns:
        The figure.

    Raises:
        ValueError: no method, or scores that are not (B,).
    """
    some(scores, "scores")
    styles = resolve(list(scores), styles)
    data = {
        m: {s: vector(v, f"scores of {m!r} on {s!r}") for s, v in sets.items()} for m, sets in scores.items()
    }
    pooled = np.concatenate([v for sets in data.values() for v in sets.values()] or [np.zeros(0)])
    pooled = pooled[np.isfinite(pooled)]
    edges = _edges(pooled, bins, log)
    log = log and bool(edges[0] > 0)
    names = list(dict.fromkeys(s for sets in data.values() for s in sets))
    with drawing():
        figure = blank_figure(6.4, 0.55 + 1.2 * len(data))
        axes = figure.subplots(len(data), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        for ax, (method, sets) in zip(axes, data.items(), strict=True):
            ax.set_title(plain(method), color=styles[method].color, fontweight="bold")
            for name, raw in sets.items():
                values = np.clip(raw[np.isfinite(raw)], edges[0], edges[-1])
                if values.size == 0:
                    continue
                share = np.histogram(values, edges)[0] / values.size
                place = names.index(name)
                if place == 0:
                    ax.stairs(share, edges, fill=True, color=FAMILIAR)
                else:
                    line = LINES[(place - 1) % len(LINES)]
                    ax.stairs(share, edges, color=styles[method].color, linestyle=line, linewidth=1.5)
            if log:
                ax.set_xscale("log")
            ax.yaxis.set_major_locator(MaxNLocator(3))
        axes[-1].set_xlabel(plain(label))
        figure.supylabel("share of the set's cases", fontsize=9)
        handles: list[Patch | Line2D] = [Patch(color=FAMILIAR, label=plain(n)) for n in names[:1]]
        handles += [
            Line2D([], [], color="#374151", linestyle=LINES[i % len(LINES)], label=plain(n))
            for i, n in enumerate(names[1:])
        ]
        figure.legend(handles=handles, loc="outside upper right", ncols=max(1, len(handles)))
    return figure


def _edges(pooled: Array, bins: int, log: bool) -> Array:
    if pooled.size == 0:
        return np.linspace(0.0, 1.0, bins + 1)
    low, high = float(pooled.min()), float(pooled.max())
    if log and low >= 0 and high > 0:
        floor = max(float(np.quantile(pooled[pooled > 0], 0.005)), 1e-6 * high)
        return np.geomspace(min(floor, high / 10), high, bins + 1)
    pad = 0.0 if high > low else max(abs(low), 1.0) * 0.01
    return np.linspace(low - pad, high + pad, bins + 1)


def reliability_diagram(
    confidence: Mapping[str, ArrayLike],
    correct: Mapping[str, ArrayLike],
    *,
    bins: int = 15,
    styles: Styles | None = None,
) -> Figure:
    """Accuracy against confidence in bins (lo, hi], the first closed at 0; Wilson 95% bars; counts below.

    Args:
        confidence: method -> (B,) probability of the predicted class, in [0, 1].
        correct: method -> (B,) 1 where the prediction is right, else 0.
        bins: number of bins of equal width.
        styles: method -> style; by order where None.

    Returns:
        The figure.

    Raises:
        ValueError: no method, unequal methods or lengths, or a confidence outside [0, 1].

    References:
        Guo et al. 2017, arXiv 1706.04599.
    """
    some(confidence, "confidence")
    if set(confidence) != set(correct):
        raise ValueError(
            f"got confidence of {sorted(confidence)} and correct of {sorted(correct)}; expected the same"
        )
    styles = resolve(list(confidence), styles)
    edges = np.arange(bins + 1) / bins
    with drawing():
        rows, columns = grid(len(confidence))
        figure = blank_figure(2.4 * max(columns, 2), 3.1 * rows)
        panels = figure.subfigures(rows, columns, squeeze=False).ravel()
        for panel, (method, values) in zip(panels, confidence.items(), strict=False):
            conf = vector(values, f"confidence of {method!r}")
            hit = vector(correct[method], f"correct of {method!r}", conf.size)
            if conf.size and not (conf.min() >= 0 and conf.max() <= 1 + 1e-6):
                raise ValueError(
                    f"confidence of {method!r} spans {conf.min():g} to {conf.max():g}; expected [0, 1]"
                )
            top, bottom = panel.subplots(2, 1, sharex=True, height_ratios=(3, 1))
            _reliability_axes(top, bottom, conf, hit, edges, styles[method])
            top.set_title(plain(method), color=styles[method].color, fontweight="bold")
    return figure


def _reliability_axes(
    top: Axes, bottom: Axes, conf: Array, hit: Array, edges: Array, style: MethodStyle
) -> None:
    bins = edges.size - 1
    place = bin_of(conf, bins)
    count = np.bincount(place, minlength=bins)
    full = count > 0
    n = count[full]
    x = np.bincount(place, conf, bins)[full] / n
    y = np.bincount(place, hit, bins)[full] / n
    z2 = float(norm.ppf(0.975)) ** 2
    middle = (y + z2 / (2 * n)) / (1 + z2 / n)
    half = np.sqrt(z2 * (y * (1 - y) / n + z2 / (4 * n**2))) / (1 + z2 / n)
    top.plot([0, 1], [0, 1], color=NEUTRAL, linewidth=1, linestyle=":")
    top.vlines(x, middle - half, middle + half, color=style.color, linewidth=1, alpha=0.6)
    top.plot(x, y, color=style.color, marker=style.marker, markersize=4, linewidth=1.2)
    top.set(xlim=(0, 1), ylim=(0, 1), ylabel="accuracy")
    bottom.stairs(count, edges, fill=True, color=style.color, alpha=0.75)
    bottom.set(xlabel="confidence", ylabel="cases")
    bottom.yaxis.set_major_locator(MaxNLocator(3))


def coverage_curve(
    mean: Mapping[str, ArrayLike],
    variance: Mapping[str, ArrayLike],
    y: ArrayLike,
    *,
    styles: Styles | None = None,
) -> Figure:
    """Share of cases inside the central interval against its level: regression's reliability diagram.

    The interval is the Gaussian's with the predictive mean and total variance, `mean +- z sqrt(variance)`; it
    is NOT the quantile interval of a mixture of draws. Event axes are flattened.

    Args:
        mean: method -> predictive mean, the shape of y, units of y.
        variance: method -> total predictive variance, the shape of y, units of y squared.
        y: what was observed, (B,) or (B, *event).
        styles: method -> style; by order where None.

    Returns:
        The figure.

    Raises:
        ValueError: no method, or shapes that differ.

    References:
        Kuleshov et al. 2018, arXiv 1807.00263.
    """
    some(mean, "mean")
    styles = resolve(list(mean), styles)
    target = np.asarray(y, dtype=np.float64)
    level = np.linspace(0.0, 1.0, 41)[1:-1]
    z = norm.ppf(0.5 + level / 2)
    with drawing():
        figure = blank_figure(5.2, 4.2)
        ax = figure.subplots()
        ax.plot([0, 1], [0, 1], color=NEUTRAL, linewidth=1, linestyle=":", label="ideal")
        for method in mean:
            centre = np.asarray(mean[method], dtype=np.float64)
            spread = np.asarray(variance[method], dtype=np.float64)
            if centre.shape != target.shape or spread.shape != target.shape:
                raise ValueError(
                    f"mean and variance of {method!r} have shapes {centre.shape} and {spread.shape}; "
                    f"expected that of y, {target.shape}"
                )
            distance = np.abs(target - centre) / np.sqrt(np.maximum(spread, np.finfo(float).tiny))
            observed = (distance.ravel()[:, None] <= z).mean(axis=0)
            style = styles[method]
            ax.plot(level, observed, color=style.color, linestyle=style.line, label=plain(method))
            ax.plot(
                level[1::6],
                observed[1::6],
                color=style.color,
                marker=style.marker,
                linestyle="",
                markersize=4,
            )
        ax.set(
            xlim=(0, 1), ylim=(0, 1), xlabel="nominal level of the interval", ylabel="share of cases inside"
        )
        ax.legend(loc="upper left")
    return figure


def forest_plot(
    groups: Mapping[str, Mapping[str, HasInterval]],
    *,
    label: str = "AUROC",
    reference: float | None = None,
    reference_label: str = "chance",
    styles: Styles | None = None,
) -> Figure:
    """One measure with its intervals, a row a method, a column a group (an out-of-distribution set, say).

    Args:
        groups: group -> method -> value, low, high; nan is printed as "undefined".
        label: the measure.
        reference: where a dotted line is drawn, or None.
        reference_label: what the line means.
        styles: method -> style; by order where None.

    Returns:
        The figure.

    Raises:
        ValueError: no group or no method.
    """
    some(groups, "groups")
    methods = list(dict.fromkeys(m for group in groups.values() for m in group))
    if not methods:
        raise ValueError("groups hold no method; expected at least one: nothing can be drawn")
    styles = resolve(methods, styles)
    with drawing():
        figure = blank_figure(max(4.6, 1.6 + 2.6 * len(groups)), 1.0 + 0.38 * len(methods))
        axes = figure.subplots(1, len(groups), sharex=True, sharey=True, squeeze=False)[0]
        for ax, (group, members) in zip(axes, groups.items(), strict=True):
            ax.set_title(plain(group))
            for row, method in enumerate(methods):
                _forest_row(ax, row, members.get(method), styles[method])
            if reference is not None:
                ax.axvline(reference, color=NEUTRAL, linewidth=1, linestyle=":")
                at = (reference, len(methods) - 0.45)
                ax.annotate(
                    plain(reference_label), at, (3, 0), textcoords="offset points", size=7.5, color=NEUTRAL
                )
            ax.set(xlabel=plain(label), ylim=(len(methods) - 0.3, -0.6))
            ax.tick_params(axis="y", length=0)
            ax.spines["left"].set_visible(False)
            ax.margins(x=0.12)
        axes[0].set_yticks(range(len(methods)), [plain(m) for m in methods])
    return figure


def _forest_row(ax: Axes, row: int, interval: HasInterval | None, style: MethodStyle) -> None:
    if interval is None or not math.isfinite(interval.value):
        word = "not measured" if interval is None else "undefined"
        ax.text(
            0.5,
            row,
            word,
            transform=ax.get_yaxis_transform(),
            ha="center",
            va="center",
            color=NEUTRAL,
            size=8,
        )
        return
    if math.isfinite(interval.low) and math.isfinite(interval.high):
        ax.plot([interval.low, interval.high], [row, row], color=style.color, linewidth=2)
    ax.plot([interval.value], [row], color=style.color, marker=style.marker, markersize=6)
    ax.annotate(
        f"{interval.value:.3g}",
        (interval.value, row),
        xytext=(0, 5),
        textcoords="offset points",
        ha="center",
        size=7.5,
    )
