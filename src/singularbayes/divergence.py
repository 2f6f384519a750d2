"""KL divergences, entry by entry, from a Gaussian or Laplace ``q`` to a prior, and their closed gradients.

Three estimators, all summed over entries by the caller, in nats, in float32 or better:

* *closed*: Normal, Laplace and Centred priors;
* *bound*: any prior; for the scale mixture
  ``KL(q || sum_k pi_k p_k) <= -log sum_k pi_k exp(-KL(q || p_k))``;
* *Monte Carlo*: ``log q(w) - log p(w)`` at one draw, unbiased, any prior.

Gradients are for the location ``mean`` and the ``scale`` (standard deviation of the Gaussian, scale of the
Laplace).

References:
    Blundell et al. 2015, arXiv 1505.05424, eq. 2. Hershey and Olsen 2007, eq. 20 (bound).
"""

from __future__ import annotations

import math
from enum import StrEnum

import torch
from torch import Tensor

from .centred import Centred
from .priors import Laplace, Normal, ScaleMixture, wide

__all__ = [
    "KL",
    "Family",
    "bound",
    "bound_gradient",
    "closed",
    "closed_gradient",
    "cross_entropy",
    "cross_entropy_gradient",
    "entropy",
    "estimator_for",
    "has_closed_form",
    "log_density",
]


class Family(StrEnum):
    """The form of every entry's ``q``."""

    GAUSSIAN = "gaussian"
    LAPLACE = "laplace"

    @property
    def unit_variance(self) -> float:
        """Variance at scale 1."""
        return 1.0 if self is Family.GAUSSIAN else 2.0


class KL(StrEnum):
    """Which estimator of the KL training uses."""

    CLOSED = "closed"
    BOUND = "bound"
    MONTE_CARLO = "monte_carlo"


def has_closed_form(prior: object) -> bool:
    """Whether the KL to this prior is known exactly."""
    return isinstance(prior, Normal | Laplace | Centred)


def estimator_for(prior: object, kl: KL | None) -> KL:
    """The estimator that was asked for; for ``None`` the closed form, else Monte Carlo.

    Raises:
        ValueError: the closed form was asked for, and this prior has none.
    """
    if kl is KL.CLOSED and not has_closed_form(prior):
        raise ValueError(
            f"the KL to {type(prior).__name__} has no closed form; use kl=sb.KL.MONTE_CARLO or sb.KL.BOUND"
        )
    return kl or (KL.CLOSED if has_closed_form(prior) else KL.MONTE_CARLO)


def entropy(family: Family, scale: Tensor) -> Tensor:
    """Differential entropy of each entry."""
    constant = 0.5 * math.log(2 * math.pi * math.e) if family is Family.GAUSSIAN else 1 + math.log(2)
    return wide(scale).log() + constant


def log_density(family: Family, noise: Tensor, scale: Tensor) -> Tensor:
    """``log q`` at ``mean + scale * noise``."""
    noise, scale = wide(noise), wide(scale)
    if family is Family.GAUSSIAN:
        return -0.5 * noise.square() - scale.log() - 0.5 * math.log(2 * math.pi)
    return -noise.abs() - scale.log() - math.log(2)


def _expected_absolute(family: Family, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``E|w|`` and its derivatives for mean and scale."""
    if family is Family.GAUSSIAN:
        ratio = mean / scale
        density = torch.exp(-0.5 * ratio.square()) * math.sqrt(2 / math.pi)
        share = torch.erf(ratio / math.sqrt(2))
        return scale * density + mean * share, share, density
    decay = torch.exp(-mean.abs() / scale)
    return (mean.abs() + scale * decay, mean.sign() * (1 - decay), decay * (1 + mean.abs() / scale))


def closed(family: Family, prior: Normal | Laplace | Centred, mean: Tensor, scale: Tensor) -> Tensor:
    """Exact KL of each entry.

    Example:
        >>> one = torch.tensor(1.0, dtype=torch.float64)
        >>> round(closed(Family.GAUSSIAN, Normal(1.0), 0.5 * one, 0.2 * one).item(), 9)
        1.254437912
    """
    mean, scale = wide(mean), wide(scale)
    if isinstance(prior, Centred):  # a KL is the same in units of the prior
        mean, scale = prior.standardised(mean, scale)
        prior = Normal(1.0)
    if isinstance(prior, Normal):
        second_moment = mean.square() + family.unit_variance * scale.square()
        cross = 0.5 * second_moment / prior.std**2 + math.log(prior.std) + 0.5 * math.log(2 * math.pi)
    else:
        cross = _expected_absolute(family, mean, scale)[0] / prior.scale + math.log(2 * prior.scale)
    return cross - entropy(family, scale)


def closed_gradient(
    family: Family, prior: Normal | Laplace | Centred, mean: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor]:
    """Derivatives of :func:`closed` for mean and scale."""
    by_mean, by_scale = cross_entropy_gradient(family, prior, mean, scale)
    return by_mean, by_scale.sub_(wide(scale).reciprocal())


def _component_kls(family: Family, prior: ScaleMixture, mean: Tensor, scale: Tensor) -> list[Tensor]:
    return [closed(family, Normal(std), mean, scale) - log_weight for log_weight, std in prior.components]


def bound(
    family: Family, prior: Normal | Laplace | ScaleMixture | Centred, mean: Tensor, scale: Tensor
) -> Tensor:
    """Upper bound of each entry's KL; the KL itself where it has a closed form."""
    if not isinstance(prior, ScaleMixture):
        return closed(family, prior, mean, scale)
    first, second = _component_kls(family, prior, mean, scale)
    return -torch.logaddexp(-first, -second)


def bound_gradient(
    family: Family, prior: Normal | Laplace | ScaleMixture | Centred, mean: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor]:
    """Derivatives of :func:`bound` for mean and scale."""
    by_mean, by_scale = cross_entropy_gradient(family, prior, mean, scale)
    return by_mean, by_scale.sub_(wide(scale).reciprocal())


def cross_entropy(
    family: Family, prior: Normal | Laplace | ScaleMixture | Centred, mean: Tensor, scale: Tensor
) -> Tensor:
    """``-E_q log p`` of each entry: :func:`bound` without the entropy of ``q``, an upper bound as it is.

    For a ``q`` whose entries are not independent: ``KL(q || p)`` is its sum less the entropy of all of ``q``.
    """
    return bound(family, prior, mean, scale) + entropy(family, scale)


def cross_entropy_gradient(
    family: Family, prior: Normal | Laplace | ScaleMixture | Centred, mean: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor]:
    """Derivatives of :func:`cross_entropy` for mean and scale.

    For the mixture, ``q = sum_k r_k / std_k^2`` with ``r_k`` the share of component ``k`` in the bound. The
    entropy of ``q`` is in both components' KLs and cancels in their difference, so ``q`` is what the prior
    has for a weight whose square is ``E w^2``: ``ScaleMixture.precision_``, one sigmoid an entry.
    """
    mean, scale = wide(mean), wide(scale)
    if isinstance(prior, Normal):
        precision = prior.std**-2
        return mean * precision, scale * (family.unit_variance * precision)
    if isinstance(prior, Centred):
        centre, width = prior.standardised(mean, scale)
        unit = prior.standardised(mean, torch.ones_like(scale))[1]
        return centre * unit, width * unit * family.unit_variance
    if isinstance(prior, Laplace):
        _, by_mean, by_scale = _expected_absolute(family, mean, scale)
        return by_mean / prior.scale, by_scale / prior.scale
    q = prior.precision_(mean.square().addcmul_(scale, scale, value=family.unit_variance))
    return mean * q, q.mul_(family.unit_variance).mul_(scale)
