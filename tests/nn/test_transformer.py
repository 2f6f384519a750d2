"""torch's own encoder and decoder layers with low-rank parts put in by hand."""

import copy
import itertools
import warnings

import pytest
import torch
from torch import nn
from torch.func import functional_call

import singularbayes as sb
from singularbayes.functions import Way, evaluate, way_for
from singularbayes.nn import LowRankEmbedding, LowRankLinear, LowRankMultiheadAttention
from singularbayes.parameters import Layout
from singularbayes.testing import check_method

LOW = (LowRankMultiheadAttention, LowRankLinear, LowRankEmbedding)


def replaced(network, rank, kinds=LOW, init="random"):
    """A copy with low-rank layers in the places of the stock ones of these kinds; narrow ones stay."""
    network = copy.deepcopy(network)
    for module in list(network.modules()):
        for name, child in module.named_children():
            for kind in kinds:
                if type(child) is kind.replaces and min(min(kind.matrices(child).values())) > rank:
                    setattr(module, name, kind.from_layer(child, rank, init=init))
    return network


def dense(network):
    """A copy with the stock layers that hold the same weights."""
    network = copy.deepcopy(network)
    for module in list(network.modules()):
        for name, child in module.named_children():
            if isinstance(child, LOW):
                setattr(module, name, child.to_layer())
    return network


def inputs(batch_first, seed=0):
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(3, 5, 16, generator=source) * torch.logspace(-1, 0.5, 16)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2, [False] * 4 + [True]])
    return x if batch_first else x.transpose(0, 1), padding


def seen(output, padding, batch_first):
    """Outputs at places that are no padding: torch's nested tensors leave 0 at the others."""
    return (output if batch_first else output.transpose(0, 1))[~padding]


@pytest.mark.parametrize("kinds", [LOW, (LowRankLinear,), (LowRankMultiheadAttention,)])
@pytest.mark.parametrize(("norm_first", "batch_first"), list(itertools.product([False, True], repeat=2)))
@pytest.mark.filterwarnings("ignore:.*nested tensors")  # torch's own, from the stock encoder's fast path
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
def test_an_encoder_is_the_stock_one_with_the_same_weights(kinds, norm_first, batch_first):
    torch.manual_seed(1)
    dropout = 0.0 if batch_first else 0.1  # torch's strides put its masks elsewhere with batch_first
    layer = nn.TransformerEncoderLayer(16, 4, 24, dropout, batch_first=batch_first, norm_first=norm_first)
    low = replaced(nn.TransformerEncoder(layer, 2, nn.LayerNorm(16)), 3, kinds)
    for p in low.parameters():
        nn.init.normal_(p, std=0.3)
    stock = dense(low)
    x, padding = inputs(batch_first)
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    floats = torch.zeros(3, 5).masked_fill(padding, -torch.inf)
    cases = [
        {},
        {"src_key_padding_mask": padding},
        {"mask": causal},
        {"mask": causal, "is_causal": True},
        {"mask": causal, "src_key_padding_mask": floats},
        {"mask": torch.ones(5, 5).triu(1).bool()},
    ]
    for training, masks, grad in itertools.product((True, False), cases, (True, False)):
        low.train(training)
        stock.train(training)
        hidden = padding if "src_key_padding_mask" in masks else torch.zeros_like(padding)
        with torch.set_grad_enabled(grad):  # eval without gradients: the stock layers' fast path
            torch.manual_seed(3)
            got = low(x, **masks)
            torch.manual_seed(3)
            expected = stock(x, **masks)
        torch.testing.assert_close(seen(got, hidden, batch_first), seen(expected, hidden, batch_first),
                                   rtol=1e-5, atol=3e-6)  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*nested tensors")
def test_torchs_fused_kernels_are_never_reached(monkeypatch):
    def refuse(*arguments, **settings):
        raise AssertionError("the fast path was taken")

    torch.manual_seed(1)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 24, batch_first=True), 2).eval()
    x, padding = inputs(True)
    low = replaced(encoder, 3, (LowRankMultiheadAttention,))
    without_bias = copy.deepcopy(low)
    for layer in without_bias.layers:
        layer.self_attn = LowRankMultiheadAttention(16, 4, 3, bias=False, batch_first=True)
    for name in (
        "_transformer_encoder_layer_fwd",
        "_native_multi_head_attention",
        "_nested_tensor_from_mask",
    ):
        monkeypatch.setattr(torch, name, refuse)
    with pytest.raises(AssertionError, match="fast path"), torch.no_grad():
        encoder(x, src_key_padding_mask=padding)
    for network, mode in itertools.product((low, without_bias), (torch.no_grad, torch.enable_grad)):
        with mode():
            assert torch.isfinite(network(x, src_key_padding_mask=padding)).all()
            assert torch.isfinite(network(x)).all()
    with pytest.warns(UserWarning, match="enable_nested_tensor is True"):
        assert not nn.TransformerEncoder(low.layers[0], 1).use_nested_tensor


@pytest.mark.filterwarnings("ignore:.*nested tensors")
def test_a_stock_layer_before_a_low_rank_one_hands_on_nested_tensors():
    torch.manual_seed(1)
    low = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 24, batch_first=True), 2).eval()
    low.layers[1] = replaced(low.layers[1], 3)
    x, padding = inputs(True)
    with torch.no_grad():
        got, expected = (net(x, src_key_padding_mask=padding) for net in (low, dense(low)))
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=3e-6)
    nested = torch.nested.nested_tensor([x[0], x[1, :3]])
    with pytest.raises(ValueError, match="nested tensor is taken for self-attention"):
        low.layers[1].self_attn(nested, nested, nested)


@pytest.mark.parametrize(("norm_first", "batch_first"), list(itertools.product([False, True], repeat=2)))
def test_encoder_and_decoder_are_the_stock_ones_with_the_same_weights(norm_first, batch_first):
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about nested tensors, which are off for these options
        dropout = 0.0 if batch_first else 0.1  # as above
        stock = nn.Transformer(16, 4, 1, 2, 24, dropout, batch_first=batch_first, norm_first=norm_first)
        low = replaced(stock, 3)
        stock = dense(low)
    assert sum(isinstance(m, LowRankMultiheadAttention) for m in low.modules()) == 5
    x, padding = inputs(batch_first)
    target = inputs(batch_first, seed=1)[0]
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    floats = torch.zeros(3, 5).masked_fill(padding, -torch.inf)
    cases = [
        {},
        {"tgt_mask": causal, "tgt_is_causal": True},
        {"tgt_mask": causal, "tgt_key_padding_mask": floats, "memory_key_padding_mask": padding},
    ]
    for training, masks, grad in itertools.product((True, False), cases, (True, False)):
        outputs = []
        for network in (low, stock):
            torch.manual_seed(3)
            with torch.set_grad_enabled(grad):
                outputs.append(network.train(training)(x, target, **masks))
        torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-5, atol=3e-6)
    low.train()
    low(x, target, **cases[2]).square().sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in low.parameters())


def test_an_item_of_padding_alone_does_not_spoil_a_training_step():
    # torch's layer turns the whole gradient to nan (pytorch#103749)
    low = replaced(nn.TransformerEncoderLayer(16, 4, 24, 0.0, batch_first=True), 3)
    x, padding = inputs(True)
    alone = low(x, src_key_padding_mask=padding)
    padding[1] = True
    output = low(x, src_key_padding_mask=padding)
    torch.testing.assert_close(output[[0, 2]], alone[[0, 2]])
    output.sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in low.parameters())


def copied(network, draws, i):
    network = copy.deepcopy(network)
    network.load_state_dict({name: stack[i] for name, stack in draws.items()})
    return network


def test_draws_of_linear_layers_inside_a_stock_layer_are_used():
    # the stock layer's fast path reads .weight: it must be that of the draw
    torch.manual_seed(1)
    low = replaced(nn.TransformerEncoderLayer(16, 4, 24, batch_first=True), 3, (LowRankLinear,)).eval()
    assert type(low.self_attn) is nn.MultiheadAttention
    x = inputs(True)[0]
    draws = {n: p + 0.3 * torch.randn(4, *p.shape) for n, p in low.named_parameters()}
    expected = [dense(copied(low, draws, i))(x) for i in range(4)]
    with torch.no_grad():
        got = [functional_call(low, {n: t[i] for n, t in draws.items()}, (x,)) for i in range(4)]
    torch.testing.assert_close(torch.stack(got), torch.stack(expected), rtol=1e-5, atol=3e-6)
    assert (got[0] - low(x)).abs().max() > 0.01
    layout = Layout.of(low)
    assert layout.flatten(low).numel() == sum(p.numel() for p in low.parameters())
    rows = torch.stack([layout.flatten(copied(low, draws, i)) for i in range(4)])
    batched = evaluate(low, layout, rows, x, Way.VMAP)
    torch.testing.assert_close(batched, torch.stack(expected), rtol=1e-5, atol=3e-6)


class Classifier(nn.Module):
    """Pre-norm, a learned position, the first token's state classified."""

    def __init__(self, vocabulary=13, size=16, layers=1, heads=2, feed=24, length=6) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, size, padding_idx=0)
        self.positions = nn.Parameter(torch.randn(length, size))
        layer = nn.TransformerEncoderLayer(size, heads, feed, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, nn.LayerNorm(size), enable_nested_tensor=False)
        self.head = nn.Linear(size, 2)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions[: ids.shape[1]]
        return self.head(self.encoder(x, src_key_padding_mask=ids == 0)[:, 0])


def test_the_papers_transformer_has_its_number_of_factor_entries():
    network = replaced(Classifier(30_522, 256, 4, 4, 512, 64).to("meta"), 16)
    assert type(network.head) is nn.Linear
    factors = sum(p.numel() for name, p in network.named_parameters() if name.endswith((".A", ".B")))
    assert 2 * factors == 1_443_648  # means and rhos
    patterns = ("*.A", "*.B")
    assert Layout.of(network, bayesian=patterns).belief == factors
    assert network(torch.ones(2, 64, dtype=torch.long, device="meta")).shape == (2, 2)


def test_the_transformer_trains_and_predicts_alike_by_vmap_and_loop():
    torch.manual_seed(0)
    source = torch.Generator().manual_seed(0)
    ids = torch.randint(1, 13, (96, 6), generator=source)
    ids[:, 4:][torch.rand(96, 2, generator=source) < 0.4] = 0
    y = (ids[:, 1:4] > 6).any(1).long()
    network = replaced(Classifier(), 3)
    posterior = sb.MeanField(epochs=2).fit(sb.Model(network, sb.Categorical()), (ids, y))
    assert way_for(network) is Way.VMAP
    draws = posterior.draw(4)
    batched, loop = (
        evaluate(posterior.network, posterior.layout, draws, ids, way) for way in (Way.VMAP, Way.LOOP)
    )
    torch.testing.assert_close(batched, loop, rtol=1e-5, atol=1e-5)
    stock = dense(posterior.network)
    for row, output in zip(draws, loop, strict=True):
        one = copy.deepcopy(posterior.network)
        one.load_state_dict({n: posterior.layout.views(row).get(n, t) for n, t in one.state_dict().items()})
        torch.testing.assert_close(dense(one)(ids), output, rtol=1e-5, atol=1e-5)
    assert type(stock.encoder.layers[0].self_attn) is nn.MultiheadAttention


@pytest.mark.parametrize("method", [sb.MeanField(epochs=1), sb.MAP(epochs=1)])
def test_methods_keep_their_contract_on_a_low_rank_transformer(method):
    ids = torch.randint(13, (40, 6), generator=torch.Generator().manual_seed(2))
    ids[:, 0] = 1
    network = replaced(Classifier(), 3)
    check_method(method, network=network, likelihood=sb.Categorical(), data=(ids, ids[:, 1] % 2))
