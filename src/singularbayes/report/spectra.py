"""Pictures of ranks: singular values by layer, a loss and a bound against the rank."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from singularbayes.report.canvas import blank_figure, grid, some, vector
from singularbayes.report.figures import HasInterval
from singularbayes.report.palette import NEUTRAL, MethodStyle, drawing, plain, resolve

__all__ = ["bound_against_rank", "crossing", "loss_against_rank", "singular_value_plot"]

Styles = Mapping[str, MethodStyle]


def singular_value_plot(
    networks: Mapping[str, Mapping[str, ArrayLike]], *, styles: Styles | None = None
) -> Figure:
    """Singular values over the largest, against their place over the smaller side: a panel a layer.

    Args:
        networks: network (trained, at its start, ...) -> layer -> singular values, largest first. Layers
            that only some networks have are shown for those.
        styles: network -> style; by order where None.

    Returns:
        The figure; values of 0 are left out of its logarithmic axis.

    Raises:
        ValueError: no network, no layer, or values that are not (k,).
    """
    some(networks, "networks")
    styles = resolve(list(networks), styles)
    layers = list(dict.fromkeys(layer for of in networks.values() for layer in of))
    if not layers:
        raise ValueError("networks hold no layer; expected singular values of at least one")
    with drawing():
        rows, columns = grid(len(layers))
        figure = blank_figure(0.4 + 2.5 * max(columns, 2), 0.5 + 2.1 * rows)
        axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for ax, layer in zip(axes.ravel(), layers, strict=False):
            for name, of in networks.items():
                if layer not in of:
                    continue
                values = vector(of[layer], f"singular values of {layer!r}")
                place = np.arange(1, len(values) + 1) / len(values)
                above = values > 0
                style = styles[name]
                relative = values / max(values.max(initial=0.0), 1e-300)
                ax.plot(
                    place[above], relative[above], color=style.color, linestyle=style.line, label=plain(name)
                )
            ax.set_title(plain(layer))
            ax.set_yscale("log")
        for ax in axes.ravel()[len(layers) :]:
            ax.set_visible(False)
        axes[0, 0].set_xlim(0, 1)
        figure.supxlabel("place of the singular value / smaller side", fontsize=9)
        figure.supylabel("singular value / largest", fontsize=9)
        handles = {h.get_label(): h for ax in axes.ravel() for h in ax.get_lines()}
        figure.legend(handles=list(handles.values()), loc="outside upper left", ncols=min(3, len(handles)))
    return figure


def loss_against_rank(
    losses: Mapping[str, Mapping[int, HasInterval]],
    *,
    label: str = "NLL on the test set (nats)",
    chosen: Mapping[str, int] | None = None,
    full: Mapping[str, HasInterval] | None = None,
    styles: Styles | None = None,
) -> Figure:
    """A measure against the rank, with its intervals; a ring marks the rank that was chosen.

    Args:
        losses: method -> rank -> value, low, high; nan is left out.
        label: the measure, with its unit.
        chosen: method -> rank that a rule chose.
        full: method -> the same measure of the full-rank network, a dotted line.
        styles: method -> style; by order where None.

    Returns:
        The figure.

    Raises:
        ValueError: no method, no rank, a chosen rank that was not measured.
    """
    some(losses, "losses")
    styles = resolve(list(losses), styles)
    with drawing():
        figure = blank_figure(5.6, 3.6)
        ax = figure.subplots()
        for method, by_rank in losses.items():
            some({str(rank): value for rank, value in by_rank.items()}, f"losses of {method!r}")
            style, ranks = styles[method], sorted(by_rank)
            value, low, high = (
                np.array([getattr(by_rank[rank], end) for rank in ranks], dtype=np.float64)
                for end in ("value", "low", "high")
            )
            ax.plot(ranks, value, color=style.color, linestyle=style.line, marker=style.marker, ms=4,
                    label=plain(method))  # fmt: skip
            ax.fill_between(ranks, low, high, color=style.color, alpha=0.15, linewidth=0)
            if full is not None and method in full:
                ax.axhline(full[method].value, color=style.color, linewidth=1, linestyle=":")
            if chosen is not None and method in chosen:
                if chosen[method] not in by_rank:
                    raise ValueError(f"the chosen rank {chosen[method]} of {method!r} was not measured; "
                                     f"ranks are {ranks}")  # fmt: skip
                at = chosen[method], by_rank[chosen[method]].value
                ax.plot(*at, "o", ms=11, mfc="none", mec=style.color)
        _rank_axis(ax, {rank for by_rank in losses.values() for rank in by_rank})
        ax.set_ylabel(plain(label))
        if full:
            ax.plot([], [], color=NEUTRAL, linewidth=1, linestyle=":", label="full rank")
        figure.legend(loc="outside upper left", ncols=min(3, len(losses) + bool(full)))
    return figure


def _rank_axis(ax: Axes, ranks: set[int]) -> None:
    shown = sorted(ranks)
    ax.set_xscale("log", base=2)
    ax.set_xticks(shown, [str(rank) for rank in shown])
    ax.minorticks_off()
    ax.set_xlabel("rank")


def crossing(ranks: Sequence[int], bounds: Sequence[float], level: float = 1.0) -> float:
    """The rank at which a bound that grows with the rank first exceeds ``level``, between two measured ones.

    Interpolated in the logarithms of both.

    Args:
        ranks: increasing.
        bounds: of each, positive.
        level: 1 for a risk in [0, 1]: above it the bound says nothing.

    Returns:
        nan where the bound does not cross from below; the first rank where it is above from the start.

    Example:
        >>> crossing([2, 8], [0.5, 2.0])
        4.0
    """
    if not bounds or bounds[0] >= level:
        return float(ranks[0]) if bounds else math.nan
    for (r, one), (s, other) in itertools.pairwise(zip(ranks, bounds, strict=True)):
        if one < level <= other:
            share = math.log(level / one) / math.log(other / one)
            return math.exp(math.log(r) + share * math.log(s / r))
    return math.nan


def bound_against_rank(
    bounds: Mapping[str, Mapping[int, float]],
    *,
    risks: Mapping[str, Mapping[int, float]] | None = None,
    label: str = "bound on the risk",
    styles: Styles | None = None,
) -> Figure:
    """A bound on a risk in [0, 1] against the rank, with the rank where it crosses 1 and becomes vacuous.

    Bounds must not be clipped at 1: one that is shows no crossing.

    Args:
        bounds: name -> rank -> bound before clipping (McAllester's form, say).
        risks: name -> rank -> the risk measured on test data, dashed.
        label: the bound.
        styles: name -> style; by order where None.

    Returns:
        The figure.

    Raises:
        ValueError: nothing to draw, or a bound that is not positive.
    """
    some(bounds, "bounds")
    styles = resolve(list(bounds), styles)
    for name, by_rank in bounds.items():
        some({str(rank): value for rank, value in by_rank.items()}, f"bounds of {name!r}")
        if not all(value > 0 for value in by_rank.values()):
            raise ValueError(f"bounds of {name!r} must be positive, got {min(by_rank.values())}")
    with drawing():
        figure = blank_figure(5.6, 3.6)
        ax = figure.subplots()
        for name, by_rank in bounds.items():
            style, ranks = styles[name], sorted(by_rank)
            values = [by_rank[rank] for rank in ranks]
            at = crossing(ranks, values)
            said = "" if math.isnan(at) else f" (1 at r = {at:.1f})"
            ax.plot(ranks, values, color=style.color, linestyle=style.line, marker=style.marker, ms=4,
                    label=plain(f"{name}{said}"))  # fmt: skip
            if not math.isnan(at):
                ax.plot([at, at], [min(values), 1.0], color=style.color, linewidth=1, linestyle=":")
            if risks is not None and name in risks:
                measured = sorted(risks[name].items())
                ax.plot(*zip(*measured, strict=True), color=style.color, linewidth=1, linestyle="--")
        ax.axhline(1.0, color=NEUTRAL, linewidth=1)
        at = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "ha": "right"}
        ax.annotate("vacuous", (1, 1), (-3, 3), size=7.5, color=NEUTRAL, **at)
        ax.set_yscale("log")
        _rank_axis(ax, {rank for by_rank in bounds.values() for rank in by_rank})
        ax.set_ylabel(plain(label))
        figure.legend(loc="outside upper left", ncols=min(2, len(bounds)))
    return figure
