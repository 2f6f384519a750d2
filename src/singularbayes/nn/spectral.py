"""A bound on the spectral norm of linear layers and convolutions: above it they are scaled down, else kept.

    W <- W min(1, bound / sigma(W)),    sigma by power iteration:  u = W v / |W v|,  v <- W^T u / |W^T u|

So an activation moves by at most ``bound`` times the distance of two inputs. (Torch's ``spectral_norm``
always divides by ``sigma``.) The norm of a convolution is that of the map that it is on images of the given
size, not of its weight as a matrix, from which it can differ by the root of the kernel's size. A factorised
layer is bounded as the product, both factors scaled alike. ``v`` is a buffer of the layer, which follows
training: one iteration a step is enough.

References:
    Liu et al. 2020, arXiv 2006.10108, eq. 10. Gouk et al. 2018, arXiv 1804.04368, algorithm 2 (convolutions).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..random import generator
from .convolution import LowRankConv1d, LowRankConv2d, LowRankConv3d
from .linear import LowRankLinear

__all__ = ["BOUNDABLE", "SpectralBound", "add_vector", "drop_vector"]

BOUNDABLE = (
    nn.Linear, LowRankLinear, nn.Conv1d, nn.Conv2d, nn.Conv3d, LowRankConv1d, LowRankConv2d, LowRankConv3d,
)  # fmt: skip
_VECTOR = "spectral_vector"
_GUARDS, _ITERATIONS = 8, 60
_MARGIN = 1e-3  # of a convolution's norm, which the last iterations leave


def add_vector(layer: nn.Module, shape: tuple[int, ...], seed: int = 0) -> None:
    """Give a layer the buffer ``v``: of one input's shape, random, of length 1."""
    like = next(layer.parameters())
    source = generator(seed, "spectral", device=like.device)
    vector = torch.randn(shape, generator=source, dtype=like.dtype, device=like.device)
    layer.register_buffer(_VECTOR, vector / torch.linalg.vector_norm(vector))


def drop_vector(layer: nn.Module) -> Tensor:
    """Take the buffer away again; gives it."""
    vector = layer.get_buffer(_VECTOR)
    delattr(layer, _VECTOR)
    return vector


@dataclass(frozen=True)
class SpectralBound:
    """The bound of one layer that has its vector.

    Args:
        layer: one of ``BOUNDABLE``; its parameters are scaled in place.
        bound: largest norm.
        iterations: of the power iteration, each time.
    """

    layer: nn.Module
    bound: float
    iterations: int = 1

    def apply(self) -> None:
        """Go on with the power iteration, and scale the layer down where it is above the bound."""
        vector = self.layer.get_buffer(_VECTOR)
        norm = vector.new_zeros(())
        for _ in range(self.iterations):
            pushed = self._push(vector.unsqueeze(0))
            length = torch.linalg.vector_norm(pushed)
            if not bool(length > 0):  # a layer of zeros: nothing to bound
                return
            pulled = self._pull(vector.unsqueeze(0), pushed / length)[0]
            norm = torch.linalg.vector_norm(pulled)
            vector.copy_(pulled / norm)
        self._shrink(norm.item())

    def enforce(self, vector: Tensor) -> float:
        """Scale by the norm to convergence; gives what the norm is then.

        Of a linear layer by its singular values; of a convolution by subspace iteration, and a margin of .1%.

        Args:
            vector: what :func:`drop_vector` gave.
        """
        norm = self.norm(vector)
        self._shrink(norm)
        return min(norm, self.bound)

    @torch.no_grad()
    def norm(self, vector: Tensor) -> float:
        """The layer's spectral norm, from above, to convergence."""
        if vector.dim() == 1:
            weight: Tensor = self.layer.weight.detach()  # type: ignore[assignment]
            return torch.linalg.matrix_norm(weight.double(), ord=2).item()
        source = generator(0, "spectral norm", device=vector.device)
        count = min(_GUARDS, vector.numel())
        basis = torch.randn(count, vector.numel(), generator=source, dtype=vector.dtype, device=vector.device)
        basis[0] = vector.flatten()
        values = basis.new_zeros(1)
        for _ in range(_ITERATIONS):
            basis = torch.linalg.qr(basis.T)[0].T
            images = basis.view(count, *vector.shape)
            pushed = self._push(images)
            values = torch.linalg.svdvals(pushed.flatten(1).double())
            basis = self._pull(images, pushed).flatten(1)
        return values[0].item() * (1 + _MARGIN)

    def _push(self, x: Tensor) -> Tensor:
        """``W x``: the layer without its bias."""
        with torch.no_grad():
            return self.layer.forward(x) - self.layer.forward(torch.zeros_like(x[:1]))

    def _pull(self, x: Tensor, dual: Tensor) -> Tensor:
        """``W^T dual``."""
        with torch.enable_grad():
            point = x.detach().requires_grad_()
            return torch.autograd.grad(self.layer.forward(point), point, dual)[0]

    @torch.no_grad()
    def _shrink(self, norm: float) -> None:
        if norm <= self.bound:
            return
        factors = [p for name, p in self.layer.named_parameters(recurse=False) if name in ("A", "B")]
        ratio = self.bound / norm
        if factors:
            for factor in factors:
                factor.mul_(ratio**0.5)
        else:
            self.layer.get_parameter("weight").mul_(ratio)
