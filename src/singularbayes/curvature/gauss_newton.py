"""Gauss-Newton blocks of a network, one for each tensor, by products alone; their leading eigenvectors.

    G_l = sum_n J_nl^T H_n J_nl,    J_nl = d f(x_n) / d w_l,    H_n = d^2 (-log p(y_n | f)) / d f^2

No matrix of the size of ``G_l`` is formed. ``J v`` is the derivative of ``J^T u`` for ``u`` along ``v``: two
reverse passes do for a forward one, and every module that has a second derivative has these products.

References:
    Schraudolph 2002, "Fast curvature matrix-vector products", section 3. Pearlmutter 1994. Subspace
    iteration: Golub and Van Loan, "Matrix computations", section 8.2.4.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..functions import call
from ..model import Model
from ..parameters import Slot, owner
from ..random import generator

__all__ = ["GaussNewton", "leading_directions"]


class GaussNewton:
    """Gauss-Newton blocks of the SUM NLL at the weights of ``model.network``, in nats per squared weight.

    Of the believed tensors, one block each; what lies between two blocks is left out.

    Args:
        model: its network is copied, and evaluated in eval mode.
        batches: ``(x, y)`` that can be iterated again; labels as the likelihood wants them.
        device: where to.

    Example:
        >>> import singularbayes as sb
        >>> x = torch.tensor([[1.0, 2.0], [3.0, -1.0]])
        >>> model = sb.Model(torch.nn.Linear(2, 1, bias=False), sb.Gaussian(noise=0.5))
        >>> GaussNewton(model, [(x, torch.zeros(2))]).product(0, torch.eye(2))
        tensor([[40., -4.],
                [-4., 20.]])
    """

    def __init__(
        self, model: Model, batches: Iterable[tuple[Any, Tensor]], device: torch.device | None = None
    ) -> None:
        self.model, self.batches = model, list(batches)
        self.network = model.copy_network().to(device or model.device).eval()
        for parameter in self.network.parameters():
            parameter.requires_grad_(False)
        self.slots: Sequence[Slot] = model.layout.of_kind("belief")
        self.leaves = [getattr(*owner(self.network, slot.name)).requires_grad_() for slot in self.slots]
        learned = model.likelihood.parameters
        self.numbers = {name: tensor.detach().to(device or model.device) for name, tensor in learned.items()}

    @property
    def sizes(self) -> list[int]:
        """Entries of each block."""
        return [slot.size for slot in self.slots]

    def product(self, block: int, vectors: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        """``G_l V`` for one block's vectors, one a column."""
        total = torch.zeros_like(vectors)
        plain = (
            sdpa_kernel(SDPBackend.MATH),
            torch.backends.cudnn.flags(enabled=False),
        )  # with second derivatives
        with torch.enable_grad(), torch.autocast(vectors.device.type, enabled=False), plain[0], plain[1]:
            for x, y in self.batches:
                total += self._batch(self.leaves[block], x, y, vectors)
        return total

    def _batch(self, leaf: Tensor, x: Any, y: Tensor, vectors: Tensor) -> Tensor:
        outputs = call(self.network, x)
        point = outputs.detach().requires_grad_()
        labels = self.model.likelihood.labels(outputs.shape, y)
        loss = self.model.likelihood.loss(point, labels, self.numbers) * len(labels)
        slope = torch.autograd.grad(loss, point, create_graph=True)[0]
        dual = torch.zeros_like(outputs, requires_grad=True)
        pulled = torch.autograd.grad(outputs, leaf, dual, create_graph=True, allow_unused=True)[0]
        if pulled is None or not slope.requires_grad:  # no part in the outputs, or a NLL linear in them
            return torch.zeros_like(vectors)
        columns = []
        for vector in vectors.T:
            pushed = torch.autograd.grad(pulled, dual, vector.view(leaf.shape), retain_graph=True)[0]
            bent = torch.autograd.grad(slope, point, pushed, retain_graph=True)[0]
            columns.append(torch.autograd.grad(outputs, leaf, bent, retain_graph=True)[0].reshape(-1))
        return torch.stack(columns, 1)


def leading_directions(
    curvature: GaussNewton, k: int, iterations: int, seed: int
) -> list[tuple[Float[Tensor, "d k"], Float[Tensor, " k"]]]:
    """The ``k`` leading eigenvectors of each block and their eigenvalues, by subspace iteration.

    A block of fewer than ``k`` entries has as many as it has entries. The error of a direction falls by the
    ratio of its eigenvalue to the first one left out in each iteration; the space is widened by ``k`` guard
    vectors, which are dropped.

    Args:
        curvature: the blocks.
        k: directions of each block.
        iterations: products for each vector.
        seed: of the start.

    Returns:
        For each block orthonormal columns ``(d, k)`` and eigenvalues ``(k,)``, largest first.
    """
    found = []
    for block, size in enumerate(curvature.sizes):
        like = curvature.leaves[block]
        kept, wide = min(k, size), min(2 * k, size)
        source = generator(seed, "directions", block, device=like.device)
        basis = torch.randn(size, wide, generator=source, dtype=like.dtype, device=like.device)
        basis = torch.linalg.qr(basis)[0]
        for _ in range(iterations):
            basis = torch.linalg.qr(curvature.product(block, basis))[0]
        small = basis.T @ curvature.product(block, basis)  # Rayleigh-Ritz
        values, turn = torch.linalg.eigh(0.5 * (small + small.T))
        found.append(((basis @ turn).flip(1)[:, :kept].contiguous(), values.flip(0)[:kept]))
    return found
