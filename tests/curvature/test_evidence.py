"""The log evidence against closed forms, and its maximum against scikit-learn's evidence framework."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import BayesianRidge
from torch import Tensor, nn

import singularbayes as sb
from singularbayes.curvature.diagonal import Diagonal
from singularbayes.curvature.evidence import Evidence
from singularbayes.curvature.expansion import Measured, Tally
from singularbayes.curvature.online_evidence import with_noise, with_precision
from singularbayes.distributions import StoredDraws

X = torch.tensor([[-1.0], [-0.5], [0.5], [1.5], [2.0], [3.0]], dtype=torch.float64)
Y = torch.tensor([-1.1, -1.0, 0.2, 0.9, 1.4, 2.3], dtype=torch.float64)


def conjugate(noise: float = 0.5, prior: Any = None) -> sb.Model:
    """The regression of section 9 at its optimum."""
    network = nn.Linear(1, 1).double()
    with torch.no_grad():
        network.weight.fill_(0.853125)
        network.bias.fill_(-0.31875)
    return sb.Model(network, sb.Gaussian(noise=noise), prior=prior)


FULL = sb.LaplaceApproximation(structure=sb.FullCurvature())


def test_the_evidence_of_the_conjugate_regression_is_exact():
    info = FULL.fit(conjugate(), (X, Y)).info
    assert info["log_marginal_likelihood"] == pytest.approx(-5.492971647, abs=1e-8)
    # the mutants: no log det P (0 here, so under another prior), the mean in place of the sum
    wide = FULL.fit(conjugate(prior=sb.Normal(3.0)), (X, Y)).info["log_marginal_likelihood"]
    design = np.c_[X.numpy(), np.ones(6)]
    cov = 9 * design @ design.T + 0.25 * np.eye(6)
    weights = np.linalg.solve(design.T @ design / 0.25 + np.eye(2) / 9, design.T @ Y.numpy() / 0.25)
    network = conjugate(prior=sb.Normal(3.0))
    with torch.no_grad():
        network.network.weight.fill_(weights[0])
        network.network.bias.fill_(weights[1])
    exact = -0.5 * (Y.numpy() @ np.linalg.solve(cov, Y.numpy()) + np.linalg.slogdet(2 * np.pi * cov)[1])
    found = FULL.fit(network, (X, Y)).info["log_marginal_likelihood"]
    assert found == pytest.approx(exact, abs=1e-9)
    assert found - 0.5 * 2 * math.log(9) != pytest.approx(exact, abs=0.5)
    assert wide < found  # at other weights than the optimum the expansion falls short


def test_the_diagonal_of_the_conjugate_regression_is_the_mean_field_optimum():
    posterior = sb.LaplaceApproximation(structure=sb.DiagonalCurvature()).fit(conjugate(), (X, Y))
    torch.testing.assert_close(
        posterior.distribution.variance, torch.tensor([0.0147058824, 0.04]).double(), rtol=0, atol=1e-9
    )
    assert posterior.info["log_marginal_likelihood"] == pytest.approx(-5.660502381, abs=1e-8)  # here the ELBO


@dataclass(frozen=True)
class Ridge:
    """A method that finds the optimum of a linear layer in closed form, for each weight its own prior."""

    def fit(self, model: sb.Model, train: Any, validation: Any = None, **_rest: Any) -> sb.Posterior:
        x, y = train
        design = torch.cat([x, torch.ones(len(x), 1)], 1) if model.network.bias is not None else x
        slots = model.layout.of_kind("belief")
        stds = [next(p.std for b, p in model.prior_blocks if b.start <= s.start < b.stop) for s in slots]
        prior = torch.cat([torch.full((s.size,), d**-2.0).double() for s, d in zip(slots, stds, strict=True)])
        noise = model.likelihood.noise
        w = torch.linalg.solve(design.T @ design / noise**2 + torch.diag(prior), design.T @ y / noise**2)
        network = model.copy_network()
        model.layout.write(network, w)
        return sb.Posterior(network, StoredDraws(w.unsqueeze(0)), model.likelihood, model.layout, {})


def correlated() -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(3)
    x = (
        torch.randn(40, 5, generator=source, dtype=torch.float64)
        @ torch.randn(5, 5, generator=source).double()
    )
    x = x * torch.tensor([1.0, 3.0, 0.3, 1.0, 1.0])
    w = torch.tensor([1.0, -0.5, 2.0, 0.0, 0.3], dtype=torch.float64)
    return x, x @ w + 0.7 * torch.randn(40, generator=source, dtype=torch.float64)


def test_online_evidence_reaches_bayesian_ridge():
    x, y = correlated()
    sk = BayesianRidge(
        fit_intercept=False, alpha_1=0, alpha_2=0, lambda_1=0, lambda_2=0, tol=1e-13, max_iter=3000,
        compute_score=True,
    ).fit(x.numpy(), y.numpy())  # fmt: skip
    update = sb.MarginalLikelihood(noise=True)
    online = sb.OnlineMarginalLikelihood(member=Ridge(), rounds=14, update=update)
    model = sb.Model(nn.Linear(5, 1, bias=False).double(), sb.Gaussian(noise=2.0))
    method = sb.LaplaceApproximation(structure=sb.FullCurvature(), prior_precision=online)
    posterior = method.fit(model, (x, y))
    assert posterior.info["prior_precision"]["weight"] == pytest.approx(sk.lambda_, rel=1e-4)
    assert posterior.likelihood.noise**-2 == pytest.approx(sk.alpha_, rel=1e-4)
    assert posterior.info["log_marginal_likelihood"] == pytest.approx(sk.scores_[-1], abs=1e-6)
    mean = posterior.distribution.mean.numpy()
    np.testing.assert_allclose(mean, sk.coef_, rtol=1e-4)
    np.testing.assert_allclose(posterior.distribution.covariance.numpy(), sk.sigma_, rtol=1e-3, atol=1e-8)
    assert len(posterior.info["rounds"]) == 14
    # the evidence rises over the rounds
    values = [record["log_marginal_likelihood"] for record in posterior.info["rounds"]]
    assert values[-1] > values[0] + 1
    # fixed weights of another prior are not that fixed point
    post_hoc = sb.LaplaceApproximation(structure=sb.FullCurvature(), prior_precision=update)
    start = sb.Model(nn.Linear(5, 1, bias=False).double(), sb.Gaussian(noise=2.0), prior=sb.Normal(0.05))
    start = start.started_at(Ridge().fit(start, (x, y)))
    assert post_hoc.fit(start, (x, y)).info["prior_precision"]["weight"] != pytest.approx(sk.lambda_, rel=0.1)


def test_online_evidence_trains_by_map():
    x, y = correlated()
    torch.manual_seed(0)
    model = sb.Model(nn.Linear(5, 1, bias=False).double(), sb.Gaussian(noise=0.7))
    member = sb.MAP(epochs=100, batch_size=40, learning_rate=0.02)
    online = sb.OnlineMarginalLikelihood(member=member, rounds=2)
    method = sb.LaplaceApproximation(structure=sb.FullCurvature(), prior_precision=online)
    posterior = method.fit(model, (x, y), seed=1)
    exact = sb.OnlineMarginalLikelihood(member=Ridge(), rounds=6)
    limit = sb.LaplaceApproximation(structure=sb.FullCurvature(), prior_precision=exact).fit(model, (x, y))
    gap = limit.info["log_marginal_likelihood"] - posterior.info["log_marginal_likelihood"]
    assert -1e-6 < gap < 0.5
    untrained = FULL.fit(model, (x, y)).info["log_marginal_likelihood"]
    assert posterior.info["log_marginal_likelihood"] > untrained + 50


def evidence_of(
    h: list[float], theta: list[float], sizes: tuple[int, ...], noise: float | None = None
) -> Evidence:
    """A diagonal curvature of several tensors."""
    layers = nn.ModuleList([nn.Linear(n, 1, bias=False) for n in sizes]).double()
    slots = sb.Model(layers, sb.Categorical()).layout.of_kind("belief")
    tally = Tally()
    tally.log_likelihood, tally.entries = -7.0, 11
    measured = Measured(Diagonal(torch.tensor(h, dtype=torch.float64), slots), tally)
    return Evidence(measured, slots, torch.tensor(theta, dtype=torch.float64), None)


def test_the_maximum_over_one_precision_is_mackays():
    evidence = evidence_of([5.0, 2.0, 0.3], [1.0, -2.0, 0.5], (3,))
    p = sb.MarginalLikelihood().maximise(evidence).precision[0].item()
    gamma = sum(h / (h + p) for h in (5.0, 2.0, 0.3))  # well-determined parameters
    assert p == pytest.approx(gamma / 5.25, rel=1e-5)


def test_each_tensor_has_its_own_maximum():
    evidence = evidence_of([5.0, 2.0, 400.0, 300.0], [1.0, -2.0, 0.05, 0.08], (2, 2))
    found = sb.MarginalLikelihood(per_tensor=True).maximise(evidence).precision
    for which, (h, theta) in enumerate([((5.0, 2.0), (1.0, -2.0)), ((400.0, 300.0), (0.05, 0.08))]):
        p = found[which].item()
        gamma = sum(v / (v + p) for v in h)
        assert p == pytest.approx(gamma / sum(t * t for t in theta), rel=1e-4)
    one = sb.MarginalLikelihood().maximise(evidence).precision
    assert one[0] == one[1]
    assert evidence(found) > evidence(one)


@pytest.mark.parametrize("noise", [0.3, 2.0])
def test_the_log_likelihood_at_another_noise_is_that_of_the_model(noise):
    measured = FULL.fit(conjugate(), (X, Y))
    model = conjugate()
    chosen = FULL._measured(model, FULL._checked(model, (X, Y), None)[0])
    log_noise = torch.tensor(math.log(noise), dtype=torch.float64)
    other = FULL.fit(conjugate(noise), (X, Y)).info
    assert chosen.evidence.log_likelihood(log_noise).item() == pytest.approx(
        other["log_likelihood"], rel=1e-9
    )
    found = chosen.evidence(torch.ones(2).double(), log_noise).item()
    assert found == pytest.approx(other["log_marginal_likelihood"], rel=1e-9)
    assert measured.info["log_likelihood"] != pytest.approx(other["log_likelihood"], rel=0.1)


def test_noise_is_found_after_training_and_becomes_part_of_the_likelihood():
    torch.manual_seed(0)
    choice = sb.MarginalLikelihood(noise=True)
    method = sb.LaplaceApproximation(structure=sb.FullCurvature(), prior_precision=choice)
    fixed, learned = conjugate(), sb.Model(conjugate().network, sb.Gaussian(initial_noise=0.9))
    tempered = sb.Model(conjugate().network, sb.Gaussian(noise=0.4, temperature=2.0))
    one, two, three = (method.fit(model, (X, Y)) for model in (fixed, learned, tempered))
    for other in (two, three):
        assert other.info["log_marginal_likelihood"] == pytest.approx(one.info["log_marginal_likelihood"])
        assert other.info["prior_precision"]["weight"] == pytest.approx(
            one.info["prior_precision"]["weight"], rel=1e-3
        )
    assert two.info["noise"] == two.likelihood.noise == pytest.approx(one.likelihood.noise, rel=1e-4)
    assert three.likelihood.noise * math.sqrt(2) == pytest.approx(one.likelihood.noise, rel=1e-4)
    assert two.layout.of_kind("likelihood") == ()
    torch.testing.assert_close(two.distribution.covariance, one.distribution.covariance, rtol=1e-3, atol=1e-8)
    refit = FULL.fit(
        sb.Model(fixed.network, sb.Gaussian(noise=one.likelihood.noise),
                 prior=sb.Normal(one.info["prior_precision"]["weight"] ** -0.5)), (X, Y),
    )  # fmt: skip
    torch.testing.assert_close(
        refit.distribution.covariance, one.distribution.covariance, rtol=1e-6, atol=1e-9
    )
    assert two.predict(X, draws=4).mean.shape == (6,)


def test_noise_of_no_gaussian_is_refused():
    choice = sb.MarginalLikelihood(noise=True)
    model = sb.Model(nn.Linear(1, 2).double(), sb.Categorical())
    with pytest.raises(ValueError, match=r"noise=True.* tunes the noise of Gaussian.*has Categorical"):
        sb.LaplaceApproximation(prior_precision=choice).fit(model, (X, torch.arange(6) % 2))


def test_a_precision_without_a_maximum_stops_at_the_bound():
    evidence = evidence_of([5.0, 2.0, 3.0], [1.0, -2.0, 0.0], (2, 1))
    found = sb.MarginalLikelihood(per_tensor=True).maximise(evidence)
    assert found.at_bound == ("1.weight",)
    assert found.precision[1].item() == pytest.approx(1e8)
    assert 0.1 < found.precision[0] < 1
    assert sb.MarginalLikelihood().maximise(evidence).at_bound == ()


def test_a_tensor_that_the_evidence_prunes_is_named():
    model = conjugate()
    with torch.no_grad():
        model.network.bias.zero_()
    choice = sb.MarginalLikelihood(per_tensor=True)
    method = sb.LaplaceApproximation(structure=sb.FullCurvature(), prior_precision=choice)
    with pytest.warns(UserWarning, match=r"no maximum over the prior precision of bias"):
        posterior = method.fit(model, (X, Y))
    assert posterior.info["at_bound"] == ["bias"]
    assert posterior.distribution.variance[1] < 2e-8


def test_changed_priors_and_noise_are_those_of_a_new_model():
    model = sb.Model(
        nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)), sb.Gaussian(initial_noise=0.5),
        prior=sb.PerParameter({"0.*": sb.Normal(2.0), "*": sb.Normal(3.0)}),
    )  # fmt: skip
    slots = tuple(s for s in model.layout.of_kind("belief") if s.name in ("0.weight", "2.bias"))
    changed = with_noise(with_precision(model, slots, torch.tensor([4.0, 100.0])), 0.25)
    std = {s.name: next(p.std for b, p in changed.prior_blocks if b.start <= s.start < b.stop)
           for s in changed.layout.of_kind("belief")}  # fmt: skip
    assert std == {"0.weight": 0.5, "0.bias": 2.0, "2.weight": 3.0, "2.bias": 0.1}
    same = sb.Model(model.network, sb.Gaussian(noise=0.25), prior=changed.prior)
    assert changed.layout == same.layout
    w = torch.randn(changed.layout.size)
    torch.testing.assert_close(changed.log_prior(w), same.log_prior(w))
    assert model.likelihood.noise is None
    assert model.prior_blocks != changed.prior_blocks


def test_bad_settings_are_named(unchecked):
    with pytest.raises(ValueError, match="rounds must be a whole number"):
        sb.OnlineMarginalLikelihood(member=sb.MAP(), rounds=0)
    with pytest.raises(TypeError, match="member must be a method such as MAP"):
        sb.OnlineMarginalLikelihood(member=sb.MAP)
    with pytest.raises(TypeError, match="update must be MarginalLikelihood"):
        sb.OnlineMarginalLikelihood(member=sb.MAP(), update=sb.MAP())  # type: ignore[arg-type]
