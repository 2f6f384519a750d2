"""Seeds: every random number of a fit or a prediction follows from one integer and a place.

The global random state is never moved: generators are our own, and code that can only use the global one
(dropout in ``forward``, a ``DataLoader``'s shuffle, ``reset_parameters``) runs inside :func:`forked`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral

import torch

__all__ = ["derive", "forked", "generator"]


def derive(seed: int, *place: object) -> int:
    """A 63-bit seed for one place, e.g. ``derive(0, "noise", epoch)``; distinct places are independent.

    Example:
        >>> derive(0, "noise", 1) != derive(0, "noise", 2)
        True
    """
    if isinstance(seed, bool) or not isinstance(seed, Integral):  # numpy's whole numbers are fine
        raise TypeError(f"seed must be an integer, got {type(seed).__name__} {seed!r}")
    text = "/".join(str(part) for part in (int(seed), *place))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def generator(seed: int, *place: object, device: torch.device | str = "cpu") -> torch.Generator:
    """A fresh generator for one place."""
    return torch.Generator(device=device).manual_seed(derive(seed, *place))


@contextmanager
def forked(seed: int, *place: object, device: torch.device | None = None) -> Iterator[None]:
    """Run a block with the global state seeded for one place; the caller's state is put back afterwards."""
    devices = [device] if device is not None and device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(derive(seed, *place))
        yield
