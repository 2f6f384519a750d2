"""Links: what turns Gaussian outputs into probabilities of labels.

Each is an object with ``predictive(moments)``; a link of your own is one too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..likelihoods import Bernoulli, Categorical, Gaussian
from ..predictive import BernoulliPredictive, CategoricalPredictive, GaussianPredictive, Predictive
from ..random import generator
from ..scaling import scaled
from .outputs import Moments
from .sigmoid import log_mean_sigmoid

__all__ = ["Exact", "MeanFieldLink", "MonteCarlo", "Probit"]


def _classes(moments: Moments, link: object) -> tuple[Tensor, Tensor]:
    """Mean and covariance of the logits after their calibration, which is affine."""
    likelihood = moments.likelihood
    if not isinstance(likelihood, Categorical | Bernoulli):
        raise TypeError(
            f"{type(link).__name__} is a link for Categorical and Bernoulli, this posterior has "
            f"{type(likelihood).__name__}; use Exact() for Gaussian, MonteCarlo() for any likelihood"
        )
    settings = likelihood.temperature, likelihood.scale, likelihood.bias
    mean = moments.mean.double()
    units = torch.stack([torch.zeros_like(mean[0]), torch.ones_like(mean[0])])
    slope = scaled(units, *settings).diff(dim=0)  # (1, K)
    return scaled(mean, *settings), moments.covariance.double() * slope.T * slope


def _difference(mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
    """The log odds of class 1: one logit, or the second of two logits less the first."""
    if mean.shape[1] == 1:
        return mean[:, 0], covariance[:, 0, 0].clamp_min(0)
    variance = covariance[:, 0, 0] + covariance[:, 1, 1] - 2 * covariance[:, 0, 1]
    return mean[:, 1] - mean[:, 0], variance.clamp_min(0)


def _two(moments: Moments, log_odds: Tensor) -> Predictive:
    """The predictive of log odds ``(B,)``."""
    own = log_odds.to(moments.mean.dtype).unsqueeze(0)
    if isinstance(moments.likelihood, Bernoulli):
        return BernoulliPredictive(own)
    return CategoricalPredictive(torch.stack([F.logsigmoid(-own), F.logsigmoid(own)], -1))


def _softmax(moments: Moments, logits: Tensor) -> CategoricalPredictive:
    return CategoricalPredictive(F.log_softmax(logits, -1).to(moments.mean.dtype).unsqueeze(0))


@dataclass(frozen=True)
class MonteCarlo:
    """Outputs drawn from the Gaussian at each input: for any likelihood, and the reference for the others.

    The predictive has a component for each draw, and so the split of uncertainty. All inputs share the noise:
    a row's numbers do not depend on the rows beside it. Draws of one component at two inputs are no function.

    Args:
        draws: how many.
        seed: of the noise; the global random state is untouched.
    """

    draws: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.draws < 1:
            raise ValueError(f"draws must be at least 1, got {self.draws}")

    def predictive(self, moments: Moments) -> Predictive:
        mean = moments.mean
        source = generator(self.seed, "moments", device=mean.device)
        noise = torch.randn(
            self.draws, mean.shape[1], generator=source, dtype=torch.float64, device=mean.device
        )
        values, vectors = torch.linalg.eigh(moments.covariance.double())
        root = vectors * values.clamp_min(0).sqrt().unsqueeze(1)  # of singular covariances too
        outputs = mean.double() + torch.einsum("bij,sj->sbi", root, noise)
        shaped = outputs.to(mean.dtype).view(self.draws, len(mean), *moments.event)
        numbers = {name: t.expand(self.draws, *t.shape[1:]) for name, t in moments.numbers.items()}
        return moments.likelihood.predictive(shaped, numbers)


@dataclass(frozen=True)
class Probit:
    """The sigmoid as if it were a probit: ``sigmoid(f / sqrt(1 + pi/8 var))``.

    For one logit or two classes ``f`` is the log odds, of variance ``var1 + var2 - 2 cov``. For ``K > 2``
    ``softmax(f / sqrt(1 + pi/8 var))``, class by class: it ignores the covariance between logits.

    References:
        MacKay 1992, "The evidence framework applied to classification networks", eq. 10. Gibbs 1997 (K > 2).
    """

    def predictive(self, moments: Moments) -> Predictive:
        mean, covariance = _classes(moments, self)
        if mean.shape[1] <= 2:
            odds, variance = _difference(mean, covariance)
            return _two(moments, odds / (1 + math.pi / 8 * variance).sqrt())
        variance = covariance.diagonal(dim1=1, dim2=2)
        return _softmax(moments, mean / (1 + math.pi / 8 * variance).sqrt())


@dataclass(frozen=True)
class MeanFieldLink:
    """``logits / sqrt(1 + factor var)``, logit by logit, whatever their number: the link of SNGP's authors.

    It differs from ``Probit`` for two classes, where that takes the variance of their difference.

    Args:
        factor: weight of the variance; ``pi / 8`` is the probit's, the authors tune it.

    References:
        Lu et al. 2020, arXiv 2006.07584. Liu et al. 2020, arXiv 2006.10108.
    """

    factor: float = math.pi / 8

    def __post_init__(self) -> None:
        if not (self.factor >= 0 and math.isfinite(self.factor)):
            raise ValueError(f"factor must be 0 or positive, got {self.factor}")

    def predictive(self, moments: Moments) -> Predictive:
        mean, covariance = _classes(moments, self)
        variance = covariance.diagonal(dim1=1, dim2=2).clamp_min(0)
        logits = mean / (1 + self.factor * variance).sqrt()
        return _two(moments, logits[:, 0]) if logits.shape[1] == 1 else _softmax(moments, logits)


@dataclass(frozen=True)
class Exact:
    """The integral itself, where it has one dimension.

    ``Bernoulli`` and two classes: the mean sigmoid of the log odds, by quadrature to 1e-8. ``Gaussian``: mean
    and total variance (that of the outputs and of the noise); of several outputs each its own, the covariance
    between them is not in the predictive.
    """

    def predictive(self, moments: Moments) -> Predictive:
        likelihood = moments.likelihood
        if isinstance(likelihood, Gaussian):
            point = likelihood.with_temperature(1.0).predictive(
                moments.mean.view(1, -1, *moments.event), moments.numbers
            )
            variance = point.variances + moments.variance.clamp_min(0).reshape(point.variances.shape)
            return GaussianPredictive(point.means, likelihood.temperature * variance)
        if isinstance(likelihood, Categorical | Bernoulli) and moments.mean.shape[1] <= 2:
            odds, variance = _difference(*_classes(moments, self))
            return _two(moments, log_mean_sigmoid(odds, variance) - log_mean_sigmoid(-odds, variance))
        raise TypeError(
            f"Exact knows Gaussian, Bernoulli and two classes; this posterior has "
            f"{type(likelihood).__name__} with {moments.mean.shape[1]} outputs: use MonteCarlo(), or "
            f"Probit() for classes"
        )
