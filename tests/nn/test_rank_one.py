"""RankOneLinear against the materialised weight and torch's layer, and the conversion of networks."""

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from singularbayes.functions import Way, evaluate, way_for
from singularbayes.nn import RankOneLinear, rank_one
from singularbayes.parameters import Layout


def layer(out: int = 5, dtype=torch.float64, **options) -> RankOneLinear:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        new = RankOneLinear(5, out, dtype=dtype, **options)
        for parameter in (new.s, new.t):
            nn.init.normal_(parameter, std=0.5)
    return new


def rows(*shape: int, dtype=torch.float64) -> Tensor:
    x = torch.randn(*shape, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return (x * torch.tensor([1.0, 10.0, 0.1, 1.0, 3.0])).to(dtype)  # badly scaled


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(7,), (3, 7), ()])
def test_it_is_torchs_layer_of_its_weight_forward_and_backward(shape, bias, dtype):
    own = layer(bias=bias, dtype=dtype)
    stock, x = own.to_layer(), rows(*shape, dtype=dtype).requires_grad_()
    assert type(stock) is nn.Linear
    got, want = own(x), stock(x)
    direction = torch.randn(got.shape, dtype=dtype, generator=torch.Generator().manual_seed(2))
    gradients = [torch.autograd.grad((out * direction).sum(), x)[0] for out in (got, want)]
    room = 1e-6 if dtype is torch.float32 else 1e-12
    for one, two in ((got, want), gradients):
        assert (one - two).abs().max() <= room * (1 + two.abs().max())


def test_s_scales_the_outputs_and_t_the_inputs():
    own = layer()  # square: exchanged vectors would still fit
    weight = torch.empty(5, 5, dtype=torch.float64)
    for o in range(5):
        for i in range(5):
            weight[o, i] = own.weight0[o, i] * (1 + own.s[o]) * (1 + own.t[i])
    torch.testing.assert_close(own.weight, weight, rtol=0, atol=1e-14)
    torch.testing.assert_close(own(rows(4)), rows(4) @ weight.T + own.bias, rtol=0, atol=1e-12)
    exchanged = own.weight0 * torch.outer(1 + own.t, 1 + own.s)
    assert (exchanged - weight).abs().max() > 0.1  # mutant


def test_gradients_reach_every_parameter():
    own = layer(out=3)
    own(rows(6)).square().sum().backward()
    assert {n for n, p in own.named_parameters() if p.grad.abs().min() > 0} == {"weight0", "s", "t", "bias"}


@pytest.mark.parametrize("names", [("s", "t", "weight0", "bias"), ("s", "t"), ("s",), ("t",), ("weight0",),
                                   ("bias",), ("weight0", "t"), ("s", "bias")])  # fmt: skip
@pytest.mark.parametrize("batch", [7, 5, 4])  # 5: features, 4: draws; no axis may be taken for another
def test_a_draws_axis_on_any_tensor_is_the_map_over_draws(names, batch):
    own, source, x = layer(), torch.Generator().manual_seed(3), rows(batch)
    stacks = {n: torch.randn(4, *getattr(own, n).shape, generator=source, dtype=torch.float64) for n in names}
    expected = vmap(lambda one: functional_call(own, one, (x,)))(stacks)
    torch.testing.assert_close(functional_call(own, stacks, (x,)), expected)
    xs = rows(4, batch)
    expected = vmap(lambda one, row: functional_call(own, one, (row,)))(stacks, xs)
    torch.testing.assert_close(functional_call(own, stacks, (xs,)), expected)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("bayesian", ["*", "*.s", "*.t", "0.*", "2.*"])
def test_chains_of_it_are_stacked_to_the_numbers_of_the_loop(bayesian, bias):
    net = nn.Sequential(
        layer(bias=bias), nn.ReLU(), layer(out=3, bias=bias), nn.Tanh(), nn.Linear(3, 2).double()
    )
    layout = Layout.of(net, bayesian=bayesian)
    w = layout.flatten(net)
    draws = w + 0.3 * torch.randn(4, len(w), generator=torch.Generator().manual_seed(0), dtype=w.dtype)
    assert way_for(net) is Way.STACKED
    state = {n: t.clone() for n, t in net.state_dict().items()}
    loop = evaluate(net, layout, draws, rows(6), Way.LOOP)
    for way in (Way.STACKED, Way.VMAP):
        torch.testing.assert_close(evaluate(net, layout, draws, rows(6), way), loop, rtol=0, atol=1e-11)
    assert all(torch.equal(t, state[n]) for n, t in net.state_dict().items())
    written = copy.deepcopy(net)
    layout.write(written, draws[1])
    torch.testing.assert_close(loop[1], written(rows(6)), rtol=0, atol=1e-11)


def test_a_stock_layer_is_replaced_by_the_same_function_and_given_back():
    stock = nn.Linear(5, 3, dtype=torch.float64).eval().requires_grad_(False)
    own = RankOneLinear.from_layer(stock)
    assert not own.training
    assert {n for n, p in own.named_parameters() if p.requires_grad} == {"s", "t"}
    assert torch.equal(own(rows(4)), stock(rows(4)))
    back = own.to_layer()
    assert not any(p.requires_grad for p in back.parameters())
    assert torch.equal(back.weight, stock.weight)
    assert repr(own) == "RankOneLinear(in_features=5, out_features=3, bias=True)"


def test_a_new_layer_starts_as_torchs_and_without_perturbation():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        own, stock = RankOneLinear(50, 40), nn.Linear(50, 40)
    for mine, torchs in ((own.weight0, stock.weight), (own.bias, stock.bias)):
        assert mine.abs().max() <= 1 / 50**0.5
        assert mine.std().item() == pytest.approx(torchs.std().item(), rel=0.25)
    assert not own.s.any()
    assert not own.t.any()
    own.s.data.fill_(2.0)
    own.reset_parameters()
    assert not own.s.any()


def test_deepcopy_pickle_double_and_autocast_work_after_a_backward_pass():
    own = layer(dtype=torch.float32)
    x = rows(4, dtype=torch.float32)
    own(x).sum().backward()
    for copied in (copy.deepcopy(own), pickle.loads(pickle.dumps(own))):
        assert torch.equal(copied(x), own(x))
    assert set(own.state_dict()) == {"weight0", "s", "t", "bias"}
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        rough = own(x)
    rough.float().sum().backward()
    torch.testing.assert_close(rough.float(), own(x), rtol=0.05, atol=0.2)
    assert own.double()(x.double()).dtype == torch.float64


# The conversion


class Compiled(nn.Module):
    """What torch.compile wraps a module in, without compiling."""

    def __init__(self) -> None:
        super().__init__()
        self._orig_mod = nn.Linear(2, 2)


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 5, 1)
        self.hidden = nn.Linear(5, 5)
        self.again = self.hidden  # one layer in two places
        self.head = nn.Linear(5, 4)
        self.out = nn.Linear(4, 5)
        self.out.weight = nn.Parameter(self.head.weight.detach().T.clone())
        self.tied = nn.Linear(4, 5)
        self.tied.weight = self.out.weight
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(5, 2))

    def forward(self, x: Tensor) -> Tensor:
        h = self.again(self.hidden(self.conv(x).mean(2)).tanh()).tanh()
        return self.normed(self.tied(self.out(self.head(h)) @ self.out.weight))


def test_a_network_is_copied_with_the_same_function_and_a_list_of_what_stayed():
    torch.manual_seed(0)
    net = Mixed()
    state = {n: t.clone() for n, t in net.state_dict().items()}
    new = rank_one(net)
    x = torch.randn(6, 2, 3)
    torch.testing.assert_close(new(x), net(x))
    assert new.rank_one_layers.replaced == ("hidden", "head")
    assert new.hidden is new.again
    assert type(net.hidden) is nn.Linear
    assert all(torch.equal(t, state[n]) for n, t in net.state_dict().items())
    kept = new.rank_one_layers.kept
    assert "Conv1d: only nn.Linear" in kept["conv"]
    assert kept["out"] == "its weight is tied to tied.weight"
    assert kept["tied"] == "its weight is tied to out.weight"
    assert kept["normed"] == "its weight is parametrised"
    assert "hidden: rank-one\n" in str(new.rank_one_layers)
    assert new.tied.weight is new.out.weight  # trap 14: a tie that a conversion breaks


def test_patterns_choose_layers_by_any_of_their_names():
    assert rank_one(Mixed(), "again").rank_one_layers.replaced == ("hidden",)
    assert rank_one(Mixed(), ["head", "hid*"]).rank_one_layers.replaced == ("hidden", "head")
    assert type(rank_one(nn.Linear(3, 2))) is RankOneLinear


def test_converting_twice_keeps_what_is_rank_one_already():
    once = rank_one(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)), "0")
    twice = rank_one(once, "1")
    assert twice.rank_one_layers.kept == {"0": "rank-one already"}


def test_a_layer_with_a_forward_of_its_own_or_backward_hooks_stays():
    # replaced, it would lose them without a word
    net = nn.Sequential(*(nn.Linear(3, 3) for _ in range(3)))
    net[0].forward = torch.relu
    net[1].register_full_backward_hook(lambda *_: None)
    new = rank_one(net)
    assert new.rank_one_layers.replaced == ("2",)
    assert new.rank_one_layers.kept["0"] == "its forward was replaced"
    assert "hooks" in new.rank_one_layers.kept["1"]


def test_a_stock_encoder_layer_takes_it_inside():
    torch.manual_seed(0)
    encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).eval()
    new = rank_one(encoder, "linear?")
    x = torch.randn(3, 4, 8)
    with torch.no_grad():
        for module in (new.linear1, new.linear2):
            module.s.normal_()
        fast = new(x)  # the fast path reads linear1.weight
    torch.testing.assert_close(fast, new(x), rtol=0, atol=1e-5)
    assert not torch.allclose(fast, encoder(x), atol=1e-2)
    assert "inside nn.MultiheadAttention" in new.rank_one_layers.kept["self_attn.out_proj"]


@pytest.mark.parametrize(
    ("make", "pattern", "words"),
    [
        (Mixed, "hiden", "nearest names: hidden"),
        (Mixed, "conv", "conv stays: Conv1d: only nn.Linear"),
        (Mixed, "tied", "tied stays: its weight is tied"),
        (lambda: nn.LSTM(3, 4), "*", "LSTM: only nn.Linear layers have a rank-one form here. Use MeanField"),
        (nn.ReLU, "*", "none, it has no nn.Linear"),
        (lambda: nn.Sequential(nn.LazyLinear(3)), "*", "not initialised yet"),
        (Compiled, "*", "was compiled"),
    ],
)
def test_what_cannot_be_converted_is_refused_with_the_reason(make, pattern, words):
    with pytest.raises(ValueError, match=words):
        rank_one(make(), pattern)


@pytest.mark.usefixtures("unchecked")
def test_not_a_module_is_refused():
    with pytest.raises(TypeError, match=r"must be a torch\.nn\.Module, got str"):
        rank_one("net")
