"""The prior precision by the evidence while the network is trained: stretches and updates in turn.

    repeat:  theta <- argmin NLL(theta) + 1/2 theta^T P theta;    P, noise <- argmax log ML(theta; P, noise)

At the fixed point the evidence has no slope in ``P`` along the trained weights either: there ``theta`` is the
optimum for ``P``, so ``theta``'s own move does not count. For a linear network this is MacKay's evidence
framework.

References:
    MacKay 1992, "Bayesian interpolation", section 4. Immer et al. 2021, arXiv 2104.04975, algorithm 1.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from ..likelihoods import Gaussian
from ..model import Model
from ..parameters import Layout, Slot
from ..priors import Normal, PerParameter
from ..random import derive
from .evidence import Found, MarginalLikelihood

__all__ = ["OnlineMarginalLikelihood", "with_noise", "with_precision"]


def with_precision(model: Model, slots: tuple[Slot, ...], precision: Tensor) -> Model:
    """The model with the prior ``Normal(precision ** -1/2)`` on these tensors and its own on all others."""
    given = {slot.name: Normal(float(value) ** -0.5) for slot, value in zip(slots, precision, strict=True)}
    priors = {}
    for slot in model.layout.of_kind("belief"):
        priors[slot.name] = given.get(slot.name, model.prior_of(slot))
    changed = copy.copy(model)
    changed.prior = PerParameter(priors)
    changed.prior_blocks = tuple(
        (slice(slot.start, slot.stop), priors[slot.name]) for slot in model.layout.of_kind("belief")
    )
    return changed


def with_noise(model: Model, noise: float | None) -> Model:
    """The model with a fixed noise of its ``Gaussian`` likelihood; ``None`` changes nothing."""
    if noise is None or not isinstance(model.likelihood, Gaussian):
        return model
    changed = copy.copy(model)
    changed.likelihood = replace(model.likelihood, noise=noise)
    kept = [entry for entry in model.layout.to_dict() if entry["kind"] != "likelihood"]
    changed.layout = Layout.from_dict(kept)
    return changed


@dataclass(frozen=True, kw_only=True)
class OnlineMarginalLikelihood:
    """Train by stretches of ``member`` and maximise the evidence after each; then a last stretch.

    Each stretch starts where the one before ended (its optimiser anew).

    Args:
        member: a method of one network that trains from ``model.network``'s weights under the model's prior,
            such as ``sb.MAP(epochs=10)``.
        rounds: updates.
        update: what is maximised over; by default one precision for each tensor.

    Example:
        >>> import torch, singularbayes as sb
        >>> x = torch.linspace(-1, 1, 32).unsqueeze(1)
        >>> online = OnlineMarginalLikelihood(member=sb.MAP(epochs=2), rounds=2)
        >>> method = sb.LaplaceApproximation(prior_precision=online)
        >>> posterior = method.fit(sb.Model(torch.nn.Linear(1, 1), sb.Gaussian(noise=0.3)), (x, x))
        >>> len(posterior.info["rounds"])
        2
    """

    member: Any
    rounds: int = 10
    update: MarginalLikelihood = field(default_factory=lambda: MarginalLikelihood(per_tensor=True))

    def __post_init__(self) -> None:
        if isinstance(self.rounds, bool) or not isinstance(self.rounds, int) or self.rounds < 1:
            raise ValueError(f"rounds must be a whole number of at least 1, got {self.rounds!r}")
        if isinstance(self.member, type) or not hasattr(self.member, "fit"):
            raise TypeError(f"member must be a method such as MAP(epochs=10), got {self.member!r}")
        if not isinstance(self.update, MarginalLikelihood):
            raise TypeError(f"update must be MarginalLikelihood(...), got {type(self.update).__name__}")

    def train(
        self,
        model: Model,
        slots: tuple[Slot, ...],
        maximise: Callable[[Model], tuple[Found, dict[str, Any]]],
        train: Any,
        validation: Any,
        *,
        seed: int,
        checkpoint: str | Path | None,
        progress: bool | None,
    ) -> tuple[Model, list[dict[str, Any]]]:
        """Stretches and updates in turn.

        Args:
            model: where it starts.
            slots: the tensors whose prior is updated.
            maximise: the precision and noise of most evidence at a model's weights, and facts of the round.
            train: training data.
            validation: for the member.
            seed: each stretch has its own.
            checkpoint: each stretch has its own folder there.
            progress: show bars.

        Returns:
            The model at trained weights under the prior of most evidence, and what each round found.
        """
        history: list[dict[str, Any]] = []
        for number in range(self.rounds + 1):
            folder = None if checkpoint is None else Path(checkpoint) / f"round-{number}"
            fitted = self.member.fit(
                model,
                train,
                validation,
                seed=derive(seed, "round", number),
                checkpoint=folder,
                progress=progress,
            )
            model = model.started_at(fitted)
            if number == self.rounds:
                break
            found, facts = maximise(model)
            model = with_noise(with_precision(model, slots, found.precision), found.noise)
            history.append(facts)
        return model, history
