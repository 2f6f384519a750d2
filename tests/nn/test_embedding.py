"""LowRankEmbedding: the table A B^T that is never formed; padding; the tie with an output layer."""

import copy
import math
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, vmap

import singularbayes as sb
from singularbayes.functions import Way, evaluate, way_for
from singularbayes.nn import LowRankEmbedding, LowRankLinear
from singularbayes.parameters import Layout
from singularbayes.testing import check_method

METHODS = {
    "MeanField": sb.MeanField(epochs=1),
    "MAP": sb.MAP(epochs=1),
    "DeepEnsemble": sb.DeepEnsemble(members=2, member=sb.MAP(epochs=1)),
}
IDS = torch.tensor([[3, 0, 5, 2], [0, 0, 12, 3], [2, 2, 1, 12]])


def table(**settings) -> LowRankEmbedding:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LowRankEmbedding(13, 9, 3, **{"dtype": torch.float64, **settings})


class Classifier(nn.Module):
    def __init__(self, embedding: nn.Module) -> None:
        super().__init__()
        self.table = embedding
        self.head = nn.Linear(9, 2)

    def forward(self, ids):
        return self.head(torch.tanh(self.table(ids)).mean(1))


class Tied(nn.Module):
    """Scores the next token with the table itself."""

    def __init__(self, padding_idx=None) -> None:
        super().__init__()
        self.table = LowRankEmbedding(13, 9, 3, padding_idx)
        self.head = self.table.output_projection()

    def forward(self, ids):
        return self.head(torch.tanh(self.table(ids)).mean(1))


@pytest.mark.parametrize("diagonal", [False, True])
@pytest.mark.parametrize("padding_idx", [None, 0, 12, -1])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-14)])
def test_the_layer_is_the_stock_one_with_its_table(diagonal, padding_idx, dtype, tolerance):
    low = table(padding_idx=padding_idx, diagonal=diagonal, dtype=dtype)
    if diagonal:
        with torch.no_grad():
            low.s.copy_(torch.tensor([2.0, -0.5, 0.1]))
    stock = low.to_layer()
    assert type(stock) is nn.Embedding
    assert stock.padding_idx == low.padding_idx
    direction = torch.randn(3, 4, 9, dtype=dtype)
    torch.testing.assert_close(low(IDS), stock(IDS), rtol=0, atol=tolerance)
    a = low.A if low.s is None else low.A * low.s
    pad = low.padding_idx
    dense = a.double() @ low.B.double().T  # the oracle
    if pad is not None:
        dense = torch.cat([dense[:pad], torch.zeros(1, 9), dense[pad + 1 :]])
    torch.testing.assert_close(low.weight.double(), dense, rtol=0, atol=tolerance)
    got = torch.autograd.grad((low(IDS) * direction).sum(), list(low.parameters()))
    through = torch.autograd.grad((F.embedding(IDS, dense) * direction).sum(), list(low.parameters()))
    for value, target in zip(got, through, strict=True):
        assert value.abs().sum() > 0  # gradients reach every parameter
        torch.testing.assert_close(value, target, rtol=0, atol=20 * tolerance)
    by_table = torch.autograd.grad((stock(IDS) * direction).sum(), stock.weight)[0]
    torch.testing.assert_close(got[0], by_table @ (low.B if low.s is None else low.B * low.s), rtol=0,
                               atol=20 * tolerance)  # fmt: skip


def test_padding_gives_exactly_zero_in_every_draw_and_no_gradient():
    low = table(padding_idx=0)
    assert torch.count_nonzero(low.A[0]) == 0
    draws = {"A": torch.randn(4, 13, 3).double(), "B": torch.randn(4, 9, 3).double()}
    outputs = vmap(lambda one: functional_call(low, one, (IDS,)))(draws)
    assert torch.count_nonzero(outputs[:, IDS == 0]) == 0
    assert torch.count_nonzero(outputs[:, IDS != 0]) == outputs[:, IDS != 0].numel()
    plain = F.embedding(IDS, draws["A"][0]) @ draws["B"][0].T  # mutant: the padding row is drawn
    assert torch.count_nonzero(plain[IDS == 0]) > 0
    low(IDS).sum().backward()
    assert torch.count_nonzero(low.A.grad[0]) == 0
    assert torch.count_nonzero(low.A.grad[3]) == 3
    with torch.no_grad():
        low.A[0] = 1.0  # as a draw or an optimiser with momentum may leave it
    assert torch.count_nonzero(low(IDS)[IDS == 0]) == 0
    assert torch.count_nonzero(low.weight[0]) == 0
    assert torch.count_nonzero(low.weight) == 12 * 9
    torch.testing.assert_close(low.to_layer()(IDS), low(IDS), rtol=0, atol=1e-14)


def test_padding_stays_zero_through_a_fit():
    network = Classifier(LowRankEmbedding(13, 9, 3, padding_idx=0))
    ids, y = torch.randint(13, (60, 4), generator=torch.Generator().manual_seed(0)), torch.arange(60) % 2
    posterior = sb.MeanField(epochs=1).fit(sb.Model(network, sb.Categorical()), (ids, y))
    draws = posterior.draw(3)
    views = posterior.layout.views(draws)
    assert torch.count_nonzero(views["table.A"][:, 0]) > 0  # the belief covers the row; the output does not
    for row in draws:
        one = {name: view for name, view in posterior.layout.views(row).items() if name.startswith("table.")}
        with torch.no_grad():
            names = {name.removeprefix("table."): value for name, value in one.items()}
            output = functional_call(posterior.network.table, names, (IDS,))
        assert torch.count_nonzero(output[IDS == 0]) == 0


def test_draws_by_vmap_are_those_of_the_loop():
    network = Classifier(LowRankEmbedding(13, 9, 3, padding_idx=0)).eval()
    layout = Layout.of(network)
    draws = torch.randn(5, layout.size, generator=torch.Generator().manual_seed(1))
    assert way_for(network) is Way.VMAP
    batched, loop = (evaluate(network, layout, draws, IDS, way) for way in (Way.VMAP, Way.LOOP))
    torch.testing.assert_close(batched, loop, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_methods_keep_their_contract_with_it(method):
    source = torch.Generator().manual_seed(2)
    ids = torch.randint(13, (40, 4), generator=source)
    network = Classifier(LowRankEmbedding(13, 9, 3, padding_idx=0))
    check_method(METHODS[method], network=network, likelihood=sb.Categorical(), data=(ids, ids[:, 0] % 2))


def test_the_start_has_the_variance_of_a_stock_table():
    torch.manual_seed(1)
    squares = torch.stack([LowRankEmbedding(60, 50, 4).weight.detach().square().mean() for _ in range(300)])
    error = squares.std().item() / math.sqrt(300)
    assert abs(squares.mean().item() - 1) < 4 * error  # false alarm 6e-5
    assert abs(squares.mean().item() - 1 / 4) > 4 * error  # mutant: r forgotten


@pytest.mark.parametrize("diagonal", [False, True])
def test_an_svd_start_at_full_rank_is_the_stock_table(diagonal):
    stock = nn.Embedding(13, 9, padding_idx=2, dtype=torch.float64).eval().requires_grad_(False)
    stock.weight.mul_(torch.logspace(0, -3, 9))
    low = LowRankEmbedding.from_layer(stock, 9, init="svd", diagonal=diagonal)
    torch.testing.assert_close(low.weight, stock.weight, rtol=0, atol=1e-14)
    assert low.padding_idx == 2
    assert not low.training
    assert not any(p.requires_grad for p in low.parameters())
    best = LowRankEmbedding.from_layer(stock, 3, init="svd", diagonal=diagonal)
    rest = torch.linalg.svdvals(stock.weight)[3:].square().sum().sqrt()  # Eckart-Young
    torch.testing.assert_close(torch.linalg.matrix_norm(best.weight - stock.weight), rest)
    assert torch.count_nonzero(best.weight[2]) == 0


def test_a_padding_row_that_is_not_zero_is_not_lost():
    stock = nn.Embedding(13, 9, padding_idx=2, dtype=torch.float64)
    with torch.no_grad():
        stock.weight[2] = 1.5  # as in published checkpoints
    low = LowRankEmbedding.from_layer(stock, 9, init="svd")
    torch.testing.assert_close(low(IDS), stock(IDS), rtol=0, atol=1e-14)
    assert low.padding_idx is None
    assert LowRankEmbedding.from_layer(stock, 3).padding_idx == 2  # a random start begins anew


def test_a_tied_head_has_the_logits_of_a_stock_tie():
    low = table(padding_idx=0)
    head = low.output_projection(bias=True)
    x = torch.randn(5, 9, dtype=torch.float64)
    torch.testing.assert_close(head(x), x @ (low.A @ low.B.T).T, rtol=0, atol=1e-13)
    assert head.A is low.A
    assert head.B is low.B
    assert type(head) is LowRankLinear
    scaled = table(diagonal=True)
    assert scaled.output_projection().s is scaled.s


def test_a_tie_is_counted_copied_and_trained_once():
    network = Tied()
    assert Layout.of(network).belief == (13 + 9) * 3  # not twice
    assert [slot.aliases for slot in Layout.of(network).slots] == [
        ("table.A", "head.A"),
        ("table.B", "head.B"),
    ]
    for copied in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        assert copied.head.A is copied.table.A
    ids = torch.randint(13, (64, 4), generator=torch.Generator().manual_seed(0))
    model = sb.Model(network, sb.Categorical())
    posterior = sb.MeanField(epochs=60, learning_rate=0.03, temperature=1e-6).fit(model, (ids, ids[:, 0]))
    assert posterior.network.head.A is posterior.network.table.A
    row = posterior.draw(1)[0]
    views = posterior.layout.views(row)
    a, b = views["table.A"], views["table.B"]
    by_hand = torch.tanh(F.embedding(ids, a) @ b.T).mean(1) @ (a @ b.T).T
    torch.testing.assert_close(posterior.functions(row[None], ids)[0], by_hand, rtol=1e-4, atol=1e-4)
    before = F.cross_entropy(network(ids), ids[:, 0]).item()
    assert F.cross_entropy(by_hand, ids[:, 0]).item() < 0.8 * before
    check_method(sb.MeanField(epochs=1), network=network, likelihood=sb.Categorical(), data=(ids, ids[:, 0]))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        (torch.tensor([1, 13]), IndexError, r"outside 0\.\.12, the table's rows: ids go from 1 to 13"),
        (torch.tensor([-1, 3]), IndexError, "ids go from -1 to 3"),
        (torch.tensor([1.0]), TypeError, r"got torch\.float32; convert them with ids\.long"),
        (torch.tensor([True]), TypeError, r"got torch\.bool"),
    ],
)
def test_ids_that_are_no_rows_are_named(ids, error, message):
    with pytest.raises(error, match=message):
        table()(ids)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_norm": 1.0}, r"max_norm=1\.0: shortens rows"),
        ({"norm_type": 1.0}, r"norm_type=1\.0: it belongs to max_norm"),
        ({"scale_grad_by_freq": True}, "scale_grad_by_freq=True"),
        ({"sparse": True}, "sparse=True"),
        ({"padding_idx": 13}, "padding_idx 13 is outside the table of 13 rows"),
    ],
)
def test_options_without_meaning_are_refused_by_name(settings, message):
    with pytest.raises(ValueError, match=message):
        table(**settings)


def test_stock_layers_with_such_options_are_refused_too():
    with pytest.raises(ValueError, match=r"max_norm=2\.0"):
        LowRankEmbedding.from_layer(nn.Embedding(13, 9, max_norm=2.0), 3)


@pytest.mark.parametrize("rank", [0, 10])
def test_a_rank_outside_its_limits_is_an_error_that_names_them(rank):
    # dnn_to_bnn-style conversions accept it and hold more numbers than the layer they replace
    with pytest.raises(ValueError, match=rf"LowRankEmbedding: rank {rank} is outside 1\.\.9"):
        LowRankEmbedding(13, 9, rank)
    with pytest.warns(UserWarning, match=r"LowRankEmbedding: rank 6 saves no parameters .* below 5\.3"):
        LowRankEmbedding(13, 9, 6)


def test_copies_pickles_and_files_work_after_a_backward_pass(tmp_path):
    low = table(padding_idx=0)
    low(IDS).sum().backward()
    for copied in (copy.deepcopy(low), pickle.loads(pickle.dumps(low))):
        assert torch.equal(copied(IDS), low(IDS))
    torch.save(low.state_dict(), tmp_path / "table.pt")
    other = table(padding_idx=0)
    other.reset_parameters()
    assert not torch.equal(other(IDS), low(IDS))
    other.load_state_dict(torch.load(tmp_path / "table.pt", weights_only=True))
    assert torch.equal(other(IDS), low(IDS))
    assert low.float()(IDS).dtype == torch.float32
    assert set(low.state_dict()) == {"A", "B"}
    assert low.to("meta")(IDS.to("meta")).shape == (3, 4, 9)  # no tensor left behind


def test_a_compiled_layer_has_the_same_numbers():
    low = table(padding_idx=0)
    compiled = torch.compile(low, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(IDS), low(IDS))


def test_under_autocast_the_embedding_keeps_its_precision_as_in_torch():
    # else a residual stream that begins here would run in bfloat16 through the whole network
    low = LowRankEmbedding(20, 8, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert low(torch.arange(4)).dtype is low.to_layer()(torch.arange(4)).dtype is torch.float32
