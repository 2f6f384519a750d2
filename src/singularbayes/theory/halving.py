"""Successive halving over ranks: fit all for a few epochs, go on with the better half, finish one.

With ``n_0 > n_1 > ... > 1`` candidates left, those that drop out after stage j have ``e_j = 2^j e_0`` epochs,
and the one that is left has all ``E`` of the method:

    cost = E + sum_j (n_j - n_{j+1}) e_j <= budget * E

A fit that goes on takes up its checkpoint, so no epoch is done twice. The chosen rank's finished fit is in
the result.

References:
    Jamieson and Talwalkar 2016, arXiv 1502.07943 (successive halving).
"""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import pandas as pd

from ..data import as_source, gather
from ..methods.settings import Schedule, Training
from ..methods.training import TrainingDiverged
from ..model import Model
from ..nn import factorize
from ..nn.factors import quiet_ranks
from ..nn.rank_choice import Rank
from ..parameters import Layout
from ..posterior import Posterior
from .select_rank import ModelOf, RankChoice, Task, no_data

__all__ = ["ByCertificate", "ByValidation", "Certify", "stages"]


@runtime_checkable
class Trains(Protocol):
    """A method on the training loop: it can stop after some epochs and go on."""

    epochs: int

    def fit(self, model: Model, train: Any, validation: Any = None, *, seed: int = 0,
            checkpoint: str | Path | None = None, progress: bool | None = None) -> Posterior:  # fmt: skip
        """Fit, or go on from the checkpoint."""
        ...


def stages(candidates: int, epochs: int, budget: float) -> list[tuple[int, int]]:
    """How many candidates have how many epochs, stage by stage.

    Args:
        candidates: at the start.
        epochs: of a whole fit.
        budget: in whole fits.

    Returns:
        ``(candidates, epochs)``; the last is ``(1, epochs)``.

    Raises:
        ValueError: a budget below one fit, or one that leaves the first stage less than one epoch (the
            least one is named); a whole fit that is too short to be halved so often.

    Example:
        >>> stages(6, 150, 1.5)
        [(6, 8), (3, 16), (2, 32), (1, 150)]
    """
    if not (budget >= 1 and math.isfinite(budget)):
        raise ValueError(f"budget must be finite and at least 1, the finished fit, got {budget!r} whole fits")
    left = [candidates]
    while left[-1] > 1:
        left.append(math.ceil(left[-1] / 2))
    parts = sum((n - after) * 2**j for j, (n, after) in enumerate(itertools.pairwise(left)))
    if parts == 0:
        return [(1, epochs)]
    longest = epochs >> (len(left) - 2)
    if longest < 1:
        raise ValueError(
            f"{candidates} candidates are halved {len(left) - 1} times, with twice the epochs each time: "
            f"fits of {epochs} epochs leave less than one epoch before the first choice; it takes "
            f"{2 ** (len(left) - 2)} epochs, or fewer ranks"
        )
    first = min(math.floor((budget - 1) * epochs / parts + 1e-9), longest)
    if first < 1:
        raise ValueError(
            f"a budget of {budget:g} fits of {epochs} epochs leaves {candidates} candidates less than one "
            f"epoch before the first choice; it takes {1 + parts / epochs:.2f} fits, or more epochs, "
            f"or fewer ranks"
        )
    return [*((n, first * 2**j) for j, n in enumerate(left[:-1])), (1, epochs)]


def _check(method: Any, ranks: Sequence[Rank], budget: float) -> None:
    if not isinstance(method, Trains) or not isinstance(method, Training):
        raise TypeError(f"method must be one that trains (MeanField(), MAP(), ...), got {method!r}")
    if method.schedule is not Schedule.CONSTANT:
        raise ValueError(
            f"schedule={method.schedule.value!r} looks ahead to the last epoch, so a fit that stops early is "
            f"not the beginning of a longer one; use schedule='constant'"
        )
    if not ranks:
        raise ValueError("ranks is empty; give at least one candidate, such as (1, 2, 4, 8, 16)")
    if len({str(rank) for rank in ranks}) < len(ranks):
        raise ValueError(f"ranks has a candidate twice: {tuple(ranks)}")
    stages(len(ranks), method.epochs, budget)


def _models(task: Task, ranks: Sequence[Rank]) -> list[Model]:
    """The model of every candidate, before any fit."""
    source = task.source
    if isinstance(source, Model):
        plain = Layout.of(source.network, likelihood=source.likelihood.parameters)
        if plain.slots != source.layout.slots:
            raise ValueError(
                "the model believes in some parameters only (bayesian=, deterministic=, normalization=), by "
                "names that factors do not have; give a function from a rank to a model in its place: lambda "
                "rank: sb.Model(sb.factorize(network, rank), ...)"
            )

        def factorised(rank: Rank) -> Model:
            low = factorize(source.network, rank, seed=task.seed)
            return Model(low, source.likelihood, prior=source.prior)

        make: ModelOf = factorised
    elif callable(source) and not hasattr(source, "parameters"):
        make = source
    else:
        raise TypeError(f"this rule fits: it needs a model, or a function from a rank to one, got "
                        f"{type(source).__name__}")  # fmt: skip
    with quiet_ranks():
        return [make(rank) for rank in ranks]


Score = Callable[[Posterior], float]


def _halve(
    task: Task, rule: ByValidation | ByCertificate, models: list[Model], held: Any, score: Score, name: str
) -> RankChoice:
    """Run the stages; ``score`` is better when higher, and a candidate that diverges is the worst."""
    method, ranks = rule.method, rule.ranks
    rows: list[dict[str, Any]] = [{"rank": str(rank), "epochs": 0, name: math.nan} for rank in ranks]
    alive, spent = list(range(len(ranks))), 0
    finished: Posterior | None = None
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        for count, epochs in stages(len(ranks), method.epochs, rule.budget):
            alive = sorted(alive, key=lambda i: -rows[i][name] if math.isfinite(rows[i][name]) else math.inf)
            alive = alive[:count]
            for i in sorted(alive):
                fit, place = replace(method, epochs=epochs).fit, Path(folder) / str(i)
                try:
                    fitted = fit(
                        models[i], task.train, held, seed=task.seed, checkpoint=place, progress=False
                    )
                except TrainingDiverged:
                    if count == 1:
                        raise
                    spent += epochs - rows[i]["epochs"]
                    rows[i] |= {"epochs": epochs, name: math.nan}  # it drops out
                    continue
                done = fitted.info["epochs"]  # early stopping may do fewer
                spent += done - rows[i]["epochs"]
                rows[i] |= {"epochs": done, name: score(fitted)}
                finished = fitted
    chosen = alive[0]
    why = f"rank {ranks[chosen]}: the last of {len(ranks)} candidates by {name}"
    return RankChoice(rank=ranks[chosen], table=pd.DataFrame(rows), why=why,
                      fits=spent / method.epochs, posterior=finished)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ByValidation:
    """The rank with the highest mean log predictive density on validation data, by successive halving.

    Args:
        method: fits each candidate; its ``epochs`` are those of a whole fit.
        ranks: candidates, as ``factorize`` takes them: numbers, or ``{pattern: rank}`` for single layers.
        budget: epochs of all fits together, the finished one included, in whole fits.
        draws: posterior draws of the predictive.

    Raises:
        TypeError: a method that does not train.
        ValueError: no candidates, one twice, a schedule that looks ahead, a budget too small for them.
    """

    method: Any
    ranks: Sequence[Rank] = (1, 2, 4, 8, 16)
    budget: float = 1.5
    draws: int = 64

    def __post_init__(self) -> None:
        _check(self.method, self.ranks, self.budget)
        if self.draws < 1:
            raise ValueError(f"draws must be at least 1, got {self.draws}")

    def choose(self, task: Task) -> RankChoice:
        """The choice, with the winner's finished fit."""
        if task.train is None or task.validation is None:
            raise ValueError("ByValidation needs train and validation data: select_rank(model, rule, train, "
                             "validation)")  # fmt: skip

        models = _models(task, self.ranks)
        held = gather(as_source(task.validation, models[0].dtype, models[0].takes_integers))
        x, y = held.x, held.y
        if y is None:
            raise ValueError("validation data need labels: pass (X, y)")

        def score(posterior: Posterior) -> float:
            predictive = posterior.predict(x, draws=self.draws, seed=task.seed)
            return predictive.log_prob(y).double().mean().item()

        stops = task.validation if self.method.patience is not None else None
        return _halve(task, self, models, stops, score, "log density")


@runtime_checkable
class Certify(Protocol):
    """Certifies a posterior on data: an upper bound of its risk that holds with probability ``1 - delta``."""

    def __call__(self, posterior: Posterior, data: Any, delta: float) -> float:
        """The bound, in units of its loss."""
        ...


@dataclass(frozen=True, kw_only=True)
class ByCertificate:
    """The rank with the lowest PAC-Bayes bound on the training data, by successive halving.

    Each candidate has a prior of its own, so each gets ``delta / K``: the winner's bound then holds with
    probability ``1 - delta`` although it was chosen among K, whatever the stages looked at. (A bound that is
    estimated from draws needs fresh ones for the number that is published: a last call of ``certify`` with
    another seed, at ``delta / K``.)

    Args:
        method: fits each candidate.
        certify: the bound of a fitted posterior.
        ranks: candidates, fixed before the data were seen.
        budget: see :class:`ByValidation`.
        delta: of all candidates together, in (0, 1).

    Raises:
        TypeError, ValueError: see :class:`ByValidation`; a delta outside (0, 1); patience, which would choose
            an epoch on other data.
    """

    method: Any
    certify: Certify
    ranks: Sequence[Rank] = (1, 2, 4, 8, 16)
    budget: float = 1.5
    delta: float = 0.025

    def __post_init__(self) -> None:
        _check(self.method, self.ranks, self.budget)
        if not 0 < self.delta < 1:
            raise ValueError(f"delta must lie in (0, 1), got {self.delta!r}")
        if self.method.patience is not None:
            raise ValueError(
                "patience needs validation data, which a certificate does not look at; leave it out"
            )

    def choose(self, task: Task) -> RankChoice:
        """The choice, with the winner's finished fit."""
        if task.train is None:
            raise ValueError("ByCertificate needs train data: select_rank(model, rule, train)")
        no_data(self, validation=task.validation)

        def score(posterior: Posterior) -> float:
            return -float(self.certify(posterior, task.train, self.delta / len(self.ranks)))

        choice = _halve(task, self, _models(task, self.ranks), None, score, "minus the bound")
        bound = -choice.table["minus the bound"].to_numpy()
        table = choice.table.drop(columns="minus the bound").assign(bound=bound)
        why = (f"rank {choice.rank}: the last of {len(self.ranks)} candidates by the bound, each at delta = "
               f"{self.delta:g} / {len(self.ranks)}")  # fmt: skip
        return replace(choice, table=table, why=why)
