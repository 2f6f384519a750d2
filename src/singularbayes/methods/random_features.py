"""A Gaussian process with an RBF kernel, by random Fourier features, on inputs or on a network's features.

    f_k(x) = beta_k^T phi(h(x)),    phi(h) = sqrt(2 / m) cos(Omega h + b),    beta_k ~ N(0, std^2 I)
    Cov(f_k(x), f_k(x'))  ->  std^2 exp(-|h(x) - h(x')|^2 / (2 length_scale^2))    as m grows

``h`` is what reaches the network's last linear layer, at the weights that the network has: nothing of it is
trained. ``nn.Linear(d, K)`` alone, or after ``nn.Flatten``, gives a process on the inputs. The posterior of
``beta`` is exact (:mod:`.exact_inference`), or what any method makes of it: with ``MeanField()`` the KL of
one output is ``1/2 sum_j (s_j^2 + mu_j^2 - 1 - log s_j^2)``, in units of the prior.

What it is not: a belief about the features. Where the network collapses two inputs, it cannot tell them
apart; ``SNGP`` trains features that keep distances.

References:
    Rahimi and Recht 2007, "Random features for large-scale kernel machines", algorithm 1. Rasmussen and
    Williams 2006, sections 2.1, 3.4 and 5.4. Rudner et al. 2023, arXiv 2312.17199, appendix B.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..data import Tensors, to_device
from ..functions import call
from ..likelihoods import Gaussian
from ..model import Model, check_model
from ..nn.kernels import plain_attention
from ..nn.random_feature_head import RandomFeatureHead
from ..parameters import LIKELIHOOD_PREFIX, Layout
from ..posterior import Posterior
from ..priors import Normal
from .exact_inference import ExactInference
from .feature_head import HEADS, Trace, head_path, trace, with_features
from .kernel_search import choose_kernel
from .learner import Prepared, prepare
from .settings import check_whole

__all__ = ["RandomFeatures"]


@dataclass(frozen=True, kw_only=True)
class RandomFeatures:
    """A random-feature Gaussian process in the place of a network's last linear layer.

    That layer is replaced whether it was trained or frozen; the prior of the head is ``std``'s, the model's
    has no part. The head has no bias: centre the labels of a regression. It starts from the weights of
    ``model.network``; to train these first: ``Pretrained(member=RandomFeatures())``.

    Args:
        features: number ``m`` of random features; the kernel's error falls as ``1 / sqrt m``.
        length_scale: of the kernel, in the units of ``h``; ``None`` finds it by the evidence.
        std: prior standard deviation of the function; ``None`` finds it by the evidence.
        layer_norm: normalise each ``h`` first (its length is then not seen).
        inference: ``ExactInference()``; or a method, which gets the head alone as its network:
            ``MeanField()`` is the variational posterior, ``HMC()`` its reference for classes.
        search_rows: rows of the training data, chosen at random, on which the evidence is measured.
        batch_size: rows at a time of the pass that computes ``h``; it does not change the result.

    A ``Gaussian()`` that would learn its noise has it found by the evidence too. ``MeanField`` then trains it
    further, ``ExactInference`` leaves it there.

    Example:
        >>> import singularbayes as sb
        >>> x = torch.linspace(-3, 3, 40).unsqueeze(1)
        >>> model = sb.Model(nn.Linear(1, 1), sb.Gaussian(noise=0.1))
        >>> posterior = RandomFeatures(features=100).fit(model, (x, x.sin()))
        >>> sb.moments(posterior, torch.tensor([[0.0], [9.0]])).variance.sqrt().flatten() > 0.2
        tensor([False,  True])
    """

    features: int = 1024
    length_scale: float | None = None
    std: float | None = None
    layer_norm: bool = False
    inference: Any = field(default_factory=ExactInference)
    search_rows: int = 2000
    batch_size: int = 256

    def __post_init__(self) -> None:
        check_whole(features=self.features, search_rows=self.search_rows, batch_size=self.batch_size)
        for name in ("length_scale", "std"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ValueError(
                    f"{name} must be positive and finite, or None to find it by the evidence, got {value!r}"
                )
        if isinstance(self.inference, type) or not callable(getattr(self.inference, "fit", None)):
            raise TypeError(
                f"inference must be an object such as ExactInference() or MeanField(), got {self.inference!r}"
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
        """Compute ``h``, choose the kernel, infer the head. Arguments and errors: see ``MAP.fit``.

        Returns:
            A posterior; its ``info`` has ``head`` (the path), ``length_scale``, ``std``, ``noise`` and
            ``search_log_evidence`` where they were searched, and what the inference says of itself.

        Raises:
            ValueError: no linear layer, one that runs more than once, or operations after it.
        """
        check_model(model)
        began = time.perf_counter()
        data = prepare(model, getattr(self.inference, "patience", None), train, validation, model.device)
        traced = trace(model, data.probe, HEADS, frozen=True)
        path = head_path(traced, type(self).__name__, "")
        _refuse_tail(traced, path)
        network, head = with_features(
            model.copy_network().to(model.device).eval(),
            path,
            features=self.features,
            length_scale=self.length_scale or 1.0,
            layer_norm=self.layer_norm,
            seed=seed,
        )
        h = _features(model, path, data.train, self.batch_size)
        labels = model.likelihood.labels(torch.Size((len(h.x), head.out_features)), _column(h.y))
        kernel = choose_kernel(
            head,
            model.likelihood,
            h.x,
            labels,
            length_scale=self.length_scale,
            std=self.std,
            rows=self.search_rows,
            seed=seed,
        )
        head = head.at_length_scale(kernel.length_scale)
        inner = Model(head, self._likelihood(model, kernel.noise), prior=Normal(kernel.std))
        held = None if data.validation is None else _held(model, path, data, self.batch_size)
        fitted = self.inference.fit(
            inner, (h.x, labels), held, seed=seed, checkpoint=checkpoint, progress=progress
        )
        _refuse_other(fitted)
        found = {} if kernel.noise is None else {"noise": kernel.noise}
        if kernel.log_evidence is not None:
            found["search_log_evidence"] = kernel.log_evidence
        info = {
            **fitted.info,
            "method": type(self).__name__,
            "inference": fitted.info.get("method"),
            "inference_settings": fitted.info.get("settings"),
            "head": path,
            "length_scale": kernel.length_scale,
            "std": kernel.std,
            "at_bound": list(kernel.at_bound),
            **found,
            "seconds": time.perf_counter() - began,
            "settings": {item.name: repr(getattr(self, item.name)) for item in fields(self)},
        }
        return _placed(network, path, fitted, info)

    def _likelihood(self, model: Model, noise: float | None) -> Any:
        """The model's likelihood at the noise that was found: fixed, or where training begins."""
        likelihood = model.likelihood
        if noise is None or not isinstance(likelihood, Gaussian):
            return likelihood
        if isinstance(self.inference, ExactInference):
            return replace(likelihood, noise=noise)
        return replace(likelihood, initial_noise=noise)


def _refuse_tail(traced: Trace, path: str) -> None:
    """The head's outputs must be the network's: the head is inferred alone."""
    output = traced.calls[path][-1][1]
    if output.numel() != traced.output.numel() or not torch.equal(
        output.reshape(-1), traced.output.reshape(-1)
    ):
        raise ValueError(
            f"RandomFeatures replaces the last linear layer, {path or 'the network'}, whose outputs must be "
            f"the network's, but operations follow it; move them into the likelihood, or before that layer"
        )


def _refuse_other(fitted: Any) -> None:
    if not isinstance(fitted, Posterior) or not isinstance(fitted.network, RandomFeatureHead):
        raise ValueError(
            "RandomFeatures(inference=...) needs a method whose posterior is of the head itself; this one "
            "makes another network of it. Use ExactInference(), MeanField() or a sampler"
        )


def _column(y: Tensor | None) -> Tensor:
    if y is None:
        raise ValueError("training data need labels: pass (X, y)")
    return y


@torch.no_grad()
def _features(model: Model, path: str, source: Any, batch_size: int) -> Tensors:
    """What reaches the layer at ``path``, and the labels, of all rows in order."""
    network = model.copy_network().to(model.device).eval()
    seen: list[Tensor] = []
    network.get_submodule(path).register_forward_pre_hook(lambda _layer, inputs: seen.append(inputs[0]))
    parts, labels = [], []
    with plain_attention(network.modules()), torch.autocast(model.device.type, enabled=False):
        for x, y in source.epoch(batch_size, 0, 0, shuffle=False):
            seen.clear()
            call(network, to_device(x, model.device))
            parts.append(seen[-1].clone())
            labels.append(y.to(model.device))
    return Tensors(torch.cat(parts), torch.cat(labels))


def _held(model: Model, path: str, data: Prepared, batch_size: int) -> tuple[Tensor, Tensor]:
    x, y = data.validation  # type: ignore[misc]
    held = _features(model, path, Tensors(x, y), batch_size)
    return held.x, _column(held.y)


def _placed(network: nn.Module, path: str, fitted: Posterior, info: dict[str, Any]) -> Posterior:
    """The head's posterior as one of the whole network: the same vector, its tensors under longer names.

    All else of the network stands outside the vector: it stays as it is.
    """
    start = f"{path}." if path else ""

    def renamed(name: str) -> str:
        return name if name.startswith(LIKELIHOOD_PREFIX) else f"{start}{name}"

    slots = tuple(
        replace(slot, name=renamed(slot.name), aliases=tuple(map(renamed, slot.aliases)))
        for slot in fitted.layout.slots
    )
    if path:
        parent, _, leaf = path.rpartition(".")
        setattr(network.get_submodule(parent), leaf, fitted.network)
    else:
        network = fitted.network
    whole = network.to(fitted.device)
    return Posterior(whole, fitted.distribution, fitted.likelihood, Layout(slots), info)
