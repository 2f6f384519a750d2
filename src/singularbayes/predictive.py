"""What a posterior says about new inputs: mixtures over draws, with the split of uncertainty.

Axes are always ``(S, B, *event)``: draws, batch, event. A predictive distribution is the mixture of the ``S``
conditional distributions ``p(y | f_s(x))``, of equal weight or with ``weights``, never the distribution at an
averaged logit.

References:
    Depeweg et al. 2018, arXiv 1710.07283, eq. 3 (entropy split) and eq. 5 (law of total variance).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from . import averages

__all__ = ["BernoulliPredictive", "CategoricalPredictive", "GaussianPredictive", "Predictive"]


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"interval level must lie strictly between 0 and 1, got {level}; 0.95 asks for 95%")


def _check_labels(y: Tensor, shape: torch.Size) -> Tensor:
    """Labels of shape ``shape``; ``(B, 1)`` for ``(B,)`` is squeezed, anything else is an error."""
    if y.shape == (*shape, 1):
        y = y.squeeze(-1)
    if y.shape != shape:
        raise ValueError(f"labels have shape {tuple(y.shape)}, this prediction needs {tuple(shape)}")
    return y


def _class_index(y: Tensor, classes: int) -> Tensor:
    """Labels as class indices; fractions and values outside ``0..classes - 1`` are an error."""
    index = y.long()
    wrong = ((index != y) | (index < 0) | (index >= classes)).nonzero()
    if len(wrong):
        row = int(wrong[0])
        raise ValueError(
            f"label {y[row].item():g} in row {row} is no class index; expected one of 0..{classes - 1}"
        )
    return index


def _interval(draws: Tensor, level: float, weights: Tensor | None) -> Tensor:
    """The two edges ``(2, B, *event)`` of the central interval over axis 0."""
    _check_level(level)
    return averages.quantiles(draws, ((1 - level) / 2, (1 + level) / 2), weights)


@dataclass(frozen=True, eq=False, repr=False)
class CategoricalPredictive:
    """Class probabilities of ``S`` draws for ``B`` inputs.

    Args:
        log_probs: log probabilities ``(S, B, K)``, each normalised over the last axis.
        weights: of the draws ``(S,)``, 0 or more, with sum 1; ``None`` for equal weights.

    Example:
        >>> import math, torch
        >>> pred = CategoricalPredictive(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]).log())
        >>> abs(pred.epistemic.item() - math.log(2)) < 1e-6
        True
    """

    log_probs: Float[Tensor, "S B K"]
    weights: Float[Tensor, " S"] | None = None

    def __post_init__(self) -> None:
        averages.check_weights(self.weights, self.draws)

    def __repr__(self) -> str:
        return f"CategoricalPredictive({self.draws} draws, {self.log_probs.shape[1]} rows)"

    @property
    def draws(self) -> int:
        """Number of posterior draws ``S``."""
        return self.log_probs.shape[0]

    @property
    def probs(self) -> Float[Tensor, "S B K"]:
        """Probabilities of every draw."""
        return self.log_probs.exp()

    @property
    def mean(self) -> Float[Tensor, "B K"]:
        """Posterior predictive probabilities: the mean of probabilities, not of logits."""
        return averages.mean(self.probs, self.weights)

    @property
    def variance(self) -> Float[Tensor, "B K"]:
        """Total variance ``p (1 - p)`` of each class indicator (law of total variance, exact)."""
        mean = self.mean
        return mean * (1 - mean)

    @property
    def entropy(self) -> Float[Tensor, " B"]:
        """Total uncertainty: entropy of the mean probabilities, in nats."""
        return torch.special.entr(self.mean).sum(-1)

    @property
    def aleatoric(self) -> Float[Tensor, " B"]:
        """Mean entropy of the draws, in nats."""
        return averages.mean(torch.special.entr(self.probs).sum(-1), self.weights)

    @property
    def epistemic(self) -> Float[Tensor, " B"]:
        """Mutual information of label and weights, in nats: ``mean_s KL(p_s || mean p)``, never below 0.

        Entropy minus aleatoric, written so that confident inputs keep their digits.
        """
        probs = self.probs
        gaps = self.log_probs - averages.log_mixture(self.log_probs, self.weights)
        terms = (probs * gaps).where(~(probs == 0), 0.0)
        return averages.mean(terms.sum(-1), self.weights).clamp_min(0.0)

    def log_prob(self, y: Tensor) -> Float[Tensor, " B"]:
        """Log predictive probability of class indices ``(B,)``, in nats."""
        y = _check_labels(torch.as_tensor(y, device=self.log_probs.device), self.log_probs.shape[1:2])
        index = _class_index(y, self.log_probs.shape[-1]).expand(self.draws, -1).unsqueeze(-1)
        return averages.log_mixture(self.log_probs.gather(-1, index).squeeze(-1), self.weights)

    def interval(self, level: float = 0.95) -> Float[Tensor, "2 B K"]:
        """Central credible interval of each class probability over the draws (epistemic alone)."""
        return _interval(self.probs, level, self.weights)

    def tempered(self, temperature: float) -> CategoricalPredictive:
        """With the logits of every draw divided by ``temperature``, before they are averaged."""
        return CategoricalPredictive(F.log_softmax(self.log_probs / temperature, -1), self.weights)


@dataclass(frozen=True, eq=False, repr=False)
class BernoulliPredictive:
    """Probability of class 1 under ``S`` draws for ``B`` inputs.

    Args:
        logits: log odds ``(S, B)``.
        weights: of the draws ``(S,)``, 0 or more, with sum 1; ``None`` for equal weights.
    """

    logits: Float[Tensor, "S B"]
    weights: Float[Tensor, " S"] | None = None

    def __post_init__(self) -> None:
        averages.check_weights(self.weights, self.draws)

    def __repr__(self) -> str:
        return f"BernoulliPredictive({self.draws} draws, {self.logits.shape[1]} rows)"

    @property
    def draws(self) -> int:
        """Number of posterior draws ``S``."""
        return self.logits.shape[0]

    @property
    def probs(self) -> Float[Tensor, "S B"]:
        """P(y = 1) of every draw."""
        return self.logits.sigmoid()

    @property
    def log_probs(self) -> Float[Tensor, "S B 2"]:
        """Log probabilities of class 0 and class 1."""
        return torch.stack([F.logsigmoid(-self.logits), F.logsigmoid(self.logits)], -1)

    @property
    def mean(self) -> Float[Tensor, " B"]:
        """Posterior predictive P(y = 1)."""
        return averages.mean(self.probs, self.weights)

    @property
    def variance(self) -> Float[Tensor, " B"]:
        """Total variance ``p (1 - p)`` of the label."""
        mean = self.mean
        return mean * (1 - mean)

    @property
    def entropy(self) -> Float[Tensor, " B"]:
        """Total uncertainty: entropy of the mean probability, in nats."""
        return self._as_categorical().entropy

    @property
    def aleatoric(self) -> Float[Tensor, " B"]:
        """Mean entropy of the draws, in nats."""
        return self._as_categorical().aleatoric

    @property
    def epistemic(self) -> Float[Tensor, " B"]:
        """Mutual information of label and weights, in nats, never below 0."""
        return self._as_categorical().epistemic

    def log_prob(self, y: Tensor) -> Float[Tensor, " B"]:
        """Log predictive probability of labels 0 or 1 of shape ``(B,)``, in nats."""
        return self._as_categorical().log_prob(y)

    def interval(self, level: float = 0.95) -> Float[Tensor, "2 B"]:
        """Central credible interval of P(y = 1) over the draws (epistemic alone)."""
        return _interval(self.probs, level, self.weights)

    def tempered(self, temperature: float) -> BernoulliPredictive:
        """With the log odds of every draw divided by ``temperature``, before they are averaged."""
        return BernoulliPredictive(self.logits / temperature, self.weights)

    def _as_categorical(self) -> CategoricalPredictive:
        return CategoricalPredictive(self.log_probs, self.weights)


@dataclass(frozen=True, eq=False, repr=False)
class GaussianPredictive:
    """Mixture of ``S`` Gaussians for ``B`` inputs.

    Args:
        means: ``(S, B, *event)``.
        variances: noise variances (not standard deviations), the same shape.
        weights: of the draws ``(S,)``, 0 or more, with sum 1; ``None`` for equal weights.

    Example:
        >>> pred = GaussianPredictive(torch.tensor([[0.0], [2.0]]), torch.ones(2, 1))
        >>> pred.epistemic.item(), pred.aleatoric.item(), pred.variance.item()
        (1.0, 1.0, 2.0)
    """

    means: Float[Tensor, "S B *event"]
    variances: Float[Tensor, "S B *event"]
    weights: Float[Tensor, " S"] | None = None

    def __post_init__(self) -> None:
        averages.check_weights(self.weights, self.draws)

    def __repr__(self) -> str:
        return f"GaussianPredictive({self.draws} draws, {self.means.shape[1]} rows)"

    @property
    def draws(self) -> int:
        """Number of posterior draws ``S``."""
        return self.means.shape[0]

    @property
    def mean(self) -> Float[Tensor, "B *event"]:
        """Posterior predictive mean."""
        return averages.mean(self.means, self.weights)

    @property
    def epistemic(self) -> Float[Tensor, "B *event"]:
        """Variance of the draws' means; one draw gives 0."""
        if self.weights is None:
            return self.means.var(0, correction=0)
        return averages.variance(self.means, self.weights)

    @property
    def aleatoric(self) -> Float[Tensor, "B *event"]:
        """Mean noise variance of the draws."""
        return averages.mean(self.variances, self.weights)

    @property
    def variance(self) -> Float[Tensor, "B *event"]:
        """Total variance, by the law of total variance."""
        return self.epistemic + self.aleatoric

    @property
    def entropy(self) -> Float[Tensor, "B *event"]:
        """Differential entropy, in nats, of the Gaussian with this mean and variance (an upper bound)."""
        return 0.5 * torch.log(2 * math.pi * math.e * self.variance)

    def log_prob(self, y: Tensor) -> Float[Tensor, " B"]:
        """Log predictive density of ``y (B, *event)``, in nats, summed over the event within each draw."""
        y = _check_labels(torch.as_tensor(y, device=self.means.device), self.means.shape[1:]).to(self.means)
        errors = (y - self.means).square() / self.variances
        log_densities = -0.5 * (errors + torch.log(2 * math.pi * self.variances))
        over_event = log_densities if log_densities.dim() == 2 else log_densities.flatten(2).sum(-1)
        return averages.log_mixture(over_event, self.weights)

    def cdf(self, y: Tensor) -> Float[Tensor, "B *event"]:
        """Predictive distribution function at ``y (B, *event)``, elementwise."""
        y = _check_labels(torch.as_tensor(y, device=self.means.device), self.means.shape[1:]).to(self.means)
        return averages.mean(torch.special.ndtr((y - self.means) / self.variances.sqrt()), self.weights)

    def interval(self, level: float = 0.95) -> Float[Tensor, "2 B *event"]:
        """Central interval of the mixture, total uncertainty, by bisection on its distribution function."""
        _check_level(level)
        return torch.stack([self._quantile((1 - level) / 2), self._quantile((1 + level) / 2)])

    def tempered(self, temperature: float) -> GaussianPredictive:
        """With ``temperature`` times the total variance, epistemic and noise alike, about the same mean."""
        centre = self.mean
        means = centre + math.sqrt(temperature) * (self.means - centre)
        return GaussianPredictive(means, temperature * self.variances, self.weights)

    def quantile(self, probability: float) -> Float[Tensor, "B *event"]:
        """Where the distribution function is ``probability``; -inf at 0 and inf at 1."""
        if not 0 <= probability <= 1:
            raise ValueError(f"a quantile's probability must lie in [0, 1], got {probability}")
        return self._quantile(probability)

    def _quantile(self, probability: float) -> Tensor:
        z = torch.special.ndtri(torch.tensor(probability, dtype=torch.float64)).item()
        edges = self.means + z * self.variances.sqrt()  # the quantile lies between those of the components
        edges = edges if self.weights is None else averages.counting(edges, self.weights)[0]
        low, high = edges.amin(0), edges.amax(0)
        for _ in range(40):
            middle = (low + high) / 2
            below = self.cdf(middle) < probability
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return (low + high) / 2


Predictive = CategoricalPredictive | BernoulliPredictive | GaussianPredictive
