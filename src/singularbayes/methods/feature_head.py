"""The last linear layer of a network, found by one forward pass and replaced by random features.

And the Gaussian over the flat vector in which the head's weights alone have a distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..data import to_device
from ..functions import call
from ..gaussians import KroneckerGaussian
from ..model import Model
from ..nn.factorize import put
from ..nn.kernels import plain_attention
from ..nn.linear import LowRankLinear
from ..nn.random_feature_head import RandomFeatureHead
from ..parameters import Layout
from ..random import forked

__all__ = ["Trace", "head_path", "row_gaussian", "trace", "with_features"]

HEADS = (nn.Linear, LowRankLinear)


class Trace(NamedTuple):
    """One forward pass in eval mode.

    Attributes:
        network: the private copy that ran.
        calls: inputs and outputs of each watched layer by path, in the order of their last runs.
        output: of the network.
    """

    network: nn.Module
    calls: dict[str, list[tuple[Tensor, Tensor]]]
    output: Tensor


def trace(model: Model, probe: Any, watched: Sequence[type[nn.Module]], *, frozen: bool = False) -> Trace:
    """Run a copy of the model's network on some rows and watch its layers of these types.

    Args:
        model: its network is copied.
        probe: some rows of input.
        watched: types, themselves and not their heirs.
        frozen: watch layers whose matrices are not trained too.
    """
    network = model.copy_network().to(model.device).eval()
    trained = {name for slot in model.layout.of_kind("belief", "point") for name in slot.aliases}
    calls: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for path, module in network.named_modules():
        own = {leaf: f"{path}.{leaf}".lstrip(".") for leaf, _ in module.named_parameters(recurse=False)}
        matrices = [own[leaf] for leaf in ("weight", "A", "B") if leaf in own]
        if type(module) in watched and (frozen or trained.issuperset(matrices)):

            def note(_module: nn.Module, inputs: Any, output: Tensor, path: str = path) -> None:
                record = inputs[0], output.clone()  # what follows may write into it
                calls[path] = [*calls.pop(path, []), record]  # the last to run comes last

            module.register_forward_hook(note)
    with torch.no_grad(), plain_attention(network.modules()):
        output = call(network, to_device(probe, model.device))
    return Trace(network, calls, output)


def head_path(traced: Trace, method: str, kind: str) -> str:
    """The linear layer that ran last.

    Args:
        traced: of at least the layers that can be a head.
        method: for the message.
        kind: of layers that were watched, for the message: ``"trained "`` or nothing.

    Raises:
        ValueError: there is none, it runs more than once, or its outputs are no rows.
    """
    network, calls = traced.network, traced.calls
    head = next((path for path in reversed(calls) if type(network.get_submodule(path)) in HEADS), None)
    if head is None:
        raise ValueError(
            f"{method} replaces the last {kind}nn.Linear or LowRankLinear of the network by random features; "
            f"this network has none: end it with nn.Linear"
        )
    runs, output = len(calls[head]), calls[head][-1][1]
    if runs > 1 or output.dim() != 2:
        raise ValueError(
            f"{method} replaces the last {kind}linear layer, {head or 'the network'}; it must run once and "
            f"give (B, K), but it runs {runs} times and gives {tuple(output.shape)}"
        )
    return head


def with_features(
    network: nn.Module, path: str, *, features: int, length_scale: float, layer_norm: bool, seed: int
) -> tuple[nn.Module, RandomFeatureHead]:
    """Put random features, drawn anew, in the place of a linear layer.

    Args:
        network: nobody else's.
        path: of the layer.
        features: number of them.
        length_scale: of the kernel.
        layer_norm: see ``RandomFeatureHead``.
        seed: of frequencies, phases and the start of the weights.

    Returns:
        The network, which is the head itself where the layer was bare; and the head.
    """
    old = network.get_submodule(path)
    like = next(old.parameters())
    with forked(seed, "features", device=like.device):
        head = RandomFeatureHead(
            int(old.in_features),  # type: ignore[arg-type]
            int(old.out_features),  # type: ignore[arg-type]
            features,
            length_scale,
            layer_norm,
            like.device,
            like.dtype,
        )
    return put(network, [path], head), head


def row_gaussian(
    mean: Float[Tensor, " D"], roots: Float[Tensor, "c m m"], layout: Layout, weight: str
) -> KroneckerGaussian:
    """The head's weights by rows: one root for all of them, or one for each; all else points.

    Args:
        mean: the flat row.
        roots: ``R`` with ``R R^T`` the covariance of a row of weights.
        layout: of the row.
        weight: the head's parameter in it.
    """
    slot = next(slot for slot in layout.slots if slot.name == weight)
    outputs, features = slot.shape
    std = torch.zeros_like(mean)
    std[slot.start : slot.stop] = 1
    rows = outputs if len(roots) == 1 else 1  # of one block
    starts = range(slot.start, slot.stop, rows * features)
    blocks = torch.tensor([[start, rows, features] for start in starts], device=mean.device)
    left = torch.eye(rows).flatten().repeat(len(roots)).to(mean)
    return KroneckerGaussian(mean, std, blocks, left, roots.flatten().to(mean), mean.new_zeros(len(mean), 0))
