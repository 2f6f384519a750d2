"""Predictives: the split of uncertainty, mixtures, intervals, labels of every form."""

import math

import pytest
import torch
from scipy import stats

from singularbayes.predictive import BernoulliPredictive, CategoricalPredictive, GaussianPredictive


def logs(probs: list) -> torch.Tensor:
    return torch.tensor(probs, dtype=torch.float64).log()


def gaussian(seed: int = 0, event: tuple[int, ...] = ()) -> GaussianPredictive:
    source = torch.Generator().manual_seed(seed)
    means = torch.randn(6, 4, *event, generator=source, dtype=torch.float64) * 3
    variances = 0.1 + torch.rand(6, 4, *event, generator=source, dtype=torch.float64)
    return GaussianPredictive(means, variances)


def test_the_entropy_split_has_the_reference_values():
    pred = CategoricalPredictive(logs([[[0.7, 0.2, 0.1]], [[0.1, 0.8, 0.1]], [[0.4, 0.4, 0.2]]]))
    assert pred.entropy.item() == pytest.approx(0.990835386, abs=1e-9)
    assert pred.aleatoric.item() == pytest.approx(0.831923527, abs=1e-9)
    assert pred.epistemic.item() == pytest.approx(0.158911860, abs=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_certain_members_that_disagree_have_ln_two(dtype):
    pred = CategoricalPredictive(logs([[[1.0, 0.0]], [[0.0, 1.0]]]).to(dtype))
    assert pred.epistemic.item() == pytest.approx(math.log(2), rel=1e-6)
    assert pred.aleatoric.item() == 0.0
    odds = BernoulliPredictive(torch.tensor([[1000.0], [-1000.0]], dtype=dtype))
    assert odds.epistemic.item() == pytest.approx(math.log(2), rel=1e-6)


def test_equal_members_have_mutual_information_zero_never_below_never_nan():
    source = torch.Generator().manual_seed(0)
    row = torch.log_softmax(torch.randn(1, 500, 7, generator=source) * 4, -1)
    pred = CategoricalPredictive(row.expand(13, -1, -1))
    raw = torch.special.entr(pred.mean).sum(-1) - pred.aleatoric
    assert bool((pred.epistemic >= 0).all())
    assert pred.epistemic.max().item() < 1e-5
    assert raw.min().item() < 0  # mutant: the plain difference


def test_the_mean_is_of_probabilities_not_of_logits():
    logits = torch.tensor([[4.0], [-1.0]], dtype=torch.float64)
    pred = BernoulliPredictive(logits)
    assert pred.mean.item() == pytest.approx(logits.sigmoid().mean().item(), abs=1e-12)
    assert pred.mean.item() != pytest.approx(logits.mean().sigmoid().item(), abs=1e-2)


def test_bernoulli_is_the_categorical_of_two_classes():
    logits = torch.randn(5, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 5
    one, two = (
        BernoulliPredictive(logits),
        CategoricalPredictive(torch.log_softmax(torch.stack([torch.zeros_like(logits), logits], -1), -1)),
    )
    y = torch.tensor([0, 1, 1, 0, 1, 0, 0, 1])
    for name in ("entropy", "aleatoric", "epistemic"):
        torch.testing.assert_close(getattr(one, name), getattr(two, name))
    torch.testing.assert_close(one.mean, two.mean[:, 1])
    torch.testing.assert_close(one.variance, two.variance[:, 1])
    torch.testing.assert_close(one.log_prob(y), two.log_prob(y))
    torch.testing.assert_close(one.interval(0.8), two.interval(0.8)[..., 1])
    assert one.draws == two.draws == 5


def test_log_prob_is_of_the_mixture():
    pred = CategoricalPredictive(logs([[[0.9, 0.1]], [[0.2, 0.8]]]))
    assert pred.log_prob(torch.tensor([0])).item() == pytest.approx(math.log(0.55))
    assert pred.log_probs.mean(0)[0, 0].item() != pytest.approx(
        math.log(0.55), abs=0.01
    )  # mean of log densities


def test_a_class_that_no_member_allows_has_log_probability_minus_infinity():
    pred = CategoricalPredictive(logs([[[1.0, 0.0]], [[1.0, 0.0]]]))
    assert pred.log_prob(torch.tensor([1])).item() == -math.inf
    assert pred.entropy.item() == 0.0


@pytest.mark.parametrize("form", ["int64", "uint8", "float32", "float64", "bool"])
@pytest.mark.parametrize("column", [False, True])
def test_labels_of_every_form_give_the_same_log_probability(form, column):
    y = torch.tensor([0, 1, 1, 0])
    odds = BernoulliPredictive(torch.linspace(-2, 2, 12).reshape(3, 4))
    classes = CategoricalPredictive(odds.log_probs)
    given = y.to(getattr(torch, form))
    given = given.unsqueeze(1) if column else given
    torch.testing.assert_close(odds.log_prob(given), odds.log_prob(y))
    torch.testing.assert_close(classes.log_prob(given), odds.log_prob(y))


@pytest.mark.parametrize(
    ("y", "named"),
    [
        ([0.0, 0.7, 1.0], "label 0.7 in row 1"),
        ([0.0, 1.0, -1.0], "label -1 in row 2"),
        ([2.0, 0.0, 1.0], "label 2 in row 0"),
    ],
)
def test_labels_that_are_no_class_are_named(y, named):
    with pytest.raises(ValueError, match=named):
        BernoulliPredictive(torch.zeros(2, 3)).log_prob(torch.tensor(y))


@pytest.mark.parametrize("event", [(), (1,), (3,), (2, 5)])
def test_columns_never_broadcast_against_rows(event):
    pred = gaussian(event=event)
    y = torch.zeros(4, *event, dtype=torch.float64)
    assert pred.log_prob(y).shape == (4,)
    assert pred.log_prob(y.unsqueeze(-1)).shape == (4,)
    with pytest.raises(ValueError, match="labels have shape"):
        pred.log_prob(torch.zeros(4, *event, 7, dtype=torch.float64))
    with pytest.raises(ValueError, match="labels have shape"):
        CategoricalPredictive(torch.zeros(2, 4, 3)).log_prob(torch.zeros(4, 4, dtype=torch.long))


@pytest.mark.parametrize("event", [(), (3,)])
def test_gaussian_log_prob_is_the_mixture_of_torch(event):
    pred = gaussian(event=event)
    y = torch.linspace(-2, 2, 4 * math.prod(event), dtype=torch.float64).reshape(4, *event)
    d = torch.distributions
    parts = d.Independent(
        d.Normal(pred.means.transpose(0, 1), pred.variances.sqrt().transpose(0, 1)), len(event)
    )
    mixture = d.MixtureSameFamily(d.Categorical(torch.ones(4, 6, dtype=torch.float64)), parts)
    torch.testing.assert_close(pred.log_prob(y), mixture.log_prob(y))
    assert pred.log_prob(y.float()).dtype == torch.float64


def test_total_variance_is_the_variance_of_draws_of_y():
    pred, n = gaussian(), 40_000
    source = torch.Generator().manual_seed(2)
    noise = torch.randn(n, 6, 4, generator=source, dtype=torch.float64)
    y = (pred.means + pred.variances.sqrt() * noise).flatten(0, 1)
    squares = (y - pred.mean).square()
    error = 4 * squares.std(0) / math.sqrt(len(y))
    assert bool(((squares.mean(0) - pred.variance).abs() < error).all())
    assert not bool(
        ((squares.mean(0) - pred.variances.sqrt().mean(0).square()).abs() < error).all()
    )  # mutant
    assert not bool(((squares.mean(0) - pred.aleatoric).abs() < error).all())  # mutant: noise alone
    torch.testing.assert_close(pred.variance, pred.aleatoric + pred.epistemic)


def test_one_draw_has_epistemic_zero_not_nan():
    one = GaussianPredictive(torch.randn(1, 5), torch.ones(1, 5))
    assert torch.equal(one.epistemic, torch.zeros(5))
    assert torch.equal(
        CategoricalPredictive(torch.log_softmax(torch.randn(1, 5, 3), -1)).epistemic, torch.zeros(5)
    )


def test_gaussian_entropy_is_that_of_the_matched_gaussian_and_an_upper_bound():
    pred = gaussian()
    torch.testing.assert_close(
        pred.entropy, torch.distributions.Normal(pred.mean, pred.variance.sqrt()).entropy()
    )
    alone = torch.distributions.Normal(pred.means, pred.variances.sqrt()).entropy().mean(0)
    assert bool((pred.entropy >= alone).all())


@pytest.mark.parametrize("level", [0.5, 0.95, 0.999])
def test_gaussian_intervals_hold_their_level_of_the_mixture(level):
    pred = gaussian(event=(2,))
    low, high = pred.interval(level)
    torch.testing.assert_close(pred.cdf(low), torch.full_like(low, (1 - level) / 2), rtol=0, atol=1e-8)
    torch.testing.assert_close(pred.cdf(high), torch.full_like(high, (1 + level) / 2), rtol=0, atol=1e-8)
    moments = stats.norm.ppf((1 + level) / 2) * pred.variance.sqrt() + pred.mean  # mutant: one Gaussian
    assert not torch.allclose(moments, high, atol=1e-2)


def test_the_interval_of_one_gaussian_is_the_textbook_s():
    pred = GaussianPredictive(torch.tensor([[10.0, -1.0]]), torch.tensor([[4.0, 0.25]]))
    low, high = pred.interval(0.95)
    torch.testing.assert_close(high, torch.tensor([10.0 + 1.959964 * 2, -1 + 1.959964 * 0.5]))
    torch.testing.assert_close(low, torch.tensor([10.0 - 1.959964 * 2, -1 - 1.959964 * 0.5]))


def test_class_intervals_are_quantiles_over_draws_in_pieces_too(monkeypatch):
    log_probs = torch.log_softmax(torch.randn(9, 11, 3, generator=torch.Generator().manual_seed(3)), -1)
    pred = CategoricalPredictive(log_probs)
    expected = torch.quantile(log_probs.exp(), torch.tensor([0.1, 0.9]), dim=0)
    torch.testing.assert_close(pred.interval(0.8), expected)
    monkeypatch.setattr("singularbayes.averages._QUANTILE_ENTRIES", 60)  # two rows at a time
    torch.testing.assert_close(pred.interval(0.8), expected)


@pytest.mark.parametrize("level", [0.0, 1.0, 95.0, math.nan])
def test_levels_that_are_no_share_are_refused(level):
    for pred in (
        gaussian(),
        BernoulliPredictive(torch.zeros(2, 3)),
        CategoricalPredictive(torch.zeros(2, 3, 2)),
    ):
        with pytest.raises(ValueError, match="strictly between 0 and 1"):
            pred.interval(level)
