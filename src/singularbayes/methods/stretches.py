"""The belief cut into stretches: neighbouring entries that a step of mean-field VI treats alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from ..divergence import KL
from ..model import BlockPrior, part_of
from ..parameters import Slot
from .local import LocalLayer
from .rows import Table

__all__ = ["Stretch", "cut", "joined"]


@dataclass(frozen=True)
class Stretch:
    """Neighbouring entries of the belief that a step treats alike.

    Attributes:
        block: the entries.
        prior: their prior as the model has it; ``block`` holds all its entries if it is learned.
        kl: estimator of their KL.
        special: the embedding table that they are, or the locally reparameterised layer that they belong to;
            ``None``: they are drawn before the step.
    """

    block: slice
    prior: BlockPrior
    kl: KL
    special: Table | LocalLayer | None = None


def cut(
    blocks: Iterable[tuple[slice, BlockPrior]],
    slots: Sequence[Slot],
    estimator: Callable[[BlockPrior], KL],
    special: Callable[[Slot, BlockPrior], Stretch | None],
) -> list[Stretch]:
    """The prior's blocks, with the slots that ``special`` claims cut out of them.

    Args:
        blocks: of the prior, in order.
        slots: of the belief, in order.
        estimator: of the KL, for ordinary entries.
        special: gives a slot's own stretch, or ``None``.
    """
    found: list[Stretch] = []
    for block, prior in blocks:
        start, kl = block.start, estimator(prior)
        inside: list[Stretch] = []
        for slot in slots:
            own = special(slot, prior) if block.start <= slot.start < block.stop else None
            if own is None:
                continue
            if start < slot.start:
                inside.append(Stretch(slice(start, slot.start), prior, kl))
            inside.append(own)
            start = slot.stop
        if start < block.stop:
            inside.append(Stretch(slice(start, block.stop), prior, kl))
        found += [replace(each, prior=part_of(prior, _within(each.block, block))) for each in inside]
    return found


def _within(part: slice, block: slice) -> slice:
    """Where a part of a block lies in it."""
    return slice(part.start - block.start, part.stop - block.start)


def joined(blocks: Iterable[slice]) -> list[slice]:
    """Neighbouring blocks made one."""
    found: list[slice] = []
    for block in blocks:
        start = found.pop().start if found and found[-1].stop == block.start else block.start
        found.append(slice(start, block.stop))
    return found
