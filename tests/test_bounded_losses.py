"""Bounded losses: in [0, 1], with the values that they are defined by, only for their task."""

import math

import pytest
import torch

import singularbayes as sb
from singularbayes.bounded_losses import BoundedCrossEntropy, BoundedLoss, ClippedLoss, ZeroOne

LOGITS = torch.tensor([[2.0, 0.0, -1.0], [0.0, 50.0, 0.0], [1.0, 1.5, 0.0]])
CLASSES = torch.tensor([0, 0, 1])


def test_zero_one_counts_wrong_classes():
    assert ZeroOne().losses(sb.Categorical(), LOGITS, CLASSES, {}).tolist() == [0, 1, 0]
    assert ZeroOne().losses(
        sb.Bernoulli(), torch.tensor([[2.0], [-1.0]]), torch.tensor([0.0, 0.0]), {}
    ).tolist() == [1, 0]


def test_cross_entropy_is_clamped_and_scaled():
    losses = BoundedCrossEntropy(1e-3).losses(sb.Categorical(), LOGITS, CLASSES, {})
    exact = torch.nn.functional.cross_entropy(LOGITS, CLASSES, reduction="none") / math.log(1000)
    assert losses[[0, 2]].tolist() == pytest.approx(exact[[0, 2]].tolist())
    assert losses[1] == 1
    assert exact[1] > 1


def test_clipped_loss_is_a_share_of_its_limit():
    outputs, y = torch.tensor([[0.0], [1.0], [9.0]]), torch.tensor([0.5, 1.0, 0.0])
    likelihood = sb.Gaussian(noise=1.0)
    assert ClippedLoss(2.0).losses(likelihood, outputs, y, {}).tolist() == pytest.approx([0.0625, 0, 1])
    assert ClippedLoss(2.0, power=1).losses(likelihood, outputs, y, {}).tolist() == pytest.approx(
        [0.25, 0, 1]
    )
    assert ClippedLoss(2.0).unit == 4
    two = ClippedLoss(2.0).losses(likelihood, torch.tensor([[0.0, 9.0]]), torch.tensor([[1.0, 0.0]]), {})
    assert two.tolist() == pytest.approx([0.625])


@pytest.mark.parametrize(
    ("loss", "likelihood"),
    [
        (ZeroOne(), sb.Gaussian()),
        (BoundedCrossEntropy(), sb.Gaussian()),
        (ClippedLoss(1.0), sb.Categorical()),
    ],
)
def test_a_loss_for_another_task_is_refused(loss, likelihood):
    assert isinstance(loss, BoundedLoss)
    with pytest.raises(TypeError, match="is a loss for"):
        loss.check(likelihood)


@pytest.mark.parametrize(
    "make", [lambda: BoundedCrossEntropy(0.0), lambda: ClippedLoss(0.0), lambda: ClippedLoss(1.0, power=3)]
)
def test_numbers_out_of_range_are_refused(make):
    with pytest.raises(ValueError, match="got"):
        make()
