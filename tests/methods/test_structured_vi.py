"""Structured VI: a step against dense float64 autograd, optima against the dense KL, mutants."""

import math

import numpy as np
import pytest
import torch
import torch.distributions as td
import torch.nn.functional as F
from scipy import optimize
from torch import Tensor, nn

import singularbayes as sb
from singularbayes.divergence import KL
from singularbayes.methods import roots, structured_vi
from singularbayes.methods.covariances import Covariance
from singularbayes.methods.learner import Bound
from singularbayes.methods.structured_vi import BuildStructured, StructuredLearner
from singularbayes.priors import Laplace, Normal, PerParameter, ScaleMixture
from singularbayes.testing import CLAUSES, check_method

COVARIANCES: dict[str, Covariance] = {
    "low rank": sb.LowRankPlusDiagonal(rank=2),
    "Kronecker": sb.Kronecker(),
    "Kronecker and low rank": sb.KroneckerPlusLowRank(rank=3),
    "Kronecker of short sides": sb.Kronecker(longest_side=3),  # the first weight has a side of 4
    "full": sb.FullCovariance(),
}
MIXTURE = ScaleMixture(pi=0.3, std1=0.8, std2=0.1)
PRIORS = {
    "normal": (Normal(0.7), None),
    "normal by draws": (Normal(0.7), KL.MONTE_CARLO),
    "per parameter": (PerParameter({"0.weight": Normal(0.3), "*bias": Laplace(0.3), "*": Normal(2.0)}), None),
    "bounds": (PerParameter({"0.weight": MIXTURE, "*bias": Laplace(0.3), "*": Normal(2.0)}), KL.BOUND),
    "mixed": (PerParameter({"0.weight": MIXTURE, "*bias": Laplace(0.3), "*": Normal(2.0)}), None),
    "mixture by draws": (MIXTURE, None),
}


def small() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1)).double()


def learner_of(method: sb.StructuredVI, model: sb.Model, seed: int = 0) -> StructuredLearner:
    start = model.layout.flatten(model.network, model.likelihood.parameters)
    build = BuildStructured(method, seed)
    gradient = torch.zeros(build.size(model), dtype=start.dtype)
    return build(Bound(model, torch.device("cpu"), gradient, start), start, gradient)


# The root, dense, from the trained vector: by definition, entry by entry


def triangle(numbers: Tensor, side: int) -> Tensor:
    square = numbers.view(side, side)
    return F.softplus(square.diagonal()).diag() @ (torch.eye(side, dtype=numbers.dtype) + square.tril(-1))


def dense_root(covariance: Covariance, model: sb.Model, numbers: Tensor) -> Tensor:
    blocks, at = [], 0
    for site in covariance.sites(model.layout.of_kind("belief")):
        size = site.entries.stop - site.entries.start
        if not site.sides:
            blocks.append(F.softplus(numbers[at : at + size]).diag())
            at += size
            continue
        block = torch.ones(1, 1, dtype=numbers.dtype)
        for side in site.sides:
            block = torch.kron(block, triangle(numbers[at : at + side**2], side))
            at += side**2
        blocks.append(block)
    assert at == len(numbers)
    return torch.block_diag(*blocks)


def dense_draw(learner: StructuredLearner, vector: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Means, dense covariance and the draw at the learner's noise."""
    d, trained, k = learner.beliefs, learner.trained, learner.rank
    numbers, factor = vector[trained:].split([len(vector) - trained - k * d, k * d])
    root, factor = dense_root(learner.method.covariance, learner.bound.model, numbers), factor.view(k, d)
    own, shared = learner.noise[:d], learner.noise[d:]
    draw = vector[:d] + root @ own + root @ factor.T @ shared
    return vector[:d], root @ root.T + root @ factor.T @ factor @ root.T, draw


def log_prior(prior, w: Tensor) -> Tensor:
    """By torch's distributions."""
    match prior:
        case Normal():
            return td.Normal(w.new_tensor(0.0), prior.std).log_prob(w)
        case Laplace():
            return td.Laplace(w.new_tensor(0.0), prior.scale).log_prob(w)
    stds = w.new_tensor([prior.std1, prior.std2])
    mixing = td.Categorical(w.new_tensor([prior.pi, 1 - prior.pi]))
    return td.MixtureSameFamily(mixing, td.Normal(torch.zeros_like(stds), stds)).log_prob(w)


def dense_kl(learner: StructuredLearner, mean: Tensor, covariance: Tensor, draw: Tensor) -> Tensor:
    """From torch's multivariate normal; with Normal priors alone it is torch's ``kl_divergence`` itself."""
    q = td.MultivariateNormal(mean, covariance)
    blocks = [(b, p, learner.method.estimator(p)) for b, p in learner.bound.model.prior_blocks]
    if all(isinstance(p, Normal) and kl is KL.CLOSED for _, p, kl in blocks):
        stds = torch.cat([mean.new_full((b.stop - b.start,), p.std) for b, p, _ in blocks])
        return td.kl_divergence(q, td.MultivariateNormal(torch.zeros_like(mean), torch.diag(stds**2)))
    total, std = -q.entropy(), covariance.diagonal().sqrt()
    for block, prior, kl in blocks:
        marginal = td.Normal(mean[block], std[block])
        zero = torch.zeros_like(mean[block])
        if kl is KL.MONTE_CARLO:
            total = total - log_prior(prior, draw[block]).sum()
        elif isinstance(prior, ScaleMixture):
            parts = [math.log(weight) - td.kl_divergence(marginal, td.Normal(zero, s))
                     for weight, s in ((prior.pi, prior.std1), (1 - prior.pi, prior.std2))]  # fmt: skip
            total = total + (marginal.entropy() - torch.logsumexp(torch.stack(parts), 0)).sum()
        elif isinstance(prior, Normal):
            total = (
                total + (marginal.entropy() + td.kl_divergence(marginal, td.Normal(zero, prior.std))).sum()
            )
        else:
            share = torch.erf(mean[block] / std[block] / math.sqrt(2))  # E|w| of a Gaussian
            size = std[block] * math.sqrt(2 / math.pi) * torch.exp(-0.5 * (mean[block] / std[block]) ** 2)
            size = size + mean[block] * share
            total = total + (size / prior.scale + math.log(2 * prior.scale)).sum()
    return total


def step_and_autograd(
    covariance: str, prior: str, likelihood=None, weight: float = 0.37, **choice
) -> tuple[Tensor, Tensor]:
    """The gradient that a step leaves, and autograd's of the objective written out densely."""
    which, kl = PRIORS[prior]
    model = sb.Model(small(), likelihood or sb.Gaussian(initial_noise=0.6), prior=which, **choice)
    method = sb.StructuredVI(kl=kl, covariance=COVARIANCES[covariance])
    learner = learner_of(method, model)
    source = torch.Generator().manual_seed(8)
    learner.vector.add_(0.4 * torch.randn(len(learner.vector), generator=source, dtype=torch.float64))
    x = torch.randn(5, 4, generator=source, dtype=torch.float64)
    y = torch.randn(5, generator=source, dtype=torch.float64)
    learner.draw(torch.Generator().manual_seed(2))
    learner.gradient.zero_()
    bound = learner.bound
    model.likelihood.loss(bound.network(x), y, bound.likelihood_numbers).backward()
    learner.finish(weight, 1.0)

    vector = learner.vector.detach().clone().requires_grad_()
    mean, dense, draw = dense_draw(learner, vector)
    row = torch.cat([draw, vector[len(draw) : learner.trained]])
    outputs = torch.func.functional_call(small(), model.layout.views(row), (x,))
    loss = model.likelihood.loss(outputs, y, model.layout.likelihood_views(row))
    exact = torch.autograd.grad(loss + weight * dense_kl(learner, mean, dense, draw), vector)[0]
    return learner.gradient, exact


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_the_gradient_of_a_step_is_autograds(covariance, prior):
    step, exact = step_and_autograd(covariance, prior)
    assert exact.count_nonzero() > 0.5 * len(exact)  # the rest: the empty halves of triangles
    assert (step - exact).abs().max() < 1e-9 * exact.abs().max()


@pytest.mark.parametrize("choice", [{"deterministic": "*bias"}, {"bayesian": ["0.*", "4.bias"]}])
@pytest.mark.parametrize("covariance", ["low rank", "Kronecker and low rank", "full"])
def test_points_and_frozen_parts_leave_the_gradient_autograds(covariance, choice):
    step, exact = step_and_autograd(covariance, "normal", **choice)
    assert (step - exact).abs().max() < 1e-9 * exact.abs().max()


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_the_kl_is_the_dense_one(covariance, prior):
    which, kl = PRIORS[prior]
    method = sb.StructuredVI(kl=kl, covariance=COVARIANCES[covariance])
    learner = learner_of(method, sb.Model(small(), sb.Gaussian(noise=0.5), prior=which))
    source = torch.Generator().manual_seed(8)
    learner.vector.add_(0.4 * torch.randn(len(learner.vector), generator=source, dtype=torch.float64))
    before = learner.regulariser()  # before the first draw, whose noise is then 0
    exact = dense_kl(learner, *dense_draw(learner, learner.vector)).item()
    assert before == pytest.approx(exact, abs=1e-9)
    learner.draw(torch.Generator().manual_seed(2))
    exact = dense_kl(learner, *dense_draw(learner, learner.vector)).item()
    assert learner.regulariser() == pytest.approx(exact, abs=1e-9)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_the_distribution_draws_what_training_drew(covariance):
    model = sb.Model(small(), sb.Gaussian(noise=0.5), deterministic="4.bias")
    learner = learner_of(sb.StructuredVI(covariance=COVARIANCES[covariance]), model)
    learner.vector.add_(0.4 * torch.randn_like(learner.vector))
    learner.draw(torch.Generator().manual_seed(2))
    distribution = learner.distribution()
    own, shared = learner.noise[: learner.beliefs], learner.noise[learner.beliefs :]
    points = distribution.noise_size - learner.beliefs - learner.rank  # whose noise counts nothing
    noise = torch.cat([own, torch.ones(points, dtype=torch.float64), shared])
    assert torch.allclose(distribution.sample(noise.unsqueeze(0))[0], learner.bound.w, atol=1e-12)
    learner.vector.add_(0.1)  # an optimiser's step after the draw
    distribution = learner.distribution()
    mean, dense, _ = dense_draw(learner, learner.vector)
    assert torch.allclose(distribution.variance[: len(mean)], dense.diagonal())
    assert torch.equal(distribution.variance[len(mean) :], torch.zeros(1, dtype=torch.float64))


# Variants that are wrong on purpose


def without_log_det(patch) -> None:
    for piece in (roots.Independent, roots.Triangle):
        right = piece.finish
        patch.setattr(piece, "finish", lambda self, weight, right=right: right(self, 0.0))


def without_log_det_of_the_low_rank_part(patch) -> None:
    zero = lambda self: torch.eye(self.rank, dtype=torch.float64) * math.inf  # noqa: E731 - whose inverse is 0
    patch.setattr(StructuredLearner, "_capacity", zero)
    patch.setattr(structured_vi.torch.linalg, "inv", torch.zeros_like)


def transposed_factor(patch) -> None:
    patch.setattr(roots.Triangular, "times", lambda self, rows: rows @ self.factor.matrix)


def transposed_side(patch) -> None:
    def times(self, rows):
        return (self.left.matrix @ self._matrices(rows) @ self.right.matrix).flatten(1)

    patch.setattr(roots.Matrix, "times", times)


def sides_swapped_in_the_log_det(patch) -> None:
    def finish(self, weight):
        self.left.finish(weight * self.left.side)
        self.right.finish(weight * self.right.side)

    patch.setattr(roots.Matrix, "finish", finish)


def sides_swapped_in_the_gradient(patch) -> None:
    def pull_variance(self, gradient):
        by = gradient.view(self.left.side, self.right.side)
        left, right = self.left.matrix, self.right.matrix
        self.left.gradient.addcmul_(left, (by @ right.square().sum(0)).unsqueeze(1), value=2)
        self.right.gradient.addcmul_(right, (left.square().sum(0) @ by).unsqueeze(1), value=2)

    patch.setattr(roots.Matrix, "pull_variance", pull_variance)


def low_rank_noise_of_each_tensor(patch) -> None:
    # methods.md 10: an independent low-rank z per tensor
    right = StructuredLearner.place

    def place(self):
        right(self)
        slot = self.slots[-1]
        shared = torch.randn(self.rank, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        own = self.noise.clone()
        own[self.beliefs :] = shared
        mixed = torch.addmv(own[: self.beliefs], self.factor.T, shared)
        other = self.mean + self.root.times(mixed.unsqueeze(0))[0]
        self.weights[slot.start : slot.stop] = other[slot.start : slot.stop]

    patch.setattr(StructuredLearner, "place", place)


def kl_averaged(patch) -> None:
    right = StructuredLearner.finish
    patch.setattr(
        StructuredLearner, "finish", lambda self, w, progress: right(self, w / self.beliefs, progress)
    )


WRONG = {
    "no log det": (without_log_det, "low rank"),
    "no log det of factors": (without_log_det, "Kronecker"),
    "no log det of the low-rank part": (without_log_det_of_the_low_rank_part, "Kronecker and low rank"),
    "Cholesky factor transposed": (transposed_factor, "full"),
    "a side transposed": (transposed_side, "Kronecker"),
    "log det of swapped sides": (sides_swapped_in_the_log_det, "Kronecker"),
    "variances of swapped sides": (sides_swapped_in_the_gradient, "Kronecker"),
    "low-rank noise of each tensor": (low_rank_noise_of_each_tensor, "low rank"),
    "KL averaged": (kl_averaged, "full"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_step_fails_the_gradient_test(wrong, monkeypatch):
    change, covariance = WRONG[wrong]
    change(monkeypatch)
    step, exact = step_and_autograd(covariance, "bounds")  # variances count apart for each entry
    assert (step - exact).abs().max() > 1e-3 * exact.abs().max()  # where the right step has 1e-9


@pytest.mark.parametrize("covariance", ["low rank", "Kronecker", "full"])
def test_the_other_direction_of_the_kl_fails_the_gradient_test(covariance, monkeypatch):
    right = td.kl_divergence
    monkeypatch.setattr(td, "kl_divergence", lambda q, p: right(p, q))
    step, exact = step_and_autograd(covariance, "normal", weight=3.0)
    assert (step - exact).abs().max() > 1e-2 * exact.abs().max()


# A correlated, badly scaled Gaussian target: which member of each family is reached

SIZE, NOISE, PRIOR_STD = 8, 0.5, 2.0


class Flat(nn.Module):
    """Linear in all of its parameters: their posterior is Gaussian, its precision that of the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((2, 3), 0.3, dtype=torch.float64))
        self.shift = nn.Parameter(torch.full((2,), 0.3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x @ torch.cat([self.weight.flatten(), self.shift])


def target(precision: Tensor) -> tuple[Tensor, Tensor, td.MultivariateNormal]:
    """Data whose posterior under the prior has this precision, and that posterior."""
    prior = torch.eye(SIZE, dtype=torch.float64) / PRIOR_STD**2
    x = NOISE * torch.linalg.cholesky(precision - prior).T.contiguous()
    y = x @ torch.linspace(-1, 1, SIZE, dtype=torch.float64)
    mean = torch.linalg.solve(precision, x.T @ y / NOISE**2)
    return x, y, td.MultivariateNormal(mean, precision_matrix=precision)


def rotated() -> Tensor:
    """Eigenvalues from 1 to 1,000 in random directions: condition number 1e3."""
    source = torch.Generator().manual_seed(3)
    turn = torch.linalg.qr(torch.randn(SIZE, SIZE, generator=source, dtype=torch.float64))[0]
    return turn @ torch.logspace(0, 3, SIZE, dtype=torch.float64).diag() @ turn.T


def scaled() -> Tensor:
    """Standard deviations from .03 to .3, correlations up to .77: condition number 340."""
    source = torch.Generator().manual_seed(3)
    turn = torch.linalg.qr(torch.randn(SIZE, SIZE, generator=source, dtype=torch.float64))[0]
    covariance = turn @ torch.logspace(-1, 0.3, SIZE, dtype=torch.float64).diag() @ turn.T
    std = torch.tensor([0.03, 0.3, 0.1, 0.05, 0.2, 0.3, 0.04, 0.15], dtype=torch.float64)
    std = std / covariance.diagonal().sqrt()
    return torch.linalg.inv(std.unsqueeze(1) * covariance * std)


def lower(numbers: Tensor, side: int) -> Tensor:
    """A Cholesky factor with exponentials on its diagonal: not the library's numbers."""
    at = torch.tril_indices(side, side, -1)
    square = torch.zeros(side, side, dtype=torch.float64)
    return square.index_put((at[0], at[1]), numbers[side:]) + numbers[:side].exp().diag()


def low_rank(numbers: Tensor, rank: int) -> Tensor:
    factor = numbers.view(SIZE, rank)
    return factor @ factor.T


def kronecker(numbers: Tensor) -> Tensor:
    factor = torch.kron(lower(numbers[:3], 2), lower(numbers[3:9], 3))
    return torch.block_diag(factor @ factor.T, numbers[9:].exp().diag())


def cholesky(numbers: Tensor) -> Tensor:
    factor = lower(numbers, SIZE)
    return factor @ factor.T


FAMILIES = {
    "rank 1": (sb.LowRankPlusDiagonal(rank=1), lambda v: v[:8].exp().diag() + low_rank(v[8:], 1), 16),
    "rank 2": (sb.LowRankPlusDiagonal(rank=2), lambda v: v[:8].exp().diag() + low_rank(v[8:], 2), 24),
    "rank 8": (sb.LowRankPlusDiagonal(rank=8), cholesky, 36),  # enough for any covariance
    "Kronecker": (sb.Kronecker(), kronecker, 11),
    "Kronecker and rank 1": (
        sb.KroneckerPlusLowRank(rank=1),
        lambda v: kronecker(v[:11]) + low_rank(v[11:], 1),
        19,
    ),
    "full": (sb.FullCovariance(), cholesky, 36),
}
FACTORISED = 6.473184039  # nats from the rotated target to its best independent Gaussian


def minimised(objective, start: np.ndarray, relative: float = 1e-14):
    options = {"maxiter": 20_000, "maxfun": 40_000, "ftol": relative, "gtol": 1e-9}
    return optimize.minimize(objective, start, jac=True, method="L-BFGS-B", options=options)


def family_optimum(build, count: int, precision: Tensor) -> float:
    """The least KL to the target within a family, in nats: dense, by autograd and L-BFGS."""

    def objective(numbers: np.ndarray) -> tuple[float, np.ndarray]:
        v = torch.tensor(numbers, requires_grad=True)
        covariance = build(v)
        log_dets = torch.logdet(covariance) + torch.logdet(precision)
        kl = 0.5 * ((precision @ covariance).trace() - SIZE - log_dets)
        return kl.item(), torch.autograd.grad(kl, v)[0].numpy()

    starts = [0.3 * np.random.default_rng(seed).normal(size=count) for seed in range(2)]
    return min(minimised(objective, start).fun for start in starts)


def distance(distribution, posterior: td.MultivariateNormal) -> float:
    """KL from a fitted distribution to the exact posterior, its covariance by drawing unit noises."""
    shifts = distribution.sample(torch.eye(distribution.noise_size, dtype=torch.float64)) - distribution.mean
    return td.kl_divergence(td.MultivariateNormal(distribution.mean, shifts.T @ shifts), posterior).item()


def descended(covariance: Covariance, precision: Tensor, relative: float = 1e-8) -> float:
    """KL to the posterior where the learner's own expected objective is least.

    The loss is quadratic in the noise, so the mean over ``+- sqrt(M) e_i`` is its exact expectation. Its
    gradient for the weights is written down: the loop's own is the business of the tests above.
    """
    x, y, posterior = target(precision)
    model = sb.Model(Flat(), sb.Gaussian(noise=NOISE), prior=Normal(PRIOR_STD))
    learner = learner_of(sb.StructuredVI(covariance=covariance), model)
    points = math.sqrt(len(learner.noise)) * torch.eye(len(learner.noise), dtype=torch.float64)
    points = torch.cat([points, -points])

    def objective(numbers: np.ndarray) -> tuple[float, np.ndarray]:
        learner.vector.copy_(torch.from_numpy(numbers))
        gradient, value = torch.zeros_like(learner.gradient), learner.regulariser() / SIZE
        for noise in points:
            learner.noise.copy_(noise)
            learner.place()
            residual = x @ learner.weights - y
            learner.gradient.zero_()[:SIZE] = x.T @ residual / (SIZE * NOISE**2)
            learner.finish(1 / SIZE, 1.0)
            gradient += learner.gradient / len(points)
            value += residual.square().mean().item() / (2 * NOISE**2 * len(points))
        return value, gradient.numpy()

    learner.mean.copy_(posterior.mean)  # which is known, and shared by all families
    found = minimised(objective, learner.vector.numpy().copy(), relative)
    learner.vector.copy_(torch.from_numpy(found.x))
    return distance(learner.distribution(), posterior)


_SLOW = ("rank 1", "rank 2", "rank 8", "Kronecker and rank 1")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in _SLOW else n for n in FAMILIES]
)
def test_the_objective_is_least_at_the_best_member_of_its_family(name):
    covariance, build, count = FAMILIES[name]
    best = family_optimum(build, count, rotated())
    assert best < FACTORISED - 0.5
    found = descended(covariance, rotated(), 1e-8 if name not in _SLOW else 1e-10)
    assert found == pytest.approx(best, abs=5e-3)  # rank 2 has a flat valley; at 1e-15 they are 1e-11 apart


def test_a_log_det_at_half_weight_has_its_optimum_elsewhere(monkeypatch):
    finish, log_det = roots.Matrix.finish, roots.Matrix.log_det
    monkeypatch.setattr(roots.Matrix, "finish", lambda self, weight: finish(self, weight / 2))
    monkeypatch.setattr(roots.Matrix, "log_det", lambda self: log_det(self) / 2)
    covariance, build, count = FAMILIES["Kronecker"]
    assert descended(covariance, rotated()) > family_optimum(build, count, rotated()) + 0.05


def fitted(covariance: Covariance, **settings) -> float:
    x, y, posterior = target(scaled())
    defaults = {"epochs": 1500, "batch_size": SIZE, "learning_rate": 0.05, "initial_std": 0.3}
    method = sb.StructuredVI(covariance=covariance, schedule=sb.Schedule.COSINE, **{**defaults, **settings})
    model = sb.Model(Flat(), sb.Gaussian(noise=NOISE), prior=Normal(PRIOR_STD))
    return distance(method.fit(model, (x, y)).distribution, posterior)


# Training stops short of the optimum by what its noisy steps leave: .24 nats after 700, .07 to .35 after
# 1,500 (seed 0). The best independent Gaussian is .57 above the best of rank 1, 1.52 above the posterior.
@pytest.mark.parametrize(
    ("name", "short", "steps"),
    [
        ("rank 1", 0.45, {"epochs": 700, "learning_rate": 0.1}),
        pytest.param("full", 0.15, {}, marks=pytest.mark.slow),
        pytest.param("rank 2", 0.6, {}, marks=pytest.mark.slow),
        pytest.param("rank 8", 0.6, {}, marks=pytest.mark.slow),
        pytest.param("Kronecker", 0.15, {}, marks=pytest.mark.slow),
        pytest.param("Kronecker and rank 1", 0.2, {}, marks=pytest.mark.slow),
    ],
)
def test_a_fit_comes_near_the_best_member_of_its_family(name, short, steps):
    covariance, build, count = FAMILIES[name]
    best = family_optimum(build, count, scaled())
    found = fitted(covariance, **steps)
    assert best - 1e-9 <= found < best + short


# The conjugate regression of methods.md 9: prior variance 1, noise variance .25

INPUTS = torch.tensor([[-1.0], [-0.5], [0.5], [1.5], [2.0], [3.0]])
LABELS = torch.tensor([-1.1, -1.0, 0.2, 0.9, 1.4, 2.3])
MEAN = torch.tensor([0.853125, -0.31875], dtype=torch.float64)  # weight, bias
EXACT = torch.tensor([[0.020559, -0.018092], [-0.018092, 0.055921]], dtype=torch.float64)
LOG_EVIDENCE = -5.492971647
MEAN_FIELD_ELBO = -5.660502381


def elbo(mean: Tensor, covariance: Tensor) -> float:
    design = torch.cat([INPUTS, torch.ones(6, 1)], 1).double()
    residual = (LABELS.double() - design @ mean).square() + ((design @ covariance) * design).sum(1)
    likelihood = (-0.5 * residual / 0.25 - 0.5 * math.log(2 * math.pi * 0.25)).sum()
    prior = td.MultivariateNormal(torch.zeros(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64))
    return (likelihood - td.kl_divergence(td.MultivariateNormal(mean, covariance), prior)).item()


def test_the_elbo_of_the_exact_posterior_is_the_log_evidence():
    learner = learner_of(
        sb.StructuredVI(covariance=sb.FullCovariance()),
        sb.Model(nn.Linear(1, 1).double(), sb.Gaussian(noise=0.5)),
    )
    design = torch.cat([INPUTS, torch.ones(6, 1)], 1).double()
    covariance = torch.linalg.inv(design.T @ design / 0.25 + torch.eye(2, dtype=torch.float64))
    assert torch.allclose(covariance, EXACT, atol=5e-7)
    factor = torch.linalg.cholesky(covariance)
    std = factor.diagonal()
    numbers = (factor / std.unsqueeze(1)).tril(-1) + torch.log(torch.expm1(std)).diag()
    learner.vector[2:] = numbers.flatten()
    learner.mean.copy_(covariance @ design.T @ LABELS.double() / 0.25)
    assert torch.allclose(learner.mean, MEAN)
    residual = (LABELS.double() - design @ learner.mean).square() + ((design @ covariance) * design).sum(1)
    likelihood = (-0.5 * residual / 0.25 - 0.5 * math.log(2 * math.pi * 0.25)).sum().item()
    assert likelihood - learner.regulariser() == pytest.approx(LOG_EVIDENCE, abs=1e-7)  # labels in float32


# What noisy steps leave: after 1,200 up to 9% in the covariance, .038 in the means and .017 in the ELBO over
# seeds 0-2 (4%, .016, .003 with seed 0), after 3,000 4%, .008 and .0015; a low rank up to 15%.
@pytest.mark.parametrize(
    ("covariance", "relative", "steps"),
    [
        (sb.FullCovariance(), 0.15, {"epochs": 1200, "learning_rate": 0.03}),
        pytest.param(sb.FullCovariance(), 0.1, {}, marks=pytest.mark.slow),
        pytest.param(sb.LowRankPlusDiagonal(rank=1), 0.25, {}, marks=pytest.mark.slow),
        pytest.param(sb.LowRankPlusDiagonal(rank=2), 0.25, {}, marks=pytest.mark.slow),
    ],
)
def test_a_fit_reaches_the_conjugate_posterior(covariance, relative, steps):
    torch.manual_seed(0)
    settings = {"epochs": 3000, "batch_size": 6, "learning_rate": 0.02, "initial_std": 0.3, **steps}
    method = sb.StructuredVI(covariance=covariance, schedule=sb.Schedule.COSINE, **settings)
    model = sb.Model(nn.Linear(1, 1), sb.Gaussian(noise=0.5))
    distribution = method.fit(model, (INPUTS, LABELS)).distribution
    shifts = distribution.sample(torch.eye(distribution.noise_size).double()) - distribution.mean
    found, mean = shifts.T @ shifts, distribution.mean.double()
    assert (found / EXACT - 1).abs().max() < relative
    assert (mean - MEAN).abs().max() < 0.03
    assert LOG_EVIDENCE - 0.02 < elbo(mean, found) < LOG_EVIDENCE + 1e-6
    independent = torch.tensor([0.0147058824, 0.04], dtype=torch.float64).diag()  # mean field's optimum
    assert elbo(MEAN, independent) == pytest.approx(MEAN_FIELD_ELBO, abs=1e-6)  # and .17 below


# Through the loop: the contract, files, structures, bad input


@pytest.mark.parametrize("covariance", ["low rank", "Kronecker", "Kronecker and low rank", "full"])
def test_it_keeps_the_contract(covariance):
    method = sb.StructuredVI(epochs=2, covariance=COVARIANCES[covariance])
    assert check_method(method) == list(CLAUSES)


def factorised() -> nn.Module:
    torch.manual_seed(3)
    mlp = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 2))
    return sb.factorize(mlp, rank={"0": 2, "2": 3})


X = torch.randn(40, 4, generator=torch.Generator().manual_seed(3)) * torch.tensor([1.0, 10.0, 0.1, 1.0])
Y = (X[:, 0] > 0).long()


@pytest.mark.parametrize("covariance", ["low rank", "Kronecker and low rank"])
def test_it_keeps_the_contract_on_factors(covariance):
    method = sb.StructuredVI(epochs=1, covariance=COVARIANCES[covariance])
    options = {"network": factorised(), "likelihood": sb.Categorical(), "data": (X, Y)}
    assert check_method(method, **options) == list(CLAUSES)


def test_low_rank_lies_across_layers_and_points_have_no_width():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2))
    model = sb.Model(network, sb.Gaussian(), deterministic="3.bias")
    method = sb.StructuredVI(epochs=3, covariance=sb.LowRankPlusDiagonal(rank=3))
    posterior = method.fit(model, (X, X[:, :2]))
    distribution, layout = posterior.distribution, posterior.layout
    first, last = (slot for slot in layout.slots if slot.name in ("0.weight", "3.weight"))
    joint = distribution.factor[first.start : first.stop] @ distribution.factor[last.start : last.stop].T
    assert joint.abs().max() > 1e-4  # the mutant, a low-rank noise for each tensor, has 0
    assert not distribution.factor[layout.belief :].any()
    assert not distribution.std[layout.belief :].any()
    statistics = layout.of_kind("statistic")
    assert all(posterior.draw(1)[0, s.start : s.stop].abs().max() > 0 for s in statistics)  # and they moved


def test_the_start_has_the_documented_width():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(1000, 10), nn.Linear(10, 10))
    network[1].weight.data.mul_(20)
    model = sb.Model(network, sb.Gaussian(noise=1.0))
    for covariance, extra in ((sb.Kronecker(), 0.0), (sb.LowRankPlusDiagonal(rank=50), 0.1)):
        learner = learner_of(sb.StructuredVI(covariance=covariance), model)
        std = learner.distribution().variance.sqrt()
        for slot in model.layout.of_kind("belief"):
            own = network.get_parameter(slot.name).detach().square().mean().sqrt()
            found = std[slot.start : slot.stop].square().mean().sqrt()
            wanted = 0.1 * own * math.sqrt(1 + extra)
            assert (found / wanted).item() == pytest.approx(1, abs=0.02)  # .1 chi-squared / 50 in 10 entries


def test_extreme_numbers_stay_finite():
    # trap 6: rho in {-100 .. 1000}, float32
    for covariance in COVARIANCES.values():
        network = small().float()
        learner = learner_of(
            sb.StructuredVI(covariance=covariance), sb.Model(network, sb.Gaussian(noise=0.5))
        )
        for value in (-100.0, 30.0):
            for piece in learner.root.pieces:
                if isinstance(piece, roots.Independent):
                    piece.rho.fill_(value)
                else:
                    for factor in vars(piece).values():
                        factor.numbers.diagonal().fill_(value)
            learner.draw(torch.Generator().manual_seed(0))
            learner.gradient.zero_()
            learner.finish(0.1, 1.0)
            assert learner.gradient.isfinite().all()
            assert math.isfinite(learner.regulariser())


def test_it_counts_what_it_trains():
    model = sb.Model(small(), sb.Gaussian(noise=0.5), deterministic="4.bias")
    d, trained = model.layout.belief, model.layout.trained
    triangles = (6 + 10) + (3 + 6) + 3  # sides 3 and 4, 2 and 3, and 2 of the weight (1, 2)
    wanted = {
        "low rank": d + 2 * d,
        "Kronecker": triangles + 5,
        "Kronecker and low rank": triangles + 5 + 3 * d,
        "full": d * (d + 1) // 2,
    }
    for name, count in wanted.items():
        method = sb.StructuredVI(epochs=1, covariance=COVARIANCES[name])
        info = method.fit(model, (X.double(), X[:, 0].double())).info
        assert info["numbers"] == trained + count, name


def test_weights_with_a_long_side_are_named():
    info = sb.StructuredVI(epochs=1, covariance=COVARIANCES["Kronecker of short sides"]).fit(
        sb.Model(small(), sb.Gaussian(noise=0.5)), (X.double(), X[:, 0].double())
    ).info  # fmt: skip
    assert info["independent"] == ["0.weight"]


def test_a_resumed_fit_has_the_same_numbers(tmp_path):
    model = sb.Model(factorised(), sb.Categorical())
    covariance = sb.KroneckerPlusLowRank(rank=2)
    whole = sb.StructuredVI(epochs=4, covariance=covariance).fit(model, (X, Y), seed=1)
    sb.StructuredVI(epochs=2, covariance=covariance).fit(model, (X, Y), seed=1, checkpoint=tmp_path)
    method = sb.StructuredVI(epochs=4, covariance=covariance)
    assert torch.equal(method.fit(model, (X, Y), seed=1, checkpoint=tmp_path).draw(2), whole.draw(2))


def test_a_network_too_large_for_a_full_covariance_is_refused_with_what_to_use():
    model = sb.Model(nn.Linear(2000, 1), sb.Gaussian(noise=1.0))
    with pytest.raises(
        ValueError, match=r"up to 2,000 believed entries, and this network has 2,001; use LowRank"
    ):
        sb.StructuredVI(covariance=sb.FullCovariance()).fit(model, (torch.randn(4, 2000), torch.randn(4)))


def test_bad_input_is_named(unchecked):
    model = sb.Model(nn.Linear(4, 2), sb.Categorical())
    for rank in (0, 1.5):
        with pytest.raises(ValueError, match="rank must be a whole number of at least 1"):
            sb.LowRankPlusDiagonal(rank=rank)
    with pytest.raises(ValueError, match="longest_side must be a whole number"):
        sb.Kronecker(longest_side=0)
    with pytest.raises(ValueError, match="rank=11 is above the 10 believed entries"):
        sb.StructuredVI(covariance=sb.LowRankPlusDiagonal(rank=11)).fit(model, (X, Y))
    for wrong in (sb.Kronecker, "kronecker"):
        with pytest.raises(TypeError, match="covariance must be an object such as"):
            sb.StructuredVI(covariance=wrong)
    with pytest.raises(ValueError, match="no believed tensor has Kronecker factors here: weight"):
        sb.StructuredVI(covariance=sb.Kronecker(longest_side=3)).fit(model, (X, Y))
    biases = sb.Model(nn.Linear(4, 2), sb.Categorical(), deterministic="weight")
    with pytest.raises(ValueError, match=r"all are vectors; use LowRankPlusDiagonal\(\)"):
        sb.StructuredVI(covariance=sb.Kronecker()).fit(biases, (X, Y))
    mixture = sb.Model(nn.Linear(4, 2), sb.Categorical(), prior=ScaleMixture())
    with pytest.raises(ValueError, match="no closed form"):
        sb.StructuredVI(kl=KL.CLOSED, covariance=sb.FullCovariance()).fit(mixture, (X, Y))
    learned = sb.Model(nn.Linear(4, 2), sb.Categorical(), prior=ScaleMixture(learned=True))
    with pytest.raises(ValueError, match="does not learn a prior's numbers"):
        sb.StructuredVI(covariance=sb.FullCovariance()).fit(learned, (X, Y))
    with pytest.raises(ValueError, match="initial_std must be positive"):
        sb.StructuredVI(initial_std=0.0)
