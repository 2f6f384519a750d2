"""merge: the exact inverse of factorize, for a network, a posterior's mean and one of its draws."""

import copy
import pickle
from collections import OrderedDict

import pytest
import torch
from torch import nn

import singularbayes as sb
from singularbayes.nn import MaskedDropout, RankOneLinear

pytestmark = pytest.mark.filterwarnings("ignore:.*saves no parameters", "ignore:.*enable_nested_tensor")


class Everything(nn.Module):
    """Every structure, a tied head, a shared layer, a tied bias, running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.conv = nn.Conv1d(8, 8, 3, padding=1)
        self.rnn = nn.LSTM(8, 4, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(8, 8, batch_first=True)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, dropout=0.0)
        self.norm = nn.BatchNorm1d(8)
        self.one = nn.Linear(8, 8)
        self.two = self.one
        self.three = nn.Linear(8, 8)
        self.three.bias = self.one.bias
        self.head = nn.Linear(8, 20)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        x = self.embedding(ids)
        x = x + self.conv(x.mT).mT
        x = x + self.rnn(x)[0]
        x = x + self.gru(x)[0]
        x = self.encoder(x)
        x = self.norm(x.mT).mT
        x = torch.tanh(self.three(self.two(torch.tanh(self.one(x)))))
        return self.head(x.mean(1))


IDS = torch.arange(40).view(8, 5) % 20


@pytest.mark.parametrize("diagonal", [False, True])
@pytest.mark.parametrize("rank", [2, 8])
def test_merge_undoes_factorize(rank, diagonal):
    network = Everything().double().eval()
    low = sb.factorize(network, rank, init="svd", diagonal=diagonal)
    before, modules = copy.deepcopy(low.state_dict()), list(low.modules())
    rng = torch.random.get_rng_state()
    back = sb.merge(low)
    assert torch.equal(rng, torch.random.get_rng_state())
    assert [type(m) for m in back.modules()] == [type(m) for m in network.modules()]
    assert list(back.state_dict()) == list(network.state_dict())
    assert not hasattr(back, "factorization")
    assert back.head.weight is back.embedding.weight
    assert back.one is back.two
    assert back.three.bias is back.one.bias
    torch.testing.assert_close(back(IDS), low(IDS), rtol=1e-9, atol=1e-10)
    if rank == 8:
        torch.testing.assert_close(back(IDS), network(IDS), rtol=1e-9, atol=1e-10)
        for name, value in network.state_dict().items():
            torch.testing.assert_close(back.state_dict()[name], value, rtol=1e-9, atol=1e-10)
    assert list(low.modules()) == modules
    assert all(torch.equal(before[name], value) for name, value in low.state_dict().items())
    shared = {p.data_ptr() for p in low.parameters()} & {p.data_ptr() for p in back.parameters()}
    assert not shared


def test_the_state_dict_of_a_merged_network_loads_into_the_stock_one_and_pickles_without_this_library():
    network = Everything().eval()
    low = sb.factorize(network, 3)
    back = sb.merge(low)
    fresh = Everything().eval()
    fresh.load_state_dict(back.state_dict(), strict=True)
    torch.testing.assert_close(fresh(IDS), low(IDS), rtol=1e-5, atol=1e-6)
    assert b"singularbayes" in pickle.dumps(sb.factorize(nn.Linear(9, 9), 2))
    plain = sb.merge(sb.factorize(nn.Sequential(nn.Linear(9, 9), nn.LSTM(9, 9)), 2))
    assert b"singularbayes" not in pickle.dumps(plain)


def test_options_modes_and_frozen_parts_come_back():
    network = nn.Sequential(nn.Linear(9, 9), nn.Conv2d(3, 4, 3, padding="same", padding_mode="circular"))
    network[0].weight.requires_grad_(False)
    network[1].eval()
    back = sb.merge(sb.factorize(network, 2, init="svd"))
    assert repr(back) == repr(network)
    assert [p.requires_grad for p in back.parameters()] == [p.requires_grad for p in network.parameters()]
    assert [m.training for m in back.modules()] == [m.training for m in network.modules()]


def test_a_bare_layer_and_a_network_without_low_rank_layers_are_merged_too():
    assert type(sb.merge(sb.nn.LowRankLinear(9, 9, 2))) is nn.Linear
    plain = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    back = sb.merge(plain)
    assert back is not plain
    assert all(torch.equal(a, b) for a, b in zip(back.parameters(), plain.parameters(), strict=True))


def test_rank_one_layers_are_merged_too():
    network = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2, bias=False))
    low = sb.nn.rank_one(network)
    with torch.no_grad():
        low[0].s.normal_()
        low[0].t.normal_()
    back = sb.merge(low)
    x = torch.randn(3, 6)
    assert list(back.state_dict()) == list(network.state_dict())
    torch.testing.assert_close(back(x), low(x), rtol=1e-5, atol=1e-6)
    assert b"singularbayes" not in pickle.dumps(back)


def test_layers_that_share_factors_but_not_their_function_are_not_tied():
    table = sb.nn.LowRankEmbedding(20, 8, 3, padding_idx=0)
    network = nn.ModuleDict({"table": table, "head": table.output_projection()})
    with torch.no_grad():
        table.A[0] = 1.0  # the table masks this row, the head scores it
    back = sb.merge(network)
    assert torch.equal(back.table.weight, table.weight)
    assert torch.equal(back.head.weight, network.head.weight)
    assert not torch.equal(back.head.weight, back.table.weight)


def fitted(method) -> sb.Posterior:
    low = sb.factorize(Everything(), 3)
    return method.fit(sb.Model(low, sb.Categorical()), (IDS, torch.arange(8) % 4), seed=1)


def test_a_posterior_is_merged_at_its_mean_or_at_a_draw():
    posterior = fitted(sb.MeanField(epochs=1))
    kept = copy.deepcopy(posterior.network.state_dict())
    at_mean = posterior.at_mean().predict(IDS)
    merged = sb.merge(posterior)
    stock = Everything().eval()
    stock.load_state_dict(merged.state_dict())
    probabilities = torch.softmax(stock(IDS), -1)
    torch.testing.assert_close(probabilities, at_mean.mean, rtol=1e-5, atol=1e-6)
    row = posterior.draw(3, seed=5)[2]
    torch.testing.assert_close(
        sb.merge(posterior, row)(IDS), posterior.functions(row.unsqueeze(0), IDS)[0], rtol=1e-5, atol=1e-5
    )
    assert not torch.allclose(sb.merge(posterior, row)(IDS), merged(IDS), atol=1e-3)
    assert all(torch.equal(kept[name], value) for name, value in posterior.network.state_dict().items())


def test_an_ensemble_is_merged_member_by_member_and_has_no_mean():
    posterior = fitted(sb.DeepEnsemble(member=sb.MAP(epochs=1), members=2))
    with pytest.raises(ValueError, match="separate networks"):
        sb.merge(posterior)
    rows = posterior.draw(2)
    outputs = posterior.functions(rows, IDS)
    for row, expected in zip(rows, outputs, strict=True):
        torch.testing.assert_close(sb.merge(posterior, row)(IDS), expected, rtol=1e-5, atol=1e-5)


def test_dropout_masks_are_merged_at_the_mean_alone():
    layers = OrderedDict(one=nn.Linear(6, 8), dropout=nn.Dropout(0.5), two=nn.Linear(8, 2))
    low = sb.factorize(nn.Sequential(layers), {"one": 2})
    x, y = torch.randn(8, 6), torch.arange(8) % 2
    posterior = sb.MCDropout(epochs=1).fit(sb.Model(low, sb.Categorical()), (x, y))
    assert any(isinstance(m, MaskedDropout) for m in posterior.network.modules())
    back = sb.merge(posterior)
    assert [type(m) for m in back] == [nn.Linear, nn.Dropout, nn.Linear]
    expected = posterior.at_mean().predict(x).mean
    torch.testing.assert_close(torch.softmax(back(x), -1), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="dropout masks is no stock layer's"):
        sb.merge(posterior, posterior.draw(1)[0])


@pytest.mark.usefixtures("unchecked")
def test_what_cannot_be_merged_is_named_before_any_work():
    low = sb.factorize(nn.Sequential(nn.Linear(9, 9)), 2)
    with pytest.raises(ValueError, match="a draw belongs to a posterior"):
        sb.merge(low, torch.zeros(3))
    with pytest.raises(TypeError, match="a network or a posterior, got dict"):
        sb.merge({})
    low[0].register_forward_hook(lambda module, args, output: None)
    with pytest.raises(ValueError, match="0 has hooks"):
        sb.merge(low)
    posterior = fitted(sb.MAP(epochs=1))
    with pytest.raises(ValueError, match=r"one row of \d+ numbers, got the shape \(1, "):
        sb.merge(posterior, posterior.draw(1))


def test_no_structure_draws_when_it_becomes_a_stock_layer():
    low = sb.factorize(Everything(), 4)
    layers = [*low.modules(), RankOneLinear(3, 2)]
    before = torch.get_rng_state()
    kinds = {type(layer.to_layer()) for layer in layers if hasattr(layer, "to_layer")}
    assert len(kinds) == 6
    assert torch.equal(torch.get_rng_state(), before)


def test_a_network_without_values_is_merged_with_its_ties():
    with torch.device("meta"):
        network = Everything()
    merged = sb.merge(sb.factorize(network, 4))
    assert all(parameter.is_meta for parameter in merged.parameters())
    assert merged.head.weight is merged.embedding.weight
    assert type(merged.rnn) is nn.LSTM


def test_a_low_rank_layer_in_a_plain_list_is_refused_by_the_attribute_s_name():
    low = sb.factorize(nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)), 2)
    low.order = [low[1]]  # merged, the list would still hold the low-rank layer
    with pytest.raises(ValueError, match=r"^order, a plain attribute, refers to 1 and would keep"):
        sb.merge(low)


@pytest.mark.parametrize("layers_", ["*", "*linear*", "*self_attn", "layers.1.*"])
@pytest.mark.parametrize("padded", ["right", "left"])
def test_a_merged_encoder_gives_what_the_low_rank_one_gave_at_padded_positions_too(layers_, padded):
    stock = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, dropout=0.0)
    network = nn.TransformerEncoder(stock, 2).double().eval()
    low = sb.factorize(network, 8, init="svd", layers=layers_)
    back = sb.merge(low)
    assert type(back.layers[0].self_attn) is nn.MultiheadAttention
    x, padding = torch.randn(3, 5, 8).double(), torch.zeros(3, 5, dtype=torch.bool)
    padding[1, 3:] = True
    padding = padding if padded == "right" else padding.flip(1)
    trained = network(x, src_key_padding_mask=padding)  # what the network computes in training
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients):
            of_low, merged = (n(x, src_key_padding_mask=padding) for n in (low, back))
            # without gradients torch's nested path gave rows of zeros here, in the merged network alone
            torch.testing.assert_close(merged, of_low, rtol=1e-9, atol=1e-10)
            torch.testing.assert_close(of_low, trained, rtol=1e-9, atol=1e-10)
    note = "(root): torch's nested fast path, which zeroes padded rows in eval, is off"
    assert low.factorization.notes == (note,)
    assert str(low.factorization).endswith(note)
    assert network.use_nested_tensor  # the user's own stays as it was


def test_an_encoder_without_low_rank_layers_keeps_its_nested_path_and_is_not_mentioned():
    stock = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)
    network = nn.ModuleDict({"encoder": nn.TransformerEncoder(stock, 2), "head": nn.Linear(8, 8)})
    low = sb.factorize(network, 2, layers="head")
    assert low.encoder.use_nested_tensor
    assert sb.merge(low).encoder.use_nested_tensor
    assert not low.factorization.notes


def test_an_encoder_made_by_hand_from_low_rank_attention_is_merged_with_its_nested_path_off():
    stock = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)
    network = nn.TransformerEncoder(stock, 1)
    network.layers[0].self_attn = sb.nn.LowRankMultiheadAttention(8, 2, 3, batch_first=True)
    back = sb.merge(network)
    assert (back.use_nested_tensor, back.enable_nested_tensor) == (False, False)


def test_a_variational_module_and_its_network_are_refused_with_what_to_write():
    low = sb.factorize(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6)), 2)
    module = sb.VariationalModule(sb.Model(low, sb.Gaussian(noise=0.1)), num_data=4)
    module.loss(torch.ones(4, 6), torch.ones(4, 6))
    for source in (module, module.network, nn.Sequential(module)):
        # before: that a hook would be lost, or a network of the last draw without a word
        with pytest.raises(
            TypeError, match=r"for a VariationalModule write sb\.merge\(module\.posterior\(\)\)"
        ):
            sb.merge(source)
    assert type(sb.merge(module.posterior())[0]) is nn.Linear


def test_a_head_of_random_features_is_no_stock_layer() -> None:
    x, y = torch.randn(24, 3, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 2
    network = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    posterior = sb.SNGP(epochs=1, features=8).fit(sb.Model(network, sb.Categorical()), (x, y))
    with pytest.raises(ValueError, match="is no stock layer; save the posterior"):
        sb.merge(posterior)
