"""A network's posterior by chains: starts, groups, what is stored, what is said of it.

All chains of a fit sample one density, ``log p(D | w) / T + log p(w)`` of the believed entries. What has no
belief is the same for all of them and stays bitwise as it is: point estimates and a learned noise level at
their start, statistics of normalisation layers as one pass over the training data finds them at
``model.network``'s weights.
"""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..distributions import StoredDraws
from ..likelihoods import Gaussian
from ..model import Model, check_model
from ..normalization import ShuffledPass, refreshed
from ..posterior import Posterior
from ..random import derive
from ..sampling.sample import ChainMethod
from ..sampling.samples import Samples
from . import resume
from .chain_groups import Group, run_groups
from .ensembles import reinitialized
from .learner import Prepared, prepare
from .members import check_executor

__all__ = [
    "ChainSource",
    "FittedChains",
    "facts_of",
    "fit_chains",
    "network_starts",
    "note_validation",
    "sample_network",
]

_PASS_ROWS = 64  # a batch of the pass that estimates statistics of normalisation layers
_VALIDATION_DRAWS = 256
_COPIES = 2  # of all draws that are alive at once: as chains, and as rows


@runtime_checkable
class ChainSource(ChainMethod, Protocol):
    """Settings of chains on a network: ``HMC``, ``NUTS``, ``MCLMC``, ``SGHMC``."""

    @property
    def chains(self) -> int:
        """How many, unless their starts are given."""
        ...

    @property
    def reinitialize(self) -> bool:
        """Each chain from an initialisation of its own."""
        ...

    @property
    def executor(self) -> Executor | None:
        """Where groups run."""
        ...

    @property
    def group(self) -> int | None:
        """Chains that advance as one batch."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class FittedChains:
    """What chains of a network drew, and from what.

    Args:
        samples: positions ``(C, N, d)``, with what each step did.
        start: whole rows that the chains started at, ``(C, D)``.
        free: which entries of a row a position holds, ``(d,)``; all others are those of ``start``.
        prepared: the data, checked.
    """

    samples: Samples
    start: Float[Tensor, "C D"]
    free: Int[Tensor, " d"]
    prepared: Prepared

    @property
    def rows(self) -> Float[Tensor, "M D"]:
        """Whole rows of all draws, ``(N * C, D)``, step by step, so that thinning takes from all chains."""
        draws = self.samples.draws
        rows = self.start.repeat(draws.shape[1], 1)
        rows[:, self.free] = self.samples.rows.to(rows)
        return rows


def network_starts(method: ChainSource, model: Model, prepared: Prepared, seed: int) -> Float[Tensor, "C D"]:
    """Where the chains start: believed entries of their own, or all at ``model.network``'s weights."""
    network = model.copy_network()
    row = model.layout.flatten(network, model.likelihood.parameters).to(model.device)
    passes = ShuffledPass(prepared.train, _PASS_ROWS, derive(seed, "statistics"))
    rows = refreshed(network, model.layout, row.unsqueeze(0), passes).repeat(method.chains, 1)
    if method.reinitialize:
        belief = model.layout.belief
        for chain, own in enumerate(rows):
            fresh = reinitialized(model, derive(seed, "chain", chain))
            own[:belief] = model.layout.flatten(fresh.network, model.likelihood.parameters)[:belief]
    return rows


def sample_network(
    method: ChainSource,
    model: Model,
    train: Any,
    validation: Any = None,
    *,
    seed: int,
    checkpoint: str | Path | None,
    progress: bool | None,
    label: str,
    rows: Float[Tensor, "C D"] | None = None,
    free: Int[Tensor, " d"] | None = None,
    temperature: float = 1.0,
) -> FittedChains:
    """Chains on a network's posterior. Arguments and errors: see :func:`fit_chains`."""
    check_model(model)
    check_executor(method.executor)
    _warn_of_untrained_noise(model)
    prepared = prepare(model, None, train, validation, model.device)
    start = network_starts(method, model, prepared, seed) if rows is None else rows.to(model.device)
    _check_room(model, len(start) * method.draws)
    held = torch.arange(model.layout.belief) if free is None else free
    settings = dataclasses.replace(method, executor=None)  # type: ignore[type-var]
    names = ("executor", "draws", "chains")  # more draws may be asked for; the starts say how many chains
    parts = start.split(method.group or len(start))
    groups, first = [], 0
    for number, part in enumerate(parts):
        mark = resume.fingerprint(settings, names, model, prepared, part, seed)
        mark = resume.digest_of(held) + mark + repr(temperature)
        folder = None if checkpoint is None else Path(checkpoint) / f"group-{number}"
        chains = (first, first + len(part))
        own = derive(seed, "group", number)
        groups.append(
            Group(settings, model, train, part, free, temperature, chains, own, folder, progress, label, mark)
        )
        first += len(part)
    samples = run_groups(groups, method.executor)
    return FittedChains(samples, start, held.to(start.device), prepared)


def fit_chains(
    method: ChainSource,
    model: Model,
    train: Any,
    validation: Any = None,
    *,
    seed: int,
    checkpoint: str | Path | None,
    progress: bool | None,
    label: str | None = None,
    rows: Float[Tensor, "C D"] | None = None,
    free: Int[Tensor, " d"] | None = None,
    temperature: float = 1.0,
    facts: Mapping[str, Any] | None = None,
) -> Posterior:
    """Sample a network's posterior.

    Args:
        method: settings of the chains.
        model: network, likelihood, prior; untouched.
        train: training data in any form; in memory, ``(X, y)``, is quickest by far.
        validation: held-out data, for ``info["validation_nll"]``.
        seed: of starts and chains.
        checkpoint: folder to save to every few seconds and to go on from; each group has its own in it.
        progress: show acceptance and divergences.
        label: name of the method, where it is not that of ``method``'s class.
        rows: where each chain starts, in place of ``method.chains`` starts of our own.
        free: entries that move; the others of a row stay as they are. All believed ones by default.
        temperature: ``T`` of the likelihood.
        facts: more for ``info``.

    Returns:
        A posterior of ``C * N`` stored draws, step by step: draw ``n`` of chain ``c`` is row ``n * C + c``.

    Raises:
        ChainsStuck: no chain of a group ever accepts a proposal; what was kept is saved.
        TypeError: an executor of threads, or of processes for what cannot be pickled.
        ValueError: bad data, rows or settings; more draws than the memory holds.
    """
    label = type(method).__name__ if label is None else label
    fitted = sample_network(
        method,
        model,
        train,
        validation,
        seed=seed,
        checkpoint=checkpoint,
        progress=progress,
        label=label,
        rows=rows,
        free=free,
        temperature=temperature,
    )
    distribution = StoredDraws(fitted.rows)
    network = model.copy_network()
    model.layout.write(network, distribution.mean)
    info = {**facts_of(method, model, fitted, seed, temperature), "method": label, **(facts or {})}
    posterior = Posterior(network, distribution, model.likelihood, model.layout, info)
    note_validation(posterior, fitted.prepared)
    return posterior


def note_validation(posterior: Posterior, prepared: Prepared) -> None:
    """``info["validation_nll"]``, nats for each row, where there are validation data."""
    if prepared.validation is not None:
        x, y = prepared.validation
        log_prob = posterior.predict(x, draws=_VALIDATION_DRAWS).log_prob(y)
        posterior.info["validation_nll"] = -log_prob.double().mean().item()


def facts_of(
    method: ChainSource, model: Model, fitted: FittedChains, seed: int, temperature: float
) -> dict[str, Any]:
    """What ``info`` says of chains."""
    samples = fitted.samples
    own = {f.name: getattr(method, f.name) for f in dataclasses.fields(method)}  # type: ignore[arg-type]
    held = [slot.name for slot in model.layout.of_kind("point", "likelihood", "statistic")]
    count = samples.draws.shape[0] * samples.draws.shape[1]
    facts = {"step_size": samples.facts["step_size"].tolist()} if "step_size" in samples.facts else {}
    return {
        **{name: value for name, value in samples.info.items() if name != "seed"},
        **facts,
        "numbers": count * len(fitted.free),
        "seed": seed,
        "num_data": fitted.prepared.train.num_data,
        "temperature_of_the_likelihood": temperature,
        "held_fixed": held,
        "settings": {name: value for name, value in own.items() if name != "executor"},
    }


def _warn_of_untrained_noise(model: Model) -> None:
    likelihood = model.likelihood
    if isinstance(likelihood, Gaussian) and likelihood.noise is None and likelihood.initial_noise == 1.0:
        warnings.warn(
            "the likelihood learns its noise, which chains hold where it starts, here at 1: a noise "
            "level without a prior has no posterior beside sampled weights. Give it: sb.Gaussian(noise=...), "
            "or fit MAP first and sample model.started_at(posterior)",
            stacklevel=5,
        )


def _check_room(model: Model, count: int) -> None:
    """All draws must fit the memory.

    Raises:
        ValueError: they do not, with sizes.
    """
    each = model.layout.size * torch.finfo(model.dtype).bits // 8
    needed, there = _COPIES * count * each, _memory(model.device)
    if there is not None and needed > there:
        raise ValueError(
            f"{count:,} draws of {model.layout.size:,} numbers take {count * each / 1e9:.3g} GB, and "
            f"{_COPIES} times that for a moment; this machine has {there / 1e9:.3g} GB. Keep fewer: thin=10 "
            f"with a tenth of the draws costs the same steps"
        )


def _memory(device: torch.device) -> int | None:
    """Bytes of the device; ``None`` where the system does not tell."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None
