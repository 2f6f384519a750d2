"""``y = (x B) A^T + bias``: a linear layer whose weight ``A B^T`` has rank at most ``rank``.

References:
    arXiv 2602.00387, section 3 (factors with independent priors; the weight is never formed).
"""

from __future__ import annotations

import functools
import math
import warnings
from numbers import Integral
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

__all__ = ["LowRankLinear", "check_rank"]


def check_rank(
    rank: int, out_features: int, in_features: int, where: str = "LowRankLinear", stacklevel: int = 3
) -> None:
    """A rank must lie in ``1..min(m, n)``; from ``m n / (m + n)`` on it saves nothing: a warning."""
    if isinstance(rank, bool) or not isinstance(rank, Integral):
        raise TypeError(f"{where}: rank must be an integer, got {type(rank).__name__} {rank!r}")
    limit = min(out_features, in_features)
    if not 1 <= rank <= limit:
        raise ValueError(
            f"{where}: rank {rank} is outside 1..{limit}, the smaller side of the "
            f"{out_features} x {in_features} weight"
        )
    if rank * (out_features + in_features) >= out_features * in_features:
        warnings.warn(
            f"{where}: rank {rank} saves no parameters for a {out_features} x {in_features} weight; it does "
            f"below {out_features * in_features / (out_features + in_features):.1f}",
            stacklevel=stacklevel,
        )


_WIDE = 2**16  # entries of W from which the order of the products outweighs a Python function's overhead


class _Product(torch.autograd.Function):
    """``x B A^T + bias`` with every product arranged so that the rank is the long-stride side of its result.

    The same numbers as ``F.linear(x @ B, A, bias)`` up to rounding, in an order of products that is quicker
    on CPU for wide layers, forward and backward.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
        reduced = torch.mm(b.T, x.T)  # (r, batch)
        return torch.mm(reduced.T, a.T) if bias is None else torch.addmm(bias, reduced.T, a.T)

    @staticmethod
    def setup_context(
        ctx: Any,
        inputs: tuple[Tensor, Tensor, Tensor, Tensor | None],
        output: Tensor,  # noqa: ARG004 - torch's signature
    ) -> None:
        x, a, b, _ = inputs
        ctx.save_for_backward(x, a, b)
        ctx.save_for_forward(x, a, b)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = grad_outputs
        x, a, b = ctx.saved_tensors
        wants_x, wants_a, wants_b, wants_bias = ctx.needs_input_grad
        reduced = torch.mm(a.T, gradient.T)  # (r, batch)
        by_x = torch.mm(reduced.T, b.T) if wants_x else None
        by_a = torch.mm(torch.mm(b.T, x.T), gradient).T if wants_a else None
        by_b = torch.mm(reduced, x).T if wants_b else None
        return by_x, by_a, by_b, gradient.sum(0) if wants_bias else None

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Tensor | None) -> Tensor:
        dx, da, db, dbias = grad_inputs
        x, a, b = ctx.saved_tensors
        terms = [
            None if dx is None else torch.mm(torch.mm(dx, b), a.T),
            None if da is None else torch.mm(torch.mm(x, b), da.T),
            None if db is None else torch.mm(torch.mm(x, db), a.T),
            dbias,
        ]
        return functools.reduce(torch.add, [term for term in terms if term is not None])


class LowRankLinear(nn.Module):
    """Linear layer with ``weight = A @ B.T``, ``A (out, r)`` and ``B (in, r)``.

    It draws nothing by itself: a belief over ``A`` and ``B`` is a method's, as over any parameter. In place
    of one tensor each, ``A``, ``B`` and ``bias`` may carry a leading draws axis ``S`` (as ``functional_call``
    sees them), any of them alone too; for an input ``(B, in)`` or ``(S, B, in)`` the output is then ``(S, B,
    out)``.

    Args:
        in_features: size of each input row.
        out_features: size of each output row.
        rank: columns of the factors.
        bias: add a bias (full, not factorised).
        device: as in torch.
        dtype: as in torch.

    Raises:
        ValueError: a rank outside ``1..min(in_features, out_features)``.

    Example:
        >>> layer = LowRankLinear(20, 10, rank=3)
        >>> layer(torch.ones(4, 20)).shape, layer.weight.shape
        (torch.Size([4, 10]), torch.Size([10, 20]))
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        rank: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_rank(rank, out_features, in_features)
        self.in_features, self.out_features, self.rank = in_features, out_features, int(rank)
        self.A = nn.Parameter(torch.empty(out_features, rank, device=device, dtype=dtype))
        self.B = nn.Parameter(torch.empty(in_features, rank, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(out_features, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Gaussian factors whose product has He variance ``2 / fan_in``, each column at its expected length.

        Each factor's entries have std ``(2 / (fan_in r)) ** (1/4)``. A column that happened to be short, as
        happens where a factor has a single row, would start its component at a saddle that training hardly
        leaves.
        """
        std = (2 / (self.in_features * self.rank)) ** 0.25
        for factor in (self.A, self.B):
            factor.normal_()
            factor.mul_(std * math.sqrt(len(factor)) / factor.norm(dim=0).clamp_min(1e-30))
        if self.bias is not None:
            bound = 1 / math.sqrt(self.in_features)
            self.bias.uniform_(-bound, bound)

    @torch.no_grad()
    def set_weight(self, weight: Float[Tensor, "out in"], bias: Tensor | None = None) -> None:
        """Start from a dense weight: its best rank-``r`` approximation, split evenly.

        ``A = U sqrt(S)``, ``B = V sqrt(S)`` for the leading ``r`` singular values ``S``.

        Args:
            weight: dense weight, ``(out, in)``.
            bias: a new bias ``(out,)``; ``None`` leaves the present one.

        Raises:
            ValueError: another shape, or a bias for a layer without one.
        """
        if tuple(weight.shape) != (self.out_features, self.in_features):
            needed = (self.out_features, self.in_features)
            raise ValueError(f"weight has shape {tuple(weight.shape)}, this layer needs {needed}")
        if bias is not None and self.bias is None:
            raise ValueError("this layer has no bias; make it with bias=True to keep the given one")
        u, s, vh = torch.linalg.svd(weight.detach().double(), full_matrices=False)
        root = s[: self.rank].sqrt()
        self.A.copy_(u[:, : self.rank] * root)
        self.B.copy_(vh[: self.rank].T * root)
        if self.bias is not None and bias is not None:
            self.bias.copy_(bias)

    @property
    def weight(self) -> Float[Tensor, "out in"]:
        """The dense weight ``A @ B.T``, formed when asked for."""
        return self.A @ self.B.mT

    def forward(self, x: Tensor) -> Tensor:
        if self.A.dim() == 2 and (self.bias is None or self.bias.dim() == 1):
            wide = self.in_features * self.out_features >= _WIDE
            plain = x.dtype == self.A.dtype and not torch.is_autocast_enabled("cpu")
            if wide and plain and x.dim() == 2 and x.device.type == "cpu":
                return _Product.apply(x, self.A, self.B, self.bias)
            return F.linear(x @ self.B, self.A, self.bias)
        h = x @ self.B
        if self.bias is None:
            return h @ self.A.mT
        bias = self.bias.unsqueeze(-2)  # draws: (S, 1, out)
        return torch.baddbmm(bias, h, self.A.mT) if h.dim() == self.A.dim() == 3 else h @ self.A.mT + bias

    def extra_repr(self) -> str:
        sizes = f"in_features={self.in_features}, out_features={self.out_features}, rank={self.rank}"
        return f"{sizes}, bias={self.bias is not None}"
