"""Sums over all training data, for methods that ask for the likelihood of whole weight vectors."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..data import Batches, Tensors, as_source, batch_size_of, take, to_device
from ..functions import evaluate, way_for
from ..model import Model
from ..normalization import ShuffledPass, has_statistics, refreshed
from ..random import derive
from ..stacked import Workspace
from .learner import prepare

__all__ = ["FullData"]

_ROWS, _DRAWS = 512, 8  # inputs and weight vectors at a time


class FullData:
    """``log p(D | w)`` of rows of the flat vector, in chunks: memory is flat in data and rows.

    Args:
        model: its network is copied, and evaluated in eval mode.
        train: training data in any form.
        device: where to.
        batch_size: of the passes that estimate statistics of normalisation layers.
        seed: of their order.

    Attributes:
        num_data: number of training examples.
        settles: whether there are statistics that :meth:`settled` estimates.

    Example:
        >>> import singularbayes as sb
        >>> model = sb.Model(torch.nn.Linear(1, 1), sb.Gaussian(noise=1.0))
        >>> data = FullData(model, (torch.zeros(3, 1), torch.zeros(3)), model.device)
        >>> data.log_likelihood(torch.zeros(1, 2)).item()  # 3 log N(0; 0, 1)
        -2.756815...
    """

    def __init__(
        self, model: Model, train: Any, device: torch.device, batch_size: int = 64, seed: int = 0
    ) -> None:
        self.model, self.layout, self.device = model, model.layout, device
        self.source: Batches = prepare(model, None, train, None, device).train
        self.network = model.copy_network().to(device).eval().requires_grad_(False)
        self.way = way_for(self.network)
        self.num_data = self.source.num_data
        self.settles = has_statistics(self.network, self.layout)
        self._pass = ShuffledPass(self.source, batch_size, derive(seed, "statistics"))

    def settled(self, rows: Float[Tensor, "S D"]) -> Float[Tensor, "S D"]:
        """Rows whose statistics of normalisation layers are those of their own weights; a pass for each."""
        return refreshed(self.network, self.layout, rows, self._pass) if self.settles else rows

    @torch.no_grad()
    def log_likelihood(self, rows: Float[Tensor, "S D"], data: Any = None) -> Float[Tensor, " S"]:
        """``sum_n log p(y_n | f(x_n; w))`` of each row, in nats, in float64.

        Args:
            rows: their statistics count as they are; see :meth:`settled`.
            data: other data than the training data.
        """
        source = self.source if data is None else self.other(data)
        total = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
        blocks, workspace = rows.split(_DRAWS), Workspace()
        with torch.autocast(self.device.type, enabled=False):
            for inputs, labels in source.epoch(_ROWS, 0, 0, shuffle=False):
                x, y = to_device(inputs, self.device), labels.to(self.device)
                pieces = range(0, batch_size_of(x), _ROWS)  # a user's loader has batches of its own size
                for piece in (slice(start, start + _ROWS) for start in pieces):
                    parts = [self._block(block, take(x, piece), y[piece], workspace) for block in blocks]
                    total += torch.cat(parts)
        return total

    def other(self, data: Any) -> Batches:
        """Other data in the form that :meth:`log_likelihood` takes, read once."""
        if isinstance(data, Batches):
            return data
        source = as_source(data, self.model.dtype, self.model.takes_integers).to(self.device)
        if isinstance(source, Tensors) and source.y is None:
            raise ValueError("a likelihood needs labels: pass (X, y)")
        return source

    def _block(self, block: Tensor, x: Any, y: Tensor, workspace: Workspace) -> Tensor:
        outputs = evaluate(self.network, self.layout, block, x, self.way, workspace)
        likelihood, numbers = self.model.likelihood, self.layout.likelihood_views(block)
        labels = likelihood.labels(outputs.shape[1:], y)
        sums = []
        for row, output in enumerate(outputs):
            own = {name: value[row] for name, value in numbers.items()}
            sums.append(likelihood.log_prob(output, labels, own).double().sum())
        return torch.stack(sums)
