"""Whether a tensor is an affine function of what it was computed from, read off autograd's graph.

The graph holds the operations that depend on a leaf, and no others. The result is affine in the leaves if
each of these is linear, and each product has one factor that depends on them.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

__all__ = ["is_affine"]

_LINEAR = {
    "AccumulateGrad", "Add", "Alias", "Cat", "Clone", "Expand", "Index", "Mean", "Narrow", "Neg", "Permute",
    "ReshapeAlias", "Select", "Slice", "Split", "SplitWithSizes", "Squeeze", "Stack", "Sub", "Sum", "T",
    "ToCopy", "Transpose", "Unbind", "Unsqueeze", "UnsafeView", "View",
}  # fmt: skip
# Which inputs are multiplied with each other; of a quotient the denominator must not depend at all.
_PRODUCTS: dict[str, tuple[int, ...]] = {
    "Mul": (0, 1), "Mm": (0, 1), "Mv": (0, 1), "Dot": (0, 1), "Bmm": (0, 1), "Linear": (0, 1),
    "Addmm": (1, 2), "Baddbmm": (1, 2), "Convolution": (0, 1),
}  # fmt: skip


def is_affine(result: Tensor) -> bool:
    """Whether a computed tensor is affine in all leaves that require a gradient, taken together.

    An operation that is not known to be linear counts as not linear.

    Example:
        >>> import torch
        >>> w, x = torch.randn(3, 2, requires_grad=True), torch.randn(4, 2)
        >>> is_affine((x.tanh() @ w.T).squeeze()), is_affine((x @ w.T).tanh())
        (True, False)
    """
    seen: set[Any] = set()
    waiting = [result.grad_fn] if result.grad_fn is not None else []
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        inputs = [entry[0] for entry in node.next_functions]
        if not _is_linear(_operation(node), [entry is not None for entry in inputs]):
            return False
        waiting.extend(entry for entry in inputs if entry is not None)
    return True


def _operation(node: Any) -> str:
    return node.name().rsplit("::", 1)[-1].rstrip("0123456789").removesuffix("Backward")


def _is_linear(operation: str, depends: list[bool]) -> bool:
    if operation in _PRODUCTS:
        return sum(depends[i] for i in _PRODUCTS[operation] if i < len(depends)) <= 1
    if operation == "Div":
        return not any(depends[1:])
    return operation in _LINEAR
