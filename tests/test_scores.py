"""Scores: exact values, never negative, an order that rounding keeps, exactly 0 without disagreement."""

import math

import pytest
import torch

from singularbayes import scores
from singularbayes.predictive import BernoulliPredictive, CategoricalPredictive, GaussianPredictive

DRAWS = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.4, 0.4, 0.2]], dtype=torch.float64)


def _categorical(probs: torch.Tensor) -> CategoricalPredictive:
    return CategoricalPredictive(probs.log())


def test_entropy_splits_into_the_documented_parts():
    predictive = _categorical(DRAWS[:, None])
    assert scores.entropy(predictive).item() == pytest.approx(0.990835386, abs=1e-9)
    assert scores.mutual_information(predictive).item() == pytest.approx(0.158911860, abs=1e-9)


def test_two_draws_certain_of_different_classes_have_ln_2():
    predictive = _categorical(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))
    assert scores.mutual_information(predictive).item() == pytest.approx(math.log(2), abs=1e-12)
    assert scores.entropy(predictive).item() == pytest.approx(math.log(2), abs=1e-12)
    assert scores.max_probability(predictive).item() == 0.5
    assert scores.relative_variance(predictive).item() == pytest.approx(0.5, abs=1e-12)


def test_mutual_information_is_never_negative_nor_nan():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1, 200, 5, generator=generator) * 20
    nearly_equal = logits + 1e-4 * torch.randn(16, 200, 5, generator=generator)
    for predictive in (
        CategoricalPredictive(nearly_equal.log_softmax(-1)),
        CategoricalPredictive((logits * 1e4).expand(16, -1, -1).log_softmax(-1)),
        _categorical(torch.tensor([[[1.0, 0.0]], [[1.0, 0.0]]])),
    ):
        information = scores.mutual_information(predictive)
        assert torch.isfinite(information).all()
        assert (information >= 0).all()


def test_equal_draws_score_exactly_zero_on_every_measure_of_disagreement():
    logits = torch.randn(1, 50, 3, generator=torch.Generator().manual_seed(1)).expand(7, -1, -1)
    classes = CategoricalPredictive(logits.log_softmax(-1))
    numbers = GaussianPredictive(1000 * logits[..., 0], torch.ones(7, 50))
    for score in ("mutual_information", "epistemic_variance", "relative_variance", "logit_disagreement"):
        assert (getattr(scores, score)(classes) == 0).all()
    assert (scores.epistemic_variance(numbers) == 0).all()


def test_mutual_information_orders_confident_inputs_that_float32_subtraction_cannot():
    spread = torch.logspace(-4, -2, 40)  # the disagreement of two draws grows along the batch
    logits = torch.stack([12 + spread, 12 - spread])
    predictive = BernoulliPredictive(logits)
    assert (scores.mutual_information(predictive).diff() > 0).all()
    assert not (predictive.epistemic.diff() > 0).all()  # the mutant: entropy minus mean entropy in float32


def test_mutual_information_equals_the_predictives_own():
    logits = torch.randn(16, 100, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    predictive = CategoricalPredictive(logits.log_softmax(-1))
    torch.testing.assert_close(
        scores.mutual_information(predictive), predictive.epistemic, atol=1e-12, rtol=0
    )
    torch.testing.assert_close(scores.entropy(predictive), predictive.entropy, atol=1e-12, rtol=0)


def test_a_bernoulli_scores_as_its_two_classes_do():
    logits = torch.randn(8, 30, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    binary = BernoulliPredictive(logits)
    two = CategoricalPredictive(torch.stack([torch.zeros_like(logits), logits], -1).log_softmax(-1))
    for name, score in scores.for_task("bernoulli").items():
        torch.testing.assert_close(score(binary), scores.for_task("categorical")[name](two))
    torch.testing.assert_close(scores.logit_disagreement(binary), logits.var(0, correction=0) / 4)


def test_relative_variance_is_close_to_mutual_information_for_small_disagreement():
    logits = 0.05 * torch.randn(64, 20, 3, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    predictive = CategoricalPredictive(logits.log_softmax(-1))
    ratio = scores.relative_variance(predictive) / scores.mutual_information(predictive)
    torch.testing.assert_close(ratio, torch.ones_like(ratio), atol=0.02, rtol=0)


def test_gaussian_scores_are_one_number_per_row_for_several_outputs():
    means = torch.tensor([[[0.0, 0.0]], [[2.0, 4.0]]])
    predictive = GaussianPredictive(means, torch.ones_like(means))
    assert scores.epistemic_variance(predictive).tolist() == [2.5]
    assert scores.total_variance(predictive).tolist() == [3.5]
    assert scores.entropy(predictive).shape == (1,)


def test_one_draw_gives_no_epistemic_variance():
    assert (
        scores.epistemic_variance(GaussianPredictive(torch.zeros(1, 3), torch.ones(1, 3))).tolist() == [0] * 3
    )


def test_a_nan_stays_a_nan():
    predictive = CategoricalPredictive(torch.full((2, 1, 2), float("nan")))
    for score in scores.for_task("categorical").values():
        assert torch.isnan(score(predictive)).all()


def test_the_default_score_of_each_task_comes_first():
    assert scores.default("categorical") == scores.default("bernoulli") == "mutual_information"
    assert scores.default("gaussian") == "epistemic_variance"
    with pytest.raises(ValueError, match="unknown task 'ranking'"):
        scores.for_task("ranking")


def test_class_scores_refuse_a_gaussian():
    predictive = GaussianPredictive(torch.zeros(2, 3), torch.ones(2, 3))
    with pytest.raises(TypeError, match="mutual_information needs class probabilities"):
        scores.mutual_information(predictive)
