"""Bayesian linear regression on random features; for classes Laplace's approximation at the mode.

    q(beta_k) = N(mode_k, Lambda_k^-1),    Lambda_k = I / std^2 + (1 / T) sum_i h_ik phi_i phi_i^T

See :mod:`..curvature.head`. No step size, no random number: steps to the mode, of which one is enough for
Gaussian labels, and a pass for ``Lambda``.

References:
    Rasmussen and Williams 2006, eq. 2.11 (regression), algorithm 3.3 (classes, with the full matrix).
"""

from __future__ import annotations

import copy
import math
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

from torch import Tensor

from ..curvature.head import HeadPosterior
from ..data import to_device
from ..model import Model, check_model
from ..nn.random_feature_head import RandomFeatureHead
from ..posterior import Posterior
from ..priors import Normal
from .feature_head import row_gaussian
from .learner import prepare
from .settings import check_whole

__all__ = ["ExactInference"]


@dataclass(frozen=True, kw_only=True)
class ExactInference:
    """The posterior of a ``RandomFeatureHead``'s weights: exact for Gaussian labels of known noise.

    It is what ``RandomFeatures`` takes as ``inference=``, and a method for a model whose network is such a
    head. Memory is ``features^2`` numbers for Gaussian labels and ``K features^2`` for ``K`` classes; of
    classes the matrix between two of them is left out.

    For classes Laplace's Gaussian is symmetric where the posterior is not: at a large ``std``, which the
    evidence often chooses, draws reach across the mode and their predictive is under-confident (the mean's is
    not). Choose a smaller ``std`` on validation data, or predict by ``sb.moments(posterior, x)`` and a link.

    Args:
        steps: at most, to the mode of classes.
        temperature: ``T``; the data count ``1 / T``.
        batch_size: rows at a time; it does not change the result.
    """

    steps: int = 200
    temperature: float = 1.0
    batch_size: int = 1024

    def __post_init__(self) -> None:
        check_whole(steps=self.steps, batch_size=self.batch_size)
        value = self.temperature
        if isinstance(value, bool) or not isinstance(value, Real) or not 0 < value < math.inf:
            raise ValueError(f"temperature must be positive and finite, got {value!r}")

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
        """The posterior of the head. ``validation``, ``seed`` and the rest change nothing: it is one formula.

        Args:
            model: its network is a ``RandomFeatureHead``, with a ``Normal`` prior on its weight.
            train: features ``h`` and labels.
            validation: checked alone.
            seed: goes into ``info``.
            checkpoint: nothing is saved on the way.
            progress: nothing is shown.

        Returns:
            A posterior; its ``info`` has ``log_evidence`` (nats) and ``jitter``.

        Raises:
            TypeError: another network. ValueError: bad data; learned numbers of the likelihood; a prior that
                is not ``Normal``.
        """
        check_model(model)
        began = time.perf_counter()
        std = self._checked(model)
        data = prepare(model, None, train, validation, model.device)
        head = copy.deepcopy(model.network).to(model.device).double().eval().requires_grad_(False)
        assert isinstance(head, RandomFeatureHead)  # noqa: S101 - _checked saw it

        def batches() -> Iterator[tuple[Tensor, Tensor]]:
            for h, y in data.train.epoch(self.batch_size, 0, 0, shuffle=False):
                yield to_device(h, model.device).double(), y.to(model.device)

        of = HeadPosterior(head, head, model.likelihood, {}, batches, std**-2, self.temperature)
        if not of.to_mode(self.steps):
            warnings.warn(
                f"{self.steps} steps did not reach the mode of the head's weights; raise steps, or take a "
                f"smaller std",
                stacklevel=2,
            )
        network = model.copy_network()
        mean = model.layout.flatten(head).to(model.dtype)
        model.layout.write(network, mean)
        roots, jitter = of.roots()
        distribution = row_gaussian(mean, roots, model.layout, "weight")
        info = {
            "method": type(self).__name__,
            "numbers": model.layout.belief + distribution.right.numel(),
            "log_evidence": of.log_evidence(),
            "jitter": jitter,
            "seed": seed,
            "epochs": 0,
            "num_data": data.train.num_data,
            "seconds": time.perf_counter() - began,
        }
        return Posterior(network, distribution, model.likelihood, model.layout, info)

    @staticmethod
    def _checked(model: Model) -> float:
        """The prior's standard deviation; all checks of the model."""
        if not isinstance(model.network, RandomFeatureHead):
            raise TypeError(
                f"ExactInference is the inference of a RandomFeatureHead, the model's network is a "
                f"{type(model.network).__name__}; write RandomFeatures(inference=ExactInference())"
            )
        if model.likelihood.parameters:
            names = ", ".join(model.likelihood.parameters)
            raise ValueError(
                f"the likelihood learns {names}, for which there is no closed form: give a fixed noise, as "
                f"sb.Gaussian(noise=0.1), or inference=sb.MeanField(), which trains it"
            )
        (_, prior), *_ = model.prior_blocks
        if not isinstance(prior, Normal):
            raise ValueError(
                f"ExactInference needs the prior Normal(std) on the head's weight, got {prior!r}; for "
                f"another prior use inference=sb.MeanField()"
            )
        return prior.std
