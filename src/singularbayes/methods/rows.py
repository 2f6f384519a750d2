"""Embedding tables under a belief: only the rows that a step looks up are drawn.

A batch of ``B`` sentences of ``L`` tokens reads at most ``B L`` of a table's ``V`` rows; the gradient of all
others is exactly zero, so their noise is worth nothing. A :class:`Table` draws a row when it is first looked
up in a step, and keeps that draw until the step ends: one coherent function, however often the module is
called. The KL is no business of this file: it pulls every row, seen or not.

Rows are drawn in a pre-hook of the training loop's private copy of the module. A table that anything but its
own ``forward`` reads (``F.linear(h, embedding.weight)``) is drawn whole at that moment.

References:
    arXiv 2602.00387, appendix on the Transformer (the rows of the batch; here with the KL on all rows).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..nn.embedding import LowRankEmbedding
from ..parameters import Slot

__all__ = ["TABLES", "Table", "find_tables", "watch"]

#: Modules whose ``forward(ids)`` reads a parameter by rows alone, and that parameter's name.
TABLES: dict[type[nn.Module], str] = {nn.Embedding: "weight", LowRankEmbedding: "A"}

Draw = Callable[[Tensor, torch.Generator], None]


class Table:
    """The rows of one table in one step.

    Args:
        mean: a view ``(V, k)`` of the learner's flat vector, as the next three.
        sigma: standard deviations.
        noise: of this step's draw; 0 in rows that have none.
        weights: where draws are written.
        fill: fills a tensor with standard noise, in place.
    """

    def __init__(self, mean: Tensor, sigma: Tensor, noise: Tensor, weights: Tensor, fill: Draw) -> None:
        self.mean, self.sigma, self.noise, self.weights, self.fill = mean, sigma, noise, weights, fill
        self.generator: torch.Generator | None = None
        self.drawn = torch.zeros(len(mean), dtype=torch.bool, device=mean.device)
        self.inside = False  # the module's own forward is running
        self.sign = 1.0

    def begin(self, generator: torch.Generator) -> None:
        """Forget the last step's rows."""
        rows = self.drawn.nonzero().squeeze(1)
        self.noise.index_fill_(0, rows, 0.0)
        self.drawn.zero_()
        self.generator, self.sign = generator, 1.0

    def end(self) -> None:
        """Draw no more: whoever calls the network now brings weights of its own."""
        self.generator = None

    @torch.no_grad()
    def look_up(self, ids: Tensor | None) -> None:
        """Draw those of these rows (``None``: of all rows) that this step has not drawn yet."""
        if self.generator is None:
            return
        if ids is None:
            fresh = ~self.drawn
        else:
            fresh = torch.zeros_like(self.drawn)
            fresh[ids.reshape(-1).long()] = True
            fresh &= ~self.drawn
        rows = fresh.nonzero().squeeze(1)
        noise = self.mean.new_empty(len(rows), self.mean.shape[1])
        self.fill(noise, self.generator)
        self.noise.index_copy_(0, rows, noise)
        self.drawn |= fresh
        self._write(rows, noise)

    @torch.no_grad()
    def mirror(self) -> None:
        """The same noise with the other sign, in the rows drawn so far and in those to come."""
        self.sign = -self.sign
        rows = self.drawn.nonzero().squeeze(1)
        self._write(rows, self.noise[rows])

    def _write(self, rows: Tensor, noise: Tensor) -> None:
        drawn = torch.addcmul(self.mean[rows], self.sigma[rows], noise, value=self.sign)
        self.weights.index_copy_(0, rows, drawn)


def find_tables(network: nn.Module, slots: tuple[Slot, ...]) -> dict[str, tuple[nn.Module, str]]:
    """The believed tables, by slot name, with the module and the parameter's name there.

    A tied parameter is left out: another module reads all its rows. So is a class with a ``forward`` of its
    own, which may read its table in any way.
    """
    found = {}
    for slot in slots:
        path, _, leaf = slot.name.rpartition(".")
        module = network.get_submodule(path)
        plain = any(
            isinstance(module, kind) and leaf == name and type(module).forward is kind.forward
            for kind, name in TABLES.items()
        )
        if plain and len(slot.aliases) == 1:
            found[slot.name] = (module, leaf)
    return found


def watch(module: nn.Module, leaf: str, table: Table) -> None:
    """Draw rows when the module is called, all of them when its parameter is read by others.

    Args:
        module: of a private copy; its class is replaced by a subclass that tells of reads.
        leaf: name of the parameter.
        table: its rows.
    """
    parent = type(module)

    def read(self: nn.Module, name: str) -> Any:
        if name == leaf and not table.inside:
            table.look_up(None)
        return parent.__getattr__(self, name)

    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        table.look_up(args[0] if args else next(iter(kwargs.values())))
        table.inside = True

    def after(*_: Any) -> None:
        table.inside = False

    module.register_forward_pre_hook(before, with_kwargs=True)
    module.register_forward_hook(after, always_call=True)
    module.__class__ = type(
        parent.__name__, (parent,), {"__getattr__": read, "__module__": parent.__module__}
    )
