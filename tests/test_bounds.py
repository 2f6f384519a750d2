"""PAC-Bayes bounds: known constants, the inverse of the binary KL, coverage of the draws' bounds."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from singularbayes.bounds import (
    Catoni,
    EmpiricalBernstein,
    KLInverse,
    Lambda,
    McAllester,
    Quadratic,
    RelativeEntropy,
    kl_inverse,
)

# methods.md 2
RISK, KL, N, DELTA = 0.05, 50.0, 10_000, 0.05


@pytest.mark.parametrize(
    ("bound", "value"),
    [
        (KLInverse(), 0.077072093),
        (McAllester(), 0.103987985),
        (Catoni(1.0), 0.085107738),
        (Lambda(1.0), 0.111658810),
        (Lambda(), 0.080667329),
        (Quadratic(), 0.080667329),
    ],
    ids=repr,
)
def test_every_bound_has_its_known_value(bound, value):
    assert bound.value(RISK, KL, N, DELTA) == pytest.approx(value, abs=1e-9)


def test_the_best_trade_off_is_the_known_one_and_no_other_is_below():
    assert Lambda().best(RISK, KL, N, DELTA) == pytest.approx(0.380170, abs=1e-6)
    least = min(Lambda(each).value(RISK, KL, N, DELTA) for each in np.linspace(0.01, 1.99, 400))
    assert Lambda().value(RISK, KL, N, DELTA) <= least + 1e-12


def binary_kl(q: float, p: float) -> float:
    terms = [(q, p), (1 - q, 1 - p)]
    return sum(a * math.log(a / b) for a, b in terms if a)


@pytest.mark.parametrize("q", [1e-9, 0.01, 0.3, 0.9])
@pytest.mark.parametrize("c", [1e-9, 1e-4, 0.1, 2.0])
def test_the_inverse_is_the_upper_end(q, c):
    p = kl_inverse(q, c)
    assert q <= p < 1
    assert binary_kl(q, p) >= c * (1 - 1e-5) - 1e-15  # not the lower end, whose KL may be below
    assert binary_kl(q, q + (p - q) * 0.999) < c


def test_the_edges_of_the_inverse_are_exact():
    assert kl_inverse(0.0, 0.01) == -math.expm1(-0.01)
    assert kl_inverse(0.999, 0.1) == 1  # 1 - 4e-47
    assert kl_inverse(1.0, 0.0) == 1
    assert kl_inverse(0.3, math.inf) == 1
    assert kl_inverse(0.3, 0.0) == pytest.approx(0.3, abs=1e-7)


def test_a_huge_kl_is_vacuous_and_not_an_error():
    # trap 43: peers overflow, or give less than 1
    assert KLInverse().value(0.1, 1e6, 1000, 0.05) == pytest.approx(1.0, abs=1e-12)
    for bound in (McAllester(), Quadratic(), Lambda(), Catoni(1.0)):
        assert math.isfinite(bound.value(0.1, 1e6, 1000, 0.05))
        assert bound.value(0.1, 1e6, 1000, 0.05) > 1


@pytest.mark.parametrize("bound", [KLInverse(), McAllester(), Quadratic(), Lambda(), Catoni(2.0)], ids=repr)
@pytest.mark.parametrize("risk", [0.0, 1.0])
def test_an_empirical_risk_of_0_or_1_is_finite(bound, risk):
    # trap 43: log(0)
    assert math.isfinite(bound.value(risk, 3.0, 100, 0.05))
    assert bound.value(risk, 3.0, 100, 0.05) >= risk


@pytest.mark.parametrize("bound", [KLInverse(), McAllester(), Quadratic(), Lambda(), Catoni(1.0)], ids=repr)
def test_impossible_numbers_are_refused(bound):
    for arguments, message in [
        ((0.1, -1e-3, 100, 0.05), "a KL divergence is 0 or positive"),
        ((0.1, math.nan, 100, 0.05), "a KL divergence is 0 or positive"),
        ((1.1, 1.0, 100, 0.05), "must lie in"),
        ((0.1, 1.0, 0, 0.05), "at least 1"),
        ((0.1, 1.0, 100, 0.0), "strictly between 0 and 1"),
        ((0.1, 1.0, 100, 1.0), "strictly between 0 and 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            bound.value(*arguments)


def test_constants_out_of_range_are_refused():
    for make in (lambda: Catoni(0.0), lambda: Lambda(2.0), lambda: Lambda(0.0)):
        with pytest.raises(ValueError, match=r"must be positive|must lie"):
            make()
    for q, c in [(-0.1, 1.0), (1.1, 1.0), (0.1, -1.0), (0.1, math.nan)]:
        with pytest.raises(ValueError, match="got"):
            kl_inverse(q, c)


@pytest.mark.parametrize("n", [1, 2, 3, 8, 50, 300])
def test_two_roots_of_n_bound_the_constant_of_the_theorem(n):
    # Maurer: E exp(n kl(Bin/n || p)) <= sum_k C(n,k) (k/n)^k (1-k/n)^(n-k) <= 2 sqrt(n)
    k = np.arange(n + 1)
    assert stats.binom.pmf(k, n, k / n).sum() <= 2 * math.sqrt(n) + 1e-12


@pytest.mark.parametrize("objective", [Quadratic(), Lambda(), Lambda(0.7)], ids=repr)
@pytest.mark.parametrize("risk", [0.0, 0.02, 0.4])
def test_the_slopes_are_the_derivatives(objective, risk):
    kl, n, delta = 7.0, 500, 0.03
    by_risk, by_kl = objective.slopes(risk, kl, n, delta)
    step = 1e-7
    up = objective.value(risk + step, kl, n, delta)
    low = objective.value(risk, kl, n, delta)
    assert by_risk == pytest.approx((up - low) / step, rel=1e-4)
    moved = [objective.value(risk, kl + e, n, delta) for e in (-1e-4, 1e-4)]
    assert by_kl == pytest.approx((moved[1] - moved[0]) / 2e-4, rel=1e-6)


def test_the_kl_inverse_is_the_tightest_of_those_without_a_constant():
    for risk, kl in itertools.product((0.0, 0.05, 0.3), (0.1, 10.0, 200.0)):
        tight = KLInverse().value(risk, kl, 2000, 0.05)
        assert tight <= McAllester().value(risk, kl, 2000, 0.05) + 1e-12
        assert tight <= Quadratic().value(risk, kl, 2000, 0.05) + 1e-12


# The risk of finitely many draws


def failures(bound, make, repeats: int, delta: float, mean: float) -> int:
    rng = np.random.default_rng(3)
    return sum(bound.upper(make(rng), delta) < mean for _ in range(repeats))


@pytest.mark.parametrize("bound", [RelativeEntropy(), EmpiricalBernstein()], ids=repr)
def test_the_draws_bound_fails_no_more_often_than_delta(bound):
    # 2000 sets of 60 skewed risks with mean .1, delta .2; more than 452 failures would have probability 1e-3
    delta, repeats = 0.2, 2000
    limit = stats.binom.ppf(0.999, repeats, delta)

    def make(rng):
        return (rng.random(60) < 0.1).astype(float)

    assert failures(bound, make, repeats, delta, 0.1) <= limit

    class Mean:  # wrong on purpose: the estimate itself
        def upper(self, risks, delta):
            return float(risks.mean())

    assert failures(Mean(), make, repeats, delta, 0.1) > limit


def test_the_draws_bounds_have_their_known_values():
    risks = np.tile([0.2, 0.3], 50)
    # by hand: V = .0025 * 100 / 99, l = ln(2 / .1) = 2.9957323; .25 + sqrt(2 V l / 100) + 7 l / 297
    assert EmpiricalBernstein().upper(risks, 0.1) == pytest.approx(0.25 + 0.0123005 + 0.0706065, abs=2e-6)
    p = RelativeEntropy().upper(risks, 0.1)
    divergence = 0.25 * math.log(0.25 / p) + 0.75 * math.log(0.75 / (1 - p))
    assert p > 0.25
    assert divergence == pytest.approx(0.029957323, abs=1e-9)


def test_bernstein_is_tighter_where_draws_hardly_differ():
    risks = np.random.default_rng(0).normal(0.02, 0.004, 20_000).clip(0, 1)
    loose, tight = (
        each.upper(risks, 0.01) - risks.mean() for each in (RelativeEntropy(), EmpiricalBernstein())
    )
    assert 0 < tight < 0.3 * loose


@pytest.mark.parametrize("bound", [RelativeEntropy(), EmpiricalBernstein()], ids=repr)
def test_risks_out_of_range_are_refused(bound):
    for risks in (np.array([0.1, 1.2]), np.array([0.1, math.nan]), np.array([])):
        with pytest.raises(ValueError, match=r"must lie in|at least"):
            bound.upper(risks, 0.1)
