"""Distributions over the flat vector of a network, each with ``sample(noise)``: the noise is an input.

``noise`` is drawn outside (one row a draw), so a draw is a pure function of the distribution and its row,
whatever the block or batch size. ``size`` is the length ``D`` of the vector. Entries that are point
estimates, or statistics of a normalisation layer, have standard deviation 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from .gaussians import FullGaussian, KroneckerGaussian
from .mixtures import MixtureDistribution, StoredDraws

__all__ = [
    "DiagonalGaussian",
    "DiagonalLaplace",
    "DirectionGaussian",
    "Distribution",
    "DropoutMasks",
    "FullGaussian",
    "KroneckerGaussian",
    "LowRankGaussian",
    "MixtureDistribution",
    "StoredDraws",
    "positive",
]

_TINY = 1e-30


def positive(rho: Tensor) -> Tensor:
    """``softplus(rho)`` in float32 or better, never below 1e-30: finite for every finite ``rho``."""
    wide = rho if rho.dtype in (torch.float32, torch.float64) else rho.float()
    return F.softplus(wide).clamp_min_(_TINY)


@runtime_checkable
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
        raise ValueError(f"{name} needs a mean (D,) and a scale (D,), got shapes {tuple(mean.shape)} "
                         f"and {tuple(scale.shape)}")  # fmt: skip
    if not bool((scale >= 0).all()):
        raise ValueError(f"{name}: scales are standard deviations and must be 0 or positive")


@dataclass(frozen=True, eq=False)
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


@dataclass(frozen=True, eq=False)
class DiagonalLaplace:
    """Independent double exponentials.

    Args:
        mean: locations ``(D,)``.
        scale: scales ``(D,)``; the standard deviation is ``sqrt(2) scale``; 0 is a point.
    """

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
    """Fill with double exponential noise of scale 1 (variance 2), by inversion; finite in every precision."""
    uniform = (
        out if out.dtype in (torch.float32, torch.float64) else torch.empty_like(out, dtype=torch.float32)
    )
    uniform.uniform_(-0.5, 0.5, generator=generator)
    return out.copy_(-uniform.sign() * torch.log1p((-2 * uniform.abs()).clamp_min_(-1 + 1e-7)))


@dataclass(frozen=True, eq=False)
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
        # column after column: the last bits of a product depend on it, and files do not keep it
        if not self.factor.T.is_contiguous():
            object.__setattr__(self, "factor", self.factor.T.contiguous().T)

    @property
    def size(self) -> int:
        return len(self.mean)

    @property
    def variance(self) -> Tensor:
        low_rank = torch.linalg.vector_norm(self.factor, dim=1).square_()  # without a second (D, k)
        return low_rank.addcmul_(self.std, self.std)

    @property
    def noise_size(self) -> int:
        return self.size + self.factor.shape[1]

    def noise(self, row: Tensor, generator: torch.Generator, index: int, total: int) -> None:
        row.normal_(generator=generator)

    def sample(self, noise: Tensor) -> Tensor:
        diagonal, shared = noise[:, : self.size], noise[:, self.size :]
        drawn = torch.addcmul(self.mean, self.std, diagonal)
        return drawn.addmm_(shared.to(drawn.dtype), self.factor.T.to(drawn.dtype))

    def tensors(self) -> dict[str, Tensor]:
        return {"mean": self.mean, "std": self.std, "factor": self.factor}


@dataclass(frozen=True, eq=False)
class DirectionGaussian:
    """Independent blocks ``N(mean, std^2 (I - U U^T) + U diag(direction_std^2) U^T)``, ``U`` orthonormal.

    Args:
        mean: ``(D,)``; entries after the last block are points.
        sizes: whole numbers ``(L,)``, entries of each block.
        std: of each block, off its directions ``(L,)``.
        directions: ``(d, k)`` with ``d`` the sum of sizes: each block's ``U`` in its own rows, columns that a
            small block lacks are 0.
        direction_std: along each block's directions ``(L, k)``.
    """

    mean: Float[Tensor, " D"]
    sizes: Int[Tensor, " L"]
    std: Float[Tensor, " L"]
    directions: Float[Tensor, "d k"]
    direction_std: Float[Tensor, "L k"]
    kind: ClassVar[str] = "direction_gaussian"
    support: ClassVar[None] = None

    def __post_init__(self) -> None:
        blocks, k = len(self.sizes), self.directions.shape[-1]
        total = int(self.sizes.sum())
        if self.directions.shape != (total, k) or total > len(self.mean):
            raise ValueError(
                f"DirectionGaussian: blocks of {total} entries in all need directions ({total}, k) and a "
                f"mean as long or longer, got {tuple(self.directions.shape)} and {len(self.mean)}"
            )
        if self.std.shape != (blocks,) or self.direction_std.shape != (blocks, k):
            raise ValueError(
                f"DirectionGaussian: {blocks} blocks with {k} directions need std ({blocks},) and "
                f"direction_std ({blocks}, {k}), got {tuple(self.std.shape)} and "
                f"{tuple(self.direction_std.shape)}"
            )
        if not bool((self.std >= 0).all() and (self.direction_std >= 0).all()):
            raise ValueError("DirectionGaussian: scales are standard deviations and must be 0 or positive")

    @property
    def size(self) -> int:
        return len(self.mean)

    def _blocks(self) -> list[slice]:
        ends = self.sizes.cumsum(0).tolist()
        return [slice(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]

    @property
    def variance(self) -> Tensor:
        variance = torch.zeros_like(self.mean)
        for block, std, along in zip(self._blocks(), self.std, self.direction_std, strict=True):
            variance[block] = std**2 + self.directions[block].square() @ (along**2 - std**2)
        return variance.clamp_min_(0)

    @property
    def noise_size(self) -> int:
        return len(self.directions)

    def noise(self, row: Tensor, generator: torch.Generator, index: int, total: int) -> None:
        row.normal_(generator=generator)

    def sample(self, noise: Tensor) -> Tensor:
        wide = torch.promote_types(self.mean.dtype, noise.dtype)
        rows, noise = self.mean.to(wide).repeat(len(noise), 1), noise.to(wide)
        for block, std, along in zip(self._blocks(), self.std, self.direction_std, strict=True):
            own, directions = noise[:, block], self.directions[block].to(wide)
            rows[:, block] += std * own + ((own @ directions) * (along - std)) @ directions.T
        return rows

    def tensors(self) -> dict[str, Tensor]:
        return {
            "mean": self.mean,
            "sizes": self.sizes,
            "std": self.std,
            "directions": self.directions,
            "direction_std": self.direction_std,
        }


@dataclass(frozen=True, eq=False)
class DropoutMasks:
    """Fixed weights followed by dropout masks: a mask's entry is 0 with its rate, else ``1 / (1 - rate)``.

    Args:
        weights: the point part ``(n,)``.
        rates: probability of dropping ``(m,)``, in [0, 1]; the vector is ``[weights | masks]``. At 1 the mask
            is always 0, as in ``nn.Dropout``.
    """

    weights: Float[Tensor, " n"]
    rates: Float[Tensor, " m"]
    kind: ClassVar[str] = "dropout_masks"
    support: ClassVar[None] = None

    def __post_init__(self) -> None:
        if self.weights.dim() != 1 or self.rates.dim() != 1:
            raise ValueError(f"DropoutMasks needs weights (n,) and rates (m,), got shapes "
                             f"{tuple(self.weights.shape)} and {tuple(self.rates.shape)}")  # fmt: skip
        if not bool(((self.rates >= 0) & (self.rates <= 1)).all()):
            raise ValueError("DropoutMasks: rates are probabilities and must lie in [0, 1]")

    @property
    def size(self) -> int:
        return len(self.weights) + len(self.rates)

    @property
    def _kept(self) -> Tensor:
        """The mask's value where nothing is dropped; 0 at rate 1."""
        return torch.where(self.rates < 1, 1 / (1 - self.rates), 0)

    @property
    def mean(self) -> Tensor:
        return torch.cat([self.weights, (self.rates < 1).to(self.weights.dtype)])

    @property
    def variance(self) -> Tensor:
        return torch.cat([torch.zeros_like(self.weights), (self.rates * self._kept).to(self.weights.dtype)])

    @property
    def noise_size(self) -> int:
        return len(self.rates)

    def noise(self, row: Tensor, generator: torch.Generator, index: int, total: int) -> None:
        row.uniform_(generator=generator)

    def sample(self, noise: Tensor) -> Tensor:
        masks = (noise >= self.rates) * self._kept
        return torch.cat([self.weights.expand(len(noise), -1), masks.to(self.weights.dtype)], 1)

    def tensors(self) -> dict[str, Tensor]:
        return {"weights": self.weights, "rates": self.rates}


_KINDS: dict[str, Any] = {
    kind.kind: kind
    for kind in (
        DiagonalGaussian,
        DiagonalLaplace,
        LowRankGaussian,
        DirectionGaussian,
        FullGaussian,
        KroneckerGaussian,
        StoredDraws,
        DropoutMasks,
    )
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
