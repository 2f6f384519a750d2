"""Moment propagation: the network's own forward pass on means and variances in place of numbers.

One pass, no draws. Every operation of the forward pass has a rule (``covered()`` lists them); one that has
none is named with the path of its module.
"""

from __future__ import annotations

import copy
import functools
import math
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ..data import batch_size_of, take
from ..distributions import DiagonalGaussian, DiagonalLaplace
from ..functions import outputs_at
from ..nn.linearized import Linearized
from ..posterior import Posterior

# Importing them registers their rules.
from . import activations, arithmetic, normalising, pooling, shapes  # noqa: F401
from .modules import MODULES, rule_of
from .outputs import Moments
from .products import Mapped
from .random_tensor import RandomTensor, UncoveredError, operations, sharing
from .rows import Given, given

__all__ = ["Propagation", "covered"]

KINDS = (DiagonalGaussian, DiagonalLaplace)


def covered() -> dict[str, tuple[str, ...]]:
    """What moment propagation has a rule for: operations of torch by name, and whole modules.

    Any other module is run through its own forward pass, so it is covered where its operations are.

    Example:
        >>> "relu" in covered()["operations"], "LowRankLinear" in covered()["modules"]
        (True, True)
    """
    names = (name for name in operations() if not name.startswith("__"))
    return {"operations": tuple(names), "modules": tuple(sorted(kind.__name__ for kind in MODULES))}


@dataclass(frozen=True, kw_only=True)
class Propagation:
    """Means and variances carried through the forward pass, for posteriors with independent weights.

    Exact: means and variances of a layer's outputs for given means and variances of independent inputs,
    for linear layers, convolutions, embeddings and their low-rank forms; all of a chain of linear layers;
    sums; batch normalisation in eval mode. Assumed: a Gaussian before every activation; no correlation
    between units after an activation, between the branches of a sum, between two uses of one weight (ties,
    positions). Approximated to first order: the other normalisations, softmax and attention weights.
    The covariance of the outputs is that which the last linear layer gives them.

    Args:
        correlation: of positions that are averaged (pooling, attention), between 0 (independent: far too
            small, as positions share their weights) and 1.
        batch_size: rows at a time; it changes no number.
    """

    correlation: float = 1.0
    batch_size: int = 128  # what it holds then stays in the cache

    def __post_init__(self) -> None:
        if not 0 <= self.correlation <= 1:
            raise ValueError(f"correlation must be between 0 and 1, got {self.correlation}")
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")

    @torch.no_grad()
    def moments(self, posterior: Posterior, x: Any) -> Moments:
        """Mean and covariance at each input.

        Args:
            posterior: with independent weights: a diagonal Gaussian or Laplace, or one atom.
            x: inputs, as for ``posterior.predict``.

        Raises:
            TypeError: another distribution.
            NotImplementedError: an operation without a rule, named with the path of its module.
        """
        at = given(posterior, x, KINDS)
        if isinstance(posterior.network, Linearized):
            raise UncoveredError("a linearised network (for which ClosedForm() is exact)")
        run = _Run(posterior, at)
        rows = batch_size_of(at.inputs)
        with sharing(self.correlation):
            parts = [
                run(take(at.inputs, slice(start, start + self.batch_size)))
                for start in range(0, rows, self.batch_size)
            ]
        means, covariances = (torch.cat(part) for part in zip(*parts, strict=True))
        info: dict[str, Any] = {"method": "Propagation", "exact": False}
        if run.diagonal:
            info["covariance"] = "the outputs' variances alone: the last operation is no linear layer"
        numbers = posterior.layout.likelihood_views(at.mean.unsqueeze(0))
        flat = means.reshape(rows, -1)
        return Moments(flat, covariances, posterior.likelihood, numbers, means.shape[1:], info)


class _Copy:
    """A private copy of a network (its parameters are the same) whose modules apply their rules.

    It knows where a forward pass is: ``path`` is that of the module that is running.
    """

    def __init__(self, network: nn.Module) -> None:
        self.path = ""
        self.network = copy.deepcopy(network, {id(p): p for p in network.parameters()})
        for path, module in self.network.named_modules():
            found = rule_of(module)
            if found is not None:
                module.forward = functools.partial(found, module)
            module.register_forward_pre_hook(functools.partial(self._enter, path))
            module.register_forward_hook(functools.partial(self._leave, path.rpartition(".")[0]))

    def _enter(self, path: str, _module: nn.Module, _inputs: Any) -> None:
        self.path = path

    def _leave(self, parent: str, _module: nn.Module, _inputs: Any, _output: Any) -> None:
        self.path = parent


_COPIES: WeakKeyDictionary[Posterior, _Copy] = (
    WeakKeyDictionary()
)  # a copy costs as much as small networks' passes


class _Run:
    """Forward passes of one posterior's network on random parameters."""

    def __init__(self, posterior: Posterior, at: Given) -> None:
        self.layout, self.diagonal = posterior.layout, False
        if posterior not in _COPIES:
            _COPIES[posterior] = _Copy(posterior.network)
        self.copy = _COPIES[posterior]
        names = {slot.name for slot in at.varying}
        variances = self.layout.views(at.variance)
        self.tensors: dict[str, Tensor] = {
            name: RandomTensor(mean, variances[name], weight=True) if name in names else mean
            for name, mean in self.layout.views(at.mean).items()
        }

    def __call__(self, x: Any) -> tuple[Tensor, Tensor]:
        """Means ``(B, *event)`` and covariances ``(B, K, K)``."""
        try:
            outputs = outputs_at(self.copy.network, self.layout, self.tensors, x)
        except UncoveredError as error:
            raise UncoveredError(error.operation, self.copy.path) from error.__cause__
        if not isinstance(outputs, RandomTensor):
            outputs = RandomTensor(outputs, None)
        rows = len(outputs.expected)
        count = math.prod(outputs.expected.shape[1:])
        whole = outputs.dim() == 2 and all(isinstance(share, Mapped) for share in outputs.shares)
        if not (whole and outputs.followed):
            self.diagonal = self.diagonal or count > 1
            return outputs.expected, outputs.variance.reshape(rows, count).diag_embed()
        noise = outputs.expected.new_zeros(()) if outputs.noise is None else outputs.noise
        covariance = torch.diag_embed(noise.expand_as(outputs.expected))
        for share in outputs.shares:
            covariance = covariance + share.covariance()
        return outputs.expected, covariance
