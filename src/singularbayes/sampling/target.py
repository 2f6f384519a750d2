"""A target from a user's function, and what every target must give at the start of the chains."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .leapfrog import evaluated
from .sampler import Point, Target, named

__all__ = ["AlikeRows", "AutogradTarget", "check_rows", "check_start", "rows_are_alike", "warn_of_rounding"]

_ONE_ROW = "for a function f of one row (d,) give torch.vmap(f)"
_COARSE = 0.1  # nats


@dataclass(frozen=True, eq=False)
class AutogradTarget:
    """A log density on rows with its gradient by autograd.

    Args:
        log_density: ``(C, d) -> (C,)``, each row's by itself, in nats up to a constant. Of sums over many
            terms it should return float64: energies are compared to parts of a nat.
        dimension: ``d``.

    Example:
        >>> import torch
        >>> target = AutogradTarget(lambda q: -0.5 * q.square().sum(1), 2)
        >>> value, gradient = target(torch.tensor([[1.0, 2.0]]))
        >>> value.item(), gradient
        (-2.5, tensor([[-1., -2.]]))
    """

    log_density: Callable[[Tensor], Tensor]
    dimension: int

    def __call__(self, position: Float[Tensor, "C d"]) -> tuple[Float[Tensor, " C"], Float[Tensor, "C d"]]:
        """See :class:`~.sampler.Target`.

        Raises:
            TypeError: no tensor, or one that is not of real numbers.
            ValueError: a wrong shape or device, or no gradient.
        """
        chains = len(position)
        with torch.inference_mode(False), torch.enable_grad():
            row = position.detach().clone().requires_grad_()
            value = self.log_density(row)
            if not isinstance(value, Tensor) or value.dtype not in (torch.float32, torch.float64):
                got = value.dtype if isinstance(value, Tensor) else type(value).__name__
                raise TypeError(f"log_density must return a float32 or float64 tensor (C,), got {got}")
            if value.device != row.device:
                raise ValueError(
                    f"log_density returned a tensor on {value.device} for positions on {row.device}; move "
                    f"what it uses to the device of start, or start there"
                )
            if value.shape != (chains,):
                raise ValueError(
                    f"log_density must return one number a row, shape ({chains},) for positions "
                    f"{tuple(position.shape)}, got {tuple(value.shape)}; sum over the last axis only, and "
                    f"{_ONE_ROW}"
                )
            found = (
                torch.autograd.grad(value.sum(), row, allow_unused=True)[0] if value.requires_grad else None
            )
        if found is None:
            raise ValueError(
                "log_density has no gradient: its value does not depend on the positions through torch "
                "operations; compute it without detach(), numpy or torch.no_grad()"
            )
        return value.detach(), found


@dataclass(frozen=True, eq=False)
class AlikeRows(AutogradTarget):
    """A density that is the same for every row, so that some rows can be asked alone: ``trees.Divisible``."""

    def of(self, chains: Int[Tensor, " A"]) -> AlikeRows:
        """Itself."""
        return self


def check_start(target: Target, position: Float[Tensor, "C d"]) -> Point:
    """The point at the start, where log density and gradient must be finite.

    Raises:
        ValueError: naming the chains, and the coordinate of a gradient.
    """
    point = evaluated(target, position)
    bad = ~torch.isfinite(point.log_density)
    if bool(bad.any()):
        value = point.log_density[bad][0].item()
        raise ValueError(
            f"the log density at the start of {named(bad)} is {value}; a chain must start where the density "
            f"is positive and can be computed"
        )
    bad = ~torch.isfinite(point.gradient)
    if bool(bad.any()):
        row, column = bad.nonzero()[0].tolist()
        raise ValueError(
            f"the gradient of the log density at the start of {named(bad.any(1))} is not finite (chain "
            f"{row}, coordinate {column}: {point.gradient[row, column].item()}) though the log density is; "
            f"start elsewhere, or keep square roots, logarithms and norms away from 0"
        )
    return point


def check_rows(target: Target, point: Point) -> None:
    """Each row's density must not depend on the other rows.

    Raises:
        ValueError: it does, e.g. by a mean or a sum over all rows.
    """
    position = point.position
    if len(position) == 1:
        return
    again = evaluated(target, torch.cat([position[:1], 1.01 * position[1:] + 0.01]))
    for found, right in (
        (again.log_density[0], point.log_density[0]),
        (again.gradient[0], point.gradient[0]),
    ):
        gap = (found - right).abs().max().item()
        if not _near(found, right):
            raise ValueError(
                f"the log density of chain 0 changes when the other chains move (by {gap:.3g} of "
                f"{right.abs().max().item():.3g}): each row must be computed by itself. Sum over the last "
                f"axis only, and {_ONE_ROW}"
            )


def rows_are_alike(target: Target, point: Point) -> bool:
    """Whether some rows by themselves, in another order, have the values that they have among all.

    Not so where each row has data or a temperature of its own, which is allowed.
    """
    if len(point.position) == 1:
        return True
    try:
        some = evaluated(target, point.position[1:].flip(0))
    except (RuntimeError, ValueError, IndexError):  # of shapes that fit all rows only
        return False
    alike = _near(some.log_density, point.log_density[1:].flip(0))
    return alike and _near(some.gradient, point.gradient[1:].flip(0))


def _near(found: Tensor, right: Tensor) -> bool:
    gap = (found.double() - right.double()).abs().max()
    return bool(gap <= 1e-3 * (1e-6 + right.abs().max()))


def warn_of_rounding(target: Target, position: Float[Tensor, "C d"]) -> None:
    """Float32 knows a big sum only coarsely, and energies are compared to parts of a nat.

    Warns:
        UserWarning: steps of more than a tenth of a nat between the values.
    """
    value = target(position)[0]
    step = torch.finfo(value.dtype).eps * value.abs().max().item()
    if step > _COARSE:
        warnings.warn(
            f"the log density at the start is {value.abs().max().item():.3g} in {value.dtype}, known to "
            f"{step:.2g} nats: what is accepted is a matter of rounding. Sum in float64, or take a "
            f"constant off",
            stacklevel=3,
        )
