"""A network made linear in its parameters: its first-order Taylor polynomial at the values ``m`` that it has.

    f_lin(x; w) = f(x; m) + J(x; m) (w - m),      J = df/dw at m

``J v`` is one forward-mode pass (``torch.func.jvp``). Recurrent layers have no forward mode; there it takes
two reverse passes: ``u -> J^T u`` is linear, and its own transpose is ``J``.

References:
    Khan et al. 2019, arXiv 1906.01930; Immer et al. 2021, arXiv 2008.08216, eq. 10 (the GLM predictive).
"""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp, vjp

from ..parameters import owner
from .kernels import plain_attention
from .outputs import reduce_output
from .recurrence import LowRankRecurrent

__all__ = ["Linearized", "linearization_point", "linearize", "linearized_at", "linearized_network"]

_NO_FORWARD_MODE = (nn.RNNBase, nn.RNNCellBase, LowRankRecurrent)
_NETWORK, _POINT = "_linearized_network", "_linearization_point"
_REFUSED = ("forward AD", "forward mode AD", "setup_context")
Tensors = dict[str, Tensor]


class Linearized(nn.Module):
    """What :func:`linearize` makes: parameters, buffers and submodules under the network's own names.

    It always computes as in eval mode (``train()`` leaves it there): dropout is off and normalisation layers
    use their running statistics, so that ``J`` is one matrix for each input. ``state_dict`` holds the
    parameters ``w`` alone; ``m`` travels with deepcopy, pickle, ``to`` and ``Posterior.save``.

    It has no attributes of its own, whose names a network's could meet: see :func:`linearized_network` and
    :func:`linearization_point`.
    """

    def __init__(self, network: nn.Module, point: Tensors) -> None:
        super().__init__()
        for part in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            object.__setattr__(
                self, part, getattr(network, part)
            )  # the very same: what is put in one is in both
        object.__setattr__(self, _NETWORK, network)
        object.__setattr__(self, _POINT, point)
        self.train()

    def train(self, mode: bool = True) -> Linearized:
        """Stays in eval mode."""
        super().train(False)
        linearized_network(self).training = False
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Linearized:
        super()._apply(fn, recurse)
        moved = {name: fn(tensor) for name, tensor in linearization_point(self).items()}
        object.__setattr__(self, _POINT, moved)
        return self

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        """``f(x; m) + J(x; m) (w - m)`` as one tensor: of several outputs the logits, or the first."""
        network, point = linearized_network(self), linearization_point(self)
        steps = {name: getattr(*owner(self, name)) - tensor for name, tensor in point.items()}

        def function(tensors: Tensors) -> Tensor:
            return reduce_output(functional_call(network, tensors, inputs, named, tie_weights=False))

        modules = [network, *self.modules()]
        with plain_attention(modules):
            if any(isinstance(module, _NO_FORWARD_MODE) for module in modules):
                with torch.backends.cudnn.flags(enabled=False):  # by a kernel with second derivatives
                    return _by_reverse_passes(function, point, steps)
            _load_forward_mode()
            try:
                value, slope, *_ = jvp(function, (point,), (steps,))
            except (NotImplementedError, RuntimeError) as error:
                if any(words in str(error) for words in _REFUSED):
                    raise NotImplementedError(
                        f"{type(network).__name__} cannot be linearised: an operation has no forward-mode "
                        f"derivative ({str(error).splitlines()[0]}). Replace it by one that has, or freeze "
                        f"the parameters before it (requires_grad_(False)) and linearise again"
                    ) from error
                raise
            return value + slope

    def extra_repr(self) -> str:
        return f"of {type(linearized_network(self)).__name__}"


def linearized_network(linearized: Linearized) -> nn.Module:
    """The network inside, on the same tensors and submodules: calling it computes ``f(x; w)``."""
    return vars(linearized)[_NETWORK]


def linearization_point(linearized: Linearized) -> Tensors:
    """The values ``m`` by parameter name, of the parameters in which it is linear."""
    return vars(linearized)[_POINT]


@functools.cache
def _load_forward_mode() -> None:
    """The first use of forward mode: torch then compiles rules by a call that it deprecates itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        jvp(torch.sin, (torch.zeros(()),), (torch.zeros(()),))


def _by_reverse_passes(function: Callable[[Tensors], Tensor], primals: Tensors, tangents: Tensors) -> Tensor:
    value, pull, *_ = vjp(function, primals)
    _, push, *_ = vjp(lambda dual: pull(dual)[0], torch.zeros_like(value))
    return value + push(tangents)[0]


def linearize(network: nn.Module) -> Linearized:
    """A copy of the network whose function is linear in its parameters, around the values they have now.

    Parameters, buffers and submodules keep their names, so ``Model``, every method, ``Posterior`` and
    ``load_state_dict`` take it as they take the network. It is linear in the parameters that require a
    gradient, in all where none does; frozen ones and buffers enter as they are. At ``w = m`` it gives the
    network's own outputs.

    Args:
        network: any module; it is copied, in eval mode. A linearised one is copied as it is.

    Raises:
        TypeError: no module. NotImplementedError (in ``forward``): an operation without a derivative.

    Example:
        >>> import singularbayes as sb
        >>> network = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
        >>> x, linear = torch.randn(5, 2), sb.linearize(network)
        >>> bool(torch.allclose(linear(x), network(x)))
        True
    """
    if not isinstance(network, nn.Module):
        raise TypeError(f"linearize takes a torch.nn.Module, got {type(network).__name__}")
    if isinstance(network, Linearized):
        return copy.deepcopy(network)
    places = _places(network)
    chosen = {name: tensor for name, tensor in places.items() if tensor.requires_grad} or places
    return linearized_at(network, {name: tensor.detach() for name, tensor in chosen.items()})


def linearized_at(network: nn.Module, at: Tensors) -> Linearized:
    """A copy of the network, linearised around other values than its own.

    Args:
        network: any module but a linearised one.
        at: the values ``m``, by parameter name; ``f`` is linear in these parameters alone.

    Raises:
        ValueError: names or shapes that the network does not have.
    """
    places = _places(network)
    for name, tensor in at.items():
        if name not in places or places[name].shape != tensor.shape:
            raise ValueError(f"the network has no parameter {name} of shape {tuple(tensor.shape)}")
    return Linearized(copy.deepcopy(network), {name: tensor.clone() for name, tensor in at.items()})


def _places(network: nn.Module) -> dict[str, nn.Parameter]:
    """Every parameter once for each module that holds it, ties included, by the first name there."""
    found: dict[str, nn.Parameter] = {}
    for path, module in network.named_modules():
        for leaf, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            found[f"{path}.{leaf}" if path else leaf] = parameter
    return found
