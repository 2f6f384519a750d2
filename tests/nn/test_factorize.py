"""factorize: what is converted, what is kept and why, exact counts, ties, the original untouched."""

import copy
import itertools
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import singularbayes as sb
from singularbayes.nn import LowRankLinear

quiet = pytest.mark.filterwarnings("ignore:.*saves no parameters")


def mlp(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for m, n in itertools.pairwise(sizes):
        layers += [nn.Linear(m, n), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def reasons(network: nn.Module) -> dict[str, str]:
    return {c.name: c.reason for c in network.factorization.changes}


def ranks(network: nn.Module) -> dict[str, int]:
    return {
        n: m.rank for n, m in network.named_modules(remove_duplicate=False) if isinstance(m, LowRankLinear)
    }


class Conv1D(nn.Module):
    """As in GPT-2: a transposed linear layer that is no nn.Linear."""

    def __init__(self, n_out: int, n_in: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(n_in, n_out)), nn.Parameter(torch.zeros(n_out))

    def forward(self, x):
        return x @ self.weight + self.bias


class Scaled(nn.Linear):
    def forward(self, input):  # noqa: A002
        return 2 * super().forward(input)


@quiet
@pytest.mark.parametrize(
    ("network", "rank", "deterministic", "low", "full"),
    [
        (mlp(44, 128, 128, 1), {"0": 15, "2": 15, "4": 1}, (), 13_612, 44_802),
        (mlp(784, 1200, 1200, 10), {"0": 25, "2": 25, "4": 10}, "*bias", 245_810, 4_788_010),
        (mlp(1, 100, 100, 1), {"2": 16}, (), 7_202, 20_802),
    ],
    ids=["mimic", "mnist", "toy"],
)
def test_counts_of_variational_numbers_are_the_published_ones(network, rank, deterministic, low, full):
    dense = sb.Model(network, sb.Bernoulli(), deterministic=deterministic).layout
    layout = sb.Model(sb.factorize(network, rank), sb.Bernoulli(), deterministic=deterministic).layout
    assert layout.trained + layout.belief == low
    assert dense.trained + dense.belief == full


def test_the_deterministic_network_has_22401_parameters():
    assert sum(p.numel() for p in mlp(44, 128, 128, 1).parameters()) == 22_401


@quiet
def test_the_list_counts_what_the_network_holds():
    network = mlp(44, 128, 128, 1)
    low = sb.factorize(network, {"0": 15, "4": 1})
    assert low.factorization.before == sum(p.numel() for p in network.parameters())
    assert low.factorization.after == sum(p.numel() for p in low.parameters())
    text = str(low.factorization)
    assert "no rank pattern matches" in text
    assert "saves nothing at this rank" in text
    assert f"{low.factorization.after:,}" in text


def test_svd_starts_at_the_best_approximation_and_keeps_the_bias():
    network = nn.Sequential(nn.Linear(30, 20), nn.Tanh(), nn.Linear(20, 6, bias=False))
    low = sb.factorize(network, {"0": 5, "2": 2}, init="svd")
    for name, r in (("0", 5), ("2", 2)):
        dense = network.get_submodule(name).weight.detach().double().numpy()
        u, s, vh = np.linalg.svd(dense, full_matrices=False)
        best = torch.from_numpy((u[:, :r] * s[:r]) @ vh[:r]).float()
        torch.testing.assert_close(low.get_submodule(name).weight.detach(), best, rtol=1e-4, atol=1e-5)
    assert torch.equal(low[0].bias, network[0].bias)
    assert not torch.allclose(sb.factorize(network, {"0": 5})[0].weight, low[0].weight)


@quiet
def test_svd_at_full_rank_is_the_same_function():
    network = mlp(8, 8, 8)
    x = torch.randn(5, 8)
    torch.testing.assert_close(sb.factorize(network, 8, init="svd")(x), network(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("init", ["random", "svd"])
def test_the_original_and_the_global_state_are_untouched_and_the_seed_decides(init):
    network = mlp(20, 16, 10).eval()
    before, state = copy.deepcopy(network.state_dict()), torch.random.get_rng_state()
    first, second = sb.factorize(network, 3, init=init, seed=1), sb.factorize(network, 3, init=init, seed=1)
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(torch.equal(before[k], v) for k, v in network.state_dict().items())
    assert [type(m) for m in network] == [nn.Linear, nn.ReLU, nn.Linear]
    assert not hasattr(network, "factorization")
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not first.training
    assert not first[0].training
    shared = {p.data_ptr() for p in network.parameters()} & {p.data_ptr() for p in first.parameters()}
    assert not shared
    if init == "random":
        assert not torch.equal(first[0].A, sb.factorize(network, 3, seed=2)[0].A)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("init", ["random", "svd"])
def test_the_precision_is_kept(dtype, init):
    low = sb.factorize(mlp(20, 16, 10).to(dtype), 3, init=init)
    assert {p.dtype for p in low.parameters()} == {dtype}
    assert all(bool(torch.isfinite(p).all()) for p in low.parameters())


def test_a_root_linear_becomes_a_root_low_rank_layer():
    low = sb.factorize(nn.Linear(30, 20), 4)
    assert isinstance(low, LowRankLinear)
    assert "(root)" in str(low.factorization)
    assert isinstance(sb.factorize(nn.Linear(30, 20), {"*": 4}), LowRankLinear)


@pytest.mark.parametrize("rank", [3, {"0": 3}, {"1": 3}, {"*": 3}, {"1": 3, "0": 3}])
def test_a_layer_in_two_places_stays_one_layer_whatever_name_is_matched(rank):
    shared = nn.Linear(12, 12)
    low = sb.factorize(nn.Sequential(shared, shared, nn.Linear(12, 12)), rank)
    assert isinstance(low[0], LowRankLinear)
    assert low[0] is low[1]
    assert low[0].rank == 3
    assert "also at 1" in reasons(low)["0"]
    assert low.factorization.after == sum(p.numel() for p in low.parameters())


def test_a_block_in_two_places_stays_one_block():
    block = nn.Sequential(nn.Linear(12, 12), nn.ReLU())
    low = sb.factorize(nn.Sequential(block, block), 3)
    assert low[0] is low[1]
    assert ranks(low) == {"0.0": 3, "1.0": 3}


def test_layers_of_other_kinds_are_kept_and_named():
    # bayesian-torch's dnn_to_bnn leaves Embedding, GRU and Bilinear as they are and says nothing
    kinds = [
        Conv1D(12, 12),
        nn.LayerNorm(12),
        nn.RNN(12, 12),
        nn.Bilinear(12, 12, 12),
        nn.ConvTranspose1d(12, 12, 3),
        nn.EmbeddingBag(20, 12),
        nn.GRUCell(12, 12),
    ]
    low = sb.factorize(nn.Sequential(*kinds, Scaled(12, 12), nn.Linear(12, 12)), 3)
    listed = reasons(low)
    for i, layer in enumerate(kinds):
        assert listed[str(i)] == f"{type(layer).__name__} has no low-rank form"
        assert type(low[i]) is type(layer)
    assert listed["7"] == "Scaled is a subclass of nn.Linear, whose forward may be its own"
    assert ranks(low) == {"8": 3}


def test_a_layer_that_holds_more_or_had_its_forward_replaced_stays():
    network = mlp(12, 12, 12, 12)
    network[0].register_buffer("mask", torch.ones(12))
    network[2].forward = lambda x: x
    listed = reasons(sb.factorize(network, 3))
    assert listed["0"] == "it holds more than a Linear does: mask"
    assert listed["2"] == "its forward was replaced"
    network = nn.Sequential(nn.LSTM(4, 5, proj_size=3), nn.Conv1d(8, 8, 3, groups=8), nn.Linear(12, 12))
    listed = reasons(sb.factorize(network, 3))
    assert "proj_size" in listed["0"]
    assert "depthwise" in listed["1"]


def test_a_weight_that_a_hook_computes_stays_and_one_that_cannot_be_copied_is_refused_by_name():
    network = mlp(12, 12, 12)
    with torch.no_grad():
        prune.identity(network[0], "weight")
    assert "a hook computes it" in reasons(sb.factorize(network, 3))["0"]
    network(torch.ones(1, 12))  # the hook writes a weight with a gradient
    with pytest.raises(ValueError, match=r"0\.weight is computed by a hook"):
        sb.factorize(network, 3)


def test_weights_that_are_not_real_stay():
    network = nn.Sequential(nn.Linear(12, 12, dtype=torch.complex64), nn.Linear(12, 12))
    assert "complex64" in reasons(sb.factorize(network, 3))["0"]


def test_a_parametrised_layer_a_hooked_one_and_a_frozen_one_stay():
    network = mlp(12, 12, 12, 12, 12)
    nn.utils.parametrizations.weight_norm(network[0])
    network[2].register_forward_hook(lambda module, args, output: output + 1)
    network[4].requires_grad_(False)
    low = sb.factorize(network, 3)
    assert ranks(low) == {"6": 3}
    assert reasons(low)["0"] == "its weight is parametrised"
    assert "hooks" in reasons(low)["2"]
    assert "frozen" in reasons(low)["4"]
    x = torch.randn(2, 12)
    torch.testing.assert_close(low[:6](x), network[:6](x))


def test_a_frozen_layer_stays_frozen_under_svd():
    network = mlp(12, 12, 12)
    network[0].requires_grad_(False)
    low = sb.factorize(network, 3, init="svd")
    assert not any(p.requires_grad for p in low[0].parameters())
    assert all(p.requires_grad for p in low[2].parameters())


@pytest.mark.filterwarnings("ignore:.*Lazy modules are a new feature")
def test_lazy_and_compiled_networks_are_refused_by_name():
    with pytest.raises(ValueError, match=r"1\.weight is not initialised yet"):
        sb.factorize(nn.Sequential(nn.Linear(4, 4), nn.LazyLinear(4)), 1)
    with pytest.raises(ValueError, match="was compiled"):
        sb.factorize(torch.compile(mlp(4, 4), backend="eager"), 1)


def test_one_rank_for_all_is_cut_where_layers_are_narrower_and_said_so():
    with pytest.warns(UserWarning, match="the rank saves no parameters in 4"):
        low = sb.factorize(mlp(44, 64, 64, 10), 16)
    assert ranks(low) == {"0": 16, "2": 16, "4": 10}
    assert reasons(low)["4"] == "cut from 16, saves nothing at this rank"
    with pytest.raises(ValueError, match=r"rank 65 .* largest possible is 64 \(2\)"):
        sb.factorize(mlp(44, 64, 64, 10), 65)


@pytest.mark.usefixtures("unchecked")
def test_a_pattern_that_is_no_string_is_named():
    with pytest.raises(ValueError, match=r"a rank pattern is a string of names, such as '0', got 0"):
        sb.factorize(mlp(12, 12), {0: 2})
    with pytest.raises(ValueError, match=r"such as 'rnn', got <class"):
        sb.factorize(nn.ModuleDict({"rnn": nn.LSTM(9, 9)}), {nn.LSTM: 8})


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("layers", [nn.LSTM, [nn.LSTM], 3])
def test_layers_that_are_no_patterns_are_named(layers):
    with pytest.raises(
        ValueError, match=r"layers must be a pattern of names, or several, such as 'rnn'; got"
    ):
        sb.factorize(nn.ModuleDict({"rnn": nn.LSTM(9, 9)}), 2, layers=layers)


@pytest.mark.parametrize("argument", ["rank", "layers"])
def test_a_pattern_of_torch_s_packed_weight_is_told_the_matrices(argument):
    network = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)
    message = (
        r"the matrices of self_attn, a MultiheadAttention, are q_proj_weight, k_proj_weight, v_proj_weight, "
        r"out_proj\.weight$"
    )
    rank, layers = ({"*in_proj*": 2}, "*") if argument == "rank" else (2, "*in_proj*")
    with pytest.raises(ValueError, match=message):
        sb.factorize(network, rank, layers=layers)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("rank", [0, -1, True, 2.5, "4", None])
def test_a_rank_that_is_none_is_refused(rank):
    with pytest.raises(ValueError, match="rank must be a positive integer"):
        sb.factorize(mlp(12, 12), rank)


def test_ranks_by_pattern_are_checked_against_each_layer():
    network = mlp(44, 64, 64, 10)
    with pytest.raises(ValueError, match=r"4: rank 16 is outside 1\.\.10"):
        sb.factorize(network, {"*": 16})
    with pytest.warns(UserWarning, match="saves no parameters in 2;"):
        sb.factorize(network, {"2": 32})
    assert ranks(sb.factorize(network, {"2": 4, "[02]": 8})) == {
        "0": 8,
        "2": 4,
    }  # the first that matches counts


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("bodi", "nearest names: body"),
        ("norm", "norm stays: LayerNorm has no low-rank form"),
        ("block", r"block is a Sequential, which holds block\.0: block\.\* matches what is inside"),
        ("rnn.weight_ih_l3", r"nearest names: rnn\.weight_ih_l0"),
    ],
)
@pytest.mark.parametrize("argument", ["rank", "layers"])
def test_a_pattern_without_a_hit_says_why(pattern, message, argument):
    network = nn.Module()
    network.body, network.norm = nn.Linear(12, 12), nn.LayerNorm(12)
    network.block, network.rnn = nn.Sequential(nn.Linear(12, 12)), nn.LSTM(12, 12)
    rank, layers = ({"body": 2, pattern: 2}, "*") if argument == "rank" else (2, ["body", pattern])
    with pytest.raises(ValueError, match=message):
        sb.factorize(network, rank, layers=layers)


def test_networks_without_a_layer_to_factorise_are_refused_with_the_reason():
    with pytest.raises(ValueError, match="root: Conv1D has no low-rank form"):
        sb.factorize(Conv1D(3, 4), 2)
    with pytest.raises(ValueError, match="root: Scaled is a subclass"):
        sb.factorize(Scaled(12, 12), 2)
    with pytest.raises(ValueError, match="it has no parameters"):
        sb.factorize(nn.ReLU(), 2)
    with pytest.raises(ValueError, match="at least one pattern"):
        sb.factorize(mlp(4, 4), {})


@pytest.mark.usefixtures("unchecked")
def test_wrong_kinds_of_arguments_are_named():
    with pytest.raises(TypeError, match=r"torch\.nn\.Module, got type"):
        sb.factorize(nn.Linear, 2)
    with pytest.raises(ValueError, match="'random' or 'svd'"):
        sb.factorize(mlp(4, 4), 2, init="zeros")


def test_the_result_can_be_copied_pickled_and_factorised_again():
    low = sb.factorize(mlp(20, 16, 10), {"0": 3})
    x = torch.randn(4, 20)
    assert torch.equal(pickle.loads(pickle.dumps(low))(x), copy.deepcopy(low)(x))
    again = sb.factorize(low, {"2": 2})
    assert reasons(again)["0"] == "low-rank already"
    assert torch.equal(again[0].A, low[0].A)


class Vision(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pos, self.cls = nn.Parameter(torch.zeros(1, 5, 12)), nn.Parameter(torch.zeros(12))
        self.conv = nn.Conv1d(12, 12, 3, groups=12)
        self.wide = nn.Conv1d(12, 24, 3)
        self.norms = nn.ModuleList(nn.LayerNorm(12) for _ in range(5))
        self.rnn = nn.LSTM(3, 32)


@quiet
def test_the_table_is_short_and_has_every_number():
    low = sb.factorize(Vision(), {"rnn": 3})
    changes = low.factorization.changes
    assert len(changes) == 2 + 1 + 1 + 5 + 1
    assert str(low.factorization).splitlines() == [
        "layer           kind       shape       rank  before  after",
        "pos             Parameter  1 x 5 x 12  kept      60     60  no layer's: Vision holds it itself",
        "cls             Parameter  12          kept      12     12  no layer's: Vision holds it itself",
        "conv            Conv1d     12 x 3      kept      48     48  depthwise: no matrix worth a rank",
        "wide            Conv1d     24 x 36     kept     888    888  no rank pattern matches",
        "5 LayerNorms               12          kept     120    120  LayerNorm has no low-rank form",
        "rnn             LSTM                          4,736  1,129",
        "  weight_ih_l0             128 x 3     3                    saves nothing at this rank",
        "  weight_hh_l0             128 x 32    3",
        "total                                         5,864  2,257",
        "start: random",
    ]
    assert low.factorization.after == sum(p.numel() for p in low.parameters())
    three = nn.Sequential(nn.Linear(12, 12), *(nn.LayerNorm(12) for _ in range(3)))
    assert "3 LayerNorms" not in str(sb.nn.plan(three, 2))


def test_a_bare_parameter_that_is_tied_is_counted_once():
    network = Vision()
    network.again = network.pos
    listed = sb.nn.plan(network, {"wide": 2}).changes
    assert sum(c.before for c in listed) == sum(p.numel() for p in network.parameters())
