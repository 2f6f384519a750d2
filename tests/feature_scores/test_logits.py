"""Energy and max-logit by hand, of a network and of a posterior's mean logits."""

import math

import pytest
import torch
from torch import nn

import singularbayes as sb
from singularbayes.distributions import StoredDraws
from singularbayes.feature_scores import Energy, MaxLogit, PosteriorScore
from singularbayes.parameters import Layout
from singularbayes.posterior import Posterior

X = torch.randn(6, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 30.0])


def posterior_of(outputs: int = 3, likelihood=None) -> Posterior:
    torch.manual_seed(0)
    network = nn.Linear(2, outputs)
    layout = Layout.of(network)
    draws = layout.flatten(network) + torch.randn(4, layout.size)
    return Posterior(network, StoredDraws(draws), likelihood or sb.Categorical(), layout, {})


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_the_energy_is_the_log_sum_of_exponentials_by_hand(temperature):
    posterior = posterior_of()
    logits = posterior.functions(posterior.draw(4), X).double().mean(0)
    by_hand = [
        -temperature * math.log(sum(math.exp(f / temperature) for f in row)) for row in logits.tolist()
    ]
    assert Energy(posterior, temperature=temperature).score(X).tolist() == pytest.approx(by_hand, rel=1e-9)
    assert MaxLogit(posterior).score(X).tolist() == [-max(row) for row in logits.tolist()]


def test_a_network_gives_its_own_logits():
    network = posterior_of().network
    logits = network(X).double()
    torch.testing.assert_close(Energy(network).score(X), -logits.logsumexp(1), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(MaxLogit(network).score(X), -logits.amax(1), rtol=1e-6, atol=1e-6)


def test_huge_logits_stay_finite_and_calibration_does_not_enter():
    posterior = posterior_of()
    assert torch.isfinite(Energy(posterior).score(1e6 * X)).all()
    warm = posterior_of(likelihood=sb.Categorical(7.0))
    assert torch.equal(Energy(posterior).score(X), Energy(warm).score(X))


def test_one_logit_and_what_has_none_are_refused(unchecked):
    with pytest.raises(ValueError, match="K >= 2 classes"):
        Energy(posterior_of(1, sb.Bernoulli())).score(X)
    for rule in (Energy, MaxLogit):
        with pytest.raises(TypeError, match="expected a network of classes or a posterior of one"):
            rule("network")
    with pytest.raises(ValueError, match="temperature must be"):
        Energy(posterior_of(), temperature=0.0)


def test_a_posterior_score_is_the_rule_of_its_predictive():
    posterior = posterior_of()
    predictive = posterior.predict(X, draws=3, seed=1)
    assert torch.equal(
        PosteriorScore(posterior, sb.scores.entropy, draws=3, seed=1).score(X), sb.scores.entropy(predictive)
    )
    default = PosteriorScore(posterior, draws=3, seed=1)
    assert torch.equal(default.score(X), sb.scores.mutual_information(predictive))
