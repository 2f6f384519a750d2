"""A last layer of random cosine features: a Gaussian process with an RBF kernel, as linear regression.

    phi(h) = sqrt(2 / m) cos(Omega h + b),   Omega_ij ~ N(0, 1 / length_scale^2),   b_i ~ U(0, 2 pi)
    phi(h)^T phi(h')  ->  exp(-|h - h'|^2 / (2 length_scale^2))   as m grows, with error O(1 / sqrt m)

References:
    Rahimi and Recht 2007, "Random features for large-scale kernel machines", algorithm 1. Liu et al. 2020,
    arXiv 2006.10108, eq. 7.
"""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

__all__ = ["RandomFeatureHead"]


class RandomFeatureHead(nn.Module):
    """``beta phi(h)``, without a bias: ``weight`` is ``beta``; the random frequencies and phases are fixed.

    Frequencies and phases are buffers that a posterior counts among the statistics: each draw has its own,
    so that heads with different ones can stand in one mixture.

    Args:
        in_features: of ``h``.
        out_features: outputs.
        features: number ``m`` of random features.
        length_scale: of the kernel, in the units of ``h``.
        layer_norm: normalise each ``h`` to mean 0 and variance 1 first. Distances then leave out its length.

    Example:
        >>> head = RandomFeatureHead(8, 3, features=64)
        >>> head(torch.randn(5, 8)).shape, head.phi(torch.randn(5, 8)).shape
        (torch.Size([5, 3]), torch.Size([5, 64]))
    """

    frequencies: Tensor
    phases: Tensor
    running_statistics = ("frequencies", "phases")

    def __init__(
        self,
        in_features: int,
        out_features: int,
        features: int = 1024,
        length_scale: float = 1.0,
        layer_norm: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if min(in_features, out_features, features) < 1:
            raise ValueError(
                f"RandomFeatureHead: sizes must be at least 1, got {in_features}, {out_features}, {features}"
            )
        if not (length_scale > 0 and math.isfinite(length_scale)):
            raise ValueError(f"RandomFeatureHead: length_scale must be positive, got {length_scale}")
        self.in_features, self.out_features, self.features = in_features, out_features, features
        self.length_scale, self.layer_norm = length_scale, layer_norm
        self.weight = nn.Parameter(torch.empty(out_features, features, device=device, dtype=dtype))
        self.register_buffer("frequencies", torch.empty(features, in_features, device=device, dtype=dtype))
        self.register_buffer("phases", torch.empty(features, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw frequencies and phases, and a start of ``weight`` as ``nn.Linear``'s."""
        with torch.no_grad():
            self.frequencies.normal_(0, 1 / self.length_scale)
            self.phases.uniform_(0, 2 * math.pi)
            bound = 1 / math.sqrt(self.features)
            self.weight.uniform_(-bound, bound)

    @torch.no_grad()
    def at_length_scale(self, length_scale: float) -> RandomFeatureHead:
        """A copy with the same features of another length scale: frequencies times old over new.

        Args:
            length_scale: in the units of ``h``.
        """
        if not (length_scale > 0 and math.isfinite(length_scale)):
            raise ValueError(f"RandomFeatureHead: length_scale must be positive, got {length_scale}")
        other = copy.deepcopy(self)
        other.frequencies.mul_(self.length_scale / length_scale)
        other.length_scale = length_scale
        return other

    def phi(self, h: Float[Tensor, "*B n"]) -> Float[Tensor, "*B m"]:
        """The features. Not in half precision: a cosine's phase needs its digits."""
        with torch.autocast(h.device.type, enabled=False):
            h = h.to(self.frequencies.dtype)
            if self.layer_norm:
                h = F.layer_norm(h, (self.in_features,))
            angles = F.linear(h, self.frequencies, self.phases)
            return math.sqrt(2 / self.features) * angles.cos()

    def forward(self, h: Tensor) -> Tensor:
        return F.linear(self.phi(h), self.weight)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, features={self.features}, "
            f"length_scale={self.length_scale:g}, layer_norm={self.layer_norm}"
        )
