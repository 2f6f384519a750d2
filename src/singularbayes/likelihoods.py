"""Likelihoods: they carry the task, the noise and the calibration temperature; no method asks for them.

A likelihood turns network outputs into log densities of labels (for training) and into a predictive (for
use). ``parameters`` holds numbers that are learned with the network (an unknown noise level); they lie in the
posterior's flat vector, so that every draw has its own.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from .labels import integer_labels, real_labels
from .predictive import BernoulliPredictive, CategoricalPredictive, GaussianPredictive, Predictive
from .scaling import check_scaling, check_temperature, scaled, wide

__all__ = ["Bernoulli", "Categorical", "Gaussian", "HeteroscedasticGaussian", "Likelihood"]

Parameters = Mapping[str, Tensor]


@runtime_checkable
class Likelihood(Protocol):
    """What a method needs of a likelihood; ``outputs`` are ``(B, *event)`` unless a draws axis is named."""

    task: ClassVar[str]

    @property
    def temperature(self) -> float:
        """Calibration temperature; see :meth:`with_temperature`."""
        ...

    @property
    def parameters(self) -> dict[str, Tensor]:
        """Start values of the learned numbers, unconstrained; empty for most."""
        ...

    def labels(self, outputs_shape: torch.Size, y: Tensor) -> Tensor:
        """Labels checked against the shape ``(B, *event)`` of the outputs and cast for :meth:`log_prob`."""
        ...

    def log_prob(self, outputs: Tensor, y: Tensor, parameters: Parameters) -> Tensor:
        """Log density of checked labels, ``(B,)``, in nats, summed over the event."""
        ...

    def loss(self, outputs: Tensor, y: Tensor, parameters: Parameters) -> Tensor:
        """Mean over the batch of what training minimises; the mean of ``-log_prob`` for a true likelihood."""
        ...

    def predictive(self, outputs: Tensor, parameters: Parameters) -> Predictive:
        """The predictive of outputs ``(S, B, *event)``; ``parameters`` have a leading axis ``S``."""
        ...

    def with_temperature(self, temperature: float) -> Likelihood:
        """The same likelihood at another calibration temperature."""
        ...

    def started_at(self, parameters: Parameters) -> Likelihood:
        """The same likelihood whose learned numbers start at these."""
        ...

    def warn_if_degenerate(self, outputs: Tensor, parameters: Parameters) -> None:
        """Warn when trained outputs show a fault that the user can act on."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Plain fields, for a checkpoint."""
        ...


@dataclass(frozen=True)
class Categorical:
    """Softmax over ``K`` logits: outputs ``(B, K)``, labels ``(B,)`` integers.

    Args:
        temperature: logits are divided by it; fitted by ``posterior.calibrate``.
        scale: of each class's logit, before the temperature; fitted by ``VectorScaling``.
        bias: added to each class's scaled logit, in nats, before the temperature.
    """

    temperature: float = 1.0
    scale: tuple[float, ...] | None = None
    bias: tuple[float, ...] | None = None
    task: ClassVar[str] = "categorical"

    def __post_init__(self) -> None:
        check_temperature(self.temperature)
        check_scaling(self.scale, self.bias)

    @property
    def parameters(self) -> dict[str, Tensor]:
        return {}

    def labels(self, outputs_shape: torch.Size, y: Tensor) -> Tensor:
        if len(outputs_shape) != 2 or outputs_shape[1] < 2:
            raise ValueError(f"Categorical needs outputs of shape (B, K) with K >= 2, the network gives "
                             f"{tuple(outputs_shape)}; for one logit use Bernoulli()")  # fmt: skip
        return integer_labels(y, outputs_shape[0], outputs_shape[1])

    def log_prob(self, outputs: Tensor, y: Tensor, parameters: Parameters) -> Tensor:
        log_probs = F.log_softmax(self._logits(outputs), -1)
        return log_probs.gather(-1, y.unsqueeze(-1)).squeeze(-1)

    def loss(self, outputs: Tensor, y: Tensor, parameters: Parameters) -> Tensor:
        return F.cross_entropy(self._logits(outputs), y)

    def predictive(self, outputs: Tensor, parameters: Parameters) -> CategoricalPredictive:
        return CategoricalPredictive(F.log_softmax(self._logits(outputs), -1))

    def with_temperature(self, temperature: float) -> Categorical:
        return replace(self, temperature=temperature)

    def with_scaling(self, scale: tuple[float, ...] | None, bias: tuple[float, ...] | None) -> Categorical:
        """The same likelihood with another scale and bias of the logits."""
        return replace(self, scale=scale, bias=bias)

    def started_at(self, parameters: Parameters) -> Categorical:
        return self

    def warn_if_degenerate(self, outputs: Tensor, parameters: Parameters) -> None:
        return None

    def to_dict(self) -> dict[str, Any]:
        scale, bias = (None if v is None else list(v) for v in (self.scale, self.bias))
        return {"temperature": self.temperature, "scale": scale, "bias": bias}

    def _logits(self, outputs: Tensor) -> Tensor:
        return scaled(wide(outputs), self.temperature, self.scale, self.bias)


@dataclass(frozen=True)
class Bernoulli:
    """One logit: outputs ``(B,)`` or ``(B, 1)``, labels 0 or 1.

    Args:
        temperature: the logit is divided by it; fitted by ``posterior.calibrate``.
        scale: of the logit, before the temperature; fitted by ``VectorScaling``.
        bias: added to the scaled logit, in nats, before the temperature.
    """

    temperature: float = 1.0
    scale: float | None = None
    bias: float | None = None
    task: ClassVar[str] = "bernoulli"

    def __post_init__(self) -> None:
        check_temperature(self.temperature)
        check_scaling(self.scale, self.bias)

    @property
    def parameters(self) -> dict[str, Tensor]:
        return {}

    def labels(self, outputs_shape: torch.Size, y: Tensor) -> Tensor:
        if len(outputs_shape) != 1 and tuple(outputs_shape[1:]) != (1,):
            raise ValueError(f"Bernoulli needs outputs of shape (B,) or (B, 1), the network gives "
                             f"{tuple(outputs_shape)}; for K logits use Categorical()")  # fmt: skip
        return integer_labels(y, outputs_shape[0], 2).float()

    def log_prob(self, outputs: Tensor, y: Tensor, parameters: Parameters) -> Tensor:
        logits = self._logits(outputs, y)
        return y * F.logsigmoid(logits) + (1 - y) * F.logsigmoid(-logits)

    def loss(self, outputs: Tensor, y: Tensor, parameters: Parameters) -> Tensor:
        logits = self._logits(outputs, y)
        return F.binary_cross_entropy_with_logits(logits, y.to(logits.dtype))

    def predictive(self, outputs: Tensor, parameters: Parameters) -> BernoulliPredictive:
        outputs = outputs.squeeze(-1) if outputs.dim() == 3 else outputs
        return BernoulliPredictive(scaled(wide(outputs), self.temperature, self.scale, self.bias))

    def with_temperature(self, temperature: float) -> Bernoulli:
        return replace(self, temperature=temperature)

    def with_scaling(self, scale: float | None, bias: float | None) -> Bernoulli:
        """The same likelihood with another scale and bias of the logit."""
        return replace(self, scale=scale, bias=bias)

    def started_at(self, parameters: Parameters) -> Bernoulli:
        return self

    def warn_if_degenerate(self, outputs: Tensor, parameters: Parameters) -> None:
        return None

    def to_dict(self) -> dict[str, Any]:
        return {"temperature": self.temperature, "scale": self.scale, "bias": self.bias}

    def _logits(self, outputs: Tensor, y: Tensor) -> Tensor:
        return scaled(wide(outputs.reshape(y.shape)), self.temperature, self.scale, self.bias)


LOG_NOISE = 12.0  # nats: a learned standard deviation stays within e^-12 and e^12


@dataclass(frozen=True)
class Gaussian:
    """Gaussian noise of one standard deviation: outputs and labels ``(B,)``, ``(B, 1)`` or ``(B, k)``.

    One output is always treated as ``(B,)``. At temperature ``T`` the predictive's total variance is
    multiplied by ``T``, epistemic and noise alike, about the same mean.

    Args:
        noise: standard deviation of the noise, in the units of ``y``; ``None`` learns one for all outputs.
        temperature: factor on the predictive variance; fitted by ``posterior.calibrate``.
        initial_noise: where a learned standard deviation starts.
    """

    noise: float | None = None
    temperature: float = 1.0
    initial_noise: float = 1.0
    task: ClassVar[str] = "gaussian"

    def __post_init__(self) -> None:
        check_temperature(self.temperature)
        for name in ("noise", "initial_noise"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ValueError(
                    f"{name} is a standard deviation; it must be positive and finite, got {value}"
                )

    @property
    def parameters(self) -> dict[str, Tensor]:
        return {} if self.noise is not None else {"log_noise": torch.tensor([math.log(self.initial_noise)])}

    def labels(self, outputs_shape: torch.Size, y: Tensor) -> Tensor:
        shape = tuple(outputs_shape)
        return real_labels(y, shape[:1] if len(shape) == 2 and shape[1] == 1 else shape)

    def log_prob(self, outputs: Tensor, y: Tensor, parameters: Parameters) -> Tensor:
        means = wide(outputs.reshape(y.shape))
        log_var = 2 * self._log_noise(parameters, means) + math.log(self.temperature)
        terms = -0.5 * ((y - means).square() * torch.exp(-log_var) + log_var + math.log(2 * math.pi))
        return terms.flatten(1).sum(-1) if y.dim() > 1 else terms

    def loss(self, outputs: Tensor, y: Tensor, parameters: Parameters) -> Tensor:
        means = wide(outputs.reshape(y.shape))
        half = 0.5 * math.prod(y.shape[1:])
        error = F.mse_loss(means, y.to(means.dtype))  # one kernel each way: this is a step's busiest line
        if self.noise is not None:
            var = self.noise**2 * self.temperature
            return error * (half / var) + half * math.log(2 * math.pi * var)
        log_noise = self._log_noise(parameters, means).to(means.dtype).squeeze()
        log_var = 2 * log_noise + math.log(self.temperature)
        return half * (error * torch.exp(-log_var) + log_var + math.log(2 * math.pi))

    def predictive(self, outputs: Tensor, parameters: Parameters) -> GaussianPredictive:
        means = wide(outputs.squeeze(-1) if outputs.dim() == 3 and outputs.shape[-1] == 1 else outputs)
        variances = (2 * self._log_noise(parameters, means)).exp().expand_as(means)
        return _tempered(GaussianPredictive(means, variances), self.temperature)

    def with_temperature(self, temperature: float) -> Gaussian:
        return replace(self, temperature=temperature)

    def started_at(self, parameters: Parameters) -> Gaussian:
        if self.noise is not None:
            return self
        return replace(self, initial_noise=math.exp(float(parameters["log_noise"].squeeze())))

    def warn_if_degenerate(self, outputs: Tensor, parameters: Parameters) -> None:
        if self.noise is None and bool((parameters["log_noise"].abs() >= LOG_NOISE).any()):
            warnings.warn(
                "the learned noise ran to its bound: the network fits every label exactly, or the labels are "
                "far from the scale of 1; rescale y, or give the noise",
                stacklevel=2,
            )

    def to_dict(self) -> dict[str, Any]:
        return {"noise": self.noise, "temperature": self.temperature, "initial_noise": self.initial_noise}

    def _log_noise(self, parameters: Parameters, means: Tensor) -> Tensor:
        if self.noise is not None:
            return means.new_tensor(math.log(self.noise))
        log_noise = wide(parameters["log_noise"]).clamp(-LOG_NOISE, LOG_NOISE)
        # one number in training, one for each draw in prediction
        return log_noise if log_noise.dim() == 1 else log_noise.view(-1, *[1] * (means.dim() - 1))


def _tempered(predictive: GaussianPredictive, temperature: float) -> GaussianPredictive:
    return predictive if temperature == 1 else predictive.tempered(temperature)


@dataclass(frozen=True)
class HeteroscedasticGaussian:
    """Mean and log variance from the network: outputs ``(B, 2)``, labels ``(B,)``.

    More outputs: ``(B, 2 k)``, the ``k`` means first, and labels ``(B, k)``.

    The log variance is held within ``bounds`` by a smooth clamp, so that neither a collapse nor a blow-up of
    the scale can stop training.

    Args:
        beta: weight ``variance ** beta`` (no gradient) on each point's loss; 0 is the likelihood, .5 the
            authors' choice when the mean is learned badly where the variance is large.
        bounds: limits of the log variance, in nats.
        temperature: factor on the predictive variance; fitted by ``posterior.calibrate``.

    References:
        Seitzer et al. 2022, arXiv 2203.09168, eq. 5 (beta-NLL). Not a likelihood for ``beta > 0``.
    """

    beta: float = 0.0
    bounds: tuple[float, float] = (-14.0, 14.0)
    temperature: float = 1.0
    task: ClassVar[str] = "gaussian"

    def __post_init__(self) -> None:
        check_temperature(self.temperature)
        if not 0 <= self.beta <= 1:
            raise ValueError(f"beta must lie in [0, 1], got {self.beta}")
        if not self.bounds[0] < self.bounds[1]:
            raise ValueError(f"bounds of the log variance must be (low, high), low < high, got {self.bounds}")

    @property
    def parameters(self) -> dict[str, Tensor]:
        return {}

    def labels(self, outputs_shape: torch.Size, y: Tensor) -> Tensor:
        if len(outputs_shape) != 2 or outputs_shape[1] % 2:
            raise ValueError(f"HeteroscedasticGaussian needs outputs (B, 2 k): k means, then k log "
                             f"variances; the network gives {tuple(outputs_shape)}")  # fmt: skip
        half = outputs_shape[1] // 2
        return real_labels(y, (outputs_shape[0],) if half == 1 else (outputs_shape[0], half))

    def log_prob(self, outputs: Tensor, y: Tensor, parameters: Parameters) -> Tensor:
        terms, _ = self._terms(outputs, y)
        return terms if y.dim() == 1 else terms.sum(-1)

    def loss(self, outputs: Tensor, y: Tensor, parameters: Parameters) -> Tensor:
        terms, log_var = self._terms(outputs, y)
        if self.beta:
            terms = terms * (self.beta * log_var.detach()).exp()
        return -(terms if y.dim() == 1 else terms.sum(-1)).mean()

    def predictive(self, outputs: Tensor, parameters: Parameters) -> GaussianPredictive:
        means, log_var = self._split(outputs)
        return _tempered(GaussianPredictive(means, log_var.exp()), self.temperature)

    def with_temperature(self, temperature: float) -> HeteroscedasticGaussian:
        return replace(self, temperature=temperature)

    def started_at(self, parameters: Parameters) -> HeteroscedasticGaussian:
        return self

    def warn_if_degenerate(self, outputs: Tensor, parameters: Parameters) -> None:
        log_var = self._split(outputs)[1]
        low, high = self.bounds
        log_var = log_var.reshape(len(log_var), -1)  # one column for each predicted quantity
        dead = (log_var < low + 0.5).all(0) | (log_var > high - 0.5).all(0)
        if bool(dead.any()):
            warnings.warn(f"the predicted noise sits at its bound for every input (log variance about "
                          f"{log_var[:, dead].mean().item():.1f}): the scale head is dead; rescale y, or try "
                          f"beta=0.5", stacklevel=2)  # fmt: skip
        elif len(log_var) > 1 and bool((log_var.std(0) < 1e-4).any()):
            warnings.warn("the predicted noise is the same for every input: the scale head learned a "
                          "constant; Gaussian() says the same with fewer parameters",
                          stacklevel=2)  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        return {"beta": self.beta, "bounds": list(self.bounds), "temperature": self.temperature}

    def _split(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        means, raw = wide(outputs).chunk(2, -1)
        low, high = self.bounds
        centre, half = (low + high) / 2, (high - low) / 2
        log_var = centre + half * torch.tanh((raw - centre) / half)
        return (means.squeeze(-1), log_var.squeeze(-1)) if means.shape[-1] == 1 else (means, log_var)

    def _terms(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        means, log_var = self._split(outputs)
        log_var = log_var + math.log(self.temperature)
        return -0.5 * ((y - means).square() * (-log_var).exp() + log_var + math.log(2 * math.pi)), log_var


KINDS: dict[str, Any] = {
    "Categorical": Categorical,
    "Bernoulli": Bernoulli,
    "Gaussian": Gaussian,
    "HeteroscedasticGaussian": HeteroscedasticGaussian,
}


def rebuild(content: Mapping[str, Any]) -> Likelihood:
    """A likelihood from its kind and the plain fields of its ``to_dict``."""
    fields = dict(content)
    kind = KINDS[fields.pop("kind")]
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()})
