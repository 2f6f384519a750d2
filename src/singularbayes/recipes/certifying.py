"""PAC-Bayes certificates of a run's posteriors, on its training data, or of a folder that holds one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from ..theory import Certificate, ClippedLoss, ZeroOne, certify
from .folder import open_folder
from .recipe import Recipe

__all__ = ["certificate_lines"]


def certificate_lines(
    folder: Path,
    recipes: Mapping[str, Recipe],
    data: Path | None,
    delta: float,
    delta_draws: float,
    draws: int,
    subset: int,
    limit: float | None,
) -> Iterator[str]:
    """What ``singularbayes bound`` prints.

    Args:
        folder: of a run, or with a saved certificate.
        recipes: known ones, by name.
        data: folder with the recipe's data, where it needs one.
        delta: probability that a bound fails.
        delta_draws: of the estimate from finitely many draws.
        draws: of the weights.
        subset: training rows that each draw is judged on.
        limit: of a regression, the error that costs 1, in units of the labels.

    Raises:
        ValueError: a regression without ``limit``, numbers out of range, a folder that holds neither.
    """
    if (folder / "certificate.json").is_file():
        yield str(Certificate.load(folder))
        return
    opened = open_folder(folder, recipes)
    loss: ClippedLoss | ZeroOne = ZeroOne()
    if opened.recipe.likelihood.task == "gaussian":
        if limit is None:
            raise ValueError(
                "a regression's certificate needs --limit, the error, in units of y, that costs 1"
            )
        loss = ClippedLoss(limit)
    in_range = 0 < delta < 1 and 0 < delta_draws < 1 and draws >= 1 and subset >= 1
    kept = Path(opened.about["data"]) if opened.about.get("data") else None
    for run in opened.runs:
        train = opened.recipe.load(data or kept, run.seed if opened.recipe.varies_data else 0).train
        yield f"\n{run.name}, seed {run.seed}"
        try:
            found = certify(
                run.posterior, train, delta, delta_draws=delta_draws, draws=draws, subset=subset, loss=loss
            )
        except (ValueError, TypeError) as error:
            if not in_range:
                raise
            yield f"no certificate: {error}"
        else:
            yield str(found)
