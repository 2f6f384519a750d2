"""Hybrid VI-HMC: a variational fit of the whole network, then HMC on the parameters that matter.

    1. q = N(m, diag(s^2)), a variational fit of all parameters
    2. S, the entries that a rule selects by q (:mod:`.selection`); R, the rest
    3. HMC on p(w_S | D, w_R), in full batches; w_R does not move
    4. what becomes of the rest (:mod:`.rest`): which distribution the draws have

On a factorised network the entries are those of the factors ``A`` and ``B``: HMC in the singular posterior's
own coordinates.

HMC moves in units of ``s``: a unit mass there is the mass ``1 / s_i^2`` here, and the first step size that is
tried is 1 standard deviation. The chains start at draws of ``q`` in the selected entries.

References:
    Thiagarajan, Zaki and Shields 2025, arXiv 2507.14652, section 3.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..distributions import StoredDraws
from ..model import Model, check_model
from ..posterior import Posterior
from ..random import derive
from ..sampling.sampler import Sampler
from ..sampling.scaled import ScaledSampler
from .chain_settings import ChainSettings
from .chains_fit import FittedChains, facts_of, note_validation, sample_network
from .hmc import HMC
from .mean_field import MeanField
from .network_density import NetworkDensity
from .rest import Frozen, Rest
from .selection import Candidates, Selection, Sensitivity

__all__ = ["HybridHMC"]

_LENGTHS = ("chains", "warm_up", "draws", "thin", "executor", "group")


@dataclass(frozen=True, kw_only=True, eq=False)
class _InUnits(ChainSettings):
    """Chains of a kernel in units of ``scale``."""

    kernel: Sampler
    scale: Float[Tensor, " k"]

    def sampler(self) -> ScaledSampler:
        return ScaledSampler(self.kernel, self.scale)


@dataclass(frozen=True, kw_only=True)
class HybridHMC:
    """HMC on the parameters that a rule selects by a variational fit.

    Full-batch HMC takes smaller steps the more parameters there are, and many of a network's parameters
    hardly touch its outputs. The result is as exact as the sampler on the selected entries GIVEN the rest,
    and as good as the variational fit beyond: it is not the posterior of the network. ``info["target"]``
    says what it is.

    Point estimates, a learned noise level and statistics of normalisation layers stay as the variational fit
    left them.

    Args:
        vi: a variational method, or its posterior, fitted before: one network with spread, such as
            ``MeanField()`` or ``IVON()`` give. Of a correlated Gaussian the marginal variances count.
        select: the rule: ``Sensitivity(share)``, ``GradientVariance(share)``, ``RandomSelection(share)``,
            ``NamedParameters(patterns)``, ``AllParameters()``, or an object of your own with ``select``.
        sampler: ``HMC()``, ``NUTS()``, ``MCLMC()``, or ``SGHMC()`` on all data; its ``reinitialize`` has no
            part here.
        rest: ``Frozen()``, ``Redrawn()`` or ``SpreadAdded()``.
        warm_start: move in units of the variational standard deviations, in which ``step_size``,
            ``trajectory`` and ``mass`` of the sampler are then counted; ``False``: in units of the weights.

    Example:
        >>> import torch, singularbayes as sb
        >>> x = torch.linspace(-1, 1, 32).unsqueeze(1)
        >>> layers = torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)
        >>> model = sb.Model(torch.nn.Sequential(*layers), sb.Gaussian(noise=0.1))
        >>> kernel = HMC(chains=2, warm_up=50, draws=10, max_steps=8)
        >>> method = HybridHMC(vi=MeanField(epochs=50), select=Sensitivity(0.9), sampler=kernel)
        >>> posterior = method.fit(model, (x, x.sin()))
        >>> posterior.support, posterior.info["selected"] < 25
        (20, True)
    """

    vi: Any = field(default_factory=MeanField)
    select: Selection = field(default_factory=Sensitivity)
    sampler: ChainSettings = field(default_factory=HMC)
    rest: Rest = field(default_factory=Frozen)
    warm_start: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.vi, type) or not (isinstance(self.vi, Posterior) or hasattr(self.vi, "fit")):
            raise TypeError(
                f"vi must be a method such as MeanField(), or a fitted posterior, got {self.vi!r}"
            )
        for name, kind, example in (
            ("select", Selection, "Sensitivity(0.9)"),
            ("rest", Rest, "Frozen()"),
        ):
            value = getattr(self, name)
            if isinstance(value, type) or not isinstance(value, kind):
                raise TypeError(f"{name} must be an object such as {example}, got {value!r}")
        if not isinstance(self.sampler, ChainSettings):
            raise TypeError(f"sampler must be a method such as HMC() or NUTS(), got {self.sampler!r}")
        batch_size = getattr(self.sampler, "batch_size", None)
        if batch_size is not None:
            raise ValueError(
                f"every step takes the gradient of all data here, and the sampler has "
                f"batch_size={batch_size}; leave it out"
            )
        one, two = _temperature_of(self.vi), self.sampler.temperature
        if one != two:
            raise ValueError(
                f"vi has temperature={one} and sampler {two}: they would fit two posteriors; give both the "
                f"same"
            )

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
        """The variational fit, then the chains. Arguments, returns and errors: see ``MAP.fit``.

        Args:
            model: that the belief is about.
            train: training data, all of which every gradient of the sampler takes.
            validation: held-out data: for the variational fit (early stopping), and ``validation_nll``.
            seed: of everything.
            checkpoint: folder; a run that was killed goes on, in the variational fit or in the chains.
            progress: see ``MAP.fit``.

        Returns:
            ``StoredDraws`` of all chains, step by step. ``info``: ``selected`` of how many ``entries``,
            ``selected_in`` each tensor by name, ``target``, and what the sampler says (``acceptance``,
            ``divergences``, ``step_size`` of each chain, in standard deviations of ``q`` if ``warm_start``).

        Raises:
            TypeError: a variational posterior that is none of one network.
            ValueError: a rule that selects nothing, or something that is no entry; bad data.
            ChainsStuck: no chain accepts anything.
        """
        check_model(model)
        began = time.perf_counter()
        row = model.layout.flatten(model.network, model.likelihood.parameters)
        NetworkDensity(
            model, train, row.unsqueeze(0), None, self.sampler.temperature
        )  # refused before any work
        folder = None if checkpoint is None else Path(checkpoint)
        q = self._variational(model, train, validation, seed, folder, progress)
        candidates = Candidates.of(
            model, q, train, temperature=self.sampler.temperature, seed=derive(seed, "selection")
        )
        selected = _checked(self.select.select(candidates), candidates)
        fitted = self._sampled(candidates, selected, q, train, validation, seed, folder, progress)
        rest = _others(selected, len(candidates.std))
        draws = self.rest.after(fitted.rows, rest, _drawn(q, derive(seed, "rest", "after")))
        network = candidates.model.copy_network()
        info = {
            **facts_of(self.sampler, candidates.model, fitted, seed, self.sampler.temperature),
            **self._facts(model, q, selected),
            "numbers": len(draws) * model.layout.trained,
            "seconds": time.perf_counter() - began,
        }
        posterior = Posterior(network, StoredDraws(draws), candidates.model.likelihood, model.layout, info)
        note_validation(posterior, fitted.prepared)
        return posterior

    def _variational(
        self,
        model: Model,
        train: Any,
        validation: Any,
        seed: int,
        folder: Path | None,
        progress: bool | None,
    ) -> Posterior:
        if isinstance(self.vi, Posterior):
            return self.vi
        own = None if folder is None else folder / "vi"
        return self.vi.fit(
            model, train, validation, seed=derive(seed, "vi"), checkpoint=own, progress=progress
        )

    def _sampled(
        self,
        candidates: Candidates,
        selected: Int[Tensor, " k"],
        q: Posterior,
        train: Any,
        validation: Any,
        seed: int,
        folder: Path | None,
        progress: bool | None,
    ) -> FittedChains:
        """The chains on the selected entries."""
        method, mean, std = self.sampler, candidates.mean, candidates.std[selected]
        rows = mean.repeat(method.chains, 1)
        rows[:, selected] = _drawn(q, derive(seed, "start"))(len(rows))[:, selected].to(mean)
        rest = _others(selected, len(candidates.std))
        rows = self.rest.before(rows, rest, _drawn(q, derive(seed, "rest")))
        if self.warm_start:
            scale = torch.where(std > 0, std, torch.ones_like(std))  # a point that was selected all the same
            method = _InUnits(
                kernel=method.sampler(),
                scale=scale,
                **{name: getattr(method, name) for name in _LENGTHS},
            )
        return sample_network(
            method,
            candidates.model,
            train,
            validation,
            seed=derive(seed, "chains"),
            checkpoint=None if folder is None else folder / "chains",
            progress=progress,
            label=type(self.sampler).__name__,
            rows=rows,
            free=selected,
            temperature=self.sampler.temperature,
        )

    def _facts(self, model: Model, q: Posterior, selected: Tensor) -> dict[str, Any]:
        slots = model.layout.of_kind("belief")
        inside = {s.name: int(((selected >= s.start) & (selected < s.stop)).sum()) for s in slots}
        return {
            "method": type(self).__name__,
            "target": self.rest.target,
            "selected": len(selected),
            "entries": model.layout.belief,
            "share": len(selected) / model.layout.belief,
            "selected_in": inside,
            "vi": {name: q.info.get(name) for name in ("method", "seconds", "epochs")},
            "sampler": type(self.sampler).__name__,
            "settings": {
                "vi": repr(self.vi),
                "select": repr(self.select),
                "sampler": repr(self.sampler),
                "rest": repr(self.rest),
                "warm_start": self.warm_start,
            },
        }


def _temperature_of(vi: Any) -> float:
    """Of a method, or of what a posterior says of its own."""
    if isinstance(vi, Posterior):
        return vi.info.get("settings", {}).get("temperature", 1.0)
    return getattr(vi, "temperature", 1.0)


def _others(selected: Int[Tensor, " k"], entries: int) -> Int[Tensor, " m"]:
    """The belief entries that were not selected."""
    left = torch.ones(entries, dtype=torch.bool, device=selected.device)
    left[selected] = False
    return left.nonzero()[:, 0]


def _drawn(q: Posterior, seed: int) -> Any:
    """So many rows of ``q``, always the same."""
    return lambda n: q.draw(n, seed)


def _checked(selected: Any, candidates: Candidates) -> Int[Tensor, " k"]:
    entries = len(candidates.std)
    if not isinstance(selected, Tensor) or selected.dim() != 1 or selected.dtype != torch.int64:
        got = tuple(selected.shape) if isinstance(selected, Tensor) else type(selected).__name__
        raise TypeError(f"select must return whole numbers (k,), positions in the flat vector, got {got}")
    if len(selected) == 0:
        raise ValueError("select chose no entry: there is nothing to sample; choose at least one")
    if bool(((selected < 0) | (selected >= entries)).any()) or len(selected.unique()) < len(selected):
        raise ValueError(
            f"select must choose among the {entries} believed entries, each once, got {selected.tolist()[:8]}"
        )
    return selected.to(candidates.mean.device).sort().values
