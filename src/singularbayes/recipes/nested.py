"""The methods inside a method: a field that holds another one, the members of a mixture."""

from __future__ import annotations

from typing import Any

__all__ = ["held", "is_method", "members", "parts"]

_METHODS = ("member", "point", "trajectory")  # fields that hold a method, or the settings of a run


def parts(method: Any) -> list[Any]:
    """A method and all that it holds, at any depth."""
    inside = [*(getattr(method, name) for name in held(method)), *members(method)]
    return [method, *(part for each in inside for part in parts(each))]


def held(method: Any) -> list[str]:
    """The fields of a method that hold another one, or settings; iterates that are given are none."""
    return [name for name in _METHODS if is_method(getattr(method, name, None))]


def members(method: Any) -> list[Any]:
    """The methods of a mixture, those with a model of their own too; no fitted posteriors."""
    given = getattr(method, "members", ())
    found = [m[-1] if isinstance(m, tuple) else m for m in (given if isinstance(given, tuple) else ())]
    return [member for member in found if is_method(member)]


def is_method(member: Any) -> bool:
    """Whether it has fields to look at or set: methods and settings do, posteriors do not."""
    return hasattr(member, "__dataclass_fields__")
