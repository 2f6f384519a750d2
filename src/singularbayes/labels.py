"""Labels as a likelihood takes them: their shape and values checked against the network's outputs."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["integer_labels", "real_labels"]


def integer_labels(y: Tensor, batch: int, classes: int) -> Tensor:
    """Class indices ``(batch,)`` of ``0..classes - 1``; ``(batch, 1)`` is squeezed.

    Raises:
        ValueError: another shape, a fraction, or an index out of range (with its row).
    """
    if y.dim() == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.shape != (batch,):
        raise ValueError(f"labels have shape {tuple(y.shape)}, expected ({batch},): one class index per row")
    if y.is_floating_point() and not bool((y == y.round()).all()):
        row = int((y != y.round()).nonzero()[0])
        raise ValueError(f"label {y[row].item():g} in row {row} is no class index; "
                         f"expected integers 0..{classes - 1}")  # fmt: skip
    y = y.long()
    wrong = ((y < 0) | (y >= classes)).nonzero()
    if len(wrong):
        row = int(wrong[0])
        raise ValueError(f"label {int(y[row])} in row {row} is out of range; the network has {classes} "
                         f"outputs, so labels must lie in 0..{classes - 1}")  # fmt: skip
    return y


def real_labels(y: Tensor, batch_shape: tuple[int, ...]) -> Tensor:
    """Finite numbers of shape ``batch_shape``; ``(B, 1)`` for ``(B,)`` is squeezed.

    Raises:
        ValueError: another shape, or a label that is not finite (with its place).
    """
    if y.dim() == 2 and y.shape[1] == 1 and len(batch_shape) == 1:
        y = y[:, 0]
    if y.shape != batch_shape:
        got = tuple(y.shape)
        raise ValueError(f"labels have shape {got}, expected {batch_shape} as the network's outputs")
    if y.dtype == torch.bool:
        y = y.float()
    if not bool(torch.isfinite(y).all()):
        place = tuple(int(i) for i in (~torch.isfinite(y)).nonzero()[0])
        raise ValueError(f"label at {place} is {y[place].item()}; labels must be finite")
    return y
