"""Kernels that have batching rules and derivatives, where torch's fused ones lack them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

__all__ = ["plain_attention"]


@contextlib.contextmanager
def plain_attention(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Attention among these modules by the plain kernel, fast path off: it batches, and derives."""
    if not any("attention" in type(module).__name__.lower() for module in modules):
        yield
        return
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
