"""SNGP: one network that knows distances: spectrally bounded layers, and a Gaussian-process head on top.

1. The last trained linear layer becomes random cosine features and Gaussian weights
   (:mod:`..nn.random_feature_head`); ``s`` is the precision of their prior.
2. Training is MAP, with every hidden linear layer and convolution kept below a spectral norm
   (:mod:`..nn.spectral`): before each step the weights are scaled back to the bound.
3. After it one pass builds the head's covariance ``(s I + sum_i h_i phi_i phi_i^T)^-1``
   (:mod:`..curvature.head`). All other weights are points. A covariance that needs jitter says so in
   ``info["jitter"]``.

    minimise  mean batch NLL + (T / N) (-log p(hidden weights) + s/2 |beta|^2)

What it is not: a belief about the features; where the hidden layers collapse two inputs, it cannot tell them
apart. The link of the authors, ``logits / sqrt(1 + lambda var)``, is
``sb.moments(posterior, x).predictive(sb.MeanFieldLink(factor=lambda))``; ``predict`` averages over draws.

References:
    Liu et al. 2020, arXiv 2006.10108, algorithm 1; Liu et al. 2022, arXiv 2205.00403.
"""

from __future__ import annotations

import glob
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..centred import Centred
from ..curvature.head import HeadPosterior
from ..data import to_device
from ..likelihoods import Bernoulli, Categorical
from ..model import Model, check_model
from ..nn.linear import LowRankLinear
from ..nn.random_feature_head import RandomFeatureHead
from ..nn.spectral import BOUNDABLE, SpectralBound, add_vector, drop_vector
from ..parameters import Patterns, match_names
from ..posterior import Posterior
from ..priors import Laplace, Normal, PerParameter, ScaleMixture
from ..probing import checked_device
from .feature_head import head_path, row_gaussian, trace, with_features
from .learner import Bound, PointLearner, Prepared, prepare
from .settings import check_whole
from .training import Training, fit_learner

__all__ = ["SNGP"]


@dataclass(frozen=True)
class Plan:
    """Which layers are changed: the head's path, and the shape of one input of each bounded one."""

    head: str
    bounded: dict[str, tuple[int, ...]]


def planned(model: Model, probe: Any, patterns: Patterns) -> Plan:
    """Find the head and the hidden layers from one forward pass.

    Raises:
        ValueError: no trained linear layer, one that cannot be replaced, patterns that match nothing.
    """
    traced = trace(model, probe, BOUNDABLE)
    head = head_path(traced, "SNGP", "trained ")
    _refuse_tied(model, head)
    hidden = [path for path in traced.calls if path != head]
    chosen = match_names(patterns, [(path,) for path in hidden], "bounded") if hidden else set()
    shapes = {
        path: _row_shape(traced.network.get_submodule(path), traced.calls[path][0][0])
        for path in hidden
        if path in chosen
    }
    return Plan(head, shapes)


def _refuse_tied(model: Model, head: str) -> None:
    for slot in model.layout.of_kind("belief", "point"):
        inside = [name for name in slot.aliases if name.rpartition(".")[0] == head]
        if inside and len(inside) < len(slot.aliases):
            other = next(name for name in slot.aliases if name not in inside)
            raise ValueError(
                f"{inside[0]} is tied to {other}: random features cannot replace it; untie them first"
            )


def _row_shape(layer: nn.Module, inputs: Tensor) -> tuple[int, ...]:
    if isinstance(layer, nn.Linear | LowRankLinear):
        return (inputs.shape[-1],)
    spatial = len(layer.kernel_size)  # type: ignore[arg-type]
    return tuple(inputs.shape[-spatial - 1 :])


def changed(model: Model, plan: Plan, method: SNGP, seed: int) -> Model:
    """The model with the new head, and a vector at each bounded layer; it starts at the model's weights."""
    network = model.copy_network()
    network, _ = with_features(
        network,
        plan.head,
        features=method.features,
        length_scale=method.length_scale,
        layer_norm=method.layer_norm,
        seed=seed,
    )
    kinds = {slot.name: slot.kind for slot in model.layout.of_kind("belief", "point")}
    weight = f"{plan.head}.weight".lstrip(".")
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(name in kinds or name == weight)
    for path, shape in plan.bounded.items():
        add_vector(network.get_submodule(path), shape, seed)
    left = {name for name, _ in network.named_parameters()} - {weight}
    priors: dict[str, Normal | Laplace | ScaleMixture] = {
        glob.escape(weight): Normal(method.prior_precision**-0.5)
    }
    for slot in model.layout.of_kind("belief"):
        if slot.name in left:
            own = model.prior_of(slot)
            if isinstance(own, Centred):
                raise ValueError(
                    "SNGP replaces the head, so a Centred prior does not fit its weights; use Normal(std)"
                )
            priors[glob.escape(slot.name)] = own
    points = [glob.escape(name) for name, kind in kinds.items() if kind == "point" and name in left]
    return Model(
        network, model.likelihood, prior=PerParameter(priors), deterministic=points, normalization=True
    )


class BoundedLearner(PointLearner):
    """A point estimate whose layers are scaled back to their bounds before each step."""

    def __init__(self, bounds: dict[str, float], bound: Bound, start: Tensor, gradient: Tensor) -> None:
        super().__init__(bound, start, gradient)
        modules = {path: bound.network.get_submodule(path) for path in bounds}
        self.bounds = [SpectralBound(modules[path], largest) for path, largest in bounds.items()]

    def draw(self, noise: torch.Generator) -> None:
        for bound in self.bounds:
            bound.apply()


@dataclass(frozen=True)
class BuildBounded:
    """Makes a :class:`BoundedLearner`."""

    bounds: dict[str, float]

    def size(self, model: Model) -> int:
        return model.layout.trained

    def __call__(self, bound: Bound, start: Tensor, gradient: Tensor) -> BoundedLearner:
        return BoundedLearner(self.bounds, bound, start, gradient)


@dataclass(frozen=True, kw_only=True)
class SNGP(Training):
    """Spectrally bounded layers and a random-feature Gaussian-process head. Fields: see ``Training``.

    It starts from the weights of ``model.network``, the head anew. Scale the inputs to about 1: the kernel's
    length scale is in units of the last hidden layer, which the bounds tie to those of the input.

    Memory is ``features^2`` numbers for Gaussian labels and ``K features^2`` for ``K`` classes.

    Args:
        features: random features of the head. With few of them training finds hidden units of long features,
            ``|phi|^2`` above the kernel's 1 on the training data, and so too much variance there.
        length_scale: of the head's kernel, in units of the last hidden activations.
        layer_norm: normalise each row of those first (its length is then not seen).
        norm_bound: largest spectral norm of the bounded layers; a residual block ``h + g(h)`` keeps distances
            where ``g``'s is below 1.
        bounded: name patterns of the hidden linear layers and convolutions that are bounded; ``()`` is none.
            Only those whose matrices are trained: a frozen one is left as it is.
        prior_precision: ``s``, of the Gaussian prior of the head's weights; the other weights have the
            model's prior.
        weighted: count each row by the curvature of its label's likelihood, ``p (1 - p)`` for a class: the
            head's Laplace approximation. Rows of which the network is sure then hardly count, so that the
            logits' variance is near the prior's on the training data too, and can be smaller between the
            classes (an exact Gaussian process classifier has the same). The probabilities of such rows hardly
            move; rank inputs by these. ``False`` counts every row as 1, as the authors' code does for more
            than two classes: the variance then grows with the distance from the data alone, and is too small
            for a posterior. Classes only; the mean is the same.
        newton_steps: steps of the head's weights to their mode after training (one is exact for Gaussian
            labels); 0 leaves them as trained.

    Raises (in ``fit``):
        ValueError: no last linear layer, or one that is tied or runs more than once; ``temperature=0``.

    Example:
        >>> import singularbayes as sb
        >>> x = torch.randn(64, 4)
        >>> net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
        >>> model = sb.Model(net, sb.Categorical())
        >>> posterior = SNGP(epochs=2, features=64).fit(model, (x, (x[:, 0] > 0).long()))
        >>> posterior.predict(x, draws=8).mean.shape, sb.moments(posterior, x).covariance.shape
        (torch.Size([64, 2]), torch.Size([64, 2, 2]))
    """

    features: int = 1024
    length_scale: float = 1.0
    layer_norm: bool = False
    norm_bound: float = 0.95
    bounded: Patterns = "*"
    prior_precision: float = 1.0
    weighted: bool = True
    newton_steps: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(features=self.features)
        if self.newton_steps:
            check_whole(newton_steps=self.newton_steps)
        for name in ("length_scale", "norm_bound", "prior_precision"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name} must be positive and finite, got {value!r}")
        if self.temperature == 0:
            raise ValueError(
                "SNGP needs temperature above 0: without a prior its head has no posterior; use a small one"
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
        """Train, then build the head's posterior. Arguments and errors: see ``MAP.fit``."""
        check_model(model)
        device = checked_device(self.device) if self.device else model.device
        if not self.weighted and not isinstance(model.likelihood, Categorical | Bernoulli):
            raise ValueError(
                f"SNGP(weighted=False) counts rows of classes as 1; the precision of "
                f"{type(model.likelihood).__name__} labels is in units of its noise: use weighted=True"
            )
        data = prepare(model, self.patience, train, validation, device)
        plan = planned(model, data.probe, self.bounded)
        own = changed(model, plan, self, seed)
        fitted = fit_learner(
            own,
            self,
            BuildBounded(dict.fromkeys(plan.bounded, self.norm_bound)),
            train,
            validation,
            seed=seed,
            checkpoint=checkpoint,
            progress=progress,
            facts={"method": type(self).__name__, "numbers": own.layout.trained, "head": plan.head},
        )
        return self._with_head(fitted, plan, data)

    def _with_head(self, fitted: Posterior, plan: Plan, data: Prepared) -> Posterior:
        network, layout = fitted.network, fitted.layout
        norms = {}
        for path in plan.bounded:
            layer = network.get_submodule(path)
            norms[path] = SpectralBound(layer, self.norm_bound).enforce(drop_vector(layer))
        head = network.get_submodule(plan.head)
        assert isinstance(head, RandomFeatureHead)  # noqa: S101 - changed() put it there
        numbers = layout.likelihood_views(fitted.distribution.mean)

        def batches() -> Iterator[tuple[Any, Tensor]]:
            for x, y in data.train.epoch(max(self.batch_size, 256), 0, 0, shuffle=False):
                yield to_device(x, fitted.device), y.to(fitted.device)

        posterior = HeadPosterior(
            network, head, fitted.likelihood, numbers, batches, self.prior_precision, self.temperature
        )
        for _ in range(self.newton_steps):
            posterior.newton()
        mean = layout.flatten(network, numbers)
        roots, jitter = posterior.roots(weighted=self.weighted)
        distribution = row_gaussian(mean, roots, layout, f"{plan.head}.weight".lstrip("."))
        info = {
            **fitted.info,
            "numbers": fitted.info["numbers"] + distribution.right.numel(),
            "spectral_norms": norms,
            "jitter": jitter,
        }
        return Posterior(network, distribution, fitted.likelihood, layout, info)
