"""Masks of multi-head attention: checked against the inputs, then one tensor that is added to the scores.

In a mask ``-inf`` (or ``True`` in a boolean one) keeps a query from a key. A query without any key left would
be a softmax over nothing, nan: :func:`fill_dead_rows` finds it.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["check_masks", "fill_dead_rows", "merge_masks"]


def check_masks(
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    batch: int | None,
    heads: int,
    queries: int,
    keys: int,
) -> None:
    """Refuse masks that do not fit.

    Args:
        key_padding_mask: ``(batch, keys)``, without a batch ``(keys,)``.
        attn_mask: ``(queries, keys)`` or ``(batch * heads, queries, keys)``.
        batch: ``None`` for inputs without a batch axis.
        heads: attention heads.
        queries: length of the query.
        keys: length of the key.

    Raises:
        TypeError: a mask that is neither boolean nor floating point.
        ValueError: a mask of another shape.
    """
    own = (keys,) if batch is None else (batch, keys)
    both = ((queries, keys), ((1 if batch is None else batch) * heads, queries, keys))
    for name, mask, shapes in (
        ("key_padding_mask", key_padding_mask, (own,)),
        ("attn_mask", attn_mask, both),
    ):
        if mask is None:
            continue
        if mask.dtype != torch.bool and not mask.is_floating_point():
            raise TypeError(
                f"{name} must be boolean (True: not attended to) or floating point (added to the scores), "
                f"got {mask.dtype}; convert it with mask.bool()"
            )
        if tuple(mask.shape) not in shapes:
            expected = " or ".join(map(str, shapes))
            raise ValueError(
                f"{name} has shape {tuple(mask.shape)}, expected {expected} for "
                f"{'one item' if batch is None else f'a batch of {batch}'}, {heads} heads, {queries} queries "
                f"and {keys} keys"
            )


def merge_masks(
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    causal: tuple[int, int] | None,
    heads: int,
    like: Tensor,
) -> Tensor | None:
    """One float mask that broadcasts to ``(batch, heads, queries, keys)``; ``None`` if nothing is masked.

    Args:
        key_padding_mask: see :func:`check_masks`.
        attn_mask: see :func:`check_masks`.
        causal: ``(queries, keys)`` of a causal mask to build; query ``i`` sees the keys ``0..i``.
        heads: attention heads.
        like: gives dtype and device.
    """
    parts = []
    if key_padding_mask is not None:
        padding = _added(key_padding_mask, like)
        parts.append(padding.reshape(-1, 1, 1, padding.shape[-1]))
    if attn_mask is not None:
        added = _added(attn_mask, like)
        parts.append(added if added.dim() == 2 else added.unflatten(0, (-1, heads)))
    if causal is not None:
        future = torch.ones(causal, dtype=torch.bool, device=like.device).triu(1)
        parts.append(_added(future, like))
    if not parts:
        return None
    total = parts[0] if len(parts) == 1 else parts[0] + parts[1]
    return total if total.dim() == 4 else total.expand(1, 1, -1, -1)


def fill_dead_rows(mask: Tensor) -> tuple[Tensor, Tensor]:
    """A mask in which every query sees something, and ``(..., queries, 1)``, true where it saw nothing."""
    dead = (mask == -torch.inf).all(-1, keepdim=True)
    return mask.masked_fill(dead, 0), dead


def _added(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype == torch.bool:
        return torch.zeros(mask.shape, dtype=like.dtype, device=like.device).masked_fill(mask, -torch.inf)
    return mask.to(like.dtype)
