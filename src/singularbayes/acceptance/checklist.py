"""The user's thresholds, read from a TOML file and checked key by key before anything is measured."""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from ..nearest import did_you_mean

__all__ = ["Checklist", "Item", "Measurement", "nearest_known"]

End = Literal["value", "low", "high"]
COSTS = ("latency_ms", "memory_mb", "parameters")
SECTIONS = ("measurement", "test", "ood", "criteria", "cost")
_KEYS = ("at_least", "at_most", "at", "optional")


@dataclass(frozen=True, kw_only=True)
class Item:
    """One thing that is asked of a model.

    Args:
        section: ``test``, ``ood``, ``criteria`` or ``cost``.
        on: the set; "" for costs.
        what: a metric, a measure of telling the OOD set from test, A, B or C, or a cost.
        at_least: lower bound; ``None`` for none.
        at_most: upper bound; ``None`` for none.
        at: which number is held to the bounds: the value, or an end of its 95% interval. ``low`` with
            ``at_least`` asks that the bound is kept beyond doubt.
        status: ``good`` asks for the criterion's own verdict; ``None`` where bounds are asked for.
        score: of an OOD measure; ``None`` for the task's default.
        optional: whether the item may stay unmeasured.
    """

    section: str
    on: str
    what: str
    at_least: float | None = None
    at_most: float | None = None
    at: End = "value"
    status: Literal["good"] | None = None
    score: str | None = None
    optional: bool = False

    @property
    def key(self) -> str:
        """Where it stands in the file."""
        on = () if self.section in ("test", "cost") else (self.on,)
        return ".".join((self.section, *on, self.what))

    @property
    def asked(self) -> str:
        """What is asked, in words."""
        if self.status is not None:
            return self.status
        bounds = [f">= {self.at_least:g}"] if self.at_least is not None else []
        bounds += [f"<= {self.at_most:g}"] if self.at_most is not None else []
        end = "" if self.at == "value" else f" at the {self.at} end of the interval"
        return " and ".join(bounds) + end


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """How latency and memory are measured: ``[measurement]`` of the file.

    Args:
        batch_size: rows of one prediction.
        draws: posterior draws of one prediction.
        repeats: predictions that are timed.
        threads: of torch.

    Raises:
        ValueError: one below 1, or no whole number.
    """

    batch_size: int = 64
    draws: int = 64
    repeats: int = 20
    threads: int = 1

    def __post_init__(self) -> None:
        for key in ("batch_size", "draws", "repeats", "threads"):
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{key} must be a whole number of at least 1, got {value!r}")


@dataclass(frozen=True)
class Checklist:
    r"""What a model has to keep to be accepted.

    Args:
        items: at least one.
        measurement: how costs are measured.

    Example:
        >>> text = "[test]\naccuracy = { at_least = 0.9, at = 'low' }\n[criteria.far]\nA = 'good'"
        >>> for item in Checklist.parse(text).items:
        ...     print(item.key, item.asked)
        test.accuracy >= 0.9 at the low end of the interval
        criteria.far.A good
    """

    items: tuple[Item, ...]
    measurement: Measurement = Measurement()

    @property
    def needs_measuring(self) -> bool:
        """Whether latency or memory are asked for."""
        return any(item.what in ("latency_ms", "memory_mb") for item in self.items)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Checklist:
        """Read a TOML file.

        Raises:
            FileNotFoundError: there is none.
            ValueError: no TOML, unknown keys (with the nearest known one), thresholds that are no numbers;
                the message names the file.
        """
        file = Path(path)
        try:
            text = file.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{file} is no UTF-8 text ({error.reason} at byte {error.start}); save it as UTF-8"
            ) from None
        try:
            return cls.parse(text)
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from None

    @classmethod
    def parse(cls, text: str) -> Checklist:
        """The checklist of a TOML text; raises as :meth:`read`."""
        try:
            content = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"this is no valid TOML: {error}") from None
        for section, entries in content.items():
            nearest_known("section", section, SECTIONS)
            if not isinstance(entries, dict):
                raise ValueError(f"{section} must be a table, got {entries!r}; write [{section}]")
        settings = content.get("measurement", {})
        for key in settings:
            nearest_known("key in [measurement]", key, Measurement.__dataclass_fields__)
        items = tuple(_items(content))
        if not items:
            raise ValueError(
                "it asks for nothing; expected at least one item, such as accuracy = { at_least = 0.9 }"
            )
        return cls(items, Measurement(**settings))


def nearest_known(what: str, name: str, known: Iterable[str]) -> None:
    """Raise a ValueError for a name that is not known, with the nearest one that is."""
    names = list(known)
    if name not in names:
        raise ValueError(f"unknown {what} {name!r}; known: {', '.join(names)}{did_you_mean(name, names)}")


def _items(content: Mapping[str, Any]) -> Iterator[Item]:
    for what, asked in content.get("test", {}).items():
        yield _item("test", "test", what, asked)
    for section in ("ood", "criteria"):
        for on, entries in content.get(section, {}).items():
            if not isinstance(entries, dict):
                raise ValueError(
                    f"{section}.{on} must be a table of a set, got {entries!r}; write [{section}.SET]"
                )
            for what, asked in entries.items():
                if section == "criteria":
                    nearest_known(f"criterion of {on!r}", what, ("A", "B", "C"))
                    if on == "test" and what == "B":
                        raise ValueError(
                            "criteria.test.B: B compares an OOD set with test; test itself has A and C"
                        )
                yield _item(section, on, what, asked)
    for what, asked in content.get("cost", {}).items():
        nearest_known("cost", what, COSTS)
        yield _item("cost", "", what, asked)


def _item(section: str, on: str, what: str, asked: Any) -> Item:
    bare = Item(section=section, on=on, what=what)
    example = "{ at_least = 0.9 }" + (' or "good"' if section == "criteria" else "")
    if section == "criteria" and isinstance(asked, str):
        asked = {"status": asked}
    if not isinstance(asked, dict):
        raise ValueError(f"{bare.key} is {asked!r}; expected {example}")
    known = {"criteria": (*_KEYS, "status"), "ood": (*_KEYS, "score")}.get(section, _KEYS)
    for key in asked:
        nearest_known(f"key of {bare.key}", key, known)
    for key in ("at_least", "at_most"):
        value = asked.get(key, 0.0)
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
            raise ValueError(f"{bare.key}.{key} must be a number, got {value!r}")
    _check_status(bare.key, asked)
    low, high = asked.get("at_least"), asked.get("at_most")
    if low is None and high is None and "status" not in asked:
        raise ValueError(f"{bare.key} asks for nothing; expected {example}")
    if low is not None and high is not None and low > high:
        raise ValueError(f"{bare.key} asks for at least {low} and at most {high}: no number is both")
    at = asked.get("at", "value")
    nearest_known(f"end of {bare.key}", at, get_args(End))
    if section == "cost" and at != "value":
        raise ValueError(f"{bare.key} has no interval; leave out at = {at!r}")
    optional, score = asked.get("optional", False), asked.get("score")
    if not isinstance(optional, bool):
        raise ValueError(f"{bare.key}.optional must be true or false, got {optional!r}")
    if score is not None and not isinstance(score, str):
        raise ValueError(f"{bare.key}.score must be the name of a score, got {score!r}")
    return Item(
        section=section, on=on, what=what, at_least=low, at_most=high, at=at,
        status=asked.get("status"), score=score, optional=optional,
    )  # fmt: skip


def _check_status(key: str, asked: Mapping[str, Any]) -> None:
    """A criterion is asked to be good, or to keep bounds."""
    if "status" in asked:
        nearest_known(f"status of {key}", asked["status"], ("good",))
        if len(asked) > 1 + ("optional" in asked):
            raise ValueError(f"{key} asks for a status and for bounds; give one of them")
