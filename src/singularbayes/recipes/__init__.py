"""Worked examples on real data: each a file with data, networks and settings; one runner for all."""

from . import digits, icu, sine
from .recipe import Plan, Recipe, Run
from .running import RunFolder, run_recipe

ALL: dict[str, Recipe] = {module.RECIPE.name: module.RECIPE for module in (digits, sine, icu)}

__all__ = ["ALL", "Plan", "Recipe", "Run", "RunFolder", "run_recipe"]
