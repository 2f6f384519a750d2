"""Certificates: they hold as often as they say, fail where a condition is broken, refuse what breaks one."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import singularbayes as sb
from singularbayes import checkpoint
from singularbayes.distributions import DiagonalGaussian
from singularbayes.provenance import DataSketch
from singularbayes.theory import (
    BoundedCrossEntropy,
    Catoni,
    Certificate,
    ClippedLoss,
    EmpiricalBernstein,
    KLInverse,
    certify,
    kl_inverse,
    pac_bayes_kl,
)

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(600, 4, generator=GENERATOR)
Y = (X[:, 0] + X[:, 1] * X[:, 2] > 0).long()


def network(outputs: int = 2) -> nn.Module:
    torch.manual_seed(1)
    full = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, outputs))
    return sb.factorize(full, rank={"2": 3})


def fit(**options) -> sb.Posterior:
    method = sb.MeanField(epochs=15, learning_rate=0.01)
    return method.fit(sb.Model(network(), sb.Categorical(), **options), (X[:300], Y[:300]))


POSTERIOR = fit()


# Does it hold?


def noise_labels(seed: int, n: int = 40, d: int = 40) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Inputs, labels that are coin flips (every risk is 1/2), and weights that fit them all."""
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=source)
    y = torch.randint(0, 2, (n,), generator=source)
    return x, y, torch.linalg.lstsq(x, (2 * y - 1).float().unsqueeze(1)).solution.squeeze(1)


def risks(repeats: int, delta: float, honest: bool) -> np.ndarray:
    """Certificates of an interpolating classifier: under a prior without data, or one centred at it."""
    found = []
    layer = nn.Linear(40, 1, bias=False)
    layout = sb.Model(layer, sb.Bernoulli()).layout
    for seed in range(repeats):
        x, y, w = noise_labels(seed)
        std = torch.full_like(w, 0.02)
        posterior = sb.Posterior(layer, DiagonalGaussian(w, std), sb.Bernoulli(), layout, {})
        prior = sb.Normal(1.0) if honest else sb.Centred(w, std)  # seen=None: it does not tell
        options = {"prior": prior, "draws": 16, "delta_draws": delta}
        found.append(certify(posterior, (x, y), delta, **options).risk)
    return np.array(found)


def test_certificates_hold_in_a_number_that_the_binomial_accepts():
    # 200 planted problems whose risk is exactly 1/2, delta + delta' = .1 + .1
    repeats, delta = 200, 0.1
    limit = stats.binom.ppf(0.999, repeats, 2 * delta)
    assert (risks(repeats, delta, honest=True) < 0.5).sum() <= limit
    assert (risks(repeats, delta, honest=False) < 0.5).sum() > 0.9 * repeats  # the prior saw the points


def test_less_tight_problems_hold_too_and_the_bare_training_error_does_not():
    # threshold classifiers on one input: q about the best of a few thresholds, risk by brute force
    source = np.random.default_rng(0)
    layer = nn.Linear(1, 1)
    layout = sb.Model(layer, sb.Bernoulli()).layout
    repeats, delta, broken, held = 200, 0.1, 0, 0
    fresh = torch.randn(1500, 1, generator=torch.Generator().manual_seed(5))
    for seed in range(repeats):
        x = torch.from_numpy(source.normal(size=(25, 1))).float()
        y = (source.random(25) < np.where(x[:, 0] > 0, 0.8, 0.2)).astype(np.int64)
        thresholds = np.linspace(-1.5, 1.5, 60)
        errors = [np.mean((x[:, 0].numpy() > t) != y) for t in thresholds]
        best = float(thresholds[int(np.argmin(errors))])
        mean = torch.tensor([1.0, -best])
        posterior = sb.Posterior(
            layer, DiagonalGaussian(mean, torch.full((2,), 0.2)), sb.Bernoulli(), layout, {}
        )
        options = {"prior": sb.Normal(1.0), "draws": 32, "delta_draws": 0.05, "seed": seed}
        found = certify(posterior, (x, torch.from_numpy(y)), delta, **options)
        votes = posterior.functions(posterior.draw(64, seed + 1000), fresh)[..., 0] > 0
        right = torch.where(fresh[:, 0] > 0, 0.8, 0.2)  # probability of label 1
        risk = torch.where(votes, 1 - right, right).mean().item()
        held += found.risk >= risk
        broken += found.empirical < risk
    assert held >= repeats - stats.binom.ppf(0.999, repeats, 0.15)
    assert broken > stats.binom.ppf(0.999, repeats, 0.15)  # the training error alone promises too much


# What it consists of


def test_it_is_the_bound_of_its_parts():
    found = certify(POSTERIOR, (X[:300], Y[:300]), 0.04, delta_draws=0.02, draws=300, subset=50)
    upper = kl_inverse(found.empirical, math.log(2 / 0.02) / 300)
    assert found.empirical_upper == pytest.approx(upper)
    assert found.kl == pac_bayes_kl(POSTERIOR)
    assert found.value == pytest.approx(KLInverse().value(upper, found.kl, 300, 0.04))
    assert (found.n, found.draws, found.subset, found.numbers) == (300, 300, 50, POSTERIOR.info["numbers"])
    assert found.confidence == pytest.approx(0.94)


def test_subsets_have_the_mean_of_all_rows_and_draws_their_own():
    whole = certify(POSTERIOR, (X[:300], Y[:300]), draws=400)
    part = certify(POSTERIOR, (X[:300], Y[:300]), draws=400, subset=30, seed=1)
    # 4 standard errors: rows .5 / sqrt(30 * 400) = .005, draws about as much
    assert abs(whole.empirical - part.empirical) < 0.035
    assert part.empirical != whole.empirical
    single = certify(POSTERIOR, (X[:300], Y[:300]), draws=400, subset=1)
    exact = (POSTERIOR.functions(POSTERIOR.draw(400), X[:300]).argmax(-1) != Y[:300]).double().mean().item()
    assert abs(single.empirical - exact) < 4 * 0.5 / 20


@pytest.mark.parametrize(("std", "subset"), [(1.0, None), (1e-6, 20)], ids=["weights", "rows"])
def test_no_two_blocks_of_draws_are_the_same(std, subset, tmp_path):
    # a block drawn again would count as new: the estimate's delta would speak of draws that were never made
    own, d = POSTERIOR.distribution, POSTERIOR.layout.belief
    wide = DiagonalGaussian(own.mean, torch.full_like(own.std, std))
    posterior = sb.Posterior(POSTERIOR.network, wide, POSTERIOR.likelihood, POSTERIOR.layout, {})
    prior = sb.Centred(own.mean[:d], torch.full_like(own.mean[:d], std))
    certify(posterior, (X, Y), draws=64, subset=subset, prior=prior, checkpoint=tmp_path)
    blocks = checkpoint.read_pair(tmp_path, "draws")[0]["risks"].view(4, 16)
    assert len(blocks.unique(dim=0)) == 4


def test_the_empirical_risk_is_the_draws_own_not_the_votes():
    x, y = X[:300], Y[:300]
    wide = sb.Posterior(
        POSTERIOR.network,
        DiagonalGaussian(POSTERIOR.distribution.mean, 6 * POSTERIOR.distribution.std),
        POSTERIOR.likelihood,
        POSTERIOR.layout,
        POSTERIOR.info,
    )
    outputs = wide.functions(wide.draw(600), x)
    gibbs = (outputs.argmax(-1) != y).double().mean().item()
    vote = (outputs.softmax(-1).mean(0).argmax(-1) != y).double().mean().item()
    found = certify(wide, (x, y), draws=600).empirical
    assert vote < gibbs - 0.1
    assert abs(found - gibbs) < 0.03


def test_candidates_divide_both_deltas():
    one = certify(POSTERIOR, (X[:300], Y[:300]), 0.05, draws=64)
    four = certify(POSTERIOR, (X[:300], Y[:300]), 0.05, draws=64, candidates=4)
    assert (four.delta, four.delta_draws) == (0.0125, 0.0025)
    assert four.risk > one.risk
    assert four.confidence == pytest.approx(one.confidence)


def test_other_losses_bounds_and_estimates():
    cross = certify(POSTERIOR, (X[:300], Y[:300]), draws=64, loss=BoundedCrossEntropy(1e-4))
    assert 0 < cross.empirical < 0.2
    assert cross.unit == pytest.approx(math.log(1e4))
    tight = certify(POSTERIOR, (X[:300], Y[:300]), draws=64, estimate=EmpiricalBernstein())
    assert tight.empirical == certify(POSTERIOR, (X[:300], Y[:300]), draws=64).empirical
    fixed = certify(POSTERIOR, (X[:300], Y[:300]), draws=64, bound=Catoni(1.0))
    assert any("C = 1" in str(condition) for condition in fixed.conditions)


def test_a_regression_is_certified_in_units_of_its_loss():
    x, y = X[:300], X[:300, 0] + 0.1
    model = sb.Model(network(1), sb.Gaussian(initial_noise=0.3))
    posterior = sb.MeanField(epochs=20, learning_rate=0.01).fit(model, (x, y))
    found = certify(posterior, (x, y), draws=64, loss=ClippedLoss(3.0))
    outputs = posterior.functions(posterior.draw(64), x)[..., 0]
    assert found.empirical == pytest.approx((outputs - y).square().mean().item() / 9, rel=0.3)
    assert found.unit == 9
    with pytest.raises(TypeError, match="is a loss for categorical"):
        certify(posterior, (x, y), draws=4)


def test_a_kl_of_a_million_is_vacuous_and_said_to_be():
    # trap 43
    found = certify(POSTERIOR, (X[:300], Y[:300]), draws=16, prior=sb.Normal(1e-3))
    assert found.kl > 1e5
    assert found.risk == pytest.approx(1.0, abs=1e-12)
    assert found.vacuous
    assert "vacuous" in str(found)


def test_it_prints_saves_and_loads(tmp_path):
    found = certify(POSTERIOR, (X[:300], Y[:300]), draws=16)
    text = str(found)
    for part in ("certified risk", "0.965", "KL ", "[checked]", "[stated ]", "candidates 1"):
        assert part in text
    found.save(tmp_path)
    assert Certificate.load(tmp_path) == found


def test_draws_go_on_where_they_were_stopped(tmp_path):
    data = (X[:300], Y[:300])
    whole = certify(POSTERIOR, data, draws=80, subset=20)
    certify(POSTERIOR, data, draws=37, subset=20, checkpoint=tmp_path)
    assert certify(POSTERIOR, data, draws=80, subset=20, checkpoint=tmp_path).empirical == whole.empirical
    with pytest.raises(ValueError, match="another certificate"):
        certify(POSTERIOR, data, draws=80, subset=21, checkpoint=tmp_path)


# What it refuses


def test_a_prior_that_saw_certified_points_is_refused():
    point = sb.MAP(epochs=2).fit(sb.Model(network(), sb.Categorical()), (X[:300], Y[:300]))
    prior = sb.Centred.at(point, 0.05)
    model = sb.Model(network(), sb.Categorical(), prior=prior).started_at(point)
    posterior = sb.MeanField(epochs=2).fit(model, (X, Y))  # the posterior may see all
    found = certify(posterior, (X[300:], Y[300:]), draws=32, prior=prior)
    assert "[checked] none of 256 kept rows of the prior's 300 is certified" in str(found)
    with pytest.raises(ValueError, match="the prior saw certified points"):
        certify(posterior, (X[280:], Y[280:]), draws=32, prior=prior)
    unknown = sb.Centred(prior.mean, prior.std)
    text = str(certify(posterior, (X[300:], Y[300:]), draws=32, prior=unknown))
    assert "[stated ] the prior did not see the certified points" in text


def test_a_prior_at_a_random_start_has_no_data_in_it():
    model = sb.Model(network(), sb.Categorical())
    mean = model.layout.flatten(model.network)[: model.layout.belief]
    prior = sb.Centred(mean, torch.full_like(mean, 0.3), DataSketch(0, ()))
    assert certify(POSTERIOR, (X, Y), draws=16, prior=prior).kl > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delta": 0.0}, "delta is a probability of failure strictly between 0 and 1"),
        ({"delta": 1.0}, "delta is a probability of failure"),
        ({"delta_draws": 1.5}, "delta_draws is a probability of failure"),
        ({"delta": 0.6, "delta_draws": 0.5}, "must be below 1"),
        ({"draws": 0}, "draws must be a whole number"),
        ({"subset": 0}, "subset must be a whole number"),
        ({"candidates": 0}, "candidates must be a whole number"),
    ],
)
def test_numbers_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        certify(POSTERIOR, (X[:300], Y[:300]), **options)


def test_a_loss_outside_the_unit_interval_is_refused():
    class Raw(BoundedCrossEntropy):
        def losses(self, likelihood, outputs, y, parameters):
            return -5 * likelihood.log_prob(outputs, y, parameters)

    with pytest.raises(ValueError, match="outside"):
        certify(POSTERIOR, (X[:300], Y[:300]), draws=16, loss=Raw())


def test_numbers_that_follow_the_data_without_a_kl_are_refused():
    with pytest.raises(ValueError, match=r"bias belongs to the point estimates"):
        certify(fit(deterministic="*bias"), (X[:300], Y[:300]), draws=4)
    torch.manual_seed(0)
    normed = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    model = sb.Model(normed, sb.Categorical(), normalization=True)
    posterior = sb.MeanField(epochs=1).fit(model, (X[:300], Y[:300]))
    with pytest.raises(ValueError, match="running statistics of a normalisation"):
        certify(posterior, (X[:300], Y[:300]), draws=4)


def test_a_learned_noise_is_refused_for_a_loss_that_it_moves_and_for_no_other():
    class DensityLoss(ClippedLoss):
        def losses(self, likelihood, outputs, y, parameters):
            return (-likelihood.log_prob(outputs, y, parameters) / 9).clamp(0, 1)

    values = X[:300, :1]
    model = sb.Model(nn.Linear(4, 1), sb.Gaussian())
    posterior = sb.MeanField(epochs=1).fit(model, (X[:300], values))
    assert certify(posterior, (X[:300], values), draws=4, loss=ClippedLoss(5.0)).n == 300
    with pytest.raises(ValueError, match="learned numbers of the likelihood"):
        certify(posterior, (X[:300], values), draws=4, loss=DensityLoss(5.0))


@pytest.mark.usefixtures("unchecked")
def test_ensembles_and_mixtures_are_refused_by_name():
    model = sb.Model(network(), sb.Categorical())
    ensemble = sb.DeepEnsemble(members=2, member=sb.MAP(epochs=1)).fit(model, (X, Y))
    with pytest.raises(TypeError, match="density"):
        certify(ensemble, (X, Y), draws=4)
    mixture = sb.DeepEnsemble(members=2, member=sb.MeanField(epochs=1)).fit(model, (X, Y))
    with pytest.raises(TypeError, match="density"):
        certify(mixture, (X, Y), draws=4)


def test_calibration_is_left_out_and_copies_are_told():
    calibrated = POSTERIOR.calibrate((X[300:], Y[300:]))
    plain = certify(POSTERIOR, (X[:300], Y[:300]), draws=32, loss=BoundedCrossEntropy())
    found = certify(calibrated, (X[:300], Y[:300]), draws=32, loss=BoundedCrossEntropy())
    assert found.empirical == plain.empirical
    assert "calibration is left out" in str(found)
    twice = certify(POSTERIOR, (X[:100].repeat(2, 1), Y[:100].repeat(2)), draws=32)
    assert "100 certified rows are copies" in str(twice)
