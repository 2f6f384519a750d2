"""The spectra of what lies on disk: a run's methods, one saved posterior, or a checkpoint's tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from .. import checkpoint, distributions
from ..mixture_posterior import MixturePosterior
from ..parameters import Layout
from ..posterior import Posterior
from ..report import singular_value_plot
from ..theory import Spectra, singular_values, singular_values_of_tensors
from ..theory.tensor_files import read_tensors
from .folder import open_folder
from .recipe import Recipe

__all__ = ["rank_lines", "read_spectra"]


def rank_lines(path: Path, recipes: Mapping[str, Recipe], csv: bool, figure: Path | None) -> Iterator[str]:
    """What ``singularbayes ranks`` prints, line by line; the picture is written on the way.

    Args:
        path: see :func:`read_spectra`.
        recipes: known ones, by name.
        csv: a table for programs in place of one for readers.
        figure: where the picture of the singular values goes, if it is wanted.

    Raises:
        ValueError: nothing to read at ``path``, a picture of a kind that cannot be written.
    """
    found = read_spectra(path, recipes)
    if csv:
        tables = [spectra.table().assign(network=name) for name, spectra in found.items()]
        yield pd.concat(tables, ignore_index=True).to_csv(index=False).rstrip("\n")
    else:
        yield from (f"{name}\n{spectra}\n" for name, spectra in found.items())
        yield "r for 90%: the rank that keeps this share of the energy; factors save below break-even."
    if figure is not None:
        values = {name: {s.title: s.values.numpy() for s in spectra} for name, spectra in found.items()}
        singular_value_plot(values).savefig(figure, dpi=150)


def read_spectra(path: Path, recipes: Mapping[str, Recipe]) -> dict[str, Spectra]:
    """The spectra of every network that a path holds, by a title.

    Args:
        path: a run's folder (the first seed of every method; of separate networks the first), the folder of a
            saved posterior, or a checkpoint file.
        recipes: known ones, by name.

    Raises:
        ValueError: none of these.
    """
    if (path / "run.json").is_file():
        folder = open_folder(path, recipes)
        return {name: _of(folder.of(name)[0].posterior) for name in folder.names}
    if (path / "posterior.json").is_file():
        return {str(path): singular_values_of_tensors(_saved(path))}
    if path.is_dir():
        raise ValueError(f"{path} holds no run (run.json) and no saved posterior (posterior.json); give one "
                         f"of their folders, or a checkpoint file")  # fmt: skip
    return {str(path): singular_values_of_tensors(read_tensors(path))}


def _of(posterior: Posterior | MixturePosterior) -> Spectra:
    """Of one network: the mean's, or the first of several."""
    while isinstance(posterior, MixturePosterior):
        posterior = posterior.members[0]
    several = posterior.distribution.kind in ("stored_draws", "mixture") and posterior.support != 1
    return singular_values(posterior.merged(posterior.draw(1)[0]) if several else posterior)


def _saved(path: Path) -> dict[str, Any]:
    """A saved posterior's mean (the first of several networks), and what is frozen, by name."""
    tensors, content = checkpoint.read_pair(path, "posterior")
    if "layout" not in content or "distribution" not in content:
        raise ValueError(f"{path} holds no posterior of this library")
    mark = "distribution."
    own = {name.removeprefix(mark): t for name, t in tensors.items() if name.startswith(mark)}
    distribution = distributions.rebuild(content["distribution"], own)
    mean = distribution.draws[0] if distribution.kind == "stored_draws" else distribution.mean
    layout = Layout.from_dict(content["layout"])
    weights = {slot.name for slot in layout.of_kind("belief", "point")}
    named = {name: view for name, view in layout.views(mean).items() if name in weights}
    return named | {n.removeprefix("rest."): t for n, t in tensors.items() if n.startswith("rest.")}
