"""Worked examples on real data: each a file with data, networks and settings; one runner for all."""

from . import beijing, digits, icu, images, sine, structures, uci
from .folder import RunFolder, open_folder, slug, summary, write_report
from .jobs import processes
from .nearest import did_you_mean
from .overrides import flag_fields
from .recipe import Plan, Recipe, Run
from .running import run_recipe

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
    "did_you_mean",
    "flag_fields",
    "open_folder",
    "processes",
    "run_recipe",
    "slug",
    "summary",
    "write_report",
]
