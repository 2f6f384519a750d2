"""Laplace's approximation: a Gaussian at a trained network's weights, by the curvature there.

    q(w) = N(theta, (H + P)^-1),        H = sum_n J_n^T H_n J_n,        P the prior's precision

``H`` is the Gauss-Newton matrix of the SUM NLL, ``theta`` the weights that ``model.network`` has. It takes
one pass of the data and trains nothing. Two predictives: linearised, ``f(x; theta) + J(x) (w - theta)``,
whose posterior this is (exactly so for a Gaussian likelihood at the linear optimum); and sampled, drawn
weights in the network itself, for which the Gauss-Newton posterior is often too wide.

It is no posterior around weights that are no optimum: train first.

References:
    MacKay 1992, "A practical Bayesian framework for backpropagation networks". Immer et al. 2021, arXiv
    2008.08216 (the linearised predictive). Daxberger et al. 2021, arXiv 2106.14806.
"""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..curvature.evidence import Evidence, Found, MarginalLikelihood, warn_of_bounds
from ..curvature.expansion import Measured, Structure
from ..curvature.kronecker import KroneckerCurvature
from ..curvature.online_evidence import OnlineMarginalLikelihood, with_noise, with_precision
from ..curvature.subset import Chosen, LastLayer, choose, expand
from ..curvature.validation import Validation
from ..data import Batches, to_device
from ..likelihoods import Gaussian
from ..model import Model, check_model
from ..nn.linearized import Linearized, linearize
from ..parameters import Patterns, owner
from ..posterior import Posterior
from ..priors import Normal
from .learner import Prepared, prepare
from .settings import check_whole

__all__ = ["LaplaceApproximation"]

PriorPrecision = MarginalLikelihood | OnlineMarginalLikelihood | Validation


class _Fit(NamedTuple):
    """A model at trained weights, and the curvature there."""

    model: Model
    network: nn.Module
    chosen: Chosen
    measured: Measured
    evidence: Evidence


@dataclass(frozen=True, kw_only=True)
class LaplaceApproximation:
    """A Gaussian from the curvature at the weights that ``model.network`` has. It trains nothing.

    Priors of the chosen parameters must be ``Normal``. What ``subset`` leaves out stays a point, as do
    normalisation layers, a learned noise and running statistics.

    Args:
        structure: ``KroneckerCurvature()`` (KFAC), ``DiagonalCurvature()``, ``FullCurvature()`` (small
            networks, last layers).
        subset: patterns of the parameters that get a distribution, or ``LastLayer()``.
        prior_precision: ``None`` takes the model's prior; ``MarginalLikelihood()`` and ``Validation()`` fit
            it after training, ``OnlineMarginalLikelihood(member=MAP(...))`` trains and fits in turn.
        linearized: predict with the network linearised at its weights. Where the output is linear in the
            chosen parameters (a stock last layer) the two are the same, and the network stays as it is.
        batch_size: examples at a time; it does not change the result.

    Example:
        >>> import singularbayes as sb
        >>> x = torch.tensor([[-1.0], [-0.5], [0.5], [1.5], [2.0], [3.0]])
        >>> y = torch.tensor([-1.1, -1.0, 0.2, 0.9, 1.4, 2.3])
        >>> model = sb.Model(nn.Linear(1, 1), sb.Gaussian(noise=0.5))
        >>> trained = model.started_at(sb.MAP(epochs=2).fit(model, (x, y)))
        >>> posterior = LaplaceApproximation(structure=sb.FullCurvature()).fit(trained, (x, y))
        >>> posterior.distribution.covariance
        tensor([[ 0.0206, -0.0181],
                [-0.0181,  0.0559]])
    """

    structure: Structure = field(default_factory=KroneckerCurvature)
    subset: Patterns | LastLayer = "*"
    prior_precision: PriorPrecision | None = None
    linearized: bool = True
    batch_size: int = 256

    def __post_init__(self) -> None:
        if isinstance(self.structure, type) or not isinstance(self.structure, Structure):
            raise TypeError(
                f"structure must be an object such as KroneckerCurvature(), DiagonalCurvature() or "
                f"FullCurvature(), got {self.structure!r}"
            )
        if self.prior_precision is not None and not isinstance(self.prior_precision, PriorPrecision):
            raise TypeError(
                f"prior_precision must be None (the model's prior), MarginalLikelihood(), Validation() or "
                f"OnlineMarginalLikelihood(...), got {self.prior_precision!r}; a number is Normal(std) in "
                f"the model, std = precision ** -1/2"
            )
        if isinstance(self.subset, type):
            raise TypeError(f"subset must be patterns or an object such as LastLayer(), got {self.subset!r}")
        check_whole(batch_size=self.batch_size)

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
        """Measure the curvature in one pass of the data.

        Args:
            model: its network is trained: by you, or ``model.started_at(MAP().fit(model, train))``.
            train: the data that it was trained on.
            validation: for ``Validation()``, and for the member of ``OnlineMarginalLikelihood``.
            seed: of those two; nothing else is random.
            checkpoint: folder of the member's stretches. The pass itself has nothing to go on from.
            progress: show the member's bars.

        Returns:
            A posterior; its ``info`` has ``log_marginal_likelihood`` (nats), ``prior_precision`` by tensor,
            ``subset``, ``last_layer``, ``jitter`` and ``noise`` where it was tuned.

        Raises:
            ValueError: bad data; a prior that is not ``Normal``; a batch normalisation in the subset; what
                the structure cannot cover (named, with what to use).

        Warns:
            UserWarning: curvature that is indefinite or singular and was mended (how much is in ``info``);
                tensors whose prior precision the evidence raises without end; a noise that is learned, and
                was not.
        """
        check_model(model)
        began = time.perf_counter()
        data, chosen = self._checked(model, train, validation)
        rounds: list[dict[str, Any]] = []
        choice, last = self.prior_precision, None
        if isinstance(choice, OnlineMarginalLikelihood):
            online = choice

            def maximise(present: Model) -> tuple[Found, dict[str, Any]]:
                nonlocal last
                fit = self._measured(present, data)
                last = _maximised(online.update, fit)
                return last, _facts(fit, last)

            model, rounds = online.train(
                model,
                chosen.slots,
                maximise,
                train,
                validation,
                seed=seed,
                checkpoint=checkpoint,
                progress=progress,
            )
        fit = self._measured(model, data)
        found = self._precision(fit, data, seed)
        warn_of_bounds(found if last is None else last)
        posterior = self._posterior(fit, found)
        posterior.info |= {
            "method": type(self).__name__,
            "seed": seed,
            "epochs": 0,
            "num_data": data.train.num_data,
            "seconds": time.perf_counter() - began,
            "settings": {item.name: repr(getattr(self, item.name)) for item in fields(self)},
            **({"rounds": rounds} if rounds else {}),
        }
        return posterior

    def _checked(self, model: Model, train: Any, validation: Any) -> tuple[Prepared, Chosen]:
        """All checks, before any work."""
        if isinstance(model.network, Linearized):
            raise ValueError(
                "the model's network is linearised already; give LaplaceApproximation the network itself: "
                "its field linearized=True linearises it"
            )
        choice = self.prior_precision
        if isinstance(choice, Validation) and validation is None:
            raise ValueError(
                "prior_precision=Validation() needs validation data: .fit(model, train, validation)"
            )
        update = choice.update if isinstance(choice, OnlineMarginalLikelihood) else choice
        if isinstance(update, MarginalLikelihood):
            update.check(model.likelihood)
        data = prepare(model, None, train, validation, model.device)
        network = model.copy_network().eval()
        _refuse_nonfinite(model)
        chosen = choose(model, network, self.subset, data.probe)
        _prior_precision(model, chosen)
        self.structure.check(expand(model, network, chosen, lambda: [(data.probe, torch.empty(0))]))
        finds = isinstance(choice, OnlineMarginalLikelihood) or (
            isinstance(choice, MarginalLikelihood) and choice.noise
        )
        if not finds:
            _warn_of_untrained_noise(model)
        return data, chosen

    def _measured(self, model: Model, data: Prepared) -> _Fit:
        """One pass of the data at the model's weights."""
        network = model.copy_network().eval()
        chosen = choose(model, network, self.subset, data.probe)

        def batches() -> Any:
            return _batches(data.train, self.batch_size, model.device)

        measured = self.structure.measure(expand(model, network, chosen, batches))
        if measured.tally.projected:
            warnings.warn(
                f"the likelihood's Hessian is indefinite at {measured.tally.projected} of "
                f"{measured.tally.rows} rows; its negative eigenvalues were set to 0 there "
                f"(info['projected_rows'])",
                stacklevel=3,
            )
        row = model.layout.flatten(network, model.likelihood.parameters)
        return _Fit(model, network, chosen, measured, Evidence(measured, chosen.slots, row, _noise(model)))

    def _precision(self, fit: _Fit, data: Prepared, seed: int) -> Found:
        """The prior's precision of each chosen tensor, by whatever is to find it."""
        choice = self.prior_precision
        if isinstance(choice, MarginalLikelihood):
            return _maximised(choice, fit)
        present = _prior_precision(fit.model, fit.chosen)
        if isinstance(choice, Validation) and data.validation is not None:
            best = choice.best(
                lambda value: self._posterior(fit, Found(torch.full_like(present, value))),
                *data.validation,
                seed,
            )
            return Found(torch.full_like(present, best))
        return Found(present)

    def _posterior(self, fit: _Fit, found: Found) -> Posterior:
        tuned = with_noise(fit.model, found.noise)
        model = with_precision(tuned, fit.chosen.slots, found.precision)
        row = model.layout.flatten(fit.network, model.likelihood.parameters)
        scale = fit.evidence.scale(_log_noise(model) if found.noise is not None else None)
        curvature = fit.measured.curvature
        distribution = curvature.gaussian(row, found.precision, scale)
        network, exact = fit.model.copy_network(), fit.chosen.linear(fit.network)
        if self.linearized and not exact:
            network = _linearized(network, fit.chosen)
        info = {
            **_facts(fit, found),
            "jitter": curvature.jitter(found.precision, scale),
            "subset": [slot.name for slot in fit.chosen.slots],
            "last_layer": fit.chosen.last,
            "linearized": self.linearized,
            "projected_rows": fit.measured.tally.projected,
            "numbers": sum(tensor.numel() for tensor in distribution.tensors().values()),
        }
        return Posterior(network, distribution, model.likelihood, model.layout, info)


def _refuse_nonfinite(model: Model) -> None:
    """A network whose training went wrong has no optimum to expand around."""
    for slot in model.layout.of_kind("belief", "point", "statistic"):
        tensor = getattr(*owner(model.network, slot.name))
        if not bool(torch.isfinite(tensor).all()):
            raise ValueError(
                f"{slot.name} of the network has entries that are nan or infinite: its training went wrong; "
                f"give a network of finite weights"
            )


def _warn_of_untrained_noise(model: Model) -> None:
    """A network that was trained elsewhere brings no noise: the model's is still the default's start."""
    likelihood = model.likelihood
    if isinstance(likelihood, Gaussian) and likelihood.noise is None and likelihood.initial_noise == 1.0:
        warnings.warn(
            "the likelihood learns its noise, and this model's stands where learning would start, at 1: the "
            "network's weights do not tell it. Give it: sb.Gaussian(noise=...), or initial_noise=; or "
            "prior_precision=sb.MarginalLikelihood(noise=True) finds it",
            stacklevel=4,
        )


def _batches(source: Batches, batch_size: int, device: torch.device) -> Any:
    for x, y in source.epoch(batch_size, 0, 0, shuffle=False):
        yield to_device(x, device), y.to(device)


def _linearized(network: nn.Module, chosen: Chosen) -> nn.Module:
    """Linear in the chosen tensors; the others are points, and need no derivative."""
    network.requires_grad_(False)
    for slot in chosen.slots:
        getattr(*owner(network, slot.name)).requires_grad_()
    return linearize(network)


def _prior_precision(model: Model, chosen: Chosen) -> Tensor:
    """The model's own prior precision of each chosen tensor.

    Raises:
        ValueError: a prior that is not ``Normal``.
    """
    values = []
    for slot in chosen.slots:
        prior = model.prior_of(slot)
        if not isinstance(prior, Normal):
            raise ValueError(
                f"LaplaceApproximation needs the prior Normal(std) on {slot.name}, got {prior!r}; give the "
                f"model prior=sb.Normal(std), or PerParameter with Normal for it, or leave it out of subset="
            )
        values.append(prior.std**-2)
    return torch.tensor(values, dtype=torch.float64, device=model.device)


def _noise(model: Model) -> float | None:
    """Standard deviation of a Gaussian likelihood's noise, its temperature included."""
    log_noise = _log_noise(model)
    return None if log_noise is None else math.exp(log_noise.item())


def _log_noise(model: Model) -> Tensor | None:
    likelihood = model.likelihood
    if not isinstance(likelihood, Gaussian):
        return None
    noise = likelihood.initial_noise if likelihood.noise is None else likelihood.noise
    value = math.log(noise) + 0.5 * math.log(likelihood.temperature)
    return torch.tensor(value, dtype=torch.float64, device=model.device)


def _maximised(choice: MarginalLikelihood, fit: _Fit) -> Found:
    found, likelihood = choice.maximise(fit.evidence), fit.model.likelihood
    noise = None if found.noise is None else found.noise / math.sqrt(likelihood.temperature)
    return found._replace(noise=noise)


def _facts(fit: _Fit, found: Found) -> dict[str, Any]:
    """What was found, in plain types."""
    log_noise = None
    if found.noise is not None:
        log_noise = torch.tensor(math.log(found.noise), dtype=torch.float64, device=fit.model.device)
        log_noise = log_noise + 0.5 * math.log(fit.model.likelihood.temperature)
    names = [slot.name for slot in fit.chosen.slots]
    facts = {
        "log_marginal_likelihood": fit.evidence(found.precision, log_noise).item(),
        "log_likelihood": fit.evidence.log_likelihood(log_noise).item(),
        "prior_precision": dict(zip(names, found.precision.tolist(), strict=True)),
        "at_bound": list(found.at_bound),
    }
    return facts if found.noise is None else {**facts, "noise": found.noise}
