"""Judge the predictions of any model from a file: no network, no posterior, the same measures.

One row is one case of one set. Columns (arrays of an npz file have the same names):

    set           "test", and a name for every out-of-distribution set; without it all rows are test
    model         name of the model, where the file holds several
    label         class number from 0, or the outcome; empty in all rows of a set without labels
    p_0, p_1, ..  class probabilities that sum to 1 (npz: ``p``, (N, K)); or
    p             P(y = 1) of a binary label; or
    mean, variance  of the predicted number: the TOTAL variance, in squared units of the label
    epistemic     optional, beside mean and variance: the part of the variance that is the model's own doubt
    score_NAME    scores of your own, higher for more out-of-distribution

and in npz, for a model with draws, in place of the columns above: ``draws_p`` (S, N, K) or (S, N), or
``draws_mean`` and ``draws_variance`` (S, N). Without draws there is no mutual information: results are then
stated with the entropy, or with the total variance where ``epistemic`` is absent.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from .. import scores as scores_module
from ..metrics.bootstrap import check_count
from ..metrics.inputs import Floats
from ..predictive import BernoulliPredictive, CategoricalPredictive, GaussianPredictive, Predictive
from .measures import measure_ood, measure_set
from .prediction import arrays_of, joined
from .record import Evaluation, SetArrays
from .tables import Table, open_table

__all__ = ["evaluate_predictions"]

_CLASS = re.compile(r"p_\d+")
_TOTAL = {"categorical": ("entropy", "max_probability"), "bernoulli": ("entropy", "max_probability"),
          "gaussian": ("total_variance", "entropy")}  # fmt: skip
_AXES = {"p": (1, 2), "draws_p": (2, 3), "draws_mean": (2,), "draws_variance": (2,)}  # of npz; all else 1
_EXPECTED = "p_0, p_1, ... or p or mean and variance (npz: p, draws_p, or draws_mean and draws_variance)"
ROUNDING = 1e-3  # of a sum of probabilities that were printed with a few digits


@dataclass(frozen=True)
class _Layout:
    """Which columns hold the prediction: their task, and whether they are draws."""

    task: str
    values: tuple[str, ...]
    scores: tuple[str, ...]
    others: tuple[str, ...]  # set, model, label, as far as they are there

    @property
    def draws(self) -> bool:
        return self.values[0].startswith("draws_")

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.others, *self.values, *self.scores)


def evaluate_predictions(path: str | Path, bootstrap: int = 1000, seed: int = 0) -> dict[str, Evaluation]:
    """Measure every model of a file of predictions; the columns are described in :mod:`.predictions`.

    Args:
        path: of a ``.csv``, ``.parquet`` or ``.npz`` file.
        bootstrap: resamples of the intervals; 0 for values alone.
        seed: of the resamples, the same for all models, so that :func:`.paired_difference` compares them.

    Returns:
        Model name (the file's, where no column names it) -> its evaluation.

    Raises:
        FileNotFoundError: no such file.
        ValueError: missing columns (found and expected are named), or a cell that is no probability, label or
            finite number, with file, row and column.
    """
    check_count("bootstrap", bootstrap, 0)
    check_count("seed", seed, 0)
    table = open_table(path)
    layout = _layout_of(table)
    parts: dict[str, dict[str, list[SetArrays]]] = {}
    for start, cells in table.chunks(layout.columns):
        rows = np.arange(start, start + cells[layout.values[0]].shape[1 if layout.draws else 0])
        of_model, of_set = (cells.get(key, np.full(len(rows), default, object))
                            for key, default in (("model", table.path.stem), ("set", "test")))  # fmt: skip
        for key in ("model", "set"):
            empty = np.flatnonzero((cells[key] == "") | (cells[key] == "nan")) if key in cells else rows[:0]
            if empty.size:
                raise ValueError(f"{table.path}: row {rows[empty[0]]} has an empty {key}; expected a name")
        for model in dict.fromkeys(of_model):
            for name in dict.fromkeys(of_set[of_model == model]):
                chosen = (of_model == model) & (of_set == name)
                held = {k: v[:, chosen] if k.startswith("draws_") else v[chosen] for k, v in cells.items()}
                part = _arrays(table, layout, held, rows[chosen], name)
                parts.setdefault(model, {}).setdefault(name, []).append(part)
    if not parts:
        raise ValueError(f"{table.path} has no rows; expected one for every case")
    draws = table.shapes[layout.values[0]][0] if layout.draws else 1
    return {
        model: _evaluation(table, layout, model, sets, draws, bootstrap, seed)
        for model, sets in parts.items()
    }


def _layout_of(table: Table) -> _Layout:
    names = table.columns
    classes = tuple(sorted((n for n in names if _CLASS.fullmatch(n)), key=lambda n: int(n[2:])))
    found = [
        (task, values)
        for task, values in (
            ("categorical", classes),
            ("by the axes", ("p",)),
            ("by the axes", ("draws_p",)),
            ("gaussian", ("mean", "variance")),
            ("gaussian", ("draws_mean", "draws_variance")),
        )
        if values and set(values) <= set(names)
    ]
    if len(found) != 1:
        kind = "no prediction" if not found else "several kinds of prediction"
        near = [f"{n} for {m[0]}" for n in names
                if (m := difflib.get_close_matches(n.lower(), ("variance", "mean", "p_0", "label"), 1, 0.7))
                and m[0] not in names]  # fmt: skip
        hint = f"; perhaps {', '.join(near)}" if near else ""
        raise ValueError(f"{table.path} has {kind}: found {', '.join(names)}; expected {_EXPECTED}{hint}")
    task, values = found[0]
    if classes and classes != tuple(f"p_{k}" for k in range(max(2, len(classes)))):
        raise ValueError(f"{table.path} has {', '.join(classes)}; expected p_0, p_1, ... without a gap, or p "
                         f"alone for P(y = 1)")  # fmt: skip
    if task == "gaussian" and "epistemic" in names and values[0] == "mean":
        values = (*values, "epistemic")
    if "label" not in names:
        raise ValueError(f"{table.path} has no column label; found {', '.join(names)}")
    if values[0] in ("p", "draws_p"):  # a CSV file has no shapes: p alone is of a binary label there
        wide = len(table.shapes.get(values[0], ())) == max(_AXES[values[0]])
        task = "categorical" if wide else "bernoulli"
    own = tuple(n for n in names if n.startswith("score_") and len(n) > len("score_"))
    layout = _Layout(task, values, own, tuple(n for n in ("model", "set", "label") if n in names))
    if table.shapes:
        _check_shapes(table, layout)
    return layout


def _check_shapes(table: Table, layout: _Layout) -> None:
    """The arrays of an npz file have the axes that they should, and go together."""
    for name in layout.columns:
        axes = _AXES.get(name, (1,))
        if len(table.shapes[name]) not in axes:
            order = f"{'draws, ' if min(axes) == 2 else ''}rows{', classes' if len(axes) > 1 else ''}"
            raise ValueError(
                f"{table.path}: {name} has shape {table.shapes[name]}; expected "
                f"{' or '.join(map(str, axes))} axes ({order})"
            )
    rows = {name: table.rows_of(name) for name in layout.columns}
    if len(set(rows.values())) > 1:
        raise ValueError(f"{table.path}: the arrays have different numbers of rows: {rows}")
    shapes = {name: table.shapes[name] for name in layout.values}
    if layout.draws and (len(set(shapes.values())) > 1 or 0 in {shape[0] for shape in shapes.values()}):
        raise ValueError(f"{table.path} has {shapes}; expected as many draws of each, at least one")


def _arrays(
    table: Table, layout: _Layout, cells: dict[str, np.ndarray], rows: np.ndarray, name: str
) -> SetArrays:
    """One block of one set, checked."""
    for key in (*layout.values, *layout.scores):
        values = np.moveaxis(cells[key], 1, 0) if key.startswith("draws_") else cells[key]
        _refuse(table, rows, key, values, ~np.isfinite(values), "a finite number")
    labels = cells["label"]
    missing = np.isnan(labels)
    if missing.any() and not missing.all():
        where = rows[np.flatnonzero(missing)[0]]
        raise ValueError(f"{table.path}: row {where}, column label: empty, while other rows of set {name!r} "
                         f"have one; expected labels in all rows of a set or in none")  # fmt: skip
    if not missing.all():
        _refuse(table, rows, "label", labels, ~np.isfinite(labels), "a finite number")
    predictive = _predictive(table, layout, cells, rows)
    chosen = scores_module.for_task(layout.task)
    if not layout.draws:
        chosen = {key: chosen[key] for key in _TOTAL[layout.task]}
    try:
        arrays = arrays_of(name, predictive, None if missing.all() else labels, layout.task, chosen)
    except ValueError as error:
        raise ValueError(f"{table.path}, from row {rows[0]}: {error}") from None
    if "epistemic" in cells:
        arrays.scores["epistemic_variance"] = cells["epistemic"]
    for key in layout.scores:
        score = key.removeprefix("score_")
        if score in arrays.scores:
            raise ValueError(
                f"{table.path} has a column {key}, and {score} is worked out from the prediction; give the "
                f"column another name"
            )
        arrays.scores[score] = cells[key]
    return arrays


def _predictive(table: Table, layout: _Layout, cells: dict[str, np.ndarray], rows: np.ndarray) -> Predictive:
    """The predictive that the cells state: a mixture of the draws, or one component."""
    if layout.task == "gaussian":
        mean, variance = (cells[key] for key in layout.values[:2])
        by_row = np.moveaxis(variance, 1, 0) if layout.draws else variance
        _refuse(table, rows, layout.values[1], by_row, by_row <= 0, "a variance above 0")
        if "epistemic" in cells:
            part = cells["epistemic"]
            _refuse(table, rows, "epistemic", part, (part < 0) | (part > variance * (1 + 1e-6)),
                    "a part of the variance, from 0 to the whole")  # fmt: skip
        both = [torch.from_numpy(np.atleast_2d(part)) for part in (mean, variance)]
        return GaussianPredictive(*both)
    if _CLASS.fullmatch(layout.values[0]):
        probs = np.stack([cells[key] for key in layout.values], 1)[None]
    else:
        probs = cells[layout.values[0]] if layout.draws else cells[layout.values[0]][None]
    by_row = np.moveaxis(probs, 1, 0)
    key = layout.values[0] if len(layout.values) == 1 else "p_0 ..."
    _refuse(table, rows, key, by_row, (by_row < 0) | (by_row > 1), "a probability from 0 to 1")
    if layout.task == "bernoulli":
        with np.errstate(divide="ignore"):
            return BernoulliPredictive(torch.from_numpy(np.log(probs) - np.log1p(-probs)))
    total = probs.sum(-1)
    off = np.abs(np.moveaxis(total, 1, 0) - 1) > ROUNDING
    _refuse(table, rows, key, np.moveaxis(total, 1, 0), off, "probabilities that sum to 1")
    with np.errstate(divide="ignore"):
        return CategoricalPredictive(torch.from_numpy(np.log(probs / total[..., None])))


def _refuse(
    table: Table, rows: np.ndarray, column: str, values: Floats, wrong: np.ndarray, expected: str
) -> None:
    """Name the first wrong cell; rows are the first axis."""
    if wrong.any():
        place = tuple(np.argwhere(wrong)[0])
        raise ValueError(
            f"{table.path}: row {rows[place[0]]}, column {column}: got {values[place]:g}, expected {expected}"
        )


def _evaluation(
    table: Table,
    layout: _Layout,
    model: str,
    parts: dict[str, list[SetArrays]],
    draws: int,
    count: int,
    seed: int,
) -> Evaluation:
    if "test" not in parts:
        raise ValueError(f"{table.path}: model {model!r} has the sets {list(parts)}, none called 'test'")
    for name, blocks in parts.items():
        if len({block.labels is None for block in blocks}) > 1:
            raise ValueError(f"{table.path}: some rows of set {name!r} have labels and some have none")
    if parts["test"][0].labels is None:
        raise ValueError(
            f"{table.path}: the set 'test' of model {model!r} has no labels; fill the column label"
        )
    names = ["test", *(name for name in parts if name != "test")]
    sets = {name: joined(parts[name]) for name in names}
    task, rows = layout.task, {name: len(arrays.mean) for name, arrays in sets.items()}
    return Evaluation(
        name=model,
        task=task,
        draws=draws,
        seed=seed,
        bootstrap=count,
        metrics=measure_set("test", sets["test"], task, count, seed),
        ood={name: measure_ood(name, sets, task, count, seed) for name in names[1:]},
        ood_metrics={
            name: measure_set(name, sets[name], task, count, seed)
            for name in names[1:]
            if sets[name].labels is not None
        },
        prevalence={name: rows[name] / (rows[name] + rows["test"]) for name in names[1:]},
        sets=sets,
        info={"source": table.path.name},
    )
