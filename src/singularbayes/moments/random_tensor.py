"""A tensor known by the mean and the variance of its entries, on which a network's own forward pass runs.

    t = expected + noise + sum_i M_i z_i

``noise`` and all ``z_i`` have independent entries of known variance; each ``M_i`` is one matrix (or kernel)
for all rows. So what two entries share after a chain of linear layers is not lost: the variance of a low-rank
product ``A (B^T x)`` and the covariance of the last layer's outputs follow from it, exactly.

Operations of torch reach it through ``__torch_function__`` and are looked up by name; one without a rule is
``UncoveredError``, never approximated by something else.

References:
    Wang and Manning 2013, "Fast dropout training" (Gaussian moments layer by layer). Hernandez-Lobato and
    Adams 2015, arXiv 1502.05336, section 3 (means and variances through linear layers and ReLU).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

__all__ = [
    "RandomTensor", "Share", "UncoveredError", "averaged", "correlation", "expected_of", "operations", "rule",
    "sharing",
    "variance_of",
]  # fmt: skip

_RULES: dict[str, Callable[..., Any]] = {}
_FACTS = frozenset({
    "shape", "dtype", "device", "layout", "ndim", "requires_grad", "is_nested", "is_sparse", "is_quantized",
    "is_meta", "is_cuda", "is_cpu", "is_leaf", "grad", "itemsize", "dim", "size", "numel", "nelement",
    "__len__",
    "is_floating_point", "is_complex", "is_contiguous", "get_device", "has_names", "is_mkldnn", "is_mps",
    "element_size", "ndimension", "is_inference", "grad_fn", "names",
})  # fmt: skip
_SHARED: ContextVar[float] = ContextVar("correlation of positions", default=1.0)


class UncoveredError(NotImplementedError):
    """An operation that no rule of moment propagation covers, with the path of the module that ran it."""

    def __init__(self, operation: str, path: str | None = None) -> None:
        self.operation, self.path = operation, path
        place = "" if path is None else f" in {path or 'the network itself'}"
        super().__init__(f"{operation}{place} is not covered by moment propagation")


@runtime_checkable
class Share(Protocol):
    """``M z``: what several entries have in common. ``M`` is a matrix or a kernel."""

    def spread(self) -> Tensor:
        """Variance of each entry of ``M z``."""
        ...


class RandomTensor(Tensor):
    """See the module. It looks like a tensor of ``expected``'s shape, and holds no numbers of its own.

    Attributes:
        expected: mean of each entry.
        noise: variance of the part that is independent between entries; ``None`` is 0.
        shares: the parts that entries have in common.
        weight: a parameter of the network (or a part of one): its entries are independent of each other
            and of everything that has not been computed from it.
        followed: what two entries of a row have in common is in ``shares``; else it is not known.
    """

    expected: Tensor
    noise: Tensor | None
    shares: tuple[Any, ...]
    variance: Tensor
    weight: bool
    proportions: bool
    viewed: bool
    followed: bool

    @staticmethod
    def __new__(
        cls: Any, expected: Tensor, noise: Tensor | None, shares: Sequence[Any] = (), weight: bool = False
    ) -> Any:
        own = Tensor._make_wrapper_subclass(  # noqa: SLF001 - torch's own name for it
            cls, expected.shape, dtype=expected.dtype, device=expected.device
        )
        own.expected, own.noise, own.shares, own.weight = expected, noise, tuple(shares), weight
        own.proportions = own.viewed = False
        own.followed = weight or bool(own.shares) or noise is None
        parts = [part for part in (noise, *(share.spread() for share in own.shares)) if part is not None]
        total = parts[0] if parts else torch.zeros_like(expected)
        for part in parts[1:]:
            total = total + part
        own.variance = total
        return own

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __repr__(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        return f"RandomTensor{tuple(self.expected.shape)}"

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", str(func))
        if name == "__get__":
            name = func.__self__.__name__
        if name in _FACTS:
            with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001
                return func(*args, **(kwargs or {}))
        found = _RULES.get(name)
        if found is None:
            raise UncoveredError(f"the operation {name}")
        try:
            inspect.signature(found).bind(*args, **(kwargs or {}))
        except TypeError as error:
            raise UncoveredError(f"the operation {name} with these arguments ({error})") from None
        return found(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        raise UncoveredError(f"the operation {func}")

    def become(self, other: RandomTensor) -> RandomTensor:
        """Take another's moments: what an operation in place does."""
        if self.shape != other.shape or self.weight or self.viewed:
            raise UncoveredError(
                "an operation in place on a parameter or a view, or one that changes the shape"
            )
        for name in ("expected", "noise", "shares", "weight", "proportions", "variance", "followed"):
            setattr(self, name, getattr(other, name))
        return self


def rule(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the rule of the operations with these names; its arguments are those of torch's operation."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        _RULES.update(dict.fromkeys(names, function))
        return function

    return register


def operations() -> tuple[str, ...]:
    """Names of the operations that have a rule."""
    return tuple(sorted(_RULES))


def expected_of(value: Any) -> Any:
    """The mean of a random tensor; anything else is its own."""
    return value.expected if isinstance(value, RandomTensor) else value


def variance_of(value: Any) -> Tensor | None:
    """The variance of a random tensor; ``None`` for a constant."""
    return value.variance if isinstance(value, RandomTensor) else None


@contextmanager
def sharing(rho: float) -> Iterator[None]:
    """Within it, positions that are averaged are taken to have this correlation."""
    token = _SHARED.set(rho)
    try:
        yield
    finally:
        _SHARED.reset(token)


def correlation() -> float:
    """What :func:`sharing` says."""
    return _SHARED.get()


def averaged(
    variance: Tensor, total: Callable[[Tensor], Tensor], squares: Callable[[Tensor], Tensor]
) -> Tensor:
    """Variance of ``sum_p c_p t_p`` over positions whose weights are shared.

        (1 - rho) sum c_p^2 var_p + rho (sum c_p sd_p)^2,    c_p >= 0

    Args:
        variance: of each position.
        total: ``t -> sum_p c_p t_p``.
        squares: ``t -> sum_p c_p^2 t_p``.
    """
    rho = correlation()
    if rho == 0:
        return squares(variance)
    together = total(variance.clamp_min(0).sqrt()).square()
    return together if rho == 1 else (1 - rho) * squares(variance) + rho * together
