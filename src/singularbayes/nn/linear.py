"""``y = (x B) A^T + bias``: a linear layer whose weight ``A B^T`` has rank at most ``rank``.

References:
    arXiv 2602.00387, section 3 (factors with independent priors; the weight is never formed).
"""

from __future__ import annotations

import functools
import math
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch._functorch.pyfunctorch import retrieve_all_functorch_interpreters

from .factors import (
    check_rank,
    check_stock,
    fill_layer,
    freeze_as,
    new_factors,
    product,
    quiet_ranks,
    reset_factors,
    set_factors,
)

__all__ = ["LowRankLinear"]


_WIDE = 2**16  # entries of W from which the order of the products outweighs a Python function's overhead


class _Product(torch.autograd.Function):
    """``x B A^T + bias`` with every product arranged so that the rank is the long-stride side of its result.

    The same numbers as ``F.linear(x @ B, A, bias)`` up to rounding, in an order of products that is quicker
    on CPU for wide layers, forward and backward.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
        reduced = torch.mm(b.T, x.T)  # (r, batch)
        return torch.mm(reduced.T, a.T) if bias is None else torch.addmm(bias, reduced.T, a.T)

    @staticmethod
    def setup_context(
        ctx: Any,
        inputs: tuple[Tensor, Tensor, Tensor, Tensor | None],
        output: Tensor,  # noqa: ARG004 - torch's signature
    ) -> None:
        x, a, b, _ = inputs
        ctx.save_for_backward(x, a, b)
        ctx.save_for_forward(x, a, b)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = grad_outputs
        x, a, b = ctx.saved_tensors
        wants_x, wants_a, wants_b, wants_bias = ctx.needs_input_grad
        reduced = torch.mm(a.T, gradient.T)  # (r, batch)
        by_x = torch.mm(reduced.T, b.T) if wants_x else None
        by_a = torch.mm(torch.mm(b.T, x.T), gradient).T if wants_a else None
        by_b = torch.mm(reduced, x).T if wants_b else None
        return by_x, by_a, by_b, gradient.sum(0) if wants_bias else None

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Tensor | None) -> Tensor:
        dx, da, db, dbias = grad_inputs
        x, a, b = ctx.saved_tensors
        terms = [
            None if dx is None else torch.mm(torch.mm(dx, b), a.T),
            None if da is None else torch.mm(torch.mm(x, b), da.T),
            None if db is None else torch.mm(torch.mm(x, db), a.T),
            dbias,
        ]
        return functools.reduce(torch.add, [term for term in terms if term is not None])


def _takes_custom_functions() -> bool:
    """Neither a trace of torch.compile, which breaks at them, nor forward derivatives of forward derivatives.

    Of those torch's custom functions lose the terms across two inputs, without a word.
    """
    if torch.compiler.is_compiling():
        return False
    if not torch._C._are_functorch_transforms_active():  # noqa: SLF001 - torch has no public way
        return True
    levels = retrieve_all_functorch_interpreters()
    return sum(level.key().name == "Jvp" for level in levels) < 2


class LowRankLinear(nn.Module):
    """Linear layer with ``weight = A @ B.T``, ``A (out, r)`` and ``B (in, r)``.

    It draws nothing by itself: a belief over ``A`` and ``B`` is a method's, as over any parameter. In place
    of one tensor each, ``A``, ``B``, ``s`` and ``bias`` may carry a leading draws axis ``S`` (as
    ``functional_call`` sees them), any of them alone too; for an input ``(B, in)`` or ``(S, B, in)`` the
    output is then ``(S, B, out)``.

    Args:
        in_features: size of each input row.
        out_features: size of each output row.
        rank: columns of the factors.
        bias: add a bias (full, not factorised).
        device: as in torch.
        dtype: as in torch.
        diagonal: put a parameter ``s (r,)`` between the factors, ``weight = A @ diag(s) @ B.T``; with
            ``Model(bayesian="*.s")`` the belief is about it alone.

    Raises:
        ValueError: a rank outside ``1..min(in_features, out_features)``.

    Example:
        >>> layer = LowRankLinear(20, 10, rank=3)
        >>> layer(torch.ones(4, 20)).shape, layer.weight.shape
        (torch.Size([4, 10]), torch.Size([10, 20]))
    """

    replaces: ClassVar[type[nn.Module]] = nn.Linear

    def __init__(
        self,
        in_features: int,
        out_features: int,
        rank: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        diagonal: bool = False,
    ) -> None:
        super().__init__()
        check_rank(rank, out_features, in_features)
        self.in_features, self.out_features, self.rank = in_features, out_features, int(rank)
        self.A, self.B, self.s = new_factors(out_features, in_features, rank, diagonal, device, dtype)
        self.bias = nn.Parameter(torch.empty(out_features, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Factors whose product has He variance ``2 / fan_in``, torch's bias; see ``reset_factors``."""
        reset_factors(self.A, self.B, self.s, 2 / self.in_features)
        if self.bias is not None:
            bound = 1 / math.sqrt(self.in_features)
            self.bias.uniform_(-bound, bound)

    @torch.no_grad()
    def set_weight(self, weight: Float[Tensor, "out in"], bias: Tensor | None = None) -> None:
        """Start from a dense weight: its best rank-``r`` approximation, see ``set_factors``.

        Args:
            weight: dense weight, ``(out, in)``.
            bias: a new bias ``(out,)``; ``None`` leaves the present one.

        Raises:
            ValueError: another shape, or a bias for a layer without one.
        """
        if tuple(weight.shape) != (self.out_features, self.in_features):
            needed = (self.out_features, self.in_features)
            raise ValueError(f"weight has shape {tuple(weight.shape)}, this layer needs {needed}")
        if bias is not None and self.bias is None:
            raise ValueError("this layer has no bias; make it with bias=True to keep the given one")
        set_factors(self.A, self.B, self.s, weight)
        if self.bias is not None and bias is not None:
            self.bias.copy_(bias)

    @staticmethod
    def matrices(layer: nn.Linear) -> dict[str, tuple[int, int]]:
        """Names and sizes ``(m, n)`` of the matrices that would be factorised."""
        return {"weight": (layer.out_features, layer.in_features)}

    @classmethod
    def from_layer(
        cls,
        layer: nn.Linear,
        rank: int,
        *,
        init: Literal["random", "svd"] = "random",
        diagonal: bool = False,
    ) -> LowRankLinear:
        """A low-rank layer in the place of a stock one: same sizes, bias, device, dtype, mode, frozen parts.

        Args:
            layer: stays as it is.
            rank: of the factors.
            init: ``"random"`` starts factors and bias anew, ``"svd"`` from the present ones.
            diagonal: see the class.

        Raises:
            TypeError: not an ``nn.Linear``.
            ValueError: a rank outside ``1..min(in_features, out_features)``.
        """
        check_stock(cls.__name__, nn.Linear, layer)
        with quiet_ranks():
            new = cls(layer.in_features, layer.out_features, rank, bias=layer.bias is not None,
                      device=layer.weight.device, dtype=layer.weight.dtype, diagonal=diagonal)  # fmt: skip
        if init == "svd":
            new.set_weight(layer.weight, layer.bias)
        freeze_as(new, layer.weight, layer.bias)
        return new.train(layer.training)

    @torch.no_grad()
    def to_layer(self) -> nn.Linear:
        """The stock layer with the same weight, formed once."""
        layer = nn.Linear(self.in_features, self.out_features, bias=self.bias is not None,
                          device="meta", dtype=self.A.dtype).to_empty(device=self.A.device)  # fmt: skip
        fill_layer(layer, self.weight, self.bias, trained=self.A.requires_grad)
        return layer.train(self.training)

    @property
    def weight(self) -> Float[Tensor, "out in"]:
        """The dense weight ``A @ B.T``, formed when asked for."""
        return product(self.A, self.B, self.s)

    def forward(self, x: Tensor) -> Tensor:
        b = self.B if self.s is None else self.B * self.s.unsqueeze(-2)
        if self.A.dim() == b.dim() == 2 and (self.bias is None or self.bias.dim() == 1):
            wide = self.in_features * self.out_features >= _WIDE
            plain = x.dtype == self.A.dtype and not torch.is_autocast_enabled("cpu")
            if wide and plain and x.dim() == 2 and x.device.type == "cpu" and _takes_custom_functions():
                return _Product.apply(x, self.A, b, self.bias)
            return F.linear(F.linear(x, b.mT), self.A, self.bias)  # @ does not take nested tensors
        h = x @ b
        if self.bias is None:
            return h @ self.A.mT
        bias = self.bias.unsqueeze(-2)  # draws: (S, 1, out)
        return torch.baddbmm(bias, h, self.A.mT) if h.dim() == self.A.dim() == 3 else h @ self.A.mT + bias

    def extra_repr(self) -> str:
        sizes = f"in_features={self.in_features}, out_features={self.out_features}, rank={self.rank}"
        return f"{sizes}, bias={self.bias is not None}" + ("" if self.s is None else ", diagonal=True")
