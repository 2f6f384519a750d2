"""Curves between two networks: ends, slopes against finite differences, and the gradients of their bends."""

import math

import pytest
import torch
from torch import nn
from torch.func import functional_call

import singularbayes as sb
from singularbayes.methods.curve_learner import BuildCurve, CurveLearner
from singularbayes.methods.curves import slerp, speed
from singularbayes.methods.learner import Bound

CURVES = [sb.Bezier(), sb.Bezier(3), sb.Polychain(), sb.Polychain(2)]
T = torch.linspace(0.01, 0.99, 56, dtype=torch.float64)  # no corner of a chain among them


def control_of(curve, size: int = 6) -> torch.Tensor:
    source = torch.Generator().manual_seed(2)
    scale = torch.logspace(-2, 2, size, dtype=torch.float64)  # badly scaled
    return torch.randn(curve.bends + 2, size, generator=source, dtype=torch.float64) * scale + 100


@pytest.mark.parametrize("curve", CURVES, ids=repr)
def test_a_curve_begins_and_ends_at_its_networks(curve):
    weights = curve.weights(torch.tensor([0.0, 1.0], dtype=torch.float64))
    expected = torch.zeros(2, curve.bends + 2, dtype=torch.float64)
    expected[0, 0] = expected[1, -1] = 1
    assert torch.equal(weights, expected)


@pytest.mark.parametrize("curve", CURVES, ids=repr)
def test_coefficients_sum_to_one_and_are_not_negative(curve):
    weights = curve.weights(T)
    assert weights.min() >= 0
    assert torch.allclose(weights.sum(1), torch.ones_like(T), atol=1e-14)


def test_the_bezier_curve_of_one_bend_is_the_papers():
    first, bend, last = control_of(sb.Bezier())
    t = T.unsqueeze(1)
    expected = (1 - t) ** 2 * first + 2 * t * (1 - t) * bend + t**2 * last
    assert torch.allclose(sb.Bezier().weights(T) @ control_of(sb.Bezier()), expected, rtol=1e-13)


def test_a_chain_passes_its_corners_at_even_times():
    points = sb.Polychain(2).weights(torch.tensor([1 / 3, 2 / 3, 0.5], dtype=torch.float64))
    expected = torch.tensor([[0, 1, 0, 0], [0, 0, 1, 0], [0, 0.5, 0.5, 0]], dtype=torch.float64)
    assert torch.allclose(points, expected, atol=1e-14)


@pytest.mark.parametrize("curve", CURVES, ids=repr)
def test_slopes_and_speed_are_the_finite_differences(curve):
    control, h = control_of(curve), 1e-6
    difference = (curve.weights(T + h) - curve.weights(T - h)) / (2 * h)
    assert torch.allclose(curve.slopes(T), difference, atol=1e-8)
    assert torch.allclose(speed(curve, T, control), (difference @ control).norm(dim=1), rtol=1e-6)


def test_the_speed_survives_float32_networks_far_from_zero():
    """|dw/dt| of near networks around 100: inner products of the points themselves would cancel to noise."""
    control = torch.tensor([[100.0, 100.0], [100.001, 100.002], [100.003, 100.001]])
    exact = (sb.Bezier().slopes(T) @ control.double()).norm(dim=1)
    assert torch.allclose(speed(sb.Bezier(), T, control), exact, rtol=1e-6)


def test_the_arc_keeps_the_norm_and_turns_evenly():
    ends = torch.tensor([[2.0, 0.0, 0.0], [1.0, math.sqrt(3), 0.0]], dtype=torch.float64)  # 60 degrees
    points = slerp(T, ends) @ ends
    assert torch.allclose(points.norm(dim=1), torch.full_like(T, 2.0), atol=1e-12)
    assert torch.allclose(torch.atan2(points[:, 1], points[:, 0]), T * math.pi / 3, atol=1e-12)


@pytest.mark.parametrize("last", [[1.0, 1.0], [3.0, 3.0], [-1.0, -1.0]])
def test_the_arc_of_parallel_or_opposite_ends_is_the_line(last):
    ends = torch.tensor([[1.0, 1.0], last], dtype=torch.float64)
    assert torch.equal(slerp(T, ends), torch.stack([1 - T, T], 1))


@pytest.mark.parametrize("bends", [0, -1, True, 1.5])
@pytest.mark.parametrize("kind", [sb.Bezier, sb.Polychain])
@pytest.mark.usefixtures("unchecked")
def test_the_number_of_bends_is_checked(kind, bends):
    with pytest.raises(ValueError, match=rf"{kind.__name__}\(bends\) must be a whole number"):
        kind(bends)


# The learner


def learner_of(curve) -> tuple[CurveLearner, sb.Model, torch.Tensor]:
    torch.manual_seed(4)
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    model = sb.Model(network, sb.Categorical(), prior=sb.Normal(0.7), deterministic="0.bias")
    source = torch.Generator().manual_seed(5)
    ends = torch.randn(2, model.layout.trained, generator=source, dtype=torch.float64)
    build = BuildCurve(curve, ends)
    start = model.layout.flatten(network)
    gradient = torch.zeros(build.size(model), dtype=torch.float64)
    return build(Bound(model, torch.device("cpu"), gradient, start), start, gradient), model, ends


@pytest.mark.parametrize("curve", CURVES, ids=repr)
def test_the_bends_gradient_is_autograds(curve):
    """Of mean NLL - (T/N) log p at one place; also for several bends, whose gradients share memory."""
    learner, model, ends = learner_of(curve)
    x = torch.randn(9, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
    y = (x[:, 0] > 0).long()
    weight, t = 0.3, torch.tensor([0.37], dtype=torch.float64)
    learner._go(t)
    learner.gradient.zero_()
    nn.functional.cross_entropy(learner.bound.network(x), y).backward()
    learner.finish(weight, 0.0)

    bends = learner.vector.detach().clone().view(curve.bends, -1).requires_grad_()
    w = (curve.weights(t) @ torch.cat([ends[:1], bends, ends[1:]]))[0]
    loss = nn.functional.cross_entropy(functional_call(model.network, model.layout.views(w), x), y)
    (loss - weight * model.log_prior(w)).backward()
    assert torch.allclose(learner.gradient, bends.grad.flatten(), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("curve", CURVES, ids=repr)
def test_training_begins_on_the_straight_line(curve):
    learner, _, ends = learner_of(curve)
    points, t = curve.weights(T) @ learner.control, T.unsqueeze(1)
    assert torch.allclose(points, (1 - t) * ends[0] + t * ends[1], atol=1e-12)


def test_places_are_drawn_evenly():
    """Mean and variance of 4000 t within 4 standard errors (false alarm 1e-4): U(0, 1), not U(0, .5)."""
    learner, _, ends = learner_of(sb.Polychain())
    source, change = torch.Generator().manual_seed(7), ends[1] - ends[0]
    t = []
    for _ in range(4000):
        learner.draw(source)  # on the straight line still
        t.append(((learner.bound.w - ends[0]) @ change / (change @ change)).item())
    t = torch.tensor(t, dtype=torch.float64)
    assert abs(t.mean() - 1 / 2) < 4 * math.sqrt(1 / 12 / 4000)
    assert abs((t - 1 / 2).square().mean() - 1 / 12) < 4 * math.sqrt((1 / 80 - 1 / 144) / 4000)
