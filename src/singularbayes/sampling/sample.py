"""Sampling of any log density: no network is needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from .run import run
from .sampler import Sampler
from .samples import Samples
from .target import AlikeRows, AutogradTarget, check_rows, check_start, rows_are_alike, warn_of_rounding

__all__ = ["ChainMethod", "sample"]


@runtime_checkable
class ChainMethod(Protocol):
    """Settings of a sampler: ``HMC``, ``NUTS``, ``MCLMC``, ``SGHMC``, or a user's own."""

    @property
    def warm_up(self) -> int:
        """Steps that are not kept."""
        ...

    @property
    def draws(self) -> int:
        """Kept, of each chain."""
        ...

    @property
    def thin(self) -> int:
        """Steps between kept draws."""
        ...

    def sampler(self) -> Sampler:
        """The kernel."""
        ...


def sample(
    log_density: Callable[[Tensor], Tensor],
    start: Tensor,
    method: ChainMethod,
    *,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    progress: bool | None = None,
) -> Samples:
    """Draw from a density that is known up to a constant.

    Args:
        log_density: ``(C, d) -> (C,)``, each row by itself, in nats, differentiable by torch. For a function
            of one row give ``torch.vmap(f)``. Constrained quantities: sample their unconstrained transforms,
            with the log Jacobian added.
        start: where each of ``C`` chains starts, ``(C, d)``, float32 or float64, which the draws follow, as
            they do its device. Starts that are spread wider than the density make diagnostics worth more.
        method: ``HMC(...)``, ``NUTS(...)``, ...; its ``chains`` and ``reinitialize`` are about fits of
            networks: here ``start`` says how many chains there are.
        seed: of all randomness; the global random state is not touched.
        checkpoint: folder to save to every few seconds and on an interrupt, and to go on from.
        progress: show acceptance and divergences (``None``: on a terminal only).

    Returns:
        Draws ``(C, N, d)`` with what each step did.

    Raises:
        TypeError: a start or a log density that is no tensor of real numbers, a method that is none.
        ValueError: a wrong shape, a log density that is nan or has no gradient at the start, a checkpoint of
            another run; each message says what to do.
        ChainsStuck: no chain ever accepts a proposal.

    Warns:
        UserWarning: chains that never accept, a low acceptance, many divergences, by number; a big log
            density in float32.

    Example:
        >>> import torch, singularbayes as sb
        >>> scale = torch.tensor([1.0, 0.01])
        >>> samples = sb.sample(
        ...     lambda q: -0.5 * (q / scale).square().sum(1),
        ...     start=torch.zeros(4, 2),
        ...     method=sb.HMC(warm_up=200, draws=250),
        ... )
        >>> samples.draws.shape
        torch.Size([4, 250, 2])
        >>> bool((samples.rows.std(0) / scale - 1).abs().max() < 0.2)
        True
    """
    _check_method(method)
    if not callable(log_density):
        raise TypeError(
            f"log_density must be a function of positions (C, d), got a {type(log_density).__name__}"
        )
    for name in ("executor", "group"):
        if getattr(method, name, None) is not None:
            raise ValueError(
                f"{name} says where the chains of a fit of a network run; sample() runs all rows of start in "
                f"one batch here: leave it out, and call sample() for each part of the chains"
            )
    if getattr(method, "temperature", 1.0) != 1.0:
        raise ValueError(
            "temperature weighs the likelihood in a fit of a network; a density has no such part: divide by "
            "it what of the log density you mean"
        )
    position = _checked_start(start)
    target = AutogradTarget(log_density, position.shape[1])
    point = check_start(target, position)
    check_rows(target, point)
    if rows_are_alike(target, point):
        target = AlikeRows(log_density, position.shape[1])
    warn_of_rounding(target, position)
    return run(
        method.sampler(),
        target,
        position,
        warm_up=method.warm_up,
        draws=method.draws,
        thin=method.thin,
        seed=seed,
        checkpoint=checkpoint,
        progress=progress,
        label=type(method).__name__,
    )


def _check_method(method: object) -> None:
    if isinstance(method, type):
        raise TypeError(f"method must be an object, such as {method.__name__}(), got the class itself")
    if not isinstance(method, ChainMethod):
        raise TypeError(f"method must be HMC(...), NUTS(...), ..., got a {type(method).__name__}")


def _checked_start(start: Tensor) -> Tensor:
    if not isinstance(start, Tensor) or start.dtype not in (torch.float32, torch.float64):
        got = start.dtype if isinstance(start, Tensor) else type(start).__name__
        raise TypeError(f"start must be a float32 or float64 tensor (C, d), got {got}")
    if start.dim() != 2 or 0 in start.shape:
        raise ValueError(
            f"start must hold one row a chain, (C, d) with C and d at least 1, got shape "
            f"{tuple(start.shape)}; for one chain give start.reshape(1, -1)"
        )
    bad = ~torch.isfinite(start)
    if bool(bad.any()):
        row, column = bad.nonzero()[0].tolist()
        raise ValueError(f"start of chain {row} is {start[row, column].item()} at coordinate {column}")
    return start.detach().clone()
