"""What a network must hold to before a belief over it makes sense: checked once, on two rows.

One draw stands for one function, evaluated in any batch, on a private copy. So in eval mode the copy's output
for a row must not change from call to call, must not depend on the other rows, must leave the input as it is,
and must come from the copy's own parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from .data import batch_size_of, take
from .model import Model
from .random import forked

__all__ = ["check_network", "checked_device", "restless_frozen_parts"]

_TOLERANCE = 1e-3  # of the outputs' size; float32 sums in another order differ by far less


def checked_device(name: str) -> torch.device:
    """A device that is there.

    Raises:
        ValueError: no such device here, with torch's reason.
    """
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"device {name!r} cannot be used here ({reason}); try 'cpu'") from error
    return device


def check_network(model: Model, copy: nn.Module, rows: Any) -> torch.Size:
    """Check a private copy in eval mode on one or two rows.

    Args:
        model: the user's model.
        copy: its network's copy, in eval mode.
        rows: inputs of one or two rows, on the copy's device.

    Returns:
        Shape of the outputs, ``(rows, *event)``.

    Raises:
        ValueError: naming what the network does that a posterior cannot carry, and what to write instead.
    """
    count, given, rows = batch_size_of(rows), rows, _clone(rows)
    with torch.no_grad(), forked(0, "probe", device=model.device):
        first = model.outputs(copy, rows)
        if not _equal(rows, given):
            raise ValueError(
                "the network changes its input in place (such as x -= m, or an activation with inplace=True "
                "as its first layer); write x = x - m, or inplace=False"
            )
        again = model.outputs(copy, rows)
    if first.dim() == 0 or first.shape[0] != count:
        raise ValueError(
            f"the network gives outputs of shape {tuple(first.shape)} for {count} rows; the first axis must "
            f"be the batch"
        )
    if not torch.equal(first, again) and not bool(first.isnan().any()):
        raise ValueError(
            "the network's output is random in eval mode (dropout that is always on?); use nn.Dropout, or "
            "F.dropout(x, p, self.training): a posterior draw must be one function"
        )
    if count > 1:
        _check_rows_apart(model, copy, rows, first)
    _check_own_parameters(model, copy, rows)
    return first.shape


def _check_rows_apart(model: Model, copy: nn.Module, rows: Any, together: Tensor) -> None:
    with torch.no_grad(), forked(0, "probe", device=model.device):
        alone = model.outputs(copy, take(rows, slice(1, 2)))
    if alone.dim() == 0 or alone.shape[0] != 1:
        raise ValueError(
            f"for one row the network gives shape {tuple(alone.shape)}: it drops the batch axis; write "
            f"squeeze(-1) in place of squeeze()"
        )
    same_shape = alone.shape[1:] == together.shape[1:]
    room = _TOLERANCE * (1 + together.abs().max())
    if not same_shape or bool((alone[0] - together[1]).abs().max() > room):
        raise ValueError(
            "a row's output depends on the other rows of its batch; the batch must be the first axis "
            "(recurrent and attention layers: batch_first=True), and statistics of the batch must not be "
            "used in eval mode"
        )


def _check_own_parameters(model: Model, copy: nn.Module, rows: Any) -> None:
    """The copy must not reach the user's parameters (through a lambda or a list that kept them)."""
    users = [p for p in model.network.parameters() if p.requires_grad and p.is_leaf]
    with torch.enable_grad(), forked(0, "probe", device=model.device):
        total = model.outputs(copy, _clone(rows)).sum()
        if not total.requires_grad:
            return
        reached = torch.autograd.grad(total, users, allow_unused=True)
    if any(gradient is not None for gradient in reached):
        raise ValueError(
            "a copy of the network still uses the original's parameters: a lambda, closure or list of the "
            "network keeps hold of them. Reach parameters through self in a method, or use nn.ModuleList and "
            "nn.ParameterList"
        )


def restless_frozen_parts(model: Model, copy: nn.Module, *, dropout: bool) -> dict[str, list[str]]:
    """Frozen parts of a network that train mode changes all the same.

    Args:
        model: the user's model, whose layout says what is trained.
        copy: its network's copy, in train mode; what keeps itself in eval mode there is at rest.
        dropout: whether dropout counts, or batch normalisation alone.

    Returns:
        For each largest part that holds parameters, none of them trained, the paths of its active dropout
        and of its batch normalisations that move their statistics.
    """
    trained = {name for slot in model.layout.of_kind("belief", "point") for name in slot.aliases}
    found: dict[str, list[str]] = {}
    frozen: list[str] = []
    for path, module in copy.named_modules():
        names = [f"{path}.{name}" for name, _ in module.named_parameters(remove_duplicate=False)]
        inside = any(path.startswith(f"{part}.") for part in frozen)
        if path and names and not inside and trained.isdisjoint(names):
            frozen.append(path)
            found[path] = [
                ".".join(filter(None, (path, inner)))
                for inner, part in module.named_modules()
                if part.training and (_moves_statistics(part) or (dropout and _drops(part)))
            ]
    return {path: parts for path, parts in found.items() if parts}


def _drops(module: nn.Module) -> bool:
    rate = module.p if isinstance(module, _DropoutNd) else getattr(module, "dropout", 0.0)
    return isinstance(rate, float) and rate > 0


def _moves_statistics(module: nn.Module) -> bool:
    return isinstance(module, _NormBase) and module.track_running_stats


def _clone(x: Any) -> Any:
    if isinstance(x, Mapping):
        return {key: _clone(value) for key, value in x.items()}
    return tuple(_clone(value) for value in x) if isinstance(x, tuple) else x.clone()


def _equal(x: Any, y: Any) -> bool:
    if isinstance(x, Mapping):
        return all(_equal(x[key], y[key]) for key in x)
    return all(map(_equal, x, y)) if isinstance(x, tuple) else torch.equal(x, y)
