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
    ]
