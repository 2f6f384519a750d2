"""One temperature, by the validation NLL of the mixture over draws.

    classes:  logits / T, each draw's, before averaging        numbers:  predictive variance * T

References:
    Guo et al. 2017, arXiv 1706.04599, section 4.2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from ..likelihoods import Likelihood
from ..temperature import best_temperature

__all__ = ["Temperature", "nll_at"]


@dataclass(frozen=True, kw_only=True)
class Temperature:
    """The temperature that minimises the validation NLL of the mixture.

    For classification logits are divided by it (each draw's, before averaging). For regression it is the
    variance scale: the predictive variance, epistemic and noise alike, is multiplied by it.

    Warns:
        UserWarning: the best temperature lies at the bound (1/50 or 50; 1e-4 or 1e4 for regression): every
            label right, or no signal. The data then do not tell it, and it stays at 1.

    Example:
        >>> import torch, singularbayes as sb
        >>> logits, y = torch.tensor([[2.0, 0.0]] * 10), torch.tensor([0] * 7 + [1] * 3)
        >>> found = Temperature().fit(sb.Categorical(), logits.double().unsqueeze(0), {}, y)
        >>> round(found.temperature, 6)
        2.360445
    """

    def fit(
        self, likelihood: Likelihood, outputs: Tensor, numbers: Mapping[str, Tensor], labels: Tensor
    ) -> Likelihood:
        """The likelihood at the temperature found; see :class:`.Calibration`."""
        return likelihood.with_temperature(
            best_temperature(nll_at(likelihood, outputs, numbers, labels), likelihood.task, stacklevel=4)
        )


def nll_at(
    likelihood: Likelihood, outputs: Tensor, numbers: Mapping[str, Tensor], labels: Tensor
) -> Callable[[float], float]:
    """Mean NLL of the mixture as a function of the likelihood's temperature."""

    def nll(temperature: float) -> float:
        tempered = likelihood.with_temperature(temperature)
        return -tempered.predictive(outputs, numbers).log_prob(labels).double().mean().item()

    return nll
