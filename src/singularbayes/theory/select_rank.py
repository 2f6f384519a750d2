"""``select_rank``: which rank each layer gets, by a rule.

The rules: :class:`.ByEnergy` and :class:`.ByBound` read a trained network; :class:`.ByValidation` and
:class:`.ByCertificate` fit several ranks for a few epochs and go on with the better half (:mod:`.halving`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import pandas as pd
from torch import nn

from ..data import as_source, gather
from ..model import Model, takes_integers
from ..nn import plan
from ..nn.merge import Mergeable
from ..nn.rank_choice import Energy, Rank
from ..nn.table import LayerChange
from .chain_bound import Chain
from .lipschitz import LipschitzLoss

__all__ = ["ByBound", "ByEnergy", "RankChoice", "RankRule", "Task", "select_rank"]

ModelOf = Callable[[Rank], Model]


@dataclass(frozen=True, kw_only=True)
class RankChoice:
    """The ranks that a rule chose; printed as the table that they were chosen by.

    Args:
        rank: as ``factorize`` takes it: a number, or ``{layer: rank}``.
        table: what was compared, one row a candidate or a layer.
        why: one sentence.
        fits: what the choice cost in whole fits, by epochs; 0 where nothing was fitted.
        posterior: the chosen rank's finished fit, where the rule fits.
    """

    rank: Rank
    table: pd.DataFrame
    why: str
    fits: float = 0.0
    posterior: Any = None

    def __str__(self) -> str:
        table = self.table.to_string(index=False, float_format=lambda value: f"{value:.4g}")
        cost = f" ({self.fits:.2f} fits)" if self.fits else ""
        return f"{table}\n{self.why}{cost}"


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a rule may look at.

    Args:
        source: the network, or the model, or how to make one at a rank.
        train: training data, or ``None``.
        validation: held-out data, or ``None``.
        seed: of fits and draws.
    """

    source: nn.Module | Model | ModelOf
    train: Any
    validation: Any
    seed: int

    def network(self, rule: object) -> nn.Module:
        """The network, for a rule that reads trained weights."""
        if isinstance(self.source, Model):
            return self.source.network
        if isinstance(self.source, nn.Module):
            return self.source
        raise TypeError(f"{type(rule).__name__} reads a trained network: give it, or a model of it, got "
                        f"{type(self.source).__name__}")  # fmt: skip


@runtime_checkable
class RankRule(Protocol):
    """How ranks are chosen."""

    def choose(self, task: Task) -> RankChoice:
        """The choice, after all checks."""
        ...


def select_rank(
    source: nn.Module | Model | Mergeable | ModelOf,
    rule: RankRule,
    train: Any = None,
    validation: Any = None,
    *,
    seed: int = 0,
) -> RankChoice:
    """Choose the rank of every layer by a rule.

    Args:
        source: a trained network, a model or a posterior (at its mean) of one, for the rules that read
            weights; a model with a network that is not factorised yet, or a function from a rank to a model,
            for the rules that fit.
        rule: :class:`.ByEnergy`, :class:`.ByBound`, :class:`.ByValidation`, :class:`.ByCertificate`, or any
            object with ``choose``.
        train: data of the rules that need any.
        validation: held-out data of the rules that need any; not the test set.
        seed: of fits and draws.

    Returns:
        The choice: ``sb.factorize(network, choice.rank)``.

    Raises:
        TypeError: a rule that is none, a source that it cannot read.
        ValueError: data that are missing, or that the rule does not look at.

    Example:
        >>> import torch
        >>> network = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
        >>> with torch.no_grad():
        ...     _ = network[0].weight.copy_(torch.diag(torch.tensor([2.0, 1.0, 0.01])))
        >>> select_rank(network, ByEnergy(0.9)).rank["0"]
        2
    """
    if isinstance(rule, type) or not isinstance(rule, RankRule):
        raise TypeError(f"rule must be an object such as ByEnergy(0.9) or ByValidation(...), got {rule!r}")
    if not isinstance(source, nn.Module | Model) and isinstance(source, Mergeable):
        source = source.merged()
    return rule.choose(Task(source=source, train=train, validation=validation, seed=seed))


@dataclass(frozen=True)
class ByEnergy:
    """The smallest rank of each matrix that keeps a share of its energy; see :class:`.Energy`.

    Args:
        share: in (0, 1].
        cap: no rank above this one.

    Raises:
        ValueError: a share outside (0, 1], a cap below 1.
    """

    share: float
    cap: int | None = None

    def __post_init__(self) -> None:
        Energy(self.share, self.cap)

    def choose(self, task: Task) -> RankChoice:
        """The choice; it looks at no data."""
        no_data(self, train=task.train, validation=task.validation)
        listed = plan(task.network(self), Energy(self.share, self.cap), init="svd")
        rows, rank = [], {}
        for change in listed.changes:
            for matrix, r in change.ranks.items():
                rank[_title(change, matrix)] = r
                m, n = change.shapes[matrix]
                keeps = change.keeps.get(matrix, float("nan"))
                rows.append({"layer": _title(change, matrix), "shape": f"{m} x {n}", "rank": r,
                             "keeps": keeps, "saves": m * n - r * (m + n)})  # fmt: skip
        why = f"the smallest ranks that keep {self.share:.4g} of every matrix's energy"
        why += "" if self.cap is None else f", none above {self.cap}"
        return RankChoice(rank=rank, table=pd.DataFrame(rows), why=why)


def _title(change: LayerChange, matrix: str) -> str:
    if len(change.ranks) > 1:
        return f"{change.name}.{matrix}".lstrip(".")
    return change.name or "*"


def no_data(rule: object, **given: Any) -> None:
    """Refuse data that a rule does not look at."""
    for name, data in given.items():
        if data is not None:
            raise ValueError(f"{type(rule).__name__} does not look at {name} data; leave them out")


@dataclass(frozen=True, kw_only=True)
class ByBound:
    """The smallest ranks for which the mean loss provably changes by no more than a tolerance.

    The tolerance is shared equally among the layers of a plain chain, from the input on; what a layer does
    not use is left to the layers behind it. See :func:`.network_bound`: the bound is loose for deep chains,
    so the ranks are larger than they need be.

    Args:
        loss: with its Lipschitz constant in the network's output.
        tolerance: in units of the loss.

    Raises:
        ValueError: a tolerance that is not positive.
    """

    loss: LipschitzLoss
    tolerance: float

    def __post_init__(self) -> None:
        if not self.tolerance > 0:
            raise ValueError(f"tolerance must be positive, in units of the loss, got {self.tolerance!r}")

    def choose(self, task: Task) -> RankChoice:
        """The choice for the mean over the training inputs."""
        no_data(self, validation=task.validation)
        if task.train is None:
            raise ValueError("ByBound needs inputs: select_rank(network, rule, train) with (X, y)")
        network = task.network(self)
        chain = Chain(network)
        dtype = next(network.parameters()).dtype
        x = gather(as_source(task.train, dtype, takes_integers(network))).x
        left, waiting = self.tolerance, len(chain.names)

        def rank_of(_name: str, added: Any) -> int:
            nonlocal left, waiting
            rank = int((added <= left / waiting).nonzero()[0]) + 1  # the last entry, full rank, is 0
            left, waiting = left - float(added[rank - 1]), waiting - 1
            return rank

        bound = chain.walk(x, self.loss, rank_of)
        limits = chain.limits()
        rows = [{"layer": name or "*", "rank": bound.ranks[name], "of": limits[name],
                 "bound": bound.layers[name]} for name in chain.names]  # fmt: skip
        rank = {name or "*": r for name, r in bound.ranks.items()}
        why = (f"the mean {type(self.loss).__name__} over these inputs changes by at most {bound.total:.4g} "
               f"(tolerance {self.tolerance:g})")  # fmt: skip
        return RankChoice(rank=rank, table=pd.DataFrame(rows), why=why)
