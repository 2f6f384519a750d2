"""Every draw of a low-rank posterior is singular; the certificate says where, and notices what is not so."""

import pytest
import torch

import singularbayes as sb
from singularbayes.theory import factor_beliefs, singularity, weight_covariance
from singularbayes.theory.factor_beliefs import LowRankWeight


def test_every_draw_has_at_most_the_rank_of_its_factors(words, pictures):
    for posterior in (words, pictures):
        found = singularity(posterior, draws=5)
        assert found.holds
        assert {w.rank for w in found.weights} <= {3}
        assert all(w.singular for w in found.weights)
        assert "5 draws confirm it" in str(found)


def test_the_share_of_zero_covariances_is_counted_right(pictures):
    found = {w.title: w for w in singularity(pictures, draws=1).weights}["5"]
    sigma = weight_covariance(*factor_beliefs(pictures)["5"].factors)
    entries = len(sigma)
    off = ~torch.eye(entries, dtype=torch.bool)
    assert found.zero_pairs == pytest.approx((sigma[off] == 0).double().mean().item(), rel=1e-12)


def test_a_layer_at_full_rank_is_no_null_set():
    with pytest.warns(UserWarning, match="saves no parameters"):
        low = sb.factorize(torch.nn.Linear(4, 4), 4)
    model = sb.Model(low, sb.Categorical())
    posterior = sb.MeanField(epochs=1).fit(model, (torch.randn(8, 4), torch.tensor([0, 1] * 4)))
    found = singularity(posterior)
    assert not found.weights[0].singular
    assert "no: full rank" in str(found)


def test_draws_of_a_higher_rank_than_said_are_noticed(pictures, monkeypatch):
    true = LowRankWeight.weights

    def noisy(self, rows):
        w = true(self, rows)  # one more than was said: the smallest singular values are still 0
        source = torch.Generator().manual_seed(0)
        u, v = (torch.randn(side, generator=source, dtype=w.dtype) for side in w.shape)
        return w + 1e-3 * torch.outer(u, v)

    monkeypatch.setattr(LowRankWeight, "weights", noisy)
    found = singularity(pictures)
    assert not found.holds
    assert not any(weight.holds for weight in found.weights)
    assert "DO NOT confirm it" in str(found)


def test_zero_covariances_are_not_claimed_without_independent_factors(scales):
    found = singularity(scales)
    assert found.holds
    assert all(w.zero_pairs is None for w in found.weights)
    ensemble = sb.DeepEnsemble(members=2, member=sb.MAP(epochs=1))
    model = sb.Model(sb.factorize(torch.nn.Linear(9, 9), 2), sb.Categorical())
    found = singularity(ensemble.fit(model, (torch.randn(8, 9), torch.tensor([0, 1] * 4))), draws=2)
    assert found.holds
    assert found.weights[0].zero_pairs is None
    assert "not independent" in str(found)
