"""A regression whose distribution function is passed through a fitted monotone map.

    F'(y) = R(F(y)),   quantile'(q) = quantile(R^-1(q)),   R: [0, 1] -> [0, 1] piecewise linear

The map is found by :class:`.IsotonicIntervals`. A piecewise linear ``R`` changes where the mass lies between
its knots but gives no usable density (its slope jumps, and far out it is a guess), so intervals, quantiles
and the distribution function are recalibrated, and mean, variance, log density, CRPS and scores stay those of
the mixture of Gaussians.

References:
    Kuleshov et al. 2018, arXiv 1807.00263, section 3.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from . import likelihoods
from .likelihoods import Likelihood, Parameters
from .predictive import GaussianPredictive

__all__ = ["LevelMap", "Recalibrated", "RecalibratedPredictive"]


@dataclass(frozen=True)
class LevelMap:
    """The monotone map of one output: straight lines between knots, and to (0, 0) and (1, 1) outside them.

    Args:
        stated: what the predictive says, increasing, in [0, 1].
        found: the share of labels at or below that level, increasing, in (0, 1).

    Example:
        >>> LevelMap((0.2, 0.8), (0.4, 0.6)).inverse(0.5)
        0.5
    """

    stated: tuple[float, ...]
    found: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.stated) != len(self.found) or not self.stated:
            raise ValueError(f"a map needs as many stated levels as found ones, at least one; got "
                             f"{len(self.stated)} and {len(self.found)}")  # fmt: skip
        for name in ("stated", "found"):
            values = np.asarray(getattr(self, name))
            if not (np.all(np.diff(values) > 0) and values[0] >= 0 and values[-1] <= 1):
                raise ValueError(f"the {name} levels must increase within [0, 1]")

    def _knots(self) -> tuple[list[float], list[float]]:
        stated, found = list(self.stated), list(self.found)
        if stated[0] > 0:  # labels at level 0 or 1 lie where the predictive has no mass: a step there
            stated, found = [0.0, *stated], [0.0, *found]
        if stated[-1] < 1:
            stated, found = [*stated, 1.0], [*found, 1.0]
        return stated, found

    def __call__(self, level: np.ndarray) -> np.ndarray:
        """``R`` of stated levels."""
        return np.interp(level, *self._knots())

    def inverse(self, level: float) -> float:
        """The stated level whose share is ``level``; 0 or 1 where labels lay beyond all of its mass."""
        stated, found = self._knots()
        if level <= found[0]:
            return stated[0]
        return 1.0 if level > found[-1] else float(np.interp(level, found, stated))


@dataclass(frozen=True, eq=False, repr=False)
class RecalibratedPredictive(GaussianPredictive):
    """A mixture of Gaussians with recalibrated intervals, quantiles and distribution function.

    Args:
        means: ``(S, B, *event)``.
        variances: the same shape.
        maps: one for each output, in the order of the flattened event.
    """

    maps: tuple[LevelMap, ...] = ()

    def __repr__(self) -> str:
        return f"RecalibratedPredictive({self.draws} draws, {self.means.shape[1]} rows)"

    @property
    def plain(self) -> GaussianPredictive:
        """The mixture before recalibration."""
        names = [field.name for field in fields(GaussianPredictive)]
        return GaussianPredictive(**{name: getattr(self, name) for name in names})

    def cdf(self, y: Tensor) -> Float[Tensor, "B *event"]:
        """Recalibrated distribution function at ``y (B, *event)``, elementwise."""
        levels = self.plain.cdf(y)
        columns = levels.reshape(len(levels), -1).cpu().double().numpy()
        moved = np.stack([rule(columns[:, i]) for i, rule in enumerate(self.maps)], 1)
        return torch.from_numpy(moved).to(levels).reshape(levels.shape)

    def _quantile(self, probability: float) -> Tensor:
        plain = self.plain
        columns = [
            plain.quantile(rule.inverse(probability)).reshape(plain.means.shape[1], -1)[:, i]
            for i, rule in enumerate(self.maps)
        ]
        return torch.stack(columns, 1).reshape(plain.means.shape[1:])


@dataclass(frozen=True)
class Recalibrated:
    """A likelihood of numbers whose predictive has recalibrated intervals; trained as the one inside.

    Args:
        likelihood: ``Gaussian()`` or ``HeteroscedasticGaussian()``.
        maps: one for each output, in the order of the flattened event.
    """

    likelihood: Likelihood
    maps: tuple[LevelMap, ...]
    task: ClassVar[str] = "gaussian"

    def __post_init__(self) -> None:
        if self.likelihood.task != "gaussian":
            raise ValueError(f"intervals of numbers are recalibrated, got {type(self.likelihood).__name__}; "
                             f"for classes use Temperature() or VectorScaling()")  # fmt: skip

    @property
    def temperature(self) -> float:
        return self.likelihood.temperature

    @property
    def parameters(self) -> dict[str, Tensor]:
        return self.likelihood.parameters

    def labels(self, outputs_shape: torch.Size, y: Tensor) -> Tensor:
        return self.likelihood.labels(outputs_shape, y)

    def log_prob(self, outputs: Tensor, y: Tensor, parameters: Parameters) -> Tensor:
        return self.likelihood.log_prob(outputs, y, parameters)

    def loss(self, outputs: Tensor, y: Tensor, parameters: Parameters) -> Tensor:
        return self.likelihood.loss(outputs, y, parameters)

    def predictive(self, outputs: Tensor, parameters: Parameters) -> RecalibratedPredictive:
        plain = self.likelihood.predictive(outputs.double(), parameters)  # levels near 1 keep their digits
        width = plain.means[0, 0].numel() if isinstance(plain, GaussianPredictive) else 0
        if not isinstance(plain, GaussianPredictive) or width != len(self.maps):
            raise ValueError(f"the recalibration has {len(self.maps)} outputs and the network gives {width}; "
                             f"it was fitted with another network")  # fmt: skip
        given = {field.name: getattr(plain, field.name) for field in fields(GaussianPredictive)}
        return RecalibratedPredictive(**given, maps=self.maps)

    def with_temperature(self, temperature: float) -> Likelihood:
        """Of the likelihood inside, without the map: it was fitted at another temperature."""
        return self.likelihood.with_temperature(temperature)

    def started_at(self, parameters: Parameters) -> Likelihood:
        """Of the likelihood inside, without the map: training changes what it was fitted to."""
        return self.likelihood.started_at(parameters)

    def warn_if_degenerate(self, outputs: Tensor, parameters: Parameters) -> None:
        self.likelihood.warn_if_degenerate(outputs, parameters)

    def to_dict(self) -> dict[str, Any]:
        inside = {"kind": type(self.likelihood).__name__, **self.likelihood.to_dict()}
        maps = [{"stated": list(rule.stated), "found": list(rule.found)} for rule in self.maps]
        return {"likelihood": inside, "maps": maps}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Recalibrated:
        """What :meth:`to_dict` wrote."""
        maps = tuple(LevelMap(tuple(rule["stated"]), tuple(rule["found"])) for rule in content["maps"])
        return cls(likelihoods.rebuild(content["likelihood"]), maps)
