"""``y = A[ids] B^T``: an embedding table of rank at most ``rank``; only looked-up rows are formed.

References:
    arXiv 2602.00387, section 3 (embedding ``(V x d) = A B^T``; a batch needs ``O(|U| r + d r)`` numbers).
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from .factors import check_rank, check_stock, new_factors, product, quiet_ranks, reset_factors, set_factors
from .linear import LowRankLinear

__all__ = ["LowRankEmbedding"]

_ALTERS_THE_TABLE = "shortens rows of the table inside forward; a low-rank table is never formed"
_NO_GRADIENT = "scales gradients, so that training follows no loss"
_SPARSE = "the gradient of B is dense, and that of A is small already"


class LowRankEmbedding(nn.Module):
    """Embedding with ``weight = A @ B.T``, ``A (V, r)`` and ``B (d, r)``; the table is never formed.

    Tokens at ``padding_idx`` give exactly 0 whatever ``A`` holds, so in every draw of a belief over ``A``,
    and no gradient reaches that row. (torch lets a user write another vector there: see ``from_layer``.)

    Args:
        num_embeddings: rows ``V`` of the table.
        embedding_dim: size ``d`` of an embedding.
        rank: columns of the factors.
        padding_idx: the token whose embedding is 0; negative counts from the end.
        max_norm: only ``None``, as in torch's default.
        norm_type: only 2, torch's default.
        scale_grad_by_freq: only ``False``.
        sparse: only ``False``.
        device: as in torch.
        dtype: as in torch.
        diagonal: put a parameter ``s (r,)`` between the factors, ``weight = A @ diag(s) @ B.T``.

    Raises:
        ValueError: a rank outside ``1..min(V, d)``, a ``padding_idx`` outside the table, or an option of
            torch's layer that has no meaning here.

    Example:
        >>> layer = LowRankEmbedding(1000, 32, rank=4, padding_idx=0)
        >>> layer(torch.tensor([[5, 7, 0]])).shape, layer.weight.shape
        (torch.Size([1, 3, 32]), torch.Size([1000, 32]))
    """

    replaces: ClassVar[type[nn.Module]] = nn.Embedding

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        rank: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        diagonal: bool = False,
    ) -> None:
        super().__init__()
        _refuse(max_norm, norm_type, scale_grad_by_freq, sparse)
        check_rank(rank, num_embeddings, embedding_dim, where="LowRankEmbedding")
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ValueError(
                f"LowRankEmbedding: padding_idx {padding_idx} is outside the table of {num_embeddings} rows"
            )
        self.num_embeddings, self.embedding_dim, self.rank = num_embeddings, embedding_dim, int(rank)
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        self.A, self.B, self.s = new_factors(num_embeddings, embedding_dim, rank, diagonal, device, dtype)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Factors whose product has the variance of torch's table, 1; see ``reset_factors``."""
        reset_factors(self.A, self.B, self.s, 1.0)
        if self.padding_idx is not None:
            self.A[self.padding_idx].zero_()

    @torch.no_grad()
    def set_weight(self, weight: Float[Tensor, "V d"]) -> None:
        """Start from a full table: its best rank-``r`` approximation, see ``set_factors``.

        Raises:
            ValueError: another shape.
        """
        needed = (self.num_embeddings, self.embedding_dim)
        if tuple(weight.shape) != needed:
            raise ValueError(f"weight has shape {tuple(weight.shape)}, this layer needs {needed}")
        set_factors(self.A, self.B, self.s, weight)
        if self.padding_idx is not None:
            self.A[self.padding_idx].zero_()

    @staticmethod
    def matrices(layer: nn.Embedding) -> dict[str, tuple[int, int]]:
        """Names and sizes ``(m, n)`` of the matrices that would be factorised."""
        return {"weight": (layer.num_embeddings, layer.embedding_dim)}

    @classmethod
    def from_layer(
        cls,
        layer: nn.Embedding,
        rank: int,
        *,
        init: Literal["random", "svd"] = "random",
        diagonal: bool = False,
    ) -> LowRankEmbedding:
        """A low-rank table in the place of a stock one: same sizes, device, dtype, mode, freezing.

        A padding row that is not 0 (written by hand, or trained elsewhere) is a row like any other for
        ``init="svd"``: the new layer then has ``padding_idx=None``, so that nothing of the table is lost.

        Args:
            layer: stays as it is.
            rank: of the factors.
            init: ``"random"`` starts the factors anew, ``"svd"`` from the present table.
            diagonal: see the class.

        Raises:
            TypeError: not an ``nn.Embedding``.
            ValueError: the layer uses an option that has no meaning here, or a rank as in the class.
        """
        check_stock(cls.__name__, cls.replaces, layer)
        padding = layer.padding_idx
        if init == "svd" and padding is not None and bool(layer.weight[padding].any()):
            padding = None
        with quiet_ranks():
            new = cls(layer.num_embeddings, layer.embedding_dim, rank, padding, layer.max_norm,
                      layer.norm_type, layer.scale_grad_by_freq, layer.sparse, device=layer.weight.device,
                      dtype=layer.weight.dtype, diagonal=diagonal)  # fmt: skip
        if init == "svd":
            new.set_weight(layer.weight)
        return new.requires_grad_(layer.weight.requires_grad).train(layer.training)

    @torch.no_grad()
    def to_layer(self) -> nn.Embedding:
        """The stock layer with the same table, formed once."""
        layer = nn.Embedding(self.num_embeddings, self.embedding_dim, self.padding_idx,
                             device="meta", dtype=self.A.dtype).to_empty(device=self.A.device)  # fmt: skip
        layer.weight.copy_(self.weight)
        return layer.requires_grad_(self.A.requires_grad).train(self.training)

    def output_projection(self, bias: bool = False) -> LowRankLinear:
        """The output layer that is tied to this table: ``logits = (x B) A^T + bias``, ``(..., V)``.

        It holds the very same parameters ``A``, ``B`` (and ``s``), as ``head.weight = embedding.weight`` ties
        a stock pair: they are counted, drawn and trained once, and copies of the network keep the tie. Only
        the embedding masks its padding row; a tied head scores the padding token like any other.

        Args:
            bias: give the head a bias of its own, starting at 0.

        Example:
            >>> table = LowRankEmbedding(100, 16, rank=4)
            >>> head = table.output_projection()
            >>> head.A is table.A, head(torch.ones(2, 16)).shape
            (True, torch.Size([2, 100]))
        """
        with quiet_ranks():
            head = LowRankLinear(self.embedding_dim, self.num_embeddings, self.rank, bias=bias, device="meta",
                                 dtype=self.A.dtype, diagonal=self.s is not None)  # fmt: skip
        head.A, head.B, head.s = self.A, self.B, self.s
        if head.bias is not None:
            head.bias = nn.Parameter(self.A.new_zeros(self.num_embeddings))
        return head.train(self.training)

    @property
    def weight(self) -> Float[Tensor, "V d"]:
        """The whole table ``A @ B.T``, formed when asked for; 0 at ``padding_idx``."""
        table = product(self.A, self.B, self.s)
        if self.padding_idx is None:
            return table
        row = torch.arange(self.num_embeddings, device=table.device).unsqueeze(-1)
        return table.masked_fill(row == self.padding_idx, 0)

    def forward(self, ids: Tensor) -> Tensor:
        if ids.dtype not in (torch.int64, torch.int32):
            raise TypeError(
                f"LowRankEmbedding looks up integer token ids (int64 or int32), got {ids.dtype}; convert "
                f"them with ids.long()"
            )
        try:
            rows = F.embedding(ids, self.A)
        except IndexError as error:
            raise IndexError(
                f"a token id is outside 0..{self.num_embeddings - 1}, the table's rows: ids go from "
                f"{ids.min().item()} to {ids.max().item()}"
            ) from error
        if self.padding_idx is not None:
            rows = rows.masked_fill((ids == self.padding_idx).unsqueeze(-1), 0)
        found = F.linear(rows if self.s is None else rows * self.s, self.B)
        return found.to(self.B.dtype)  # under autocast too, as torch's: residual streams begin here

    def extra_repr(self) -> str:
        text = f"{self.num_embeddings}, {self.embedding_dim}, rank={self.rank}"
        text += "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return text + ("" if self.s is None else ", diagonal=True")


def _refuse(max_norm: float | None, norm_type: float, scale_grad_by_freq: bool, sparse: bool) -> None:
    """What of torch's layer has no meaning for a low-rank table."""
    refused: list[tuple[str, Any, bool, str]] = [
        ("max_norm", max_norm, max_norm is not None, _ALTERS_THE_TABLE),
        ("norm_type", norm_type, norm_type != 2, "it belongs to max_norm"),
        ("scale_grad_by_freq", scale_grad_by_freq, bool(scale_grad_by_freq), _NO_GRADIENT),
        ("sparse", sparse, bool(sparse), _SPARSE),
    ]
    for name, value, given, why in refused:
        if given:
            raise ValueError(f"LowRankEmbedding does not support {name}={value!r}: {why}; leave it out")
