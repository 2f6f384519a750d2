"""Dropout whose mask is a named tensor, drawn once per posterior draw: a draw stays one function.

References:
    Gal and Ghahramani 2016, arXiv 1506.02142 (one mask per forward pass of a whole sequence: arXiv
    1512.05287).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["MaskedDropout"]


class MaskedDropout(nn.Module):
    """Multiplies by the buffer ``mask``; ones until a posterior's draw puts a mask in.

    Args:
        shape: shape of one example's activation (broadcast against the input's trailing axes).
        p: probability of dropping that the mask is drawn with; kept for the record.
    """

    mask: Tensor

    def __init__(
        self,
        shape: tuple[int, ...],
        p: float,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.p = p
        self.register_buffer("mask", torch.ones(shape, device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        own, given = tuple(self.mask.shape), tuple(x.shape[x.dim() - self.mask.dim() :])
        if any(a not in (1, b) for a, b in zip(own, given, strict=True)):
            raise ValueError(
                f"a dropout mask of shape {own} meets an activation of shape {given}: masks are drawn for "
                f"the shape that was trained on; inputs must keep their length (pad or cut sequences)"
            )
        return x * self.mask

    def to_layer(self) -> nn.Dropout:
        """Torch's dropout, whose evaluation mode is a mask of ones.

        Raises:
            ValueError: another mask: no stock layer multiplies by it.
        """
        if not bool((self.mask == 1).all()):
            raise ValueError(
                "a draw of dropout masks is no stock layer's; merge the posterior at its mean instead"
            )
        return nn.Dropout(self.p).train(self.training)

    def extra_repr(self) -> str:
        return f"shape={tuple(self.mask.shape)}, p={self.p}"
