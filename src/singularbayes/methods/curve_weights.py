"""Where on trained curves draws lie: by the posterior along them, or by a fixed density to compare with.

    p(t | D)  prop.  p(D | w_t)^(1/T) p(w_t) |dw_t / dt|

jointly over all curves: their union is one set of dimension one, and the last factor its measure of length.
Draws are the inverse of the distribution function at stratified uniforms, so that ``n`` of them take every
share of ``1/n`` once.

References:
    arXiv 2402.01484, section 3 (a posterior on the curve, its volume element).
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray
from scipy.stats import beta

__all__ = ["Along", "BetaWeights", "LikelihoodWeights", "Places", "Weights", "inverse"]

_LARGEST_SHARE = 0.5


@dataclass(frozen=True, eq=False)
class Along:
    """What is known along ``C`` curves at the same ``G`` places, evenly spaced from 0 to 1.

    Args:
        log_likelihood: ``log p(D | w_t)`` in nats ``(C, G)``.
        log_prior: ``log p(w_t)`` ``(C, G)``.
        speed: ``|dw_t / dt|`` in the middle of each cell between two places ``(C, G - 1)``.
    """

    log_likelihood: Float[NDArray, "C G"]
    log_prior: Float[NDArray, "C G"]
    speed: Float[NDArray, "C G-1"]


@dataclass(frozen=True, eq=False)
class Places:
    """Draws: the curve of each ``(n,)``, its place there ``(n,)``, and the share of each curve ``(C,)``."""

    curve: Int[NDArray, " n"]
    t: Float[NDArray, " n"]
    share: Float[NDArray, " C"]


@runtime_checkable
class Weights(Protocol):
    """How draws are spread over curves."""

    @property
    def needs_density(self) -> bool:
        """Whether :meth:`places` looks at the values along the curves."""
        ...

    def places(self, along: Along | None, curves: int, n: int, uniforms: Float[NDArray, " n"]) -> Places:
        """Places for ``n`` uniforms in [0, 1), one for each stratum."""
        ...


def _strata(uniforms: NDArray[np.floating]) -> NDArray[np.floating]:
    n = len(uniforms)
    return np.minimum((np.arange(n) + uniforms) / n, np.nextafter(1.0, 0.0))


def inverse(
    log_density: Float[NDArray, "C G"], factor: Float[NDArray, "C G-1"], at: Float[NDArray, " n"]
) -> tuple[Int[NDArray, " n"], Float[NDArray, " n"], Float[NDArray, "C G-1"]]:
    """Inverse of the distribution function over ``C`` curves, exponential within a cell.

    Args:
        log_density: at the places, unnormalised; any range.
        factor: constant within each cell.
        at: values of the distribution function, in [0, 1).

    Returns:
        Curve and place of each value, and every cell's share of the whole.
    """
    level = log_density - log_density.max()
    low, high = level[:, :-1], level[:, 1:]
    rise = high - low
    # The mean of exp over a cell: exp(low) (exp(rise) - 1) / rise, from the higher end lest it overflow.
    top, steep = np.maximum(low, high), np.abs(rise)
    mean = np.exp(top) * np.where(steep > 1e-9, -np.expm1(-steep) / np.maximum(steep, 1e-300), 1.0)
    mass = (mean * factor).ravel()
    total = mass.sum()
    if not (np.isfinite(total) and total > 0):
        raise ValueError("the density is nowhere above 0 on the curves: their points have no length, or all "
                         "likelihoods are nan; look at the profiles")  # fmt: skip
    share = mass / total
    ends = np.cumsum(share)
    cell = np.minimum(np.searchsorted(ends, at * ends[-1], side="right"), len(share) - 1)
    within = np.clip((at * ends[-1] - (ends[cell] - share[cell])) / share[cell], 0, 1)
    slope = rise.ravel()[cell]
    # v = (exp(slope s) - 1) / (exp(slope) - 1), solved for s; mirrored where the density rises
    rising, steep = slope > 0, np.abs(slope)
    v = np.where(rising, 1 - within, within)
    fine = steep > 1e-9
    s = np.where(fine, -np.log1p(v * np.expm1(-steep)) / np.where(fine, steep, 1.0), v)
    s = np.clip(np.where(rising, 1 - s, s), 0, 1)
    cells = rise.shape[1]
    return cell // cells, (cell % cells + s) / cells, share.reshape(rise.shape)


@dataclass(frozen=True)
class LikelihoodWeights:
    """Draws by the posterior along the curves, at the temperature of its likelihood.

    Args:
        temperature: ``T``. 1 is the posterior; with much data that is a few points, and a larger one spreads
            the draws; it is chosen on validation data.
    """

    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise ValueError(
                f"LikelihoodWeights.temperature must be positive and finite, got {self.temperature!r}; for "
                f"draws that the data do not weigh use BetaWeights(1, 1)"
            )

    @property
    def needs_density(self) -> bool:
        return True

    def places(self, along: Any, curves: int, n: int, uniforms: NDArray[np.floating]) -> Places:
        """Draws by the density.

        Raises:
            ValueError: no finite likelihood; curves without length.

        Warns:
            UserWarning: one cell between two places holds over half of the mass.
        """
        log_density = along.log_likelihood / self.temperature + along.log_prior
        finite = np.isfinite(log_density)
        if not finite.any():
            raise ValueError("no likelihood along the curves is finite; look at connect(...).profile(0)")
        log_density = np.where(finite, log_density, -np.inf)
        log_density = np.maximum(log_density, log_density.max() - 1e4)
        curve, t, share = inverse(log_density, along.speed, _strata(uniforms))
        if share.max() > _LARGEST_SHARE:
            warnings.warn(
                f"one cell of the grid holds {share.max():.0%} of the mass along the curves: the draws "
                f"are nearly one network. Raise the temperature of LikelihoodWeights, now "
                f"{self.temperature:g}, or grid",
                stacklevel=3,
            )
        return Places(curve, t, share.sum(1))


@dataclass(frozen=True)
class BetaWeights:
    """Draws at ``t ~ Beta(a, b)``, equally many on each curve: no posterior, a spread to compare with.

    Args:
        a: 2 with ``b`` 2 keeps away from the ends; 1 with 1 is uniform.
        b: see ``a``.
    """

    a: float = 2.0
    b: float = 2.0

    def __post_init__(self) -> None:
        if not (self.a > 0 and self.b > 0 and math.isfinite(self.a + self.b)):
            raise ValueError(f"BetaWeights needs positive, finite a and b, got {self.a!r} and {self.b!r}")

    @property
    def needs_density(self) -> bool:
        return False

    def places(self, along: Any, curves: int, n: int, uniforms: NDArray[np.floating]) -> Places:
        whole = _strata(uniforms) * curves
        curve = np.minimum(whole.astype(int), curves - 1)
        t = beta.ppf(whole - curve, self.a, self.b)
        return Places(curve, t, np.full(curves, 1 / curves))
