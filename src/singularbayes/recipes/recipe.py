"""What a recipe is: data, networks, settings.

It has no loop of its own: :mod:`.running` runs every recipe.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from ..likelihoods import Likelihood
from ..model import BlockPrior, Model
from ..nn import factorize
from ..report import Panel
from . import nested
from .data.splits import Splits

__all__ = ["Plan", "Recipe", "Run", "all_low_rank", "mlp"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One line of the table: a network, a prior and a method.

    Args:
        network: makes the start network (the runner seeds it).
        prior: on its parameters.
        method: fits it.
        uses_validation: hand the validation set to ``fit`` even where nothing in its method says that it
            needs it (``patience``, or the weights of a mixture); calibration uses it in any case.
        deterministic: patterns of parameters that are point estimates.
        likelihood: of this plan, where it is not the recipe's.
        joins_validation: fit to train and validation together: for a method that chooses nothing, in a recipe
            that does not calibrate.
    """

    network: Callable[[], nn.Module]
    prior: BlockPrior
    method: Any
    uses_validation: bool = False
    deterministic: Sequence[str] = ()
    likelihood: Likelihood | None = None
    joins_validation: bool = False

    def __post_init__(self) -> None:
        if self.joins_validation and self.needs_validation:
            raise ValueError(
                "joins_validation=True trains on the validation set, which early stopping (patience) or "
                "uses_validation=True needs held out; choose one"
            )

    @property
    def needs_validation(self) -> bool:
        """Whether ``fit`` is handed the validation set."""
        return self.uses_validation or any(
            getattr(part, "patience", None) is not None
            or getattr(getattr(part, "weights", None), "needs_validation", False)
            for part in nested.parts(self.method)
        )

    def model(self, network: nn.Module, likelihood: Likelihood) -> Model:
        """The model around a start network; ``likelihood`` is the recipe's."""
        return Model(
            network, self.likelihood or likelihood, prior=self.prior, deterministic=tuple(self.deterministic)
        )


@dataclass(frozen=True, kw_only=True)
class Run:
    """One fitted plan: what was saved for one method and one seed.

    Args:
        name: of the plan.
        seed: of the fit.
        posterior: calibrated where the recipe calibrates.
        evaluation: of that posterior.
        temperature: of that calibration; 1 without.
        made: command, date, machine and versions that made it.
    """

    name: str
    seed: int
    posterior: Any
    evaluation: Any
    temperature: float
    made: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A worked example on one data set.

    Args:
        name: as the command line has it.
        title: of the report.
        what: one sentence.
        load: ``(data folder or None, seed) -> Splits``.
        likelihood: of all plans.
        plans: method name -> plan, in the order of the table.
        draws: posterior draws of a prediction.
        needs_data: whether a data folder must be given.
        panels: figures of its own, from the splits and the runs of the first seed.
        threads: of torch, as the command line sets them; networks this small lose by a second one, much so
            beside other work.
        calibrate: fit a temperature on the validation set; ``False`` where it has too few errors to tell one.
        varies_data: the data of every seed are its own (drawn anew, or the next of several splits), else the
            splits are those of seed 0.
    """

    name: str
    title: str
    what: str
    load: Callable[[Path | None, int], Splits]
    likelihood: Likelihood
    plans: Mapping[str, Plan]
    draws: int = 64
    needs_data: bool = False
    panels: Callable[[Splits, Mapping[str, Run]], Sequence[Panel]] | None = None
    varies_data: bool = False
    calibrate: bool = True
    threads: int = 1

    def __post_init__(self) -> None:
        joined = [name for name, plan in self.plans.items() if plan.joins_validation]
        if joined and self.calibrate:
            raise ValueError(
                f"plan {joined[0]!r} trains on the validation set (joins_validation), so it can't be "
                f"calibrated on it; set calibrate=False"
            )


def all_low_rank(network: nn.Module, rank: int) -> nn.Module:
    """Every linear layer at one rank, as in arXiv 2602.00387: the head too, though it saves nothing there."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*saves no parameters")
        return factorize(network, rank=rank)


def mlp(*sizes: int, dropout: float = 0.0, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """A plain multilayer perceptron, with dropout after each hidden activation if asked."""
    layers: list[nn.Module] = []
    for m, n in itertools.pairwise(sizes[:-1]):
        layers += [nn.Linear(m, n), activation()]
        if dropout:
            layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1]))
