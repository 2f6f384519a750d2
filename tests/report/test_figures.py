import math

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from singularbayes.metrics import Interval
from singularbayes.metrics.calibration import calibration_bins
from singularbayes.report import (
    Field,
    correlation_pictures,
    coverage_curve,
    forest_plot,
    method_styles,
    picture,
    reliability_diagram,
    uncertainty_by_distance,
    uncertainty_histograms,
    variance_field,
)

RNG = np.random.default_rng(0)
NAN = math.nan


def every_figure() -> list[Figure]:
    x = np.linspace(0, 1, 21)
    flat = Field(mean=x, total_std=1 + x, epistemic_std=x + 0.1)
    return [
        uncertainty_histograms({"a": {"test": RNG.gamma(1, 1, 50), "far": np.zeros(20)}}),
        reliability_diagram({"a": RNG.uniform(size=50)}, {"a": np.ones(50)}),
        coverage_curve({"a": np.zeros(9)}, {"a": np.ones(9)}, RNG.normal(size=9)),
        uncertainty_by_distance(RNG.gamma(1, 1, 50), {"a": RNG.gamma(1, 1, 50)}),
        correlation_pictures({"a": np.eye(3)}),
        variance_field(x, {"a": flat}, train=(x, x), unfamiliar=[(0.5, 0.7)], truth=x),
        forest_plot({"far": {"a": Interval(0.5, 0.4, 0.6), "b": Interval(NAN, NAN, NAN)}}, reference=0.5),
    ]


def test_no_setting_and_no_pyplot_figure_is_left_behind():
    before, figures = dict(mpl.rcParams), list(plt.get_fignums())
    for figure in every_figure():
        assert type(figure) is Figure
        picture(figure)
    assert dict(mpl.rcParams) == before
    assert plt.get_fignums() == figures


def test_the_users_settings_do_not_reach_the_report():
    plain = [picture(figure) for figure in every_figure()[-1:]]
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "black"}):
        assert [picture(figure) for figure in every_figure()[-1:]] == plain


def test_a_method_has_one_colour_in_every_figure():
    styles = method_styles(["a", "b", "c"])
    histogram = uncertainty_histograms({"c": {"test": [1.0, 2.0], "far": [3.0, 4.0]}}, styles=styles)
    forest = forest_plot({"far": {"c": Interval(0.5, 0.4, 0.6)}}, styles=styles)
    assert to_hex(histogram.axes[0].patches[-1].get_edgecolor()) == styles["c"].color.lower()
    assert to_hex(forest.axes[0].lines[0].get_color()) == styles["c"].color.lower()


def test_28_methods_have_28_looks():
    styles = method_styles([str(i) for i in range(28)])
    assert len({(s.color, s.line) for s in styles.values()}) == 28


def test_histograms_share_their_bins_and_lose_no_case():
    sets = {"test": RNG.gamma(1, 1, 80), "far": np.concatenate([np.zeros(5), RNG.gamma(9, 1, 60)])}
    figure = uncertainty_histograms({"a": sets, "b": {k: 100 * v for k, v in sets.items()}}, bins=20)
    drawn = [patch for ax in figure.axes for patch in ax.patches]
    assert len(drawn) == 4
    for patch in drawn:
        data = patch.get_data()
        assert np.array_equal(data.edges, drawn[0].get_data().edges)
        assert data.values.sum() == pytest.approx(
            1.0
        )  # zeros below the logarithmic axis are in the first bin


def test_reliability_bins_are_closed_above_and_hold_every_case():
    figure = reliability_diagram({"a": [0.0, 0.2, 0.2001, 1.0]}, {"a": [1, 0, 1, 1]}, bins=5)
    top, bottom = figure.axes
    counts = bottom.patches[0].get_data().values
    assert counts.tolist() == [2, 1, 0, 0, 1]  # 0 and .2 in the first: (lo, hi], closed at 0
    line = top.lines[-1]
    assert line.get_xdata() == pytest.approx([0.1, 0.2001, 1.0])
    assert line.get_ydata() == pytest.approx([0.5, 1.0, 1.0])


def test_reliability_bins_are_those_of_the_calibration_error():
    conf = np.array([0.2, np.float64(np.float32(0.2)), 0.6])  # single and double precision: the same bin
    for bins in (5, 15):
        figure = reliability_diagram({"a": conf}, {"a": [1, 0, 1]}, bins=bins)
        counts = figure.axes[1].patches[0].get_data().values
        assert counts.tolist() == calibration_bins(conf, [1, 0, 1], bins).rows.tolist()


def observed(std: float) -> np.ndarray:
    y = np.random.default_rng(1).normal(size=4000)
    figure = coverage_curve({"a": np.zeros(4000)}, {"a": np.full(4000, std**2)}, y)
    line = figure.axes[0].lines[1]
    return np.max(np.abs(np.asarray(line.get_ydata()) - np.asarray(line.get_xdata())))


def test_coverage_lies_on_the_diagonal_for_the_true_variance_and_off_it_for_the_mutant():
    bound = 4 * math.sqrt(0.25 / 4000)  # four standard errors at the widest level
    assert observed(1.0) < bound
    assert observed(0.8) > bound  # the mutant: a variance a third too small


def test_distance_bins_hold_equal_counts_and_show_the_median():
    far = np.arange(40.0)
    line = uncertainty_by_distance(far, {"a": far + 1}, bins=4).axes[0].lines[0]
    assert line.get_xdata() == pytest.approx([4.5, 14.5, 24.5, 34.5])
    assert line.get_ydata() == pytest.approx([5.5, 15.5, 25.5, 35.5])


def test_correlations_share_one_scale_up_to_the_largest_off_the_diagonal():
    low = np.array([[1, 0.4], [0.4, 1]])
    images = [ax.images[0] for ax in correlation_pictures({"full": np.eye(3), "low": low}).axes if ax.images]
    assert [image.get_clim() for image in images] == [(-0.4, 0.4)] * 2


def test_forest_says_undefined_and_not_measured():
    figure = forest_plot({"near": {"a": Interval(NAN, NAN, NAN), "b": Interval(0.5, 0.4, 0.6)}, "far": {}})
    near, far = ([text.get_text() for text in ax.texts] for ax in figure.axes)
    assert near[0] == "undefined"
    assert far == ["not measured"] * 2


def test_variance_field_has_a_panel_a_method_and_one_below():
    x = np.linspace(-1, 1, 11)
    field = Field(mean=x, total_std=0 * x + 1, epistemic_std=0 * x)
    figure = variance_field(x, {"a": field, "b": field}, train=([0.0], [0.0]), unfamiliar=[(0.5, 0.9)])
    shown = [ax for ax in figure.axes if ax.get_visible()]
    assert len(shown) == 3
    assert all(ax.patches for ax in shown)  # the unfamiliar region is shaded everywhere


def test_dollars_and_underscores_in_names_are_plain_letters():
    picture(forest_plot({"$\\frac{": {"_hidden": Interval(0.5, 0.4, 0.6), "$x^": Interval(0.5, 0.4, 0.6)}}))
    figure = uncertainty_by_distance(np.arange(30.0), {"_hidden": np.arange(1.0, 31.0)})
    assert [text.get_text().strip() for text in figure.legends[0].get_texts()] == ["_hidden"]


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: uncertainty_histograms({}), "at least one method"),
        (lambda: uncertainty_histograms({"a": {"test": np.ones((2, 2))}}), r"expected \(B,\)"),
        (lambda: reliability_diagram({"a": [0.5]}, {"b": [1]}), "expected the same"),
        (lambda: reliability_diagram({"a": [1.5]}, {"a": [1]}), r"expected \[0, 1\]"),
        (lambda: coverage_curve({"a": [0.0]}, {"a": [1.0]}, [[0.0]]), "expected that of y"),
        (lambda: uncertainty_by_distance([], {"a": []}), "at least one case"),
        (lambda: correlation_pictures({"a": np.ones((2, 3))}), r"expected \(d, d\)"),
        (lambda: correlation_pictures({"a": 2 * np.eye(2)}), "not covariances"),
        (lambda: forest_plot({"far": {}}), "no method"),
        (lambda: forest_plot({"far": {"a": Interval(0, 0, 0)}}, styles={}), "no style"),
        (lambda: method_styles(["a", "a"]), "more than once"),
    ],
)
def test_wrong_input_is_refused_in_words(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()
