"""Tables of all diagnostics: one row for each quantity, and one row for all weights or all predictions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from ..posterior import Posterior
from . import effective_size, mixing, standard_error
from .posteriors import blocks, by_chain
from .ranks import halves, normal_scores
from .reading import Quantities, reason

__all__ = ["overview", "summary"]

MIXED = 1.01
"""R-hat that the authors ask for, at most."""


def summary(
    source: Any,
    x: Any = None,
    *,
    outputs: bool = False,
    names: Sequence[str] | None = None,
    quantiles: Sequence[float] = (0.05, 0.95),
) -> pd.DataFrame:
    """All diagnostics of every quantity.

    A network's weights may be far from mixed while its predictions are: hidden units can change places and
    signs, and each chain keeps its own arrangement (label switching). What a posterior is used for is what it
    predicts, so give ``x``; weights show whether each chain has settled (``rhat_by_chain``).

    Args:
        source: a ``Posterior`` that was sampled by chains, ``Samples``, or draws ``(C, N, ...)``.
        x: inputs of a posterior: the quantities are then the mean of ``p(y | x, w)`` for each of them, else
            its weights.
        outputs: with ``x``, the network's outputs (logits) in place of that mean.
        names: of the quantities, for ``Samples`` and arrays.
        quantiles: which ones to report.

    Returns:
        A row for each quantity: ``mean``, ``std``, a column for each quantile (``q5``), the Monte Carlo
        standard error of each (``mcse_mean``, ...), ``ess_bulk``, ``ess_tail``, ``rhat``, ``rhat_by_chain``
        (that of the worst chain alone), and ``note``: why R-hat and ESS are nan, where they are.

    Raises:
        TypeError, ValueError: no chains, options that do not fit the source, or a quantile outside (0, 1).

    Example:
        >>> draws = np.random.default_rng(0).standard_normal((4, 500, 2))
        >>> summary(draws, names=["a", "b"])[["ess_bulk", "rhat"]].round({"ess_bulk": -3, "rhat": 1})
           ess_bulk  rhat
        a    2000.0   1.0
        b    2000.0   1.0
    """
    for probability in quantiles:
        effective_size.check_probability(probability)
    if isinstance(source, Posterior):
        return _of_posterior(source, x, outputs, names, quantiles)
    if x is not None or outputs:
        raise ValueError(
            f"x and outputs are about the predictions of a Posterior that was sampled by chains, got a "
            f"{type(source).__name__}; draws are summarised as they are"
        )
    return _table(source, _numbered(source) if names is None else list(names), quantiles)


def _of_posterior(
    posterior: Posterior, x: Any, outputs: bool, names: Sequence[str] | None, quantiles: Sequence[float]
) -> pd.DataFrame:
    if names is not None:
        raise ValueError("names are for draws and Samples; a posterior's quantities have names of their own")
    if x is None:
        if outputs:
            raise ValueError("outputs=True asks for the network's outputs: give x, the inputs, too")
        weights = by_chain(posterior)[..., : posterior.layout.belief]
        return _table(weights, weight_names(posterior), quantiles)
    what = "output" if outputs else "mean"
    parts = []
    for start, found in blocks(posterior, x, outputs=outputs):
        rows, event = range(start, start + found.shape[2]), found.shape[3:]
        names = [f"{what}{_place((row, *place))}" for row in rows for place in np.ndindex(*event)]
        parts.append(_table(found, names, quantiles))
    return pd.concat(parts)


def weight_names(posterior: Posterior) -> list[str]:
    """Of each believed number: ``0.weight[2, 1]``."""
    return [
        f"{slot.name}{_place(place)}"
        for slot in posterior.layout.of_kind("belief")
        for place in np.ndindex(*slot.shape)
    ]


def _numbered(source: Any) -> list[str]:
    return [f"x{_place(place)}" for place in np.ndindex(*Quantities(source).shape)]


def _place(index: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, index))}]" if index else ""


def _table(draws: Any, names: list[str], quantiles: Sequence[float]) -> pd.DataFrame:
    quantities = Quantities(draws)
    if len(names) != quantities.count:
        raise ValueError(f"got {len(names)} names for {quantities.count} quantities; expected one for each")
    rows = [_rows(values, quantiles) for _, values in quantities.chunks()]
    return pd.concat(rows).set_axis(names, axis=0)


def _rows(values: Float[np.ndarray, "Q C N"], quantiles: Sequence[float]) -> pd.DataFrame:
    """The columns of some quantities; ranks are found once for all that need them."""
    note = reason(values)
    fine = note == ""
    with np.errstate(invalid="ignore"):
        columns = {"mean": values.mean((1, 2)), "std": values.std((1, 2), ddof=int(values[0].size > 1))}
    edges = [f"q{100 * probability:g}" for probability in quantiles]
    for name, probability in zip(edges, quantiles, strict=True):
        columns[name] = np.quantile(values, probability, axis=(1, 2))
    moving = values[fine]

    def filled(found: Any) -> np.ndarray:
        column = np.full(len(values), np.nan)
        column[fine] = found
        return column

    if not fine.any():
        measured: dict[str, Any] = dict.fromkeys(("mcse_mean", "mcse_std", *(f"mcse_{e}" for e in edges)))
        measured |= dict.fromkeys(("ess_bulk", "ess_tail", "rhat", "rhat_by_chain"))
        return pd.DataFrame({**columns, **{name: filled(math.nan) for name in measured}, "note": note})
    columns["mcse_mean"] = filled(standard_error.of_mean(moving))
    columns["mcse_std"] = filled(standard_error.of_std(moving))
    for name, probability in zip(edges, quantiles, strict=True):
        columns[f"mcse_{name}"] = filled(standard_error.of_quantile_value(moving, probability))
    scores = normal_scores(halves(moving))
    columns["ess_bulk"] = filled(effective_size.effective_size(scores))
    columns["ess_tail"] = filled(effective_size.tail(moving))
    columns["rhat"] = filled(mixing.split_rhat(moving, scores))
    alone = mixing.rhat_by_chain(np.moveaxis(moving, 0, 2))
    still = np.isnan(alone).all(0)
    columns["rhat_by_chain"] = filled(
        np.where(still, np.nan, np.where(np.isnan(alone), -np.inf, alone).max(0))
    )
    return pd.DataFrame({**columns, "note": note})


def overview(posterior: Posterior, x: Any = None, *, outputs: bool = False, most: int = 1000) -> pd.DataFrame:
    """Weights and predictions side by side, one row for each: do the chains agree where it counts?

    Args:
        posterior: sampled by chains.
        x: inputs, for the row of predictions.
        outputs: see :func:`summary`.
        most: quantities that are looked at, evenly chosen where there are more.

    Returns:
        Rows ``weights`` and, with ``x``, ``predictions``: ``quantities`` (looked at), ``mixed`` (share with
        R-hat of at most 1.01, of those that have one), ``rhat_median``, ``rhat_max``,
        ``rhat_by_chain_max``, ``ess_bulk_min``, ``ess_tail_min``, ``undefined`` (constant or not finite).
    """
    if most < 1:
        raise ValueError(f"most must be at least 1, got {most}")
    weights = by_chain(posterior)[..., : posterior.layout.belief]
    rows = {"weights": _condensed(_some(weights, most))}
    if x is not None:
        parts = [found.flatten(2) for _, found in blocks(posterior, x, outputs=outputs)]
        rows["predictions"] = _condensed(_some(torch.cat(parts, 2), most))
    return pd.DataFrame.from_dict(rows, orient="index")


def _some(draws: Float[Tensor, "C N Q"], most: int) -> Tensor:
    count = draws.shape[2]
    chosen = torch.arange(count) if count <= most else torch.linspace(0, count - 1, most).round().long()
    return draws[..., chosen.to(draws.device)]


def _condensed(draws: Float[Tensor, "C N Q"]) -> dict[str, float]:
    table = _table(draws, _numbered(draws), ())
    column = {name: table[name].to_numpy() for name in table.columns}
    known = column["rhat"][~np.isnan(column["rhat"])]

    def extreme(name: str, of: Any) -> float:
        values = column[name][~np.isnan(column[name])]
        return float(of(values)) if values.size else math.nan

    return {
        "quantities": len(table),
        "mixed": float((known <= MIXED).mean()) if known.size else math.nan,
        "rhat_median": extreme("rhat", np.median),
        "rhat_max": extreme("rhat", np.max),
        "rhat_by_chain_max": extreme("rhat_by_chain", np.max),
        "ess_bulk_min": extreme("ess_bulk", np.min),
        "ess_tail_min": extreme("ess_tail", np.min),
        "undefined": int((column["note"] != "").sum()),
    }
