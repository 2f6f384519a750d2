"""The functions of draws: three ways, the same numbers, nothing written."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from singularbayes.functions import Way, call, evaluate, way_for
from singularbayes.nn import LowRankLinear, MaskedDropout
from singularbayes.parameters import Layout


class Heads(nn.Module):
    """A dict input, a mask, and a tuple output."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, None]:
        h = self.encoder(self.table(ids), src_key_padding_mask=attention_mask == 0)
        return self.head(h[:, 0]), None


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 5, num_layers=2, batch_first=True)
        self.head = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class Counter(nn.Module):
    """Writes a buffer in its forward pass and reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return self.linear(x) * self.calls


def tied_layers() -> nn.Module:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3, bias=False)
    second.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), second)


def one_layer_twice() -> nn.Module:
    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), layer)


def tied_head() -> nn.Module:
    table, head = nn.Embedding(11, 4), nn.Linear(4, 11)
    head.weight = table.weight
    return nn.Sequential(table, nn.Tanh(), head)


def convolution() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1),
        nn.BatchNorm2d(3),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(12, 2),
    )


IDS = {"ids": torch.randint(0, 11, (6, 5)), "attention_mask": torch.ones(6, 5, dtype=torch.long)}
IDS["attention_mask"][2, 3:] = 0
FLAT = torch.randn(6, 3)
CASES = {
    "mlp": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 2, bias=False)),
        FLAT,
        Way.STACKED,
    ),
    "root linear": (lambda: nn.Linear(3, 2), FLAT, Way.STACKED),
    "factors": (
        lambda: nn.Sequential(
            LowRankLinear(3, 4, 1), nn.Tanh(), nn.Sequential(LowRankLinear(4, 3, 1, bias=False))
        ),
        FLAT,
        Way.STACKED,
    ),
    "mask": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), MaskedDropout((4,), 0.5), nn.Linear(4, 2)),
        FLAT,
        Way.STACKED,
    ),
    "tied layers": (tied_layers, FLAT, Way.STACKED),
    "one layer twice": (one_layer_twice, FLAT, Way.STACKED),
    "layer norm": (lambda: nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2)), FLAT, Way.VMAP),
    "batch norm": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)),
        FLAT,
        Way.VMAP,
    ),
    "convolution": (convolution, torch.randn(6, 1, 5, 5), Way.VMAP),
    "tied head": (tied_head, torch.randint(0, 11, (6, 2)), Way.VMAP),
    "weight norm": (
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))),
        FLAT,
        Way.LOOP,
    ),
    "transformer": (Heads, IDS, Way.VMAP),
    "lstm": (Recurrent, torch.randn(6, 4, 3), Way.LOOP),
    "gru cell": (lambda: nn.GRUCell(3, 2), FLAT, Way.LOOP),
    # as many rows as draws: a chain may not take the rows' axis for the draws'
    "steps of a sequence": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)),
        torch.randn(4, 5, 3),
        Way.STACKED,
    ),
    "relu first": (lambda: nn.Sequential(nn.ReLU(), nn.Linear(3, 2)), torch.randn(4, 5, 3), Way.STACKED),
    "factors of a sequence": (
        lambda: nn.Sequential(LowRankLinear(3, 4, 1), nn.ReLU(), nn.Linear(4, 2)),
        torch.randn(4, 5, 3),
        Way.STACKED,
    ),
}


def problem(name: str, dtype: torch.dtype = torch.float32):
    build, x, way = CASES[name]
    torch.manual_seed(3)
    network = build().eval().to(dtype).requires_grad_(True)
    layout = Layout.of(network)
    masks = {n: tuple(b.shape) for n, b in network.named_buffers() if n.endswith("mask")}
    layout = layout.with_masks(masks) if masks else layout
    w = layout.flatten(network)
    draws = w + 0.3 * torch.randn(4, len(w), dtype=dtype)
    for slot in layout.of_kind("statistic"):
        draws[:, slot.start : slot.stop] = draws[:, slot.start : slot.stop].abs() + 0.5
    if isinstance(x, Tensor) and x.is_floating_point():
        x = x.to(dtype)
    return network, layout, draws, x, way


def written(network: nn.Module, layout: Layout, w: Tensor, x) -> Tensor:
    """The oracle: write the draw into a copy and run it."""
    other = copy.deepcopy(network)
    layout.write(other, w)
    return call(other, x)


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_every_way_gives_the_numbers_of_the_written_network(name):
    network, layout, draws, x, way = problem(name)
    assert way_for(network) is way
    state = {n: t.clone() for n, t in network.state_dict().items()}
    copy_of_x = copy.deepcopy(x)
    expected = torch.stack([written(network, layout, w, x) for w in draws])
    ways = {way, Way.LOOP} | (set() if way is Way.LOOP else {Way.VMAP})
    for each in ways:
        got = evaluate(network, layout, draws, x, each)
        assert got.shape == expected.shape
        assert (got - expected).abs().max() < 1e-5 * (1 + expected.abs().max())
    assert all(torch.equal(t, state[n]) for n, t in network.state_dict().items())
    assert str(copy_of_x) == str(x)
    assert (expected[0] - expected[1]).abs().max() > 1e-3  # draws do differ: a frozen way fails


@pytest.mark.parametrize("name", ["mlp", "transformer", "convolution"])
def test_the_ways_agree_in_float64(name):
    network, layout, draws, x, way = problem(name, torch.float64)
    gap = evaluate(network, layout, draws, x, way) - evaluate(network, layout, draws, x, Way.LOOP)
    assert gap.abs().max() < 1e-12


@pytest.mark.parametrize("bayesian", ["0.*", "2.*", "*bias", "*weight"])
def test_frozen_layers_anywhere_in_a_chain_keep_their_values(bayesian):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    layout = Layout.of(network, bayesian=bayesian)
    draws = layout.flatten(network) + torch.randn(4, layout.size)
    stacked, loop = (evaluate(network, layout, draws, FLAT, way) for way in (Way.STACKED, Way.LOOP))
    assert (stacked - loop).abs().max() < 1e-5


@pytest.mark.parametrize("way", [Way.VMAP, Way.LOOP])
def test_buffers_that_a_forward_pass_writes_stay_for_the_loop(way):
    network = Counter().eval()
    layout = Layout.of(network)
    draws = torch.stack([layout.flatten(network)] * 3)
    if way is Way.VMAP:
        outputs = evaluate(network, layout, draws, FLAT, way)
    else:
        outputs = evaluate(network, layout, draws, FLAT, way)
        assert torch.allclose(outputs[0], outputs[2]), "a draw must not see the counter of the draw before"
    assert network.calls == 0
    assert torch.allclose(outputs[0], network.linear(FLAT), atol=1e-6)


def test_a_bare_functional_call_would_write_the_buffer():
    network = Counter()
    functional_call(network, {"linear.weight": torch.zeros(2, 3)}, (FLAT,))
    assert network.calls == 1  # so evaluate() passes clones


def test_a_batch_norm_in_train_mode_is_not_counted_up():
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).train()
    layout = Layout.of(network)
    evaluate(network, layout, layout.flatten(network).expand(3, -1), FLAT, Way.LOOP)
    assert network[1].num_batches_tracked == 0
    assert torch.equal(network[1].running_mean, torch.zeros(4))


def test_the_attention_fast_path_is_put_back():
    network, layout, draws, x, way = problem("transformer")
    for before in (True, False):
        torch.backends.mha.set_fastpath_enabled(before)
        evaluate(network, layout, draws, x, way)
        assert torch.backends.mha.get_fastpath_enabled() is before
    torch.backends.mha.set_fastpath_enabled(True)


def test_padded_keys_do_not_touch_other_items():
    network, layout, draws, x, way = problem("transformer")
    other = {**x, "ids": x["ids"].clone()}
    other["ids"][2, 3:] = 1
    one, two = (evaluate(network, layout, draws, ids, way) for ids in (x, other))
    assert (one - two).abs().max() < 1e-5


class Output:
    def __init__(self, logits: Tensor) -> None:
        self.logits = logits


@pytest.mark.parametrize(
    "wrap", [lambda t: t, Output, lambda t: {"logits": t}, lambda t: (t, None), lambda t: [t]]
)
def test_any_usual_output_becomes_one_tensor(wrap):
    class Net(nn.Module):
        def forward(self, x: Tensor):
            return wrap(x + 1)

    assert torch.equal(call(Net(), FLAT), FLAT + 1)


def test_an_unusual_output_is_refused():
    class Net(nn.Module):
        def forward(self, x: Tensor):
            return {"scores": x}

    with pytest.raises(TypeError, match="must return a tensor"):
        call(Net(), FLAT)
