"""Trace and rank plots, and where a report has them."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from torch import nn

import singularbayes as sb
from singularbayes.distributions import StoredDraws
from singularbayes.posterior import Posterior
from singularbayes.report import chain_panels, picture, rank_plot, trace_plot

RNG = np.random.default_rng(0)


def bars(axes) -> list[np.ndarray]:
    """Heights above the base of each chain's row."""
    return [patch.get_data().baseline - patch.get_data().values for patch in axes.patches]


def test_traces_have_a_line_for_each_chain_and_a_row_for_each_quantity():
    figure = trace_plot({"a": RNG.normal(size=(3, 50)), "b": RNG.normal(size=(2, 50))})
    axes = figure.get_axes()
    assert len(axes) == 4
    assert [len(ax.lines) for ax in axes] == [3, 0, 2, 0]
    assert axes[0].get_title(loc="left") == "a"
    assert axes[0].lines[0].get_xdata()[0] == 1


def test_long_traces_are_thinned_and_many_chains_cut():
    figure = trace_plot({"a": RNG.normal(size=(20, 2500))})
    lines = figure.get_axes()[0].lines
    assert len(lines) == 12
    assert lines[0].get_xdata().tolist()[:3] == [1, 4, 7]
    np.testing.assert_array_equal(lines[0].get_ydata().shape, (834,))


def test_rows_of_ranks_show_which_chain_stands_apart():
    draws = RNG.normal(size=(4, 1000))
    draws[2] += 2
    heights = bars(rank_plot({"a": draws}, bins=10).get_axes()[0])
    assert len(heights) == 4
    assert heights[2][-1] > 2 * heights[2][4] > 0
    even = bars(rank_plot({"a": RNG.normal(size=(4, 1000))}, bins=10).get_axes()[0])
    assert np.ptp(np.concatenate(even)) < 0.2


def test_constant_and_broken_draws_can_be_drawn():
    for draws in (
        np.zeros((2, 30)),
        np.full((2, 30), np.nan),
        np.where(RNG.random((2, 30)) < 0.1, np.inf, 1.0),
    ):
        picture(trace_plot({"a": draws}))
        picture(rank_plot({"a": draws}))


def test_no_pyplot_figure_is_left_behind():
    before = list(plt.get_fignums())
    trace_plot({"a": RNG.normal(size=(2, 9))}), rank_plot({"a": RNG.normal(size=(2, 9))})
    assert plt.get_fignums() == before


def test_wrong_draws_are_named():
    with pytest.raises(ValueError, match="quantities is empty"):
        trace_plot({})
    with pytest.raises(ValueError, match=r"'a' have shape \(4,\); expected \(chains, draws\)"):
        rank_plot({"a": np.zeros(4)})
    with pytest.raises(ValueError, match="bins must be at least 1"):
        rank_plot({"a": np.zeros((2, 4))}, bins=0)


def sampled(shift: float) -> Posterior:
    torch.manual_seed(0)
    model = sb.Model(nn.Linear(2, 1), sb.Gaussian(noise=1.0))
    rows = 0.1 * torch.randn(60, 3, 3, generator=torch.Generator().manual_seed(0))
    rows[:, 1, 0] += shift
    info = {"chains": 3, "draws_per_chain": 60}
    return Posterior(
        model.copy_network(), StoredDraws(rows.flatten(0, 1)), model.likelihood, model.layout, info
    )


def test_sampled_posteriors_alone_have_panels_of_the_predictions_that_mix_worst():
    """Chain 1 has another weight on the first input: its largest value is where chains disagree most."""
    x = torch.zeros(500, 2)
    x[:, 0] = torch.linspace(0, 1, 500)
    plain = sb.MAP(epochs=1).fit(sb.Model(nn.Linear(2, 1), sb.Gaussian(noise=1.0)), (x, x[:, 0]))
    panels = chain_panels({"MAP": plain, "HMC": sampled(1.0)}, x)
    assert [panel.title for panel in panels] == ["Chains of HMC, draw by draw", "Chains of HMC, ranked"]
    title = panels[0].figure.get_axes()[0].get_title(loc="left")
    case = int(title.split(":")[0].removeprefix("case "))
    assert case % 3 == 0, "numbers of the data, of which every third was looked at"
    assert case > 300
    assert "the 3 of 167 predictions" in panels[0].caption
    assert chain_panels({"MAP": plain}, x) == ()
