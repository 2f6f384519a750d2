"""Models of a folder, to hold to a checklist: those of a run, or one saved evaluation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..acceptance import Acceptance, Checklist, accept, measure_cost, model_card
from ..checkpoint import write_text
from ..evaluation import Evaluation
from .data.splits import Splits
from .folder import open_folder, slug
from .recipe import Recipe

__all__ = ["accept_folder"]


@dataclass(frozen=True)
class _Candidate:
    evaluation: Evaluation
    posterior: Any = None
    splits: Callable[[], Splits] | None = None


def accept_folder(
    folder: Path,
    checklist: Checklist,
    recipes: dict[str, Recipe],
    *,
    method: str | None = None,
    data: Path | None = None,
    card: Path | None = None,
) -> list[Acceptance]:
    """Hold every model of a folder to a checklist, and write the card of a single one.

    Latency and memory are measured for the models of a run; an evaluation alone has no posterior.

    Args:
        folder: of a run, or of one evaluation.
        checklist: what is asked.
        recipes: those that are known.
        method: only the models of this method; any part of its name.
        data: folder with the recipe's data, where it needs one to measure costs.
        card: file for the model card.

    Raises:
        ValueError: no such folder or method, or a card of several models.
    """
    candidates = _candidates(folder, recipes, method, data)
    if card is not None and len(candidates) > 1:
        names = ", ".join(dict.fromkeys(c.evaluation.name for c in candidates))
        raise ValueError(
            f"{folder} holds {len(candidates)} models ({names}), and a card is of one; choose by --method, "
            f"or give the folder of one evaluation"
        )
    found = []
    for candidate in candidates:
        cost = None
        if checklist.needs_measuring and candidate.splits is not None:
            accept(checklist, candidate.evaluation)  # what is wrong with the file is said before the work
            cost = measure_cost(candidate.posterior, candidate.splits().test[0], checklist.measurement)
        found.append(accept(checklist, candidate.evaluation, cost))
        if card is not None:
            notes = candidate.splits().notes if candidate.splits is not None else ()
            write_text(card, model_card(candidate.evaluation, found[-1], data=notes))
    return found


def _candidates(
    folder: Path, recipes: dict[str, Recipe], method: str | None, data: Path | None
) -> list[_Candidate]:
    if (folder / "evaluation.json").is_file():
        if method is not None:
            raise ValueError(f"{folder} holds one evaluation; leave out --method")
        return [_Candidate(Evaluation.load(folder))]
    opened = open_folder(folder, recipes)
    kept = Path(opened.about["data"]) if opened.about.get("data") else None
    loaded: list[Splits] = []

    def splits() -> Splits:
        if not loaded:
            loaded.append(opened.recipe.load(data or kept, 0))
        return loaded[0]

    chosen = [name for name in opened.names if method is None or slug(method) in slug(name)]
    if not chosen:
        raise ValueError(f"{folder} holds no method {method!r}; it holds {', '.join(opened.names)}")
    return [_Candidate(run.evaluation, run.posterior, splits) for run in opened.runs if run.name in chosen]
