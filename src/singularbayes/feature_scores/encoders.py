"""Where features come from: a network's own last hidden layer, any frozen encoder, or the inputs themselves.

Each is called with inputs and gives ``(B, F)`` in float64 on the CPU, computed in batches without gradients.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..data import as_inputs, batch_size_of, take, to_device
from ..functions import call, reduce_output
from ..model import takes_integers
from ..nn import DirectionalLinear, LowRankLinear, LowRankTransposedLinear, RankOneLinear
from ..nn.random_feature_head import RandomFeatureHead

__all__ = ["Features", "Frozen", "Inputs", "Penultimate", "features_of", "network_at_mean"]

_LINEAR = (
    nn.Linear,
    LowRankLinear,
    LowRankTransposedLinear,
    RankOneLinear,
    DirectionalLinear,
    RandomFeatureHead,  # of SNGP: its input is the last hidden layer
)
_ROWS = 512  # of inputs at a time


@runtime_checkable
class Features(Protocol):
    """Inputs in, features out; ``dtype`` and ``network`` say how data are read, as a posterior's do."""

    @property
    def dtype(self) -> torch.dtype:
        """What floating point inputs are cast to."""
        ...

    @property
    def network(self) -> nn.Module | None:
        """Where the features come from; whether whole numbers are ids follows from it."""
        ...

    def __call__(self, x: Any) -> Float[Tensor, "B F"]:
        """Features of inputs, float64."""
        ...


def features_of(source: Any) -> Features:
    """The features that a score was asked for: a posterior stands for its :class:`Penultimate`.

    Raises:
        TypeError: a bare network or function, whose features could be its outputs or its last hidden layer.
    """
    if isinstance(source, Penultimate | Frozen | Inputs):
        return source
    if callable(getattr(source, "at_mean", None)):
        return Penultimate(source)
    raise TypeError(
        f"got a {type(source).__name__}, expected a posterior of one network (of a mixture: one of its "
        f".members), Penultimate(network) for a network's last hidden layer, Frozen(encoder) for what an "
        f"encoder gives, or Inputs()"
    )


def network_at_mean(source: Any) -> nn.Module:
    """A private copy in eval mode: of a network, or of a posterior's at its mean weights.

    Raises:
        TypeError: neither.
        ValueError: a posterior of separate networks, which has no mean.
    """
    if isinstance(source, nn.Module):
        network = copy.deepcopy(source)
    elif callable(getattr(source, "at_mean", None)):
        try:
            collapsed = source.at_mean()
        except ValueError as error:
            raise ValueError(
                f"{error}; features are those of one network: give one that was trained by itself, or "
                f"Frozen(encoder)"
            ) from error
        network = copy.deepcopy(collapsed.network)
        with torch.no_grad():
            collapsed.layout.write(network, collapsed.distribution.mean)
    else:
        raise TypeError(f"got a {type(source).__name__}, expected a network or a posterior")
    return network.eval().requires_grad_(False)


class Penultimate:
    """The last hidden layer of a network: the input of its last linear layer, found by watching one row pass.

    Args:
        source: a network, or a posterior (at its mean weights; not an ensemble, whose members differ).
        module: the name of a part whose output is used instead; of several outputs the first.

    Raises:
        ValueError: no part of that name; an ensemble.

    Example:
        >>> features = Penultimate(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)))
        >>> features(torch.zeros(4, 3)).shape, features.found
        (torch.Size([4, 5]), '2')
    """

    def __init__(self, source: Any, module: str | None = None) -> None:
        self.network = network_at_mean(source)
        names = dict(self.network.named_modules())
        if module is not None and module not in names:
            raise ValueError(f"the network has no part {module!r}; it has {', '.join(filter(None, names))}")
        parameter = next(self.network.parameters(), torch.zeros(()))
        self.dtype, self.device = parameter.dtype, parameter.device
        self.module = module
        self.found: str | None = None

    def __call__(self, x: Any) -> Float[Tensor, "B F"]:
        """Features of inputs: rows are flattened.

        Raises:
            ValueError: no linear layer, or one that is not called with a row an input.
        """
        inputs = as_inputs(x, self.dtype, takes_integers(self.network))
        if self.module is None and self.found is None:
            self.found = self._last_linear(take(inputs, slice(0, 1)))
        return in_batches(self._features, inputs, self.device)

    def _last_linear(self, row: Any) -> str:
        called: list[str] = []
        handles = [
            part.register_forward_pre_hook(lambda _m, _i, name=name: called.append(name))
            for name, part in self.network.named_modules()
            if isinstance(part, _LINEAR) or type(part).__name__ == "Conv1D"  # Hugging Face's
        ]
        try:
            call(self.network, to_device(row, self.device))
        finally:
            for handle in handles:
                handle.remove()
        if not called:
            raise ValueError("no linear layer was called; name the part whose output holds the features: "
                             "Penultimate(source, module='...')")  # fmt: skip
        return called[-1]

    def _features(self, x: Any) -> Tensor:
        seen: list[Tensor] = []
        name = self.module if self.module is not None else self.found or ""
        part = self.network.get_submodule(name)
        if self.module is None:
            handle = part.register_forward_pre_hook(lambda _m, inputs: seen.append(inputs[0]))
        else:
            handle = part.register_forward_hook(lambda _m, _i, output: seen.append(reduce_output(output)))
        try:
            call(self.network, x)
        finally:
            handle.remove()
        rows = batch_size_of(x)
        if not seen or seen[-1].shape[0] != rows:
            got = tuple(seen[-1].shape) if seen else "nothing"
            raise ValueError(f"part {name!r} handled {got} for {rows} rows; expected the rows first: name "
                             f"another part: Penultimate(source, module='...')")  # fmt: skip
        return seen[-1].flatten(1)


class Frozen:
    """What any encoder gives, pretrained or not: a module (a copy in eval mode is used) or a function.

    Args:
        encoder: inputs in, ``(B, ...)`` out; rows are flattened.
        dtype: what inputs are cast to; that of the module's parameters by default, else float32.

    Example:
        >>> Frozen(lambda x: x[:, :2])(torch.zeros(4, 3)).shape
        torch.Size([4, 2])
    """

    def __init__(self, encoder: Callable[..., Any], dtype: torch.dtype | None = None) -> None:
        if not callable(encoder):
            raise TypeError(f"encoder must be a module or a function, got {type(encoder).__name__}")
        self.network = network_at_mean(encoder) if isinstance(encoder, nn.Module) else None
        parameter = None if self.network is None else next(self.network.parameters(), None)
        self.dtype = dtype or (torch.float32 if parameter is None else parameter.dtype)
        self.device = torch.device("cpu") if parameter is None else parameter.device
        self.encoder = encoder if self.network is None else self.network

    def __call__(self, x: Any) -> Float[Tensor, "B F"]:
        """Features of inputs."""
        integers = True if self.network is None else takes_integers(self.network)

        def features(batch: Any) -> Tensor:
            output = self.encoder(batch) if self.network is None else call(self.network, batch)
            found = torch.as_tensor(output)
            if found.dim() == 0 or len(found) != batch_size_of(batch):
                raise ValueError(f"the encoder gives shape {tuple(found.shape)} for {batch_size_of(batch)} "
                                 f"rows; expected one row of features each")  # fmt: skip
            return found.flatten(1) if found.dim() > 1 else found.unsqueeze(1)

        return in_batches(features, as_inputs(x, self.dtype, integers), self.device)


class Inputs:
    """The inputs themselves, flattened: what a score knows without any network."""

    dtype = torch.float64
    network = None

    def __call__(self, x: Any) -> Float[Tensor, "B F"]:
        """Inputs as features.

        Raises:
            TypeError: inputs of several parts.
        """
        inputs = as_inputs(x, self.dtype, integers=False)
        if not isinstance(inputs, Tensor):
            raise TypeError("Inputs() takes one tensor; for a dict or tuple of inputs use Frozen(encoder)")
        return in_batches(lambda batch: batch.reshape(len(batch), -1), inputs, torch.device("cpu"))


@torch.no_grad()
def in_batches(function: Callable[[Any], Tensor], x: Any, device: torch.device) -> Tensor:
    """A function's rows for all inputs, float64 on the CPU.

    Raises:
        ValueError: values that are not finite (with the row).
    """
    rows = batch_size_of(x)
    parts = [
        function(to_device(take(x, slice(start, start + _ROWS)), device)).detach().double().cpu()
        for start in range(0, rows, _ROWS)
    ]
    found = torch.cat(parts)
    bad = (~torch.isfinite(found)).flatten(1).any(1).nonzero() if found.dim() > 1 else torch.empty(0)
    if len(bad):
        raise ValueError(f"features of row {int(bad[0])} are not finite; the network overflows on this input")
    return found
