"""factorize on whole networks: every structure, torch's Transformer layers, ties."""

import copy

import pytest
import torch
from torch import nn

import singularbayes as sb
from singularbayes.nn.conversion import STRUCTURES

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*saves no parameters", "ignore:.*enable_nested_tensor", "ignore:.*nested tensors is in prototype"
)


def layers() -> dict[str, tuple[nn.Module, torch.Tensor]]:
    """A stock layer of every kind that has a low-rank form, unequal sides, with an input."""
    return {
        "linear": (nn.Linear(9, 7), torch.randn(3, 9)),
        "linear without bias": (nn.Linear(9, 7, bias=False), torch.randn(3, 9)),
        "embedding": (nn.Embedding(11, 5, padding_idx=2), torch.randint(0, 11, (3, 4))),
        "conv1d": (nn.Conv1d(4, 6, 3, stride=2, padding=1), torch.randn(2, 4, 9)),
        "conv2d": (nn.Conv2d(4, 6, 3, groups=2, padding_mode="reflect", padding=1), torch.randn(2, 4, 5, 5)),
        "conv3d": (nn.Conv3d(2, 5, (1, 3, 2), bias=False), torch.randn(2, 2, 3, 4, 4)),
        "lstm": (nn.LSTM(5, 6, 2, batch_first=True, bidirectional=True), torch.randn(2, 4, 5)),
        "gru": (nn.GRU(5, 6, 2, bias=False), torch.randn(4, 2, 5)),
        "attention": (nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(2, 4, 8)),
        "attention of three sizes": (
            nn.MultiheadAttention(8, 2, kdim=6, vdim=5, bias=False),
            torch.randn(4, 2, 8),
        ),
    }


KINDS = list(layers())


class Wrapped(nn.Module):
    """One tensor in, one out, whatever the layer takes."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x):
        name = type(self.layer).__name__
        inputs = (x,)
        if name.endswith("MultiheadAttention"):
            inputs = (x, x[..., : self.layer.kdim], x[..., : self.layer.vdim])
        output = self.layer(*inputs)
        return output[0] if isinstance(output, tuple) else output


def full_rank(layer: nn.Module) -> int:
    structure = next(s for s in STRUCTURES if s.replaces is type(layer))
    return max(min(sides) for sides in structure.matrices(layer).values())


@pytest.mark.parametrize("diagonal", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_every_structure_at_full_rank_is_the_stock_layer(kind, diagonal):
    layer, x = layers()[kind]
    network = Wrapped(layer.double())
    x = x.double() if x.is_floating_point() else x
    low = sb.factorize(network, full_rank(layer), init="svd", diagonal=diagonal)
    assert isinstance(low.layer, STRUCTURES)
    assert any(name.rpartition(".")[2].startswith("s") for name, _ in low.named_parameters()) is diagonal
    torch.testing.assert_close(low(x), network(x), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("only_layer", [False, True])
def test_the_list_counts_what_the_network_holds(kind, only_layer):
    layer, _ = layers()[kind]
    network = layer if only_layer else Wrapped(layer)
    state = copy.deepcopy(network.state_dict())
    modules = list(network.modules())
    low = sb.factorize(network, 2, diagonal=True)
    assert low.factorization == sb.nn.plan(network, 2, diagonal=True)
    assert low.factorization.before == sum(p.numel() for p in network.parameters())
    assert low.factorization.after == sum(p.numel() for p in low.parameters())
    (change,) = low.factorization.changes
    assert (change.layer, set(change.ranks.values())) == (type(layer).__name__, {2})
    # the user's network is as it was
    assert list(network.modules()) == modules
    assert all(torch.equal(state[name], value) for name, value in network.state_dict().items())


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("layers_", ["*", "*linear*", "*self_attn"])
def test_a_stock_encoder_with_low_rank_layers_is_the_same_function(norm_first, layers_):
    stock = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, norm_first=norm_first, dropout=0.0)
    network = nn.TransformerEncoder(stock, 2).double()
    low = sb.factorize(network, 8, init="svd", layers=layers_)
    x, padding = torch.randn(3, 5, 8).double(), torch.zeros(3, 5, dtype=torch.bool)
    padding[1, 3:] = (
        True  # in eval mode without gradients torch takes its fused path, which reads the weights
    )
    kept = ~padding
    for training in (True, False):
        for gradients in (True, False):
            with torch.set_grad_enabled(gradients):
                expected = network.train(training)(x, src_key_padding_mask=padding)
                got = low.train(training)(x, src_key_padding_mask=padding)
            torch.testing.assert_close(got[kept], expected[kept], rtol=1e-9, atol=1e-10)
    kinds = {type(m).__name__ for m in low.modules()}
    assert ("LowRankMultiheadAttention" in kinds) is (layers_ != "*linear*")


def test_a_stock_transformer_with_decoder_is_the_same_function():
    network = nn.Transformer(8, 2, 1, 1, 12, dropout=0.0, batch_first=True).double()
    low = sb.factorize(network, 8, init="svd")
    source, target = torch.randn(3, 5, 8).double(), torch.randn(3, 4, 8).double()
    mask = nn.Transformer.generate_square_subsequent_mask(4, dtype=torch.float64)
    torch.testing.assert_close(
        low(source, target, tgt_mask=mask), network(source, target, tgt_mask=mask), rtol=1e-9, atol=1e-10
    )
    kept = {c.layer for c in low.factorization.changes if not c.ranks}
    assert kept == {"LayerNorm"}


def test_attention_is_converted_whole_or_named_with_its_output_layer():
    # LoRA-Torch wraps out_proj, whose forward nn.MultiheadAttention never calls: the adapter does nothing
    network = nn.TransformerDecoderLayer(12, 2, dim_feedforward=24, batch_first=True)
    low = sb.factorize(network, 3, layers=["linear*", "self_attn"])
    listed = {c.name: c for c in low.factorization.changes}
    assert isinstance(low.self_attn, sb.nn.LowRankMultiheadAttention)
    assert "self_attn.out_proj" not in listed
    assert type(low.multihead_attn) is nn.MultiheadAttention
    assert listed["multihead_attn"].reason == "no pattern of layers matches"
    assert "which reads the weight itself" in listed["multihead_attn.out_proj"].reason
    assert low.factorization.after == sum(p.numel() for p in low.parameters())
    with pytest.raises(ValueError, match=r"self_attn.out_proj is a NonDynamicallyQuantizableLinear"):
        sb.factorize(network, 3, layers="self_attn.out_proj")


def test_the_text_transformer_has_the_published_count():
    network = nn.ModuleDict({
        "embedding": nn.Embedding(30_522, 256, device="meta"),
        "encoder": nn.TransformerEncoder(nn.TransformerEncoderLayer(256, 4, 512, device="meta"), 4),
        "head": nn.Linear(256, 2, device="meta"),
    })  # fmt: skip
    low = sb.factorize(network, {"embedding": 16, "encoder.*": 16})
    layout = sb.Model(low.to_empty(device="cpu"), sb.Categorical(), bayesian=["*.A", "*.B"]).layout
    assert 2 * layout.belief == 1_443_648  # means and rhos of the factors


def test_the_paper_s_lstm_gets_its_ranks_by_matrix():
    network = nn.ModuleDict({"rnn": nn.LSTM(15, 64, 2, batch_first=True), "head": nn.Linear(64, 1)})
    low = sb.factorize(network, {"rnn.weight_ih*": 14, "rnn.weight_hh*": 20, "head": 1})
    assert low.rnn.ranks == {"weight_ih_l0": 14, "weight_hh_l0": 20, "weight_ih_l1": 14, "weight_hh_l1": 20}
    factors = 14 * (256 + 15) + 14 * (256 + 64) + 2 * 20 * (256 + 64) + 65
    assert low.factorization.after == factors + 4 * 256 + 1 == sum(p.numel() for p in low.parameters())
    text = str(low.factorization)
    assert "  weight_ih_l0" in text
    assert "256 x 15" in text
    with pytest.raises(ValueError, match=r"no rank pattern matches rnn\.weight_hh_l0, but other matrices"):
        sb.factorize(network, {"rnn.weight_ih*": 14})
    with pytest.raises(ValueError, match=r"rnn\.weight_ih_l0: rank 16 is outside 1\.\.15"):
        sb.factorize(network, {"rnn": 16})
    cut = sb.factorize(network, 20)
    assert cut.rnn.ranks["weight_ih_l0"] == 15
    assert cut.factorization.changes[0].notes == {"weight_ih_l0": "cut from 20, saves nothing at this rank"}


class TiedHead(nn.Module):
    def __init__(self, padding_idx: int | None = None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 12, padding_idx=padding_idx)
        self.body = nn.Linear(12, 12)
        self.head = nn.Linear(12, 20, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        return self.head(self.body(self.embedding(ids)))


def reordered() -> nn.Module:
    network, order = TiedHead(), nn.Module()
    order.head, order.body, order.embedding = network.head, network.body, network.embedding
    return order


@pytest.mark.parametrize("make", [TiedHead, reordered])
@pytest.mark.parametrize("pattern", ["embedding", "head"])
@pytest.mark.parametrize("diagonal", [False, True])
def test_a_tied_head_and_its_embedding_share_their_factors(make, pattern, diagonal):
    # dnn_to_bnn unties: 2 x 240 numbers where the network has 240
    network = make()
    low = sb.factorize(network, {"body": 3, pattern: 4}, diagonal=diagonal)
    assert low.head.A is low.embedding.A
    assert low.head.B is low.embedding.B
    assert low.head.s is low.embedding.s
    assert network.head.weight is network.embedding.weight
    assert low.factorization.after == sum(p.numel() for p in low.parameters())
    assert low.factorization.before == sum(p.numel() for p in network.parameters())
    assert any("shares its factors with" in c.reason for c in low.factorization.changes)
    torch.testing.assert_close(low.head.weight, low.embedding.weight)
    again = copy.deepcopy(low)
    assert again.head.A is again.embedding.A


@pytest.mark.parametrize("padding_idx", [None, 3])
def test_a_tied_network_at_full_rank_is_the_same_function_also_at_its_padding(padding_idx):
    network = TiedHead(padding_idx).double()
    with torch.no_grad():
        network.head.weight[3] = torch.randn(12)  # a tied head trains the padding row, and torch looks it up
    ids = torch.arange(20).view(4, 5)
    low = sb.factorize(network, 12, init="svd")
    torch.testing.assert_close(low(ids), network(ids), rtol=1e-9, atol=1e-10)
    start = sb.factorize(network, 3)
    with torch.no_grad():
        start.head.A[3] = 1.0
    torch.testing.assert_close(start.embedding(ids), torch.nn.functional.embedding(ids, start.head.weight))


def test_two_linear_layers_with_one_weight_share_their_factors_and_keep_their_biases():
    network = nn.Sequential(*(nn.Linear(12, 12) for _ in range(3)))
    network[2].weight = network[0].weight
    low = sb.factorize(network, 3, init="svd")
    assert low[2].A is low[0].A
    assert [torch.equal(low[i].bias, network[i].bias) for i in range(3)] == [True] * 3
    assert low[2].bias is not low[0].bias


@pytest.mark.parametrize("init", ["random", "svd"])
def test_a_tied_bias_stays_tied_with_its_value(init):
    network = nn.Sequential(*(nn.Linear(12, 12) for _ in range(3)), nn.LayerNorm(12))
    network[2].bias = network[0].bias
    network[1].bias = network[3].bias  # to a layer that stays
    low = sb.factorize(network, 3, init=init)
    assert low[2].bias is low[0].bias
    assert low[1].bias is low[3].bias
    assert torch.equal(low[0].bias, network[0].bias)
    assert low.factorization.after == sum(p.numel() for p in low.parameters())


def test_a_weight_that_is_tied_to_what_stays_stays_too():
    network = TiedHead()
    network.head.register_forward_hook(lambda module, args, output: None)
    low = sb.factorize(network, 3)
    assert low.head.weight is low.embedding.weight
    listed = {c.name: c.reason for c in low.factorization.changes}
    assert listed["embedding"] == "its weight is tied to head.weight, which stays"
    assert "hooks" in listed["head"]
    network = TiedHead()
    network.scale = network.embedding.weight  # the network's own parameter
    low = sb.factorize(network, 3)
    assert low.head.weight is low.scale
    listed = {c.name: c.reason for c in low.factorization.changes}
    assert listed["head"].startswith("its weight is tied to")


def test_recurrent_and_attention_layers_that_share_a_weight_stay():
    network = nn.ModuleList([nn.LSTM(6, 6), nn.LSTM(6, 6), nn.MultiheadAttention(6, 2),
                             nn.MultiheadAttention(6, 2), nn.Linear(6, 6)])  # fmt: skip
    network[1].weight_hh_l0 = network[0].weight_hh_l0
    network[3].in_proj_weight = network[2].in_proj_weight
    low = sb.factorize(network, 2)
    listed = {c.name: c.reason for c in low.factorization.changes}
    assert listed["0"] == "its weight_hh_l0 is tied to 1.weight_hh_l0"
    assert listed["3"] == "its in_proj_weight is tied to 2.in_proj_weight"
    assert low[1].weight_hh_l0 is low[0].weight_hh_l0


def test_a_shared_embedding_in_two_places_and_a_tied_head_are_one():
    network = TiedHead()
    network.decoder_embedding = network.embedding
    low = sb.factorize(network, {"decoder_embedding": 3})
    assert low.decoder_embedding is low.embedding
    assert low.head.A is low.embedding.A
    assert "also at decoder_embedding" in low.factorization.changes[0].reason


def test_a_failure_half_way_leaves_the_network_as_it_was(monkeypatch):
    network = nn.Sequential(nn.Linear(9, 8), nn.LSTM(8, 8))
    state, modules = copy.deepcopy(network.state_dict()), list(network.modules())
    rng = torch.random.get_rng_state()

    def broken(*args, **kwargs):
        if not args[0].weight_hh_l0.is_meta:
            raise RuntimeError("no memory")
        return original(*args, **kwargs)

    original = sb.nn.LowRankLSTM.from_layer
    monkeypatch.setattr(sb.nn.LowRankLSTM, "from_layer", broken)
    with pytest.raises(RuntimeError, match="no memory"):
        sb.factorize(network, 2)
    assert list(network.modules()) == modules
    assert all(torch.equal(state[name], value) for name, value in network.state_dict().items())
    assert torch.equal(rng, torch.random.get_rng_state())


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("structure", [s for s in STRUCTURES if not isinstance(s.replaces, str)])
def test_a_structure_is_made_from_its_stock_layer_alone(structure):
    with pytest.raises(
        TypeError, match=rf"{structure.__name__} replaces nn.{structure.replaces.__name__}, got"
    ):
        structure.from_layer(nn.Bilinear(3, 3, 3), 2)
