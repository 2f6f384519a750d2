"""Jacobian features of a network, and the kernel of its linearisation: the empirical neural tangent kernel.

    J(x) = df(x; w)/dw at the network's weights m,        K(x, z) = J(x) S^2 J(z)^T,    S the prior's std

With ``S = 1`` it is the empirical NTK, the kernel of gradient flow; with the prior's standard deviations it
is the covariance of the linearised network under that prior, and its Gaussian process is Laplace's linearised
predictive.

References:
    Jacot et al. 2018, arXiv 1806.07572. Khan et al. 2019, arXiv 1906.01930, section 3.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..curvature.jacobian import Jacobian
from ..data import as_inputs, batch_size_of, take, to_device
from ..functions import call
from ..likelihoods import Gaussian
from ..model import Model
from ..nn.linearized import Linearized, linearization_point, linearize, linearized_network
from ..parameters import Slot, owner
from ..priors import Normal, PerParameter

__all__ = ["empirical_ntk", "jacobian_features", "tangent_mean"]

_BYTES = 2**28  # of the features that are held at a time, in float64

Prior = Normal | PerParameter


class Tangent:
    """A network at its weights, the tensors in which it is differentiated, and their prior's deviations."""

    def __init__(self, network: nn.Module, prior: Prior | None) -> None:
        if not isinstance(network, nn.Module):
            raise TypeError(f"a kernel is of a torch.nn.Module, got {type(network).__name__}")
        own = copy.deepcopy(network).eval()
        if isinstance(own, Linearized):  # its Jacobian is that of the network inside, at its point
            point = linearization_point(own)
            own = linearized_network(own).eval()
            for name, parameter in own.named_parameters(remove_duplicate=False):
                parameter.requires_grad_(name in point)
                if name in point:
                    parameter.data.copy_(point[name])
        if not any(parameter.requires_grad for parameter in own.parameters()):
            own.requires_grad_(True)
        # the model resolves ties, frozen parts and the prior's patterns; its likelihood has no part
        self.model = Model(own, Gaussian(noise=1.0), prior=prior, normalization=True)
        self.network, layout = own, self.model.layout
        self.row = layout.flatten(own)
        self.slots = layout.of_kind("belief")
        self.std = None if prior is None else self._deviations()

    def _deviations(self) -> Tensor:
        std = torch.empty(self.model.layout.belief, dtype=torch.float64, device=self.model.device)
        for block, prior in self.model.prior_blocks:
            if not isinstance(prior, Normal):
                raise TypeError(
                    f"the covariance of a linearised network is a Gaussian process under Normal(std) alone, "
                    f"got {prior!r}; give prior=sb.Normal(std), or PerParameter of Normal"
                )
            std[block] = prior.std
        return std

    def inputs(self, x: Any) -> Any:
        return to_device(as_inputs(x, self.model.dtype, self.model.takes_integers), self.model.device)

    def outputs(self, x: Any) -> int:
        with torch.no_grad():
            return call(self.network, take(x, slice(0, 1))).numel()

    def groups(self, numbers: int) -> Iterator[tuple[Slot, ...]]:
        """Tensors of at most so many numbers together; a larger one stands alone."""
        group: list[Slot] = []
        for slot in self.slots:
            if group and sum(each.size for each in group) + slot.size > numbers:
                yield tuple(group)
                group = []
            group.append(slot)
        yield tuple(group)

    def features(self, x: Any, outputs: int, slots: tuple[Slot, ...]) -> Float[Tensor, "B K v"]:
        """``J S`` for some tensors, in float64."""
        jacobian = Jacobian(self.network, self.model.layout, self.row, slots)
        rows = torch.cat(list(jacobian.chunks(x, outputs))).double()
        return rows if self.std is None else rows * self.std[jacobian.entries]


def jacobian_features(network: nn.Module, x: Any, prior: Prior | None = None) -> Float[Tensor, "B K d"]:
    """``J(x) S``: derivatives of each output in the network's parameters, times their prior's deviations.

    Of parameters that require a gradient, of all where none does, in the order of the flat vector (see
    ``Layout``), a tied one once; those of normalisation layers among them. It is ``B K d`` numbers; for the
    kernel alone use :func:`empirical_ntk`.

    Args:
        network: taken at the weights that it has, in eval mode; untouched.
        x: inputs ``(B, ...)``.
        prior: ``Normal``, or ``PerParameter`` of such; ``None`` is ``S = 1``.

    Returns:
        Features in float64, outputs flattened to ``K``.

    Example:
        >>> network = nn.Linear(2, 1)
        >>> jacobian_features(network, torch.tensor([[3.0, 4.0]])).tolist()
        [[[3.0, 4.0, 1.0]]]
    """
    tangent = Tangent(network, prior)
    inputs = tangent.inputs(x)
    return tangent.features(inputs, tangent.outputs(inputs), tangent.slots)


def empirical_ntk(
    network: nn.Module, x: Any, z: Any = None, *, prior: Prior | None = None, full: bool = False
) -> Tensor:
    """``J(x) S^2 J(z)^T``, summed over groups of parameters: no more than 256 MB of features are held.

    Where one tensor's features of all rows are more, they are computed in groups of rows, again for each pair
    of groups.

    Args:
        network: taken at the weights that it has, in eval mode; untouched.
        x: inputs ``(B, ...)``.
        z: other inputs ``(Z, ...)``; ``None`` is ``x``.
        prior: see :func:`jacobian_features`.
        full: between different outputs too.

    Returns:
        ``(K, B, Z)``, one matrix for each output, in float64; ``(K, B, K, Z)`` with ``full``, the covariance
        of output ``k`` at ``x_b`` and output ``l`` at ``z_c`` at ``[k, b, l, c]``.

    Example:
        >>> x = torch.tensor([[1.0], [2.0]])
        >>> empirical_ntk(nn.Linear(1, 1), x).tolist()
        [[[2.0, 3.0], [3.0, 5.0]]]
    """
    tangent = Tangent(network, prior)
    left = tangent.inputs(x)
    right = left if z is None else tangent.inputs(z)
    outputs, rows, columns = tangent.outputs(left), batch_size_of(left), batch_size_of(right)
    total = torch.zeros(
        outputs, rows, outputs if full else 1, columns, dtype=torch.float64, device=tangent.model.device
    )
    width = _BYTES // (8 * outputs)  # numbers of one output that fit
    for slots in tangent.groups(max(1, width // (rows + columns))):
        size = sum(slot.size for slot in slots)
        fits = size * (rows + columns) <= width
        step = max(rows, columns) if fits else max(1, width // (2 * size))
        for i, one in _cut(left, step):
            features = tangent.features(one, outputs, slots)
            for j, two in _cut(right, step):
                same = right is left and i == j
                others = features if same else tangent.features(two, outputs, slots)
                total[:, i, :, j] += _gram(features, others, full=full)
    return total if full else total.squeeze(2)


def _cut(x: Any, step: int) -> Iterator[tuple[slice, Any]]:
    for start in range(0, batch_size_of(x), step):
        index = slice(start, start + step)
        yield index, take(x, index)


def _gram(
    one: Float[Tensor, "B K v"], two: Float[Tensor, "Z K v"], *, full: bool
) -> Float[Tensor, "K B L Z"]:
    if full:
        return torch.einsum("bkv,zlv->kblz", one, two)
    return torch.einsum("bkv,zkv->kbz", one, two).unsqueeze(2)


@torch.no_grad()
def tangent_mean(network: nn.Module, x: Any) -> Float[Tensor, "B K"]:
    """``f(x; m) - J(x) m``: the linearised network where its parameters are 0, the mean of their prior.

    It is the mean of the Gaussian process whose covariance is :func:`empirical_ntk` under that prior.

    Args:
        network: at the weights ``m``.
        x: inputs ``(B, ...)``.

    Example:
        >>> tangent_mean(nn.Linear(2, 1), torch.randn(3, 2)).abs().max().item() < 1e-6
        True
    """
    linear = linearize(network)
    inputs = Tangent(network, None).inputs(x)
    for name in linearization_point(linear):
        getattr(*owner(linear, name)).zero_()
    return call(linear, inputs).reshape(batch_size_of(inputs), -1)
