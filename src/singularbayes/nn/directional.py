"""A linear layer that knows its neurons' weight directions alone: normalisation takes their lengths away.

    z = (x - mean x) W^T / std(x W^T),    y = gain z + bias

Mean and standard deviation are each neuron's own, over the batch in training and running ones afterwards (as
in BatchNorm, so the length of a row of ``W`` does not matter; layer normalisation would share one scale among
the neurons and keep their lengths' ratios). The mean is taken off the inputs: a drawn ``W`` then keeps a mean
of zero, as BatchNorm re-estimated for the draw would.

References:
    arXiv 2506.19726 (noise on directions after a normalisation without affine parameters).
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["DirectionalLinear"]


class DirectionalLinear(nn.Module):
    """Linear layer, then normalisation of each output over the batch, then gain and bias.

    Deterministic like every structure: what ``nn.Linear(bias=False)`` and ``nn.BatchNorm1d`` compute in
    training. The method ``Precise`` believes about the directions of ``weight``'s rows. An activation follows
    it; it is no last layer.

    Args:
        in_features: size of each input row, at least 2: in one dimension a direction is but a sign.
        out_features: size of each output row.
        affine: gain and bias after the normalisation (point estimates, as BatchNorm's are).
        eps: added to variances.
        momentum: share of the newest batch in the running statistics.
        device: as in torch.
        dtype: as in torch.

    Attributes:
        input_mean: running mean of the inputs ``(in,)``.
        input_var: running variance of an input, mean over the features, a scalar.
        output_var: running variance of each ``w_j x``, ``(out,)``.
        log_noise: ``log s_eff`` while ``Precise`` trains, else ``None``: noise ``s_eff eps`` then joins each
            normalised output in train mode, drawn from the global state as dropout is.

    Example:
        >>> layer = DirectionalLinear(20, 10)
        >>> layer(torch.randn(32, 20)).shape
        torch.Size([32, 10])
    """

    running_statistics: ClassVar[tuple[str, ...]] = ("input_mean", "input_var", "output_var")
    normalization_parameters: ClassVar[tuple[str, ...]] = ("gain", "bias")

    input_mean: Tensor
    input_var: Tensor
    output_var: Tensor

    def __init__(
        self,
        in_features: int,
        out_features: int,
        affine: bool = True,
        eps: float = 1e-5,
        momentum: float = 0.1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if in_features < 2 or out_features < 1:
            raise ValueError(
                f"DirectionalLinear needs at least 2 inputs and 1 output, got {in_features} and "
                f"{out_features}: in one dimension a direction is but a sign; use nn.Linear there"
            )
        if not (eps > 0 and 0 < momentum <= 1):
            raise ValueError(f"eps must be positive and momentum in (0, 1], got {eps!r} and {momentum!r}")
        self.in_features, self.out_features, self.affine = in_features, out_features, affine
        self.eps, self.momentum = eps, momentum

        def empty(*shape: int) -> Tensor:
            return torch.empty(shape, device=device, dtype=dtype)

        self.weight = nn.Parameter(empty(out_features, in_features))
        self.gain = nn.Parameter(empty(out_features)) if affine else None
        self.bias = nn.Parameter(empty(out_features)) if affine else None
        self.register_buffer("input_mean", empty(in_features))
        self.register_buffer("input_var", empty())
        self.register_buffer("output_var", empty(out_features))
        self.log_noise: Tensor | None = None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Rows of length about 1 in random directions, gain 1, bias 0, statistics of unit inputs."""
        self.weight.normal_(std=1 / math.sqrt(self.in_features))
        if self.gain is not None and self.bias is not None:
            self.gain.fill_(1.0)
            self.bias.zero_()
        self.input_mean.zero_()
        self.input_var.fill_(1.0)
        self.output_var.fill_(1.0)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            z = self._normalized(x)
            if self.log_noise is not None:
                z = z + self.log_noise.exp() * torch.randn_like(z)
        else:
            z = F.linear(x - self.input_mean, self.weight) / (self.output_var + self.eps).sqrt()
        if self.gain is None or self.bias is None:
            return z
        return torch.addcmul(self.bias, self.gain, z)

    def _normalized(self, x: Tensor) -> Tensor:
        """By the batch's statistics, which move the running ones."""
        rows = x.numel() // self.in_features
        if rows < 2:
            raise ValueError(
                f"DirectionalLinear normalises over its batch and needs at least 2 rows in training, got "
                f"{rows}; use batches of 2 rows or more, or network.eval()"
            )
        over = tuple(range(x.dim() - 1))
        mean = x.mean(over)
        h = F.linear(x - mean, self.weight)
        var = h.square().mean(over)
        with torch.no_grad():
            unbiased = rows / (rows - 1)
            inputs = (x - mean).square().mean() * unbiased
            self.input_mean.lerp_(mean.to(self.input_mean.dtype), self.momentum)
            self.input_var.lerp_(inputs.to(self.input_var.dtype), self.momentum)
            self.output_var.lerp_(var.to(self.output_var.dtype) * unbiased, self.momentum)
        return h * (var + self.eps).rsqrt()

    @torch.no_grad()
    def weight_std(self, noise: float) -> Tensor:
        """Standard deviation ``(out,)`` of each row's entries, for noise of std ``noise`` after ``Norm``.

        ``noise std(w_j x) / sqrt(in mean var x)``: for inputs of unit variance ``noise |w_j| / sqrt(in)``.
        """
        size = (self.output_var + self.eps).sqrt() / (self.in_features * self.input_var + self.eps).sqrt()
        return noise * size

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, affine={self.affine}"
