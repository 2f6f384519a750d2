"""Components that a fit has shrunk are found and taken out; what is left is the same belief, smaller."""

import pytest
import torch
from torch import nn

import singularbayes as sb
from singularbayes.theory import canonical, component_relevance, prune


def planted(rank: int = 2) -> tuple[sb.Posterior, tuple[torch.Tensor, torch.Tensor]]:
    """Mean field with five columns on data of a matrix of rank two."""
    source = torch.Generator().manual_seed(0)
    w = torch.randn(12, rank, generator=source) @ torch.randn(10, rank, generator=source).T
    x = torch.randn(400, 10, generator=source)
    y = x @ w.T + 0.3 * torch.randn(400, 12, generator=source)
    with torch.random.fork_rng():  # the start must not depend on the tests before
        torch.manual_seed(0)
        low = nn.Sequential(sb.nn.LowRankLinear(10, 12, 5, bias=False))
    model = sb.Model(low, sb.Gaussian(noise=0.3))
    method = sb.MeanField(epochs=60, learning_rate=0.02, gradient=sb.Gradient.LOCAL)
    return method.fit(model, (x, y)), (x, y)


@pytest.fixture(scope="module")
def fit():
    return planted()


def test_a_fit_with_too_many_columns_is_pruned_to_the_rank_of_the_truth(fit):
    posterior, (x, y) = fit
    pruned = prune(posterior, relevance=0.01)
    assert pruned.ranks == {"0": 2}
    assert pruned.table["kept"].sum() == 2
    before, after = (p.predict(x, draws=64).log_prob(y).mean().item() for p in (posterior, pruned.posterior))
    assert after > before - 0.1  # nats of twelve outputs: the noise is turned, its covariances are dropped
    assert pruned.posterior.info["numbers"] == posterior.info["numbers"] - 2 * 3 * 22
    assert "2 of 5 components kept" in str(pruned)
    # a threshold that keeps all of them is one that nothing has shrunk below
    assert prune(posterior, relevance=1e-12).ranks == {"0": 5}


def test_the_mean_moves_by_no_more_than_is_said(fit):
    posterior, _ = fit
    pruned = prune(posterior, relevance=0.01)
    apart = (posterior.merged()[0].weight - pruned.posterior.merged()[0].weight).norm().item()
    assert 0 < apart <= pruned.moved["0"] * (1 + 1e-5)


def test_relevance_is_what_the_factors_say(fit):
    posterior, _ = fit
    table = component_relevance(posterior)
    w = posterior.distribution
    a, b = w.mean[:60].view(12, 5).double(), w.mean[60:].view(10, 5).double()
    va, vb = w.variance[:60].view(12, 5).double(), w.variance[60:].view(10, 5).double()
    energy = a.square().sum(0) * b.square().sum(0)
    expected = (a.square() + va).sum(0) * (b.square() + vb).sum(0)
    assert table["energy"].tolist() == pytest.approx(energy.tolist(), rel=1e-6)
    assert table["signal"].tolist() == pytest.approx((energy / expected).tolist(), rel=1e-6)
    assert table["relevance"].max() == 1.0


@pytest.mark.parametrize("which", ["words", "pictures", "scales"])
def test_what_is_left_is_the_same_function_when_only_columns_of_zeros_go(which, request, tmp_path):
    posterior = request.getfixturevalue(which)
    weights = sb.theory.low_rank_weights(posterior)
    mean = posterior.distribution.mean.clone()
    std = posterior.distribution.variance.sqrt()
    for weight in weights:  # the second component of every layer: A's column, or s, is 0 for certain
        slot = weight.slots[weight.names[2 if weight.diagonal else 0]]
        for tensor in (mean, std):
            tensor[slot.start : slot.stop].view(slot.shape)[..., 1] = 0
    silent = sb.posterior.distributions.DiagonalGaussian(mean, std)
    posterior = sb.Posterior(
        posterior.network, silent, posterior.likelihood, posterior.layout, posterior.info
    )
    pruned = prune(posterior, relevance=1e-9, turn=False)
    assert set(pruned.ranks.values()) == {2}
    assert all(moved == 0 for moved in pruned.moved.values())
    x = torch.randint(0, 11, (6, 5)) if which == "words" else torch.randn(6, 2, 4, 4)
    row = posterior.draw(1)
    kept = [pruned_row(posterior, pruned, row)]
    torch.testing.assert_close(
        pruned.posterior.functions(torch.cat(kept), x), posterior.functions(row, x), atol=1e-5, rtol=1e-5
    )
    pruned.posterior.save(tmp_path)
    again = sb.load(tmp_path, pruned.network)
    assert torch.equal(again.predict(x, draws=3).mean, pruned.posterior.predict(x, draws=3).mean)


def pruned_row(posterior, pruned, row):
    """One row of the larger posterior as the smaller one has it: the second component left out."""
    parts = []
    for slot, new in zip(posterior.layout.slots, pruned.posterior.layout.slots, strict=True):
        value = row[0, slot.start : slot.stop].view(slot.shape)
        if slot.shape != new.shape:
            axis = next(i for i, (m, n) in enumerate(zip(slot.shape, new.shape, strict=True)) if m != n)
            value = value.index_select(axis, torch.tensor([0, 2]))
        parts.append(value.reshape(-1))
    return torch.cat(parts).unsqueeze(0)


def test_a_layer_whose_components_are_all_zero_keeps_one():
    low = sb.factorize(nn.Linear(9, 9), 2)
    point = sb.MAP(epochs=1)
    posterior = point.fit(sb.Model(low, sb.Gaussian(noise=1.0)), (torch.randn(8, 9), torch.zeros(8, 9)))
    at = sb.posterior.distributions.StoredDraws(torch.zeros(1, posterior.layout.size))
    zero = sb.Posterior(posterior.network, at, posterior.likelihood, posterior.layout, {})
    assert prune(zero).ranks == {"(root)": 1}


@pytest.mark.parametrize("relevance", [0.0, 1.0, -1.0, float("nan")])
def test_a_threshold_that_is_no_share_is_refused(fit, relevance):
    with pytest.raises(ValueError, match=r"relevance must lie in \(0, 1\)"):
        prune(fit[0], relevance)


def test_components_of_separate_networks_are_refused():
    ensemble = sb.DeepEnsemble(members=2, member=sb.MAP(epochs=1))
    model = sb.Model(sb.factorize(nn.Linear(9, 9), 2), sb.Categorical())
    posterior = ensemble.fit(model, (torch.randn(8, 9), torch.tensor([0, 1] * 4)))
    with pytest.raises(ValueError, match="one network"):
        prune(posterior)


@pytest.mark.parametrize("which", ["words", "pictures"])
def test_turned_components_are_in_order_and_the_mean_is_the_same_function(which, request):
    posterior = request.getfixturevalue(which)
    turned = canonical(posterior)
    x = torch.randint(0, 11, (6, 5)) if which == "words" else torch.randn(6, 2, 4, 4)
    means = [p.functions(p.distribution.mean.unsqueeze(0), x) for p in (turned, posterior)]
    torch.testing.assert_close(*means, atol=1e-5, rtol=1e-4)
    spectra = sb.theory.singular_values(posterior)
    for title, group in component_relevance(turned).groupby("layer"):
        expected = spectra[str(title)].values[:3].square()
        assert group["energy"].tolist() == pytest.approx(expected.tolist(), rel=1e-3, abs=1e-9)


@pytest.mark.parametrize("factor", ["A", "B"])
def test_the_turned_noise_has_the_variances_of_turned_draws(fit, factor):
    posterior, _ = fit
    turned, n = canonical(posterior), 20_000
    weight, after = sb.theory.low_rank_weights(posterior)[0], sb.theory.low_rank_weights(turned)[0]
    a = weight.part(factor, posterior.distribution.mean).double()
    moved = after.part(factor, turned.distribution.mean).double()
    turn = torch.linalg.lstsq(a, moved).solution  # A' = A M, B' = B M^-T
    draws = weight.part(factor, posterior.draw(n)).double() @ turn
    draws = draws - draws.mean(0)
    error = draws.square().std(0) / n**0.5
    variance = after.part(factor, turned.distribution.variance).double()
    # 60 or 50 entries at 4.5 standard errors: a false alarm in about 1 of 2,500
    assert ((draws.square().mean(0) - variance).abs() / error).max() < 4.5
    unturned = weight.part(factor, posterior.distribution.variance).double()
    assert ((draws.square().mean(0) - unturned).abs() / error).max() > 20


def test_the_noise_of_a_component_of_norm_zero_is_dropped_not_divided_by_rounding(fit):
    posterior, _ = fit
    mean, std = posterior.distribution.mean.clone(), posterior.distribution.variance.sqrt()
    mean[:60].view(12, 5)[:, 1] = 0.0
    mean[:60].view(12, 5)[:, 3] = mean[:60].view(12, 5)[:, 0]
    belief = sb.posterior.distributions.DiagonalGaussian(mean, std)
    flat = sb.Posterior(posterior.network, belief, posterior.likelihood, posterior.layout, posterior.info)
    turned = canonical(flat).distribution
    for part in (turned.variance[:60].view(12, 5), turned.variance[60:].view(10, 5)):
        assert part[:, :3].gt(0).all()
        assert part[:, 3:].eq(0).all()


def test_columns_as_they_are_hide_the_rank_and_turning_shows_it(fit):
    posterior, _ = fit
    assert prune(posterior, relevance=0.01, turn=False).ranks == {"0": 5}  # no column is small
    relevance = component_relevance(canonical(posterior))["relevance"]
    assert relevance[1] > 0.1
    assert relevance[2:].max() < 1e-3


def test_what_cannot_be_turned_is_refused_with_the_way_out(scales, words):
    with pytest.raises(ValueError, match=r"has an s between its factors.*turn=False"):
        prune(scales)
    d = words.layout.size
    low = sb.posterior.distributions.LowRankGaussian(torch.zeros(d), torch.ones(d), torch.ones(d, 1))
    with pytest.raises(ValueError, match=r"a point, not in a LowRankGaussian.*turn=False"):
        canonical(sb.Posterior(words.network, low, words.likelihood, words.layout, {}))
