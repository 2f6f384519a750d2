"""Statistics of normalisation layers that follow the weights: estimated anew for each draw, on a copy.

The running mean and variance of a BatchNorm belong to the weights before it. At other weights (an average of
iterates, a draw of a posterior, a point of a curve) they are found by a pass over the training inputs with
the normalisation layers in train mode and nothing else: dropout stays off. They are the batches' statistics,
averaged with the batches' rows as weights.

References:
    Izmailov et al. 2018, arXiv 1803.05407, section 3.2. Maddox et al. 2019, arXiv 1902.02476, section 3.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .data import Batches, batch_size_of, to_device
from .functions import call
from .parameters import Layout, owner

__all__ = ["ShuffledPass", "has_statistics", "refreshed"]


@dataclass(frozen=True)
class ShuffledPass:
    """One pass over the training data in an order that the seed fixes; it can be iterated again.

    In their own order, rows sorted by label would give batches whose variance is not that of the data.

    Args:
        source: of :func:`.data.as_source`.
        batch_size: rows of a batch (a user's own loader keeps its batches).
        seed: of the order.
    """

    source: Batches
    batch_size: int
    seed: int

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:
        return self.source.epoch(self.batch_size, self.seed, 0, shuffle=True)


def has_statistics(network: nn.Module, layout: Layout) -> bool:
    """Whether training moves statistics of the network; those of a body kept in eval mode do not count."""
    return bool(layout.of_kind("statistic")) and bool(_live(copy.deepcopy(network), layout))


def _live(network: nn.Module, layout: Layout) -> dict[nn.Module, None]:
    """The modules that move their statistics in train mode, in train mode; all others in eval mode."""
    network.train()  # what keeps itself in eval mode stays there
    owners = dict.fromkeys(owner(network, slot.name)[0] for slot in layout.of_kind("statistic"))
    live = dict.fromkeys(module for module in owners if module.training)
    network.eval()
    for module in live:
        module.training = True
    return live


def _average_over_rows(module: Any) -> None:
    """From now on the module's running statistics are averages over all rows that it has seen."""
    seen = 0

    def weigh(module: Any, inputs: tuple[Any, ...]) -> None:
        nonlocal seen
        if seen == 0 and hasattr(module, "reset_running_stats"):
            module.reset_running_stats()  # a nan would outlive its weight of 0
        seen += len(inputs[0])
        module.momentum = len(inputs[0]) / seen

    if hasattr(module, "momentum"):  # spectral norm has none: it iterates on the weight itself
        module.register_forward_pre_hook(weigh)


@torch.no_grad()
def refreshed(
    network: nn.Module, layout: Layout, rows: Float[Tensor, "S D"], batches: Iterable[tuple[Any, Tensor]]
) -> Float[Tensor, "S D"]:
    """Rows whose statistics are those of their own weights; all other entries are as they were.

    Each row costs one pass over the batches. Neither the network nor the rows given are written to.

    Args:
        network: whose functions the rows stand for; frozen parts and other buffers are read from it.
        layout: of the rows.
        rows: draws ``(S, D)``.
        batches: training batches ``(x, y)`` that can be iterated again, in an order without system (see
            :class:`ShuffledPass`); of their labels nothing is used. Batches of one row have no variance and
            are left out.

    Returns:
        New rows; equal ones if no statistic moves.

    Raises:
        ValueError: no batch of two rows or more.

    Example:
        >>> network = nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1)).requires_grad_(True)
        >>> layout = Layout.of(network)
        >>> x = torch.tensor([[1.0], [3.0]])
        >>> row = torch.tensor([[2.0, 1.0, 0.0, 0.0, 1.0]])  # weight, gain, shift, mean, variance
        >>> refreshed(network, layout, row, [(x, x)])
        tensor([[2., 1., 0., 4., 8.]])
    """
    found = rows.clone()
    if not has_statistics(network, layout):
        return found
    private = copy.deepcopy(network).to(rows.device)
    for row in found:
        own = copy.deepcopy(private)  # spectral norm starts from the vectors that it has
        layout.write(own, row)
        for module in _live(own, layout):
            _average_over_rows(module)
        seen = 0
        with torch.autocast(rows.device.type, enabled=False):
            for x, _ in batches:
                if batch_size_of(x) > 1:
                    call(own, to_device(x, rows.device))
                    seen += 1
        if not seen:
            raise ValueError(
                "statistics of a normalisation need batches of at least 2 rows, and no batch had them; pass "
                "more training data, or larger batches"
            )
        for slot in layout.of_kind("statistic"):
            row[slot.start : slot.stop] = getattr(*owner(own, slot.name)).reshape(-1)
    return found
