"""Mixture: posteriors of any methods and architectures, weighed, in one predictive.

    p(y | x) = sum_m w_m p_m(y | x),      w on the simplex

References:
    Yao et al. 2018, arXiv 1704.02030 (stacking). Hoeting et al. 1999 (averaging by evidence).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..mixture_posterior import MixturePosterior, check_density
from ..model import Model, check_model
from ..random import derive
from .members import Job, check_executor, fit_all
from .mixture_weights import Equal, MemberWeights

__all__ = ["Mixture"]


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """One posterior out of several: fitted ones, and methods that are still to be fitted.

    Members predict the same ``y`` in the same units; their networks, likelihoods and methods may all differ,
    and each keeps its own calibration. It is a mixture of predictive distributions: neither the weights of
    the networks nor their logits are averaged, and their disagreement is epistemic uncertainty.

    Args:
        members: each a fitted posterior, a method (fitted to the model that ``fit`` is given), or a pair
            ``(model, method)`` with a model of its own.
        weights: ``Equal()``, ``Given((...))``, ``Stacked()`` on validation data, ``ByEvidence()``.
        executor: any ``concurrent.futures.Executor`` of processes to fit the members in; ``None`` fits them
            one after another.

    Example:
        >>> import torch, singularbayes as sb
        >>> x = torch.linspace(-1, 1, 32).unsqueeze(1)
        >>> model = sb.Model(torch.nn.Linear(1, 1), sb.Gaussian(noise=0.1))
        >>> wide = sb.Model(
        ...     torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)),
        ...     sb.Gaussian(),
        ... )
        >>> method = Mixture(members=(sb.MAP(epochs=2), (wide, sb.MeanField(epochs=2))))
        >>> method.fit(model, (x, x)).predict(x, draws=8).draws
        8
        >>> fitted = [sb.MAP(epochs=2).fit(model, (x, x)), sb.MeanField(epochs=2).fit(wide, (x, x))]
        >>> Mixture(members=fitted, weights=sb.Stacked()).join((x, x)).info["members"] == ["MAP", "MeanField"]
        True
    """

    members: Sequence[Any] = ()
    weights: MemberWeights = field(default_factory=Equal)
    executor: Executor | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.members, Sequence):
            raise TypeError(
                f"members must be a tuple of posteriors and methods, got {type(self.members).__name__}"
            )
        object.__setattr__(self, "members", tuple(self.members))
        for number, member in enumerate(self.members):
            method = _method_of(member)
            if not isinstance(method, type) and (_is_fitted(member) or hasattr(method, "fit")):
                continue
            what = (
                f"the class {method.__name__}" if isinstance(method, type) else f"a {type(member).__name__}"
            )
            raise TypeError(
                f"member {number} is {what}; expected a fitted posterior, a method such as MAP(), or a pair "
                f"(model, method)"
            )
        if isinstance(self.weights, type) or not isinstance(self.weights, MemberWeights):
            raise TypeError(
                f"weights must be an object such as Equal(), Given((0.3, 0.7)) or Stacked(), got "
                f"{self.weights!r}"
            )
        for number, member in enumerate(self.members):
            if isinstance(member, tuple):
                check_model(member[0])
            elif _is_fitted(member):
                check_density(number, member.likelihood)
        check_executor(self.executor)
        if self.members:
            self.weights.check(len(self.members))

    def fit(
        self,
        model: Model | None,
        train: Any,
        validation: Any = None,
        *,
        seed: int = 0,
        checkpoint: str | Path | None = None,
        progress: bool | None = None,
    ) -> MixturePosterior:
        """Fit the members that are methods, then weigh all.

        Args:
            model: of the methods without a model of their own; ``None`` where all have one.
            train: training data; see ``MAP.fit``.
            validation: held-out data; the methods have it too (their early stopping).
            seed: every member has its own from it.
            checkpoint: each member has a folder of its own there.
            progress: see ``MAP.fit``.

        Raises:
            ValueError: no members, or fitted posteriors alone (call ``join``); tasks that differ; ``Stacked``
                without validation data; members whose evidence cannot be compared.
        """
        self._check(validation)
        if all(_is_fitted(member) for member in self.members):
            raise ValueError(
                "all members are fitted already: there is nothing to train; call join(validation)"
            )
        if model is not None or any(_needs_model(member) for member in self.members):
            check_model(model)
        _check_tasks([model, *self.members])
        jobs = {}
        for number, member in enumerate(self.members):
            if _is_fitted(member):
                continue
            own, method = (model, member) if _needs_model(member) else member
            folder = None if checkpoint is None else Path(checkpoint) / f"member-{number}"
            its = derive(seed, "member", number)
            jobs[number] = Job(method, own, train, validation, its, folder, progress)
        fitted = dict(zip(jobs, fit_all(list(jobs.values()), self.executor), strict=True))
        members = [fitted.get(number, member) for number, member in enumerate(self.members)]
        return self._weighed(members, validation, seed)

    def join(self, validation: Any = None, *, seed: int = 0) -> MixturePosterior:
        """Weigh members that are all fitted posteriors already.

        Args:
            validation: held-out data, for weights that need them.
            seed: of the draws by which the members are weighed.

        Raises:
            ValueError: no members, or one that is still to be fitted (call ``fit``); as :meth:`fit`.
        """
        self._check(validation)
        for number, member in enumerate(self.members):
            if not _is_fitted(member):
                name = type(_method_of(member)).__name__
                raise ValueError(
                    f"member {number} is a method ({name}) that is still to be fitted; call "
                    f"fit(model, train, validation)"
                )
        _check_tasks(self.members)
        return self._weighed(self.members, validation, seed)

    def _check(self, validation: Any) -> None:
        if not self.members:
            raise ValueError(
                "a mixture needs members: Mixture(members=(posterior, ...)), or methods, or (model, method)"
            )
        if self.weights.needs_validation and validation is None:
            name = type(self.weights).__name__
            raise ValueError(f"{name}() weighs members on validation data: pass them, or use Equal()")

    def _weighed(self, members: Sequence[Any], validation: Any, seed: int) -> MixturePosterior:
        weights = [float(weight) for weight in self.weights.of(members, validation, seed)]
        infos = [member.info for member in members]
        sizes = {info.get("num_data") for info in infos}
        info = {
            "method": type(self).__name__,
            "numbers": sum(info.get("numbers", 0) for info in infos),
            "seconds": sum(info.get("seconds", 0.0) for info in infos),
            "epochs": max(info.get("epochs", 0) for info in infos),
            "seed": seed,
            "num_data": sizes.pop() if len(sizes) == 1 else None,
            "members": [info.get("method") for info in infos],
            "weights": weights,
            "settings": {"weights": repr(self.weights)},
            "history": [info.get("history") for info in infos],
        }
        return MixturePosterior(members, weights, info)


def _is_fitted(member: Any) -> bool:
    return hasattr(member, "predict") and hasattr(member, "likelihood")


def _needs_model(member: Any) -> bool:
    return not isinstance(member, tuple) and not _is_fitted(member)


def _method_of(member: Any) -> Any:
    return member[1] if isinstance(member, tuple) and len(member) == 2 else member


def _check_tasks(parts: Sequence[Any]) -> None:
    """The tasks of models and posteriors, before any work."""
    owners = [part[0] if isinstance(part, tuple) else part for part in parts]
    tasks = [owner.likelihood.task for owner in owners if hasattr(owner, "likelihood")]
    if len(set(tasks)) > 1:
        raise ValueError(
            f"the tasks are {', '.join(tasks)} (the model's first, where there is one); all members of a "
            f"mixture have one task"
        )
