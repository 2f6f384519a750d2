"""The integrator: reversible, keeps volume, second order; wrong gradients are found by its energy error."""

import pytest
import torch

from singularbayes.sampling.leapfrog import Leapfrog, chosen, evaluated, leapfrog
from singularbayes.sampling.mass import DiagonalMetric
from singularbayes.sampling.target import AutogradTarget


def quartic(q):
    """Not Gaussian, correlated, badly scaled."""
    x, y = q[:, 0] * 10, q[:, 1]
    return -(x**4) / 4 - 0.5 * (y - x) ** 2 + torch.sin(y)


TARGET = AutogradTarget(quartic, 2)
METRIC = DiagonalMetric(torch.tensor([[0.01, 1.5], [0.02, 0.8], [0.01, 1.0]], dtype=torch.float64))
START = torch.tensor([[0.05, -0.4], [-0.1, 1.0], [0.02, 0.3]], dtype=torch.float64)
MOMENTUM = torch.tensor([[3.0, -0.7], [-8.0, 0.4], [5.0, 1.0]], dtype=torch.float64)


def run(step, count, target=TARGET, start=START, momentum=MOMENTUM):
    size = torch.full((3,), step, dtype=torch.float64)
    steps = torch.full((3,), count)
    return Leapfrog()(target, evaluated(target, start), momentum, size, METRIC, steps)


def energy(point, momentum):
    return METRIC.kinetic(momentum) - point.log_density


def test_it_comes_back_when_the_momentum_is_turned():
    point, momentum = run(0.1, 20)
    assert (point.position - START).abs().max() > 0.05
    back, turned = run(0.1, 20, start=point.position, momentum=-momentum)
    torch.testing.assert_close(back.position, START, rtol=0, atol=1e-12)
    torch.testing.assert_close(-turned, MOMENTUM, rtol=0, atol=1e-12)


def orders(target):
    """Energy errors at a fixed time with steps of .1 and .05, as a ratio: 4 for second order."""
    start = energy(evaluated(target, START), MOMENTUM)
    errors = [
        (energy(*run(step, count, target)) - start).abs().max() for step, count in ((0.1, 10), (0.05, 20))
    ]
    return (errors[0] / errors[1]).item()


def test_the_energy_error_is_of_second_order():
    assert 3.5 < orders(TARGET) < 4.6


class Wrong:
    """A gradient that is not that of the log density."""

    dimension = 2

    def __init__(self, change):
        self.change = change

    def __call__(self, position):
        value, gradient = TARGET(position)
        return value, self.change(position, gradient)


WRONG = {
    "momentum is pushed up the energy": lambda q, g: -g,
    "gradient of the mean over 20 data against the energy of the sum": lambda q, g: g / 20,
    "a prior N(0, 1) in the energy alone": lambda q, g: g + q,
    "gradients accumulate": lambda q, g: 2 * g,
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_gradient_leaves_an_error_that_does_not_shrink(name):
    assert not 3.5 < orders(Wrong(WRONG[name])) < 4.6


def determinant(step, kick=0.5):
    """Of the Jacobian of one step of chain 0 in (q, p), dense, by autograd through a closed form."""

    def force(q):
        x, y = q[0] * 10, q[1]
        return torch.stack([(-(x**3) + (y - x)) * 10, -(y - x) + torch.cos(y)])

    def move(z):
        q, p = z[:2], z[2:]
        p = p + step * kick * force(q)
        q = q + step * METRIC.inverse_mass[0] * p
        return torch.cat([q, p + step / 2 * force(q)])

    z = torch.cat([START[0], MOMENTUM[0]])
    size = torch.full((3,), step, dtype=torch.float64)
    point, momentum = leapfrog(TARGET, evaluated(TARGET, START), MOMENTUM, size, METRIC)
    if kick == 0.5:  # the oracle moves as the code does
        torch.testing.assert_close(move(z), torch.cat([point.position[0], momentum[0]]), rtol=0, atol=1e-12)
    return torch.linalg.det(torch.autograd.functional.jacobian(move, z))


def test_volume_is_kept():
    """The Jacobian of the code itself, by finite differences, and of its closed form, by autograd."""
    assert abs(determinant(0.3) - 1) < 1e-12
    size, width = torch.full((3,), 0.3, dtype=torch.float64), 1e-6
    columns = []
    for number in range(4):
        ends = []
        for sign in (1, -1):
            q, p = START.clone(), MOMENTUM.clone()
            (q if number < 2 else p)[0, number % 2] += sign * width
            point, momentum = leapfrog(TARGET, evaluated(TARGET, q), p, size, METRIC)
            ends.append(torch.cat([point.position[0], momentum[0]]))
        columns.append((ends[0] - ends[1]) / (2 * width))
    assert abs(torch.linalg.det(torch.stack(columns, 1)) - 1) < 1e-6


def test_chains_take_as_many_steps_as_they_have_and_wait():
    size = torch.tensor([0.1, 0.05, 0.2], dtype=torch.float64)
    counts = torch.tensor([1, 5, 3])
    point, momentum = Leapfrog()(TARGET, evaluated(TARGET, START), MOMENTUM, size, METRIC, counts)
    for chain, count in enumerate(counts.tolist()):
        one, p = evaluated(TARGET, START[chain : chain + 1]), MOMENTUM[chain : chain + 1]
        for _ in range(count):
            one, p = leapfrog(TARGET, one, p, size[chain : chain + 1], METRIC.of(torch.tensor([chain])))
        torch.testing.assert_close(point.position[chain], one.position[0], rtol=0, atol=1e-14)
        torch.testing.assert_close(point.gradient[chain], one.gradient[0], rtol=0, atol=1e-12)
        torch.testing.assert_close(point.log_density[chain], one.log_density[0], rtol=0, atol=1e-14)
        torch.testing.assert_close(momentum[chain], p[0], rtol=0, atol=1e-14)


def test_a_chain_that_waits_is_not_touched_by_one_that_becomes_nan():
    def cliff(q):
        return torch.where(q[:, 0] > 1, torch.nan, -0.5 * q.square().sum(1))

    target = AutogradTarget(cliff, 2)
    start = torch.tensor([[0.9, 0.0], [-0.5, 0.2]], dtype=torch.float64)
    momentum = torch.tensor([[5.0, 0.0], [0.1, -0.3]], dtype=torch.float64)
    metric, size = DiagonalMetric(torch.ones_like(start)), torch.full((2,), 0.1, dtype=torch.float64)
    point, p = Leapfrog()(target, evaluated(target, start), momentum, size, metric, torch.tensor([6, 2]))
    assert torch.isnan(point.log_density[0])
    assert torch.isfinite(point.position[1]).all()
    assert torch.isfinite(p[1]).all()


def test_chosen_takes_whole_chains():
    first, second = evaluated(TARGET, START), evaluated(TARGET, START + 0.1)
    point = chosen(torch.tensor([True, False, True]), first, second)
    assert torch.equal(point.position, torch.stack([START[0], START[1] + 0.1, START[2]]))
    assert torch.equal(point.log_density[1], second.log_density[1])
    assert torch.equal(point.gradient[[0, 2]], first.gradient[[0, 2]])
