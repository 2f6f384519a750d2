"""Data-parallel fits: every process that calls ``fit`` takes its share of each batch, and all stay equal.

Under ``torchrun``, after ``torch.distributed.init_process_group("gloo")`` (or ``"nccl"``), ``fit`` needs
nothing more: a batch of ``batch_size`` examples is split between the ranks, each rank draws a noise of its
own, and one all-reduce a step averages the flat gradient, weighted by rows. ``N`` is the number of all
examples and the KL is averaged, not added, so its weight is the same for any number of ranks. Statistics of
batch normalisation are averaged at the end of each epoch; within it each rank normalises by its own rows.

References:
    Li et al. 2020, arXiv 2006.15704 (DistributedDataParallel; here the gradient is one bucket already).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, Subset

from ..data import Batches, Items, Loader, Tensors, take
from ..parameters import Layout, owner
from ..random import derive

__all__ = ["Ranks"]


@dataclass(frozen=True)
class Ranks:
    """This process's place among those that fit together; one process alone is rank 0 of 1."""

    rank: int = 0
    size: int = 1

    @classmethod
    def present(cls) -> Ranks:
        """As ``torch.distributed`` has it now."""
        if not (dist.is_available() and dist.is_initialized()):
            return cls()
        return cls(dist.get_rank(), dist.get_world_size())

    @property
    def place(self) -> tuple[int, ...]:
        """Goes into the seeds of what differs between the ranks; nothing for rank 0."""
        return (self.rank,) if self.rank else ()

    def batches(
        self, source: Batches, batch_size: int, seed: int, epoch: int
    ) -> Iterator[tuple[Any, Tensor, int]]:
        """This rank's share of an epoch's batches, with the rows that all ranks have together."""
        if self.size == 1:
            for x, y in source.epoch(batch_size, seed, epoch, shuffle=True):
                yield x, y, len(y)
        elif isinstance(source, Items):  # only this rank's items are read
            index = Tensors(torch.arange(source.num_data), torch.arange(source.num_data))
            for number, (rows, _) in enumerate(index.epoch(batch_size, seed, epoch, shuffle=True)):
                own = rows[self._own(len(rows))]
                items = Items(Subset(source.dataset, own.tolist()), source.dtype, source.integers)
                ((x, y),) = items.epoch(len(own), derive(seed, number, self.rank), epoch, shuffle=False)
                yield x, y, len(rows)
        else:
            for x, y in source.epoch(batch_size, seed, epoch, shuffle=True):
                own = self._own(len(y))
                yield take(x, own), y[own], len(y)

    def _own(self, rows: int) -> slice:
        """This rank's rows of a batch; of a batch with less than two rows a rank, each rank takes all."""
        return slice(self.rank, None, self.size) if rows >= 2 * self.size else slice(None)

    def check(self, source: Batches) -> None:
        """Refuse data that have been shared out already.

        Raises:
            ValueError: a loader with a ``DistributedSampler``.
        """
        loader = source.batches if isinstance(source, Loader) else None
        if isinstance(loader, DataLoader) and isinstance(loader.sampler, DistributedSampler):
            raise ValueError(
                "the loader has a DistributedSampler, but fit itself splits the batches between the ranks; "
                "pass the same loader to every rank, without that sampler"
            )

    def check_equal(self, mark: str) -> None:
        """Wait for the others, and see that they fit the same thing.

        Raises:
            ValueError: another network, data, settings or seed on some rank.
        """
        if self.size == 1:
            return
        marks: list[Any] = [None] * self.size
        dist.all_gather_object(marks, mark)
        odd = [rank for rank, other in enumerate(marks) if other != marks[0]]
        if odd:
            raise ValueError(
                f"rank {odd[0]} has another network, data, settings, seed or checkpoint than rank 0; make "
                f"them the same on every rank (torch.manual_seed before the network is made)"
            )

    def average(self, storage: Tensor, loss: Tensor, rows: int) -> Tensor:
        """Average the gradient over the ranks, weighted by their rows, in one all-reduce; the average loss.

        Args:
            storage: the flat gradient and, at its end, room for two numbers.
            loss: mean loss of this rank's rows.
            rows: how many they are.
        """
        if self.size == 1:
            return loss
        storage[-2], storage[-1] = loss, 1.0
        storage.mul_(rows)
        dist.all_reduce(storage)
        storage[:-1].div_(storage[-1].clone())
        return storage[-2].clone()

    @torch.no_grad()
    def average_buffers(self, network: nn.Module, layout: Layout) -> None:
        """Average the statistics of normalisation layers; all other buffers are rank 0's."""
        if self.size == 1:
            return
        statistics = {slot.name for slot in layout.of_kind("statistic")}
        for name, buffer in network.named_buffers():
            if name in statistics:
                dist.all_reduce(buffer)
                buffer.div_(self.size)
            else:
                module, leaf = owner(network, name)
                dist.broadcast(getattr(module, leaf), 0)

    def agreed(self, value: float, device: torch.device) -> float:
        """Rank 0's value of a number that decides about stopping."""
        if self.size == 1:
            return value
        number = torch.tensor([value], dtype=torch.float64, device=device)
        dist.broadcast(number, 0)
        return number.item()
