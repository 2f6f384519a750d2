"""A private copy of a network whose chosen parameters are plain tensors, put there before each forward pass.

``torch.func.functional_call`` puts drawn weights into a network for the length of one call. Activation
checkpointing runs parts of the network again in the backward pass, after that call: it would find the old
weights, and give wrong gradients without a word. Here the weights stay until the next ones are put.

What is not drawn (buffers, frozen parameters) is shown to torch by :class:`Kept` modules, so that it is part
of the state dict, of ``.to()`` and of what DistributedDataParallel broadcasts.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..model import Model
from ..parameters import Layout, owner

__all__ = ["Drawn", "Kept", "in_backward"]


def in_backward() -> bool:
    """Whether this code runs inside a backward pass: activation checkpointing computes a forward again."""
    return _graph_task() != -1


def _graph_task() -> int:
    return torch._C._current_graph_task_id()  # noqa: SLF001 - torch.utils.checkpoint asks the same way


class Recomputed:
    """A forward pre-hook that notes in which backward pass a module was computed again.

    Activation checkpointing then used the weights of the latest draw; :meth:`follow` raises an error where
    the gradient is another draw's.
    """

    def __init__(self) -> None:
        self.task, self.latest = -1, 0

    def __call__(self, module: nn.Module, inputs: Any) -> None:
        if not torch.compiler.is_compiling() and in_backward():
            self.task = _graph_task()

    def follow(self, w: Tensor, number: int) -> None:
        """Check the gradient of draw ``number`` when it comes."""
        self.latest = number
        if not w.requires_grad:
            return

        def check(gradient: Tensor) -> None:  # it must not hold the module: the module holds its graph
            del gradient
            if self.task == _graph_task() and self.latest != number:
                raise RuntimeError(
                    "activation checkpointing computed layers again with the weights of a later draw; call "
                    "backward() after each forward pass, or leave checkpointing out"
                )

        w.register_hook(check)


class Kept(nn.Module):
    """Buffers and frozen parameters of a network, under their own names, beside the network itself."""

    def __init__(self, inner: nn.Module, drawn: set[tuple[int, str]], known: dict[int, Kept]) -> None:
        super().__init__()
        known[id(inner)] = self
        self.__dict__["inner"] = inner  # not a child: its drawn tensors are no parameters
        self._buffers = inner._buffers  # noqa: SLF001 - one dict, so that neither can run away from the other
        self._non_persistent_buffers_set = inner._non_persistent_buffers_set  # noqa: SLF001
        for name, parameter in inner._parameters.items():  # noqa: SLF001
            if (id(inner), name) not in drawn:
                self.register_parameter(name, parameter)
        for name, child in inner.named_children():
            self.add_module(name, known.get(id(child)) or Kept(child, drawn, known))

    def _get_name(self) -> str:
        return type(self.__dict__["inner"]).__name__

    def _follow(self) -> None:
        inner: nn.Module = self.__dict__["inner"]
        inner._parameters.update(self._parameters)  # noqa: SLF001

    def _apply(self, fn: Any, recurse: bool = True) -> Kept:
        super()._apply(fn, recurse)
        self._follow()
        return self

    def _load_from_state_dict(self, *arguments: Any) -> None:  # type: ignore[override]
        super()._load_from_state_dict(*arguments)
        self._follow()  # load_state_dict(assign=True) brings new parameters


class Drawn:
    """The private copy and the places of its drawn parameters.

    Attributes:
        network: the copy; ``network.parameters()`` gives the tensors that were put last.
    """

    def __init__(self, model: Model) -> None:
        self.layout: Layout = model.layout
        self.network = model.copy_network().requires_grad_(False)
        self.recomputed = Recomputed()
        self._find()
        for module in {id(module): module for module, _, _ in self._places}.values():
            module.register_forward_pre_hook(self.recomputed)

    def _find(self) -> None:
        """Every place of every drawn tensor once, with the tensor's number."""
        self._slots = self.layout.of_kind("belief", "point")
        found = {}
        for number, slot in enumerate(self._slots):
            for alias in slot.aliases:
                module, leaf = owner(self.network, alias)
                found[id(module), leaf] = (module, leaf, number)
        self._places = list(found.values())
        self._recurrent = [m for m in {id(m): m for m, _, _ in self._places}.values()
                           if isinstance(m, nn.RNNBase)]  # fmt: skip

    def kept(self) -> Kept:
        """The buffers and frozen parameters, as a module to register."""
        return Kept(self.network, {(id(module), leaf) for module, leaf, _ in self._places}, {})

    def put(self, w: Tensor) -> None:
        """Make views of ``w (belief + point,)`` the network's parameters."""
        # One split has one backward; a slice for each tensor would fill a whole vector with zeros for each.
        pieces = w.split_with_sizes([slot.size for slot in self._slots])
        self._put([piece.view(slot.shape) for piece, slot in zip(pieces, self._slots, strict=True)])

    def _put(self, tensors: Sequence[Tensor | None]) -> None:
        for module, leaf, number in self._places:
            module._parameters[leaf] = tensors[number]  # noqa: SLF001 - as functional_call does
        for module in self._recurrent:
            names = module._flat_weights_names  # noqa: SLF001 - what the fused kernel is given
            module._flat_weights = [getattr(module, name) for name in names]  # noqa: SLF001

    def lift(self) -> list[Tensor | None]:
        """Take the drawn tensors out; :meth:`put_back` gives them back."""
        held: list[Tensor | None] = [None] * len(self._slots)
        for module, leaf, number in self._places:
            held[number] = module._parameters[leaf]  # noqa: SLF001
        self._put([None] * len(self._slots))
        return held

    def put_back(self, held: Sequence[Tensor | None]) -> None:
        """The tensors that :meth:`lift` took out."""
        self._put(held)

    def __getstate__(self) -> dict[str, Any]:
        """Without the drawn tensors: they belong to a graph, and can be neither copied nor pickled."""
        held = self.lift()
        try:
            network, recomputed = copy.deepcopy((self.network, self.recomputed))
        finally:
            self.put_back(held)
        return {"layout": self.layout, "network": network, "recomputed": recomputed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._find()
