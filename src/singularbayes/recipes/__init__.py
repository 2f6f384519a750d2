"""Worked examples on real data: each a file with data, networks and settings; one runner for all."""

from ..nearest import did_you_mean
from . import beijing, digits, icu, images, sine, structures, uci
from .accepting import accept_folder
from .certifying import certificate_lines
from .folder import RunFolder, open_folder, slug, summary, write_report
from .jobs import processes
from .overrides import flag_fields
from .recipe import Plan, Recipe, Run
from .running import run_recipe
from .saved_spectra import rank_lines

ALL: dict[str, Recipe] = {
    r.name: r
    for r in (
        digits.RECIPE,
        structures.DIGITS,
        sine.RECIPE,
        sine.RELU,
        icu.RECIPE,
        icu.PAPER,
        beijing.RECIPE,
        beijing.PAPER,
        structures.BEIJING,
        *uci.RECIPES,
        images.FASHION,
        images.CIFAR,
    )
}

__all__ = [
    "ALL",
    "Plan",
    "Recipe",
    "Run",
    "RunFolder",
    "accept_folder",
    "certificate_lines",
    "did_you_mean",
    "flag_fields",
    "open_folder",
    "processes",
    "rank_lines",
    "run_recipe",
    "slug",
    "summary",
    "write_report",
]
