"""Anchored ensembles: members pulled to prior draws of their own, fitted to labels with noise of their own.

Randomised MAP. Member ``j`` draws ``theta0_j ~ p`` and ``e_j ~`` the likelihood's noise, once, and minimises

    mean batch NLL(y + sqrt(T) e_j) + (T / N) 1/2 |Sigma^-1/2 (theta - theta0_j)|^2,    p = Normal(0, Sigma)

For a linear model with Gaussian noise the minimisers are draws of the posterior (at ``T`` other than 1: of
the tempered one): with ``S`` its covariance and ``X`` the design,

    theta_j = S (X^T (y + e_j) / noise^2 + Sigma^-1 theta0_j),    Cov theta_j = S

Without label noise their covariance is ``S Sigma^-1 S``, on data of any size far too small. For a network it
is an approximation.

References:
    Pearce et al. 2020, arXiv 1810.05546, section 3 (anchors; theirs adds no label noise). Bardsley et al.
    2014, "Randomize-then-optimize", section 2 (with it).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from ..data import LABEL_KEYS, Items, Tensors, as_source
from ..distributions import StoredDraws
from ..likelihoods import Likelihood
from ..mixture_posterior import MixturePosterior
from ..model import Model, check_model
from ..posterior import Posterior
from ..priors import Normal
from ..random import derive, forked, generator
from .ensembles import joined, reinitialized
from .learner import Bound, adam
from .members import Job, check_executor, fit_all
from .settings import check_whole
from .training import Training, fit_learner

__all__ = ["AnchoredEnsemble", "MemberStart"]


class MemberStart(StrEnum):
    """Where the members of an ``AnchoredEnsemble`` start."""

    #: Weights drawn anew by each layer's ``reset_parameters``, as in ``DeepEnsemble``.
    RENEWED = "renewed"
    #: The believed weights at the anchor, all else as ``renewed``.
    ANCHOR = "anchor"
    #: The weights of ``model.network``: for a network that is trained already.
    NETWORK = "network"


# What a member draws


def draw_anchor(model: Model, seed: int) -> Tensor:
    """``theta0 (belief,)`` of the member with this seed, from the prior.

    Raises:
        ValueError: a prior that is not ``Normal``.
    """
    stds = torch.empty(model.layout.belief, dtype=torch.float64)
    for block, prior in model.prior_blocks:
        if not isinstance(prior, Normal):
            raise ValueError(
                f"AnchoredEnsemble's pull to an anchor is that of a Normal prior, got "
                f"{type(prior).__name__}; use prior=sb.Normal(std) (PerParameter of them too), or "
                f"DeepEnsemble, which takes any prior"
            )
        stds[block] = prior.std
    noise = torch.empty_like(stds).normal_(generator=generator(seed, "anchor"))
    return (stds * noise).to(model.dtype)


def label_std(likelihood: Likelihood) -> float | None:
    """Standard deviation of the likelihood's noise on labels; ``None`` where labels are classes.

    Raises:
        ValueError: noise that is learned, or that depends on the input.
    """
    if likelihood.task != "gaussian":
        return None
    noise = getattr(likelihood, "noise", None)
    if noise is None:
        if hasattr(likelihood, "initial_noise"):
            reason = (
                "learns it from them; fit MAP first and fix the noise it finds, sb.Gaussian(noise="
                "model.started_at(posterior).likelihood.initial_noise)"
            )
        else:
            reason = "has another one at each input; take sb.Gaussian(noise=...)"
        raise ValueError(
            f"AnchoredEnsemble adds the likelihood's noise to the labels, and {type(likelihood).__name__} "
            f"{reason}, or pass label_noise=False (anchors alone: far too narrow)"
        )
    return noise * math.sqrt(likelihood.temperature)


class Noisy(Dataset):
    """A data set whose item ``i`` has the ``i``-th of fixed noises added to its label."""

    def __init__(self, items: Any, noise: Tensor) -> None:
        self.items, self.noise = items, noise

    def __len__(self) -> int:
        return len(self.noise)

    def __getitem__(self, index: int) -> Any:
        def noisy(y: Any) -> Tensor:
            y = torch.as_tensor(y)
            return y + self.noise[index].view(y.shape)

        return _with_label(self.items[index], noisy)


def _with_label(item: Any, change: Callable[[Any], Any]) -> Any:
    """An item ``(x, y)`` or a dict with its label changed; what has none is left to the loop's own checks."""
    if isinstance(item, Mapping):
        return {key: change(value) if key in LABEL_KEYS else value for key, value in item.items()}
    return (item[0], change(item[1])) if isinstance(item, list | tuple) and len(item) == 2 else item


def with_label_noise(data: Any, model: Model, std: float, seed: int) -> Any:
    """The data with Gaussian noise on their labels: one noise a label, the same in every epoch.

    Raises:
        ValueError: a loader, which does not say which row is which from epoch to epoch.
    """
    source = as_source(data, model.dtype, model.takes_integers)
    draws = generator(seed, "labels")

    def noise(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float64).normal_(std=std, generator=draws).to(model.dtype)

    if isinstance(source, Tensors):
        return source.x, None if source.y is None else source.y + noise(*source.y.shape).to(source.y.device)
    if isinstance(source, Items):
        labels: list[Any] = []
        with forked(seed, "items"):  # items may be augmented at random
            _with_label(source.dataset[0], labels.append)
        shape = torch.as_tensor(labels[0]).shape if labels else ()
        return Noisy(source.dataset, noise(source.num_data, *shape))
    if type(source.batches) in (list, tuple):  # their order stays
        return [(x, y + noise(*y.shape).to(y.device)) for x, y in source.epoch(1, 0, 0, shuffle=False)]
    raise ValueError(
        f"AnchoredEnsemble gives each label one noise for the whole fit, and a "
        f"{type(source.batches).__name__} does not say which row is which from epoch to epoch; pass (X, y), "
        f"the Dataset itself or a list of batches"
    )


# A member


class AnchoredLearner:
    """A point estimate pulled to an anchor; the trained vector is the weights themselves."""

    def __init__(self, anchor: Tensor, at_anchor: bool, bound: Bound, gradient: Tensor) -> None:
        self.bound, self.gradient, self.vector = bound, gradient, bound.w
        self.anchor = anchor.to(bound.device)
        if at_anchor:
            self.vector[: len(anchor)].copy_(self.anchor)

    def draw(self, noise: torch.Generator) -> None:
        return None

    @torch.no_grad()
    def finish(self, weight: float, progress: float) -> None:
        if weight:
            away = self.vector[: len(self.anchor)] - self.anchor
            for block, prior in self.bound.model.prior_blocks:
                self.gradient[block].add_(prior.negative_score(away[block]), alpha=weight)

    def optimizer(self, learning_rate: float) -> torch.optim.Optimizer:
        return adam(self.vector, learning_rate)

    @torch.no_grad()
    def regulariser(self) -> float:
        return -self.bound.model.log_prior(self.vector[: len(self.anchor)] - self.anchor).item()

    def facts(self) -> dict[str, Any]:
        return {}

    def distribution(self) -> StoredDraws:
        return StoredDraws(self.bound.row(self.vector.detach().clone()).unsqueeze(0))


@dataclass(frozen=True)
class BuildAnchored:
    """Makes an :class:`AnchoredLearner`."""

    anchor: Tensor
    at_anchor: bool

    def size(self, model: Model) -> int:
        return model.layout.trained

    def __call__(self, bound: Bound, start: Tensor, gradient: Tensor) -> AnchoredLearner:
        return AnchoredLearner(self.anchor, self.at_anchor, bound, gradient)


@dataclass(frozen=True)
class Member:
    """The fit of one member, by what its seed draws."""

    method: AnchoredEnsemble

    def fit(
        self,
        model: Model,
        train: Any,
        validation: Any,
        *,
        seed: int,
        checkpoint: Path | None,
        progress: bool | None,
    ) -> Posterior:
        """As ``AnchoredEnsemble.fit``, which has checked the arguments."""
        method = self.method
        std = label_std(model.likelihood) if method.label_noise else None
        if std is not None:
            train = with_label_noise(train, model, std * math.sqrt(method.temperature), seed)
        return fit_learner(
            model,
            method,
            BuildAnchored(draw_anchor(model, seed), method.start is MemberStart.ANCHOR),
            train,
            validation,
            seed=seed,
            checkpoint=checkpoint,
            progress=progress,
            facts={"method": type(method).__name__, "numbers": model.layout.trained},
        )


@dataclass(frozen=True, kw_only=True)
class AnchoredEnsemble(Training):
    """``members`` networks, each with an anchor and label noise of its own: randomised MAP.

    Exact for linear models with Gaussian noise of known size, as the number of members grows. Class labels
    have no exact noise: for ``Categorical`` and ``Bernoulli`` the anchors alone differ, and the spread is too
    small even where the model is linear. Point parameters have no prior and no anchor. Needs ``sb.Normal``
    priors. Other fields: see ``Training``.

    Args:
        members: how many.
        label_noise: add the likelihood's noise to the labels of each member, where labels are numbers. That
            noise must be given (``sb.Gaussian(noise=...)``): one that is learned from noisier labels grows
            with them. ``False``: anchors alone, in regression far too narrow.
        start: where members start: ``renewed`` (the default), ``anchor`` or ``network``.
        executor: any ``concurrent.futures.Executor`` of processes to fit the members in; ``None`` fits them
            one after another.

    Example:
        >>> import torch, singularbayes as sb
        >>> x = torch.linspace(-1, 1, 32).unsqueeze(1)
        >>> model = sb.Model(torch.nn.Linear(1, 1), sb.Gaussian(noise=0.1))
        >>> AnchoredEnsemble(members=3, epochs=2).fit(model, (x, x)).predict(x).draws
        3
    """

    members: int = 5
    label_noise: bool = True
    start: MemberStart = MemberStart.RENEWED
    executor: Executor | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(members=self.members)
        check_executor(self.executor)
        object.__setattr__(self, "start", MemberStart(self.start))

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
        """Fit every member. Arguments and errors: see ``MAP.fit``; each has a folder of its own there.

        Raises:
            ValueError: also for a prior that is not ``Normal``; with ``label_noise``, for noise that is
                learned or depends on the input, and for loaders that do not say which row is which.
        """
        check_model(model)
        draw_anchor(model, seed)  # refused before any work
        if self.label_noise and label_std(model.likelihood) is not None:
            with_label_noise(train, model, 0.0, seed)
        # what a member's checkpoint stands for does not depend on how many others there are, or where
        member = Member(replace(self, members=1, executor=None))
        jobs = []
        for number in range(self.members):
            own = derive(seed, "member", number)
            start = model if self.start is MemberStart.NETWORK else reinitialized(model, own)
            folder = None if checkpoint is None else Path(checkpoint) / f"member-{number}"
            jobs.append(Job(member, start, train, validation, own, folder, progress))
        posterior = joined(fit_all(jobs, self.executor), type(self).__name__, seed, {})
        posterior.info["settings"]["members"] = self.members
        return posterior
