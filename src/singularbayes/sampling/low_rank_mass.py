"""A mass for targets with some strongly correlated directions, at a cost of ``O(d k)`` a step.

    M^-1 = S (I + U (L - I) U^T) S,    S = diag(s),  U (d, k) with orthonormal columns,  L diagonal

``s``, ``U`` and ``L`` minimise the Fisher divergence between the target, seen through ``M^-1``, and a
standard normal, from the positions ``x`` and gradients ``g = grad log p(x)`` of a window. For the diagonal

    s_i^2 = sqrt(var x_i / var g_i)

and then, with ``y = x / s`` and ``h = s g`` (centred) in the span of the ``k`` widest directions of each, the
matrix with ``E cov(h) E = cov(y)``, the geometric mean of ``cov(y)`` and ``cov(h)^-1``; ``L`` are its ``k``
eigenvalues farthest from 1. Positions know the wide directions well, gradients the narrow ones; on a Gaussian
the noise of few draws cancels between the two.

References:
    Seyboldt, Carlson and Carpenter 2026, arXiv 2603.18845, algorithm 1 (their cutoff, 2). They take the span
    of all draws; here it is cut to ``2k``. Both covariances, in units where a direction that ``S`` fits has
    variance 1, are shrunk like the diagonal mass: ``(n cov + 5e-3 I) / (n + 5)``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from numbers import Integral

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from .mass import normal
from .sampler import Point

__all__ = ["LowRankMass", "LowRankMetric", "Window"]

_CUTOFF = math.log(2.0)  # a direction whose variance is off by less is left alone


@dataclass(frozen=True, eq=False)
class LowRankMetric:
    """``M^-1 = S (I + U (L - I) U^T) S`` of each chain.

    Args:
        scale: ``s``, positive, units of the parameter.
        directions: ``U``, orthonormal columns, or 0.
        variances: the diagonal of ``L``, positive; 1 for a column that is not used.
    """

    scale: Float[Tensor, "C d"]
    directions: Float[Tensor, "C d k"]
    variances: Float[Tensor, "C k"]

    def _bent(self, rows: Tensor, factor: Tensor) -> Tensor:
        """``(I + U (diag(factor) - I) U^T) rows``."""
        inside = (rows.unsqueeze(1) @ self.directions).squeeze(1)
        return rows + (self.directions @ ((factor - 1) * inside).unsqueeze(2)).squeeze(2)

    def draw(self, source: torch.Generator) -> Float[Tensor, "C d"]:
        """Momenta of ``N(0, M)``."""
        return self._bent(normal(self.scale, source), self.variances.rsqrt()) / self.scale

    def velocity(self, momentum: Float[Tensor, "C d"]) -> Float[Tensor, "C d"]:
        """``M^-1 p``."""
        return self._bent(momentum * self.scale, self.variances) * self.scale

    def kinetic(self, momentum: Float[Tensor, "C d"]) -> Float[Tensor, " C"]:
        """``p^T M^-1 p / 2``, nats, summed in float64."""
        return self._bent(momentum * self.scale, self.variances.sqrt()).double().square().sum(1) / 2

    def of(self, chains: Int[Tensor, " A"]) -> LowRankMetric:
        """The metric of some of the chains."""
        return LowRankMetric(self.scale[chains], self.directions[chains], self.variances[chains])

    def facts(self) -> dict[str, Tensor]:
        """The diagonal of ``M^-1``, and the variances along ``U`` relative to it."""
        bend = (self.directions.square() * (self.variances - 1).unsqueeze(1)).sum(2)
        return {"inverse_mass": self.scale.square() * (1 + bend), "direction_variances": self.variances}


@dataclass(frozen=True, eq=False)
class Window:
    """Positions and gradients from all over a window: when it is full, every second one is let go.

    Args:
        seen: points so far, a number.
        kept: rows in use, a number.
        stride: every so many points are kept, a number.
        positions: rows beyond ``kept`` are not used.
        gradients: of the log density, at the positions.
    """

    seen: Int[Tensor, ""]
    kept: Int[Tensor, ""]
    stride: Int[Tensor, ""]
    positions: Float[Tensor, "C W d"]
    gradients: Float[Tensor, "C W d"]

    def add(self, point: Point) -> Window:
        """With one more point of each chain."""
        seen, kept, stride = int(self.seen), int(self.kept), int(self.stride)
        if seen % stride:
            return replace(self, seen=self.seen + 1)
        positions, gradients = self.positions.clone(), self.gradients.clone()
        if kept == positions.shape[1]:
            kept, stride = kept // 2, 2 * stride
            for rows in (positions, gradients):
                rows[:, :kept] = rows[:, : 2 * kept : 2].clone()
        positions[:, kept], gradients[:, kept] = point.position, point.gradient
        number = self.seen.new_tensor
        return Window(self.seen + 1, number(kept + 1), number(stride), positions, gradients)


@dataclass(frozen=True, kw_only=True)
class LowRankMass:
    """A diagonal and the ``rank`` directions in which the target is farthest from it.

    Args:
        rank: ``k``; at most as many as there are parameters are used.
        stored: positions and gradients that a window keeps, for each chain; an even number.

    Raises:
        ValueError: a rank below 1, or a window that is odd or below 4.

    Example:
        >>> import torch
        >>> from singularbayes.sampling import Point
        >>> covariance = torch.tensor([[1.0, 0.99], [0.99, 1.0]])
        >>> x = torch.randn(40, 1, 2, generator=torch.Generator().manual_seed(0))
        >>> x = x @ torch.linalg.cholesky(covariance).mT
        >>> points = [Point(row, torch.zeros(1), -row @ covariance.inverse()) for row in x]
        >>> mass = LowRankMass(rank=2)
        >>> metric, window = mass.start(points[0]), mass.estimate(points[0])
        >>> for point in points:
        ...     window = window.add(point)
        >>> mass.fitted(window, metric).velocity(torch.tensor([[1.0, 0.0]])).round(decimals=2)
        tensor([[1.0000, 0.9900]])
    """

    rank: int = 10
    stored: int = 100

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name, value, least in (("rank", self.rank, 1), ("stored", self.stored, 4)):
            if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
        if self.stored % 2:
            raise ValueError(f"stored must be even, got {self.stored}: every second one is let go")

    @property
    def adapts(self) -> bool:
        """It does."""
        return True

    def start(self, point: Point) -> LowRankMetric:
        """The identity."""
        chains, d = point.position.shape
        k = min(self.rank, d)
        directions = torch.eye(d, k, dtype=point.position.dtype, device=point.position.device)
        return LowRankMetric(
            torch.ones_like(point.position),
            directions.expand(chains, d, k).clone(),
            torch.ones_like(point.position[:, :k]),
        )

    def estimate(self, point: Point) -> Window:
        """No draws yet."""
        chains, d = point.position.shape
        rows = point.position.new_zeros(chains, self.stored, d)
        nothing = torch.zeros((), dtype=torch.int64, device=rows.device)
        return Window(nothing, nothing, torch.ones_like(nothing), rows, torch.zeros_like(rows))

    def fitted(self, estimate: Window, metric: LowRankMetric) -> LowRankMetric:
        """The metric of least Fisher divergence; chains with less than 3 different points keep theirs."""
        n, k = int(estimate.kept), metric.variances.shape[1]
        if n < 3:
            return metric
        x, g = _centred(estimate.positions[:, :n]), _centred(estimate.gradients[:, :n])
        finite = torch.isfinite(x).all((1, 2)) & torch.isfinite(g).all((1, 2))
        x, g = (torch.where(finite[:, None, None], rows, 0.0) for rows in (x, g))
        former = metric.scale.double()
        scale = (x.square().mean(1) / g.square().mean(1)).pow(0.25)
        usable = torch.isfinite(scale) & (scale > 0)
        scale = torch.where(usable, scale, former)
        span = _span(x / scale.unsqueeze(1), g * scale.unsqueeze(1), k)
        inner = _geometric_mean(x / scale.unsqueeze(1) @ span, g * scale.unsqueeze(1) @ span)
        values, vectors = torch.linalg.eigh(inner)
        far = values.log().abs().topk(min(k, values.shape[1]), dim=1).indices
        logs = values.gather(1, far).log()
        directions = span @ vectors.gather(2, far.unsqueeze(1).expand(-1, vectors.shape[1], -1))
        missing = k - far.shape[1]  # fewer draws than directions: columns of 0 with a variance of 1
        logs, directions = pad(logs, (0, missing)), pad(directions, (0, missing))
        variances = torch.where(logs.abs() > _CUTOFF, logs, 0.0).exp()
        moved = finite & usable.any(1) & torch.isfinite(variances).all(1)
        dtype = metric.scale.dtype
        return LowRankMetric(
            torch.where(moved[:, None], scale.to(dtype), metric.scale),
            torch.where(moved[:, None, None], directions.to(dtype), metric.directions),
            torch.where(moved[:, None], variances.to(dtype), metric.variances),
        )


def _centred(rows: Float[Tensor, "C n d"]) -> Float[Tensor, "C n d"]:
    rows = rows.double() - rows[:, :1].double()  # exactly 0 where nothing moved
    return rows - rows.mean(1, keepdim=True)


def _span(y: Float[Tensor, "C n d"], h: Float[Tensor, "C n d"], k: int) -> Float[Tensor, "C d m"]:
    """Orthonormal columns that hold the ``k`` widest directions of each, ``m = min(2 k, 2 n, d)``."""
    d = y.shape[2]
    if 2 * k >= d:
        return torch.eye(d, dtype=y.dtype, device=y.device).expand(len(y), d, d)
    widest = [torch.linalg.svd(rows, full_matrices=False).Vh[:, :k].mT for rows in (y, h)]
    return torch.linalg.qr(torch.cat(widest, 2)).Q


def _geometric_mean(y: Float[Tensor, "C n m"], h: Float[Tensor, "C n m"]) -> Float[Tensor, "C m m"]:
    """The symmetric positive ``E`` with ``E cov(h) E = cov(y)``."""
    n = y.shape[1]

    def covariance(rows: Tensor) -> Tensor:
        found = rows.mT @ rows / n
        eye = torch.eye(rows.shape[2], dtype=rows.dtype, device=rows.device)
        return (n * found + 5e-3 * eye) / (n + 5)

    def power(matrix: Tensor, exponent: float) -> Tensor:
        values, vectors = torch.linalg.eigh(matrix)
        least = values[:, -1:] * torch.finfo(values.dtype).eps
        return vectors * values.clamp(min=least).pow(exponent).unsqueeze(1) @ vectors.mT

    of_h = covariance(h)
    root, inverse_root = power(of_h, 0.5), power(of_h, -0.5)
    return inverse_root @ power(root @ covariance(y) @ root, 0.5) @ inverse_root
