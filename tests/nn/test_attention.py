"""LowRankMultiheadAttention against torch's layer with the materialised weights; masks; draws."""

import copy
import itertools
import math
import pickle

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

import singularbayes as sb
from singularbayes.nn import LowRankLinear, LowRankMultiheadAttention
from singularbayes.testing import check_method

OPTIONS = list(itertools.product([False, True], repeat=4))


def attention(**settings) -> LowRankMultiheadAttention:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        low = LowRankMultiheadAttention(12, 3, 2, **{"dtype": torch.float64, **settings})
        with torch.no_grad():
            for p in low.parameters():  # away from zero biases
                p.add_(0.3 * torch.randn(p.shape))
        return low


def inputs(low: LowRankMultiheadAttention, batch=4, queries=5, keys=7, seed=0) -> list[torch.Tensor]:
    source = torch.Generator().manual_seed(seed)
    shapes = ((queries, 12), (keys, low.kdim), (keys, low.vdim))
    scales = [torch.logspace(-1.5, 0, size) for _, size in shapes]  # badly scaled on purpose
    tensors = [
        torch.randn(batch, *shape, generator=source) * s for shape, s in zip(shapes, scales, strict=True)
    ]
    tensors = [t if low.batch_first else t.transpose(0, 1) for t in tensors]
    return [t.to(low.q_proj.A.dtype).requires_grad_() for t in tensors]


def by_hand(low, query, key, value, allowed=None):
    """Output and weights ``(N, H, L, S)`` of batch-first inputs, one item, head and query at a time."""
    layers = (low.q_proj, low.k_proj, low.v_proj)
    q, k, v = (
        x.double() @ layer.weight.double().T + layer.bias.double()
        for x, layer in zip((query, key, value), layers, strict=True)
    )
    n, length, keys, d = len(q), q.shape[1], k.shape[1], low.head_dim
    weights, context = (
        torch.zeros(n, low.num_heads, length, keys).double(),
        torch.zeros(n, length, 12).double(),
    )
    for i, h, row in itertools.product(range(n), range(low.num_heads), range(length)):
        part = slice(h * d, (h + 1) * d)
        chosen = [j for j in range(keys) if allowed is None or allowed[i, h, row, j]]
        if not chosen:
            continue
        scores = torch.stack([q[i, row, part] @ k[i, j, part] / math.sqrt(d) for j in chosen])
        weights[i, h, row, chosen] = scores.softmax(0)
        context[i, row, part] = scores.softmax(0) @ v[i, chosen, part]
    return context @ low.out_proj.weight.double().T + low.out_proj.bias.double(), weights


def gradients(outputs, tensors):
    loss = sum((out * torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view(out.shape)).sum()
               for out in outputs if out is not None)  # fmt: skip
    return torch.autograd.grad(loss, tensors)


@pytest.mark.parametrize(("batch_first", "bias_kv", "zero", "sizes"), OPTIONS)
def test_it_is_the_stock_layer_with_its_weights(batch_first, bias_kv, zero, sizes):
    for dtype, tolerance in ((torch.float32, 1e-6), (torch.float64, 1e-12)):
        low = attention(batch_first=batch_first, add_bias_kv=bias_kv, add_zero_attn=zero, dtype=dtype,
                        **({"kdim": 8, "vdim": 10} if sizes else {}))  # fmt: skip
        stock = low.to_layer()
        query, key, value = inputs(low)
        padding = torch.zeros(4, 7, dtype=torch.bool)
        padding[0, 3:] = padding[2, :2] = True
        blocked = torch.rand(12, 5, 7, generator=torch.Generator().manual_seed(2)) < 0.2
        blocked[..., 2] = False
        added = torch.randn(5, 7, generator=torch.Generator().manual_seed(3)).to(dtype)
        floats = torch.zeros(4, 7, dtype=dtype).masked_fill(padding, -torch.inf)
        for weights, average, (pad, mask) in itertools.product(
            (True, False), (True, False), ((None, None), (padding, None), (padding, blocked), (None, blocked),
                                           (None, added), (floats, added)),
        ):  # fmt: skip
            got = low(query, key, value, pad, weights, mask, average)
            expected = stock(query, key, value, pad, weights, mask, average)
            assert (got[1] is None) == (expected[1] is None) == (not weights)
            for a, b in zip(got, expected, strict=True):
                if a is not None:
                    torch.testing.assert_close(a, b, rtol=2 * tolerance, atol=2 * tolerance)
                    assert a.shape == b.shape
            for a, b in zip(*(gradients(out, (query, key, value)) for out in (got, expected)), strict=True):
                torch.testing.assert_close(a, b, rtol=10 * tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("need_weights", [True, False])
def test_it_is_attention_worked_out_item_by_item(need_weights):
    low = attention(batch_first=True)
    query, key, value = inputs(low)
    allowed = torch.rand(4, 3, 5, 7, generator=torch.Generator().manual_seed(1)) < 0.6
    allowed[1, :, :, 4:] = False
    allowed[2, 0, 3] = False  # one head of one query sees nothing
    output, weights = low(
        query, key, value, None, need_weights, ~allowed.flatten(0, 1), average_attn_weights=False
    )
    expected, expected_weights = by_hand(low, query, key, value, allowed)
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)
    if need_weights:
        torch.testing.assert_close(weights, expected_weights, rtol=0, atol=1e-12)
    # mutants that the comparison must tell apart
    swapped = copy.deepcopy(low)
    swapped.q_proj, swapped.k_proj = low.k_proj, low.q_proj
    turned = copy.deepcopy(low)
    with torch.no_grad():  # heads interleaved instead of in blocks
        for layer in (turned.q_proj, turned.k_proj, turned.v_proj):
            layer.A.copy_(layer.A.view(3, 4, 2).transpose(0, 1).reshape(12, 2))
    unmasked = allowed.clone()
    unmasked[1] = True  # the mask of one item ignored
    for wrong, mask in ((swapped, allowed), (turned, allowed), (low, unmasked)):
        off = wrong(query, key, value, None, False, ~mask.flatten(0, 1))[0]
        assert (off - expected).abs().max() > 1e-2


def test_unbatched_inputs_are_a_batch_of_one():
    for batch_first in (False, True):
        low = attention(batch_first=batch_first)
        stock = low.to_layer()
        query, key, value = (t[:, 0] if not batch_first else t[0] for t in inputs(low))
        padding = torch.tensor([False] * 5 + [True] * 2)
        blocked = torch.rand(3, 5, 7, generator=torch.Generator().manual_seed(2)) < 0.2
        blocked[..., 0] = False
        for weights, average in itertools.product((True, False), repeat=2):
            got = low(query, key, value, padding, weights, blocked, average)
            expected = stock(query, key, value, padding, weights, blocked, average)
            torch.testing.assert_close(got[0], expected[0], rtol=0, atol=1e-12)
            if weights:
                torch.testing.assert_close(got[1], expected[1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("kind", ["boolean", "float"])
def test_an_item_without_keys_is_finite_and_leaves_the_others_alone(need_weights, kind):
    # torch's layer gives nan for item 1, and nan gradients for the shared weights (pytorch#103749)
    low = attention(batch_first=True)
    query, key, value = inputs(low)
    padding = torch.zeros(4, 7, dtype=torch.bool)
    padding[0, 4:] = padding[1] = True
    mask = padding if kind == "boolean" else torch.zeros(4, 7).double().masked_fill(padding, -torch.inf)
    output, weights = low(query, key, value, mask, need_weights)
    torch.testing.assert_close(output[1], low.out_proj.bias.expand(5, 12), rtol=0, atol=0)
    if need_weights:
        assert torch.count_nonzero(weights[1]) == 0
    moved = [*gradients((output, weights), [query, key, value, *low.parameters()])]
    assert all(torch.isfinite(g).all() for g in moved)
    assert all(torch.count_nonzero(g[1]) == 0 for g in moved[:3])
    others = [0, 2, 3]
    expected = low.to_layer()(*(t[others] for t in (query, key, value)), mask[others], need_weights)[0]
    torch.testing.assert_close(output[others], expected, rtol=0, atol=1e-12)
    stock = low.to_layer()(query, key, value, mask, True)[0]
    assert torch.isnan(stock[1]).all()  # once torch has a number there, the choice needs another look


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("padded", [False, True])
def test_causal_is_a_mask_of_its_own_or_a_hint(need_weights, padded):
    for settings in ({}, {"add_bias_kv": True, "add_zero_attn": True}):
        low = attention(batch_first=True, **settings)
        query, key, value = inputs(low, queries=7)
        future = torch.ones(7, 7, dtype=torch.bool).triu(1)
        padding = torch.zeros(4, 7, dtype=torch.bool)
        padding[1, 5:] = True
        pad = padding if padded else None
        expected = low.to_layer()(query, key, value, pad, True, future)[0]
        for mask, hint in ((None, True), (future, True), (future, False)):  # torch raises for the first
            got = low(query, key, value, pad, need_weights, mask, is_causal=hint)[0]
            torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)
        other = future.flip(
            0, 1
        )  # not causal: torch drops it for the hint's sake, without padding and weights
        got = low(query, key, value, pad, need_weights, other, is_causal=True)[0]
        truth = low(query, key, value, pad, True, other)[0]
        torch.testing.assert_close(got, truth, rtol=0, atol=1e-12)


def test_dropout_is_the_stock_layers_and_only_in_training():
    low = attention(batch_first=True, dropout=0.4)
    stock = low.to_layer()
    assert stock.dropout == 0.4
    data = inputs(low)
    for weights in (True, False):
        torch.manual_seed(5)
        got = low(*data, need_weights=weights)[0]
        torch.manual_seed(5)
        torch.testing.assert_close(got, stock(*data, need_weights=weights)[0], rtol=0, atol=1e-12)
        assert not torch.equal(got, low(*data, need_weights=weights)[0])
    assert torch.equal(low.eval()(*data)[0], low(*data)[0])


def test_draws_by_vmap_are_those_of_the_loop():
    low = attention(batch_first=True).eval()
    x = inputs(low)[0].detach()
    padding = torch.zeros(4, 5, dtype=torch.bool)
    padding[1] = padding[2, 3:] = True
    draws = {n: torch.randn(3, *p.shape, dtype=p.dtype) for n, p in low.named_parameters()}
    for weights in (True, False):

        def one(tensors, weights=weights):
            return functional_call(low, tensors, (x, x, x, padding, weights))[0]

        with sdpa_kernel(SDPBackend.MATH):
            batched = vmap(one)(draws)
        loop = torch.stack([one({n: t[i] for n, t in draws.items()}) for i in range(3)])
        torch.testing.assert_close(batched, loop, rtol=0, atol=1e-12)


def test_the_start_has_glorot_variance_and_no_biases():
    torch.manual_seed(1)
    layers = [LowRankMultiheadAttention(40, 2, 4, kdim=60) for _ in range(100)]
    for name, size in (("q_proj_weight", 40), ("k_proj_weight", 60), ("v_proj_weight", 40)):
        squares = torch.stack([getattr(layer, name).detach().square().mean() for layer in layers])
        error = squares.std().item() / math.sqrt(100)
        assert abs(squares.mean().item() - 2 / (40 + size)) < 4 * error  # false alarm 6e-5 each
        assert abs(squares.mean().item() - 2 / size) > 4 * error  # mutant: He
    assert torch.count_nonzero(layers[0].in_proj_bias) == 0
    assert torch.count_nonzero(layers[0].out_proj.bias) == 0


@pytest.mark.parametrize("sizes", [{}, {"kdim": 20, "vdim": 15}])
@pytest.mark.parametrize("diagonal", [False, True])
def test_an_svd_start_at_full_rank_is_the_stock_layer(sizes, diagonal):
    stock = nn.MultiheadAttention(12, 3, 0.1, add_bias_kv=True, add_zero_attn=True, batch_first=True,
                                  dtype=torch.float64, **sizes)  # fmt: skip
    nn.init.normal_(stock.in_proj_bias)
    stock.out_proj.bias.requires_grad_(False)
    low = LowRankMultiheadAttention.from_layer(stock.eval(), 12, init="svd", diagonal=diagonal)
    assert not low.training
    assert not low.out_proj.bias.requires_grad
    assert low.q_proj.bias.requires_grad
    data = inputs(low)
    torch.testing.assert_close(low(*data), stock(*data), rtol=0, atol=1e-12)
    back = low.to_layer()
    for (name, new), (_, old) in zip(back.named_parameters(), stock.named_parameters(), strict=True):
        torch.testing.assert_close(new, old, rtol=0, atol=1e-13)
        assert new.requires_grad == old.requires_grad, name
    assert LowRankMultiheadAttention.matrices(stock) == {
        "q_proj_weight": (12, 12), "k_proj_weight": (12, low.kdim), "v_proj_weight": (12, low.vdim),
        "out_proj.weight": (12, 12),
    }  # fmt: skip
    if not sizes:
        torch.testing.assert_close(low.in_proj_weight.as_subclass(torch.Tensor), stock.in_proj_weight)
    torch.testing.assert_close(low.in_proj_bias, stock.in_proj_bias)
    random = LowRankMultiheadAttention.from_layer(stock, 2)
    assert not torch.equal(random.bias_k, stock.bias_k)


def test_ranks_by_pattern_or_cut_to_narrow_matrices():
    with pytest.warns(UserWarning, match=r"saves no parameters in k_proj_weight \(12 x 2, rank 2"):
        low = LowRankMultiheadAttention(12, 3, 4, kdim=2, vdim=30)
    assert [p.rank for p in (low.q_proj, low.k_proj, low.v_proj, low.out_proj)] == [4, 2, 4, 4]
    low = LowRankMultiheadAttention(12, 3, {"k_*": 1, "*_proj_weight": 3, "out*": 2})
    assert [p.rank for p in (low.q_proj, low.k_proj, low.v_proj, low.out_proj)] == [3, 1, 3, 2]
    with pytest.raises(ValueError, match=r"rank 13 is outside 1\.\.12"):
        LowRankMultiheadAttention(12, 3, 13, kdim=2)
    with pytest.raises(ValueError, match=r"k_proj_weight: rank 3 is outside 1\.\.2"):
        LowRankMultiheadAttention(12, 3, {"*": 3}, kdim=2)
    with pytest.raises(ValueError, match="'qproj' matches no matrix; nearest names: q_proj_weight"):
        LowRankMultiheadAttention(12, 3, {"qproj": 3, "*": 2})
    with pytest.raises(ValueError, match=r"no rank pattern matches out_proj\.weight"):
        LowRankMultiheadAttention(12, 3, {"*_proj_weight": 3})
    with pytest.warns(UserWarning, match=r"saves no parameters in .*rank 6: below 6\.0"):
        LowRankMultiheadAttention(12, 3, 6)


@pytest.mark.parametrize(
    ("padding", "mask", "error", "message"),
    [
        (
            torch.zeros(7, 4).bool(),
            None,
            ValueError,
            r"key_padding_mask has shape \(7, 4\), expected \(4, 7\)",
        ),
        (torch.zeros(4, 7).long(), None, TypeError, r"key_padding_mask must be boolean .* got torch\.int64"),
        (None, torch.zeros(7, 5), ValueError, r"\(7, 5\), expected \(5, 7\) or \(12, 5, 7\)"),
        (None, torch.zeros(4, 5, 7), ValueError, r"attn_mask has shape \(4, 5, 7\)"),
        (None, torch.zeros(5, 7).int(), TypeError, r"attn_mask must be boolean"),
    ],
)
def test_masks_that_do_not_fit_are_refused_before_any_work(padding, mask, error, message):
    low = attention(batch_first=True)
    low.q_proj.forward = None  # any work would fail on it
    with pytest.raises(error, match=message):
        low(*inputs(low), padding, True, mask)


def test_inputs_that_do_not_fit_are_refused():
    low = attention(batch_first=True)
    query, key, value = inputs(low)
    for wrong in ((query, key[:3], value[:3]), (query, key, value[:, :6]), (query[..., :11], key, value),
                  (query, key[0], value[0]), (query[None], key[None], value[None])):  # fmt: skip
        with pytest.raises(ValueError, match="query, key and value must"):
            low(*wrong)
    with pytest.raises(ValueError, match="num_heads must divide embed_dim"):
        LowRankMultiheadAttention(12, 5, 2)


def test_copies_pickles_casts_and_files_work_after_a_backward_pass(tmp_path):
    low = attention(batch_first=True, add_bias_kv=True)
    data = inputs(low)
    low(*data)[0].sum().backward()
    assert all(p.grad is not None for p in low.parameters())
    for copied in (copy.deepcopy(low), pickle.loads(pickle.dumps(low))):
        assert torch.equal(copied(*data)[0], low(*data)[0])
    torch.save(low.state_dict(), tmp_path / "attention.pt")
    other = attention(batch_first=True, add_bias_kv=True)
    other.reset_parameters()
    other.load_state_dict(torch.load(tmp_path / "attention.pt", weights_only=True))
    assert torch.equal(other(*data)[0], low(*data)[0])
    assert low.float()(*(t.float() for t in data))[0].dtype == torch.float32
    assert low.to("meta")(*(t.to("meta") for t in data))[0].device.type == "meta"  # no tensor left behind


def test_autocast_and_low_precision_masks():
    low = attention(batch_first=True, dtype=torch.float32)
    x = inputs(low)[0]
    padding = torch.zeros(4, 5)
    padding[0] = -torch.inf
    plain = low(x, x, x, padding, False)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        half = low(x, x, x, padding, False)[0]
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), plain, rtol=0.1, atol=0.3)


@pytest.mark.usefixtures("unchecked")  # dynamo does not follow the checks of annotations
def test_a_compiled_layer_has_the_same_numbers():
    low = attention(batch_first=True)
    x = inputs(low)[0].detach()
    padding = torch.zeros(4, 5, dtype=torch.bool)
    padding[1] = True
    compiled = torch.compile(low, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, x, x, padding, False)[0], low(x, x, x, padding, False)[0])


class Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = LowRankMultiheadAttention(8, 2, 2, dropout=0.1, batch_first=True)
        self.feed = LowRankLinear(8, 2, 1)

    def forward(self, x):
        return self.feed(self.attention(x, x, x, need_weights=False)[0].mean(1))


METHODS = {
    "MeanField": sb.MeanField(epochs=1),
    "MAP": sb.MAP(epochs=1),
    "DeepEnsemble": sb.DeepEnsemble(members=2, member=sb.MAP(epochs=1)),
}


@pytest.mark.parametrize("method", METHODS)
def test_methods_keep_their_contract_with_it(method):
    source = torch.Generator().manual_seed(2)
    x = torch.randn(40, 3, 8, generator=source)
    y = (x[:, 0, 0] > 0).long()
    check_method(METHODS[method], network=Pooled(), likelihood=sb.Categorical(), data=(x, y))
