"""Deep ensembles: the same method from different initial weights and data orders, in one mixture.

References:
    Lakshminarayanan et al. 2017, arXiv 1612.01474, algorithm 1 (without adversarial training).
"""

from __future__ import annotations

import copy
import warnings
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized

from ..distributions import MixtureDistribution, StoredDraws
from ..model import Model, check_model
from ..posterior import Posterior
from ..random import derive, forked
from .map import MAP
from .members import Job, check_executor, fit_all

__all__ = ["DeepEnsemble", "reinitialized"]


def reinitialized(model: Model, seed: int) -> Model:
    """The same model, its trained layers drawn anew by their ``reset_parameters``; frozen tensors are kept.

    Warns:
        UserWarning: modules with parameters of their own that cannot be reset (named); they keep their start.
    """
    network = model.copy_network()
    trained = {alias for slot in model.layout.of_kind("belief", "point") for alias in slot.aliases}
    stuck, renewed = [], set(trained)
    with forked(seed, "init", device=model.device), torch.no_grad():
        for path, module in reversed(
            list(network.named_modules())
        ):  # a parent's start overrides its children's
            names = {_join(path, leaf) for leaf, _ in module.named_parameters()}
            if not names & trained or isinstance(module, ParametrizationList):
                continue
            reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
            own = {_join(path, leaf) for leaf, _ in module.named_parameters(recurse=False)} & trained
            if is_parametrized(module) or (not callable(reset) and own):
                stuck.append(path or type(module).__name__)
            elif callable(reset):
                reset()
                if own:
                    renewed |= {_join(path, leaf) for leaf, _ in module.named_buffers(recurse=False)}
        before = model.network.state_dict()
        for name, tensor in network.state_dict().items():
            if name not in renewed:
                tensor.copy_(before[name])
    if stuck:
        warnings.warn(
            f"{', '.join(reversed(stuck))} cannot be drawn anew (no reset_parameters(), or a "
            f"parametrization): every member starts from the same values there",
            stacklevel=2,
        )
    fresh = copy.copy(model)
    fresh.network = network
    return fresh


def _join(path: str, leaf: str) -> str:
    return f"{path}.{leaf}" if path else leaf


@dataclass(frozen=True, kw_only=True)
class DeepEnsemble:
    """``members`` independent fits of ``member``, each from its own initial weights, in its own data order.

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
    ) -> Posterior:
        """Fit every member. Arguments and errors: see ``MAP.fit``; each has a folder of its own there."""
        check_model(model)
        jobs = []
        for number in range(self.members):
            own = derive(seed, "member", number)
            start = reinitialized(model, own) if self.reinitialize else model
            folder = None if checkpoint is None else Path(checkpoint) / f"member-{number}"
            jobs.append(Job(self.member, start, train, validation, own, folder, progress))
        return _joined(fit_all(jobs, self.executor), type(self).__name__, seed)


def _joined(fitted: list[Posterior], name: str, seed: int) -> Posterior:
    parts = [posterior.distribution for posterior in fitted]
    if all(isinstance(part, StoredDraws) for part in parts):
        distribution: Any = StoredDraws(torch.cat([part.draws for part in parts]))
    else:
        distribution = MixtureDistribution(tuple(parts))
    first = fitted[0]
    moved = _moved_outside(fitted)
    if moved:
        warnings.warn(
            f"{', '.join(moved)} moved in training, differs between members and is no part of the flat "
            f"vector: every member is read with the first one's",
            stacklevel=3,
        )
    info = {
        "method": name,
        "numbers": sum(posterior.info.get("numbers", 0) for posterior in fitted),
        "seconds": sum(posterior.info.get("seconds", 0.0) for posterior in fitted),
        "epochs": max(posterior.info.get("epochs", 0) for posterior in fitted),
        "seed": seed,
        "num_data": first.info.get("num_data"),
        "settings": {
            "members": len(fitted),
            "member": first.info.get("method"),
            **first.info.get("settings", {}),
        },
        "history": [posterior.info.get("history") for posterior in fitted],
    }
    return Posterior(first.network, distribution, first.likelihood, first.layout, info)


def _moved_outside(fitted: list[Posterior]) -> list[str]:
    """Tensors outside the flat vector, counters aside, that differ between members."""
    first = fitted[0]
    inside = {name for slot in first.layout.slots for name in slot.aliases}
    states = [dict(posterior.network.named_buffers()) for posterior in fitted]
    return [
        name
        for name, tensor in states[0].items()
        if name not in inside
        and tensor.is_floating_point()
        and not all(torch.equal(tensor, state[name]) for state in states[1:])
    ]
