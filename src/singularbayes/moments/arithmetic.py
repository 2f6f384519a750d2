"""Rules of sums, differences, products and quotients, entry by entry.

Two random tensors count as independent of each other (the two branches of a residual sum, the two factors of
a gate): what they have in common by their origin is left out, but for ``x * x``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .products import Filtered, plus
from .random_tensor import RandomTensor, UncoveredError, expected_of, rule, variance_of

__all__: list[str] = []


def _weights(expected: Tensor, *values: Any) -> bool:
    """Whether the result's entries are independent of each other: no entry of a weight is in two of them."""
    random = [value for value in values if isinstance(value, RandomTensor)]
    return all(value.weight and value.shape == expected.shape for value in random)


def _sum(a: Any, b: Any, sign: float) -> RandomTensor:
    if a is b:
        raise (
            UncoveredError("the difference of a tensor with itself") if sign < 0 else UncoveredError("x + x")
        )
    expected = expected_of(a) + sign * expected_of(b)
    random = [value for value in (a, b) if isinstance(value, RandomTensor)]
    computed = [value for value in random if not value.weight]
    # what one has in common stays beside constants and parameters (as -M z, which has the moments of M z)
    kept = computed[0] if len(computed) == 1 and computed[0].shape == expected.shape else None
    noise = None if kept is None else kept.noise
    for value in random:
        if value is not kept:
            noise = plus(noise, value.variance.expand_as(expected))
    found = RandomTensor(expected, noise, () if kept is None else kept.shares, _weights(expected, a, b))
    found.followed = found.followed or (kept is not None and kept.followed)
    return found


@rule("add", "__add__", "__radd__")
def add(x: Any, other: Any, *, alpha: float = 1) -> RandomTensor:
    if alpha != 1:
        raise UncoveredError("add with another factor than 1")
    return _sum(x, other, 1.0)


@rule("sub", "subtract", "__sub__")
def subtract(x: Any, other: Any, *, alpha: float = 1) -> RandomTensor:
    if alpha != 1:
        raise UncoveredError("sub with another factor than 1")
    return _sum(x, other, -1.0)


@rule("rsub", "__rsub__")
def from_other(x: Any, other: Any) -> RandomTensor:
    return _sum(other, x, -1.0)


@rule("neg", "negative", "__neg__")
def negative(x: RandomTensor) -> RandomTensor:
    return multiply(x, -1.0)


def _by_channel(value: RandomTensor, gain: Any) -> bool:
    """Whether a factor belongs to the rows of what the entries share, and to nothing else."""
    axis = 1 if isinstance(value.shares[0], Filtered) else value.dim() - 1
    shape = [1] * (value.dim() - gain.dim()) + list(gain.shape)
    alone = all(n == 1 for i, n in enumerate(shape) if i != axis) and shape[axis] == value.shape[axis]
    return alone and not (isinstance(gain, RandomTensor) and not gain.weight)


def _gained(value: RandomTensor, gain: Any, expected: Tensor) -> RandomTensor:
    mean, spread = expected_of(gain), variance_of(gain)
    noise = None if value.noise is None else value.noise * mean.square()
    if spread is not None:
        noise = plus(noise, spread * (value.expected.square() + value.variance))
    return RandomTensor(expected, noise, [share.scaled(mean.flatten()) for share in value.shares])


@rule("mul", "multiply", "__mul__", "__rmul__")
def multiply(x: Any, other: Any) -> RandomTensor:
    if x is other:
        return square(x)
    a, b = expected_of(x), expected_of(other)
    v_a, v_b = variance_of(x), variance_of(other)
    expected = a * b
    if isinstance(b, float | int) or isinstance(a, float | int):
        value, factor = (x, b) if isinstance(b, float | int) else (other, a)
        noise = None if value.noise is None else value.noise * factor**2
        found = RandomTensor(expected, noise, [s.scaled(factor) for s in value.shares], weight=value.weight)
        found.followed = value.followed
        return found
    gain = x if isinstance(other, RandomTensor) and other.shares else other
    value = other if gain is x else x
    if isinstance(value, RandomTensor) and value.shares and _by_channel(value, gain):
        return _gained(value, gain, expected)
    parts = [v_a * b.square()] if v_a is not None else []
    if v_b is not None:
        parts.append(v_b * (a.square() if v_a is None else a.square() + v_a))
    return RandomTensor(
        expected, parts[0] if len(parts) == 1 else parts[0] + parts[1], weight=_weights(expected, x, other)
    )


@rule("div", "divide", "true_divide", "__truediv__")
def divide(x: Any, other: Any) -> RandomTensor:
    if isinstance(other, RandomTensor):
        raise UncoveredError("a quotient whose denominator has a distribution")
    return multiply(x, 1 / other)


@rule("square")
def square(x: RandomTensor) -> RandomTensor:
    """Of a Gaussian: mean ``m^2 + v``, variance ``2 v^2 + 4 m^2 v``."""
    m, v = x.expected.square(), x.variance
    return RandomTensor(m + v, 2 * v.square() + 4 * m * v, weight=x.weight)


@rule("pow", "__pow__")
def power(x: RandomTensor, exponent: Any) -> RandomTensor:
    if not isinstance(x, RandomTensor) or exponent not in (1, 2):
        raise UncoveredError("a power other than the square")
    return square(x) if exponent == 2 else x


def _register_in_place(name: str, operation: Any) -> None:
    def run(x: Any, other: Any) -> RandomTensor:
        if not isinstance(x, RandomTensor):
            raise UncoveredError(f"{name} of a constant tensor by one that has a distribution")
        return x.become(operation(x, other))

    rule(name)(run)


for _name, _operation in {
    "add_": add, "__iadd__": add, "sub_": subtract, "__isub__": subtract,
    "mul_": multiply, "__imul__": multiply,
    "div_": divide, "__itruediv__": divide,
}.items():  # fmt: skip
    _register_in_place(_name, _operation)


@rule("where")
def where(condition: Tensor, x: Any, other: Any) -> RandomTensor:
    """A choice that has no distribution itself."""
    if isinstance(condition, RandomTensor):
        raise UncoveredError("where by a condition that has a distribution")
    expected = torch.where(condition, expected_of(x), expected_of(other))
    zero = expected.new_zeros(())
    first, second = (zero if v is None else v for v in (variance_of(x), variance_of(other)))
    return RandomTensor(expected, torch.where(condition, first, second).expand_as(expected))
