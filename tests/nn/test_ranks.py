"""Ranks of several matrices: one for all, or by pattern."""

import warnings

import numpy as np
import pytest

from singularbayes.nn.ranks import matrix_ranks

SIZES = {"weight_ih_l0": (256, 15), "weight_hh_l0": (256, 64)}


def test_one_rank_is_cut_to_the_smaller_side_of_a_narrow_matrix():
    with pytest.warns(
        UserWarning, match=r"L: the rank saves no parameters in weight_ih_l0 \(256 x 15, rank 15"
    ):
        assert matrix_ranks(20, SIZES, "L") == {"weight_ih_l0": 15, "weight_hh_l0": 20}
    assert matrix_ranks(14, SIZES, "L") == dict.fromkeys(SIZES, 14)  # 14 < 256 * 15 / 271: no warning


def test_the_first_pattern_that_matches_counts():
    assert matrix_ranks({"*_ih_*": 3, "*": 20}, SIZES, "L") == {"weight_ih_l0": 3, "weight_hh_l0": 20}
    assert matrix_ranks({"*_hh_*": 20, "*": 3}, SIZES, "L") == {"weight_ih_l0": 3, "weight_hh_l0": 20}


@pytest.mark.parametrize("rank", [0, -2, 65])
def test_one_rank_above_every_smaller_side_names_the_limit(rank):
    with pytest.raises(ValueError, match=rf"L: rank {rank} is outside 1\.\.64, .*weight_hh_l0 \(256 x 64\)"):
        matrix_ranks(rank, SIZES, "L")


def test_a_patterns_rank_above_its_matrix_names_matrix_and_limit():
    with pytest.raises(ValueError, match=r"L, weight_ih_l0: rank 20 is outside 1\.\.15"):
        matrix_ranks({"*": 20}, SIZES, "L")


def test_patterns_must_match_and_cover():
    with pytest.raises(ValueError, match=r"'weight_ih_10' matches no matrix; nearest names: weight_ih_l0"):
        matrix_ranks({"weight_ih_10": 2, "*": 3}, SIZES, "L")
    with pytest.raises(ValueError, match=r"no rank pattern matches weight_hh_l0; .*'\*_ih_\*'"):
        matrix_ranks({"*_ih_*": 2}, SIZES, "L")
    with pytest.raises(ValueError, match="at least one pattern"):
        matrix_ranks({}, SIZES, "L")


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("rank", [2.0, True, None, "2", {"*": 2.0}, {"*": True}])
def test_a_rank_that_is_no_integer_is_a_type_error(rank):
    with pytest.raises(TypeError, match="rank must be an integer"):
        matrix_ranks(rank, SIZES, "L")


@pytest.mark.usefixtures("unchecked")
def test_a_numpy_integer_is_a_rank():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(type(r) is int for r in matrix_ranks(np.int64(3), SIZES, "L").values())
        assert all(type(r) is int for r in matrix_ranks({"*": np.int64(3)}, SIZES, "L").values())


def test_a_pattern_that_earlier_ones_leave_nothing_is_an_error():
    with pytest.raises(ValueError, match=r"L: rank pattern '\*_ih_\*' is never used"):
        matrix_ranks({"*": 3, "*_ih_*": 2}, SIZES, "L")
    assert matrix_ranks({"*": 3, "*_ih_*": 3}, SIZES, "L") == dict.fromkeys(SIZES, 3)
