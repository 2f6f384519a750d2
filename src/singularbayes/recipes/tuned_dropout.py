"""MC dropout as published for regression: rate and noise level by validation log-likelihood, then a refit.

    rate, noise = argmax mean log (1/S) sum_s N(y; f(x; w, mask_s), noise^2)    on the validation set

For every rate the network is fitted once to the training set by squared error. The noise level enters that
fit through the weight of the prior alone, which is next to nothing for a wide prior, so all levels are tried
on ONE fit (the published code fits again for each of its few levels). The best pair is then fitted to
training and validation set together.

References:
    Y. Gal and Z. Ghahramani (2016), arXiv 1506.02142, eq. 8 (the log-likelihood) and section 5.2; their code
    of 2018, github.com/yaringal/DropoutUncertaintyExps (the grid search and the refit).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..data import Tensors, as_source, gather
from ..likelihoods import Gaussian
from ..methods import MCDropout
from ..model import Model
from ..posterior import Posterior

__all__ = ["TunedDropout"]

_LEVELS = np.geomspace(1e-3, 2.0, 120)  # of the noise, in units of y: steps of 7%


@dataclass(frozen=True, kw_only=True)
class TunedDropout:
    """``member`` at the dropout rate and noise level that a validation set likes best.

    The model's likelihood has a fixed noise level (it only scales the squared error); the posterior's has the
    level that was found. The seconds of the result hold all fits.

    Args:
        member: trains with dropout.
        rates: of all the network's dropout modules, tried in turn.
        draws: of the validation log-likelihood.
        share: of the member's epochs that a rate is tried for.
        refit: fit the best pair to training and validation set together, for all epochs; ``False`` keeps the
            fit to the training set.
    """

    member: MCDropout = field(default_factory=MCDropout)
    rates: tuple[float, ...] = (0.005, 0.01, 0.05, 0.1)
    draws: int = 128
    share: float = 1.0
    refit: bool = True

    def __post_init__(self) -> None:
        if not self.rates or not all(0 < rate < 1 for rate in self.rates):
            raise ValueError(f"rates must be one or more numbers between 0 and 1, got {self.rates}")
        if not 0 < self.share <= 1:
            raise ValueError(f"share is a part of the epochs, above 0 and at most 1, got {self.share}")
        if self.share < 1 and not self.refit:
            raise ValueError("refit=False keeps a fit to which the rate was tried: it needs share=1")

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
        """Choose, then fit. Arguments and errors: see ``MAP.fit``; ``validation`` is needed.

        Raises:
            ValueError: no validation set, or a likelihood other than ``Gaussian`` with a fixed noise.
        """
        likelihood = model.likelihood
        if not isinstance(likelihood, Gaussian) or likelihood.noise is None:
            raise ValueError(
                f"the noise level is chosen here: got {likelihood!r}, expected Gaussian(noise=1.0)"
            )
        if validation is None:
            raise ValueError("rate and noise level are chosen on a validation set; pass validation=(X, y)")
        held = _in_memory(model, validation)
        options: dict[str, Any] = {"seed": seed, "progress": progress}
        trial = replace(self.member, epochs=max(1, round(self.share * self.member.epochs)))
        best: tuple[float, float, float, Posterior] | None = None
        seconds = 0.0
        for rate in self.rates:
            folder = None if checkpoint is None else Path(checkpoint) / f"rate-{rate:g}"
            posterior = trial.fit(_at_rate(model, rate), train, checkpoint=folder, **options)
            seconds += posterior.info["seconds"]
            log_density, noise = _best_noise(posterior, held, self.draws, seed)
            if best is None or log_density > best[0]:
                best = log_density, rate, noise, posterior
        assert best is not None  # noqa: S101 - there is a rate
        _, rate, noise, posterior = best
        if self.refit:
            folder = None if checkpoint is None else Path(checkpoint) / "refit"
            together = _joined(_in_memory(model, train), held)
            posterior = self.member.fit(_at_rate(model, rate), together, checkpoint=folder, **options)
            seconds += posterior.info["seconds"]
        info = {
            **posterior.info,
            "method": type(self).__name__,
            "seconds": seconds,
            "rate": rate,
            "noise": noise,
        }
        return Posterior(
            posterior.network, posterior.distribution, Gaussian(noise=noise), posterior.layout, info
        )


def _at_rate(model: Model, rate: float) -> Model:
    """The model, all its dropout modules at one rate."""
    changed = copy.copy(model)
    changed.network = model.copy_network()
    for module in changed.network.modules():
        if isinstance(module, nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):
            module.p = rate
    return changed


def _in_memory(model: Model, data: Any) -> Tensors:
    held = gather(as_source(data, next(model.network.parameters()).dtype, model.takes_integers))
    if held.y is None or not isinstance(held.x, Tensor):
        raise ValueError("expected (X, y) with X one array or tensor")
    return held


def _joined(train: Tensors, held: Tensors) -> tuple[Tensor, Tensor]:
    assert train.y is not None  # noqa: S101 - _in_memory saw to it
    assert held.y is not None  # noqa: S101
    return torch.cat([train.x, held.x]), torch.cat([train.y, held.y])


def _best_noise(posterior: Posterior, held: Tensors, draws: int, seed: int) -> tuple[float, float]:
    """The highest mean log density of the held-out labels over the noise levels, and its level."""
    outputs = posterior.functions(posterior.draw(draws, seed), held.x)
    assert held.y is not None  # noqa: S101 - _in_memory saw to it
    labels = posterior.likelihood.labels(outputs.shape[1:], held.y)
    found = [
        (Gaussian(noise=level).predictive(outputs, {}).log_prob(labels).double().mean().item(), level)
        for level in _LEVELS.tolist()
    ]
    return max(found)
