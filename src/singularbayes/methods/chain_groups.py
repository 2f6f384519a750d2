"""Chains of a network in groups: each group is one batch, run here or in a process of an executor.

Where a group runs decides nothing: its random numbers follow from the seed and its place among the groups.
How many chains a group has does, as they share one stream of random numbers.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..sampling.run import ChainsStuck, ChainWarning, run, warn_of
from ..sampling.sample import ChainMethod
from ..sampling.samples import Samples, Statistics
from .members import check_pickles
from .network_density import NetworkDensity

__all__ = ["Group", "run_groups"]


@dataclass(frozen=True, eq=False)
class Group:
    """Chains that advance as one batch.

    Args:
        method: the sampler's settings, without an executor.
        model: network, likelihood, prior.
        train: training data as the user gave them.
        rows: where the group's chains start, ``(C, D)``.
        free: entries that move; ``None``: all believed ones.
        temperature: of the likelihood.
        chains: numbers of the first chain and of the one after the last.
        seed: of this group.
        checkpoint: its own folder, or ``None``.
        progress: show acceptance and divergences.
        label: the method's name.
        mark: of the fit, for the checkpoint.
    """

    method: ChainMethod
    model: Any
    train: Any
    rows: Tensor
    free: Tensor | None
    temperature: float
    chains: tuple[int, int]
    seed: int
    checkpoint: Path | None
    progress: bool | None
    label: str
    mark: str

    def place(self) -> str:
        """``chain 3`` or ``chains 4 to 7``."""
        first, last = self.chains[0], self.chains[1] - 1
        return f"chain {first}" if first == last else f"chains {first} to {last}"


@dataclass(frozen=True, eq=False)
class _Stuck:
    """A group that never moved, with what it kept: an exception would leave that behind in its process."""

    message: str
    samples: Samples


def run_groups(groups: Sequence[Group], executor: Executor | None) -> Samples:
    """The draws of all groups, chains in order.

    Raises:
        TypeError: what an executor of processes must carry cannot be pickled.
        ChainsStuck: no chain of a group ever accepts a proposal.

    Warns:
        ChainWarning: see ``sampling.run``; with the numbers of the chains among all.
    """
    if executor is None:
        parts = [_outcome(_sampled(group), group, groups) for group in groups]
    else:
        parts = _in_processes(groups, executor)
    samples = _joined(parts)
    warn_of(samples, stacklevel=6)
    return samples


def _in_processes(groups: Sequence[Group], executor: Executor) -> list[Samples]:
    check_pickles(groups[0], executor)
    futures = [executor.submit(_sampled, group) for group in groups]
    try:
        pairs = zip(futures, groups, strict=True)
        return [_outcome(future.result(), group, groups) for future, group in pairs]
    finally:
        for future in futures:
            future.cancel()


def _sampled(group: Group) -> Samples | _Stuck:
    try:
        density = NetworkDensity(group.model, group.train, group.rows, group.free, group.temperature)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ChainWarning)  # all groups' together, afterwards
            return run(
                group.method.sampler(),
                density,
                density.start,
                warm_up=group.method.warm_up,
                draws=group.method.draws,
                thin=group.method.thin,
                seed=group.seed,
                checkpoint=group.checkpoint,
                progress=group.progress,
                label=group.label,
                mark=group.mark,
            )
    except ChainsStuck as stuck:
        return _Stuck(str(stuck), stuck.samples)
    except Exception as error:
        error.add_note(f"{group.label}: of {group.place()}")
        raise


def _outcome(found: Samples | _Stuck, group: Group, groups: Sequence[Group]) -> Samples:
    if isinstance(found, _Stuck):
        of = "" if len(groups) == 1 else f"of {group.place()}: "
        raise ChainsStuck(f"{of}{found.message}", found.samples)
    return found


def _joined(parts: Sequence[Samples]) -> Samples:
    """All chains one after another."""
    first = parts[0]
    if len(parts) == 1:
        return first

    def statistics(name: str) -> Statistics:
        each = [getattr(part, name) for part in parts]
        return Statistics(*(torch.cat([getattr(one, f.name) for one in each]) for f in fields(Statistics)))

    info = {**first.info, "chains": sum(part.info["chains"] for part in parts)}
    info["seconds"] = sum(part.info["seconds"] for part in parts)
    for name in ("acceptance", "divergences", "gradients"):
        info[name] = [value for part in parts for value in part.info[name]]
    info["never_accepted"], start = [], 0
    for part in parts:
        info["never_accepted"] += [start + chain for chain in part.info["never_accepted"]]
        start += len(part.draws)
    return Samples(
        torch.cat([part.draws for part in parts]),
        torch.cat([part.log_density for part in parts]),
        statistics("statistics"),
        statistics("warm_up"),
        {name: torch.cat([part.facts[name] for part in parts]) for name in first.facts},
        info,
    )
