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
        for phi, slopes, measured in self._derivatives():
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

    def newton(self) -> None:
        """Move the head's weights by a Newton step, as far as the objective falls."""
        precisions, gradient = self.precisions()
        step = torch.cholesky_solve(gradient.unsqueeze(-1), self._lower(precisions)[0]).squeeze(-1)
        start, before = self.head.weight.detach().clone(), self.objective()
        for halving in range(_HALVINGS):
            self._write(start.double() - 0.5**halving * step)
            if self.objective() <= before:
                return
        self._write(start)

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

    def _derivatives(self) -> Iterable[tuple[Tensor, Tensor, Tensor]]:
        """Features, and first and second derivatives of the NLL in each output of the head, over ``T``."""
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
                    slopes = torch.autograd.grad(nll, point, create_graph=True)[0]
                    curvatures = [self._curvature(slopes, point, k) for k in range(point.shape[1])]
                    yield (
                        self.head.phi(inputs).double(),  # rounded sums of products would not be definite
                        slopes.detach().double() / self.temperature,
                        torch.stack(curvatures, 1).double().clamp_min(0) / self.temperature,
                    )
        finally:
            handle.remove()

    def _curvature(self, slopes: Tensor, point: Tensor, output: int) -> Tensor:
        if not slopes.requires_grad:
            return torch.zeros_like(point[:, output])
        return torch.autograd.grad(slopes[:, output].sum(), point, retain_graph=True)[0][:, output]
