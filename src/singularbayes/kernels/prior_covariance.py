"""The covariance of a network's outputs under the prior of its weights, by Monte Carlo.

    K_k(x, z) = E_{w ~ p} f_k(x; w) f_k(z; w)  ~  1/S sum_s f_k(x; w_s) f_k(z; w_s)

For a wide network whose priors' variances go as ``1 / fan_in`` it is close to the kernel of the Gaussian
process that the infinitely wide one is (NNGP). Of the network as it is it is its own, width and all; that its
functions are Gaussian is another matter.

References:
    Neal 1996, "Bayesian learning for neural networks", chapter 2. Lee et al. 2018, arXiv 1711.00165. Novak et
    al. 2019, arXiv 1810.05148, section 4 (Monte Carlo).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..data import as_inputs, batch_size_of, take, to_device
from ..functions import Way, evaluate, way_for
from ..likelihoods import Gaussian
from ..model import BlockPrior, Model
from ..parameters import Layout
from ..priors import PerParameter
from ..random import generator
from ..stacked import Workspace

__all__ = ["PriorCovariance", "nngp"]

_DRAWS, _ROWS = 16, 256  # weight vectors and inputs at a time


@dataclass(frozen=True, eq=False)
class PriorCovariance:
    """An estimated kernel.

    Args:
        kernel: ``(K, B, Z)``, one matrix for each output, in float64.
        standard_error: of each entry, likewise.
        draws: how many.
    """

    kernel: Float[Tensor, "K B Z"]
    standard_error: Float[Tensor, "K B Z"]
    draws: int

    def __repr__(self) -> str:
        size = " x ".join(map(str, self.kernel.shape))
        worst = self.standard_error.max().item()
        return f"PriorCovariance({size}, {self.draws} draws, standard errors up to {worst:.2g})"


@torch.no_grad()
def nngp(
    network: nn.Module,
    prior: BlockPrior | PerParameter,
    x: Any,
    z: Any = None,
    *,
    draws: int = 1000,
    seed: int = 0,
) -> PriorCovariance:
    """Second moments of the outputs under the prior, each output with itself.

    The same seed gives the same functions for any inputs: matrices of parts of the inputs fit together, and
    are positive semidefinite (of rank ``draws`` at most). The prior's mean function is 0 where that of the
    last layer is; with frozen parts these are second moments about 0, not about the mean.

    Args:
        network: its parameters that require a gradient are drawn, in eval mode; frozen ones and those of
            normalisation layers stay; untouched.
        prior: of the weights; for a limit of wide layers scale it by layer: ``PerParameter({"0.weight":
            Normal((2 / fan_in) ** 0.5), ...})``.
        x: inputs ``(B, ...)``.
        z: other inputs ``(Z, ...)``; ``None`` is ``x``.
        draws: functions; the error falls as ``1 / sqrt(draws)``.
        seed: of the draws; the global random state is untouched.

    Raises:
        ValueError: fewer than 2 draws.

    Example:
        >>> import singularbayes as sb
        >>> estimate = nngp(nn.Linear(1, 1), sb.Normal(1.0), torch.tensor([[2.0]]), draws=4000)
        >>> (estimate.kernel - 5).abs() < 4 * estimate.standard_error  # x^2 + 1
        tensor([[[True]]])
    """
    if draws < 2:
        raise ValueError(f"nngp needs at least 2 draws for a standard error, got {draws}")
    model = Model(network, Gaussian(noise=1.0), prior=prior)
    own = model.copy_network().eval().requires_grad_(False)
    inputs = [_inputs(model, part) for part in ((x,) if z is None else (x, z))]
    way, workspace = way_for(own), Workspace()
    start = model.layout.flatten(own)
    source = generator(seed, "prior", device=model.device)
    total = squares = torch.zeros((), dtype=torch.float64, device=model.device)
    for first in range(0, draws, _DRAWS):
        rows = _prior_rows(model, start, min(_DRAWS, draws - first), source)
        values = [_outputs(own, model.layout, rows, part, way, workspace) for part in inputs]
        left, right = values[0], values[-1]
        total = total + torch.einsum("sbk,szk->kbz", left, right)
        squares = squares + torch.einsum("sbk,szk->kbz", left.square(), right.square())
    kernel = total / draws
    variance = (squares / draws - kernel.square()).clamp_min(0) / (draws - 1)
    return PriorCovariance(kernel, variance.sqrt(), draws)


def _inputs(model: Model, x: Any) -> Any:
    return to_device(as_inputs(x, model.dtype, model.takes_integers), model.device)


def _outputs(
    network: nn.Module, layout: Layout, rows: Tensor, x: Any, way: Way, workspace: Workspace
) -> Float[Tensor, "S B K"]:
    parts = []
    for start in range(0, batch_size_of(x), _ROWS):
        outputs = evaluate(network, layout, rows, take(x, slice(start, start + _ROWS)), way, workspace)
        parts.append(outputs.reshape(*outputs.shape[:2], -1).double())
    return torch.cat(parts, 1)


def _prior_rows(model: Model, start: Tensor, count: int, source: torch.Generator) -> Float[Tensor, "S D"]:
    """Rows whose belief is drawn from the prior, draw by draw; all else is as it starts."""
    rows = start.repeat(count, 1)
    for row in rows:
        noise = torch.randn(model.layout.belief, generator=source, dtype=row.dtype, device=row.device)
        choice = torch.rand(model.layout.belief, generator=source, dtype=row.dtype, device=row.device)
        for block, prior in model.prior_blocks:
            row[block] = prior.sample(noise[block], choice[block])
    return rows
