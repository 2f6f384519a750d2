"""Ranks by energy and by pattern; which layers, only where smaller, and the plan that creates nothing."""

import numpy as np
import pytest
import torch
from torch import nn

import singularbayes as sb
from singularbayes.nn import Energy


def with_values(*values: float, sides: tuple[int, int] = (6, 5)) -> torch.Tensor:
    """A matrix with these singular values."""
    u, v = (torch.linalg.qr(torch.randn(n, n, dtype=torch.float64))[0] for n in sides)
    s = torch.tensor(values, dtype=torch.float64)
    return u[:, : len(s)] * s @ v[:, : len(s)].T


@pytest.mark.parametrize(
    ("share", "rank"), [(0.5, 1), (0.65, 1), (0.7, 2), (0.93, 2), (0.95, 3), (0.99, 3), (0.997, 4), (1.0, 4)]
)
def test_energy_is_the_smallest_rank_that_keeps_the_share(share, rank):
    # squares 16, 6.25, 1.44, .09: shares .6728, .9357, .9962, 1
    assert Energy(share).rank_of(with_values(4.0, 2.5, 1.2, 0.3)) == rank


@pytest.mark.parametrize("share", [0.3, 0.8, 0.95, 0.999])
def test_energy_is_what_a_dense_decomposition_says(share):
    matrix = torch.randn(30, 12) * torch.logspace(0, 3, 12)
    squares = np.linalg.svd(matrix.double().numpy(), compute_uv=False) ** 2
    kept = [squares[:r].sum() / squares.sum() for r in range(1, 13)]
    assert Energy(share).rank_of(matrix) == next(r for r, k in enumerate(kept, 1) if k >= share)


def test_all_the_energy_of_a_low_rank_weight_is_its_rank_in_low_precision_too():
    matrix = with_values(4.0, 2.5, 1.2)
    assert [Energy(1.0).rank_of(matrix.to(t)) for t in (torch.float32, torch.bfloat16)] == [3, 3]
    assert Energy(1.0, cap=2).rank_of(matrix) == 2
    assert Energy(0.9).rank_of(torch.zeros(4, 3)) == 1


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("arguments", [(0,), (1.5,), (True,), ("a",), (float("nan"),), (0.5, 0), (0.5, 1.5)])
def test_a_share_or_a_cap_that_is_none_is_refused(arguments):
    with pytest.raises(ValueError, match=r"must lie in \(0, 1\]|must be a positive integer"):
        Energy(*arguments)


def test_energy_chooses_for_every_matrix_of_every_kind_also_by_pattern():
    network = nn.ModuleDict({
        "linear": nn.Linear(5, 6), "embedding": nn.Embedding(6, 5), "conv": nn.Conv1d(1, 6, 5),
        "rnn": nn.LSTM(5, 6), "attention": nn.MultiheadAttention(6, 2),
    })  # fmt: skip
    with torch.no_grad():
        network["linear"].weight.copy_(with_values(1.0, 1.0, 0.01))
        network["embedding"].weight.copy_(with_values(1.0, 0.01))
        network["conv"].weight.copy_(with_values(1.0, 1.0, 1.0).view(6, 1, 5))
        network["rnn"].weight_ih_l0.copy_(with_values(1.0, 1.0, sides=(24, 5)))
        network["rnn"].weight_hh_l0.copy_(with_values(1.0, sides=(24, 6)))
        blocks = [with_values(*[1.0] * r, sides=(6, 6)) for r in (1, 2, 3)]
        network["attention"].in_proj_weight.copy_(torch.cat(blocks))
        network["attention"].out_proj.weight.copy_(with_values(1.0, sides=(6, 6)))
    chosen = {c.name: list(c.ranks.values()) for c in sb.nn.plan(network, Energy(0.99)).changes if c.ranks}
    assert chosen == {"linear": [2], "embedding": [1], "conv": [3], "rnn": [2, 1], "attention": [1, 2, 3, 1]}
    by_pattern = {"rnn.weight_hh*": 4, "rnn": Energy(0.99), "linear": Energy(0.99, cap=1)}
    chosen = {c.name: list(c.ranks.values()) for c in sb.nn.plan(network, by_pattern).changes if c.ranks}
    assert chosen == {"linear": [1], "rnn": [2, 4]}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_without_singular_values_are_refused_by_name_where_they_are_needed(value):
    network = nn.Sequential(nn.Linear(9, 9), nn.Linear(9, 9))
    with torch.no_grad():
        network[1].weight[2, 3] = value
    with pytest.raises(ValueError, match="1 has values that are not finite"):
        sb.factorize(network, 2, init="svd")
    with pytest.raises(ValueError, match="1 has values that are not finite"):
        sb.factorize(network, Energy(0.9))
    assert sb.factorize(network, 2)(torch.ones(1, 9)).isfinite().all()
    meta = nn.Linear(9, 9, device="meta")
    with pytest.raises(ValueError, match="no values"):
        sb.nn.plan(meta, Energy(0.9))
    assert sb.nn.plan(meta, 2).after == 2 * 18 + 9


def test_layers_limits_what_is_replaced():
    network = nn.Sequential(nn.Conv1d(9, 9, 3), nn.Linear(9, 9), nn.Embedding(9, 9))
    low = sb.factorize(network, 2, layers=["0", "2"])
    assert [type(m).__name__ for m in low] == ["LowRankConv1d", "Linear", "LowRankEmbedding"]
    assert low.factorization.changes[1].reason == "no pattern of layers matches"
    both = sb.factorize(network, {"*": 2}, layers="1")
    assert [type(m).__name__ for m in both] == ["Conv1d", "LowRankLinear", "Embedding"]
    for wrong in ([], ["1", "7"]):
        with pytest.raises(ValueError, match="layers"):
            sb.factorize(network, 2, layers=wrong)
    with pytest.raises(
        ValueError, match=r"pattern '0' matches no layer that can be factorised; 0 stays: no pa"
    ):
        sb.factorize(network, {"0": 2}, layers="1")


def test_only_where_smaller_leaves_the_others_as_they_are_with_the_reason_and_without_a_warning():
    network = nn.Sequential(nn.Linear(44, 64), nn.LSTM(64, 64), nn.Linear(64, 1))
    low = sb.factorize(network, 16, only_where_smaller=True)
    assert type(low[2]) is nn.Linear
    assert torch.equal(low[2].weight, network[2].weight)
    assert low.factorization.changes[-1].reason == "no smaller at rank 1"
    assert low.factorization.after < low.factorization.before
    with pytest.warns(UserWarning, match="saves no parameters in 2;"):
        sb.factorize(network, 16)
    # 12 x 12 at rank 6 has 144 numbers either way: no smaller
    with pytest.warns(UserWarning, match="no layer is smaller at this rank"):
        same = sb.factorize(nn.Linear(12, 12), 6, only_where_smaller=True)
    assert type(same) is nn.Linear
    assert isinstance(sb.factorize(nn.Linear(12, 12), 5, only_where_smaller=True), sb.nn.LowRankLinear)


def test_a_plan_creates_nothing_moves_no_random_state_and_prints_the_table():
    network = nn.Sequential(nn.Embedding(50, 12), nn.LSTM(12, 16), nn.Linear(16, 1), nn.LayerNorm(1))
    modules, state = list(network.modules()), {k: v.clone() for k, v in network.state_dict().items()}
    rng = torch.random.get_rng_state()
    planned = sb.nn.plan(network, 4)
    assert torch.equal(rng, torch.random.get_rng_state())
    assert list(network.modules()) == modules
    assert not hasattr(network, "factorization")
    assert all(torch.equal(state[k], v) for k, v in network.state_dict().items())
    assert str(planned).splitlines() == [
        "layer           kind       shape    rank  before  after",
        "0               Embedding  50 x 12  4        600    248",
        "1               LSTM                       1,920    752",
        "  weight_ih_l0             64 x 12  4",
        "  weight_hh_l0             64 x 16  4",
        "2               Linear     1 x 16   1         17     18  cut from 4, saves nothing at this rank",
        "3               LayerNorm  1        kept       2      2  LayerNorm has no low-rank form",
        "total                                      2,539  1,020",
        "start: random",
    ]


@pytest.mark.parametrize("rank", [Energy(0.9), {"*": Energy(0.9)}])
def test_ranks_by_the_weights_with_a_start_that_throws_them_away_are_warned_about(rank):
    network = nn.Linear(30, 30)
    with torch.no_grad():
        network.weight.copy_(with_values(3.0, 2.0, sides=(30, 30)))
    with pytest.warns(UserWarning, match=r"init='random' throws these away.* init='svd' starts from"):
        sb.factorize(network, rank)
    sb.factorize(network, rank, init="svd")  # warnings are errors here
    sb.factorize(network, 2)
    assert sb.nn.plan(network, rank).start == "random"


@pytest.mark.parametrize("rank", [2, {"*": 2}, {"*": Energy(0.93)}])
def test_a_start_from_the_weights_shows_what_each_matrix_keeps(rank):
    # squares 16, 6.25, 1.44, .09: shares .6728, .9357, .9962, 1
    matrix = with_values(4.0, 2.5, 1.2, 0.3, sides=(12, 12))
    network = nn.ModuleDict({"a": nn.Linear(12, 12), "b": nn.GRU(12, 4), "c": nn.Linear(12, 12)})
    with torch.no_grad():
        network["a"].weight.copy_(matrix)
        network["b"].weight_ih_l0.copy_(matrix)
        network["b"].weight_hh_l0.copy_(with_values(4.0, 2.5, 1.2, 0.3, sides=(12, 4)))
        network["c"].weight.zero_()
    planned = sb.nn.plan(network, rank, init="svd", layers=["a", "b"])
    first, second, last = planned.changes
    assert first.keeps == {"weight": pytest.approx(22.25 / 23.78, rel=1e-5)}
    assert list(second.keeps.values()) == [pytest.approx(22.25 / 23.78, rel=1e-5)] * 2
    assert not last.keeps
    assert sb.factorize(network, rank, init="svd", layers=["a", "b"]).factorization == planned
    lines = str(planned).splitlines()
    assert lines[0].split() == ["layer", "kind", "shape", "rank", "keeps", "before", "after"]
    assert lines[1].split() == ["a", "Linear", "12", "x", "12", "2", "93.5%", "156", "60"]
    assert lines[-1] == "start: svd"
    assert "93.5%" in lines[3]
    assert [c.keeps for c in sb.nn.plan(network, {"c": 1}, init="svd").changes if c.ranks] == [
        {"weight": 1.0}
    ]
    assert "keeps" not in str(sb.nn.plan(network, 2))


def test_all_but_a_little_is_not_printed_as_all():
    matrix = with_values(1.0, 1.0, 0.01, sides=(12, 12))  # two keep .99995
    network = nn.Linear(12, 12)
    with torch.no_grad():
        network.weight.copy_(matrix)
    assert " 99.9%" in str(sb.nn.plan(network, 2, init="svd"))
    assert " 100.0%" in str(sb.nn.plan(network, 3, init="svd"))


def test_a_pattern_that_earlier_ones_leave_nothing_is_an_error():
    encoder = nn.TransformerEncoderLayer(16, 2, 16, batch_first=True)
    network = nn.ModuleDict({"enc": nn.TransformerEncoder(encoder, 2, enable_nested_tensor=False)})
    message = (
        r"rank pattern 'enc\.layers\.0\*' is never used: 'enc\.layers\.\*' before it takes the same "
        r"layers; put the narrower one first"
    )
    with pytest.raises(ValueError, match=message):
        sb.nn.plan(network, {"enc.layers.*": 2, "enc.layers.0*": 3})
    with pytest.raises(ValueError, match=r"'\*.0.\*', '\*.1.\*' before it take the same"):
        sb.nn.plan(network, {"*.0.*": 2, "*.1.*": 3, "enc*": 2})
    used = sb.nn.plan(network, {"enc.layers.0*": 3, "enc.layers.*": 2})
    assert {r for c in used.changes for r in c.ranks.values()} == {2, 3}
    # a rank that is the same is no contradiction: two names of tied layers, say
    assert sb.nn.plan(network, {"enc.layers.*": 2, "enc.layers.0*": 2}).after < used.after


@pytest.mark.usefixtures("unchecked")
def test_numbers_that_look_like_shares_get_a_hint():
    for rank in (0.9, {"*": 0.9}):
        with pytest.raises(ValueError, match=r"a share of the energy is sb\.nn\.Energy\(0\.9\)"):
            sb.factorize(nn.Linear(9, 9), rank)
    with pytest.raises(ValueError, match=r"got 90; 90% is 0\.9$"):
        Energy(90)
    with pytest.raises(ValueError, match=r"got 250$"):
        Energy(250)


def test_a_pattern_s_rank_above_a_narrower_matrix_names_the_cure_and_the_cure_works():
    network = nn.ModuleDict({"lstm": nn.LSTM(3, 16), "head": nn.Linear(16, 16)})
    cure = r"lstm\.weight_ih_l0: rank 8 .*; put {'lstm\.weight_ih_l0': 3} before 'lstm', or give one rank for"
    with pytest.raises(ValueError, match=cure):
        sb.nn.plan(network, {"lstm": 8})
    assert sb.nn.plan(network, {"lstm.weight_ih_l0": 3, "lstm": 8}).changes[0].ranks["weight_hh_l0"] == 8
    with pytest.raises(ValueError, match=r"64 x 3 weight$"):
        sb.nn.plan(network, {"lstm.weight_ih_l0": 8, "lstm": 8})


def test_a_rank_too_large_for_what_is_left_names_what_it_may_have_been_meant_for():
    network = nn.ModuleDict({"attention": nn.MultiheadAttention(16, 2), "head": nn.Linear(16, 1)})
    low = sb.factorize(network, {"attention": 4})
    message = (
        r"weight that can be replaced; the largest possible is 1 \(head\); attention is low-rank already$"
    )
    with pytest.raises(ValueError, match=message):
        sb.factorize(low, 4)
    network = nn.Sequential(*(nn.Linear(16, 16).requires_grad_(False) for _ in range(14)), nn.Linear(16, 1))
    with pytest.raises(ValueError, match=r"is 1 \(14\); 14 layers are frozen \(init='svd' takes them\)$"):
        sb.factorize(network, 4)
    with pytest.raises(ValueError, match=r"is 16 \(0\)$"):
        sb.factorize(network, 17, init="svd")


def test_only_layers_that_do_not_shrink_as_a_whole_are_warned_about_and_three_of_them_named():
    # the narrow matrix of the LSTM costs more at its rank, the layer far less
    low = sb.factorize(nn.ModuleDict({"lstm": nn.LSTM(3, 32)}), 8)
    change = low.factorization.changes[0]
    assert change.notes["weight_ih_l0"] == "cut from 8, saves nothing at this rank"
    assert change.after < change.before
    network = nn.Sequential(*(nn.Linear(32, 1) for _ in range(13)), nn.Linear(32, 32))
    with pytest.warns(UserWarning, match=r"in 0, 1, 2 and 10 more; .*{pattern: rank} for the others") as told:
        sb.factorize(network, 4)
    assert len(told) == 1
    with pytest.warns(
        UserWarning, match=r"in 0; only_where_smaller=True, or a rank for none of them, leaves"
    ):
        sb.factorize(network, {"0": 1})
    sb.factorize(network, 4, only_where_smaller=True)
