"""What a recurrent layer checks of a call: sequence, feature size, initial states; all before any work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

__all__ = ["check_sequence", "check_states", "under_autocast"]


def under_autocast(x: Tensor) -> bool:
    """Whether autocast is on for the device of ``x``."""
    kind = x.device.type
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def check_sequence(
    where: str, sequence: Any, input_size: int, batch_first: bool, dtype: torch.dtype
) -> tuple[Tensor, int, bool]:
    """The values of an input, its batch size, and whether it has a batch axis.

    Args:
        where: name of the layer, for messages.
        sequence: ``(T, B, F)``, with ``batch_first`` ``(B, T, F)``, unbatched ``(T, F)``, or packed.
        input_size: ``F``.
        batch_first: the layer's option.
        dtype: of the layer's parameters.

    Raises:
        TypeError: neither a tensor nor packed.
        ValueError: another number of axes, another feature size, no step at all, another dtype, batch sizes
            that no packing gives.
    """
    packed = isinstance(sequence, PackedSequence)
    x = sequence.data if packed else sequence
    if not isinstance(x, Tensor):
        raise TypeError(
            f"{where}: the input must be a tensor or a PackedSequence, got {type(x).__name__}; for sequences "
            f"of several lengths use torch.nn.utils.rnn.pack_padded_sequence"
        )
    if x.dim() not in ((2,) if packed else (2, 3)):
        raise ValueError(
            f"{where}: the input has shape {tuple(x.shape)}; expected {_wanted(packed, batch_first)}"
        )
    if x.shape[-1] != input_size:
        raise ValueError(_wrong_size(where, x, input_size, packed, batch_first))
    if x.dtype != dtype and not under_autocast(x):
        raise ValueError(
            f"{where}: the input is {x.dtype} and the layer {dtype}; convert one, such as x.to({dtype})"
        )
    if packed:
        _check_packing(where, sequence)
        return x, int(sequence.batch_sizes[0]), True
    batched = x.dim() == 3
    steps, batch = (x.shape[1], x.shape[0]) if batched and batch_first else (x.shape[0], x.shape[-2])
    if steps == 0:
        raise ValueError(
            f"{where}: the input of shape {tuple(x.shape)} has no time step; expected at least one"
        )
    return x, batch if batched else 1, batched


def _wanted(packed: bool, batch_first: bool) -> str:
    if packed:
        return "packed values of shape (all steps, features): pack a tensor of three axes"
    return f"{'(batch, time, features)' if batch_first else '(time, batch, features)'} or (time, features)"


def _wrong_size(where: str, x: Tensor, input_size: int, packed: bool, batch_first: bool) -> str:
    message = (
        f"{where}: the input has {x.shape[-1]} features (shape {tuple(x.shape)}), expected input_size = "
        f"{input_size}"
    )
    if packed:
        return f"{message} on the last axis of what was packed"
    message = f"{message} on the last axis of {_wanted(packed, batch_first)}"
    swapped = [axis for axis, size in enumerate(x.shape[:-1]) if size == input_size]
    if swapped:
        return f"{message}; axis {swapped[-1]} has that size: are time and features swapped?"
    return message


def _check_packing(where: str, packed: PackedSequence) -> None:
    sizes, rows = packed.batch_sizes, len(packed.data)
    rising = len(sizes) > 1 and bool((sizes[1:] > sizes[:-1]).any())
    if len(sizes) == 0 or int(sizes[-1]) < 1 or rising or int(sizes.sum()) != rows:
        shown = sizes.tolist() if len(sizes) < 12 else [*sizes[:10].tolist(), "..."]
        raise ValueError(
            f"{where}: the packed sequence has batch sizes {shown} for {rows} steps in all; expected sizes "
            f"that fall from step to step and add up to the steps. Use pack_padded_sequence(x, lengths, "
            f"batch_first=..., enforce_sorted=False)"
        )


def check_states(
    where: str,
    states: Sequence[Any],
    names: Sequence[str],
    shape: tuple[int, int, int],
    batched: bool,
    x: Tensor,
) -> None:
    """Initial states of the right shape, dtype and device.

    Args:
        where: name of the layer, for messages.
        states: as given.
        names: of the states.
        shape: ``(layers * directions, batch, hidden)``.
        batched: whether the input has a batch axis; else the states have none either.
        x: the input's values.

    Raises:
        TypeError: not a tensor.
        ValueError: another shape, naming both, or another dtype or device than the input's.
    """
    wanted = shape if batched else (shape[0], shape[2])
    for name, state in zip(names, states, strict=True):
        if not isinstance(state, Tensor):
            raise TypeError(f"{where}: the initial state {name} must be a tensor, got {type(state).__name__}")
        if tuple(state.shape) != wanted:
            raise ValueError(_wrong_state(where, name, tuple(state.shape), wanted, batched))
        if state.device != x.device or (state.dtype != x.dtype and not under_autocast(x)):
            raise ValueError(
                f"{where}: the initial state {name} is {state.dtype} on {state.device}, the input "
                f"{x.dtype} on {x.device}; expected the same"
            )


def _wrong_state(where: str, name: str, got: tuple[int, ...], wanted: tuple[int, ...], batched: bool) -> str:
    axes = "(layers * directions, batch, hidden)" if batched else "(layers * directions, hidden)"
    message = f"{where}: the initial state {name} has shape {got}, expected {axes} = {wanted}"
    if batched and got == (wanted[1], wanted[0], wanted[2]):
        return f"{message}; the states keep this order with batch_first=True too: use {name}.transpose(0, 1)"
    if len(got) == len(wanted) and got[1:] == wanted[1:]:
        return f"{message}: one for each layer and direction"
    return message
