"""What the low-rank LSTM and GRU share: factors and biases by torch's names, the start, the call.

Each ``W = A diag(s) B^T`` is formed once in a forward pass, so once for a whole sequence, and handed to
torch's fused kernel.

References:
    arXiv 2602.00387, section 4 (recurrent layers). Glorot and Bengio 2010, equation 12 (variance of the
    start). Jozefowicz, Zaremba and Sutskever 2015, section 2.2 (forget-gate bias 1).
"""

from __future__ import annotations

import contextlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from numbers import Real
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from .factors import check_stock, new_factors, product, quiet_ranks, reset_factors, set_factors
from .ranks import matrix_ranks
from .recurrent_inputs import check_sequence, check_states, under_autocast

__all__ = ["LowRankRecurrent", "refuse_projection"]


class LowRankRecurrent(nn.Module, ABC):
    """What the low-rank LSTM and GRU share.

    Attributes:
        ranks: rank of each matrix by torch's name of it; ``weight_ih_l0`` and so on are the weights, formed
            when asked for.
    """

    replaces: ClassVar[type[nn.LSTM] | type[nn.GRU]]
    gates: ClassVar[int]
    open_gate: ClassVar[int | None]
    """The gate whose input bias starts at 1."""
    state_names: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        rank: int | Mapping[str, int],
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        diagonal: bool = False,
    ) -> None:
        super().__init__()
        where = type(self).__name__
        depth = 3 + ("__init__" in vars(type(self)))  # frames up to the user, for warnings
        _check_sizes(where, {"input_size": input_size, "hidden_size": hidden_size, "num_layers": num_layers})
        _check_dropout(where, dropout, num_layers, depth)
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.bidirectional = bias, batch_first, bidirectional
        self.dropout, self.diagonal = float(dropout), diagonal
        sizes = _sizes(self.gates, input_size, hidden_size, num_layers, bidirectional)
        self.ranks = matrix_ranks(rank, sizes, where, stacklevel=depth)
        self._factors: dict[str, tuple[str, str, str]] = {}  # matrix -> names of A, B and s
        self._order: list[str] = []  # as the kernel takes them: matrices and biases
        for name, (m, n) in sizes.items():
            place = name.removeprefix("weight_")
            names = (f"A_{place}", f"B_{place}", f"s_{place}")
            parts = new_factors(m, n, self.ranks[name], diagonal, device, dtype)
            for leaf, parameter in zip(names, parts, strict=True):
                self.register_parameter(leaf, parameter)
            self._factors[name] = names
            self._order.append(name)
            if place.startswith("hh") and bias:
                pair = (f"bias_{place.replace('hh', 'ih', 1)}", f"bias_{place}")
                for leaf in pair:
                    self.register_parameter(leaf, nn.Parameter(torch.empty(m, device=device, dtype=dtype)))
                self._order.extend(pair)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Products of Glorot's variance ``2 / (m + n)``, biases 0, the LSTM's forget gate open at 1.

        ``m`` counts the packed gates. For ``W_hh`` that is ``.4 / H`` (LSTM) and ``.5 / H`` (GRU), beside
        torch's ``.33 / H``; the eigenvalues of each gate's recurrent matrix then start within about ``.63``
        and ``.71`` of 0, at any rank. Forget gate: ``b_ih = 1, b_hh = 0``; the kernel adds the two.
        """
        for name, (a, b, s) in self._factors.items():
            m, n = self._size(name)
            reset_factors(getattr(self, a), getattr(self, b), getattr(self, s), 2 / (m + n))
        for name in self._order:
            if name.startswith("bias"):
                bias = getattr(self, name)
                bias.zero_()
                if self.open_gate is not None and name.startswith("bias_ih"):
                    bias[self.open_gate * self.hidden_size : (self.open_gate + 1) * self.hidden_size] = 1.0

    @torch.no_grad()
    def set_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Start from dense weights and biases, by torch's names; those not given stay.

        Args:
            weights: such as ``dict(lstm.named_parameters())``. Of each matrix the best rank-``r``
                approximation is taken (see ``set_factors``), biases as they are.

        Raises:
            ValueError: a name that the layer does not have, or another shape.
        """
        for name, value in weights.items():
            if name not in self._order:
                raise ValueError(f"{type(self).__name__} has no {name!r}; it has {', '.join(self._order)}")
            wanted = self._size(name) if name in self._factors else tuple(getattr(self, name).shape)
            if tuple(value.shape) != wanted:
                raise ValueError(f"{name} has shape {tuple(value.shape)}, this layer needs {wanted}")
        for name, value in weights.items():
            if name in self._factors:
                a, b, s = self._factors[name]
                set_factors(getattr(self, a), getattr(self, b), getattr(self, s), value)
            else:
                getattr(self, name).copy_(value)

    @staticmethod
    def matrices(layer: nn.RNNBase) -> dict[str, tuple[int, int]]:
        """Names and sizes ``(m, n)`` of the matrices that would be factorised."""
        return {
            name: (parameter.shape[0], parameter.shape[1])
            for name, parameter in layer.named_parameters()
            if name.startswith(("weight_ih", "weight_hh"))
        }

    @classmethod
    def from_layer(
        cls,
        layer: nn.RNNBase,
        rank: int | Mapping[str, int],
        *,
        init: Literal["random", "svd"] = "random",
        diagonal: bool = False,
    ) -> LowRankRecurrent:
        """A low-rank layer in the place of a stock one: same options, device, dtype, mode, frozen parts.

        Args:
            layer: stays as it is.
            rank: see the class.
            init: ``"random"`` starts factors and biases anew, ``"svd"`` from the present ones.
            diagonal: see the class.

        Raises:
            TypeError: a layer of another kind.
            ValueError: a layer with ``proj_size``, weights that are computed (weight_norm), or a rank as in
                the class.
        """
        check_stock(cls.__name__, cls.replaces, layer)
        refuse_projection(cls.__name__, layer.proj_size)
        own: dict[str, Any] = dict(layer.named_parameters())
        sizes = _sizes(cls.gates, layer.input_size, layer.hidden_size, layer.num_layers, layer.bidirectional)
        computed = [name for name in sizes if name not in own]
        if computed:
            raise ValueError(
                f"{cls.__name__}: {', '.join(computed)} of the given layer are no parameters (weight_norm or "
                f"another parametrization computes them); remove it first, as by remove_parametrizations"
            )
        first = own["weight_ih_l0"]
        with quiet_ranks(), _quiet_dropout():
            new = cls(layer.input_size, layer.hidden_size, rank, layer.num_layers, layer.bias,
                      layer.batch_first, layer.dropout, layer.bidirectional, device=first.device,
                      dtype=first.dtype, diagonal=diagonal)  # fmt: skip
        if init == "svd":
            new.set_weights(own)
        for name, parameter in own.items():
            for leaf in new._factors.get(name, (name,)):
                part = getattr(new, leaf)
                if part is not None:
                    part.requires_grad_(parameter.requires_grad)
        return new.train(layer.training)

    @torch.no_grad()
    def to_layer(self) -> nn.RNNBase:
        """The stock layer with the same weights, each formed once, and flattened parameters."""
        first = self._first()
        with _quiet_dropout():  # on "meta" first: nothing is drawn from the global state
            layer = self.replaces(
                self.input_size, self.hidden_size, self.num_layers, self.bias, self.batch_first,
                self.dropout, self.bidirectional, device="meta", dtype=first.dtype,
            ).to_empty(device=first.device)  # fmt: skip
        for name in self._order:
            parameter = getattr(layer, name)
            parameter.copy_(getattr(self, name))
            parameter.requires_grad_(getattr(self, self._factors.get(name, (name,))[0]).requires_grad)
        layer.flatten_parameters()
        return layer.train(self.training)

    def flatten_parameters(self) -> None:
        """Nothing to do, for the weights are formed in each forward pass; here for code that calls it."""

    def _size(self, name: str) -> tuple[int, int]:
        a, b, _ = self._factors[name]
        return len(getattr(self, a)), len(getattr(self, b))

    def _first(self) -> Tensor:
        return getattr(self, self._factors[self._order[0]][0])

    def __getattr__(self, name: str) -> Any:
        factors = self.__dict__.get("_factors", {}).get(name)
        if factors is None:
            return super().__getattr__(name)
        a, b, s = factors
        return product(getattr(self, a), getattr(self, b), getattr(self, s) if self.diagonal else None)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__.get("_factors", {}):
            raise AttributeError(
                f"{name} is a product of factors and cannot be assigned; use set_weights({{{name!r}: value}})"
            )
        super().__setattr__(name, value)

    def _run(
        self, sequence: Tensor | PackedSequence, states: tuple[Tensor, ...] | None
    ) -> tuple[Tensor | PackedSequence, tuple[Tensor, ...]]:
        """Outputs and last states of a whole sequence."""
        if torch.compiler.is_compiling():  # a break in the graph, as at the stock layers: nor do those trace
            outside: Any = torch.compiler.disable(self._evaluate)
            return outside(sequence, states)
        return self._evaluate(sequence, states)

    def _evaluate(
        self, sequence: Tensor | PackedSequence, states: tuple[Tensor, ...] | None
    ) -> tuple[Tensor | PackedSequence, tuple[Tensor, ...]]:
        """Check, form each weight once, call the fused kernel on the whole sequence."""
        where = type(self).__name__
        x, batch, batched = check_sequence(
            where, sequence, self.input_size, self.batch_first, self._first().dtype
        )
        shape = (self.num_layers * (1 + self.bidirectional), batch, self.hidden_size)
        if states is not None:
            check_states(where, states, self.state_names, shape, batched, x)
        packed = isinstance(sequence, PackedSequence)
        axis = 0 if self.batch_first else 1
        if not batched:
            x = x.unsqueeze(axis)
        if states is None:
            states = (x.new_zeros(shape),) * len(self.state_names)
        elif not batched:
            states = tuple(state.unsqueeze(1) for state in states)
        elif packed and sequence.sorted_indices is not None:
            states = tuple(state.index_select(1, sequence.sorted_indices) for state in states)
        weights = self._formed(x)
        with _quiet_compaction() if x.is_cuda else contextlib.nullcontext():
            output, *last = self._kernel(x, sequence.batch_sizes if packed else None, states, weights)
        if packed:
            _, sizes, order, back = sequence
            if back is not None:
                last = [state.index_select(1, back) for state in last]
            return PackedSequence(output, sizes, order, back), tuple(last)
        if not batched:
            return output.squeeze(axis), tuple(state.squeeze(1) for state in last)
        return output, tuple(last)

    def _formed(self, x: Tensor) -> list[Tensor]:
        """The kernel's weights, in its order and the parameters' own precision, as in the stock layer."""
        if not under_autocast(x):
            return [getattr(self, name) for name in self._order]
        with torch.autocast(x.device.type, enabled=False):
            return [getattr(self, name) for name in self._order]

    @abstractmethod
    def _kernel(
        self, x: Tensor, batch_sizes: Tensor | None, states: tuple[Tensor, ...], weights: list[Tensor]
    ) -> tuple[Tensor, ...]:
        """Call torch's fused kernel: outputs, then the last states."""

    def extra_repr(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}"
        ranks = set(self.ranks.values())
        text += f", rank={ranks.pop() if len(ranks) == 1 else self.ranks}"
        if self.num_layers != 1:
            text += f", num_layers={self.num_layers}"
        if not self.bias:
            text += ", bias=False"
        if self.batch_first:
            text += ", batch_first=True"
        if self.dropout != 0:
            text += f", dropout={self.dropout}"
        if self.bidirectional:
            text += ", bidirectional=True"
        return text + (", diagonal=True" if self.diagonal else "")


def _sizes(
    gates: int, input_size: int, hidden_size: int, num_layers: int, bidirectional: bool
) -> dict[str, tuple[int, int]]:
    """Sizes of all matrices by torch's names, in torch's order."""
    sizes = {}
    for layer in range(num_layers):
        columns = hidden_size * (1 + bidirectional) if layer else input_size
        for suffix in ("", "_reverse")[: 1 + bidirectional]:
            sizes[f"weight_ih_l{layer}{suffix}"] = (gates * hidden_size, columns)
            sizes[f"weight_hh_l{layer}{suffix}"] = (gates * hidden_size, hidden_size)
    return sizes


def _check_sizes(where: str, sizes: Mapping[str, int]) -> None:
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int):
            raise TypeError(f"{where}: {name} must be an integer, got {type(size).__name__} {size!r}")
        if size < 1:
            raise ValueError(f"{where}: {name} must be at least 1, got {size}")


def _check_dropout(where: str, dropout: float, num_layers: int, stacklevel: int) -> None:
    if isinstance(dropout, bool) or not isinstance(dropout, Real) or not 0 <= dropout <= 1:
        raise ValueError(f"{where}: dropout must be a number in 0..1, got {dropout!r}")
    if dropout > 0 and num_layers == 1:
        warnings.warn(
            f"{where}: the dropout option acts after all layers but the last, so with num_layers=1 dropout="
            f"{dropout} does nothing",
            stacklevel=stacklevel,
        )


def refuse_projection(where: str, proj_size: int) -> None:
    """Raise for an LSTM with a projection of its state, whose third matrix is not factorised."""
    if proj_size != 0:
        raise ValueError(
            f"{where}: proj_size={proj_size} is not supported; use proj_size=0, or keep this layer as nn.LSTM"
        )


@contextlib.contextmanager
def _quiet_dropout() -> Iterator[None]:
    """Without the warning of a dropout that does nothing: the layer's own constructor has given it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*dropout option")
        yield


@contextlib.contextmanager
def _quiet_compaction() -> Iterator[None]:
    """Without cuDNN's advice to flatten the parameters: weights that are formed at each call cannot be."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*weights are not part of single contiguous chunk")
        yield
