"""Figures that several recipes share: uncertainty against distance, and the correlation of weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.neighbors import NearestNeighbors

from ..nn import LowRankLinear
from ..posterior import Posterior
from ..report import Panel, correlation_pictures, method_styles, uncertainty_by_distance
from ..theory import weight_correlation
from .data.splits import Splits
from .recipe import Run

__all__ = ["distance_and_correlation", "distance_from", "layer_correlation"]

_NEIGHBOURS = 10


def distance_from(train: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Mean Euclidean distance ``(B,)`` to the 10 nearest training rows, in the units of the inputs."""
    index = NearestNeighbors(n_neighbors=min(_NEIGHBOURS, len(train))).fit(train.reshape(len(train), -1))
    return index.kneighbors(x.reshape(len(x), -1))[0].mean(1)


def layer_correlation(
    posterior: Posterior, layer: str, rows: int = 4, columns: int = 12
) -> np.ndarray | None:
    """Correlation of the weights ``(i, j)``, ``i < rows``, ``j < columns``, of one layer, exactly.

    ``None`` where the posterior is no independent Gaussian, or has no such layer.
    """
    if posterior.distribution.kind != "diagonal_gaussian":
        return None
    means = posterior.layout.views(posterior.distribution.mean)
    stds = posterior.layout.views(posterior.distribution.std)
    if isinstance(posterior.network.get_submodule(layer), LowRankLinear):
        a, b = f"{layer}.A", f"{layer}.B"
        parts = (means[a][:rows], stds[a][:rows], means[b][:columns], stds[b][:columns])
        return weight_correlation(*(part.double().cpu() for part in parts)).numpy()
    return np.eye(rows * columns)


def distance_and_correlation(splits: Splits, runs: Mapping[str, Run]) -> Sequence[Panel]:
    """The two panels, from the first seed."""
    return [*_distance(splits, runs), *_correlation(runs)]


def _distance(splits: Splits, runs: Mapping[str, Run]) -> list[Panel]:
    sets: dict[str, Any] = {"test": splits.test[0], **{name: x for name, (x, _) in splits.ood.items()}}
    distance = np.concatenate([distance_from(splits.train[0], x) for x in sets.values()])
    uncertainty = {
        name: np.concatenate([run.evaluation.sets[key].scores[run.evaluation.score] for key in sets])
        for name, run in runs.items()
        if run.posterior.support != 1
    }
    if not uncertainty:  # point estimates alone
        return []
    caption = (
        "A line that rises says 'I know less out here'; a flat or falling line does not notice how far it "
        f"is. Distance: mean to the {_NEIGHBOURS} nearest training cases, test and unfamiliar cases together."
    )
    figure = uncertainty_by_distance(
        distance,
        uncertainty,
        label="epistemic uncertainty (first seed)",
        styles=method_styles(list(runs)),  # of all methods: the colours are those of the other figures
    )
    return [
        Panel(title="Uncertainty against distance from the training data", caption=caption, figure=figure)
    ]


def _correlation(runs: Mapping[str, Run]) -> list[Panel]:
    matrices = {}
    for name, run in runs.items():
        if not isinstance(run.posterior, Posterior):  # a mixture has no layer of its own
            continue
        layer = "2" if "2" in dict(run.posterior.network.named_modules()) else "0"
        if run.posterior.distribution.kind == "diagonal_gaussian":
            matrix = layer_correlation(run.posterior, layer)
            if matrix is not None:
                matrices[name] = matrix
    if not matrices:
        return []
    caption = (
        "4 x 12 entries of one hidden weight matrix, row by row. A full-rank diagonal posterior has none; "
        "low-rank factors tie entries of one row (blocks) and of one column (stripes), and nothing else."
    )
    return [Panel(title="Correlation of weights", caption=caption, figure=correlation_pictures(matrices))]
