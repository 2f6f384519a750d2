"""packed: several low-rank layers of one input at once give what each gives alone, in attention too."""

import itertools

import pytest
import torch
from torch import nn

from singularbayes.nn import LowRankLinear, LowRankMultiheadAttention
from singularbayes.nn.packed import packed


def attention(**settings) -> LowRankMultiheadAttention:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LowRankMultiheadAttention(12, 3, 2, batch_first=True, dtype=torch.float64, **settings)


def rows(seed: int, *shape: int) -> torch.Tensor:
    scale = torch.logspace(-1.5, 0, shape[-1], dtype=torch.float64)  # badly scaled on purpose
    source = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=source, dtype=torch.float64) * scale).requires_grad_()


@pytest.mark.parametrize("shape", [(7,), (5, 7), (2, 3, 7), (0, 7), (2, 0, 7)])
def test_each_layer_gives_what_it_gives_alone_for_any_batch(shape):
    layers = [LowRankLinear(7, m, r, m != 6, dtype=torch.float64, diagonal=m == 9)
              for m, r in ((8, 2), (9, 3), (6, 1))]  # fmt: skip
    x = rows(0, *shape)
    for layer, got in zip(layers, packed(layers, x), strict=True):
        assert got.shape == (*shape[:-1], layer.out_features)
        torch.testing.assert_close(got, layer(x), rtol=0, atol=1e-13)


def test_attention_of_an_empty_batch_is_empty_as_in_torch():
    low, x = attention(), rows(0, 0, 4, 12)
    stock = low.to_layer()(x, x, x)
    assert [tuple(t.shape) for t in low(x, x, x)] == [tuple(t.shape) for t in stock]


@pytest.mark.parametrize("need_weights", [True, False])
def test_inputs_that_are_one_tensor_give_what_copies_of_it_give(need_weights):
    for diagonal, rank in itertools.product((False, True), (2, {"k*": 3, "*": 1})):
        low = LowRankMultiheadAttention(12, 3, rank, batch_first=True, dtype=torch.float64, diagonal=diagonal)
        if diagonal:
            with torch.no_grad():
                low.k_proj.s.mul_(-2.5)
        query, other = rows(0, 4, 5, 12), rows(1, 4, 7, 12)
        whole = [query, *low.parameters()]
        one = low(query, query, query, need_weights=need_weights)
        two = low(query, query.clone(), query.clone(), need_weights=need_weights)
        torch.testing.assert_close(one[0], two[0], rtol=0, atol=1e-13)
        tilt = torch.linspace(-1, 2, one[0].numel(), dtype=torch.float64).view(one[0].shape)
        slopes = [torch.autograd.grad((outputs[0] * tilt).sum(), whole) for outputs in (one, two)]
        for a, b in zip(*slopes, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
        pair = low(query, other, other, need_weights=need_weights)[0]
        torch.testing.assert_close(pair, low(query, other, other.clone())[0], rtol=0, atol=1e-13)


def test_what_stands_in_a_projections_place_is_called():
    # an adapter or a hook that a packed product passed over would be lost in silence (LoRA-Torch#3)
    low = attention()
    x = rows(0, 4, 5, 12)
    before = low(x, x, x)[0]
    seen = []
    handle = low.k_proj.register_forward_hook(lambda *arguments: seen.append(arguments[0]))
    torch.testing.assert_close(low(x, x, x)[0], before, rtol=0, atol=1e-13)
    assert seen == [low.k_proj]
    handle.remove()
    low.v_proj = nn.Linear(12, 12, dtype=torch.float64)
    with torch.no_grad():
        low.v_proj.weight.zero_()
        low.v_proj.bias.zero_()
    torch.testing.assert_close(low(x, x, x)[0], low.out_proj.bias.expand(4, 5, 12), rtol=0, atol=0)
    low.out_proj = nn.Identity()
    assert torch.count_nonzero(low(x, x, x)[0]) == 0
