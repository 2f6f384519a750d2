"""LowRankLSTM and LowRankGRU: equal to the stock layers in every option; start, copies, refusals."""

import copy
import importlib
import itertools
import math
import pickle
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from singularbayes.nn import LowRankGRU, LowRankLSTM
from singularbayes.nn.factors import quiet_ranks

KINDS = [LowRankLSTM, LowRankGRU]
NAMES = ("num_layers", "bias", "batch_first", "bidirectional")
OPTIONS = [dict(zip(NAMES, values, strict=True))
           for values in itertools.product((1, 2), (True, False), (False, True), (False, True))]  # fmt: skip
STEPS, BATCH, FEATURES, HIDDEN, RANK = 6, 4, 7, 5, 3
LENGTHS = {"sorted": torch.tensor([6, 5, 3, 1]), "unsorted": torch.tensor([3, 6, 1, 5])}
CALLS = [
    "batch",
    "batch + states",
    "one",
    "one + states",
    "sorted",
    "unsorted",
    "sorted + states",
    "unsorted + states",
]


def make(kind, rank=RANK, dtype=torch.float64, diagonal=True, **options):
    """A layer whose factors, biases and ``s`` are all random, correlated and badly scaled."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        layer = kind(FEATURES, HIDDEN, rank, dtype=dtype, diagonal=diagonal, **options)
        with torch.no_grad():
            for name, parameter in layer.named_parameters():
                noise = torch.randn_like(parameter)
                parameter.copy_(noise if name[0] in "Abs" else noise + 0.5 * noise.roll(1, 1))
                if name.startswith("A"):
                    parameter.mul_(torch.logspace(-1, 0, len(parameter)).to(dtype)[:, None])
    return layer


def inputs(layer, call="batch"):
    """An input and its initial states ``(h, c)``, or ``None``."""
    dtype = layer.A_ih_l0.dtype
    source = torch.Generator().manual_seed(2)
    x = torch.randn(STEPS, BATCH, FEATURES, generator=source, dtype=torch.float64)
    x = (x * torch.logspace(-2, 1, FEATURES)).to(dtype)
    count = layer.num_layers * (1 + layer.bidirectional)
    states = torch.randn(2, count, BATCH, HIDDEN, generator=source, dtype=torch.float64).to(dtype)
    if call.startswith("one"):
        x, states = x[:, 0], states[:, :, 0]
    elif layer.batch_first:
        x = x.transpose(0, 1)
    x = x.contiguous().requires_grad_()
    if not call.endswith("states"):
        return x, None
    return x, (states[0], states[1]) if isinstance(layer, LowRankLSTM) else states[0]


def tensors(output) -> list[torch.Tensor]:
    """Every floating tensor of an output, packed values too."""
    if isinstance(output, PackedSequence):
        return [output.data]
    return [output] if isinstance(output, torch.Tensor) else [t for part in output for t in tensors(part)]


def call_layer(layer, x, states, call):
    kind = call.split()[0]
    if kind in LENGTHS:
        x = pack_padded_sequence(x, LENGTHS[kind], layer.batch_first, enforce_sorted=kind == "sorted")
    return layer(x, states)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(("dtype", "room"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_every_option_gives_the_stock_layers_outputs_and_gradients(kind, call, dtype, room):
    # Trap 17: bayesian-torch's LSTM is one layer, one direction and takes no packed sequence.
    for options in OPTIONS:
        layer = make(kind, dtype=dtype, **options)
        stock = layer.to_layer()
        x, states = inputs(layer, call)
        got, expected = call_layer(layer, x, states, call), call_layer(stock, x, states, call)
        assert type(got[0]) is type(expected[0])
        if isinstance(got[0], PackedSequence):
            assert torch.equal(got[0].batch_sizes, expected[0].batch_sizes)
            assert (got[0].unsorted_indices is None) == (call.split()[0] == "sorted")
        pairs = list(zip(tensors(got), tensors(expected), strict=True))
        for one, two in pairs:
            torch.testing.assert_close(one, two, rtol=room, atol=room)
        slopes = []
        for output in (got, expected):
            total = sum(
                (t * torch.linspace(-1, 2, t.numel()).view(t.shape).to(dtype)).sum() for t in tensors(output)
            )
            slopes.append(torch.autograd.grad(total, x)[0])
        torch.testing.assert_close(*slopes, rtol=room, atol=room * slopes[0].abs().max().item())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("diagonal", [False, True])
def test_gradients_of_the_factors_are_the_stock_gradients_through_the_product(kind, diagonal):
    layer = make(kind, num_layers=2, bidirectional=True, diagonal=diagonal)
    stock = layer.to_layer()
    x, states = inputs(layer, "batch + states")
    for module in (layer, stock):
        sum((t * t).sum() for t in tensors(module(x, states))).backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in layer.parameters())
    for name in layer.ranks:
        place, slope = name.removeprefix("weight_"), getattr(stock, name).grad
        a, b = getattr(layer, f"A_{place}"), getattr(layer, f"B_{place}")
        s = getattr(layer, f"s_{place}") if diagonal else torch.ones(RANK).double()
        torch.testing.assert_close(a.grad, slope @ b.detach() * s.detach(), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(b.grad, slope.T @ a.detach() * s.detach(), rtol=1e-10, atol=1e-12)
        if diagonal:
            torch.testing.assert_close(s.grad, (a.T @ slope @ b).diagonal(), rtol=1e-10, atol=1e-12)
    for name in ("bias_ih_l0", "bias_hh_l1_reverse"):
        torch.testing.assert_close(getattr(layer, name).grad, getattr(stock, name).grad)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_agree_with_finite_differences(kind):
    layer = make(kind, bidirectional=True)
    x, _ = inputs(layer)
    x = x.detach()[:3, :2]
    names, values = zip(*layer.named_parameters(), strict=True)

    def outputs(*given):
        named = dict(zip(names, given, strict=True))
        return torch.func.functional_call(layer, named, (x,))[0]

    assert torch.autograd.gradcheck(outputs, tuple(v.detach().requires_grad_() for v in values))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", ["batch", "unsorted"])
def test_dropout_between_layers_is_the_stock_layers_with_the_same_seed(kind, call):
    layer = make(kind, num_layers=3, dropout=0.4)
    stock = layer.to_layer()
    x, _ = inputs(layer)
    outputs = []
    for module in (layer, stock):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            outputs.append(tensors(call_layer(module, x, None, call)))
    for one, two in zip(*outputs, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-12)
    calm = tensors(call_layer(layer.eval(), x, None, call))
    assert not torch.allclose(calm[0], outputs[0][0])  # something was dropped, in train mode alone
    torch.testing.assert_close(
        calm[0], tensors(call_layer(stock.eval(), x, None, call))[0], rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("kind", KINDS)
def test_each_weight_is_formed_once_whatever_the_length(kind, monkeypatch):
    module = importlib.import_module("singularbayes.nn.recurrence")
    count, real = [], module.product
    monkeypatch.setattr(module, "product", lambda *factors: count.append(1) or real(*factors))
    layer = make(kind, num_layers=2)
    for steps in (1, 40):
        count.clear()
        layer(torch.ones(steps, 2, FEATURES).double())
        assert len(count) == 4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("diagonal", [False, True])
def test_full_rank_from_present_weights_reproduces_the_stock_layer(kind, diagonal):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        stock = kind.replaces(FEATURES, HIDDEN, 2, bidirectional=True, batch_first=True, dropout=0.3).double()
    stock.eval()
    stock.weight_hh_l0.requires_grad_(False)
    stock.bias_ih_l1.requires_grad_(False)
    before = copy.deepcopy(stock.state_dict())
    low = kind.from_layer(stock, HIDDEN + 2, init="svd", diagonal=diagonal)
    x, _ = inputs(low)
    wide = [name for name in low.ranks if name.startswith("weight_ih_l1")]
    assert all(low.ranks[name] == HIDDEN + 2 for name in wide)  # 10 columns: not full
    for name in low.ranks:
        if name in wide:
            u, s, vh = torch.linalg.svd(before[name], full_matrices=False)
            best = (u * s)[:, : HIDDEN + 2] @ vh[: HIDDEN + 2]
            torch.testing.assert_close(getattr(low, name), best, rtol=0, atol=1e-12)
        else:
            torch.testing.assert_close(getattr(low, name), before[name], rtol=0, atol=1e-12)
    ranks = {"weight_ih_l0*": FEATURES, "weight_hh*": HIDDEN, "*": 2 * HIDDEN}
    full = kind.from_layer(stock, ranks, init="svd", diagonal=diagonal)
    for one, two in zip(tensors(full(x)), tensors(stock(x)), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-12)
    assert not full.training
    assert full.dropout == 0.3
    frozen = {name for name, p in full.named_parameters() if not p.requires_grad}
    assert frozen == {"A_hh_l0", "B_hh_l0", "bias_ih_l1"} | ({"s_hh_l0"} if diagonal else set())
    for name, value in before.items():
        assert torch.equal(stock.state_dict()[name], value)


@pytest.mark.parametrize("kind", KINDS)
def test_the_stock_layer_given_back_has_every_option(kind):
    for options in OPTIONS:
        layer = make(kind, dropout=0.2 if options["num_layers"] == 2 else 0.0, **options).eval()
        layer.A_hh_l0.requires_grad_(False)
        with torch.random.fork_rng(devices=[]):
            state = torch.get_rng_state()
            stock = layer.to_layer()
            assert torch.equal(state, torch.get_rng_state())
        assert type(stock) is kind.replaces
        assert not stock.training
        assert not stock.weight_hh_l0.requires_grad
        assert stock.weight_ih_l0.requires_grad
        for name in (*NAMES, "input_size", "hidden_size", "dropout"):
            assert getattr(stock, name) == getattr(layer, name), name
        assert kind.matrices(stock) == {name: tuple(getattr(layer, name).shape) for name in layer.ranks}
        for name, parameter in stock.named_parameters():
            assert torch.equal(parameter, getattr(layer, name)), name


@pytest.mark.parametrize("kind", KINDS)
def test_the_start_has_glorots_variance_and_an_open_forget_gate(kind):
    n, hidden, columns = 200, 10, 6
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [kind(columns, hidden, 3) for _ in range(n)]
    for name, side in (("weight_ih_l0", columns), ("weight_hh_l0", hidden)):
        squares = torch.stack([getattr(layer, name).detach().square().mean() for layer in layers])
        error = squares.std().item() / math.sqrt(n)
        target = 2 / (kind.gates * hidden + side)
        assert abs(squares.mean().item() - target) < 4 * error  # false alarm 6e-5
        assert abs(squares.mean().item() - target / 3) > 4 * error  # mutant: r forgotten
    start = torch.zeros(kind.gates * hidden)
    assert torch.equal(layers[0].bias_hh_l0, start)
    if kind is LowRankLSTM:
        start[hidden : 2 * hidden] = 1
    assert torch.equal(layers[0].bias_ih_l0, start)
    stock = nn.LSTM(2, 4) if kind is LowRankLSTM else nn.GRU(2, 4)
    assert torch.equal(
        kind.from_layer(stock, 2, init="svd").bias_ih_l0, stock.bias_ih_l0
    )  # trained ones stay


@pytest.mark.parametrize("kind", KINDS)
def test_reset_draws_everything_anew(kind):
    layer = make(kind, num_layers=2)
    before = {name: p.clone() for name, p in layer.named_parameters()}
    layer.reset_parameters()
    assert all(not torch.equal(p, before[name]) for name, p in layer.named_parameters())


def test_the_names_are_torchs():
    layer = make(LowRankLSTM, bidirectional=True, diagonal=False)
    ih, hh = ["A_ih_l0", "B_ih_l0"], ["A_hh_l0", "B_hh_l0"]
    forward = [*ih, *hh, "bias_ih_l0", "bias_hh_l0"]
    assert set(layer.state_dict()) == {*forward, *(f"{name}_reverse" for name in forward)}
    assert layer.A_ih_l0.shape == (20, 3)
    assert layer.B_ih_l0.shape == (7, 3)
    layer.flatten_parameters()
    shown = str(LowRankLSTM(9, 8, 2, 2, False, True, 0.1, True))
    options = "num_layers=2, bias=False, batch_first=True, dropout=0.1, bidirectional=True"
    assert shown == f"LowRankLSTM(9, 8, rank=2, {options})"


def test_a_product_cannot_be_assigned_but_set():
    with quiet_ranks():
        layer = make(LowRankLSTM, rank={"*_ih_*": 3, "*": 5})
    with pytest.raises(AttributeError, match=r"weight_hh_l0 is a product .* set_weights"):
        layer.weight_hh_l0 = torch.zeros(20, 5).double()
    dense = torch.randn(20, 5, dtype=torch.float64)
    layer.set_weights({"weight_hh_l0": dense})
    torch.testing.assert_close(layer.weight_hh_l0, dense)
    with pytest.raises(ValueError, match=r"weight_ih_l0 has shape \(20, 5\), this layer needs \(20, 7\)"):
        layer.set_weights({"weight_ih_l0": dense})
    with pytest.raises(ValueError, match=r"has no 'weight_hh_l1'; it has weight_ih_l0"):
        layer.set_weights({"weight_hh_l1": dense})
    with pytest.raises(AttributeError, match="no attribute 'weight_hh_l1'"):
        _ = layer.weight_hh_l1


@pytest.mark.parametrize("kind", KINDS)
def test_copies_work_after_a_backward_pass(kind):
    # Trap 24: a layer that keeps the weight of its last pass can neither be deep-copied nor spawned.
    layer = make(kind, num_layers=2, dtype=torch.float32)
    x, _ = inputs(layer)
    output = layer(x)[0]
    output.sum().backward()
    spawned = pickle.loads(ForkingPickler.dumps(layer))  # what a spawned process is sent
    other = make(kind, num_layers=2, dtype=torch.float32)
    other.reset_parameters()
    other.load_state_dict(layer.state_dict())
    for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), spawned, other):
        assert torch.equal(copied(x)[0], output)


@pytest.mark.parametrize("kind", KINDS)
def test_no_tensor_is_left_behind_by_a_cast_or_a_move(kind):
    # Trap 26: blitz keeps its sampled weights as plain attributes, which .double() and .to() do not reach.
    layer = make(kind, dtype=torch.float32)
    layer(torch.ones(3, 2, FEATURES))
    registered = {id(p) for p in layer.parameters()}
    strays = [k for k, v in vars(layer).items() if isinstance(v, torch.Tensor) and id(v) not in registered]
    assert not strays
    assert layer.double()(torch.ones(3, 2, FEATURES).double())[0].dtype == torch.float64
    moved = layer.to("meta")(torch.ones(3, 2, FEATURES, dtype=torch.float64, device="meta"))[0]
    assert moved.device.type == "meta"
    assert kind(4, 6, 2, device="meta", dtype=torch.bfloat16).A_hh_l0.dtype == torch.bfloat16


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_gives_what_the_stock_layer_gives(kind):
    layer = make(kind, dtype=torch.float32)
    stock = layer.to_layer()
    x, _ = inputs(layer)
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        one, two = layer(x)[0], stock(x)[0]
    assert one.dtype == two.dtype
    torch.testing.assert_close(one, two, rtol=0, atol=0)
    one.float().sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in layer.parameters())


@pytest.mark.usefixtures("unchecked")
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # dynamo's own, after a break in the graph
@pytest.mark.parametrize("kind", KINDS)
def test_a_compiled_layer_gives_the_same_numbers(kind):
    layer = make(kind, dtype=torch.float32)
    x, _ = inputs(layer)
    output = torch.compile(layer, backend="aot_eager")(x)[0]
    torch.testing.assert_close(output, layer(x)[0], rtol=0, atol=0)
    output.sum().backward()
    assert layer.A_hh_l0.grad is not None


def test_what_is_not_supported_raises_before_any_work():
    # Trap 17: a projection that is silently ignored gives states of another size.
    state = torch.get_rng_state()
    with pytest.raises(ValueError, match=r"proj_size=2 is not supported; use proj_size=0, or keep"):
        LowRankLSTM(7, 5, 3, proj_size=2)
    projected = nn.LSTM(7, 5, proj_size=2, device="meta")
    with pytest.raises(ValueError, match="proj_size=2 is not supported"):
        LowRankLSTM.from_layer(projected, 3)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.usefixtures("unchecked")
def test_sizes_and_options_are_checked():
    with pytest.raises(TypeError, match=r"LowRankGRU replaces nn\.GRU, got LSTM"):
        LowRankGRU.from_layer(nn.LSTM(3, 4), 2)
    normed = nn.utils.parametrizations.weight_norm(nn.LSTM(3, 4), "weight_hh_l0")
    with pytest.raises(ValueError, match="LowRankLSTM: weight_hh_l0 of the given layer are no parameters"):
        LowRankLSTM.from_layer(normed, 2)
    with pytest.raises(ValueError, match="hidden_size must be at least 1, got 0"):
        LowRankGRU(7, 0, 3)
    with pytest.raises(TypeError, match=r"num_layers must be an integer, got float 2\.0"):
        LowRankGRU(7, 5, 3, num_layers=2.0)
    for wrong in (1.5, -0.1, True):
        with pytest.raises(ValueError, match=r"dropout must be a number in 0\.\.1"):
            LowRankGRU(7, 5, 3, 2, dropout=wrong)
    with pytest.warns(UserWarning, match="with num_layers=1 dropout=0.5 does nothing"):
        layer = LowRankGRU(7, 5, 3, dropout=0.5)
    assert LowRankGRU.from_layer(layer.to_layer(), 3).dropout == 0.5  # said once


def test_ranks_are_checked_before_any_parameter_is_made():
    # Trap 20: a rank above the smaller side is cut silently, or fails in a matrix product much later.
    with pytest.raises(ValueError, match=r"LowRankLSTM: rank 8 is outside 1\.\.7"):
        LowRankLSTM(7, 5, 8)
    with pytest.raises(ValueError, match=r"LowRankLSTM, weight_hh_l0: rank 6 is outside 1\.\.5"):
        LowRankLSTM(7, 5, {"*_hh_*": 6, "*": 2})
    with pytest.raises(ValueError, match=r"'weight_hh_l2' matches no matrix; nearest names: weight_hh_l"):
        LowRankLSTM(7, 5, {"weight_hh_l2": 2, "*": 2}, 2)
    with pytest.warns(UserWarning, match=r"LowRankLSTM: .* weight_hh_l0 \(20 x 5, rank 5: below 4\.0\)"):
        layer = LowRankLSTM(7, 5, 5)
    assert layer.ranks == {"weight_ih_l0": 5, "weight_hh_l0": 5}
