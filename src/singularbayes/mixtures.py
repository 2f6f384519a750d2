"""Distributions that are made of parts: stored draws (atoms), and mixtures of other distributions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["MixtureDistribution", "StoredDraws"]


@dataclass(frozen=True, eq=False)
class StoredDraws:
    """The equal-weight distribution on ``M`` stored vectors: ensemble members, or draws of a sampler.

    Args:
        draws: ``(M, D)``.
    """

    draws: Float[Tensor, "M D"]
    kind: ClassVar[str] = "stored_draws"

    def __post_init__(self) -> None:
        if self.draws.dim() != 2 or len(self.draws) == 0:
            got = tuple(self.draws.shape)
            raise ValueError(f"StoredDraws needs at least one row (M, D), got shape {got}")

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
    """Atom of draw ``index`` of ``total``: counts differ by at most 1, so that equal atoms count equally."""
    if total <= atoms:  # thin evenly
        return (index * atoms) // total
    rest = total % atoms
    if index < total - rest:
        return index % atoms
    # the rest: spread evenly from a random atom, which depends on the seed alone
    again = torch.Generator(device=generator.device).manual_seed(generator.initial_seed())
    first = int(torch.randint(atoms, (1,), generator=again, device=again.device))
    return (first + (index - total + rest) * atoms // rest) % atoms


@dataclass(frozen=True, eq=False)
class MixtureDistribution:
    """Equal-weight mixture of distributions over the same vector; draws go round the components."""

    components: tuple[Any, ...]
    kind: ClassVar[str] = "mixture"

    def __post_init__(self) -> None:
        if not self.components:
            raise ValueError("MixtureDistribution needs at least one component, got none")
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
        # the component's own draws: its number among them, and how many it gives in all
        own, within = (index // count, -(-(total - choice) // count)) if total > count else (0, 1)
        component.noise(row[1 : 1 + component.noise_size], generator, own, within)

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
