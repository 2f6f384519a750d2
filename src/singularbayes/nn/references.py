"""Modules that plain attributes refer to: Python lists, dicts, bound methods, which no conversion follows.

``self.layers = [self.first, self.second]`` holds two registered layers a second time. A copy that replaces
``first`` and calls what is in the list computes with the old layer, and trains the new one in vain.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator, Mapping, Set
from types import MethodType
from typing import Any

from torch import nn

__all__ = ["plain_references"]

_OWN = frozenset(vars(nn.Module()))  # registered parts, hooks and flags
_DEPTH = 4  # containers in containers


def plain_references(network: nn.Module) -> dict[int, str]:
    """Where a module stands outside the registered ones: its identity, and the attribute's full name."""
    found: dict[int, str] = {}
    for name, module in network.named_modules():
        for leaf, value in vars(module).items():
            if leaf not in _OWN:
                for held in _modules(value, _DEPTH):
                    found.setdefault(id(held), f"{name}.{leaf}".lstrip("."))
    return found


def _modules(value: Any, depth: int) -> Iterator[nn.Module]:
    if isinstance(value, nn.Module):
        yield value
    elif depth and (inner := _inner(value)):
        for each in inner:
            yield from _modules(each, depth - 1)


def _inner(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, list | tuple | Set | deque):
        return list(value)
    if isinstance(value, MethodType):
        return [value.__self__]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    return []
