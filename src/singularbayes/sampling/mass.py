"""Masses: what each chain's momentum weighs, learned from where the chain has been.

    p ~ N(0, M),    velocity = M^-1 p,    kinetic energy = p^T M^-1 p / 2

``M^-1`` estimates the covariance of the target, so that all directions are equally long under it. Each chain
has its own, from its own history: chains of a network sit in different modes. A diagonal one is

    M^-1 = diag(v),    v = (n s + 5e-3 w) / (n + 5)

with ``s`` the variance of ``n`` draws and ``w`` the ``v`` of the window before, 1 in the first: Stan's
shrinkage with the former variance in place of 1, so that a parameter of scale 1e-4 is not pushed up to it.
For strongly correlated directions there is :class:`~.low_rank_mass.LowRankMass`.

A chain that is still on its way shows too small a variance where the target is wide, and the gradients tell:
with ``g`` the gradient in one coordinate, ``E[x g] = -1`` and so ``Var(x) Var(g) >= 1`` under any target.
Where a window has less, ``s`` is ``(Var(x) / Var(g))^(1/2)``, the variance of the independent Gaussian that
gives both, at most 1e4 times what was known: wide coordinates are found before they are crossed.

References:
    Neal 2011, arXiv 1206.1901, section 4.1 (the mass as a change of variables). Carpenter et al. 2017,
    Journal of Statistical Software 76(1) (Stan's shrinkage). Welford 1962, Technometrics 4(3) (moments).
    Seyboldt, Carlson and Carpenter 2026, arXiv 2603.18845 (positions and gradients: the same ratio is their
    diagonal of least Fisher divergence).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .sampler import Point

__all__ = ["DiagonalMass", "DiagonalMetric", "Moments", "UnitMass", "UnitMetric", "normal"]

# The former variance counts as 5 draws of a thousandth of it.
_PRIOR_DRAWS, _PRIOR_SHARE = 5.0, 1e-3
_GROWTH = 1e4  # of a variance that the gradients ask for, in one window


def normal(like: Float[Tensor, "*shape"], source: torch.Generator) -> Float[Tensor, "*shape"]:
    """``N(0, 1)`` of the shape, dtype and device of ``like``."""
    return torch.randn(like.shape, generator=source, dtype=like.dtype, device=like.device)


@dataclass(frozen=True, eq=False)
class UnitMetric:
    """``M = I``.

    Args:
        ones: their shape, dtype and device are those of the momenta.
    """

    ones: Float[Tensor, "C d"]

    def draw(self, source: torch.Generator) -> Float[Tensor, "C d"]:
        """Momenta of ``N(0, I)``."""
        return normal(self.ones, source)

    def velocity(self, momentum: Float[Tensor, "C d"]) -> Float[Tensor, "C d"]:
        """The momentum itself."""
        return momentum

    def kinetic(self, momentum: Float[Tensor, "C d"]) -> Float[Tensor, " C"]:
        """``p^T p / 2``, nats, summed in float64."""
        return momentum.double().square().sum(1) / 2

    def of(self, chains: Int[Tensor, " A"]) -> UnitMetric:
        """The metric of some of the chains."""
        return UnitMetric(self.ones[chains])

    def facts(self) -> dict[str, Tensor]:
        """Nothing was learned."""
        return {}


@dataclass(frozen=True, eq=False)
class DiagonalMetric:
    """``M^-1`` a diagonal matrix for each chain.

    Args:
        inverse_mass: the diagonal of ``M^-1``, positive, squared units of the parameter.
    """

    inverse_mass: Float[Tensor, "C d"]

    def draw(self, source: torch.Generator) -> Float[Tensor, "C d"]:
        """Momenta of ``N(0, M)``."""
        return normal(self.inverse_mass, source) * self.inverse_mass.rsqrt()

    def velocity(self, momentum: Float[Tensor, "C d"]) -> Float[Tensor, "C d"]:
        """``M^-1 p``."""
        return momentum * self.inverse_mass

    def kinetic(self, momentum: Float[Tensor, "C d"]) -> Float[Tensor, " C"]:
        """``p^T M^-1 p / 2``, nats, summed in float64."""
        return (momentum.double().square() * self.inverse_mass).sum(1) / 2

    def of(self, chains: Int[Tensor, " A"]) -> DiagonalMetric:
        """The metric of some of the chains."""
        return DiagonalMetric(self.inverse_mass[chains])

    def facts(self) -> dict[str, Tensor]:
        """The diagonal of ``M^-1``."""
        return {"inverse_mass": self.inverse_mass}


@dataclass(frozen=True, eq=False)
class Moments:
    """Running means and sums of squared deviations of each chain's positions and gradients, in float64.

    Args:
        count: draws seen, a number.
        mean: their mean.
        squares: the sum of their squared deviations from it.
        slope: mean of the gradients.
        slope_squares: the sum of their squared deviations from it.
    """

    count: Int[Tensor, ""]
    mean: Float[Tensor, "C d"]
    squares: Float[Tensor, "C d"]
    slope: Float[Tensor, "C d"]
    slope_squares: Float[Tensor, "C d"]

    @classmethod
    def empty(cls, position: Float[Tensor, "C d"]) -> Moments:
        """Nothing seen yet, for chains at ``position``."""
        zero = torch.zeros_like(position, dtype=torch.float64)
        return cls(torch.zeros((), dtype=torch.int64, device=position.device), zero, zero, zero, zero)

    def add(self, point: Point) -> Moments:
        """With one more point of each chain (Welford's update)."""
        count = self.count + 1
        position, gradient = point.position.double(), point.gradient.double()
        off, steeper = position - self.mean, gradient - self.slope
        mean, slope = self.mean + off / count, self.slope + steeper / count
        return Moments(
            count,
            mean,
            self.squares + off * (position - mean),
            slope,
            self.slope_squares + steeper * (gradient - slope),
        )

    def shrunk(self, former: Float[Tensor, "C d"]) -> Float[Tensor, "C d"]:
        """``(n s + 5e-3 w) / (n + 5)``; ``w`` where nothing has moved or what was seen is not finite."""
        n = self.count
        variance = self._variance(former)
        variance = (n * variance + _PRIOR_DRAWS * _PRIOR_SHARE * former) / (n + _PRIOR_DRAWS)
        variance = variance.to(former.dtype)
        known = (self.squares > 0) & torch.isfinite(variance) & (variance > 0)
        return torch.where(known, variance, former)

    def _variance(self, former: Float[Tensor, "C d"]) -> Float[Tensor, "C d"]:
        """``s``: that of the positions, or what positions and gradients together ask for."""
        seen = self.squares / (self.count - 1).clamp(min=1)
        asked = (self.squares / self.slope_squares).sqrt()
        asked = torch.minimum(asked, _GROWTH * torch.maximum(seen, former.double()))
        return torch.where(self.slope_squares > 0, torch.maximum(seen, asked), seen)


@dataclass(frozen=True, kw_only=True)
class UnitMass:
    """``M = I``: momenta are not scaled, nothing is learned. For targets whose scales are alike."""

    @property
    def adapts(self) -> bool:
        """It does not."""
        return False

    def start(self, point: Point) -> UnitMetric:
        """The identity."""
        return UnitMetric(torch.ones_like(point.position))

    def estimate(self, point: Point) -> Moments:
        """Moments, of which nothing will be asked."""
        return Moments.empty(point.position)

    def fitted(self, estimate: Moments, metric: UnitMetric) -> UnitMetric:
        """The present metric."""
        return metric


@dataclass(frozen=True, kw_only=True)
class DiagonalMass:
    """The inverse mass of a parameter is its shrunk variance in the chain's last window of warm-up.

    Where the gradients say that the chain has not crossed a parameter's range yet, it is more.

    Not for directions across parameters: correlated ones need short steps under it.

    Example:
        >>> import torch
        >>> from singularbayes.sampling import Point
        >>> x = torch.randn(500, 2, 3, generator=torch.Generator().manual_seed(0))
        >>> scale = torch.tensor([0.1, 1.0, 10.0])
        >>> points = [Point(scale * z, torch.zeros(2), -z / scale) for z in x]
        >>> mass = DiagonalMass()
        >>> metric, moments = mass.start(points[0]), mass.estimate(points[0])
        >>> for point in points:
        ...     moments = moments.add(point)
        >>> mass.fitted(moments, metric).inverse_mass.log10().round().int().tolist()
        [[-2, 0, 2], [-2, 0, 2]]
    """

    @property
    def adapts(self) -> bool:
        """It does."""
        return True

    def start(self, point: Point) -> DiagonalMetric:
        """Ones."""
        return DiagonalMetric(torch.ones_like(point.position))

    def estimate(self, point: Point) -> Moments:
        """No draws yet."""
        return Moments.empty(point.position)

    def fitted(self, estimate: Moments, metric: DiagonalMetric) -> DiagonalMetric:
        """The shrunk variances."""
        return DiagonalMetric(estimate.shrunk(metric.inverse_mass))
