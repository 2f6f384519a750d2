"""Figures of ranks: they hold what was given, say where a bound crosses 1, refuse what cannot be drawn."""

import math
from dataclasses import dataclass

import numpy as np
import pytest

from singularbayes.report import bound_against_rank, crossing, loss_against_rank, singular_value_plot


@dataclass
class Interval:
    value: float
    low: float
    high: float


def around(value: float) -> Interval:
    return Interval(value, value - 0.1, value + 0.1)


def test_singular_values_are_drawn_relative_to_the_largest_and_zeros_left_out():
    figure = singular_value_plot(
        {"trained": {"0": [4.0, 2.0, 0.0], "2": [1.0, 0.5]}, "start": {"0": [1.0, 1.0, 1.0]}}
    )
    first, second = figure.axes
    np.testing.assert_allclose(first.lines[0].get_ydata(), [1.0, 0.5])
    np.testing.assert_allclose(first.lines[0].get_xdata(), [1 / 3, 2 / 3])
    assert len(first.lines) == 2
    assert len(second.lines) == 1
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["trained", "start"]


def test_the_loss_against_the_rank_has_its_intervals_and_a_ring_at_the_choice():
    losses = {"low rank": {1: around(2.0), 4: around(1.0), 16: around(1.5)}}
    figure = loss_against_rank(losses, chosen={"low rank": 4}, full={"low rank": around(1.2)})
    (ax,) = figure.axes
    np.testing.assert_allclose(ax.lines[0].get_xdata(), [1, 4, 16])
    band = ax.collections[0].get_paths()[0].get_extents()
    assert (band.y0, band.y1) == pytest.approx((0.9, 2.1))
    rings = [line for line in ax.lines if line.get_markersize() == 11]
    assert [(*line.get_xdata(), *line.get_ydata()) for line in rings] == [(4, 1.0)]
    with pytest.raises(ValueError, match="chosen rank 8 of 'low rank' was not measured"):
        loss_against_rank(losses, chosen={"low rank": 8})


def test_the_crossing_is_between_the_ranks_around_it_in_logarithms():
    assert crossing([1, 4, 16], [0.1, 0.5, 2.0]) == pytest.approx(8.0)
    assert crossing([1, 4], [1.5, 3.0]) == 1.0
    assert math.isnan(crossing([1, 4], [0.2, 0.4]))
    # a bound clipped at 1 puts the crossing at a measured rank
    assert crossing([1, 4, 16], [0.1, 0.5, 1.0]) == pytest.approx(16.0)


def test_the_bound_against_the_rank_names_where_it_becomes_vacuous():
    figure = bound_against_rank(
        {"low": {1: 0.3, 4: 0.5, 16: 2.0}, "lower": {1: 0.1, 4: 0.2}}, risks={"low": {1: 0.2, 4: 0.1}}
    )
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts == ["low (1 at r = 8.0)", "lower"]
    measured = [line for line in figure.axes[0].lines if list(line.get_ydata()) == [0.2, 0.1]]
    assert [list(line.get_xdata()) for line in measured] == [[1, 4]]
    assert "vacuous" in [text.get_text() for text in figure.axes[0].texts]


def test_figures_of_nothing_are_refused():
    with pytest.raises(ValueError, match="networks is empty"):
        singular_value_plot({})
    with pytest.raises(ValueError, match="hold no layer"):
        singular_value_plot({"a": {}})
    with pytest.raises(ValueError, match="losses of 'a' is empty"):
        loss_against_rank({"a": {}})
    with pytest.raises(ValueError, match="must be positive, got 0"):
        bound_against_rank({"a": {1: 0.0}})
