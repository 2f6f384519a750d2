"""Distance of features to their k-th nearest training row.

    score(x) = |z(x) - z_(k)|,   z = f / |f|

References:
    Sun et al. 2022, arXiv 2204.06507, section 3 (normalised features; k = 50 for CIFAR-10).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..evaluation.data import Reader
from ..metrics.bootstrap import check_count
from .encoders import Features, features_of

__all__ = ["FittedNeighbours", "NearestNeighbours"]

_ENTRIES = 2**24  # of a block of distances


@dataclass(frozen=True, eq=False)
class FittedNeighbours:
    """What :class:`NearestNeighbours` fitted.

    Args:
        features: of inputs.
        rows: of training, ``(N, F)``, normalised if asked for.
        k: which neighbour counts.
        normalize: whether features are divided by their length.
    """

    features: Features
    rows: Float[Tensor, "N F"]
    k: int
    normalize: bool

    def __repr__(self) -> str:
        return f"FittedNeighbours(k={self.k}, {len(self.rows)} rows, normalize={self.normalize})"

    def score(self, x: Any) -> Float[Tensor, " B"]:
        """Distance of new inputs to the k-th nearest training row; higher is more out-of-distribution.

        A training row finds itself first, at distance 0: for training rows see :meth:`training_scores`.
        """
        values = self.features(x)
        return self._kth(_normalized(values) if self.normalize else values, self.k)

    def training_scores(self) -> Float[Tensor, " N"]:
        """Of each training row: the distance to the k-th nearest OTHER one."""
        return self._kth(self.rows, self.k + 1)

    def _kth(self, values: Tensor, k: int) -> Tensor:
        if values.shape[1] != self.rows.shape[1]:
            raise ValueError(f"got {values.shape[1]} features, fitted on {self.rows.shape[1]}")
        step = max(1, _ENTRIES // len(self.rows))
        return torch.cat([self._kth_of_block(block, k) for block in values.split(step)])

    def _kth_of_block(self, block: Tensor, k: int) -> Tensor:
        # squared distances by one matrix product find the neighbours; the difference itself measures them
        rough = self.rows.square().sum(1) - 2 * block @ self.rows.T
        nearest = rough.topk(k, largest=False).indices
        exact = torch.stack([(block - self.rows[column]).square().sum(1) for column in nearest.T])
        return exact.amax(0).sqrt()


@dataclass(frozen=True, kw_only=True)
class NearestNeighbours:
    """The distance to the k-th nearest training row; labels are not used, so any task will do.

    Args:
        k: which neighbour; below the number of training rows.
        normalize: divide features by their length, as published. Without it badly scaled features decide.

    Example:
        >>> from singularbayes.feature_scores import Inputs
        >>> fitted = NearestNeighbours(k=2, normalize=False).fit(Inputs(), torch.arange(5.0).unsqueeze(1))
        >>> fitted.score(torch.tensor([[7.0]])).tolist()
        [4.0]
    """

    k: int = 50
    normalize: bool = True

    def __post_init__(self) -> None:
        check_count("k", self.k, 1)

    def fit(self, source: Any, train: Any) -> FittedNeighbours:
        """Keep the training rows' features.

        Args:
            source: a posterior, or :class:`.Penultimate`, :class:`.Frozen`, :class:`.Inputs`.
            train: in-distribution data, with or without labels.

        Raises:
            TypeError: no source of features.
            ValueError: not more rows than ``k``.
        """
        features = features_of(source)
        values = features(Reader.of(features).read(train).x)
        if len(values) <= self.k:
            raise ValueError(
                f"{len(values)} training rows have no {self.k}-th nearest other row; use a smaller k"
            )
        return FittedNeighbours(
            features, _normalized(values) if self.normalize else values, self.k, self.normalize
        )


def _normalized(values: Tensor) -> Tensor:
    """Rows of length 1; a row of zeros stays."""
    length = values.norm(dim=1, keepdim=True)
    return values / torch.where(length > 0, length, 1.0)
