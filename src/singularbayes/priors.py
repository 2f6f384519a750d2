"""Priors on single weights: independent, symmetric about zero, given by standard deviations (or a scale).

Each prior gives its log density and the gradient that one-sample training needs (``negative_score``,
``-d log p / d w``), in float32 or better whatever the precision of the weights. KLs to them: ``divergence``.

References:
    Blundell et al. 2015, arXiv 1505.05424, section 3.3 (scale mixture).
    Hershey and Olsen 2007 (variational upper bound of the KL to a mixture).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

__all__ = ["Laplace", "Normal", "PerParameter", "Prior", "ScaleMixture", "wide"]

_LOG_2PI = math.log(2 * math.pi)


def wide(tensor: Tensor) -> Tensor:
    """The tensor in float32 or float64: half precision can neither hold nor sum a log density."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


@runtime_checkable
class Prior(Protocol):
    """An independent prior on every entry of a block of weights."""

    def log_prob(self, w: Tensor) -> Tensor:
        """Elementwise log density, in nats; finite with a gradient far in the tails."""
        ...

    def negative_score(self, w: Tensor) -> Tensor:
        """Elementwise ``-d log p(w) / d w``."""
        ...

    def sample(self, noise: Tensor, choice: Tensor) -> Tensor:
        """Prior draws from standard normal ``noise`` and uniform ``choice`` of the same shape."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Plain fields, for a checkpoint."""
        ...


def _check_positive(prior: Any, *names: str) -> None:
    for name in names:
        value = getattr(prior, name)
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{type(prior).__name__}.{name} must be positive and finite, got {value}")


def _fields(prior: Any) -> dict[str, Any]:
    return {field.name: getattr(prior, field.name) for field in fields(prior)}


@dataclass(frozen=True)
class Normal:
    """``N(0, std^2)``.

    Args:
        std: standard deviation.
    """

    std: float = 1.0

    def __post_init__(self) -> None:
        _check_positive(self, "std")

    def log_prob(self, w: Tensor) -> Tensor:
        return -0.5 * (wide(w) / self.std).square() - math.log(self.std) - 0.5 * _LOG_2PI

    def negative_score(self, w: Tensor) -> Tensor:
        return wide(w) * self.std**-2

    def sample(self, noise: Tensor, choice: Tensor) -> Tensor:
        return self.std * noise

    def to_dict(self) -> dict[str, Any]:
        return _fields(self)


@dataclass(frozen=True)
class Laplace:
    """Double exponential: density ``exp(-|w| / scale) / (2 scale)``.

    Args:
        scale: mean absolute value; the standard deviation is ``sqrt(2) scale``.
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        _check_positive(self, "scale")

    def log_prob(self, w: Tensor) -> Tensor:
        return -wide(w).abs() / self.scale - math.log(2 * self.scale)

    def negative_score(self, w: Tensor) -> Tensor:
        return wide(w).sign() / self.scale

    def sample(self, noise: Tensor, choice: Tensor) -> Tensor:
        magnitude = -torch.log1p(-wide(choice).clamp(max=1 - 1e-7))
        return self.scale * magnitude * noise.sign()

    def to_dict(self) -> dict[str, Any]:
        return _fields(self)


@dataclass(frozen=True)
class ScaleMixture:
    """``pi N(0, std1^2) + (1 - pi) N(0, std2^2)``: a slab and a spike.

    Args:
        pi: weight of the first component, in (0, 1).
        std1: standard deviation of the first component.
        std2: standard deviation of the second component.
        learned: let a method that can (``MeanField``) fit the three numbers with the posterior (empirical
            Bayes).

    Example:
        >>> prior = ScaleMixture(pi=0.25)
        >>> round(prior.log_prob(torch.tensor(1.0, dtype=torch.float64)).item(), 6)
        -2.805233
    """

    pi: float = 0.5
    std1: float = 1.0
    std2: float = math.exp(-6)
    learned: bool = False

    def __post_init__(self) -> None:
        _check_positive(self, "std1", "std2")
        if not 0 < self.pi < 1:
            raise ValueError(f"ScaleMixture.pi must lie strictly between 0 and 1, got {self.pi}; "
                             f"for one component use Normal(std)")  # fmt: skip

    @property
    def components(self) -> tuple[tuple[float, float], ...]:
        """``(log weight, standard deviation)`` of each component."""
        return (math.log(self.pi), self.std1), (math.log1p(-self.pi), self.std2)

    def log_prob(self, w: Tensor) -> Tensor:
        w = wide(w)
        terms = [log_weight - 0.5 * (w / std).square() - math.log(std) for log_weight, std in self.components]
        return torch.logaddexp(*terms) - 0.5 * _LOG_2PI

    def precision_(self, square: Tensor) -> Tensor:
        """``1 / slab^2 + 2 h sigmoid(max(k - h square, -80))``: the pull to 0 of a weight of this square.

        ``slab`` and ``spike`` are the wider and the narrower of the two, ``h = (1/spike^2 - 1/slab^2) / 2``,
        ``k`` the log ratio of their weighted densities at 0. The clamp moves nothing (``sigmoid(-80)`` is
        2e-35) and keeps the exponential out of the range of denormal numbers, where it is slow.

        Args:
            square: squares of weights, float32 or better; overwritten with the result.
        """
        (log_slab, slab), (log_spike, spike) = sorted(self.components, key=lambda component: -component[1])
        h = 0.5 * (spike**-2 - slab**-2)
        k = log_spike - log_slab + math.log(slab / spike)
        exponent = square.mul_(-h).add_(k).clamp_(min=-80.0)
        return exponent.sigmoid_().mul_(2 * h).add_(slab**-2)

    def negative_score(self, w: Tensor) -> Tensor:
        w = wide(w)
        return self.precision_(w.square()).mul_(w)

    def sample(self, noise: Tensor, choice: Tensor) -> Tensor:
        return noise * torch.where(choice < self.pi, self.std1, self.std2)

    def to_dict(self) -> dict[str, Any]:
        return _fields(self)

    # Learned mixtures: three unconstrained numbers (logit pi, log std1, log std2).

    def unconstrained(self) -> Tensor:
        """``(logit pi, log std1, log std2)``."""
        numbers = [math.log(self.pi / (1 - self.pi)), math.log(self.std1), math.log(self.std2)]
        return torch.tensor(numbers, dtype=torch.float64)

    def with_unconstrained(self, numbers: Tensor) -> ScaleMixture:
        """The mixture at ``(logit pi, log std1, log std2)``; pi is kept .001 away from 0 and 1."""
        numbers = numbers.detach().double()
        std1, std2 = numbers[1:].exp().tolist()
        return replace(self, pi=numbers[0].sigmoid().clamp(1e-3, 1 - 1e-3).item(), std1=std1, std2=std2)

    def unconstrained_gradient(self, w: Tensor) -> Tensor:
        """Gradient of ``-sum log p(w)`` for ``(logit pi, log std1, log std2)``, shape ``(3,)``."""
        w = wide(w)
        (a, s1), (b, s2) = self.components
        log_odds = (a - math.log(s1) - b + math.log(s2)) + 0.5 * w.square() * (s2**-2 - s1**-2)
        share = torch.sigmoid(log_odds)
        pull1 = (1 - (w / s1).square()) * share
        pull2 = (1 - (w / s2).square()) * torch.sigmoid(-log_odds)
        return torch.stack([(self.pi - share).sum(), pull1.sum(), pull2.sum()])


@dataclass(frozen=True)
class PerParameter:
    """Different priors for different parameters, by name pattern; the first that matches counts.

    Args:
        priors: ``{pattern: prior}`` with shell patterns on parameter names, e.g.
            ``{"*.bias": Normal(10.0), "*": Normal()}``. Every Bayesian parameter must match one.
    """

    priors: Mapping[str, Normal | Laplace | ScaleMixture]

    def __post_init__(self) -> None:
        if not self.priors:
            raise ValueError('PerParameter needs at least one {pattern: prior}, e.g. {"*": Normal(1.0)}')
        for pattern, prior in self.priors.items():
            if not isinstance(prior, Normal | Laplace | ScaleMixture):
                got = f"the class {prior.__name__}" if isinstance(prior, type) else type(prior).__name__
                raise TypeError(f"PerParameter[{pattern!r}] must be an object such as Normal(1.0), "
                                f"Laplace(1.0) or ScaleMixture(), got {got}")  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        return {
            name: {"kind": type(prior).__name__, **prior.to_dict()} for name, prior in self.priors.items()
        }
