"""The Gaussian posterior of a linear head on fixed features: exact for Gaussian labels, else Laplace's.

    Lambda_k = s I + (1 / T) sum_i  h_ik phi_i phi_i^T,     h_ik = - d^2 log p(y_i | f_i) / d f_ik^2

For a Gaussian likelihood ``h = 1 / noise^2`` for all outputs; for classes ``p_k (1 - p_k)``, a matrix for
each class (what lies between classes is left out). Where another likelihood bends the other way (a scale that
is learned with the mean) ``h`` is 0. The mean is the mode: a Newton step with these matrices,
halved while it does not lower the objective, is exact for Gaussian labels.

References:
    Liu et al. 2020, arXiv 2006.10108, eq. 9 and algorithm 1. Bishop 2006, eq. 3.53 and 3.54.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..functions import call
from ..likelihoods import Likelihood
from ..nn.random_feature_head import RandomFeatureHead
from .cholesky import cholesky
from .expansion import finite

__all__ = ["HeadPosterior"]

_HALVINGS = 5
_SETTLED, _NEAR = 1e-6, 1e-4  # slopes in units in which the curvature is 1: half a square is nats to the mode
_ROUND = 25


@dataclass(frozen=True)
class HeadPosterior:
    """What the posterior of a head's weights follows from.

    Args:
        network: in eval mode; it holds the head, whose weight is written.
        head: its outputs are followed by operations without uncertainty, if by any.
        likelihood: of the labels.
        numbers: its learned numbers.
        batches: gives ``(x, y)`` of the whole data, at each call again.
        precision: ``s``, of the weights' Gaussian prior around 0.
        temperature: ``T``; the data count ``1 / T``.
    """

    network: nn.Module
    head: RandomFeatureHead
    likelihood: Likelihood
    numbers: dict[str, Tensor]
    batches: Callable[[], Iterable[tuple[Any, Tensor]]]
    precision: float
    temperature: float = 1.0

    def precisions(self, *, weighted: bool = True) -> tuple[Float[Tensor, "c m m"], Float[Tensor, "K m"]]:
        """``Lambda`` of each output (one, ``c = 1``, where all are equal), and the objective's gradient.

        In float64. One pass over the data.

        Args:
            weighted: by the second derivatives; else ``h`` is 1.
        """
        weight = self.head.weight.detach().double()
        outputs, features = weight.shape
        total = weight.new_zeros(1, features, features)
        gradient = self.precision * weight
        for phi, _, slopes, measured in self._derivatives():
            curvatures = measured if weighted else torch.full_like(measured, 1 / self.temperature)
            if len(total) == 1 and bool((curvatures != curvatures[:, :1]).any()):
                total = total.repeat(outputs, 1, 1)
            for number in range(len(total)):
                total[number] += phi.T @ (curvatures[:, number : number + 1] * phi)
            gradient += slopes.T @ phi
        diagonal = self.precision * torch.eye(features, dtype=total.dtype, device=total.device)
        return total + diagonal, gradient

    @torch.no_grad()
    def objective(self) -> float:
        """``sum NLL / T + s / 2 |beta|^2`` at the head's present weights, in nats."""
        total = 0.5 * self.precision * self.head.weight.double().square().sum().item()
        for x, y in self.batches():
            outputs = call(self.network, x)
            labels = self.likelihood.labels(outputs.shape, y)
            nll = -self.likelihood.log_prob(outputs, labels, self.numbers)
            total += nll.double().sum().item() / self.temperature
        return total

    def to_mode(self, steps: int) -> bool:
        """Newton steps, each followed by L-BFGS in units in which ``Lambda`` is 1; whether it is at the mode.

        The blocks of ``Lambda`` leave out what lies between classes, so that Newton steps alone come close
        slowly.

        Args:
            steps: of L-BFGS, at most; rounds of 25.
        """
        for done in range(0, steps, _ROUND):
            lower = self.newton()
            if self._descend(min(_ROUND, steps - done), lower) < _NEAR:
                return True
        return False

    def _descend(self, steps: int, lower: Tensor) -> float:
        """The largest slope that is left; Gaussian labels, whose ``Lambda`` does not change, need no step."""
        start = self.head.weight.detach().double().clone()
        point = torch.zeros_like(start)

        def closure() -> float:
            shift = torch.linalg.solve_triangular(lower.mT, point.unsqueeze(-1), upper=True).squeeze(-1)
            self._write(start + shift)
            value, slope = self._objective_and_slope()
            point.grad = torch.linalg.solve_triangular(lower, slope.unsqueeze(-1), upper=False).squeeze(-1)
            return value

        search = torch.optim.LBFGS(
            [point],
            max_iter=steps,
            tolerance_grad=_SETTLED,
            tolerance_change=0,
            line_search_fn="strong_wolfe",
        )
        search.step(closure)
        closure()  # where it ended, which need not be where it looked last
        assert point.grad is not None  # noqa: S101 - closure() wrote it
        return point.grad.abs().max().item()

    def _objective_and_slope(self) -> tuple[float, Tensor]:
        weight = self.head.weight.detach().double()
        value, gradient = 0.5 * self.precision * weight.square().sum().item(), self.precision * weight
        for phi, nll, slopes, _ in self._derivatives(curved=False):
            value += nll
            gradient = gradient + slopes.T @ phi
        return value, gradient

    def log_evidence(self) -> float:
        """``log p(D | kernel)`` by Laplace's formula at the head's present weights, in nats.

            ll / T - s/2 |beta|^2 + 1/2 sum_k (m log s - log det Lambda_k)

        Exact for Gaussian labels at the mode; for classes without what lies between them. At another
        temperature than 1 it is the tempered evidence, which is no density of the labels.

        References:
            MacKay 1992, "Bayesian interpolation", eq. 4.9. Rasmussen and Williams 2006, eq. 3.32.
        """
        lower = self._lower(self.precisions()[0])[0]
        outputs, features = self.head.weight.shape
        determinants = 2 * lower.diagonal(dim1=1, dim2=2).log().sum(1)  # one for all outputs, or each its own
        bent = determinants.sum().item() * (outputs if len(lower) == 1 else 1)
        return 0.5 * (outputs * features * math.log(self.precision) - bent) - self.objective()

    def newton(self) -> Float[Tensor, "c m m"]:
        """Move the head's weights by a Newton step, as far as the objective falls.

        Returns:
            Cholesky factors of ``Lambda`` where the step began.
        """
        precisions, gradient = self.precisions()
        lower = self._lower(precisions)[0]
        step = torch.cholesky_solve(gradient.unsqueeze(-1), lower).squeeze(-1)
        start, before = self.head.weight.detach().clone(), self.objective()
        for halving in range(_HALVINGS):
            self._write(start.double() - 0.5**halving * step)
            if self.objective() <= before:
                return lower
        self._write(start)
        return lower

    def roots(self, *, weighted: bool = True) -> tuple[Float[Tensor, "c m m"], float]:
        """``R`` with ``R R^T = Lambda^-1`` for each output, or one for all; the jitter that ``Lambda`` took.

        One pass over the data; ``weighted``: see :meth:`precisions`.
        """
        lower, jitter = self._lower(self.precisions(weighted=weighted)[0])
        unit = torch.eye(lower.shape[-1], dtype=lower.dtype, device=lower.device).expand_as(lower)
        return torch.linalg.solve_triangular(lower, unit, upper=False).mT, jitter

    @staticmethod
    def _lower(precisions: Tensor) -> tuple[Tensor, float]:
        """Cholesky factors, and the largest jitter among them."""
        found = [cholesky(finite(precision)) for precision in precisions]
        return torch.stack([lower for lower, _ in found]), max(jitter for _, jitter in found)

    @torch.no_grad()
    def _write(self, weight: Tensor) -> None:
        self.head.weight.copy_(weight)

    def _derivatives(self, *, curved: bool = True) -> Iterable[tuple[Tensor, float, Tensor, Tensor]]:
        """Features, the NLL, its first and second derivatives in each output of the head, over ``T``.

        Second derivatives are 0 where ``curved`` is false.
        """
        seen: list[tuple[Tensor, Tensor]] = []

        def catch(_head: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            point = output.detach().requires_grad_()
            seen.append((inputs[0].detach(), point))
            return point

        handle = self.head.register_forward_hook(catch)
        try:
            with torch.enable_grad():
                for x, y in self.batches():
                    seen.clear()
                    outputs = call(self.network, x)
                    labels = self.likelihood.labels(outputs.shape, y)
                    ((inputs, point),) = seen
                    nll = -self.likelihood.log_prob(outputs, labels, self.numbers).sum()
                    slopes = torch.autograd.grad(nll, point, create_graph=curved)[0]
                    curvatures = [self._curvature(slopes, point, k) for k in range(point.shape[1])]
                    yield (
                        self.head.phi(inputs).double(),  # rounded sums of products would not be definite
                        nll.item() / self.temperature,
                        slopes.detach().double() / self.temperature,
                        torch.stack(curvatures, 1).double().clamp_min(0) / self.temperature,
                    )
        finally:
            handle.remove()

    def _curvature(self, slopes: Tensor, point: Tensor, output: int) -> Tensor:
        if not slopes.requires_grad:
            return torch.zeros_like(point[:, output])
        return torch.autograd.grad(slopes[:, output].sum(), point, retain_graph=True)[0][:, output]
