"""``Moments``: the Gaussian of a network's outputs at each input, and the protocol of a link."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from ..likelihoods import Likelihood
from ..posterior import Posterior
from ..predictive import Predictive

__all__ = ["Link", "Method", "Moments"]


@dataclass(frozen=True, eq=False, repr=False)
class Moments:
    """Mean and covariance of the ``K`` outputs at each of ``B`` inputs; between inputs nothing is kept.

    Args:
        mean: ``(B, K)``.
        covariance: of the outputs at one input, epistemic alone ``(B, K, K)``.
        likelihood: carries the task and the calibration temperature.
        numbers: the likelihood's learned numbers, with a leading axis of length 1.
        event: shape of one input's output; its entries are the ``K``, in row-major order.
        info: ``method`` that found them, whether they are ``exact``, ``reason`` where the default went on to
            an approximation, and ``covariance``, where the outputs' covariance is not kept.
    """

    mean: Float[Tensor, "B K"]
    covariance: Float[Tensor, "B K K"]
    likelihood: Likelihood
    numbers: Mapping[str, Tensor]
    event: torch.Size
    info: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        rows, outputs = self.mean.shape
        return f"Moments({rows} rows, {outputs} outputs, {type(self.likelihood).__name__})"

    @property
    def variance(self) -> Float[Tensor, "B K"]:
        """Variance of each output, epistemic alone."""
        return self.covariance.diagonal(dim1=1, dim2=2)

    def predictive(self, link: Link) -> Predictive:
        """The predictive distribution of labels.

        All links but ``MonteCarlo`` give one component, in which ``epistemic`` is 0: the split is not in it,
        but ``covariance`` has the epistemic part. What calibration left in the likelihood is respected.

        Args:
            link: ``MonteCarlo()`` (any likelihood), ``Probit()``, ``MeanFieldLink()`` (classes), or
                ``Exact()`` (``Gaussian``, ``Bernoulli``, two classes).

        Raises:
            TypeError: no link, or one that does not know the likelihood.
        """
        if isinstance(link, type) or not callable(getattr(link, "predictive", None)):
            raise TypeError(f"a link is an object such as MonteCarlo() or Probit(), got {link!r}")
        return link.predictive(self)


@runtime_checkable
class Link(Protocol):
    """Turns Gaussian outputs into a predictive."""

    def predictive(self, moments: Any) -> Predictive:
        """The predictive of :class:`Moments`."""
        ...


@runtime_checkable
class Method(Protocol):
    """Finds the moments of a posterior's outputs."""

    def moments(self, posterior: Posterior, x: Any) -> Moments:
        """Mean and covariance at each input."""
        ...
