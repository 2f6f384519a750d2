"""Ensemble-started chains: one chain of a sampler from each member of a deep ensemble, pooled.

    w_m = argmax log p(w | D) from an initialisation of its own,    chain m starts at w_m,    m = 1..M

Optimisation finds a mode in a fraction of the steps that a cold chain takes to it; a short warm-up then
adapts step sizes, and each chain explores around its own mode. The pooled draws weigh all chains alike, not
by the mass of their modes: chains of a network do not change modes often enough to tell it.

References:
    Sommer, Wimmer, Papamarkou, Bothmann, Bischl and Rügamer 2024, arXiv 2402.01484 (DEI-MCMC); Sommer,
    Robnik, Nozadze, Seljak and Rügamer 2025, arXiv 2502.06335 (MILE, with MCLMC).
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..chains import by_chain, cumulative_log_density
from ..distributions import StoredDraws
from ..model import Model, check_model
from ..posterior import Posterior
from ..random import derive
from .chain_settings import ChainSettings
from .chains_fit import fit_chains
from .ensembles import reinitialized
from .linear_baseline import LinearBaseline, left_out_log_density
from .map import MAP
from .mclmc import MCLMC
from .members import Job, check_executor, fit_all

__all__ = ["DeepEnsembleMCMC"]

_CHECKED = 100  # draws of a chain that are held against the linear model
_VALIDATION_DRAWS = 256
_OF_EACH_CHAIN = ("acceptance", "divergences", "gradients", "step_size")


@dataclass(frozen=True, kw_only=True)
class DeepEnsembleMCMC:
    """A chain from each of ``members`` networks that ``member`` trains from different initial weights.

    What has no belief stays where the chain's own member has it: point estimates, statistics of normalisation
    layers, and a learned noise level. Each draw is stored with its own, so that members that found different
    noise are pooled as they are.

    A chain that predicts held-out data worse than a linear model does is left out, by name, with a warning:
    it did not find a mode. ``sb.chains.cumulative_log_density(posterior, validation)`` says whether more
    draws or more chains would gain anything, ``sb.chains.summary(posterior, x)`` whether predictions mixed.

    Args:
        members: how many chains.
        member: the method of each start; its posterior must be one network (its mean is the start).
        sampler: ``MCLMC(...)``, ``HMC(...)``, ``NUTS(...)`` or ``SGHMC(...)`` with its ``warm_up`` and
            ``draws`` of each chain; its ``chains`` and ``reinitialize`` do not count here. With as many
            gradients as the default (6000 for each chain), 4 members on one split of two UCI sets predicted
            validation rows with, in nats for each row (``benchmarks/ensemble_sampler.py --splits 1``):

            | chains | energy | yacht |
            |---|---|---|
            | `MCLMC(warm_up=1000)`, the default | 1.56 | 2.50 |
            | `MCLMC(warm_up=100)` | 1.59 | 2.23 |
            | `HMC`, the best of three | 1.30 | 2.43 |
            | `NUTS(warm_up=90, max_depth=5)` | 1.07 | 2.37 |
            | none: the ensemble alone | 1.18 | 2.24 |

            HMC and NUTS have no bias in the long run, and would need far longer chains here.
        executor: any ``concurrent.futures.Executor`` of processes, for the members and then for groups of
            ``sampler.group`` chains; ``None`` runs all here.
        reinitialize: draw each member's start anew; ``False`` starts all at ``model.network``'s weights.
        drop: leave out chains that are worse than a linear model; ``False`` only warns.

    Example:
        >>> import torch, singularbayes as sb
        >>> x = torch.linspace(-1, 1, 32).unsqueeze(1)
        >>> network = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
        >>> model = sb.Model(network, sb.Gaussian(noise=0.1))
        >>> member = MAP(epochs=100, batch_size=32, learning_rate=0.05)
        >>> sampler = sb.HMC(warm_up=0, draws=10, step_size=0.01, max_steps=3)
        >>> method = DeepEnsembleMCMC(members=3, member=member, sampler=sampler)
        >>> method.fit(model, (x, x.square())).support
        30
    """

    members: int = 12
    member: Any = field(default_factory=MAP)
    sampler: ChainSettings = field(default_factory=lambda: MCLMC(warm_up=1000, draws=1000, thin=2))
    executor: Executor | None = None
    reinitialize: bool = True
    drop: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.members, bool) or not isinstance(self.members, int) or self.members < 1:
            raise ValueError(f"members must be a whole number of at least 1, got {self.members!r}")
        if isinstance(self.member, type) or not hasattr(self.member, "fit"):
            raise TypeError(f"member must be a method such as MAP(), got {self.member!r}")
        if not isinstance(self.sampler, ChainSettings):
            raise TypeError(
                f"sampler must be HMC(...), NUTS(...), MCLMC(...) or SGHMC(...), got {self.sampler!r}"
            )
        if self.sampler.executor is not None:
            raise ValueError("give the executor to DeepEnsembleMCMC(executor=...), not to its sampler")
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
        """Train the members, sample from each, pool what beats a linear model.

        Args:
            model: network, likelihood, prior; untouched.
            train: training data in any form.
            validation: held-out data: for early stop of the members, and for the comparison with the linear
                model. Where there are none it is made on the training data, each half of which has the linear
                model of the other: on its own rows one of many features is perfect.
            seed: of starts, data orders and chains; members are those of ``DeepEnsemble`` with this seed.
            checkpoint: folder to save to and to go on from: one for each member, and one for the chains.
            progress: show bars (``None``: on a terminal only).

        Returns:
            Stored draws step by step (draw ``n`` of chain ``c`` is row ``n * C + c``); in ``info`` also
            ``members`` (the number of each chain that was kept), ``dropped``, ``chain_log_density`` of all,
            and ``linear_log_density``, in nats for each row of data.

        Raises:
            TypeError, ValueError: bad data or settings; a member that is no single network.
            TrainingDiverged, ChainsStuck: see ``MAP`` and the sampler.

        Warns:
            UserWarning: chains that are worse than a linear model, by name; all of them are (none is left
                out then).
        """
        check_model(model)
        folder = None if checkpoint is None else Path(checkpoint)
        fitted, starts = self._trained(model, train, validation, seed, folder, progress)
        rows = torch.stack([_row(start) for start in starts])
        posterior = fit_chains(
            dataclasses.replace(self.sampler, executor=self.executor, chains=self.members),
            starts[0],
            train,
            seed=derive(seed, "chains"),
            checkpoint=None if folder is None else folder / "chains",
            progress=progress,
            label=type(self).__name__,
            rows=rows,
            temperature=self.sampler.temperature,
        )
        info = posterior.info
        info["seed"] = seed
        info["seconds"] = info.get("seconds", 0.0) + sum(p.info.get("seconds", 0.0) for p in fitted)
        info["settings"] = {
            "members": self.members,
            "member": fitted[0].info.get("method"),
            "sampler": type(self.sampler).__name__,
            **{name: value for name, value in info.get("settings", {}).items() if name != "chains"},
        }
        posterior = self._held_against_a_line(model, posterior, train, validation)
        if validation is not None:
            found = cumulative_log_density(_thinned(posterior, _VALIDATION_DRAWS), validation)
            posterior.info["validation_nll"] = -found.pooled[-1].item()
        return posterior

    def _trained(
        self, model: Model, train: Any, validation: Any, seed: int, folder: Path | None, progress: bool | None
    ) -> tuple[list[Posterior], list[Model]]:
        """The members, and the model started at each."""
        jobs = []
        for number in range(self.members):
            own = derive(seed, "member", number)
            start = reinitialized(model, own) if self.reinitialize else model
            at = None if folder is None else folder / f"member-{number}"
            jobs.append(Job(self.member, start, train, validation, own, at, progress))
        fitted = fit_all(jobs, self.executor)
        starts = []
        for number, (job, posterior) in enumerate(zip(jobs, fitted, strict=True)):
            if not isinstance(posterior, Posterior):
                raise TypeError(
                    f"member {number} is a {type(posterior).__name__}, which is no single network that a "
                    f"chain could start at; give a member such as MAP() or MeanField()"
                )
            starts.append(job.model.started_at(posterior))
        return fitted, starts

    def _held_against_a_line(
        self, model: Model, posterior: Posterior, train: Any, validation: Any
    ) -> Posterior:
        """Without the chains that a linear model beats."""
        if validation is None:
            data, where, line = train, "training", left_out_log_density(model, train)
        else:
            data, where, line = validation, "validation", LinearBaseline(model, train).log_density(validation)
        found = (
            cumulative_log_density(_thinned(posterior, self.members * _CHECKED), data)
            .by_chain[:, -1]
            .tolist()
        )
        worse = [number for number, value in enumerate(found) if math.isnan(value) or value < line]
        dropped = worse if self.drop and len(worse) < self.members else []
        facts = {
            "chain_log_density": found,
            "linear_log_density": line,
            "members": [number for number in range(self.members) if number not in dropped],
            "dropped": [f"member {number}" for number in dropped],
        }
        if worse:
            warnings.warn(self._words(worse, dropped, found, line, where), stacklevel=3)
        return _without(posterior, dropped, facts)

    def _words(
        self, worse: list[int], dropped: list[int], found: list[float], line: float, where: str
    ) -> str:
        if dropped:
            outcome = "they are left out"
        elif not self.drop:
            outcome = "they are kept, as drop=False asks"
        else:
            outcome = (
                "no chain is better, so all are kept: the members did not train (learning rate, epochs), or "
                "the noise level is far off"
            )
        named = ", ".join(f"member {number} ({found[number]:.4g})" for number in worse)
        return (
            f"chains predict the {where} data worse than a linear model ({line:.4g} nats for each row): "
            f"{named}; {outcome}"
        )


def _row(model: Model) -> Float[Tensor, " D"]:
    """The whole row of the network that a model starts at."""
    return model.layout.flatten(model.network, model.likelihood.parameters)


def _thinned(posterior: Posterior, most: int) -> Posterior:
    """At most ``most`` draws of all chains together, evenly spaced in each."""
    draws = by_chain(posterior)
    chains, steps = draws.shape[:2]
    count = max(1, min(steps, most // chains))
    chosen = torch.linspace(0, steps - 1, count).round().long() if count > 1 else torch.tensor([steps - 1])
    return _of_chains(posterior, draws[:, chosen.to(draws.device)], {})


def _without(posterior: Posterior, dropped: list[int], facts: dict[str, Any]) -> Posterior:
    """The other chains, and what ``info`` says of each."""
    if not dropped:
        posterior.info.update(facts)
        return posterior
    kept = facts["members"]
    info = dict(facts)
    for name in _OF_EACH_CHAIN:
        if name in posterior.info:
            info[name] = [posterior.info[name][number] for number in kept]
    info["never_accepted"] = [kept.index(c) for c in posterior.info.get("never_accepted", []) if c in kept]
    return _of_chains(posterior, by_chain(posterior)[kept], info)


def _of_chains(posterior: Posterior, draws: Float[Tensor, "C N D"], facts: dict[str, Any]) -> Posterior:
    """The posterior with these draws."""
    chains, steps, size = draws.shape
    info = {**posterior.info, **facts, "chains": chains, "draws_per_chain": steps}
    info["numbers"] = posterior.info["numbers"] * chains * steps // posterior.distribution.support
    distribution = StoredDraws(draws.transpose(0, 1).reshape(-1, size))
    return Posterior(posterior.network, distribution, posterior.likelihood, posterior.layout, info)
