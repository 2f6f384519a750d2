"""The side-by-side recipe: every plan fits and is evaluated; a run that goes on keeps what is finished."""

import itertools

import pytest

from singularbayes.nn import DirectionalLinear
from singularbayes.recipes import ALL, run_recipe, structures
from singularbayes.recipes.digits import SIZES


def test_it_has_a_plan_for_every_belief_of_the_librarys_own():
    kinds = {type(plan.method).__name__ for plan in structures.DIGITS.plans.values()}
    assert kinds == {"MeanField", "IVON", "RankOne", "Precise", "DirectionPrecision"}
    assert ALL["digits-structures"] is structures.DIGITS


def test_the_directional_network_has_the_sizes_of_the_plain_one():
    layers = [m for m in structures.directional() if isinstance(m, DirectionalLinear)]
    assert [(m.in_features, m.out_features) for m in layers] == list(itertools.pairwise(SIZES[:-1]))


@pytest.mark.filterwarnings("ignore:the fit predicts the same")  # one epoch
def test_a_run_keeps_what_is_finished_and_counts_the_numbers(tmp_path):
    options = {"methods": ["ivon low", "precise", "ggn"], "overrides": {"epochs": 1}, "bootstrap": 5}
    said = []
    folder = run_recipe(structures.DIGITS, tmp_path, **options)
    assert folder.names == ("IVON, low rank", "Precise", "DirectionPrecision, GGN")
    run_recipe(structures.DIGITS, tmp_path, **options, resume=True, say=said.append)
    assert len(said) == 3
    assert all(line.endswith("finished before") for line in said)
    low = sum(p.numel() for p in structures.DIGITS.plans["IVON, low rank"].network().parameters())
    assert folder.of("IVON, low rank")[0].evaluation.info["numbers"] == 2 * low
