"""Alignment with gradients, effective rank and belief of W = A B^T against dense covariances and draws."""

import pytest
import torch

import singularbayes as sb
from singularbayes.theory import (
    covariance_effective_rank,
    factor_beliefs,
    gradient_alignment,
    weight_covariance,
)


def factors(seed: int, m: int = 5, n: int = 4, r: int = 2) -> tuple[torch.Tensor, ...]:
    source = torch.Generator().manual_seed(seed)
    means = [torch.randn(k, r, generator=source, dtype=torch.float64) for k in (m, n)]
    stds = [10 ** (torch.rand(k, r, generator=source, dtype=torch.float64) * 2 - 1.5) for k in (m, n)]
    return means[0], stds[0], means[1], stds[1]


@pytest.mark.parametrize("seed", range(5))
def test_alignment_and_effective_rank_are_those_of_the_dense_covariance(seed):
    f = factors(seed)
    sigma = weight_covariance(*f)
    g = torch.randn(5, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    found, flat = gradient_alignment(g, *f), g.flatten()
    assert found.variance == pytest.approx((flat @ sigma @ flat).item(), rel=1e-12)
    assert found.diagonal == pytest.approx((flat.square() @ sigma.diagonal()).item(), rel=1e-12)
    assert found.isotropic == pytest.approx((flat.square().sum() * sigma.trace() / 20).item(), rel=1e-12)
    values = torch.linalg.eigvalsh(sigma)
    rank = covariance_effective_rank(*f)
    assert rank == pytest.approx((values.sum() ** 2 / values.square().sum()).item(), rel=1e-12)
    assert rank < sb.theory.effective_rank(sigma.diagonal())  # correlations concentrate


def test_along_the_gradient_of_the_mean_s_own_output_the_cross_terms_add():
    # all of A's rows move with one mean of B: an output that sums along it sees one big direction
    one = torch.ones(6, 1, dtype=torch.float64)
    found = gradient_alignment(one @ one.T, one, 0.1 * one, one, 0.1 * one)
    assert found.against_diagonal > 5
    opposite = torch.tensor([1.0, -1.0] * 3, dtype=torch.float64)[None].expand(6, 6) * torch.tensor(
        [1.0, -1.0] * 3, dtype=torch.float64)[:, None]  # fmt: skip
    assert gradient_alignment(opposite, one, 0.1 * one, one, 0.1 * one).against_diagonal < 0.02


def test_without_variance_there_is_no_direction():
    zero, one = torch.zeros(3, 2), torch.ones(3, 2)
    assert covariance_effective_rank(one, zero, one, zero) == 0.0
    found = gradient_alignment(torch.ones(3, 3), one, zero, one, zero)
    assert found.variance == 0.0
    assert found.against_diagonal != found.against_diagonal  # nan


@pytest.mark.parametrize("title", ["attention.q_proj_weight", "lstm.weight_hh_l0", "embedding", "0", "4"])
def test_the_factors_of_a_posterior_give_the_covariance_of_its_draws(title, words, pictures):
    posterior = pictures if title in "04" else words
    belief = factor_beliefs(posterior)[title]
    n = 20_000
    found = {w.title: w for w in sb.theory.low_rank_weights(posterior)}[title]
    w = found.weights(posterior.draw(n).double())[:, :3, :2].reshape(n, -1)
    w = w - w.mean(0)
    products = torch.einsum("ni,nj->nij", w, w)
    covariance = weight_covariance(*belief.block(slice(3), slice(2)).factors)
    error = (products.std(0) / n**0.5).clamp_min(1e-12)
    # 21 distinct entries at 4.5 standard errors: a false alarm in about 1 of 7,000
    assert ((products.mean(0) - covariance).abs() / error).max() < 4.5
    transposed = weight_covariance(
        *(belief.mean_a[:3], belief.std_a[:3], belief.mean_b[2:4], belief.std_b[2:4])
    )
    assert ((products.mean(0) - transposed).abs() / error).max() > 8  # other rows of B


def test_tied_weights_are_listed_once_by_torch_s_names(words):
    beliefs = factor_beliefs(words)
    projections = [f"attention.{x}_proj_weight" for x in "qkv"]
    recurrent = ["lstm.weight_ih_l0", "lstm.weight_hh_l0"]
    assert list(beliefs) == ["embedding", *projections, "attention.out_proj.weight", *recurrent]
    assert set(beliefs) == {layer.title for layer in sb.theory.singular_values(words)}


def test_the_padding_row_of_a_table_has_no_variance():
    network = torch.nn.Sequential(sb.nn.LowRankEmbedding(11, 8, 2, padding_idx=0), torch.nn.Flatten())
    ids = torch.randint(0, 11, (20, 1))
    posterior = sb.MeanField(epochs=1).fit(sb.Model(network, sb.Categorical()), (ids, torch.arange(20) % 8))
    variance = weight_covariance(*factor_beliefs(posterior)["0"].factors).diagonal().view(11, 8)
    assert variance[0].eq(0).all()
    assert variance[1:].gt(0).all()


def test_an_s_that_is_a_point_scales_the_factor_and_a_frozen_factor_has_no_variance():
    low = sb.nn.LowRankLinear(6, 5, 2, bias=False, diagonal=True)
    with torch.no_grad():
        low.s.copy_(torch.tensor([3.0, -0.5]))
    low.B.requires_grad_(False)
    model = sb.Model(low, sb.Gaussian(noise=1.0), deterministic="s")
    posterior = sb.MeanField(epochs=1).fit(model, (torch.randn(8, 6), torch.zeros(8, 5)))
    belief = factor_beliefs(posterior)["(root)"]
    assert belief.std_b.eq(0).all()
    assert belief.std_a.gt(0).all()
    mean = posterior.merged().weight.detach().double()
    torch.testing.assert_close(belief.mean_a @ belief.mean_b.T, mean, rtol=1e-5, atol=1e-6)
    assert sb.theory.singularity(posterior).holds
    (weight,), n = sb.theory.low_rank_weights(posterior), 20_000
    draws = weight.weights(posterior.draw(n).double()) - mean
    error = draws.square().std(0) / n**0.5
    variance = weight_covariance(*belief.factors).diagonal().view(5, 6)
    # 30 entries at 4.5 standard errors: a false alarm in about 1 of 5,000
    assert ((draws.square().mean(0) - variance).abs() / error).max() < 4.5


def test_a_belief_that_is_not_of_independent_factors_is_refused_with_the_alternative(scales, pictures):
    with pytest.raises(ValueError, match=r"belief about s .* estimate the covariance from posterior\.draw"):
        factor_beliefs(scales)
    d = pictures.layout.size
    low = sb.posterior.distributions.LowRankGaussian(torch.zeros(d), torch.ones(d), torch.ones(d, 1))
    other = sb.Posterior(pictures.network, low, pictures.likelihood, pictures.layout, {})
    with pytest.raises(ValueError, match=r"independent factors; this posterior is a LowRankGaussian"):
        factor_beliefs(other)


def test_a_network_without_low_rank_layers_is_refused():
    model = sb.Model(torch.nn.Linear(2, 2), sb.Categorical())
    plain = sb.MeanField(epochs=1).fit(model, (torch.randn(8, 2), torch.tensor([0, 1] * 4)))
    with pytest.raises(ValueError, match="no low-rank layer; factorise it before the fit"):
        factor_beliefs(plain)
