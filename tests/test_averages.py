"""Weighted draws: a weight is a number of copies, in every property, score and measure."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from singularbayes import averages, scores
from singularbayes.evaluation.data import Data
from singularbayes.evaluation.prediction import predict_set
from singularbayes.metrics.regression import crps, crps_of
from singularbayes.predictive import BernoulliPredictive, CategoricalPredictive, GaussianPredictive

COPIES = torch.tensor([1, 3, 2, 0, 1])  # of each draw; one that counts for nothing, one that is the smallest
WEIGHTS = COPIES.double() / COPIES.sum()
NUMBERS = ("mean", "variance", "entropy", "aleatoric", "epistemic")
Y = torch.tensor([0, 1, 1, 0, 1, 0])


def draws_of(*shape: int, seed: int = 0) -> Tensor:
    """Draws of other centres and scales, so that no two could be taken for each other."""
    source = torch.Generator().manual_seed(seed)
    scale = torch.tensor([0.3, 1.0, 4.0, 9.0, 2.0], dtype=torch.float64).view(-1, *[1] * len(shape))
    return scale * torch.randn(5, *shape, generator=source, dtype=torch.float64) + scale


def pairs() -> dict[str, tuple]:
    """Kind -> the weighted predictive, and the equal-weight one of copies."""
    logits, odds, means = draws_of(6, 3), draws_of(6, seed=1), draws_of(6, 2, seed=2)
    variances = 0.1 + draws_of(6, 2, seed=3).square()
    kinds = {
        "categorical": (CategoricalPredictive, (logits.log_softmax(-1),)),
        "bernoulli": (BernoulliPredictive, (odds,)),
        "gaussian": (GaussianPredictive, (means, variances)),
    }
    return {
        name: (kind(*parts, WEIGHTS), kind(*[part.repeat_interleave(COPIES, 0) for part in parts]))
        for name, (kind, parts) in kinds.items()
    }


def everything(kind: str, predictive) -> dict[str, Tensor]:
    """Every number that a predictive gives."""
    labels = Y.double().unsqueeze(-1).expand(-1, 2) if kind == "gaussian" else Y
    found = {name: getattr(predictive, name) for name in NUMBERS}
    found |= {name: score(predictive) for name, score in scores.for_task(kind).items()}
    found |= {f"interval {level}": predictive.interval(level) for level in (0.5, 0.83, 0.999)}
    found["log_prob"] = predictive.log_prob(labels)
    hotter = predictive.tempered(2.5)
    found |= {f"tempered {name}": getattr(hotter, name) for name in NUMBERS}
    if kind == "gaussian":
        found["cdf"] = predictive.cdf(labels)
        found["crps"] = torch.from_numpy(crps_of(
            predictive.means.numpy(), predictive.variances.numpy(), labels.numpy(),
            None if predictive.weights is None else predictive.weights.numpy()))  # fmt: skip
    return found


@pytest.mark.parametrize("kind", ["categorical", "bernoulli", "gaussian"])
def test_weights_are_copies_in_every_property_score_and_measure(kind):
    weighted, copies = pairs()[kind]
    one, two = everything(kind, weighted), everything(kind, copies)
    for name, values in one.items():
        torch.testing.assert_close(values, two[name], rtol=1e-12, atol=1e-12, msg=name)
    # mutant: weights that are ignored. The tempered mean and the median too must feel them.
    plain = everything(kind, without(weighted))
    same = [name for name, values in plain.items() if torch.allclose(values, two[name], atol=1e-4)]
    assert same == []


def without(weighted):
    fields = [value for name, value in vars(weighted).items() if name != "weights"]
    return type(weighted)(*fields)


@pytest.mark.parametrize("kind", ["categorical", "bernoulli", "gaussian"])
def test_equal_weights_that_are_given_are_equal_weights(kind):
    weighted, _ = pairs()[kind]
    plain = without(weighted)
    given = type(weighted)(*list(vars(plain).values())[:-1], torch.full((5,), 0.2, dtype=torch.float64))
    for name, values in everything(kind, given).items():
        torch.testing.assert_close(values, everything(kind, plain)[name], rtol=1e-12, atol=1e-12, msg=name)


@pytest.mark.parametrize("kind", ["categorical", "bernoulli", "gaussian"])
def test_a_broken_draw_of_weight_zero_counts_for_nothing(kind):
    weighted, copies = pairs()[kind]
    fields = [value.clone() for name, value in vars(weighted).items() if name != "weights"]
    for value in fields:
        value[3] = math.nan
    broken = everything(kind, type(weighted)(*fields, WEIGHTS))
    for name, values in everything(kind, copies).items():
        torch.testing.assert_close(broken[name], values, rtol=1e-12, atol=1e-12, msg=name)


def test_a_class_that_only_a_draw_of_weight_zero_allows_is_no_nan():
    probs = torch.tensor([[[1.0, 0.0]], [[0.5, 0.5]]], dtype=torch.float64)
    predictive = CategoricalPredictive(probs.log(), torch.tensor([1.0, 0.0], dtype=torch.float64))
    assert predictive.epistemic.item() == scores.mutual_information(predictive).item() == 0
    assert predictive.log_prob(torch.tensor([1])).item() == -math.inf


def test_one_draw_that_has_all_the_weight_is_that_draw():
    weights = torch.tensor([0.0, 1.0], dtype=torch.float64)
    means = torch.tensor([[3.0], [7.0]], dtype=torch.float64)
    predictive = GaussianPredictive(means, torch.ones_like(means), weights)
    assert (predictive.mean.item(), predictive.epistemic.item()) == (7.0, 0.0)
    low, high = BernoulliPredictive(means, weights).interval()
    assert low.item() == high.item() == torch.sigmoid(means[1]).item()


def test_float32_weights_and_float64_weights_give_the_same():
    weighted, _ = pairs()["gaussian"]
    single = GaussianPredictive(weighted.means.float(), weighted.variances.float(), WEIGHTS)
    assert single.mean.dtype == single.variance.dtype == torch.float32
    torch.testing.assert_close(single.mean, weighted.mean.float())
    again = GaussianPredictive(weighted.means.float(), weighted.variances.float(), WEIGHTS.float())
    torch.testing.assert_close(scores.total_variance(single), scores.total_variance(again))


def test_total_variance_under_weights_is_the_variance_of_draws_of_y():
    weighted, _ = pairs()["gaussian"]
    n, source = 200_000, torch.Generator().manual_seed(5)
    chosen = torch.multinomial(WEIGHTS, n, replacement=True, generator=source)
    noise = torch.randn(n, 6, 2, generator=source, dtype=torch.float64)
    squares = (weighted.means[chosen] + weighted.variances[chosen].sqrt() * noise - weighted.mean).square()
    error = 4 * squares.std(0) / math.sqrt(n)  # 12 entries: false alarm 8e-4
    assert ((squares.mean(0) - weighted.variance).abs() < error).all()
    of_stds = averages.mean(weighted.variances.sqrt(), WEIGHTS).square() + weighted.epistemic
    assert not ((squares.mean(0) - of_stds).abs() < error).all()  # mutant: mean of standard deviations
    apart = averages.mean(weighted.means, WEIGHTS) - weighted.means
    squared = averages.mean(apart, WEIGHTS**2 / (WEIGHTS**2).sum()).square() + weighted.aleatoric
    assert not ((squares.mean(0) - squared).abs() < error).all()  # mutant: squared weights


def test_weighted_quantiles_are_numpys_of_the_copies():
    values = draws_of(7, 3)
    expected = np.quantile(values.repeat_interleave(COPIES, 0).numpy(), [0.0, 0.1, 0.5, 1.0], axis=0)
    found = averages.quantiles(values, (0.0, 0.1, 0.5, 1.0), WEIGHTS)
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-12)


def test_weighted_quantiles_go_between_whole_numbers_of_copies_without_a_jump():
    values = draws_of(4)
    steps = [averages.quantiles(values, (0.3,), weights_of(extra)) for extra in np.linspace(1, 2, 101)]
    ends = [np.quantile(values.repeat_interleave(torch.tensor([1, 1, 1, 1, k]), 0).numpy(), 0.3, axis=0)
            for k in (1, 2)]  # fmt: skip
    np.testing.assert_allclose(steps[0][0], ends[0], atol=1e-12)
    np.testing.assert_allclose(steps[-1][0], ends[1], atol=1e-12)
    moves = torch.stack(steps).diff(dim=0).abs()
    assert moves.max() < 0.1 * (values.amax() - values.amin())


def weights_of(last: float) -> Tensor:
    copies = torch.tensor([1.0, 1.0, 1.0, 1.0, last], dtype=torch.float64)
    return copies / copies.sum()


def test_a_nan_stays_a_nan_under_weights():
    predictive = CategoricalPredictive(torch.full((2, 1, 2), math.nan), torch.tensor([0.25, 0.75]))
    for score in scores.for_task("categorical").values():
        assert torch.isnan(score(predictive)).all()
    assert torch.isnan(predictive.interval()).all()


def test_the_crps_of_copies():
    means, variances, y = draws_of(6).numpy(), 0.1 + draws_of(6, seed=1).square().numpy(), Y.double().numpy()
    copies = [np.repeat(part, COPIES.numpy(), 0) for part in (means, variances)]
    assert crps(means, variances, y, WEIGHTS) == pytest.approx(crps(*copies, y), abs=1e-12)
    assert crps(means, variances, y) != pytest.approx(crps(*copies, y), abs=1e-3)  # mutant: no weights
    for wrong in ([0.5, 0.5], [0.2, 0.2, 0.2, 0.2, 0.3], [1.2, -0.2, 0, 0, 0]):
        with pytest.raises(ValueError, match="one for each draw, 0 or more, with sum 1"):
            crps(means, variances, y, wrong)


class Fixed:
    """A posterior whose predictive is given."""

    def __init__(self, predictive) -> None:
        self.predictive = predictive

    def predict(self, x, draws, seed):
        return self.predictive


@pytest.mark.parametrize("kind", ["categorical", "bernoulli", "gaussian"])
def test_an_evaluated_set_has_the_rows_of_the_copies(kind):
    weighted, copies = pairs()[kind]
    labels = Y.double().unsqueeze(-1).expand(-1, 2) if kind == "gaussian" else Y.double()
    data = Data(torch.zeros(6, 1), labels.numpy())
    one, two, plain = (
        predict_set("test", data, Fixed(p), kind, 5, 0) for p in (weighted, copies, without(weighted))
    )
    for name in ("rows", "scores"):
        for key, values in getattr(one, name).items():
            np.testing.assert_allclose(values, getattr(two, name)[key], rtol=0, atol=1e-10, err_msg=key)
    name = "crps" if kind == "gaussian" else "brier"
    assert not np.allclose(plain.rows[name], two.rows[name], atol=1e-3)  # mutant: weights left out


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ([0.5, 0.6], r"sum to 1\.1, expected 1; divide"),
        ([1.5, -0.5], r"weight of draw 1 is -0\.5"),
        ([math.nan, 1.0], "weight of draw 0 is nan"),
        ([1.0], r"shape \(1,\), expected \(2,\)"),
        ([[0.5, 0.5]], r"shape \(1, 2\), expected \(2,\)"),
    ],
)
def test_weights_that_are_none_are_named(weights, words):
    for make in (
        lambda w: CategoricalPredictive(torch.zeros(2, 3, 2), w),
        lambda w: BernoulliPredictive(torch.zeros(2, 3), w),
        lambda w: GaussianPredictive(torch.zeros(2, 3), torch.ones(2, 3), w),
    ):
        with pytest.raises(ValueError, match=words):
            make(torch.tensor(weights))


def test_draws_that_agree_keep_their_value_though_weights_are_rounded():
    # wrong: sum_s w_s p_s of certain draws is 1.0000001 in float32, whose variance and entropy are -1.2e-7
    for seed in range(200):
        weights = torch.rand(5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        weights /= weights.sum()
        certain = CategoricalPredictive(torch.tensor([0.0, -200.0]).expand(5, 3, 2), weights)
        assert certain.mean[:, 0].tolist() == [1.0] * 3
        assert certain.variance.min() >= 0
        assert certain.entropy.min() >= 0
        assert scores.max_probability(certain).tolist() == [0.0] * 3
    naive = [(torch.rand(5, generator=torch.Generator().manual_seed(s)).double()) for s in range(200)]
    assert any((w / w.sum()).float().sum() > 1 for w in naive)  # the sums that are at stake
