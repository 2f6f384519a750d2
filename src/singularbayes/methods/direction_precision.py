"""Direction-precision posterior: in each tensor a few directions with precisions of their own.

    q = prod_l Normal(m_l, s_l^2 (I - U_l U_l^T) + U_l diag(1 / lambda_l) U_l^T)

with fixed orthonormal directions ``U_l (d_l, k)``,

    minimise  E_q[mean batch NLL] + (T / N) KL(q || p),    p = Normal(0, p_l^2)

Trained are the means, one ``log s`` and ``k`` ``log lambda`` for each tensor. With ``tau = lambda^-1/2``,
``eps ~ N(0, I)``, ``a = U^T eps``, ``g`` the gradient of the mean NLL at the draw and ``b = U^T g``,

    w = m + s eps + U ((tau - s) a)
    d / d log s = s (g eps - b a) + c (d - k) (s^2 / p^2 - 1),    c = T / N
    d / d log lambda_i = -tau_i b_i a_i / 2 + c (1 - tau_i^2 / p^2) / 2
    2 KL = ((d - k) s^2 + sum tau^2 + |m|^2) / p^2 + d (log p^2 - 1) - 2 (d - k) log s + sum log lambda

O(d k) a step. The directions are random, or the leading eigenvectors of the tensor's Gauss-Newton block at
the start weights: start from trained weights then. Correlations between tensors are left out.

References:
    Mishkin et al. 2018, arXiv 1811.04504 (SLANG: a low-rank plus diagonal precision, learned online).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..curvature import GaussNewton, leading_directions
from ..data import as_source
from ..distributions import DirectionGaussian
from ..model import Model, check_model
from ..parameters import Slot
from ..posterior import Posterior
from ..priors import Normal
from ..probing import checked_device
from ..random import generator
from .diagonal import initial_scales
from .learner import Bound, adam, prepare, warn_if_collapsed
from .settings import check_whole
from .training import Training, fit_learner

__all__ = ["DirectionPrecision", "GGNDirections", "RandomDirections"]


@dataclass(frozen=True)
class RandomDirections:
    """``k`` random orthonormal directions in each tensor (all of a smaller one).

    Args:
        k: directions.
    """

    k: int = 8

    def __post_init__(self) -> None:
        check_whole(k=self.k)

    def find(self, model: Model, train: Any, device: torch.device, seed: int) -> list[Tensor]:
        """``U`` of each believed tensor, ``(d, min(k, d))``."""
        found = []
        for number, slot in enumerate(model.layout.of_kind("belief")):
            source = generator(seed, "directions", number, device=device)
            start = torch.randn(slot.size, min(self.k, slot.size), generator=source, device=device)
            found.append(torch.linalg.qr(start.to(model.dtype))[0])
        return found


@dataclass(frozen=True)
class GGNDirections:
    """The ``k`` leading eigenvectors of each tensor's Gauss-Newton block at the start weights.

    Args:
        k: directions.
        iterations: of subspace iteration, each ``4 k`` passes through the network for each tensor.
        rows: training rows that the block is summed over, the first ones of a shuffled pass.
    """

    k: int = 8
    iterations: int = 10
    rows: int = 1024

    def __post_init__(self) -> None:
        check_whole(k=self.k, iterations=self.iterations, rows=self.rows)

    def find(self, model: Model, train: Any, device: torch.device, seed: int) -> list[Tensor]:
        """``U`` of each believed tensor, ``(d, min(k, d))``."""
        source = as_source(train, model.dtype, model.takes_integers).to(device)
        size = min(self.rows, 256)
        batches = islice(source.epoch(size, seed, 0, shuffle=True), -(-self.rows // size))
        curvature = GaussNewton(model, batches, device)
        return [u for u, _ in leading_directions(curvature, self.k, self.iterations, seed)]


class Block(NamedTuple):
    """One believed tensor: where its numbers lie in the trained vector, its directions, its prior's std."""

    place: slice
    log_std: int
    log_precision: slice
    directions: Tensor
    prior_std: float


def _normal(prior: Any) -> Normal:
    if not isinstance(prior, Normal):
        raise ValueError(
            f"DirectionPrecision has the KL to a Normal prior alone, got {type(prior).__name__}; use "
            f"prior=sb.Normal(std), or MeanField, which takes any prior"
        )
    return prior


class DirectionLearner:
    """The trained vector is ``[means | point estimates | log s, log lambda of each tensor in turn]``."""

    def __init__(
        self,
        method: DirectionPrecision,
        directions: list[Tensor],
        bound: Bound,
        start: Tensor,
        gradient: Tensor,
    ) -> None:
        layout = bound.layout
        self.bound, self.gradient = bound, gradient
        self.beliefs, self.trained = layout.belief, layout.trained
        self.vector = torch.zeros_like(gradient)
        self.vector[: self.trained] = start[: self.trained]
        self.noise, self.weights = torch.empty_like(self.vector[: self.beliefs]), bound.w[: self.beliefs]
        self.blocks = list(self._blocks(layout.of_kind("belief"), directions))
        scales = initial_scales(bound.model, start, method.initial_std)
        for block in self.blocks:
            log_std = scales[block.place.start].log()
            self.vector[block.log_std] = log_std
            self.vector[block.log_precision] = -2 * log_std
        self.along = [torch.empty(0)] * len(self.blocks)  # a = U^T eps of the present draw

    def _blocks(self, slots: tuple[Slot, ...], directions: list[Tensor]) -> Iterator[Block]:
        at = self.trained
        for slot, u in zip(slots, directions, strict=True):
            prior = self.bound.model.prior_of(slot)
            end = at + 1 + u.shape[1]
            yield Block(slice(slot.start, slot.stop), at, slice(at + 1, end), u, _normal(prior).std)
            at = end

    def _scales(self, block: Block) -> tuple[Tensor, Tensor]:
        """``s`` and ``tau``."""
        return self.vector[block.log_std].exp(), (-0.5 * self.vector[block.log_precision]).exp()

    @torch.no_grad()
    def draw(self, noise: torch.Generator) -> None:
        self.noise.normal_(generator=noise)
        self.bound.w.copy_(self.vector[: self.trained])
        for number, block in enumerate(self.blocks):
            eps, w = self.noise[block.place], self.weights[block.place]
            std, tau = self._scales(block)
            self.along[number] = block.directions.T @ eps
            w.addcmul_(std, eps).addmv_(block.directions, (tau - std) * self.along[number])

    @torch.no_grad()
    def finish(self, weight: float, progress: float) -> None:
        for block, a in zip(self.blocks, self.along, strict=True):
            g, eps = self.gradient[block.place], self.noise[block.place]
            std, tau = self._scales(block)
            b = block.directions.T @ g
            free, precision = len(g) - len(a), block.prior_std**-2
            by_std = std * (g @ eps - b @ a) + weight * free * (std**2 * precision - 1)
            self.gradient[block.log_std] = by_std if free else 0.0
            self.gradient[block.log_precision] = -0.5 * tau * b * a + 0.5 * weight * (1 - tau**2 * precision)
            g.add_(self.vector[block.place], alpha=weight * precision)

    def optimizer(self, learning_rate: float) -> torch.optim.Optimizer:
        return adam(self.vector, learning_rate)

    @torch.no_grad()
    def regulariser(self) -> float:
        """The exact KL, in nats, in float64."""
        total = 0.0
        for block in self.blocks:
            mean, log_std = self.vector[block.place].double(), self.vector[block.log_std].double()
            log_precision = self.vector[block.log_precision].double()
            d, k = len(mean), len(log_precision)
            trace = (d - k) * (2 * log_std).exp() + (-log_precision).exp().sum()
            log_det = 2 * (d - k) * log_std - log_precision.sum()
            quadratic = (trace + mean.square().sum()) * block.prior_std**-2
            total += 0.5 * (quadratic - d + 2 * d * math.log(block.prior_std) - log_det).item()
        return total

    def facts(self) -> dict[str, Any]:
        """How many numbers the fixed directions take: stored, not trained."""
        return {"direction_entries": sum(block.directions.numel() for block in self.blocks)}

    @torch.no_grad()
    def distribution(self) -> DirectionGaussian:
        row = self.bound.row(self.vector[: self.trained].clone())
        k = max(block.directions.shape[1] for block in self.blocks)
        directions = row.new_zeros(self.beliefs, k)
        along = row.new_zeros(len(self.blocks), k)
        std = row.new_zeros(len(self.blocks))
        for number, block in enumerate(self.blocks):
            own = block.directions.shape[1]
            directions[block.place, :own] = block.directions
            std[number], along[number, :own] = self._scales(block)
        sizes = torch.tensor([b.place.stop - b.place.start for b in self.blocks], device=row.device)
        return DirectionGaussian(row, sizes, std, directions, along)


@dataclass(frozen=True)
class BuildDirections:
    """Makes a :class:`DirectionLearner`."""

    method: DirectionPrecision
    directions: list[Tensor]

    def size(self, model: Model) -> int:
        return model.layout.trained + sum(1 + u.shape[1] for u in self.directions)

    def __call__(self, bound: Bound, start: Tensor, gradient: Tensor) -> DirectionLearner:
        return DirectionLearner(self.method, self.directions, bound, start, gradient)


@dataclass(frozen=True, kw_only=True)
class DirectionPrecision(Training):
    """VI with one width for each tensor and learned precisions along ``k`` directions in it.

    On any network or its factors. It starts at the weights of ``model.network`` and needs ``sb.Normal``
    priors (``PerParameter`` of them too). Other fields: see ``Training``.

    Args:
        directions: ``RandomDirections(k)``, or ``GGNDirections(k)``, which wants trained weights.
        initial_std: start standard deviation in units of each tensor's own root mean square.
        validation_draws: posterior draws of the validation NLL.

    Example:
        >>> import singularbayes as sb
        >>> x = torch.linspace(-1, 1, 32).unsqueeze(1)
        >>> net = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        >>> method = DirectionPrecision(epochs=2, directions=RandomDirections(4))
        >>> method.fit(sb.Model(net, sb.Gaussian(noise=0.1)), (x, x)).distribution.directions.shape
        torch.Size([25, 4])
    """

    directions: RandomDirections | GGNDirections = field(default_factory=RandomDirections)
    initial_std: float = 0.1
    validation_draws: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.directions, RandomDirections | GGNDirections):
            raise TypeError(
                f"directions must be RandomDirections(k) or GGNDirections(k), got {self.directions!r}"
            )
        if not (self.initial_std > 0 and math.isfinite(self.initial_std)):
            raise ValueError(f"initial_std must be positive and finite, got {self.initial_std}")
        check_whole(validation_draws=self.validation_draws)

    def fit(
        self,
        model: Model,
        train: Any,
        validation: Any = None,
        *,
        seed: int = 0,
        checkpoint: str | Path | None = None,
        progress: bool | None = None,
    ) -> Posterior:
        """Find the directions, then fit. Arguments, returns and errors: see ``MAP.fit``.

        Raises:
            ValueError: also for a prior that is not ``Normal``.
        """
        check_model(model)
        for _, prior in model.prior_blocks:
            _normal(prior)  # refused before any work
        device = checked_device(self.device) if self.device else model.device
        prepare(model, self.patience, train, validation, device)  # its errors come before the search
        began = time.perf_counter()
        directions = self.directions.find(model, train, device, seed)
        seconds = time.perf_counter() - began
        build = BuildDirections(self, directions)
        posterior = fit_learner(
            model,
            self,
            build,
            train,
            validation,
            seed=seed,
            checkpoint=checkpoint,
            progress=progress,
            validation_draws=self.validation_draws,
            facts={"method": type(self).__name__, "numbers": build.size(model)},
        )
        posterior.info["seconds"] += seconds
        warn_if_collapsed(posterior, "raise temperature or initial_std")
        return posterior
