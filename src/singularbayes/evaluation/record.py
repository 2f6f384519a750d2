"""The record of an evaluation: plain numbers, arrays, a table, and one folder on disk."""

from __future__ import annotations

import json
import math
import os
import secrets
import shutil
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import scores as scores_module
from ..metrics import Interval
from ..metrics.inputs import Floats

if TYPE_CHECKING:
    import pandas  # noqa: ICN001 - the name in annotations is absolute

FORMAT = 1
_CLASSES = ("accuracy", "negative_log_likelihood", "expected_calibration_error")
_MAIN = {  # what the representation shows
    "categorical": _CLASSES,
    "bernoulli": _CLASSES,
    "gaussian": ("rmse", "negative_log_likelihood", "interval_coverage"),
}


@dataclass(frozen=True)
class SetArrays:
    """What was predicted for one set of ``B`` rows, as NumPy arrays.

    Args:
        scores: score name -> ``(B,)``, higher is more out-of-distribution.
        labels: ``(B,)`` or ``(B, *event)``; ``None`` for a set without labels.
        mean: probabilities ``(B, K)``, P(y = 1) ``(B,)``, or the predictive mean ``(B, *event)``.
        variance: total predictive variance ``(B, *event)`` in squared units of ``y``; ``None`` for classes.
        error: ``(B,)`` 0-1 error, or absolute error (mean over outputs); ``None`` without labels.
        rows: metric name -> ``(B,)`` values whose mean is the metric; ``cdf``: the distribution function at
            ``y``.
    """

    scores: dict[str, Floats]
    labels: Floats | None
    mean: Floats
    variance: Floats | None
    error: Floats | None
    rows: dict[str, Floats] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluation:
    """The results of :func:`evaluate`.

    Args:
        name: how tables call it.
        task: ``categorical``, ``bernoulli`` or ``gaussian``.
        draws: of the prediction.
        seed: of the prediction and of the bootstrap.
        bootstrap: number of resamples.
        metrics: metric -> interval on the test set.
        ood: OOD set -> score -> measure -> interval.
        ood_metrics: OOD set with labels -> metric -> interval.
        prevalence: OOD set -> share of OOD rows among OOD and test rows: the base rate of AUPR-Out.
        sets: set -> arrays, "test" first; empty when made by ``from_dict`` without arrays.
        info: plain facts of the posterior: method, seconds, numbers, epochs.
    """

    name: str
    task: str
    draws: int
    seed: int
    bootstrap: int
    metrics: dict[str, Interval]
    ood: dict[str, dict[str, dict[str, Interval]]]
    ood_metrics: dict[str, dict[str, Interval]]
    prevalence: dict[str, float]
    sets: dict[str, SetArrays]
    info: dict[str, Any]

    @property
    def score(self) -> str:
        """The score that results are stated with: the task's default, or the first that there is."""
        known = self.sets["test"].scores if "test" in self.sets else next(iter(self.ood.values()), {})
        return main_score(known, self.task)

    def __repr__(self) -> str:
        """Name, task, sets with their rows and the main numbers; never arrays."""
        rows = ", ".join(f"{key} {len(arrays.mean):,}" for key, arrays in self.sets.items())
        numbers = [f"{key} {_short(self.metrics[key])}" for key in _MAIN[self.task] if key in self.metrics]
        for key, by_score in self.ood.items():
            if "auroc" in by_score.get(self.score, {}):
                numbers.append(f"AUROC on {key} {_short(by_score[self.score]['auroc'])}")
        return f"Evaluation({self.name!r}, {self.task}, rows: {rows or 'none'}; {', '.join(numbers)})"

    def table(self) -> pandas.DataFrame:
        """One line per measure: set, score, measure, value, low, high, and the prevalence of OOD rows."""
        import pandas  # noqa: PLC0415, ICN001 - slow to import

        lines = [("test", "", key, cell, math.nan) for key, cell in self.metrics.items()]
        for name, measures in self.ood_metrics.items():
            lines += [(name, "", key, cell, math.nan) for key, cell in measures.items()]
        for name, by_score in self.ood.items():
            for score, measures in by_score.items():
                lines += [(name, score, key, cell, self.prevalence[name]) for key, cell in measures.items()]
        return pandas.DataFrame(
            [(s, score, key, c.value, c.low, c.high, share) for s, score, key, c, share in lines],
            columns=["set", "score", "measure", "value", "low", "high", "prevalence"],
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything but the arrays, for strict JSON: nan becomes null, infinity the text "Infinity"."""
        fields = {key: getattr(self, key) for key in self.__dataclass_fields__ if key != "sets"}
        return {"format": FORMAT, **_plain(fields)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], sets: Mapping[str, SetArrays] | None = None) -> Evaluation:
        """The inverse of :meth:`to_dict`; ``sets`` gives the arrays back."""
        if not isinstance(data, Mapping) or data.get("format") != FORMAT:
            found = data.get("format") if isinstance(data, Mapping) else type(data).__name__
            raise ValueError(f"evaluation has format {found!r}, this version reads {FORMAT}; evaluate again")
        try:
            values = {key: data[key] for key in cls.__dataclass_fields__ if key != "sets"}
        except KeyError as missing:
            raise ValueError(
                f"evaluation lacks the entry {missing}; the file is incomplete, evaluate again"
            ) from None
        try:
            for key in ("metrics", "ood", "ood_metrics"):
                values[key] = _intervals(values[key])
            values["prevalence"] = {key: _float(value) for key, value in values["prevalence"].items()}
        except (TypeError, ValueError, AttributeError) as error:
            raise ValueError(
                f"evaluation is damaged, its numbers cannot be read ({error}); evaluate again"
            ) from None
        return cls(**values, sets=dict(sets or {}))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write ONE folder with ``evaluation.json`` and ``arrays.npz``; it appears whole or not at all.

        Raises:
            FileExistsError: the path exists and is no evaluation.
        """
        target = Path(path)
        if (
            target.exists()
            and not (target / "evaluation.json").is_file()
            and (target.is_file() or any(target.iterdir()))
        ):
            raise FileExistsError(f"{target} exists and is no evaluation; give a new folder")
        target.parent.mkdir(parents=True, exist_ok=True)
        mark = secrets.token_hex(4)
        fresh, old = (target.parent / f".{target.name}.{mark}.{kind}" for kind in ("new", "old"))
        try:
            fresh.mkdir()
            record = {**self.to_dict(), "sets": list(self.sets)}
            text = json.dumps(record, allow_nan=False, ensure_ascii=False, indent=1)
            (fresh / "evaluation.json").write_text(text, encoding="utf-8")
            np.savez_compressed(fresh / "arrays.npz", allow_pickle=False, **dict(_named_arrays(self.sets)))
            if target.exists():
                target.rename(old)
            fresh.rename(target)
        finally:
            if old.exists() and not target.exists():
                old.rename(target)  # the second rename failed: put the earlier evaluation back
            for leftover in (fresh, old):
                shutil.rmtree(leftover, ignore_errors=True)
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Evaluation:
        """Read a folder that :meth:`save` wrote.

        Raises:
            FileNotFoundError: a file is missing.
            ValueError: a file is damaged; the message names it.
        """
        folder = Path(path)
        for name in ("evaluation.json", "arrays.npz"):
            if not (folder / name).is_file():
                raise FileNotFoundError(
                    f"{folder} holds no {name}; expected a folder written by Evaluation.save"
                )
        try:
            data = json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{folder / 'evaluation.json'} is not valid JSON: {error}") from None
        try:
            found = cls.from_dict(data)
        except ValueError as error:
            raise ValueError(f"{folder / 'evaluation.json'}: {error}") from None
        try:
            # opened here, as NumPy leaves a file that is no archive open
            with (folder / "arrays.npz").open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                sets = {name: _set_arrays(arrays, i) for i, name in enumerate(data.get("sets", []))}
        except (ValueError, KeyError, TypeError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise ValueError(f"{folder / 'arrays.npz'} is damaged ({error}); evaluate again") from None
        return replace(found, sets=sets)


def main_score(known: Iterable[str], task: str) -> str:
    """The first of the task's scores that is known: without draws there is no mutual information."""
    names, known = list(scores_module.for_task(task)), list(known)
    return next((name for name in names if name in known), names[0])


def _short(interval: Interval) -> str:
    return f"{interval.value:.3g}"


def _plain(value: Any) -> Any:
    if isinstance(value, Interval):
        return {key: _plain(getattr(value, key)) for key in ("value", "low", "high")}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    return value


def _float(value: Any) -> float:
    return math.nan if value is None else float(value)


def _intervals(value: Any) -> Any:
    if set(value) == {"value", "low", "high"} and not any(
        isinstance(item, Mapping) for item in value.values()
    ):
        return Interval(*(_float(value[key]) for key in ("value", "low", "high")))
    return {key: _intervals(item) for key, item in value.items()}


def _named_arrays(sets: Mapping[str, SetArrays]) -> Iterator[tuple[str, Floats]]:
    for i, arrays in enumerate(sets.values()):  # by number: names of sets need not be file names
        for key in ("labels", "mean", "variance", "error"):
            if getattr(arrays, key) is not None:
                yield f"{i}/{key}", getattr(arrays, key)
        for key in ("scores", "rows"):
            for name, values in getattr(arrays, key).items():
                yield f"{i}/{key}/{name}", values


def _set_arrays(arrays: Mapping[str, Floats], i: int) -> SetArrays:
    def group(kind: str) -> dict[str, Floats]:
        prefix = f"{i}/{kind}/"
        return {key.removeprefix(prefix): arrays[key] for key in arrays if key.startswith(prefix)}

    single = {key: arrays.get(f"{i}/{key}") for key in ("labels", "variance", "error")}
    return SetArrays(
        group("scores"),
        single["labels"],
        arrays[f"{i}/mean"],
        single["variance"],
        single["error"],
        group("rows"),
    )
