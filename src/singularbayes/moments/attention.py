"""Rules of attention, by the delta method at the mean attention weights ``P = softmax(E Q E K^T / sqrt d)``.

With ``P`` fixed the value projection is one linear map of the averaged inputs, ``(P X) W_v^T``: so the noise
of ``W_v``, which all positions share, is exact. The weights move it by ``sum_s dP_s (v_s - mean)``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..nn.attention import LowRankMultiheadAttention
from ..nn.attention_mask import fill_dead_rows, merge_masks
from .normalising import softmax
from .products import linear, matmul
from .random_tensor import RandomTensor, UncoveredError, averaged, expected_of, rule, variance_of

__all__ = ["attend"]

Project = Callable[[Any], Any]


@rule("scaled_dot_product_attention")
def attention(
    query: Any, key: Any, value: Any, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """Of queries, keys and values that have been projected already."""
    if dropout_p or enable_gqa:
        raise UncoveredError("attention with dropout or grouped queries")
    mask = attn_mask
    if is_causal:
        if mask is not None:
            raise UncoveredError("attention with a mask beside is_causal, which torch refuses too")
        mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=query.dtype, device=query.device).masked_fill(~mask, -torch.inf)
    return matmul(_weights(query, key, mask, scale), value)


def _weights(query: Any, key: Any, mask: Tensor | None, scale: float | None = None) -> RandomTensor:
    """Attention weights; 0 for a query that sees no key."""
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    q, k, v_q, v_k = expected_of(query) * factor, expected_of(key), variance_of(query), variance_of(key)
    mask, dead = (None, None) if mask is None else fill_dead_rows(mask)
    scores = q @ k.mT if mask is None else q @ k.mT + mask
    spread = torch.zeros_like(scores)
    if v_q is not None:
        # what a query adds to all its keys alike moves no weight: keys count from their weighted mean
        around = torch.softmax(scores, -1) @ k
        own = v_q * factor**2
        spread = own @ k.square().mT - 2 * (own * around) @ k.mT
        spread = (spread + (own * around.square()).sum(-1, keepdim=True)).clamp_min(0)
        spread = spread if v_k is None else spread + own @ v_k.mT
    if v_k is not None:
        spread = spread + q.square() @ v_k.mT
    found = softmax(RandomTensor(scores, spread), -1)
    if dead is not None:
        found = found.masked_fill(dead, 0)
    found.proportions = True
    return found


def attend(
    module: Any, projections: tuple[Project, Project, Project, Project], inputs: tuple[Any, Any, Any],
    mask: Tensor | None, need_weights: bool, average: bool,
) -> tuple[Any, Tensor | None]:  # fmt: skip
    """Multi-head attention of inputs ``(N, length, size)``, with this mask ``(N, heads, L, S)``."""
    to_q, to_k, to_v, out = projections
    query, key, value = inputs
    heads = (module.num_heads, module.embed_dim // module.num_heads)

    def split(x: Any) -> Any:
        return x.unflatten(-1, heads).transpose(1, 2)

    weights = _weights(split(to_q(query)), split(to_k(key)), mask)
    fixed = weights.expected
    wide = expected_of(value).unsqueeze(1)
    mixed, spread = fixed @ wide, variance_of(value)
    if spread is not None:
        spread = averaged(spread.unsqueeze(1), lambda t: fixed @ t, lambda t: fixed.square() @ t)
        context = to_v(
            RandomTensor(mixed, spread)
        )  # (N, heads, L, E): of each head's average all heads' values
    else:
        context = to_v(mixed)
    values = split(expected_of(to_v(value)))
    own = [_own_head(t, heads) for t in (expected_of(context), variance_of(context)) if t is not None]
    moved = variance_of(matmul(weights, values))
    noise = moved if len(own) == 1 else own[1] if moved is None else own[1] + moved
    joined = RandomTensor(own[0], noise).transpose(1, 2).flatten(2)
    shown = (fixed.mean(1) if average else fixed) if need_weights else None
    return out(joined), shown


def _own_head(t: Tensor, heads: tuple[int, int]) -> Tensor:
    return t.unflatten(-1, heads).diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2)


def stock(
    module: Any, query: Any, key: Any, value: Any, key_padding_mask: Tensor | None = None,
    need_weights: bool = True, attn_mask: Tensor | None = None, average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Any, Tensor | None]:  # fmt: skip
    """The rule of ``nn.MultiheadAttention``, and of the low-rank one."""
    if query.dim() != 3 or module.bias_k is not None or module.add_zero_attn:
        raise UncoveredError("attention without a batch axis, with add_bias_kv or with add_zero_attn")
    if not module.batch_first:
        query, key, value = (t.transpose(0, 1) for t in (query, key, value))
    causal = (query.shape[1], key.shape[1]) if is_causal and attn_mask is None else None
    mask = merge_masks(key_padding_mask, attn_mask, causal, module.num_heads, expected_of(query))
    output, weights = attend(
        module, _projections(module), (query, key, value), mask, need_weights, average_attn_weights
    )
    return output if module.batch_first else output.transpose(0, 1), weights


def _projections(module: Any) -> tuple[Project, Project, Project, Project]:
    if isinstance(module, LowRankMultiheadAttention):
        return module.q_proj, module.k_proj, module.v_proj, module.out_proj
    packed = module.in_proj_weight
    weights = (
        (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
        if packed is None
        else packed.chunk(3)
    )
    biases = (None,) * 3 if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
    q, k, v = (functools.partial(linear, weight=w, bias=b) for w, b in zip(weights, biases, strict=True))
    return q, k, v, functools.partial(linear, weight=module.out_proj.weight, bias=module.out_proj.bias)
