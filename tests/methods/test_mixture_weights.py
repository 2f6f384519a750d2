"""Weights of a mixture's members: stacking against scipy and a known truth, evidence, what is refused."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.stats import norm

import singularbayes as sb
from singularbayes.methods.mixture_weights import stacked
from singularbayes.predictive import GaussianPredictive

KEY = "log_marginal_likelihood"


class Fixed:
    """A fitted member with the density of N(centre, std^2), whatever the input."""

    def __init__(self, centre: float, std: float, **info) -> None:
        self.centre, self.std, self.info = centre, std, {"method": "fixed", **info}
        self.likelihood, self.support = sb.Gaussian(noise=std), 1

    def predict(self, x, draws=64, seed=0, batch_size=None):
        means = torch.full((1, len(x)), self.centre, dtype=torch.float64)
        return GaussianPredictive(means, torch.full_like(means, self.std**2))


def objective(log_densities: np.ndarray, weights: np.ndarray) -> float:
    best = log_densities.max(0)
    return float((np.log(weights @ np.exp(log_densities - best)) + best).mean())


def by_scipy(log_densities: np.ndarray) -> np.ndarray:
    members = len(log_densities)
    found = minimize(
        lambda w: -objective(log_densities, w),
        np.full(members, 1 / members),
        method="SLSQP",
        bounds=[(1e-12, 1)] * members,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    return found.x / found.x.sum()


@pytest.mark.parametrize(
    ("members", "rows", "scale"),
    [(2, 50, 1.0), (3, 200, 0.3), (5, 1000, 2.0), (20, 20, 3.0), (3, 500, 60.0), (8, 300, 1.0), (4, 1, 1.0)],
)
def test_stacking_reaches_the_optimum_that_scipy_finds(members, rows, scale):
    source = np.random.default_rng(members)
    shared = source.normal(size=rows)  # members that are alike, one of them bad
    log_densities = scale * (
        shared + source.normal(size=(members, rows)) * np.linspace(0.5, 2, members)[:, None]
    )
    log_densities[0] -= scale
    weights = stacked(log_densities)
    assert weights.min() >= 0
    assert weights.sum() == pytest.approx(1, abs=1e-12)
    density = np.exp(log_densities - log_densities.max(0))
    assert (density / (weights @ density)).mean(1).max() - 1 < 1e-8  # no direction goes up by more
    reference = by_scipy(log_densities)
    assert objective(log_densities, weights) >= objective(log_densities, reference) - 1e-8
    np.testing.assert_allclose(weights, reference, atol=1e-4)
    alone = log_densities.mean(1)
    assert objective(log_densities, weights) >= alone.max() - 1e-9
    if rows > members and scale < 10:  # mutants: best member alone, mean log density as the objective
        assert objective(log_densities, weights) > alone.max() + 1e-4
        softmax = np.exp(rows * (alone - alone.max()))
        assert objective(log_densities, weights) > objective(log_densities, softmax / softmax.sum()) + 1e-4


def test_a_member_that_helps_no_other_gets_exactly_zero():
    source = np.random.default_rng(0)
    good = source.normal(size=(2, 400))
    weights = stacked(np.vstack([good, good.min(0) - 0.5]))
    assert weights[2] == 0
    assert (weights[:2] > 0.1).all()


def test_equal_members_have_any_weights_and_the_optimum_all_the_same():
    source = np.random.default_rng(1)
    one, two = source.normal(size=(2, 300))
    twice = stacked(np.stack([one, two, one]))
    assert twice[0] + twice[2] == pytest.approx(stacked(np.stack([one, two]))[0], abs=1e-5)


def test_rows_that_some_members_rule_out_count_and_rows_that_all_rule_out_are_named():
    weights = stacked(np.array([[0.0, -np.inf, 0.0], [-np.inf, 0.0, -1.0]]))
    np.testing.assert_allclose(weights, by_scipy(np.array([[0.0, -300, 0.0], [-300, 0.0, -1.0]])), atol=1e-6)
    with pytest.raises(ValueError, match="validation row 1 is -inf for every member"):
        stacked(np.array([[0.0, -np.inf], [0.0, -np.inf]]))
    with pytest.raises(ValueError, match="validation row 0 is nan"):
        stacked(np.array([[np.nan, 0.0], [0.0, 0.0]]))


MEMBERS = [Fixed(0.0, 1.0), Fixed(1.5, 0.7), Fixed(-1.0, 2.0)]


def data_from(weights: list[float], n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    source = np.random.default_rng(seed)
    which = source.choice(3, size=n, p=weights)
    centre, std = (np.array([getattr(m, name) for m in MEMBERS])[which] for name in ("centre", "std"))
    return torch.zeros(n, 1), torch.from_numpy(centre + std * source.normal(size=n))


def error_of(weights: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Standard errors of the weights by the Fisher information on the simplex (the first one is the rest)."""
    densities = np.stack([norm.pdf(y, m.centre, m.std) for m in MEMBERS])
    scores = (densities[1:] - densities[0]) / (weights @ densities)
    covariance = np.linalg.inv(scores @ scores.T)
    ends = np.vstack([-np.ones(2), np.eye(2)])
    return np.sqrt(np.diag(ends @ covariance @ ends.T))


def test_stacking_recovers_the_weights_that_made_the_data():
    truth = np.array([0.5, 0.3, 0.2])
    x, y = data_from(list(truth), 4000)
    weights = np.array(sb.Stacked().of(MEMBERS, (x, y), seed=0))
    assert (np.abs(weights - truth) < 4 * error_of(truth, y.numpy())).all()  # false alarm 2e-4
    alone = np.stack([norm.logpdf(y.numpy(), m.centre, m.std) for m in MEMBERS]).mean(1)
    wrong = np.exp(len(y) * (alone - alone.max()))  # mutant: weights by the members' own log densities
    assert (np.abs(wrong / wrong.sum() - truth) > 4 * error_of(truth, y.numpy())).any()


def test_a_member_that_is_the_truth_gets_all_the_weight():
    x, y = data_from([1.0, 0.0, 0.0], 4000)
    weights = np.array(sb.Stacked().of(MEMBERS, (x, y), seed=0))
    assert 1 - weights[0] < 4 * error_of(np.array([1.0, 0.0, 0.0]), y.numpy())[0]  # false alarm 3e-5
    few = np.array(sb.Stacked().of(MEMBERS[1:], (x, y), seed=0))
    assert objective_of(MEMBERS, weights, y) > objective_of(MEMBERS[1:], few, y) + 0.02


def objective_of(members: list[Fixed], weights: np.ndarray, y: torch.Tensor) -> float:
    return objective(np.stack([norm.logpdf(y.numpy(), m.centre, m.std) for m in members]), weights)


def test_by_evidence_is_the_softmax_whatever_the_size():
    members = [Fixed(0, 1, log_marginal_likelihood=e, num_data=50) for e in (-70_000.0, -70_001.5, -70_003.0)]
    expected = np.exp([0, -1.5, -3.0]) / np.exp([0, -1.5, -3.0]).sum()
    np.testing.assert_allclose(sb.ByEvidence().of(members, None, 0), expected, rtol=1e-9)
    per_datum = np.exp([0, -1.5 / 50, -3 / 50])  # mutant: evidence for each example
    assert abs(per_datum[0] / per_datum.sum() - expected[0]) > 0.3


def test_by_evidence_prefers_the_conjugate_model_that_made_the_data():
    x = torch.tensor([-1.0, -0.5, 0.5, 1.5, 2.0, 3.0], dtype=torch.float64)
    y = torch.tensor([-1.1, -1.0, 0.2, 0.9, 1.4, 2.3], dtype=torch.float64)

    def evidence(design: torch.Tensor) -> float:
        covariance = design @ design.T + 0.25 * torch.eye(6, dtype=torch.float64)
        return torch.distributions.MultivariateNormal(torch.zeros_like(y), covariance).log_prob(y).item()

    line = evidence(torch.stack([x, torch.ones_like(x)], 1))
    assert line == pytest.approx(-5.492971647, abs=1e-8)
    flat = evidence(torch.ones(6, 1, dtype=torch.float64))
    members = [Fixed(0, 1, log_marginal_likelihood=e, num_data=6) for e in (line, flat)]
    weights = sb.ByEvidence().of(members, None, 0)
    assert weights[0] == pytest.approx(math.exp(line) / (math.exp(line) + math.exp(flat)), rel=1e-12)
    assert weights[0] > 0.99


@pytest.mark.parametrize(
    ("infos", "words"),
    [
        ([{KEY: -3.0, "num_data": 5}, {"num_data": 5}], r"member 1 \(fixed\) states no evidence"),
        ([{KEY: -3.0, "num_data": 5}, {"elbo": -4.0, "num_data": 5}], "member 1 .* states no evidence"),
        ([{"num_data": 5}, {"num_data": 5}], "member 0 .* states no evidence.*Laplace approx"),
        ([{KEY: -3.0, "num_data": 5}, {KEY: -4.0, "num_data": 6}], r"fitted to \[5, 6\] examples"),
        ([{KEY: -3.0}, {KEY: -4.0}], r"fitted to \[None, None\]"),
        ([{KEY: math.nan, "num_data": 5}, {KEY: -4.0, "num_data": 5}], "member 0 .* states no evidence"),
    ],
)  # fmt: skip
def test_evidence_that_is_missing_or_of_other_data_is_named(infos, words):
    with pytest.raises(ValueError, match=words):
        sb.ByEvidence().of([Fixed(0, 1, **info) for info in infos], None, 0)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ((0.5, 0.6), r"sum to 1\.1, expected 1; divide"),
        ((1.5, -0.5), "0 or more"),
        ((math.inf, 0.0), "finite"),
        ((), "at least one"),
    ],
)
def test_given_weights_that_are_none_are_named(weights, words):
    with pytest.raises(ValueError, match=words):
        sb.Given(weights)


def test_equal_and_given_weights():
    assert list(sb.Equal().of(MEMBERS, None, 0)) == pytest.approx([1 / 3] * 3)
    assert list(sb.Given((0.2, 0.5, 0.3)).of(MEMBERS, None, 0)) == [0.2, 0.5, 0.3]
    with pytest.raises(ValueError, match="2 weights for 3 members"):
        sb.Given((0.5, 0.5)).check(3)


def test_stacking_needs_labels_and_draws():
    with pytest.raises(ValueError, match="draws must be a whole number"):
        sb.Stacked(draws=0)
    with pytest.raises((ValueError, TypeError), match=r"data must be|needs labels"):
        sb.Stacked().of(MEMBERS, torch.zeros(3, 1), 0)
