"""Pictures of chains: what each one visits in turn, and how its draws rank among those of all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from singularbayes import chains
from singularbayes.chains.ranks import ranks
from singularbayes.chains.summary import MIXED
from singularbayes.data import batch_size_of, take
from singularbayes.posterior import Posterior
from singularbayes.report.canvas import blank_figure, some
from singularbayes.report.content import Panel
from singularbayes.report.palette import COLORS, LINES, NEUTRAL, drawing, plain

Array = NDArray[np.float64]

_MOST_CHAINS = 12
_MOST_STEPS = 1000
_LOOKED_AT = 200
_SHOWN = 3


def trace_plot(quantities: Mapping[str, ArrayLike], *, label: str = "draw") -> Figure:
    """Each chain's draws in turn, a row a quantity; beside it the distribution that each chain has seen.

    Chains that agree lie over each other as one band of noise. Of more than 12 chains the first 12 are drawn,
    and of more than 1000 draws every n-th.

    Args:
        quantities: name -> draws ``(C, N)``.
        label: the horizontal axis.

    Returns:
        The figure.

    Raises:
        ValueError: no quantity, or draws that are not ``(C, N)``.
    """
    data = _checked(quantities)
    with drawing():
        figure = blank_figure(7.2, 0.4 + 1.45 * len(data))
        axes = figure.subplots(len(data), 2, sharex="col", squeeze=False, width_ratios=(3.2, 1))
        for (left, right), (name, draws) in zip(axes, data.items(), strict=True):
            left.set_title(plain(name))
            _traces(left, right, draws)
        axes[-1, 0].set_xlabel(plain(label))
        axes[-1, 1].set_xlabel("share of draws")
    return figure


def _traces(left: Axes, right: Axes, draws: Array) -> None:
    step = -(-draws.shape[1] // _MOST_STEPS)
    finite = draws[np.isfinite(draws)]
    edges = np.histogram_bin_edges(finite, 30) if finite.size else np.linspace(0, 1, 31)
    most = 0.0
    for number, chain in enumerate(draws[:_MOST_CHAINS]):
        color, line = COLORS[number % len(COLORS)], LINES[number // len(COLORS) % len(LINES)]
        at = np.arange(1, len(chain) + 1, step)
        left.plot(at, chain[::step], color=color, linestyle=line, linewidth=0.6, alpha=0.8)
        share = np.histogram(chain[np.isfinite(chain)], edges)[0] / len(chain)
        most = max(most, share.max())
        right.stairs(share, edges, orientation="horizontal", linewidth=0.9, color=color, linestyle=line)
    low, high = edges[0], edges[-1]
    pad = 0.04 * (high - low)
    for ax in (left, right):
        ax.set_ylim(low - pad, high + pad)
        ax.margins(x=0.01)
    right.set_yticklabels([])
    right.set_xlim(0, 1.08 * most if most else 1)


def rank_plot(quantities: Mapping[str, ArrayLike], *, bins: int = 20) -> Figure:
    """Ranks of each chain's draws among all draws, a panel a quantity, a row a chain.

    Chains of one distribution have as many draws in every bin; a row that is high on one side sits there too
    often, one that is high at both ends is too wide. A row's grey line is what evenness would give.

    Args:
        quantities: name -> draws ``(C, N)``.
        bins: of the ranks.

    Returns:
        The figure.

    Raises:
        ValueError: no quantity, draws that are not ``(C, N)``, or no bin.

    References:
        Vehtari et al. 2021, arXiv 1903.08008, section 4.
    """
    data = _checked(quantities)
    if bins < 1:
        raise ValueError(f"bins must be at least 1, got {bins}")
    rows = min(_MOST_CHAINS, max(len(draws) for draws in data.values()))
    with drawing():
        figure = blank_figure(max(4.0, 2.6 * len(data)), 1.0 + 0.3 * rows)
        axes = figure.subplots(1, len(data), squeeze=False, sharey=True)[0]
        for ax, (name, draws) in zip(axes, data.items(), strict=True):
            ax.set_title(plain(name))
            _rank_rows(ax, draws, bins)
            ax.set_xlabel("rank among all draws")
        axes[0].set_ylabel("chain")
        axes[0].set_yticks(range(rows), [str(number) for number in range(rows)])
        axes[0].set_ylim(rows - 0.35, -0.75)
    return figure


def _rank_rows(ax: Axes, draws: Array, bins: int) -> None:
    rank = ranks(draws[None])[0] if np.isfinite(draws).all() else np.full(draws.shape, np.nan)
    edges = np.linspace(0.5, draws.size + 0.5, bins + 1)
    even = 0.35  # height of an even row; a row may reach three times that, into the one above
    for number, row in enumerate(rank[:_MOST_CHAINS]):
        count = np.histogram(row, edges)[0] * bins / draws.shape[1]
        top = number - even * np.minimum(count, 3)
        ax.stairs(
            top + 0.3, edges, baseline=number + 0.3, fill=True, color=COLORS[number % len(COLORS)], alpha=0.75
        )
        ax.hlines(number + 0.3 - even, edges[0], edges[-1], color=NEUTRAL, linewidth=0.8)
    ax.set_xlim(edges[0], edges[-1])
    ax.tick_params(axis="y", length=0)


def _checked(quantities: Mapping[str, ArrayLike]) -> dict[str, Array]:
    some(quantities, "quantities")
    data = {name: np.asarray(draws, dtype=np.float64) for name, draws in quantities.items()}
    for name, draws in data.items():
        if draws.ndim != 2 or 0 in draws.shape:
            raise ValueError(f"draws of {name!r} have shape {draws.shape}; expected (chains, draws)")
    return data


def chain_panels(posteriors: Mapping[str, Any], x: Any) -> tuple[Panel, ...]:
    """Traces and ranks of the predictions on which the chains agree least, for each sampled posterior.

    Predictions, not weights: those of different chains need not agree (see :mod:`singularbayes.chains`).

    Args:
        posteriors: method -> posterior; those that were not sampled by chains have no panel.
        x: inputs, of which at most 200, evenly spaced, are looked at.

    Returns:
        Two panels for each sampled posterior.
    """
    panels: list[Panel] = []
    for method, posterior in posteriors.items():
        if isinstance(posterior, Posterior) and posterior.info.get("chains"):
            panels += _panels(method, posterior, x)
    return tuple(panels)


def _case(row: int, place: list[int]) -> str:
    return f"case {row}" + (f", output {', '.join(map(str, place))}" if place else "")


def _panels(method: str, posterior: Posterior, x: Any) -> tuple[Panel, Panel]:
    step = -(-batch_size_of(x) // _LOOKED_AT)
    found = chains.predictions(posterior, take(x, slice(None, None, step))).cpu().numpy()
    names = [_case(step * row, place) for row, *place in np.ndindex(*found.shape[2:])]
    found = found.reshape(*found.shape[:2], -1)
    reduction, size = chains.rhat(found), chains.ess_bulk(found)
    worst = np.argsort(-np.nan_to_num(reduction, nan=-np.inf, posinf=np.inf), kind="stable")[:_SHOWN]
    shown = {f"{names[q]}: R-hat {reduction[q]:.3f}": found[:, :, q] for q in worst}
    known = reduction[~np.isnan(reduction)]
    mixed = f"{(known <= MIXED).mean():.0%} have at most {MIXED}" if known.size else "None has an R-hat"
    least = f"the least effective draws are worth {np.nanmin(size):,.0f}" if known.size else "all stand still"
    said = (
        f"{found.shape[0]} chains of {found.shape[1]} draws; the {len(shown)} of {len(names)} predictions "
        f"with the largest R-hat. {mixed}; {least}."
    )
    return (
        Panel(
            title=f"Chains of {method}, draw by draw",
            caption=f"Chains that agree lie over each other as one band of noise. {said}",
            figure=trace_plot(shown),
        ),
        Panel(
            title=f"Chains of {method}, ranked",
            caption="A row that is level with its grey line has draws from everywhere; one that is high on a "
            "side sits there too often.",
            figure=rank_plot(shown),
        ),
    )
