"""Fields of methods that the user sets by name: known, of the right kind, and the device is there."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any

from ..nearest import did_you_mean
from ..probing import checked_device
from . import nested
from .recipe import Plan

__all__ = ["check_overrides", "flag_fields", "overridden"]

_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", type(None): "none"}


def flag_fields(method: Any) -> list[str]:
    """The fields of a method, then of the methods in it, that a text can set."""
    return list(dict.fromkeys(name for part in nested.parts(method) for name in _settable(part)))


def _settable(method: Any) -> dict[str, tuple[Any, ...]]:
    """Its own fields that a text can set, with their kinds: no text is an object."""
    hints = typing.get_type_hints(type(method))
    kinds = {name: _kinds(hints[name]) for name in method.__dataclass_fields__}
    return {
        name: found
        for name, found in kinds.items()
        if any(isinstance(kind, type) and issubclass(kind, int | float | str) for kind in found)
    }


def overridden(plan: Plan, overrides: Mapping[str, Any]) -> Plan:
    """The plan with those fields changed that its method, or a method in it, has."""

    def changed(method: Any) -> Any:
        settable = _settable(method)
        known = {
            key: _chosen(key, value, settable[key]) for key, value in overrides.items() if key in settable
        }
        known |= {name: changed(getattr(method, name)) for name in nested.held(method)}
        if nested.members(method):
            known["members"] = tuple(
                (m[0], changed(m[1])) if isinstance(m, tuple) else changed(m) if nested.is_method(m) else m
                for m in method.members
            )
        return replace(method, **known)

    return replace(plan, method=changed(plan.method))


def check_overrides(plans: Mapping[str, Plan], overrides: Mapping[str, Any]) -> None:
    """Raise before any work when a field is unknown, of the wrong kind, or names a device that is not here.

    Raises:
        ValueError: naming the field, what was got and what was expected.
    """
    kinds: dict[str, tuple[Any, ...]] = {}
    for plan in plans.values():
        for method in nested.parts(plan.method):
            kinds |= _settable(method)
    for key, value in overrides.items():
        if key not in kinds:
            known = ", ".join(sorted(kinds))
            raise ValueError(
                f"no chosen method has a field {key!r}; known: {known}{did_you_mean(key, kinds)}"
            )
        if set(kinds[key]) <= set(_WORDS) and not any(_is(value, kind) for kind in kinds[key]):
            expected = " or ".join(_WORDS[kind] for kind in kinds[key])
            raise ValueError(f"{key} must be {expected}, got {value!r}")
    if overrides.get("device") is not None:
        checked_device(overrides["device"])


def _chosen(key: str, value: Any, kinds: tuple[Any, ...]) -> Any:
    """The member of an enumeration that a word names; any other value as it is."""
    choices = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, StrEnum)]
    if not choices or not isinstance(value, str):
        return value
    if value not in list(choices[0]):
        raise ValueError(f"{key} must be one of {', '.join(choices[0])}, got {value!r}")
    return choices[0](value)


def _kinds(hint: Any) -> tuple[Any, ...]:
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if union else (hint,)


def _is(value: Any, kind: type) -> bool:
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, int | float) if kind is float else isinstance(value, kind)
