"""The data of an honest evaluation, and the check that no set knows of another.

Train fixes weights and every statistic; validation and ``ood_validation`` settle choices; test and ``ood``
are scored once. A row that stands on both sides of one of these lines makes the result too good.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..evaluation.data import Reader
from .duplicates import Copies, beyond_chance, exact_copies, near_copies, repeated_share
from .findings import Finding, listed
from .scaling import map_findings, scaled_findings, transform_findings

__all__ = ["Protocol"]

COARSE = 0.5  # share of repeated train rows from which equal rows say nothing
_READER = Reader(torch.float64, integers=True)


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """Train, validation, test and out-of-distribution (OOD) sets of one evaluation.

    Args:
        train: ``(X, y)`` in any form that ``fit`` takes, in the units that the network sees.
        validation: the same, for early stopping, calibration and the choice of settings.
        test: the same, scored once.
        ood: name -> ``(X, y)`` or ``X`` alone, scored once; at least one near and one far set.
        ood_validation: name -> the same, for choices; no row of it may stand in ``ood``.

    ``rows`` maps each set to its inputs ``(n, k)`` in float64, as :meth:`check` compares them.

    Raises:
        TypeError, ValueError: a set that cannot be read, or with other features than train; the message
            names the set.

    Example:
        >>> import numpy as np
        >>> rows = np.random.default_rng(0).normal(size=(60, 4))
        >>> labels = np.arange(60) % 2
        >>> protocol = Protocol(
        ...     train=(rows[:30], labels[:30]),
        ...     validation=(rows[30:40], labels[30:40]),
        ...     test=(rows[29:50], labels[29:50]),
        ...     ood={"near": rows[50:55] + 1, "far": rows[55:] + 9},
        ... )
        >>> for finding in protocol.check():
        ...     print(finding)
        leak (duplicates): 1 of 21 rows of test stand in train (row 0); drop them from one of the two
        leak (duplicates): 10 of 21 rows of test stand in validation (rows 1, 2, 3, 4, 5 and 5 more); drop them from one of the two
    """  # noqa: E501 - a line of output

    train: Any
    validation: Any
    test: Any
    ood: Mapping[str, Any]
    ood_validation: Mapping[str, Any] = field(default_factory=dict)
    rows: Mapping[str, NDArray[np.float64]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for key in ("ood", "ood_validation"):
            given = getattr(self, key)
            if not isinstance(given, Mapping):
                raise TypeError(
                    f"{key} must map names to data, got {type(given).__name__}; write {key}={{'far': X}}"
                )
            object.__setattr__(self, key, MappingProxyType(dict(given)))
        rows = {name: _read(name, data) for name, data in self.named_sets().items()}
        width = rows["train"].shape[1]
        for name, found in rows.items():
            if found.shape[1] != width:
                raise ValueError(
                    f"set {name!r} has {found.shape[1]} features a row and train {width}; expected the same"
                )
        object.__setattr__(self, "rows", MappingProxyType(rows))

    def named_sets(self) -> dict[str, Any]:
        """Every set under one name: "train", "validation", "test", "ood/NAME", "ood_validation/NAME"."""
        sets = {"train": self.train, "validation": self.validation, "test": self.test}
        sets |= {f"ood/{name}": data for name, data in self.ood.items()}
        return sets | {f"ood_validation/{name}": data for name, data in self.ood_validation.items()}

    def check(
        self, *, transform: Any = None, raw: Protocol | None = None, tolerance: float = 1e-3
    ) -> tuple[Finding, ...]:
        """Look for leaks.

        Args:
            transform: a fitted scaler, imputer or pipeline of scikit-learn's kind, where the protocol holds
                the data BEFORE it.
            raw: the same protocol before scaling, where this one holds the data after it.
            tolerance: root mean square difference, in train's standard deviations, up to which two rows are
                near copies.

        Returns:
            The findings, leaks first; empty for clean data. Rows that are merely similar, and overlapping
            windows of one series, are not found: those need to know how the rows were made.

        Raises:
            ValueError: a tolerance that is not positive, or raw data of other rows.
            TypeError: a transform of another kind.
        """
        if not tolerance > 0:
            raise ValueError(f"tolerance must be positive, got {tolerance}")
        found = [*self._copies(tolerance), *scaled_findings(self.rows), *self._missing()]
        if raw is not None:
            found += map_findings(raw.rows, self.rows)
        if transform is not None:
            found += transform_findings(transform, self.rows)
        seen = {finding.message: finding for finding in found}  # two ways to find the same scaler
        return tuple(sorted(seen.values(), key=lambda finding: not finding.leak))

    def _missing(self) -> list[Finding]:
        if len(self.ood) > 1:
            return []
        have = f"only {listed(self.ood)}" if self.ood else "none"
        message = f"an evaluation needs a near and a far OOD set, and there is {have}"
        return [Finding(kind="incomplete", sets=("ood",), leak=False, message=message)]

    def _copies(self, tolerance: float) -> list[Finding]:
        coarse = repeated_share(self.rows["train"])
        spread = self.rows["train"].std(axis=0)
        unit = np.where(spread > 0, spread, 1)
        scaled = {name: rows / unit for name, rows in self.rows.items()}
        found = []
        for first, second in combinations(self.rows, 2):
            copies = exact_copies(self.rows[first], self.rows[second])
            if copies.rows.size:
                found.append(self._finding("stand in", first, second, copies, coarse))
            if coarse > COARSE:  # rows that are close say as little as equal ones
                continue
            near = near_copies(scaled[first], scaled[second], tolerance)
            if beyond_chance(scaled[first], scaled[second], near):
                found.append(self._finding("are nearly those of", first, second, near, coarse))
        return found

    def _finding(self, verb: str, first: str, second: str, copies: Copies, coarse: float) -> Finding:
        chosen = first.startswith("ood/") and second.startswith("ood_validation/")
        exact = verb == "stand in"
        rows = tuple(int(row) for row in copies.rows)
        total = len(self.rows[second])
        where = f"row{'s' if len(rows) > 1 else ''} {listed(rows)}"
        advice = "drop them from one of the two"
        if chosen:
            advice = (
                "an OOD set that settings are chosen on must not be scored: take other rows for one of them"
            )
        if coarse > COARSE:
            advice = (
                f"{coarse:.0%} of the rows of train are repeated as well, so equal rows may be chance; "
                f"compare by an identifier"
            )
        return Finding(
            kind="selection" if chosen else "duplicates" if exact else "near duplicates",
            sets=(first, second),
            rows=rows,
            total=total,
            leak=coarse <= COARSE,
            message=f"{len(rows)} of {total} rows of {second} {verb} {first} ({where}); {advice}",
        )


def _read(name: str, data: Any) -> NDArray[np.float64]:
    """The inputs of a set as ``(n, k)`` in float64, whatever parts and axes they have."""
    try:
        inputs = _READER.read(data).x
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"set {name!r}: {error}") from error
    return np.concatenate([part.reshape(len(part), -1) for part in _parts(inputs)], axis=1)


def _parts(inputs: Any) -> list[NDArray[np.float64]]:
    if isinstance(inputs, Mapping):
        return [part for key in sorted(inputs) for part in _parts(inputs[key])]
    if isinstance(inputs, tuple):
        return [part for value in inputs for part in _parts(value)]
    return [inputs.double().cpu().numpy()]
