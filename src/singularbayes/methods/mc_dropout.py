"""Monte Carlo dropout: train with dropout, predict with it; one mask per posterior draw.

The network's own ``nn.Dropout`` modules say where and how strongly. In prediction each becomes a named mask
that is drawn once per draw and shared by all inputs, so a draw is one function; each input's predictive is
the same as with per-example masks. Nothing else is in train mode: BatchNorm uses its running statistics.

References:
    Gal and Ghahramani 2016, arXiv 1506.02142, eq. 6 to 8.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..data import as_source, to_device
from ..distributions import DropoutMasks
from ..functions import call
from ..model import Model, check_model
from ..nn.masks import MaskedDropout
from ..nn.recurrence import LowRankRecurrent
from ..posterior import Posterior
from .learner import BuildPoint
from .training import Training, fit_learner

__all__ = ["MCDropout"]

_DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


def mask_shapes(network: nn.Module, x: Any) -> dict[str, tuple[int, ...]]:
    """Shape of one example's mask at each active dropout module, from one forward pass."""
    shapes: dict[str, tuple[int, ...]] = {}
    handles = []
    _unshare(network)
    for path, module in network.named_modules():
        if not isinstance(module, _DROPOUT) or module.p == 0:
            continue

        def note(own: nn.Module, _inputs: Any, output: Tensor, path: str = path) -> None:
            shape = tuple(output.shape[1:])
            if isinstance(own, nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):
                shape = (shape[0], *[1] * (len(shape) - 1))
            if path in shapes:
                raise ValueError(
                    f"dropout module {path} is used at more than one place of the forward pass (activations "
                    f"of shapes {shapes[path]} and {shape}); use one module for each place"
                )
            shapes[path] = shape

        handles.append(module.register_forward_hook(note))
    try:
        with torch.no_grad():
            call(network, x)
    finally:
        for handle in handles:
            handle.remove()
    return shapes


def _unshare(network: nn.Module) -> None:
    """A dropout module under several names becomes one module for each: every place has a mask of its own."""
    seen: set[int] = set()
    for path, module in list(network.named_modules(remove_duplicate=False)):
        if isinstance(module, _DROPOUT) and path:
            if id(module) in seen:
                parent, _, leaf = path.rpartition(".")
                setattr(network.get_submodule(parent), leaf, copy.deepcopy(module))
            seen.add(id(module))


def _hidden_dropout(network: nn.Module) -> list[str]:
    """Places where dropout sits inside a module and cannot be drawn as a named mask."""
    return [
        path or type(module).__name__
        for path, module in network.named_modules()
        if (isinstance(module, nn.RNNBase | LowRankRecurrent | nn.MultiheadAttention) and module.dropout > 0)
        or isinstance(module, nn.AlphaDropout)
    ]


@dataclass(frozen=True, kw_only=True)
class MCDropout(Training):
    """Monte Carlo dropout on a network that has ``nn.Dropout`` modules. Fields: see ``Training``.

    Raises (in ``fit``):
        ValueError: the network has no active dropout module.

    Example:
        >>> import singularbayes as sb
        >>> x = torch.linspace(-1, 1, 32).unsqueeze(1)
        >>> net = nn.Sequential(nn.Linear(1, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))
        >>> posterior = MCDropout(epochs=2).fit(sb.Model(net, sb.Gaussian(noise=0.1)), (x, x))
        >>> bool((posterior.predict(x, draws=32).epistemic > 0).all())
        True
    """

    def fit(
        self,
        model: Model,
        train: Any,
        validation: Any = None,
        *,
        seed: int = 0,
        checkpoint: str | Path | None = None,
        progress: bool | None = None,
    ) -> Posterior:
        """Train with dropout. Arguments and errors: see ``MAP.fit``."""
        check_model(model)
        active = [n for n, m in model.network.named_modules() if isinstance(m, _DROPOUT) and m.p > 0]
        if not active:
            raise ValueError(
                "MCDropout needs a network with nn.Dropout modules and p > 0; this one has none. Add "
                "nn.Dropout(0.1) after the hidden activations"
            )
        if any(model.network.get_submodule(n).p == 1 for n in active):
            raise ValueError("a dropout module with p = 1 drops everything; use p below 1")
        hidden = _hidden_dropout(model.network)
        if hidden:
            warnings.warn(
                f"dropout inside {', '.join(hidden)} is used in training but is off in prediction: it cannot "
                f"be drawn as a named mask",
                stacklevel=2,
            )
        facts = {"method": type(self).__name__, "numbers": model.layout.trained}
        fitted = fit_learner(
            model,
            self,
            BuildPoint(),
            train,
            validation,
            seed=seed,
            checkpoint=checkpoint,
            progress=progress,
            dropout=True,
            facts=facts,
        )
        x, _ = next(iter(as_source(train, model.dtype, model.takes_integers).epoch(2, 0, 0, shuffle=False)))
        return with_masks(fitted, to_device(x, fitted.device))


def with_masks(fitted: Posterior, x: Any) -> Posterior:
    """A trained network's posterior with its dropout modules as drawn masks; ``x`` is any input batch."""
    network, layout = fitted.network, fitted.layout
    shapes = mask_shapes(network, x)
    rates = []
    for path, shape in shapes.items():
        parent, _, leaf = path.rpartition(".")
        p = float(getattr(network.get_submodule(path), "p"))  # noqa: B009
        setattr(network.get_submodule(parent), leaf, MaskedDropout(shape, p, fitted.device, fitted.dtype))
        rates.append(torch.full((torch.Size(shape).numel(),), p, dtype=fitted.dtype, device=fitted.device))
    layout = layout.with_masks({f"{path}.mask": shape for path, shape in shapes.items()})
    distribution = DropoutMasks(fitted.distribution.mean, torch.cat(rates))
    return Posterior(network, distribution, fitted.likelihood, layout, fitted.info)
