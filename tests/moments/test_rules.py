"""Rules of single operations: normalisation, choice, indexing, attention."""

from typing import Any

import pytest
import torch
from torch import Tensor

from singularbayes.moments import propagation  # noqa: F401 - it registers the rules
from singularbayes.moments.random_tensor import RandomTensor, UncoveredError, sharing

DOUBLE = torch.float64
F: Any = torch.nn.functional  # given random tensors, they return such
where: Any = torch.where


def rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random(*shape: int, seed: int = 0, size: float = 1.0, weight: bool = False) -> Any:
    """Means of scale 1, variances over two decades below ``size``."""
    mean = torch.randn(shape, generator=rng(seed), dtype=DOUBLE)
    var = size * 10 ** (-2 * torch.rand(shape, generator=rng(seed + 1), dtype=DOUBLE))
    return RandomTensor(mean, var, weight=weight)


def first_order(function: Any, x: RandomTensor) -> Tensor:
    """``sum_j (df_i / dx_j)^2 var_j`` by autograd."""
    slopes = torch.autograd.functional.jacobian(function, x.expected)
    count = x.expected.numel()
    return (slopes.reshape(-1, count).square() @ x.variance.reshape(count)).view(function(x.expected).shape)


NORMS = {
    "layer": (lambda t: F.layer_norm(t, (4, 3), None, None, 1e-2), (2, 4, 3)),
    "rms": (lambda t: F.rms_norm(t, (3,), None, 1e-2), (2, 4, 3)),
    "group": (lambda t: F.group_norm(t, 2, None, None, 1e-2), (2, 4, 3)),
    "instance": (lambda t: F.instance_norm(t, eps=1e-2), (2, 4, 3)),
    "softmax": (lambda t: F.softmax(t, -1), (2, 4)),
    "softmax of rows": (lambda t: F.softmax(t, 0), (4, 2)),
}


@pytest.mark.parametrize("name", NORMS)
def test_normalisations_have_the_variance_of_their_derivative(name):
    function, shape = NORMS[name]
    # so small that what the variance adds to the statistic is seen by neither
    x = random(*shape, size=1e-9)
    found = function(x)
    assert torch.allclose(found.expected, function(x.expected), atol=1e-7)
    assert torch.allclose(found.variance, first_order(function, x), rtol=1e-6, atol=0)


def test_the_statistic_that_divides_counts_the_variance_too():
    x = random(1, 400, size=4.0)
    expected = x.expected - x.expected.mean()
    square = expected.square().mean() + (1 - 1 / 400) * x.variance.mean()
    assert torch.allclose(F.layer_norm(x, (400,)).expected, expected / (square + 1e-5).sqrt())


def test_an_instance_norm_of_running_statistics_is_batch_norm():
    x, mean, var = random(2, 4, 3), torch.rand(4, dtype=DOUBLE), torch.rand(4, dtype=DOUBLE) + 0.5
    gain, shift = torch.rand(4, dtype=DOUBLE), torch.rand(4, dtype=DOUBLE)
    found = F.instance_norm(x, mean, var, gain, shift, use_input_stats=False, eps=0.1)
    same = F.batch_norm(x, mean, var, gain, shift, eps=0.1)
    assert torch.equal(found.expected, same.expected)
    assert torch.equal(found.variance, same.variance)
    assert torch.allclose(found.expected, F.batch_norm(x.expected, mean, var, gain, shift, eps=0.1))


def test_a_choice_has_the_variance_of_what_it_chose_at_every_entry():
    x, condition = random(2), torch.tensor([True, False])
    found = where(condition, x, torch.zeros(3, 2, dtype=DOUBLE))
    assert found.variance.shape == (3, 2)
    assert torch.equal(found.variance[:, 0], x.variance[0].expand(3))
    assert (found.variance[:, 1] == 0).all()


def test_entries_that_are_looked_up_by_number_may_stand_twice_and_are_no_independent_weights():
    w = random(3, 2, weight=True)
    twice = torch.tensor([0, 0])
    assert w[1:].weight
    assert w[:, 0].weight
    for found in (w[twice], w[:, [1, 1]], w.index_select(0, twice), w.expand(2, 3, 2)):
        assert not found.weight


def test_two_masks_of_attention_are_refused_and_each_alone_hides_its_keys():
    q, k, v = (random(1, 3, 4, seed=seed) for seed in (1, 3, 5))
    seen = torch.ones(3, 3, dtype=torch.bool).tril()
    one = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    other = F.scaled_dot_product_attention(q, k, v, seen)
    assert torch.equal(one.variance, other.variance)
    plain = F.scaled_dot_product_attention(q.expected, k.expected, v.expected, is_causal=True)
    assert torch.allclose(one.expected, plain)
    # the first query sees one key: its weight is 1, and its variance that of the value alone
    assert torch.allclose(one.variance[0, 0], v.variance[0, 0])
    with pytest.raises(UncoveredError, match="a mask beside is_causal"):
        F.scaled_dot_product_attention(q, k, v, seen, is_causal=True)


def test_attention_has_the_noise_of_its_scores_and_of_its_values():
    """The output moves by ``sum_s dP_s (v_s - mean)``, with the variances of ``P`` that its scores give."""
    q, k, v = (random(1, 3, 4, seed=seed, size=0.1) for seed in (1, 3, 5))
    a, b, c = q.expected, k.expected, v.expected
    weights = F.softmax(a @ b.mT / 2, -1)
    around = c.unsqueeze(1) - (weights @ c).unsqueeze(2)  # (1, L, S, E)
    keys = b.unsqueeze(1) - (weights @ b).unsqueeze(2)  # a query moves all scores: from their mean

    def by_scores(spread: Tensor) -> Tensor:
        moved = F.softmax(RandomTensor(a @ b.mT / 2, spread), -1).variance
        return torch.einsum("bls,blse->ble", moved, around.square())

    by_key = torch.einsum("bld,bsd->bls", a.square(), k.variance) / 4
    by_query = torch.einsum("bld,blsd->bls", q.variance, keys.square()) / 4
    both = torch.einsum("bld,bsd->bls", q.variance, k.variance) / 4
    by_value = (weights @ v.variance.sqrt()).square()  # of all positions together: correlation 1
    moved = F.softmax(RandomTensor(a @ b.mT / 2, by_key + by_query + both), -1).variance
    attend = F.scaled_dot_product_attention
    for found, expected in (
        (attend(a, k, c), by_scores(by_key)),
        (attend(q, b, c), by_scores(by_query)),
        (attend(q, k, c), by_scores(by_key + by_query + both)),
        (attend(a, b, v), by_value),
        (attend(q, k, v), by_scores(by_key + by_query + both) + by_value + moved @ v.variance),
    ):
        assert torch.allclose(found.expected, weights @ c)
        assert torch.allclose(found.variance, expected)


def test_products_and_squares_of_gaussians_have_their_closed_moments():
    x, y = random(3, 2, seed=1), random(3, 2, seed=3)
    a, b, v, w = x.expected, y.expected, x.variance, y.variance
    assert torch.allclose((x * y).variance, v * b.square() + w * a.square() + v * w)
    for found in (x * x, x**2, x.square()):
        assert torch.allclose(found.expected, a.square() + v)
        assert torch.allclose(found.variance, 2 * v.square() + 4 * a.square() * v)
    assert torch.allclose((x - 2 * y).variance, v + 4 * w)


@pytest.mark.parametrize("size", [2, 3])
def test_the_largest_of_a_window_is_compared_with_all_of_it(size):
    x = random(1, 1, 12, size=1e-9)
    found = F.max_pool1d(x, size, padding=1)
    expected, where_it_is = F.max_pool1d(x.expected, size, padding=1, return_indices=True)
    assert torch.allclose(found.expected, expected, atol=1e-4)
    assert torch.allclose(found.variance, x.variance.gather(2, where_it_is), rtol=1e-4)


def test_an_average_of_correlated_positions_lies_between_independent_and_equal_ones():
    x = random(2, 3, 4)
    alone, together = x.variance.mean(2) / 4, x.variance.sqrt().mean(2).square()
    with sharing(0.25):
        for found in (x.mean(2), F.avg_pool1d(x, 4).squeeze(2)):
            assert torch.allclose(found.variance, 0.75 * alone + 0.25 * together)
