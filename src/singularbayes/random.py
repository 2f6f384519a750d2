"""Seeds: every random number of a fit or a prediction follows from one integer and a place.

The global random state is never moved: generators are our own, and code that can only use the global one
(dropout in ``forward``, a ``DataLoader``'s shuffle, ``reset_parameters``, augmentation with NumPy's or
Python's ``random``) runs inside :func:`forked`.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from numbers import Integral

import numpy as np
import torch

__all__ = ["derive", "forked", "generator", "snapshot"]


def derive(seed: int, *place: object) -> int:
    """A 63-bit seed for one place, e.g. ``derive(0, "noise", epoch)``; distinct places are independent.

    Example:
        >>> derive(0, "noise", 1) != derive(0, "noise", 2)
        True
    """
    if isinstance(seed, bool) or not isinstance(seed, Integral):  # numpy's whole numbers are fine
        raise TypeError(f"seed must be an integer, got {type(seed).__name__} {seed!r}")
    parts = [int(p) if isinstance(p, Integral) and not isinstance(p, bool) else p for p in (seed, *place)]
    text = repr(parts)  # quotes the texts: ("a", 1) is not ("a/1",)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def generator(seed: int, *place: object, device: torch.device | str = "cpu") -> torch.Generator:
    """A fresh generator for one place."""
    return torch.Generator(device=device).manual_seed(derive(seed, *place))


def snapshot(device: torch.device | None = None) -> Callable[[], None]:
    """The global state of torch, NumPy and Python as it is now: call the result to put it back.

    Args:
        device: a CUDA device whose generator belongs to it too; other devices have no part in it.
    """
    states = [(each, each.get_state()) for each in _global_generators(device)]
    of_numpy, of_python = np.random.get_state(), random.getstate()  # noqa: NPY002 - what users' code draws from

    def put_back() -> None:
        for each, state in states:
            each.set_state(state)
        np.random.set_state(of_numpy)  # noqa: NPY002
        random.setstate(of_python)

    return put_back


@contextmanager
def forked(seed: int, *place: object, device: torch.device | None = None) -> Iterator[None]:
    """Run a block with the global state seeded for one place; the caller's state is put back afterwards.

    The state is that of torch on the CPU and on ``device`` (a CUDA device; no other one is touched), of
    ``numpy.random`` and of Python's ``random``.
    """
    number = derive(seed, *place)
    put_back = snapshot(device)
    try:
        for each in _global_generators(device):  # torch.manual_seed would seed every CUDA device
            each.manual_seed(number)
        np.random.seed(number % 2**32)  # noqa: NPY002
        random.seed(number)
        yield
    finally:
        put_back()


def _global_generators(device: torch.device | None) -> list[torch.Generator]:
    if device is None or device.type != "cuda":
        return [torch.default_generator]
    torch.cuda.init()
    index = torch.cuda.current_device() if device.index is None else device.index
    return [torch.default_generator, torch.cuda.default_generators[index]]
