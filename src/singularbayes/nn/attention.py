"""Multi-head attention with four low-rank projections: ``softmax(Q K^T / sqrt(d)) V``, ``Q = (x B) A^T``.

References:
    arXiv 2602.00387, section 3 (query, key, value and output projections are factorised apart).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention_mask import check_masks, fill_dead_rows, merge_masks
from .factors import check_stock, freeze_as, quiet_ranks, reset_factors
from .linear import LowRankLinear
from .packed import packed
from .ranks import matrix_ranks

__all__ = ["LowRankMultiheadAttention"]

_PROJECTIONS = {
    "q_proj_weight": "q_proj",
    "k_proj_weight": "k_proj",
    "v_proj_weight": "v_proj",
    "out_proj.weight": "out_proj",
}


class _Materialised(Tensor):
    """A weight formed for who asks. As a subclass it keeps torch's encoders off their fused kernels."""


class LowRankMultiheadAttention(nn.Module):
    """``nn.MultiheadAttention`` with a low-rank weight in each projection: inputs and outputs are the same.

    ``q_proj``, ``k_proj``, ``v_proj`` and ``out_proj`` are ``LowRankLinear`` layers; the three parts of
    torch's ``in_proj_bias`` are the biases of the first three. It stands in for the attention of torch's
    encoder and decoder layers, which then leave their fused inference path: it would read dense weights.

    Three differences to torch, all where torch gives no number or the wrong one:

    * a query that may attend to no key (an item that is padding throughout) gets attention weights of 0, so
      that its output is the bias of ``out_proj``, with finite gradients; torch gives nan;
    * ``is_causal=True`` without an ``attn_mask`` applies the causal mask; torch raises;
    * with an ``attn_mask``, ``is_causal`` is a hint about it, and the mask is what counts; torch sometimes
      drops the mask, so that a wrong hint changes the result.

    Args:
        embed_dim: size of the queries and the outputs, ``E``.
        num_heads: must divide ``embed_dim``.
        rank: columns of the factors; one number (cut to the smaller side of a narrower matrix), or
            ``{pattern: rank}`` by matrix name, see ``matrices``.
        dropout: probability of dropping an attention weight, in training.
        bias: give the projections biases.
        add_bias_kv: append a learned key and value to each sequence.
        add_zero_attn: append a key and a value of zeros.
        kdim: size of the keys, ``embed_dim`` by default.
        vdim: size of the values, ``embed_dim`` by default.
        batch_first: axes are ``(batch, length, E)`` in place of ``(length, batch, E)``.
        device: as in torch.
        dtype: as in torch.
        diagonal: put a parameter ``s (r,)`` between the factors of each projection.

    Raises:
        ValueError: sizes that are not positive or do not divide, a rank that does not fit.

    Example:
        >>> layer = LowRankMultiheadAttention(32, 4, rank=3, batch_first=True)
        >>> x = torch.ones(2, 5, 32)
        >>> output, weights = layer(x, x, x)
        >>> output.shape, weights.shape
        (torch.Size([2, 5, 32]), torch.Size([2, 5, 5]))
    """

    replaces: ClassVar[type[nn.Module]] = nn.MultiheadAttention
    _qkv_same_embed_dim: ClassVar[bool] = False  # torch's encoder layer then leaves its fused path

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        rank: int | Mapping[str, int],
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        diagonal: bool = False,
    ) -> None:
        super().__init__()
        if embed_dim < 1 or num_heads < 1 or embed_dim % num_heads:
            raise ValueError(
                f"num_heads must divide embed_dim, both positive; got {num_heads} heads for {embed_dim}"
            )
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.dropout, self.batch_first, self.add_zero_attn = dropout, batch_first, add_zero_attn
        inputs = (embed_dim, self.kdim, self.vdim, embed_dim)
        sides = {name: (embed_dim, n) for name, n in zip(_PROJECTIONS, inputs, strict=True)}
        ranks = matrix_ranks(rank, sides, "LowRankMultiheadAttention")

        def projection(name: str) -> LowRankLinear:
            return LowRankLinear(sides[name][1], embed_dim, ranks[name], bias, device, dtype,
                                 diagonal=diagonal)  # fmt: skip

        with quiet_ranks():
            self.q_proj, self.k_proj = projection("q_proj_weight"), projection("k_proj_weight")
            self.v_proj, self.out_proj = projection("v_proj_weight"), projection("out_proj.weight")
        self.bias_k = self.bias_v = None
        if add_bias_kv:
            self.bias_k = nn.Parameter(torch.empty(1, 1, embed_dim, device=device, dtype=dtype))
            self.bias_v = nn.Parameter(torch.empty(1, 1, embed_dim, device=device, dtype=dtype))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Products of Glorot variance ``2 / (m + n)``, biases 0, as torch starts separate projections."""
        for layer in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            reset_factors(layer.A, layer.B, layer.s, 2 / (layer.out_features + layer.in_features))
            if layer.bias is not None:
                layer.bias.zero_()
        for row in (self.bias_k, self.bias_v):
            if row is not None:
                nn.init.xavier_normal_(row)

    @staticmethod
    def matrices(layer: nn.MultiheadAttention) -> dict[str, tuple[int, int]]:
        """Names and sizes ``(m, n)`` of the matrices that would be factorised."""
        inputs = (layer.embed_dim, layer.kdim, layer.vdim, layer.embed_dim)
        return {name: (layer.embed_dim, n) for name, n in zip(_PROJECTIONS, inputs, strict=True)}

    @classmethod
    def from_layer(
        cls,
        layer: nn.MultiheadAttention,
        rank: int | Mapping[str, int],
        *,
        init: Literal["random", "svd"] = "random",
        diagonal: bool = False,
    ) -> LowRankMultiheadAttention:
        """Low-rank attention in the place of a stock one: same options, device, dtype, mode, frozen parts.

        Args:
            layer: stays as it is.
            rank: of the factors, see the class.
            init: ``"random"`` starts everything anew, ``"svd"`` from the present weights and biases.
            diagonal: see the class.

        Raises:
            TypeError: not an ``nn.MultiheadAttention``.
        """
        check_stock(cls.__name__, cls.replaces, layer)
        weights = _weights(layer)
        first = layer.out_proj.weight
        with quiet_ranks():
            new = cls(layer.embed_dim, layer.num_heads, rank, layer.dropout, layer.in_proj_bias is not None,
                      layer.bias_k is not None, layer.add_zero_attn, layer.kdim, layer.vdim,
                      layer.batch_first, first.device, first.dtype, diagonal=diagonal)  # fmt: skip
        for name, (weight, bias) in weights.items():
            own = getattr(new, name)
            if init == "svd":
                own.set_weight(weight, bias)
            freeze_as(own, weight, bias)
        for mine, theirs in ((new.bias_k, layer.bias_k), (new.bias_v, layer.bias_v)):
            if mine is not None and theirs is not None:
                if init == "svd":
                    mine.data.copy_(theirs)
                mine.requires_grad_(theirs.requires_grad)
        return new.train(layer.training)

    @torch.no_grad()
    def to_layer(self) -> nn.MultiheadAttention:
        """The stock layer with the same weights, formed once."""
        first = self.q_proj.A
        layer = nn.MultiheadAttention(
            self.embed_dim, self.num_heads, self.dropout, self.q_proj.bias is not None,
            self.bias_k is not None, self.add_zero_attn, self.kdim, self.vdim, self.batch_first,
            device="meta", dtype=first.dtype).to_empty(device=first.device)  # fmt: skip
        for name, (weight, bias) in _weights(layer).items():
            own = getattr(self, name)
            weight.copy_(own.weight)
            if bias is not None:
                bias.copy_(own.bias)
        for mine, theirs in ((self.bias_k, layer.bias_k), (self.bias_v, layer.bias_v)):
            if mine is not None and theirs is not None:
                theirs.copy_(mine)
                theirs.requires_grad_(mine.requires_grad)
        inward = (self.q_proj, self.k_proj, self.v_proj)
        for parameter, moves in (
            (layer.in_proj_weight, any(p.A.requires_grad for p in inward)),
            (layer.q_proj_weight, self.q_proj.A.requires_grad),
            (layer.k_proj_weight, self.k_proj.A.requires_grad),
            (layer.v_proj_weight, self.v_proj.A.requires_grad),
            (layer.in_proj_bias, any(p.bias is not None and p.bias.requires_grad for p in inward)),
            (layer.out_proj.weight, self.out_proj.A.requires_grad),
            (layer.out_proj.bias, self.out_proj.bias is not None and self.out_proj.bias.requires_grad),
        ):
            if parameter is not None:
                parameter.requires_grad_(moves)
        return layer.train(self.training)

    @property
    def q_proj_weight(self) -> Tensor:
        """The dense weight ``(E, E)`` of the queries."""
        return self.q_proj.weight

    @property
    def k_proj_weight(self) -> Tensor:
        """The dense weight ``(E, kdim)`` of the keys."""
        return self.k_proj.weight

    @property
    def v_proj_weight(self) -> Tensor:
        """The dense weight ``(E, vdim)`` of the values."""
        return self.v_proj.weight

    @property
    def in_proj_weight(self) -> Tensor | None:
        """The three above as one ``(3 E, E)``, where they have one size; formed when asked for."""
        if not self.kdim == self.vdim == self.embed_dim:
            return None
        packed = torch.cat([self.q_proj.weight, self.k_proj.weight, self.v_proj.weight])
        return packed.as_subclass(_Materialised)

    @property
    def in_proj_bias(self) -> Tensor | None:
        """Biases of the three, ``(3 E,)``."""
        parts = (self.q_proj, self.k_proj, self.v_proj)
        biases: list[Tensor] = [part.bias for part in parts if part.bias is not None]
        return torch.cat(biases) if biases else None

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As ``nn.MultiheadAttention``, see there; the class lists what differs.

        Args:
            query: ``(L, N, E)``, ``(N, L, E)`` with ``batch_first``, or ``(L, E)``.
            key: the same with length ``S`` and size ``kdim``.
            value: the same with length ``S`` and size ``vdim``.
            key_padding_mask: ``(N, S)`` or ``(S,)``; ``True`` or ``-inf``: the key is left out.
            need_weights: give the attention weights too; without them a fused kernel does the work.
            attn_mask: ``(L, S)`` or ``(N * heads, L, S)``; ``True`` or ``-inf``: not this key for this query.
            average_attn_weights: over the heads.
            is_causal: a causal mask, unless ``attn_mask`` is given.

        Returns:
            The output, shaped as the query, and the weights ``(N, L, S)``, ``(N, heads, L, S)`` or ``None``.

        Raises:
            ValueError: inputs or masks whose shapes do not fit together.
            TypeError: a mask that is neither boolean nor floating point.
        """
        if query.is_nested:
            return self._nested(query, key, value, key_padding_mask, need_weights, attn_mask, is_causal), None
        batch, length, keys = self._sizes(query, key, value)
        check_masks(key_padding_mask, attn_mask, batch, self.num_heads, length, keys)
        rows_first = self.batch_first or batch is None
        q, k, v = (self._split(x, rows_first) for x in self._projected(query, key, value))
        k, v, extra = self._extended(k, v)
        causal = is_causal and attn_mask is None
        # the kernel's own causal mask needs no tensor, but knows neither padding nor appended keys
        left_to_kernel = causal and key_padding_mask is None and not extra and not need_weights
        future = (length, keys) if causal and not left_to_kernel else None
        mask = merge_masks(key_padding_mask, attn_mask, future, self.num_heads, q)
        if mask is not None and extra:
            mask = F.pad(mask, (0, extra))
        context, weights = self._attended(q, k, v, mask, left_to_kernel, need_weights)
        context = context.transpose(1, 2) if rows_first else context.permute(2, 0, 1, 3)
        output = self.out_proj(context.flatten(2))
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if batch is None:
            return output.squeeze(0), None if weights is None else weights.squeeze(0)
        return output, weights

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """Queries, keys and values, ``(..., E)`` each; inputs that are one tensor are projected together."""
        if query is key is value:
            return packed((self.q_proj, self.k_proj, self.v_proj), query)
        if key is value:
            return [self.q_proj(query), *packed((self.k_proj, self.v_proj), key)]
        return [self.q_proj(query), self.k_proj(key), self.v_proj(value)]

    def _extended(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, int]:
        """Keys and values with what ``add_bias_kv`` and ``add_zero_attn`` append, and how much that is."""
        rows: list[tuple[Tensor, Tensor]] = []
        if self.bias_k is not None and self.bias_v is not None:
            rows.append((self.bias_k, self.bias_v))
        if self.add_zero_attn:
            zero = k.new_zeros(self.embed_dim)
            rows.append((zero, zero))
        for row_k, row_v in rows:
            shape = (k.shape[0], self.num_heads, 1, self.head_dim)
            k = torch.cat([k, row_k.to(k.dtype).view(1, self.num_heads, 1, -1).expand(shape)], 2)
            v = torch.cat([v, row_v.to(v.dtype).view(1, self.num_heads, 1, -1).expand(shape)], 2)
        return k, v, len(rows)

    def _attended(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Context ``(N, heads, L, head_dim)`` and, if needed, the weights ``(N, heads, L, S)``."""
        dropout = self.dropout if self.training else 0.0
        mask, dead = (None, None) if mask is None else fill_dead_rows(mask)
        if not need_weights:
            context = F.scaled_dot_product_attention(q, k, v, mask, dropout, causal)
            return (context if dead is None else context.masked_fill(dead, 0)), None
        scores = (q * math.sqrt(1 / self.head_dim)) @ k.mT
        weights = F.softmax(scores if mask is None else scores + mask, -1)
        if dead is not None:
            weights = weights.masked_fill(dead, 0)
        weights = F.dropout(weights, dropout)
        return weights @ v, weights

    def _split(self, x: Tensor, rows_first: bool) -> Tensor:
        """Heads of one projection, ``(N, heads, length, head_dim)``."""
        x = x.unflatten(-1, (self.num_heads, self.head_dim))
        if x.dim() == 3:
            x = x.unsqueeze(0)
        return x.transpose(1, 2) if rows_first else x.permute(1, 2, 0, 3)

    def _sizes(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[int | None, int, int]:
        """Batch (``None`` without one), queries and keys, once the inputs fit together."""
        got = f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
        dims = query.dim()
        if dims not in (2, 3) or key.dim() != dims or value.dim() != dims:
            raise ValueError(f"query, key and value must all have 3 axes, or 2 without a batch; got {got}")
        at = 0 if self.batch_first or dims == 2 else 1  # of the batch; the length is at the other
        length, keys = query.shape[1 - at if dims == 3 else 0], key.shape[1 - at if dims == 3 else 0]
        same = key.shape[:-1] == value.shape[:-1] and (dims == 2 or query.shape[at] == key.shape[at])
        wanted = (self.embed_dim, self.kdim, self.vdim)
        if not same or (query.shape[-1], key.shape[-1], value.shape[-1]) != wanted:
            order = "(batch, length, size)" if self.batch_first else "(length, batch, size)"
            raise ValueError(
                f"query, key and value must have the sizes {wanted} and one batch, key and value one length, "
                f"as {order}; got {got}"
            )
        return (None if dims == 2 else query.shape[at]), length, keys

    def _nested(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None,
        need_weights: bool,
        attn_mask: Tensor | None,
        is_causal: bool,
    ) -> Tensor:
        """Self-attention of sequences of unequal length, as torch's encoder hands them on."""
        masked = key_padding_mask is not None or attn_mask is not None
        if masked or need_weights or is_causal or not (query is key is value and self.batch_first):
            raise ValueError(
                "a nested tensor is taken for self-attention with batch_first=True and need_weights=False, "
                "without masks; pad it with x.to_padded_tensor(0.0) and give a key_padding_mask"
            )
        lengths = torch.tensor([len(item) for item in query.unbind()], device=query.device)
        x = query.to_padded_tensor(0.0)
        padding = torch.arange(x.shape[1], device=x.device) >= lengths.unsqueeze(-1)
        output, _ = self(x, x, x, padding, need_weights=False)
        rows = [row[:n] for row, n in zip(output, lengths.tolist(), strict=True)]
        return torch.nested.as_nested_tensor(rows)

    def extra_repr(self) -> str:
        text = f"{self.embed_dim}, {self.num_heads}, dropout={self.dropout}, batch_first={self.batch_first}"
        text += f", kdim={self.kdim}" if self.kdim != self.embed_dim else ""
        text += f", vdim={self.vdim}" if self.vdim != self.embed_dim else ""
        text += ", add_bias_kv=True" if self.bias_k is not None else ""
        return text + (", add_zero_attn=True" if self.add_zero_attn else "")


def _weights(layer: nn.MultiheadAttention) -> dict[str, tuple[Tensor, Tensor | None]]:
    """Dense weight and bias of each projection of a stock layer, views of its own."""
    packed = layer.in_proj_weight
    weights = (
        (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight) if packed is None else packed.chunk(3)
    )
    biases = (None,) * 3 if layer.in_proj_bias is None else layer.in_proj_bias.chunk(3)
    out = layer.out_proj
    return dict(
        zip(_PROJECTIONS.values(), zip((*weights, out.weight), (*biases, out.bias), strict=True), strict=True)
    )
