"""Draws of chains, what each step did, and files of both."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .. import checkpoint

__all__ = ["Samples", "Statistics"]

_STEM = "samples"
FEW = 10  # where half of the proposals are accepted, so many are all rejected once in a thousand times


@dataclass(frozen=True, eq=False)
class Statistics:
    """What each of ``S`` steps of ``C`` chains did: :class:`~.sampler.Info`, step by step.

    Args:
        acceptance: Metropolis probability (its mean over a trajectory for NUTS), 1 without rejection.
        divergent: an energy that was not finite or far off.
        energy_error: nats; nan where a kernel has none.
        gradients: gradient evaluations.
    """

    acceptance: Float[Tensor, "C S"]
    divergent: Bool[Tensor, "C S"]
    energy_error: Float[Tensor, "C S"]
    gradients: Int[Tensor, "C S"]

    @classmethod
    def empty(cls, chains: int, steps: int, device: torch.device) -> Statistics:
        """To be written into."""
        shape = (chains, steps)
        return cls(
            torch.zeros(shape, dtype=torch.float64, device=device),
            torch.zeros(shape, dtype=torch.bool, device=device),
            torch.zeros(shape, dtype=torch.float64, device=device),
            torch.zeros(shape, dtype=torch.long, device=device),
        )

    def between(self, first: int, last: int) -> Statistics:
        """Steps ``first`` to ``last``, which is left out; views."""
        return Statistics(*(getattr(self, f.name)[:, first:last] for f in fields(self)))

    def tensors(self, prefix: str = "") -> dict[str, Tensor]:
        """By name."""
        return {prefix + f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True, eq=False)
class Samples:
    """Draws of ``C`` chains.

    Args:
        draws: ``(C, N, d)``.
        log_density: of each draw, nats, ``(C, N)``.
        statistics: of the steps after warm-up, ``(C, N * thin)``: also of those that thinning leaves out.
        warm_up: of the steps of warm-up.
        facts: what warm-up adapted, by name, each ``(C, ...)``: ``step_size``, ``inverse_mass``, ...
        info: sampler, settings, seed, seconds; plain JSON.
    """

    draws: Float[Tensor, "C N d"]
    log_density: Float[Tensor, "C N"]
    statistics: Statistics
    warm_up: Statistics
    facts: dict[str, Tensor]
    info: dict[str, Any]

    @property
    def rows(self) -> Float[Tensor, "M d"]:
        """All draws, ``(N * C, d)``, step by step, so that every n-th row takes from all chains alike."""
        return self.draws.transpose(0, 1).flatten(0, 1)

    @property
    def acceptance(self) -> Float[Tensor, " C"]:
        """Mean acceptance of each chain after warm-up; nan without steps."""
        return self.statistics.acceptance.mean(1)

    @property
    def divergences(self) -> Int[Tensor, " C"]:
        """Divergent steps of each chain after warm-up."""
        return self.statistics.divergent.sum(1)

    @property
    def gradients(self) -> Int[Tensor, " C"]:
        """Gradient evaluations of each chain after warm-up; ``warm_up.gradients`` has those before."""
        return self.statistics.gradients.sum(1)

    @property
    def stuck(self) -> Bool[Tensor, " C"]:
        """Chains whose draws are one point; of fewer than 10 draws none is called so."""
        if self.draws.shape[1] < FEW:
            return torch.zeros(len(self.draws), dtype=torch.bool, device=self.draws.device)
        return (self.draws == self.draws[:, :1]).flatten(1).all(1)

    def __repr__(self) -> str:
        chains, draws, dimension = self.draws.shape
        return f"Samples(chains={chains}, draws={draws}, dimension={dimension})"

    def save(self, folder: str | Path) -> None:
        """Write ``samples.json`` and its tensors; :meth:`load` reads them."""
        tensors = {"draws": self.draws, "log_density": self.log_density}
        tensors |= self.statistics.tensors("statistics.") | self.warm_up.tensors("warm_up.")
        tensors |= {f"facts.{name}": tensor for name, tensor in self.facts.items()}
        checkpoint.write_pair(folder, _STEM, tensors, {"info": self.info})

    @classmethod
    def load(cls, folder: str | Path) -> Samples:
        """What :meth:`save` wrote.

        Raises:
            FileNotFoundError: nothing was saved there.
            ValueError: a damaged file.
        """
        tensors, content = checkpoint.read_pair(folder, _STEM)

        def part(prefix: str) -> dict[str, Tensor]:
            return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}

        try:
            return cls(
                tensors["draws"],
                tensors["log_density"],
                Statistics(**part("statistics.")),
                Statistics(**part("warm_up.")),
                part("facts."),
                content["info"],
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"{Path(folder) / _STEM}.json is damaged: it lacks {error}") from error
