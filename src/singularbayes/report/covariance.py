"""Pictures of the variance's shape: along the distance, between weights, over a 1-D input."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from singularbayes.report.canvas import blank_figure, grid, some, vector
from singularbayes.report.palette import NEUTRAL, MethodStyle, drawing, plain, resolve

Array = NDArray[np.float64]
Styles = Mapping[str, MethodStyle]


@dataclass(frozen=True, kw_only=True, eq=False)
class Field:
    """A predictive on a 1-D grid: mean, total std and its epistemic part, each (G,), in units of y."""

    mean: ArrayLike
    total_std: ArrayLike
    epistemic_std: ArrayLike


def uncertainty_by_distance(
    distance: ArrayLike,
    uncertainty: Mapping[str, ArrayLike],
    *,
    label: str = "epistemic uncertainty",
    distance_label: str = "distance from the training set",
    bins: int = 12,
    log: bool = True,
    styles: Styles | None = None,
) -> Figure:
    """Median uncertainty in bins of equal count along the distance, with the band from quartile to quartile.

    Args:
        distance: (B,) distance of each case from the training set.
        uncertainty: method -> (B,) uncertainty of the same cases.
        label: vertical axis, with the unit.
        distance_label: horizontal axis.
        bins: number of bins; fewer where there are not ten cases for each.
        log: a logarithmic vertical axis, where all medians are above 0.
        styles: method -> style; by order where None.

    Returns:
        The figure.

    Raises:
        ValueError: no method, no case, or lengths that differ.
    """
    some(uncertainty, "uncertainty")
    styles = resolve(list(uncertainty), styles)
    far = vector(distance, "distance")
    if far.size == 0:
        raise ValueError("distance is empty; expected at least one case")
    groups = np.array_split(np.argsort(far, kind="stable"), max(1, min(bins, far.size // 10)))
    x = np.array([np.median(far[g]) for g in groups])
    positive = log
    with drawing():
        figure = blank_figure(6.4, 3.8)
        ax = figure.subplots()
        for method, values in uncertainty.items():
            score = vector(values, f"uncertainty of {method!r}", far.size)
            low, middle, high = np.array([np.quantile(score[g], (0.25, 0.5, 0.75)) for g in groups]).T
            positive = positive and bool((middle > 0).all())
            style = styles[method]
            ax.fill_between(x, low, high, color=style.color, alpha=0.15, linewidth=0)
            ax.plot(
                x,
                middle,
                color=style.color,
                marker=style.marker,
                linestyle=style.line,
                label=plain(method),
                ms=4,
            )
        if positive:
            ax.set_yscale("log")
        ax.set(xlabel=plain(distance_label), ylabel=plain(label))
        figure.legend(loc="outside upper left", ncols=min(3, len(uncertainty)))
    return figure


def correlation_pictures(
    matrices: Mapping[str, ArrayLike],
    *,
    limit: float | None = None,
    label: str = "correlation of two weights",
) -> Figure:
    """Correlation matrices on one colour scale: full rank is the identity, low rank shows blocks.

    Args:
        matrices: title -> (d, d) correlation matrix; sizes may differ.
        limit: the colour scale spans -limit to limit. None: the largest entry off any diagonal, at most 1 and
            at least .05; stronger entries (the diagonal) take the end colour, as the bar's arrows say.
        label: what the colour means.

    Returns:
        The figure.

    Raises:
        ValueError: no matrix, one that is not square, or an entry beyond [-1, 1].
    """
    some(matrices, "matrices")
    arrays = {name: np.asarray(m, dtype=np.float64) for name, m in matrices.items()}
    for name, m in arrays.items():
        if m.ndim != 2 or m.shape[0] != m.shape[1]:
            raise ValueError(f"matrix {name!r} has shape {m.shape}; expected (d, d)")
        if np.abs(np.nan_to_num(m)).max(initial=0.0) > 1 + 1e-6:
            raise ValueError(
                f"matrix {name!r} has an entry beyond [-1, 1]; expected correlations, not covariances"
            )
    if limit is None:
        off = [
            np.abs(np.nan_to_num(m[~np.eye(m.shape[0], dtype=bool)])).max(initial=0.0)
            for m in arrays.values()
        ]
        limit = float(min(1.0, max(0.05, *off)))
    with drawing():
        rows, columns = grid(len(arrays))
        figure = blank_figure(0.9 + 2.5 * max(columns, 1), 2.75 * rows)
        axes = figure.subplots(rows, columns, squeeze=False)
        scale = Normalize(-limit, limit)
        for ax, (name, m) in zip(axes.ravel(), arrays.items(), strict=False):
            ax.imshow(m, cmap="RdBu_r", norm=scale, interpolation="nearest")
            ax.set_title(plain(name))
            ax.set_xticks([])
            ax.set_yticks([])
            ax.set_xlabel(f"{m.shape[0]} weights", fontsize=8)
        for ax in axes.ravel()[len(arrays) :]:
            ax.set_visible(False)
        bar = figure.colorbar(
            ScalarMappable(scale, "RdBu_r"),
            ax=axes,
            extend="both" if limit < 1 else "neither",
            shrink=0.8,
            fraction=0.05,
        )
        bar.set_label(plain(label))
    return figure


def variance_field(
    x: ArrayLike,
    fields: Mapping[str, Field],
    *,
    train: tuple[ArrayLike, ArrayLike],
    unfamiliar: Sequence[tuple[float, float]] = (),
    truth: ArrayLike | None = None,
    bands: float = 2.0,
    styles: Styles | None = None,
    label: str = "x",
) -> Figure:
    """The predictive along one input, a panel a method, and the epistemic std of all methods below.

    Args:
        x: (G,) the grid, increasing.
        fields: method -> `Field` on that grid.
        train: the training points, x (N,) and y (N,).
        unfamiliar: intervals of x that are out of distribution, shaded.
        truth: (G,) the function behind the data, or None.
        bands: half width of the bands, in standard deviations.
        styles: method -> style; by order where None.
        label: name of the input, below the figure.

    Returns:
        The figure.

    Raises:
        ValueError: no method, or a field that is not (G,).
    """
    some(fields, "fields")
    styles = resolve(list(fields), styles)
    at = vector(x, "x")
    points = vector(train[0], "x of train"), vector(train[1], "y of train")
    with drawing():
        rows, columns = grid(len(fields))
        figure = blank_figure(max(4.8, 2.55 * columns), 2.0 * rows + 2.3)
        upper, lower = figure.subfigures(2, 1, squeeze=False, height_ratios=(2.0 * rows, 2.3))[:, 0]
        axes = upper.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
        below = lower.subplots()
        for ax, (method, field) in zip(axes, fields.items(), strict=False):
            _band_axes(ax, method, at, field, bands, styles[method])
            ax.plot(*points, ".", color="#111827", markersize=2.5, alpha=0.6)
            if truth is not None:
                ax.plot(at, vector(truth, "truth", at.size), color=NEUTRAL, linewidth=1, linestyle=":")
        for ax in axes[len(fields) :]:
            ax.set_visible(False)
        axes[0].set_ylim(*_reach(fields.values(), points[1]))
        positive = True
        for method, field in fields.items():
            std = vector(field.epistemic_std, f"epistemic_std of {method!r}", at.size)
            positive = positive and bool((std > 0).all())
            below.plot(
                at, std, color=styles[method].color, linestyle=styles[method].line, label=plain(method)
            )
            mark = slice(at.size // 20, None, max(1, at.size // 10))
            below.plot(
                at[mark], std[mark], color=styles[method].color, marker=styles[method].marker, ls="", ms=4
            )
        if positive:
            below.set_yscale("log")
        below.set(xlabel=plain(label), ylabel="epistemic std", xlim=(at[0], at[-1]))
        for ax in (*axes[: len(fields)], below):
            for left, right in unfamiliar:
                ax.axvspan(left, right, color="#F3E8C8", zorder=-5, linewidth=0)
        lower.legend(loc="outside upper left", ncols=min(3, len(fields)))
    return figure


def _band_axes(ax: Axes, method: str, at: Array, field: Field, bands: float, style: MethodStyle) -> None:
    mean = vector(field.mean, f"mean of {method!r}", at.size)
    for std, alpha in ((field.total_std, 0.15), (field.epistemic_std, 0.35)):
        half = bands * vector(std, f"standard deviation of {method!r}", at.size)
        ax.fill_between(at, mean - half, mean + half, color=style.color, alpha=alpha, linewidth=0)
    ax.plot(at, mean, color=style.color, linewidth=1.4)
    ax.set_title(plain(method), color=style.color, fontweight="bold")


def _reach(fields: Iterable[Field], y: Array) -> tuple[float, float]:
    # The vertical range holds the data and most of the bands, but no single band may flatten all the others.
    seen = [y] + [np.asarray(f.mean, dtype=np.float64) for f in fields]
    low, high = min(float(v.min()) for v in seen if v.size), max(float(v.max()) for v in seen if v.size)
    pad = 0.6 * max(high - low, 1e-12)
    return low - pad, high + pad
