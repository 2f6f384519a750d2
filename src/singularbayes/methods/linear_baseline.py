"""A linear model under the likelihood of a network's model: what every chain must beat.

    f(x) = W x + b,    maximum likelihood, by L-BFGS on all data in float64

Least squares for ``Gaussian``, logistic regression for ``Categorical`` and ``Bernoulli``; numbers that the
likelihood learns (a noise level) are the linear model's own. Where inputs are no numbers (token ids, several
tensors) it is a constant.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..calibration import uncalibrated
from ..data import as_source, batch_size_of, gather, take
from ..model import Model

__all__ = ["LinearBaseline", "left_out_log_density"]

_ROWS = 20_000  # of the training data; evenly spaced where there are more
_STEPS = 200  # of L-BFGS; classes that a plane separates would have no end


class LinearBaseline:
    """The linear model of greatest likelihood.

    Args:
        model: its likelihood and the shape of its outputs count.
        train: training data in any form.

    Example:
        >>> import singularbayes as sb
        >>> x = torch.linspace(-1, 1, 20)[:, None]
        >>> model = sb.Model(torch.nn.Linear(1, 1), sb.Gaussian(noise=1.0))
        >>> round(LinearBaseline(model, (x, 3 * x + 1)).log_density((x, 3 * x + 1)), 4)  # log N(0; 0, 1)
        -0.9189
    """

    def __init__(self, model: Model, train: Any) -> None:
        self.model = model
        self.likelihood = uncalibrated(model.likelihood)
        with torch.inference_mode(False):  # a tensor that is made in it never has a gradient
            x, y = self._read(train)
            count = batch_size_of(x)
            if count > _ROWS:
                chosen = torch.linspace(0, count - 1, _ROWS).round().long()
                x, y = x[chosen], y[chosen]
            self.center = x.mean(0)
            spread = (x - self.center).square().mean(0).sqrt()
            constant = spread <= 1e-9 * (1 + self.center.abs())
            self.scale = torch.where(constant, torch.inf, spread)  # its slope is 0
            with torch.enable_grad():
                self._fit(x, y)

    @torch.no_grad()
    def log_density(self, data: Any) -> float:
        """Mean over rows of ``log p(y | x)``, in nats."""
        x, y = self._read(data)
        return self._terms(x, y, self.parameters).mean().item()

    def _read(self, data: Any) -> tuple[Float[Tensor, "B d"], Tensor]:
        """Inputs as rows of numbers in float64, none where they are no numbers."""
        held = gather(as_source(data, self.model.dtype, self.model.takes_integers))
        rows = batch_size_of(held.x)
        numbers = isinstance(held.x, Tensor) and held.x.is_floating_point()
        x = held.x.reshape(rows, -1).double() if numbers else torch.zeros(rows, 0, dtype=torch.float64)
        probe = self.model.copy_network().cpu().eval()  # where the linear model is
        with torch.no_grad():
            self.event = tuple(self.model.outputs(probe, take(held.x, slice(0, 2))).shape[1:])
        labels = self.likelihood.labels(torch.Size((rows, *self.event)), held.y)  # type: ignore[arg-type]
        return x, labels.double() if labels.is_floating_point() else labels

    def _terms(self, x: Tensor, y: Tensor, parameters: list[Tensor]) -> Tensor:
        weight, bias, *learned = parameters
        outputs = ((x - self.center) / self.scale) @ weight + bias
        numbers = dict(zip(self.likelihood.parameters, learned, strict=True))
        return self.likelihood.log_prob(outputs.unflatten(1, self.event or (1,)), y, numbers).double()

    def _fit(self, x: Tensor, y: Tensor) -> None:
        width = math.prod(self.event)
        start = [torch.zeros(x.shape[1], width, dtype=torch.float64), torch.zeros(width, dtype=torch.float64)]
        start += [value.detach().cpu().double().clone() for value in self.likelihood.parameters.values()]
        self.parameters = [tensor.requires_grad_() for tensor in start]
        optimizer = torch.optim.LBFGS(
            self.parameters,
            max_iter=_STEPS,
            history_size=20,
            tolerance_grad=1e-8,
            tolerance_change=1e-12,
            line_search_fn="strong_wolfe",
        )

        def loss() -> Tensor:
            optimizer.zero_grad()
            value = -self._terms(x, y, self.parameters).mean()
            value.backward()
            return value

        optimizer.step(loss)


def left_out_log_density(model: Model, train: Any) -> float:
    """Mean over training rows of ``log p(y | x)`` by the linear model of the other half of them, in nats.

    On its own rows a linear model of as many features as rows is perfect. The halves are every other row.

    Args:
        model: its likelihood and the shape of its outputs count.
        train: training data in any form.

    Returns:
        nan where there is one row only.
    """
    held = gather(as_source(train, model.dtype, model.takes_integers))
    count = batch_size_of(held.x)
    if count < 2:
        return math.nan
    halves = [(take(held.x, rows), take(held.y, rows)) for rows in (slice(0, None, 2), slice(1, None, 2))]
    total = 0.0
    for fitted, judged in (halves, halves[::-1]):
        total += len(judged[1]) * LinearBaseline(model, fitted).log_density(judged)
    return total / count
