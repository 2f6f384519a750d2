"""Trees against a slow one that keeps every point, and against what they must leave invariant."""

import math

import numpy as np
import pytest
import torch

from singularbayes.sampling import Point
from singularbayes.sampling.leapfrog import evaluated
from singularbayes.sampling.low_rank_mass import LowRankMetric
from singularbayes.sampling.mass import DiagonalMetric, UnitMetric
from singularbayes.sampling.target import AutogradTarget
from singularbayes.sampling.trees import grown

MAX_DEPTH = 6


# The slow tree: one chain, float64, dense matrices, all leaves in a list, every subtree by slices


class Slow:
    """One step of one chain. ``log_density`` gives value and gradient of one row."""

    def __init__(self, log_density, inverse_mass, step_size, max_depth):
        self.log_density, self.inverse_mass = log_density, inverse_mass
        self.step_size, self.max_depth = step_size, max_depth

    def energy(self, q, p):
        return p @ self.inverse_mass @ p / 2 - self.log_density(q)[0]

    def next(self, q, p, direction):
        e = direction * self.step_size
        p = p + e / 2 * self.log_density(q)[1]
        q = q + e * self.inverse_mass @ p
        return q, p + e / 2 * self.log_density(q)[1]

    def turned(self, leaves):
        """Of a stretch in the order of time, and of its halves with one point of the other."""
        half = len(leaves) // 2
        for part in (leaves, leaves[: half + 1], leaves[half - 1 :]):
            rho = sum(p for _, p in part)
            if min(part[0][1] @ self.inverse_mass @ rho, part[-1][1] @ self.inverse_mass @ rho) <= 0:
                return True
        return False

    def grow(self, q, p, directions, joins, uniforms):
        start = self.energy(q, p)
        tree, chosen, weight = [(q, p)], (q, 0.0), 1.0
        acceptance, depth, divergent = [], 0, False
        for level in range(self.max_depth):
            new, good = [], True
            their, their_weight = None, 0.0
            at = tree[-1] if directions[level] > 0 else tree[0]
            for leaf in range(2**level):
                at = self.next(*at, directions[level])
                error = self.energy(*at) - start
                bad = not (-np.inf < error <= 1000)
                acceptance.append(0.0 if bad else min(1.0, np.exp(-error)))
                if bad:
                    good, divergent = False, True
                    break
                new.append(at)
                their_weight += np.exp(-error)
                if uniforms[level][leaf] < np.exp(-error) / their_weight:
                    their = (at[0], error)
                sizes = [2**k for k in range(1, level + 1) if (leaf + 1) % 2**k == 0]
                in_time = new if directions[level] > 0 else new[::-1]
                for size in sizes:
                    part = in_time[-size:] if directions[level] > 0 else in_time[:size]
                    good = good and not self.turned(part)
                if not good:
                    break
            if not good:
                return chosen, depth, acceptance, divergent, False
            depth += 1
            if joins[level] < their_weight / weight:
                chosen = their
            weight += their_weight
            tree = tree + new if directions[level] > 0 else new[::-1] + tree
            if self.turned(tree):
                return chosen, depth, acceptance, divergent, False
        return chosen, depth, acceptance, divergent, True


def noise(source, chains, max_depth):
    """The numbers that a step draws, in its order."""
    seed = torch.randint(2**63 - 1, (), generator=source)
    own = torch.Generator().manual_seed(int(seed))

    def uniform(columns):
        return torch.rand(chains, columns, generator=own, dtype=torch.float64)

    directions, joins = uniform(max_depth).lt(0.5) * 2.0 - 1, uniform(max_depth)
    return directions.numpy(), joins.numpy(), [uniform(2**level).numpy() for level in range(max_depth)]


def banana(q):
    """Correlated, curved, scales 1 and .3; far out it is so steep that steps diverge."""
    bent = q[:, 1] - q[:, 0] ** 2
    return -0.5 * q[:, 0] ** 2 - 0.5 * (bent / 0.3) ** 2 - 0.5 * (q[:, 2] - 0.9 * q[:, 0]) ** 2 / 0.19


def banana_row(q):
    bent, last = q[1] - q[0] ** 2, q[2] - 0.9 * q[0]
    value = -0.5 * q[0] ** 2 - 0.5 * (bent / 0.3) ** 2 - 0.5 * last**2 / 0.19
    slope = np.array([-q[0] + 2 * q[0] * bent / 0.09 + 0.9 * last / 0.19, -bent / 0.09, -last / 0.19])
    return value, slope


def metrics(chains):
    source = torch.Generator().manual_seed(8)
    u = torch.linalg.qr(torch.randn(chains, 3, 1, generator=source, dtype=torch.float64)).Q
    scale = torch.rand(chains, 3, generator=source, dtype=torch.float64) + 0.5
    low_rank = LowRankMetric(scale, u, torch.full((chains, 1), 4.0, dtype=torch.float64))
    return [UnitMetric(torch.ones(chains, 3).double()), DiagonalMetric(scale.square()), low_rank]


@pytest.mark.parametrize("kind", [0, 1, 2], ids=["unit", "diagonal", "low rank"])
@pytest.mark.filterwarnings("ignore:overflow|invalid value:RuntimeWarning")  # of the slow tree's divergences
def test_trees_are_those_of_the_slow_recursion(kind):
    # The same random numbers: leaves agree, positions to rounding (which long steps blow up), chain by chain.
    # Among the 96 trees are all ways to end: a turn inside a doubling or of the whole tree, a divergence, the
    # greatest depth.
    chains, target = 8, AutogradTarget(banana, 3)
    metric = metrics(chains)[kind]
    identity = torch.eye(3, dtype=torch.float64)
    inverse = torch.stack([metric.velocity(row.expand(chains, 3)) for row in identity], 1).numpy()
    step_size = torch.logspace(-2, 0.1, chains, dtype=torch.float64)
    source = torch.Generator().manual_seed(kind)
    point = evaluated(target, torch.randn(chains, 3, generator=source, dtype=torch.float64))
    ends = []
    for _ in range(12):
        momentum = metric.draw(source)
        before = source.get_state()
        tree = grown(target, point, momentum, step_size, metric, MAX_DEPTH, source)
        source.set_state(before)
        directions, joins, uniforms = noise(source, chains, MAX_DEPTH)
        for c in range(chains):
            slow = Slow(banana_row, inverse[c], step_size[c].item(), MAX_DEPTH)
            rows = [u[c] for u in uniforms]
            q, p = point.position[c].numpy(), momentum[c].numpy()
            (at, error), depth, acceptance, divergent, cut = slow.grow(q, p, directions[c], joins[c], rows)
            assert (tree.gradients[c], tree.depth[c]) == (len(acceptance), depth)
            assert (tree.divergent[c], tree.cut[c]) == (divergent, cut)
            np.testing.assert_allclose(tree.point.position[c], at, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(tree.energy_error[c], error, rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(tree.acceptance[c], np.mean(acceptance), rtol=1e-4, atol=1e-6)
            whole = len(acceptance) == 2**depth - 1
            ends.append("divergent" if divergent else "cut" if cut else "whole" if whole else "inside")
        values = evaluated(target, tree.point.position)
        torch.testing.assert_close(tree.point.log_density, values.log_density)
        torch.testing.assert_close(tree.point.gradient, values.gradient)
        point = tree.point
    assert all(ends.count(way) >= 3 for way in ("divergent", "cut", "whole", "inside")), ends


# What a tree must leave invariant


class Still(DiagonalMetric):
    """On purpose wrong: no kinetic energy."""

    def kinetic(self, momentum):
        return torch.zeros(len(momentum), dtype=torch.float64)


def covariance(d, scales):
    """Correlated and badly scaled."""
    source = torch.Generator().manual_seed(d)
    a = torch.randn(d, 2 * d, generator=source, dtype=torch.float64)
    s = torch.logspace(-scales, scales, d, dtype=torch.float64)[torch.randperm(d, generator=source)]
    return s.unsqueeze(1) * (a @ a.mT / d + 0.05) * s


def steps_of(target, start, metric, step_size, steps, max_depth=7, seed=0):
    source = torch.Generator().manual_seed(seed)
    point = evaluated(target, start)
    size = torch.full((len(start),), step_size, dtype=torch.float64)
    with torch.no_grad():
        for _ in range(steps):
            point = grown(target, point, metric.draw(source), size, metric, max_depth, source).point
    return point.position


def gaussian_error(metric_class, d, chains, steps):
    """Largest gap of whitened means and second moments, in standard errors; chains start at 2 sd."""
    c = covariance(d, 1.5)
    precision, root = torch.linalg.inv(c), torch.linalg.cholesky(c)
    target = AutogradTarget(lambda q: -0.5 * ((q @ precision) * q).sum(1), d)
    start = (root @ torch.full((d,), 2.0, dtype=torch.float64)).expand(chains, d)
    metric = metric_class(c.diagonal().expand(chains, d).clone())
    end = steps_of(target, start, metric, 0.45 if d == 2 else 0.3, steps)
    white = torch.linalg.solve_triangular(root, end.mT, upper=False).mT
    mean = white.mean(0) * math.sqrt(chains)
    moments = white.mT @ white / chains - torch.eye(d, dtype=torch.float64)
    moments = moments / ((1 + torch.eye(d, dtype=torch.float64)) / chains).sqrt()
    return max(mean.abs().max(), moments.abs().max()).item()


@pytest.mark.parametrize(("d", "chains", "steps"), [(2, 4000, 12), (20, 1500, 12)])
@pytest.mark.usefixtures("unchecked")  # annotations take most of the time
def test_chains_from_far_out_end_as_the_gaussian(d, chains, steps):
    # Independent chains: exact standard errors. 4 of them: 5 numbers at d = 2, false alarm .03%, 230 at
    # d = 20, 1.5% (fixed seeds). Without the kinetic energy the weights are those of p(q) alone: tens off.
    assert gaussian_error(DiagonalMetric, d, chains, steps) < 4
    assert gaussian_error(Still, d, chains, steps) > 8


@pytest.mark.usefixtures("unchecked")  # annotations take most of the time
def test_a_banana_has_the_quantiles_of_numerical_integration():
    # x ~ N(0, 1), y | x ~ N(x^2 / 2, .25). Independent chains: binomial standard errors, 4 of them at 18
    # quantiles: false alarm .1%.
    chains, steps = 2500, 12
    start = torch.tensor([0.5, -0.5], dtype=torch.float64).expand(chains, 2)

    def mild(q):
        return -0.5 * q[:, 0].square() - 2 * (q[:, 1] - q[:, 0].square() / 2).square()

    metric = UnitMetric(torch.ones(chains, 2, dtype=torch.float64))
    end = steps_of(AutogradTarget(mild, 2), start, metric, 0.25, steps, max_depth=5)
    x = torch.linspace(-9, 9, 20001, dtype=torch.float64)
    density = torch.exp(-0.5 * x.square())
    density = density / density.sum()
    normal = torch.distributions.Normal(0.0, 1.0)
    cuts = torch.tensor([-1.3, -0.7, -0.2, 0.0, 0.3, 0.8, 1.2, 1.9, 2.6], dtype=torch.float64)
    for column, (mean, std) in enumerate([(x, 1e-9), (x.square() / 2, 0.5)]):
        for cut in cuts:
            expected = (density * normal.cdf(((cut - mean) / std).float()).double()).sum().item()
            got = (end[:, column] <= cut).double().mean().item()
            sd = math.sqrt(expected * (1 - expected) / chains)
            assert abs(got - expected) < 4 * sd + 1e-4, (column, cut, got, expected)


# Chains by themselves, and what goes wrong


@pytest.mark.usefixtures("unchecked")  # annotations take most of the time
def test_a_chain_does_not_depend_on_what_the_others_do():
    # elementwise arithmetic, so bit for bit: noise is drawn for all chains whatever their trees do
    scale = torch.tensor([1.0, 0.1, 3.0], dtype=torch.float64)
    target = AutogradTarget(lambda q: -0.5 * (q / scale).square().sum(1) - q.pow(4).sum(1) / 4, 3)
    source = torch.Generator().manual_seed(0)
    start = torch.randn(5, 3, generator=source, dtype=torch.float64) * scale
    metric = DiagonalMetric(torch.ones(5, 3, dtype=torch.float64))
    elsewhere = start.clone()
    elsewhere[1:] = 20 * start[1:]  # they diverge, or turn at once
    size = torch.full((5,), 0.15, dtype=torch.float64)
    points, gradients = [], []
    for rows in (start, elsewhere):
        own, point = torch.Generator().manual_seed(1), evaluated(target, rows)
        for _ in range(12):
            tree = grown(target, point, metric.draw(own), size, metric, 6, own)
            point = tree.point
        points.append(point.position)
        gradients.append(tree.gradients)
    assert torch.equal(points[0][0], points[1][0])
    assert not torch.equal(gradients[0][1:], gradients[1][1:])


class Undivided:
    """Each chain has a target of its own, and all are always asked."""

    dimension = 2

    def __init__(self, precisions):
        self.precisions = precisions

    def __call__(self, position):
        slope = -self.precisions * position
        return (slope * position).sum(1) / 2, slope


class Divided(Undivided):
    """Each chain has a target of its own; those that are through must not be asked about."""

    def __init__(self, precisions, asked):
        super().__init__(precisions)
        self.asked = asked

    def of(self, chains):
        return Divided(self.precisions[chains], self.asked)

    def __call__(self, position):
        assert len(position) == len(self.precisions)
        assert torch.isfinite(position).all()
        self.asked.append(len(position))
        return super().__call__(position)


def test_a_divisible_target_is_asked_about_the_chains_that_grow_and_no_others():
    source = torch.Generator().manual_seed(0)
    precisions = torch.tensor([[1.0, 1.0], [100.0, 0.01], [1.0, 4.0], [0.0025, 0.0025]], dtype=torch.float64)
    start = torch.randn(4, 2, generator=source, dtype=torch.float64)
    metric = UnitMetric(torch.ones(4, 2, dtype=torch.float64))
    size = torch.full((4,), 0.15, dtype=torch.float64)
    found, asked = [], []
    for target in (Undivided(precisions), Divided(precisions, asked)):
        own, point, leaves = torch.Generator().manual_seed(1), evaluated(target, start), 0
        asked.clear()
        for _ in range(6):
            tree = grown(target, point, metric.draw(own), size, metric, 5, own)
            point, leaves = tree.point, leaves + int(tree.gradients.sum())
        found.append(point.position)
    assert sum(asked) == leaves
    assert set(asked) >= {1, 4}
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("value", [-math.inf, math.nan, math.inf])
def test_chains_whose_every_step_leaves_the_density_stay_and_are_counted(value):
    # numpyro's issue 1678: a nan energy must be a rejected divergence
    def target(position):
        return torch.full((len(position),), value, dtype=torch.float64), torch.zeros_like(position)

    target.dimension = 2
    start = Point(torch.ones(3, 2), torch.zeros(3, dtype=torch.float64), torch.zeros(3, 2))
    metric, source = UnitMetric(torch.ones(3, 2)), torch.Generator().manual_seed(0)
    tree = grown(target, start, metric.draw(source), torch.ones(3).double(), metric, 10, source)
    assert torch.equal(tree.point.position, start.position)
    assert tree.divergent.all()
    assert tree.acceptance.tolist() == [0, 0, 0]
    assert tree.gradients.tolist() == [1, 1, 1]
    assert tree.energy_error.tolist() == [0, 0, 0]
    assert not tree.cut.any()


def test_a_trajectory_that_never_turns_is_cut_at_the_greatest_depth_and_says_so():
    target = AutogradTarget(lambda q: -0.5 * q.square().sum(1), 3)
    metric, source = UnitMetric(torch.ones(2, 3)), torch.Generator().manual_seed(0)
    sizes = torch.tensor([1e-4, 0.5], dtype=torch.float64)
    tree = grown(target, evaluated(target, torch.ones(2, 3)), metric.draw(source), sizes, metric, 5, source)
    assert tree.cut.tolist() == [True, False]
    assert tree.gradients[0] == 31
    assert tree.depth[0] == 5
