"""Draws along curves: the density against brute-force quadrature, Beta draws against their moments."""

import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import singularbayes as sb
from singularbayes.methods.curve_weights import Along, inverse

UNIFORM = np.random.default_rng(3).random(4000)


def linear_problem() -> tuple[sb.Model, tuple[torch.Tensor, torch.Tensor]]:
    """Two weights, no bias: everything along a curve can be written down."""
    source = torch.Generator().manual_seed(1)
    x = torch.randn(12, 2, generator=source) * torch.tensor([1.0, 3.0])
    y = x @ torch.tensor([0.4, -0.2]) + 0.5 * torch.randn(12, generator=source)
    torch.manual_seed(0)
    return sb.Model(nn.Linear(2, 1, bias=False), sb.Gaussian(noise=1.5), prior=sb.Normal(0.6)), (x, y)


def modes_of(*weights: tuple[float, float]) -> list[nn.Module]:
    found = []
    for pair in weights:
        network = nn.Linear(2, 1, bias=False)
        with torch.no_grad():
            network.weight.copy_(torch.tensor([pair]))
        found.append(network)
    return found


MODES = modes_of((-0.5, 0.1), (0.9, -0.6), (0.3, 0.5))


def method_of(temperature: float, draws: int = 4000) -> sb.ModeCurve:
    return sb.ModeCurve(
        modes=MODES,
        weights=sb.LikelihoodWeights(temperature),
        epochs=30,
        learning_rate=0.02,
        draws=draws,
        points=3,
    )


def quadrature(control: np.ndarray, temperature: float, prior: float, with_speed: bool) -> np.ndarray:
    """Mean and second moments of w on the union of the curves, with 20,001 places each, in plain NumPy."""
    _, (x, y) = linear_problem()
    t = np.linspace(0, 1, 20_001)[:, None]
    levels, points, measures = [], [], []
    for first, bend, last in control:
        w = (1 - t) ** 2 * first + 2 * t * (1 - t) * bend + t**2 * last
        slope = 2 * (1 - t) * (bend - first) + 2 * t * (last - bend)
        errors = y.double().numpy() - w @ x.double().numpy().T
        log_likelihood = (-0.5 * (errors / 1.5) ** 2).sum(1)
        levels.append(log_likelihood / temperature - prior * 0.5 * ((w / 0.6) ** 2).sum(1))
        measures.append(np.linalg.norm(slope, axis=1) if with_speed else np.ones(len(t)))
        points.append(w)
    w = np.concatenate(points)
    level = np.concatenate(levels)
    density = np.exp(level - level.max()) * np.concatenate(measures)
    density /= density.sum()
    mean = density @ w
    return np.concatenate([mean, ((w - mean).T @ (density[:, None] * (w - mean))).ravel()])


@pytest.mark.parametrize("temperature", [1.0, 5.0])
def test_draws_follow_the_posterior_along_the_curves(temperature):
    """Jointly over three curves. 4000 stratified draws: what is left is the grid's error, below 1%.

    Peers that draw t evenly, or leave out T, the prior or |dw/dt|, are further off: they are the mutants.
    """
    method = method_of(temperature)
    model, data = linear_problem()
    control = method.connect(model, data).control.double().numpy()
    w = method.fit(model, data).draw(4000).double().numpy()
    mean = w.mean(0)
    found = np.concatenate([mean, np.cov(w.T, bias=True).ravel()])
    right = quadrature(control, temperature, prior=1.0, with_speed=True)
    assert np.abs(found / right - 1).max() < 0.01
    wrong = {
        "no temperature": (temperature * 3, 1.0, True),
        "no prior": (temperature, 0.0, True),
        "no speed": (temperature, 1.0, False),
    }
    for name, (t, prior, with_speed) in wrong.items():
        assert np.abs(found / quadrature(control, t, prior, with_speed) - 1).max() > 0.02, name


def test_the_shares_of_the_curves_are_their_evidence():
    method = method_of(1.0)
    model, data = linear_problem()
    curves = method.fit(model, data).info["curves"]
    assert math.isclose(sum(curve["share"] for curve in curves), 1, rel_tol=1e-12)
    assert [curve["pair"] for curve in curves] == [[0, 1], [0, 2], [1, 2]]
    assert max(curve["share"] for curve in curves) > 1.5 * min(curve["share"] for curve in curves)


def test_a_steep_density_is_inverted_within_its_cells():
    """log density -200 t on 11 places: 4000 draws follow the exponential law to its quantiles."""
    t = np.linspace(0, 1, 11)
    at = (np.arange(4000) + 0.5) / 4000
    for level, mirrored in ((-200 * t, False), (-200 * (1 - t), True)):
        _, places, _ = inverse(level[None], np.ones((1, 10)), at)
        exact = -np.log1p(at * np.expm1(-200.0)) / 200
        assert np.abs(places - (1 - exact[::-1] if mirrored else exact)).max() < 1e-9


def test_far_apart_levels_neither_overflow_nor_vanish():
    level = np.array([[-1e300, 0.0, -1e5], [700.0, -700.0, 3.0]])
    curve, places, share = inverse(np.maximum(level, -1e4), np.ones((2, 2)), UNIFORM[:10])
    assert np.isfinite(places).all()
    assert np.isclose(share.sum(), 1)
    assert set(curve) == {1}


def test_constant_density_is_uniform():
    _, places, _ = inverse(np.zeros((1, 5)), np.ones((1, 4)), UNIFORM)
    assert np.abs(places - UNIFORM).max() < 1e-12


def test_beta_draws_have_their_moments():
    """Beta(2, 2): mean 1/2, variance 1/20, on each curve equally. Strata leave errors below 1e-3."""
    places = sb.BetaWeights(2, 2).places(None, 3, 3000, UNIFORM[:3000])
    assert np.bincount(places.curve).tolist() == [1000, 1000, 1000]
    for number in range(3):
        t = places.t[places.curve == number]
        assert abs(t.mean() - 0.5) < 1e-3
        assert abs(t.var() - 1 / 20) < 1e-3
    even = sb.BetaWeights(1, 1).places(None, 3, 3000, UNIFORM[:3000]).t
    assert abs(even.var() - 1 / 20) > 0.03, "the uniform law must fail"


def test_beta_draws_lie_on_the_trained_curves():
    modes = modes_of((-0.8, 0.6), (1.2, 0.9))  # the optimum lies to one side of the line between them
    method = sb.ModeCurve(modes=modes, weights=sb.BetaWeights(), epochs=30, learning_rate=0.02, draws=500)
    model, data = linear_problem()
    control = method.connect(model, data).control[0]
    w = method.fit(model, data).draw(500)
    t = torch.linspace(0, 1, 20_001).unsqueeze(1)
    curve = (1 - t) ** 2 * control[0] + 2 * t * (1 - t) * control[1] + t**2 * control[2]
    nearest = torch.cdist(w, curve).min(1)
    assert nearest.values.max() < 1e-3, "straight-line mixing is no posterior"
    line = torch.lerp(control[0], control[2], t)
    assert torch.cdist(w, line).min(1).values.max() > 0.05
    places = t[nearest.indices, 0].double()
    assert abs(places.mean() - 0.5) < 2e-3
    assert abs(places.var() - 1 / 20) < 2e-3


def test_a_density_narrower_than_the_grid_is_warned_of():
    level = -1e4 * (np.linspace(0, 1, 11) - 0.5) ** 2
    along = Along(100 * level[None], 0 * level[None], np.ones((1, 10)))
    with pytest.warns(UserWarning, match=r"one cell of the grid holds \d+% of the mass"):
        sb.LikelihoodWeights().places(along, 1, 8, UNIFORM[:8])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sb.LikelihoodWeights(1e4).places(along, 1, 8, UNIFORM[:8])


def test_no_likelihood_anywhere_is_an_error():
    along = Along(np.full((1, 5), np.nan), np.zeros((1, 5)), np.ones((1, 4)))
    with pytest.raises(ValueError, match="no likelihood along the curves is finite"):
        sb.LikelihoodWeights().places(along, 1, 8, UNIFORM[:8])


def test_curves_without_length_are_an_error():
    along = Along(np.zeros((1, 5)), np.zeros((1, 5)), np.zeros((1, 4)))
    with pytest.raises(ValueError, match="nowhere above 0"):
        sb.LikelihoodWeights().places(along, 1, 8, UNIFORM[:8])


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.inf, math.nan])
def test_the_temperature_is_checked(temperature):
    with pytest.raises(ValueError, match="temperature must be positive and finite"):
        sb.LikelihoodWeights(temperature)


@pytest.mark.parametrize(("a", "b"), [(0.0, 1.0), (1.0, -2.0), (math.inf, 1.0)])
def test_the_beta_law_is_checked(a, b):
    with pytest.raises(ValueError, match="positive, finite a and b"):
        sb.BetaWeights(a, b)
