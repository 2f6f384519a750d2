"""Local reparameterisation: a layer's outputs are drawn, one draw an example, in place of its weights.

A Gaussian belief over the weights of ``y = x W^T + b`` gives a Gaussian ``y``. For a dense layer

    y ~ N(x mu^T + mu_b, x^2 (sigma^2)^T + sigma_b^2),

and for a low-rank one in two stages, with ``x`` and ``h`` as they were drawn,

    h ~ N(x mu_B, x^2 sigma_B^2),    y | h ~ N(h mu_A^T + mu_b, h^2 (sigma_A^2)^T + sigma_b^2).

The expected loss of an example is the same, and noise that is independent between examples averages out over
a batch. For training alone: a network with a noise of its own for every example is not one function. Valid
only where each example meets the weights once: a layer that is called twice, on every token of a sequence, or
shares a parameter keeps its drawn weights.

References:
    Kingma, Salimans, Welling 2015, arXiv 1506.02557, eq. 6. arXiv 2602.00387 (factors).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..data import batch_size_of
from ..functions import call
from ..nn.linear import LowRankLinear
from ..parameters import Layout

__all__ = ["LocalLayer", "find_layers"]

_TINY = 1e-30


class LocalLayer:
    """One linear layer of the training loop's private copy that draws its outputs during a step.

    Args:
        name: of the layer, for messages.
        module: an ``nn.Linear`` or ``LowRankLinear`` whose believed parameters hold the means.
        sigma: their standard deviations by name, leaves whose ``grad`` is set; the layer's other parameters
            have none.
    """

    def __init__(self, name: str, module: nn.Linear | LowRankLinear, sigma: Mapping[str, Tensor]) -> None:
        self.name, self.module, self.sigma = name, module, sigma
        self.generator: torch.Generator | None = None
        self.called = False
        plain = module.forward
        own = self._dense if isinstance(module, nn.Linear) else self._low_rank

        def forward(x: Tensor) -> Tensor:
            if self.generator is None:  # whoever calls now brings weights of its own
                return plain(x)
            if self.called or x.dim() != 2:
                raise RuntimeError(
                    f"gradient=sb.Gradient.LOCAL: layer {name} was called once in the first look at the "
                    f"network, with one row an example, but now "
                    f"{'again in one step' if self.called else f'with an input of shape {tuple(x.shape)}'}; "
                    f"its noise would not be the belief's. Use sb.Gradient.DRAW"
                )
            self.called = True
            return own(x)

        module.forward = forward  # type: ignore[method-assign]

    def begin(self, generator: torch.Generator) -> None:
        """Draw outputs from now on."""
        self.generator, self.called = generator, False

    def end(self) -> None:
        """Be an ordinary layer again."""
        self.generator = None

    def _dense(self, x: Tensor) -> Tensor:
        module: Any = self.module
        return self._noisy(
            F.linear(x, module.weight, module.bias), self._spread(x, "weight", "bias", lambda s: s)
        )

    def _low_rank(self, x: Tensor) -> Tensor:
        module: Any = self.module
        h = self._noisy(x @ module.B, self._spread(x, "B", None, lambda s: s.T))
        if module.s is not None:
            h = self._noisy(
                h * module.s, h.square() * self.sigma["s"].square() if "s" in self.sigma else None
            )
        return self._noisy(F.linear(h, module.A, module.bias), self._spread(h, "A", "bias", lambda s: s))

    def _spread(
        self, x: Tensor, weight: str, bias: str | None, turned: Callable[[Tensor], Tensor]
    ) -> Tensor | None:
        """Variance of each output, ``None`` where nothing is believed about."""
        scale, offset = self.sigma.get(weight), self.sigma.get(bias or "")
        variance = None if scale is None else F.linear(x.square(), turned(scale).square())
        if offset is None:
            return variance
        return offset.square().expand(len(x), -1) if variance is None else variance + offset.square()

    def _noisy(self, mean: Tensor, variance: Tensor | None) -> Tensor:
        if variance is None:
            return mean
        noise = torch.empty_like(mean).normal_(generator=self.generator)
        # The root of 0 has no slope: a dead example, x = 0, gets noise and gradient 0.
        return mean + noise * variance.clamp_min(_TINY).sqrt()


def find_layers(network: nn.Module, layout: Layout, probe: Any) -> dict[str, nn.Linear | LowRankLinear]:
    """The layers whose outputs may be drawn in place of their weights, by name.

    Args:
        network: a private copy.
        layout: of its trained parameters.
        probe: some rows of inputs, on which the network is run once to see how often each layer is called.

    Raises:
        ValueError: batch normalisation, or no such layer.
    """
    for name, module in network.named_modules():
        if isinstance(module, _BatchNorm):
            raise ValueError(
                f"gradient=sb.Gradient.LOCAL draws for every example alone, but "
                f"{name}, a batch normalisation, ties the examples of a batch together; use sb.Gradient.DRAW"
            )
    free = {
        alias.rpartition(".")[0] for slot in layout.slots for alias in slot.aliases if len(slot.aliases) == 1
    }
    tied = {
        alias.rpartition(".")[0] for slot in layout.slots for alias in slot.aliases if len(slot.aliases) > 1
    }
    candidates: dict[str, nn.Linear | LowRankLinear] = {}
    for name, module in network.named_modules():
        plain = any(type(module).forward is kind.forward for kind in (nn.Linear, LowRankLinear))
        if isinstance(module, nn.Linear | LowRankLinear) and plain and name in free - tied:
            candidates[name] = module
    shapes: dict[str, list[tuple[int, ...]]] = {name: [] for name in candidates}
    handles = [module.register_forward_pre_hook(_noting(shapes[name])) for name, module in candidates.items()]
    mode = network.training
    try:
        with torch.no_grad():
            call(network.eval(), probe)
    finally:
        network.train(mode)
        for handle in handles:
            handle.remove()
    rows = batch_size_of(probe)
    found = {n: m for n, m in candidates.items() if len(shapes[n]) == 1 and shapes[n][0][:-1] == (rows,)}
    if not found:
        raise ValueError(
            "gradient=sb.Gradient.LOCAL needs a linear layer that every example passes once, without "
            "shared parameters; this network has none. Use sb.Gradient.DRAW or ANTITHETIC"
        )
    return found


def _noting(shapes: list[tuple[int, ...]]) -> Callable[[nn.Module, tuple[Any, ...]], None]:
    def note(_: nn.Module, args: tuple[Any, ...]) -> None:
        shapes.append(tuple(args[0].shape))

    return note
