"""Deep ensembles: the same method from different initial weights and data orders, in one mixture.

References:
    Lakshminarayanan et al. 2017, arXiv 1612.01474, algorithm 1 (without adversarial training).
"""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..mixture_posterior import MixturePosterior
from ..model import Model, check_model
from ..posterior import Posterior
from ..random import derive
from .ensembles import joined, reinitialized
from .map import MAP
from .members import Job, check_executor, fit_all

__all__ = ["DeepEnsemble"]


@dataclass(frozen=True, kw_only=True)
class DeepEnsemble:
    """``members`` independent fits of ``member``, each from its own initial weights, in its own data order.

    The result is a ``Posterior``, one distribution over the flat vector. Where the members differ in more
    than that vector (Laplace approximations, each linearised at its own weights; noise levels that each one
    found) it is a ``MixturePosterior`` of equal weights, in which each has its own network and likelihood.

    Args:
        members: how many.
        member: the method of each; ``MeanField()`` gives a mixture of variational posteriors.
        executor: any ``concurrent.futures.Executor`` of processes to fit the members in; ``None`` fits them
            one after another.
        reinitialize: draw each member's start anew; ``False`` starts all at ``model.network``'s weights (they
            then differ by data order alone, which is usually too little).

    Example:
        >>> import torch, singularbayes as sb
        >>> x = torch.linspace(-1, 1, 32).unsqueeze(1)
        >>> model = sb.Model(torch.nn.Linear(1, 1), sb.Gaussian(noise=0.1))
        >>> DeepEnsemble(members=3, member=MAP(epochs=2)).fit(model, (x, x)).predict(x).draws
        3
    """

    members: int = 5
    member: Any = field(default_factory=MAP)
    executor: Executor | None = None
    reinitialize: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.members, bool) or not isinstance(self.members, int) or self.members < 1:
            raise ValueError(f"members must be a whole number of at least 1, got {self.members!r}")
        if not hasattr(self.member, "fit"):
            raise TypeError(f"member must be a method such as MAP(), got {type(self.member).__name__}")
        check_executor(self.executor)

    def fit(
        self,
        model: Model,
        train: Any,
        validation: Any = None,
        *,
        seed: int = 0,
        checkpoint: str | Path | None = None,
        progress: bool | None = None,
    ) -> Posterior | MixturePosterior:
        """Fit every member. Arguments and errors: see ``MAP.fit``; each has a folder of its own there."""
        check_model(model)
        jobs = []
        for number in range(self.members):
            own = derive(seed, "member", number)
            start = reinitialized(model, own) if self.reinitialize else model
            folder = None if checkpoint is None else Path(checkpoint) / f"member-{number}"
            jobs.append(Job(self.member, start, train, validation, own, folder, progress))
        fitted = fit_all(jobs, self.executor)
        settings = {"members": self.members, "member": fitted[0].info.get("method")}
        return joined(fitted, type(self).__name__, seed, settings)
