"""Elliptical slice sampling: exact draws under a standard normal prior, without a step size.

    nu ~ N(0, I),    log y = log L(z) + log u,    u ~ U(0, 1)
    z' = z cos a + nu sin a,    a ~ U(0, 2 pi), the bracket [a - 2 pi, a]
    until log L(z') >= log y: shrink the bracket to a on its side of 0, draw a anew in it

Each step leaves ``L(z)^(1/T) N(z; 0, I)`` invariant. The bracket always holds 0, the present point, which is
on the slice: a bracket that has closed on it is the end of a step too.

References:
    Murray, Adams and MacKay 2010, arXiv 1001.0175, figure 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..distributions import StoredDraws
from ..random import generator
from .plane import Problem
from .settings import check_whole

__all__ = ["EllipticalSlice", "elliptical_slice"]

LogLikelihood = Callable[[Tensor], Tensor]

# Radians; a smaller step is none in float32. Rounding may put the present point itself just below the slice:
# a likelihood may depend a little on the rows that are computed beside it.
_NARROWEST = 1e-8


def elliptical_slice(
    log_likelihood: LogLikelihood,
    z: Float[Tensor, "C k"],
    level: Float[Tensor, " C"],
    source: torch.Generator,
) -> tuple[Float[Tensor, "C k"], Float[Tensor, " C"], int]:
    """One step of ``C`` independent chains.

    Args:
        log_likelihood: of rows ``(S, k)``, without the prior, ``(S,)``; nan counts as no likelihood.
        z: where the chains are.
        level: the log likelihood there, finite.
        source: of all randomness.

    Returns:
        Where they are now, the log likelihood there, and the number of points that were looked at.
    """

    def uniform(n: int) -> Tensor:
        return torch.rand(n, generator=source, dtype=z.dtype, device=z.device)

    around = torch.randn(z.shape, generator=source, dtype=z.dtype, device=z.device)
    threshold = level + torch.log(1 - uniform(len(z)))  # of (0, 1]: never minus infinity
    angle = 2 * math.pi * uniform(len(z))
    low, high = angle - 2 * math.pi, angle.clone()
    z, level, seen = z.clone(), level.clone(), 0
    start, active = z.clone(), torch.arange(len(z), device=z.device)
    while len(active):
        a = angle[active].unsqueeze(1)
        proposed = start[active] * torch.cos(a) + around[active] * torch.sin(a)
        values = torch.nan_to_num(log_likelihood(proposed), nan=-math.inf, posinf=-math.inf)
        seen += len(active)
        taken = values >= threshold[active]
        z[active[taken]], level[active[taken]] = proposed[taken], values[taken]
        active = active[~taken]
        a = angle[active]
        low[active] = torch.where(a < 0, a, low[active])
        high[active] = torch.where(a < 0, high[active], a)
        active = active[high[active] - low[active] > _NARROWEST]  # the others stay
        angle[active] = low[active] + (high[active] - low[active]) * uniform(len(active))
    return z, level, seen


@dataclass(frozen=True, kw_only=True)
class EllipticalSlice:
    """Inference in a subspace by elliptical slice sampling on all training data.

    Each step looks at some points (about 2 to 10, more as the likelihood narrows), each a pass over the
    training data; with normalisation layers that have running statistics two. ``info["evaluations"]`` counts
    them.

    Args:
        draws: stored draws, of all chains together.
        chains: that run side by side from the centre; ``draws`` must be a multiple of it.
        burn_in: steps of each chain that are left out first.
        thin: steps of each chain between stored draws.
        temperature: ``T`` of the likelihood. A subspace has far fewer dimensions than there are data, so its
            posterior at 1 is often next to a point; the authors choose ``T`` on validation data, and used
            5,000 to 10,000 for 50,000 images of CIFAR.
    """

    draws: int = 64
    chains: int = 4
    burn_in: int = 20
    thin: int = 1
    temperature: float = 1.0

    def __post_init__(self) -> None:
        check_whole(draws=self.draws, chains=self.chains, burn_in=self.burn_in + 1, thin=self.thin)
        if self.draws % self.chains:
            raise ValueError(
                f"draws must be a multiple of chains, got {self.draws} and {self.chains}; the nearest above "
                f"is {-(-self.draws // self.chains) * self.chains}"
            )
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise ValueError(f"temperature must be positive and finite, got {self.temperature!r}")

    def sample(
        self, log_likelihood: LogLikelihood, start: Float[Tensor, "C k"], seed: int
    ) -> tuple[Float[Tensor, "C n k"], int]:
        """Draws of ``L(z)^(1/T) N(z; 0, I)``.

        Args:
            log_likelihood: of rows ``(S, k)``, not tempered.
            start: where each chain starts.
            seed: of all randomness.

        Returns:
            Draws of each chain, and the number of evaluations.

        Raises:
            ValueError: a log likelihood at the start that is not finite.
        """

        def tempered(z: Tensor) -> Tensor:
            return log_likelihood(z) / self.temperature

        source = generator(seed, "elliptical slice", device=start.device)
        z, level, seen = start, tempered(start), len(start)
        if not bool(torch.isfinite(level).all()):
            raise ValueError(
                f"the log likelihood at the start of chain {int((~torch.isfinite(level)).nonzero()[0])} is "
                f"{level[~torch.isfinite(level)][0].item()}; the centre of the subspace must predict: check "
                f"the run that it comes from, and lower its learning rate"
            )
        kept = []
        for step in range(self.burn_in + self.thin * (self.draws // self.chains)):
            z, level, points = elliptical_slice(tempered, z, level, source)
            seen += points
            if step >= self.burn_in and (step - self.burn_in + 1) % self.thin == 0:
                kept.append(z)
        return torch.stack(kept, 1), seen

    def infer(self, problem: Problem) -> tuple[StoredDraws, dict[str, Any]]:
        """See ``Inference``."""
        plane = problem.plane
        start = torch.zeros(self.chains, plane.dimension, dtype=torch.float64, device=plane.center.device)
        z, seen = self.sample(problem.log_likelihood, start, problem.seed)
        by_step = z.transpose(0, 1).flatten(0, 1)  # so that thinning takes from all chains
        rows = problem.data.settled(plane.rows(by_step))
        moments = {"z_mean": z.mean((0, 1)).tolist(), "z_std": z.flatten(0, 1).std(0, correction=0).tolist()}
        numbers = len(rows) * problem.model.layout.trained
        return StoredDraws(rows), {"evaluations": seen, "numbers": numbers, **moments}
