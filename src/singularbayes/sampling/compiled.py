"""Leapfrog steps in compiled blocks, for small densities whose time is the overhead of many small operations.

A block is five steps with fixed shapes, traced with its gradients and compiled by torch's Inductor. Chains
lie last, ``(d, C)``, so that every loop runs over neighbouring numbers of different chains. A chain that has
done its steps waits where it is. The numbers are those of the plain integrator up to rounding.

Tracing and compiling take tens of seconds, once for a target, a number of chains and of threads.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from .leapfrog import Leapfrog, leapfrog
from .mass import DiagonalMetric, UnitMetric
from .metric import Metric
from .sampler import Point, Target
from .target import AutogradTarget

__all__ = ["CompiledLeapfrog", "Traceable"]

_TOLERANCE = 1e-3  # relative, of one step: float32 of a steep density is within 1e-4
_Columns = Callable[[Tensor], Tensor]


@runtime_checkable
class Traceable(Protocol):
    """A target that can be traced: its log density is made of torch operations on all chains at once."""

    def columns(self, chains: int) -> Callable[[Float[Tensor, "d C"]], Float[Tensor, " C"]]:
        """The log density of positions that are columns, differentiable, for so many chains.

        Raises:
            NotImplementedError: there is none, or it would be slower; the message says why.
        """
        ...


def _columns(target: Target, chains: int) -> _Columns:
    if isinstance(target, AutogradTarget):
        return lambda position: target.log_density(position.T)
    if isinstance(target, Traceable):
        return target.columns(chains)
    raise NotImplementedError(f"a {type(target).__name__} has no form that can be compiled")


@dataclass(frozen=True, eq=False)
class CompiledLeapfrog:
    """The integrator of :class:`~.leapfrog.Leapfrog` in compiled blocks.

    Where nothing can be compiled (no C++ compiler, an operation that cannot be traced, a target without such
    a form) it warns once, says why, and goes on without.

    Args:
        block: steps of one compiled call; the last block of a trajectory computes all of them.
    """

    block: int = 5
    made: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = field(
        default_factory=weakref.WeakKeyDictionary, init=False, repr=False
    )

    def __call__(
        self,
        target: Target,
        point: Point,
        momentum: Float[Tensor, "C d"],
        step_size: Float[Tensor, " C"],
        metric: Metric,
        steps: Int[Tensor, " C"],
    ) -> tuple[Point, Float[Tensor, "C d"]]:
        """See :class:`~.leapfrog.Leapfrog`.

        Raises:
            TypeError: a metric that is not diagonal.
            ValueError: the compiled step is not the plain one: the density is no pure function.
        """
        if not isinstance(metric, UnitMetric | DiagonalMetric):
            raise TypeError(
                f"a compiled leapfrog needs UnitMass() or DiagonalMass(), got {type(metric).__name__}"
            )
        inverse = metric.inverse_mass if isinstance(metric, DiagonalMetric) else metric.ones
        key = (momentum.shape, momentum.dtype, momentum.device, torch.get_num_threads())
        known = self.made.setdefault(target, {})
        if key not in known:
            known[key] = self._made(target, point, momentum, step_size, metric, inverse)
        call = known[key]
        if call is None:
            return Leapfrog()(target, point, momentum, step_size, metric, steps)
        moving = _as_columns(point.position, momentum, point.gradient)
        inverse, size = _as_columns(inverse, step_size.to(momentum.dtype).unsqueeze(1))
        value = point.log_density
        for done in range(0, int(steps.max()), self.block):
            *moving, value = call(*moving, inverse, size, steps - done)
        position, momentum, gradient = (part.T.contiguous() for part in moving)
        return Point(position, value, gradient), momentum

    def _made(
        self,
        target: Target,
        point: Point,
        momentum: Tensor,
        step_size: Tensor,
        metric: Metric,
        inverse: Tensor,
    ) -> Callable[..., tuple[Tensor, ...]] | None:
        size = step_size.to(momentum.dtype).unsqueeze(1)
        arguments = (
            *_as_columns(point.position, momentum, point.gradient, inverse, size),
            torch.ones_like(step_size, dtype=torch.long),
        )
        try:
            density = _columns(target, len(momentum))
            with torch.no_grad():
                traced = make_fx(_block(density, self.block))(*arguments)
                call = compile_graph(traced, arguments)
                position, pushed, gradient, value = call(*arguments)
        except (NotImplementedError, RuntimeError) as error:
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            warnings.warn(
                f"compile=True has no effect here: {reason[:200]}. The chains go on without it, to the same "
                f"numbers; compiling needs a C++ compiler (g++ or clang++) and a density that can be traced",
                stacklevel=2,
            )
            return None
        ahead, plain = leapfrog(target, point, momentum, step_size, metric)
        for what, found, right in (
            ("position", position.T, ahead.position),
            ("momentum", pushed.T, plain),
            ("log density", value, ahead.log_density),
            ("gradient", gradient.T, ahead.gradient),
        ):
            scale = torch.nan_to_num(right).abs().max().item()
            same = torch.allclose(
                found.to(right), right, rtol=_TOLERANCE, atol=_TOLERANCE * scale, equal_nan=True
            )
            if not same:
                raise ValueError(
                    f"the compiled {what} after one step is not the plain one: the log density must be a "
                    f"pure function of the positions, without randomness and without branches on their "
                    f"values; use compile=False for others"
                )
        return call


def compile_graph(graph: torch.fx.GraphModule, arguments: tuple[Tensor, ...]) -> Callable[..., Any]:
    """The graph for tensors of just these shapes: ``torch.compile`` would check them again at every call."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, of other parts of torch
        from torch._inductor import compile as inductor  # noqa: PLC0415 - slow to import

        call: Any = inductor(graph, list(arguments))
    return call


def _as_columns(*rows: Tensor) -> list[Tensor]:
    return [part.T.contiguous() for part in rows]


def _block(density: _Columns, count: int) -> Callable[..., tuple[Tensor, ...]]:
    """``count`` steps of columns; of each chain those that are left of its ``steps``."""

    def gradient(position: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            leaf = position.detach().requires_grad_()
            value = density(leaf)
            (found,) = torch.autograd.grad(value.sum(), leaf)
        return value.detach().double(), found

    def block(
        position: Tensor, momentum: Tensor, slope: Tensor, inverse: Tensor, size: Tensor, steps: Tensor
    ) -> tuple[Tensor, ...]:
        value = steps.double()
        for number in range(count):
            going = steps > number
            momentum = torch.where(going, momentum + size / 2 * slope, momentum)
            position = torch.where(going, position + size * (inverse * momentum), position)
            value, slope = gradient(position)  # again where it was, for a chain that waits: nothing to choose
            momentum = torch.where(going, momentum + size / 2 * slope, momentum)
        return position, momentum, slope, value

    return block
