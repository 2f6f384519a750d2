"""The low-rank form of GPT-2's ``Conv1D``, a linear layer that holds its weight the other way round.

References:
    transformers, ``pytorch_utils.Conv1D``: ``y = x W + b`` with ``W (in, out)``.
"""

from __future__ import annotations

import importlib
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .factors import fill_layer
from .linear import LowRankLinear

__all__ = ["LowRankTransposedLinear"]


class LowRankTransposedLinear(LowRankLinear):
    """A ``LowRankLinear`` that stands for transformers' ``Conv1D``: the same factors, ``weight (in, out)``.

    Example:
        >>> LowRankTransposedLinear(20, 60, rank=3).weight.shape
        torch.Size([20, 60])
    """

    replaces: ClassVar[Any] = "transformers.pytorch_utils.Conv1D"  # by name: transformers may not be there

    @staticmethod
    def matrices(layer: Any) -> dict[str, tuple[int, int]]:
        """Names and sizes ``(out, in)`` of the matrices that would be factorised."""
        m, n = reversed(layer.weight.shape)
        return {"weight": (m, n)}

    @classmethod
    def from_layer(
        cls,
        layer: Any,
        rank: int,
        *,
        init: Literal["random", "svd"] = "random",
        diagonal: bool = False,
    ) -> LowRankTransposedLinear:
        """See :meth:`.LowRankLinear.from_layer`."""
        n, m = layer.weight.shape
        linear = nn.Linear(n, m, device="meta")  # no values of its own
        linear.weight = nn.Parameter(layer.weight.detach().T, requires_grad=layer.weight.requires_grad)
        linear.bias = layer.bias
        new = super().from_layer(linear.train(layer.training), rank, init=init, diagonal=diagonal)
        if not isinstance(new, LowRankTransposedLinear):
            raise TypeError(f"expected a {cls.__name__}, got {type(new).__name__}")
        return new

    @torch.no_grad()
    def to_layer(self) -> Any:
        """The ``Conv1D`` with the same weight, formed once."""
        stock = importlib.import_module("transformers.pytorch_utils").Conv1D
        with torch.device("meta"):  # nothing is drawn
            layer = stock(self.out_features, self.in_features).to(self.A.dtype)
        layer.to_empty(device=self.A.device)
        fill_layer(layer, self.weight, self.bias, trained=self.A.requires_grad)
        return layer.train(self.training)

    @property
    def weight(self) -> Float[Tensor, "in out"]:
        """The dense weight ``B @ A.T``, formed when asked for."""
        return super().weight.mT
