"""Rules of operations that move entries about: they act on means and variances alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .random_tensor import RandomTensor, UncoveredError, expected_of, rule, variance_of

__all__: list[str] = []

_MOVED = (
    "view", "reshape", "flatten", "unflatten", "permute", "transpose", "swapaxes", "movedim", "squeeze",
    "unsqueeze", "T", "mT", "t", "select", "narrow", "__getitem__", "contiguous", "clone", "detach",
    "flip",
)  # fmt: skip
# An entry that stands twice: these are no independent weights.
_REPEATED = (
    "expand",
    "expand_as",
    "repeat",
    "repeat_interleave",
    "tile",
    "index_select",
)
_PARTED = ("chunk", "split", "unbind", "tensor_split", "split_with_sizes")


def _operation(name: str) -> Callable[..., Any]:
    if name in ("T", "mT"):
        return lambda t: getattr(t, name)
    return getattr(Tensor, name)


def _moved(x: RandomTensor, function: Callable[[Tensor], Tensor], weight: bool) -> RandomTensor:
    """The moments after a move; of what entries share only the variance is kept."""
    found = RandomTensor(function(x.expected), function(x.variance), weight=weight)
    found.viewed = x.viewed = True  # torch may let them share memory: writing to one would write to the other
    return found


def _register_move(name: str, keeps: bool) -> None:
    operation = _operation(name)

    def run(x: RandomTensor, *args: Any, **kwargs: Any) -> RandomTensor:
        if any(isinstance(arg, RandomTensor) for arg in args) and name != "expand_as":
            raise UncoveredError(f"{name} by a tensor that has a distribution")
        plain = [arg.expected if isinstance(arg, RandomTensor) else arg for arg in args]
        once = keeps and not (name == "__getitem__" and _by_index(plain[0]))
        return _moved(x, lambda t: operation(t, *plain, **kwargs), x.weight and once)

    rule(name)(run)


def _by_index(key: Any) -> bool:
    """Whether entries are looked up by their numbers, which may name one twice."""
    return any(isinstance(each, Tensor | list) for each in (key if isinstance(key, tuple) else (key,)))


def _register_parts(name: str) -> None:
    operation = getattr(torch, name)

    def run(x: RandomTensor, *args: Any, **kwargs: Any) -> tuple[RandomTensor, ...]:
        parts = zip(operation(x.expected, *args, **kwargs), operation(x.variance, *args, **kwargs),
                    strict=True)  # fmt: skip
        found = tuple(RandomTensor(mean, var, weight=x.weight) for mean, var in parts)
        for part in (x, *found):
            part.viewed = True
        return found

    rule(name)(run)


for _name in _MOVED:
    _register_move(_name, True)
for _name in _REPEATED:
    _register_move(_name, False)
for _name in _PARTED:
    _register_parts(_name)


@rule("to", "type_as")
def convert(x: RandomTensor, *args: Any, **kwargs: Any) -> RandomTensor:
    """Another dtype or device."""
    plain = [expected_of(arg) for arg in args]

    def to(t: Tensor) -> Any:
        return t.to(*plain, **kwargs)

    return x if to(x.expected) is x.expected else _moved(x, to, x.weight)


def _both(values: Any) -> tuple[list[Tensor], list[Tensor]]:
    means, variances = [], []
    for value in values:
        variance = variance_of(value)
        means.append(value.expected if isinstance(value, RandomTensor) else value)
        variances.append(torch.zeros_like(value) if variance is None else variance)
    return means, variances


def _is_weights(values: Any) -> bool:
    return all(not isinstance(value, RandomTensor) or value.weight for value in values)


@rule("cat", "concat", "concatenate")
def cat(tensors: Any, dim: int = 0) -> RandomTensor:
    means, variances = _both(tensors)
    return RandomTensor(torch.cat(means, dim), torch.cat(variances, dim), weight=_is_weights(tensors))


@rule("stack")
def stack(tensors: Any, dim: int = 0) -> RandomTensor:
    means, variances = _both(tensors)
    return RandomTensor(torch.stack(means, dim), torch.stack(variances, dim), weight=_is_weights(tensors))


@rule("pad")
def pad(x: RandomTensor, pad: Any, mode: str = "constant", value: float | None = None) -> RandomTensor:
    """Padding; what is copied to several places counts as independent."""
    mean = F.pad(x.expected, pad, mode, value)
    return RandomTensor(mean, F.pad(x.variance, pad, mode, 0.0 if mode == "constant" else None))


@rule("masked_fill")
def masked_fill(x: RandomTensor, mask: Tensor, value: float) -> RandomTensor:
    return RandomTensor(x.expected.masked_fill(mask, value), x.variance.masked_fill(mask, 0))


@rule("dropout", "dropout1d", "dropout2d", "dropout3d", "feature_dropout", "alpha_dropout")
def dropout(
    x: Any,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,  # noqa: ARG001 - torch's signature
) -> Any:
    """Nothing, in eval mode."""
    if training and p > 0:
        raise UncoveredError("dropout that is on")
    return x
