"""Distance of features to the nearest class, in units of the spread within classes.

    Mahalanobis:            min_c d_c(f)^2
    relative Mahalanobis:   min_c (d_c(f)^2 - d_0(f)^2),   d_0 of one Gaussian over all classes

References:
    Lee et al. 2018, arXiv 1807.03888, eqs. 1-2; Ren et al. 2021, arXiv 2106.09022, eqs. 2-3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..evaluation.data import Reader
from .encoders import Features, features_of
from .gaussians import Gaussians

__all__ = ["FittedMahalanobis", "FittedRelativeMahalanobis", "Mahalanobis", "RelativeMahalanobis"]


@dataclass(frozen=True, eq=False)
class FittedMahalanobis:
    """What :class:`Mahalanobis` fitted.

    Args:
        features: of inputs.
        gaussians: ``gaussians.shrinkage`` states the share of the identity, ``gaussians.dropped`` the number
            of features left out.
    """

    features: Features
    gaussians: Gaussians

    def __repr__(self) -> str:
        return f"FittedMahalanobis({_stated(self.gaussians)})"

    def score(self, x: Any) -> Float[Tensor, " B"]:
        """Squared distance to the nearest class mean; higher is more out-of-distribution."""
        return self.gaussians.distances(self.features(x)).amin(1)


@dataclass(frozen=True, eq=False)
class FittedRelativeMahalanobis:
    """What :class:`RelativeMahalanobis` fitted.

    Args:
        features: of inputs.
        gaussians: of the classes.
        background: one Gaussian over all rows, of the same features.
    """

    features: Features
    gaussians: Gaussians
    background: Gaussians

    def __repr__(self) -> str:
        return f"FittedRelativeMahalanobis({_stated(self.gaussians)})"

    def score(self, x: Any) -> Float[Tensor, " B"]:
        """Squared distance to the nearest class less that to the background; higher is more OOD."""
        found = self.features(x)
        return (self.gaussians.distances(found) - self.background.distances(found)).amin(1)


def _stated(gaussians: Gaussians) -> str:
    return (
        f"{len(gaussians.means)} means, {len(gaussians.std)} features, {gaussians.dropped} dropped, "
        f"shrinkage {gaussians.shrinkage:.3g}"
    )


def _check_shrinkage(shrinkage: float | None) -> None:
    if shrinkage is not None and not 0 <= shrinkage <= 1:
        raise ValueError(f"shrinkage must lie in [0, 1], or be None for Ledoit and Wolf's, got {shrinkage}")


@dataclass(frozen=True, kw_only=True)
class Mahalanobis:
    """The squared Mahalanobis distance of features to the nearest class mean.

    Data without labels (``X`` alone), and a posterior of a regression, have one Gaussian. Features that are
    constant within every class are left out, as a pseudo-inverse would.

    Args:
        shrinkage: share of the identity in the covariance of standardised features: 0 as published (a
            singular covariance is then an error), ``None`` for Ledoit and Wolf's amount.

    Example:
        >>> from singularbayes.feature_scores import Inputs
        >>> x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
        >>> fitted = Mahalanobis().fit(Inputs(), x)
        >>> bool((fitted.score(x + 9) > fitted.score(x)).all())
        True
    """

    shrinkage: float | None = None

    def __post_init__(self) -> None:
        _check_shrinkage(self.shrinkage)

    def fit(self, source: Any, train: Any) -> FittedMahalanobis:
        """Estimate means and covariance.

        Args:
            source: a posterior, or :class:`.Penultimate`, :class:`.Frozen`, :class:`.Inputs`.
            train: in-distribution data: ``(X, y)`` with class numbers, or ``X`` alone for one Gaussian.

        Raises:
            TypeError: no source of features.
            ValueError: labels that are no class numbers; a singular covariance at ``shrinkage=0``.
        """
        features, values, classes = _read(source, train)
        return FittedMahalanobis(features, Gaussians.of(values, classes, self.shrinkage))


@dataclass(frozen=True, kw_only=True)
class RelativeMahalanobis:
    """Mahalanobis distance to the nearest class less that to all classes together: for near OOD.

    Args:
        shrinkage: of both covariances; see :class:`Mahalanobis`.
    """

    shrinkage: float | None = None

    def __post_init__(self) -> None:
        _check_shrinkage(self.shrinkage)

    def fit(self, source: Any, train: Any) -> FittedRelativeMahalanobis:
        """Estimate both Gaussians; arguments as those of :meth:`Mahalanobis.fit`.

        Raises:
            ValueError: fewer than two classes, besides the errors of :meth:`Mahalanobis.fit`.
        """
        features, values, classes = _read(source, train)
        if len(classes.unique()) < 2:
            raise ValueError("relative Mahalanobis compares each class with all together: it needs (X, y) of "
                             "at least two classes; use Mahalanobis()")  # fmt: skip
        inside = Gaussians.of(values, classes, self.shrinkage)
        background = Gaussians.of(values, torch.zeros_like(classes), self.shrinkage, inside.kept)
        return FittedRelativeMahalanobis(features, inside, background)


def _read(source: Any, train: Any) -> tuple[Features, Tensor, Tensor]:
    """Features, their values and class numbers; one class where there are no labels of classes."""
    features = features_of(source)
    held = Reader.of(features).read(train)
    values = features(held.x)
    numbers = getattr(getattr(source, "likelihood", None), "task", None) == "gaussian"
    if held.y is None or numbers:
        return features, values, torch.zeros(len(values), dtype=torch.long)
    y = held.y.cpu().reshape(len(values), -1)
    if y.shape[1] != 1 or bool((y != y.round()).any()):
        raise ValueError("the labels are no class numbers; pass X alone for one Gaussian over all rows")
    return features, values, y[:, 0].long()
