"""Distributions over the flat vector of a network, each with ``sample(noise)``: the noise is an input.

``noise`` is drawn outside (one row a draw), so a draw is a pure function of the distribution and its row, whatever
the block or batch size. ``size`` is the length ``D`` of the vector. Entries that are point estimates, or statistics of
a normalisation layer, have standard deviation 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

__all__ = [
    "DiagonalGaussian",
    "DiagonalLaplace",
    "Distribution",
    "DropoutMasks",
    "LowRankGaussian",
    "MixtureDistribution",
    "StoredDraws",
    "positive",
]

_TINY = 1e-30


def positive(rho: Tensor) -> Tensor:
    """``softplus(rho)`` in float32 or better, never below 1e-30: finite for every finite ``rho``."""
    wide = rho if rho.dtype in (torch.float32, torch.float64) else rho.float()
    return F.softplus(wide).clamp_min(_TINY)


class Distribution(Protocol):
    """A distribution over the flat vector."""

    kind: ClassVar[str]

    @property
    def size(self) -> int:
        """Length ``D`` of the vector."""
        ...

    @property
    def support(self) -> int | None:
        """Number of atoms of a finite distribution (stored draws), else ``None``."""
        ...

    @property
    def mean(self) -> Float[Tensor, " D"]: ...

    @property
    def variance(self) -> Float[Tensor, " D"]: ...

    def noise(self, row: Tensor, generator: torch.Generator, index: int, total: int) -> None:
        """Fill one row of noise, in place, for draw ``index`` of ``total``."""
        ...

    @property
    def noise_size(self) -> int:
        """Length of a row of noise."""
        ...

    def sample(self, noise: Float[Tensor, "S m"]) -> Float[Tensor, "S D"]:
        """Draws for rows of noise."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint stores."""
        ...


def _check_pair(name: str, mean: Tensor, scale: Tensor) -> None:
    if mean.dim() != 1 or scale.shape != mean.shape:
        raise ValueError(f"{name} needs a mean (D,) and a scale (D,), got {tuple(mean.shape)} and {tuple(scale.shape)}")
    if not bool((scale >= 0).all()):
        raise ValueError(f"{name}: scales are standard deviations and must be 0 or positive")


@dataclass(frozen=True)
class DiagonalGaussian:
    """Independent ``N(mean_i, std_i^2)``.

    Args:
        mean: ``(D,)``.
        std: standard deviations ``(D,)``; 0 is a point.
    """

    mean: Float[Tensor, " D"]
    std: Float[Tensor, " D"]
    kind: ClassVar[str] = "diagonal_gaussian"
    support: ClassVar[None] = None

    def __post_init__(self) -> None:
        _check_pair("DiagonalGaussian", self.mean, self.std)

    @property
    def size(self) -> int:
        return len(self.mean)

    @property
    def variance(self) -> Tensor:
        return self.std.square()

    @property
    def noise_size(self) -> int:
        return self.size

    def noise(self, row: Tensor, generator: torch.Generator, index: int, total: int) -> None:
        row.normal_(generator=generator)

    def sample(self, noise: Tensor) -> Tensor:
        return torch.addcmul(self.mean, self.std, noise)

    def tensors(self) -> dict[str, Tensor]:
        return {"mean": self.mean, "std": self.std}


@dataclass(frozen=True)
class DiagonalLaplace:
    """Independent double exponentials with location ``mean_i`` and scale ``scale_i`` (standard deviation sqrt(2) scale)."""

    mean: Float[Tensor, " D"]
    scale: Float[Tensor, " D"]
    kind: ClassVar[str] = "diagonal_laplace"
    support: ClassVar[None] = None

    def __post_init__(self) -> None:
        _check_pair("DiagonalLaplace", self.mean, self.scale)

    @property
    def size(self) -> int:
        return len(self.mean)

    @property
    def variance(self) -> Tensor:
        return 2 * self.scale.square()

    @property
    def noise_size(self) -> int:
        return self.size

    def noise(self, row: Tensor, generator: torch.Generator, index: int, total: int) -> None:
        standard_laplace_(row, generator)

    def sample(self, noise: Tensor) -> Tensor:
        return torch.addcmul(self.mean, self.scale, noise)

    def tensors(self) -> dict[str, Tensor]:
        return {"mean": self.mean, "scale": self.scale}


def standard_laplace_(out: Tensor, generator: torch.Generator | None) -> Tensor:
    """Fill with double exponential noise of scale 1 (variance 2), by inversion."""
    out.uniform_(-0.5, 0.5, generator=generator)
    return out.copy_(-out.sign() * torch.log1p((-2 * out.abs()).clamp_min_(-1 + 1e-7)))


@dataclass(frozen=True)
class LowRankGaussian:
    """``N(mean, diag(std^2) + factor factor^T)``: one shared low-rank noise for the whole vector.

    Args:
        mean: ``(D,)``.
        std: standard deviations of the diagonal part ``(D,)``.
        factor: ``(D, k)``.
    """

    mean: Float[Tensor, " D"]
    std: Float[Tensor, " D"]
    factor: Float[Tensor, "D k"]
    kind: ClassVar[str] = "low_rank_gaussian"
    support: ClassVar[None] = None

    def __post_init__(self) -> None:
        _check_pair("LowRankGaussian", self.mean, self.std)
        if self.factor.dim() != 2 or len(self.factor) != len(self.mean):
            raise ValueError(f"factor must be ({len(self.mean)}, k), got {tuple(self.factor.shape)}")

    @property
    def size(self) -> int:
        return len(self.mean)

    @property
    def variance(self) -> Tensor:
        return self.std.square() + self.factor.square().sum(1)

    @property
    def noise_size(self) -> int:
        return self.size + self.factor.shape[1]

    def noise(self, row: Tensor, generator: torch.Generator, index: int, total: int) -> None:
        row.normal_(generator=generator)

    def sample(self, noise: Tensor) -> Tensor:
        diagonal, shared = noise[:, : self.size], noise[:, self.size :]
        return torch.addcmul(self.mean, self.std, diagonal) + shared @ self.factor.T

    def tensors(self) -> dict[str, Tensor]:
        return {"mean": self.mean, "std": self.std, "factor": self.factor}


@dataclass(frozen=True)
class StoredDraws:
    """The equal-weight distribution on ``M`` stored vectors: ensemble members, or draws of a sampler.

    Args:
        draws: ``(M, D)``.
    """

    draws: Float[Tensor, "M D"]
    kind: ClassVar[str] = "stored_draws"

    def __post_init__(self) -> None:
        if self.draws.dim() != 2 or len(self.draws) == 0:
            raise ValueError(f"StoredDraws needs at least one row (M, D), got shape {tuple(self.draws.shape)}")

    @property
    def size(self) -> int:
        return self.draws.shape[1]

    @property
    def support(self) -> int:
        return len(self.draws)

    @property
    def mean(self) -> Tensor:
        return self.draws.mean(0)

    @property
    def variance(self) -> Tensor:
        return self.draws.var(0, correction=0)

    @property
    def noise_size(self) -> int:
        return 1

    def noise(self, row: Tensor, generator: torch.Generator, index: int, total: int) -> None:
        row.fill_(_atom(len(self.draws), generator, index, total))

    def sample(self, noise: Tensor) -> Tensor:
        return self.draws[noise[:, 0].long()]

    def tensors(self) -> dict[str, Tensor]:
        return {"draws": self.draws}


def _atom(atoms: int, generator: torch.Generator, index: int, total: int) -> int:
    """Atom of draw ``index`` of ``total``: evenly spread, with a random rest, so that equal atoms count equally."""
    if total <= atoms:  # thin evenly
        return (index * atoms) // total
    whole = (total // atoms) * atoms
    if index < whole:
        return index % atoms
    return int(torch.randint(atoms, (1,), generator=generator, device=generator.device))


@dataclass(frozen=True)
class MixtureDistribution:
    """Equal-weight mixture of distributions over the same vector; draws go round the components."""

    components: tuple[Any, ...]
    kind: ClassVar[str] = "mixture"

    def __post_init__(self) -> None:
        sizes = {component.size for component in self.components}
        if len(sizes) != 1:
            raise ValueError(f"mixture components must lie over the same vector, got sizes {sorted(sizes)}")

    @property
    def size(self) -> int:
        return self.components[0].size

    @property
    def support(self) -> int | None:
        supports = [component.support for component in self.components]
        return None if any(s is None for s in supports) or len(set(supports)) != 1 else sum(supports)

    @property
    def mean(self) -> Tensor:
        return torch.stack([component.mean for component in self.components]).mean(0)

    @property
    def variance(self) -> Tensor:
        means = torch.stack([component.mean for component in self.components])
        return torch.stack([c.variance for c in self.components]).mean(0) + means.var(0, correction=0)

    @property
    def noise_size(self) -> int:
        return 1 + max(component.noise_size for component in self.components)

    def noise(self, row: Tensor, generator: torch.Generator, index: int, total: int) -> None:
        count = len(self.components)
        choice = _atom(count, generator, index, total) if total <= count else index % count
        row[0] = choice
        component = self.components[choice]
        within = -(-(total - choice) // count) if total > count else 1
        component.noise(row[1 : 1 + component.noise_size], generator, index // count if total > count else 0, within)

    def sample(self, noise: Tensor) -> Tensor:
        out = noise.new_empty(len(noise), self.size)
        for number, component in enumerate(self.components):
            rows = noise[:, 0] == number
            if bool(rows.any()):
                out[rows] = component.sample(noise[rows, 1 : 1 + component.noise_size]).to(out.dtype)
        return out

    def tensors(self) -> dict[str, Tensor]:
        return {
            f"{number}.{name}": tensor
            for number, component in enumerate(self.components)
            for name, tensor in component.tensors().items()
        }


@dataclass(frozen=True)
class DropoutMasks:
    """Fixed weights followed by dropout masks: entry ``i`` of the tail is 0 with probability ``rates_i``, else ``1 / (1 - rates_i)``.

    Args:
        weights: the point part ``(n,)``.
        rates: probability of dropping ``(m,)``; the vector is ``[weights | masks]``.
    """

    weights: Float[Tensor, " n"]
    rates: Float[Tensor, " m"]
    kind: ClassVar[str] = "dropout_masks"
    support: ClassVar[None] = None

    @property
    def size(self) -> int:
        return len(self.weights) + len(self.rates)

    @property
    def mean(self) -> Tensor:
        return torch.cat([self.weights, torch.ones_like(self.rates)])

    @property
    def variance(self) -> Tensor:
        return torch.cat([torch.zeros_like(self.weights), self.rates / (1 - self.rates)])

    @property
    def noise_size(self) -> int:
        return len(self.rates)

    def noise(self, row: Tensor, generator: torch.Generator, index: int, total: int) -> None:
        row.uniform_(generator=generator)

    def sample(self, noise: Tensor) -> Tensor:
        masks = (noise >= self.rates) / (1 - self.rates)
        return torch.cat([self.weights.expand(len(noise), -1), masks.to(self.weights.dtype)], 1)

    def tensors(self) -> dict[str, Tensor]:
        return {"weights": self.weights, "rates": self.rates}


_KINDS: dict[str, Any] = {
    kind.kind: kind for kind in (DiagonalGaussian, DiagonalLaplace, LowRankGaussian, StoredDraws, DropoutMasks)
}


def describe(distribution: Any) -> Any:
    """The kinds of a distribution and its components, for a checkpoint."""
    if isinstance(distribution, MixtureDistribution):
        return [describe(component) for component in distribution.components]
    return distribution.kind


def rebuild(kinds: Any, tensors: dict[str, Tensor]) -> Any:
    """The distribution that :func:`describe` and ``tensors()`` described."""
    if isinstance(kinds, list):
        parts = []
        for number, kind in enumerate(kinds):
            prefix = f"{number}."
            own = {name[len(prefix) :]: t for name, t in tensors.items() if name.startswith(prefix)}
            parts.append(rebuild(kind, own))
        return MixtureDistribution(tuple(parts))
    if kinds not in _KINDS:
        raise ValueError(f"unknown kind of distribution {kinds!r}; this file comes from another version")
    return _KINDS[kinds](**tensors)


def location_scale_entropy(log_scale: Tensor, kind: str) -> Tensor:
    """Elementwise entropy, in nats, of a Gaussian or Laplace with this log scale."""
    constant = 0.5 * math.log(2 * math.pi * math.e) if kind == DiagonalGaussian.kind else 1 + math.log(2)
    return log_scale + constant
