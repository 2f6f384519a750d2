"""``y = (x B) A^T + bias``: a linear layer whose weight ``A B^T`` has rank at most ``rank``.

References:
    arXiv 2602.00387, section 3 (factors with independent priors; the weight is never formed).
"""

from __future__ import annotations

import math
import warnings

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

__all__ = ["LowRankLinear", "check_rank"]


def check_rank(rank: int, out_features: int, in_features: int, where: str = "LowRankLinear") -> None:
    """A rank must be a whole number in ``1..min(m, n)``; above ``m n / (m + n)`` it saves nothing, which is warned of."""
    if isinstance(rank, bool) or not isinstance(rank, int):
        raise TypeError(f"{where}: rank must be an integer, got {type(rank).__name__} {rank!r}")
    limit = min(out_features, in_features)
    if not 1 <= rank <= limit:
        raise ValueError(f"{where}: rank {rank} is outside 1..{limit}, the smaller side of the "
                         f"{out_features} x {in_features} weight")  # fmt: skip
    if rank * (out_features + in_features) >= out_features * in_features:
        warnings.warn(f"{where}: rank {rank} saves no parameters for a {out_features} x {in_features} weight; "
                      f"it does below {out_features * in_features / (out_features + in_features):.1f}",
                      stacklevel=3)  # fmt: skip


class LowRankLinear(nn.Module):
    """Linear layer with ``weight = A @ B.T``, ``A (out, r)`` and ``B (in, r)``.

    It draws nothing by itself: a belief over ``A`` and ``B`` is a method's, as over any parameter. In place of one
    tensor each, ``A``, ``B`` and ``bias`` may carry a leading draws axis ``S`` (as ``functional_call`` sees them); the
    output is then ``(S, B, out)``.

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
        self.in_features, self.out_features, self.rank = in_features, out_features, rank
        self.A = nn.Parameter(torch.empty(out_features, rank, device=device, dtype=dtype))
        self.B = nn.Parameter(torch.empty(in_features, rank, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(out_features, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Gaussian factors whose product has He variance ``2 / fan_in``: each has std ``(2 / (fan_in r)) ** (1/4)``."""
        std = (2 / (self.in_features * self.rank)) ** 0.25
        self.A.normal_(0, std)
        self.B.normal_(0, std)
        if self.bias is not None:
            bound = 1 / math.sqrt(self.in_features)
            self.bias.uniform_(-bound, bound)

    @torch.no_grad()
    def set_weight(self, weight: Float[Tensor, "out in"], bias: Tensor | None = None) -> None:
        """Start from a dense weight: its best rank-``r`` approximation, split evenly (``A = U sqrt(S)``, ``B = V sqrt(S)``)."""
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
        if self.A.dim() == 3:  # draws: x (B, in) or (S, B, in)
            h = x @ self.B
            return h @ self.A.mT if self.bias is None else torch.baddbmm(self.bias.unsqueeze(1), h, self.A.mT)
        return F.linear(x @ self.B, self.A, self.bias)

    def extra_repr(self) -> str:
        return (f"in_features={self.in_features}, out_features={self.out_features}, rank={self.rank}, "
                f"bias={self.bias is not None}")  # fmt: skip
