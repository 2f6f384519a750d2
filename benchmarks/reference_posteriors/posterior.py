"""A posterior with reference draws: its density on unconstrained space, and the database's parameters."""

import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .comparison import Expectations


def unpacked(path: Path) -> Any:
    """The JSON that is the only member of a zip file."""
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read(archive.namelist()[0]))


def tensor(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@dataclass(frozen=True, kw_only=True, eq=False)
class ReferencePosterior:
    """Density, transforms and start of one posterior of the database; all in float64.

    With ``x`` the model's own parameters, ``z`` the unconstrained ones that are sampled,

        x_i = exp(z_i) where positive, else z_i
        log p(z) = log p(x, data) + sum of z_i over the positive ones

    Args:
        name: in the database.
        parameters: names of the database's parameters, in the order of its draws; as many as are sampled.
        positive: which of the model's own parameters are.
        log_joint: ``(C, d)`` of ``x`` to ``(C,)``, nats, up to a constant.
        start: ``(chains, source)`` to a spread-out start ``(chains, d)`` on unconstrained space. It is made
            from the data and the prior, never from the reference.
        to_database: ``(C, d)`` of ``x`` to the database's parameters.
        from_database: its inverse.
    """

    name: str
    parameters: tuple[str, ...]
    positive: tuple[bool, ...]
    log_joint: Callable[[Tensor], Tensor]
    start: Callable[[int, torch.Generator], Tensor]
    to_database: Callable[[Tensor], Tensor] = field(default=lambda own: own)
    from_database: Callable[[Tensor], Tensor] = field(default=lambda database: database)

    @property
    def dimension(self) -> int:
        return len(self.positive)

    def constrained(self, free: Tensor) -> Tensor:
        positive = torch.tensor(self.positive)
        return torch.where(positive, free.masked_fill(~positive, 0).exp(), free)  # never exp of a huge real

    def unconstrained(self, own: Tensor) -> Tensor:
        positive = torch.tensor(self.positive)
        return torch.where(positive, own.masked_fill(~positive, 1).log(), own)

    def log_jacobian(self, free: Tensor) -> Tensor:
        return free[:, torch.tensor(self.positive)].sum(1)

    def log_density(self, free: Tensor) -> Tensor:
        """``(C, d)`` to ``(C,)``, nats, up to a constant."""
        return self.log_joint(self.constrained(free)) + self.log_jacobian(free)

    def values(self, free: Tensor) -> Tensor:
        """The database's parameters of unconstrained ones, ``(..., d)``."""
        flat = self.to_database(self.constrained(free.reshape(-1, self.dimension)))
        return flat.reshape(*free.shape[:-1], len(self.parameters))

    def free(self, values: Tensor) -> Tensor:
        """The inverse of ``values``."""
        flat = self.unconstrained(self.from_database(values.reshape(-1, len(self.parameters))))
        return flat.reshape(*values.shape[:-1], self.dimension)


def expectations(posterior: ReferencePosterior, folder: Path) -> Expectations:
    """The reference's means and mean squares with their standard errors; ``folder`` is posteriordb's."""
    found = {}
    for kind in ("mean_value", "mean_squared_value"):
        content = json.loads((folder / kind / f"{posterior.name}.json").read_text())
        if tuple(content["names"]) != posterior.parameters:
            raise ValueError(
                f"{kind} of {posterior.name} is of {content['names']}, not {posterior.parameters}"
            )
        found[kind] = np.array(content[kind], dtype=float), np.array(content["mcse_mean"], dtype=float)
    mean, square = found["mean_value"], found["mean_squared_value"]
    return Expectations(
        names=posterior.parameters,
        mean=mean[0],
        mean_error=mean[1],
        square=square[0],
        square_error=square[1],
    )


def reference_draws(posterior: ReferencePosterior, folder: Path) -> Tensor:
    """The reference draws of the database's parameters, ``(10, 1000, p)``."""
    chains = unpacked(folder / "draws" / f"{posterior.name}.json.zip")
    return tensor([[chain[name] for name in posterior.parameters] for chain in chains]).mT.contiguous()


def around_zero(dimension: int) -> Callable[[int, torch.Generator], Tensor]:
    """Stan's own start: uniform on (-2, 2) in each unconstrained parameter."""

    def start(chains: int, source: torch.Generator) -> Tensor:
        return 4 * torch.rand(chains, dimension, generator=source, dtype=torch.float64) - 2

    return start
