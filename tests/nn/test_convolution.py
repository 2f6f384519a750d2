"""Low-rank convolutions against torch's, for every option; what stays stock under a belief."""

import copy
import itertools
import math
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

import singularbayes as sb
from singularbayes.functions import Way, evaluate, way_for
from singularbayes.nn import LowRankConv1d, LowRankConv2d, LowRankConv3d
from singularbayes.nn.convolution import LowRankConv
from singularbayes.nn.factors import quiet_ranks
from singularbayes.parameters import Layout
from singularbayes.posterior import Posterior
from singularbayes.testing import check_method

KINDS = {1: LowRankConv1d, 2: LowRankConv2d, 3: LowRankConv3d}
KERNEL, SIZE = (3, 2, 2), (9, 8, 7)  # no two sides alike: a swapped axis shows
OPTIONS = {
    "plain": {},
    "no bias": {"bias": False},
    "stride": {"stride": (2, 3, 1)},
    "padding": {"padding": (1, 2, 0)},
    "same": {"padding": "same"},
    "same, dilated": {"padding": "same", "dilation": (1, 3, 2)},
    "valid": {"padding": "valid"},
    "dilation": {"dilation": (2, 1, 3)},
    "groups": {"groups": 2},
    "all at once": {"stride": 2, "padding": (2, 1, 1), "dilation": (1, 2, 1), "groups": 2, "bias": False},
}
MODES = ("zeros", "reflect", "replicate", "circular")


def cut(options: dict, dims: int) -> dict:
    return {name: value[:dims] if isinstance(value, tuple) else value for name, value in options.items()}


def layer(dims: int = 2, rank: int = 3, dtype=torch.float64, **options) -> LowRankConv:
    with torch.random.fork_rng(devices=[]), quiet_ranks():
        torch.manual_seed(0)
        return KINDS[dims](4, 6, KERNEL[:dims], rank, dtype=dtype, **options)


def rows(dims: int, dtype=torch.float64, batch: int = 3) -> Tensor:
    source = torch.Generator().manual_seed(1)
    x = torch.randn(batch, 4, *SIZE[:dims], generator=source, dtype=torch.float64)
    return (x * torch.tensor([1.0, 10.0, 0.1, 1.0]).view(1, 4, *[1] * dims)).to(dtype)  # badly scaled


def brute_force(x: Tensor, w: Tensor, bias, stride, padding, dilation) -> Tensor:
    """A zero-padded 2-D convolution of one group, entry by entry."""
    x = F.pad(x, (padding[1], padding[1], padding[0], padding[0]))
    height, width = (
        (x.shape[2 + i] - dilation[i] * (w.shape[2 + i] - 1) - 1) // stride[i] + 1 for i in (0, 1)
    )
    out = x.new_zeros(len(x), len(w), height, width)
    for i, j, p, q in itertools.product(range(height), range(width), range(w.shape[2]), range(w.shape[3])):
        patch = x[:, :, i * stride[0] + p * dilation[0], j * stride[1] + q * dilation[1]]
        out[:, :, i, j] += patch @ w[:, :, p, q].T
    return out + bias.view(1, -1, 1, 1)


def test_the_weight_is_a_sum_of_filters_and_the_output_its_convolution():
    low = layer(stride=(2, 1), padding=(1, 2), dilation=(1, 2), diagonal=True)
    with torch.no_grad():
        low.s.copy_(torch.tensor([3.0, -0.5, 0.2]))
    terms = [low.s[k] * low.A[:, k].view(-1, 1, 1, 1) * low.B[k] for k in range(3)]
    torch.testing.assert_close(low.weight, sum(terms), rtol=0, atol=1e-14)
    x = rows(2)
    slow = brute_force(x, sum(terms), low.bias, (2, 1), (1, 2), (1, 2))
    torch.testing.assert_close(low(x), slow, rtol=0, atol=1e-12)
    swapped = brute_force(x, low.weight, low.bias, (2, 1), (2, 1), (1, 2))
    assert swapped.shape != slow.shape  # mutant: the paddings of the two axes exchanged


def test_groups_share_the_filters_and_each_reads_its_own_channels():
    low, x = layer(groups=2), rows(2)
    assert low.B.shape == (3, 2, 3, 2)
    halves = []
    for group in range(2):
        h = F.conv2d(x[:, 2 * group : 2 * group + 2], low.B)  # each half of the channels, the same filters
        mixing = low.A[3 * group : 3 * group + 3]
        halves.append(torch.einsum("ok,nkhw->nohw", mixing, h))
    torch.testing.assert_close(low(x), torch.cat(halves, 1) + low.bias.view(1, -1, 1, 1), rtol=0, atol=1e-12)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")  # torch's own, on both sides
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_every_option_is_torchs_layer_forward_and_backward(dims, name, mode, dtype):
    low = layer(dims, dtype=dtype, padding_mode=mode, **cut(OPTIONS[name], dims))
    stock, x = low.to_layer(), rows(dims, dtype).requires_grad_()
    assert type(stock) is low.replaces
    low_out, stock_out = low(x), stock(x)
    direction = torch.randn(low_out.shape, dtype=dtype, generator=torch.Generator().manual_seed(2))
    gradients = [torch.autograd.grad((out * direction).sum(), x)[0] for out in (low_out, stock_out)]
    room = 1e-6 if dtype is torch.float32 else 1e-12
    for got, want in ((low_out, stock_out), gradients):
        assert (got - want).abs().max() <= room * (1 + want.abs().max())


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_gradients_reach_every_parameter(dims):
    low = layer(dims, groups=2, padding="same", padding_mode="circular", diagonal=True)
    low(rows(dims)).square().sum().backward()
    assert {n for n, p in low.named_parameters() if p.grad.abs().min() > 0} == {"A", "B", "s", "bias"}


@pytest.mark.parametrize("diagonal", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_the_svd_start_keeps_the_layer_at_full_rank_and_is_best_below(dims, groups, diagonal):
    stock = KINDS[dims].replaces(4, 6, KERNEL[:dims], groups=groups, dtype=torch.float64).eval()
    m, n = KINDS[dims].matrices(stock)["weight"]
    full = KINDS[dims].from_layer(stock, min(m, n), init="svd", diagonal=diagonal)
    assert not full.training
    torch.testing.assert_close(full(rows(dims)), stock(rows(dims)), rtol=0, atol=1e-12)
    torch.testing.assert_close(full.to_layer().weight, stock.weight, rtol=0, atol=1e-13)
    low = KINDS[dims].from_layer(stock, 2, init="svd", diagonal=diagonal)
    values = torch.linalg.svdvals(stock.weight.flatten(1))
    error = (low.weight - stock.weight).square().sum().sqrt()
    torch.testing.assert_close(error, values[2:].square().sum().sqrt())  # Eckart-Young


def test_a_stock_layer_gives_its_options_and_frozen_parts():
    stock = nn.Conv2d(4, 6, (3, 2), (2, 1), (1, 0), (1, 2), 2, False, "reflect").requires_grad_(False)
    low = LowRankConv2d.from_layer(stock, 2)
    back = low.to_layer()
    assert repr(back) == repr(stock)
    assert not any(p.requires_grad for p in (*low.parameters(), *back.parameters()))
    expected = ("LowRankConv2d(4, 6, kernel_size=(3, 2), rank=2, stride=(2, 1), padding=(1, 0), "
                "dilation=(1, 2), groups=2, padding_mode='reflect', bias=False)")  # fmt: skip
    assert repr(low) == expected
    svd = LowRankConv2d.from_layer(stock, 2, init="svd")
    assert not torch.equal(svd.weight, low.weight)


def test_the_random_start_has_he_variance_of_the_product():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        weights = torch.stack([LowRankConv2d(8, 24, 3, 4).weight.detach() for _ in range(200)])
    squares = weights.square().flatten(1).mean(1)
    error = squares.std().item() / math.sqrt(200)
    assert abs(squares.mean().item() - 2 / 72) < 4 * error  # false alarm 6e-5
    assert abs(squares.mean().item() - 2 / 8) > 4 * error  # mutant: the kernel forgotten in the fan-in


def test_inputs_in_channels_last_and_without_a_batch_work():
    low, x = layer(padding=1, dtype=torch.float32), rows(2, torch.float32)
    expected = low(x)
    last = low(x.to(memory_format=torch.channels_last))
    torch.testing.assert_close(last, expected)
    assert last.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(low(x[0]), expected[0])
    moved = low.to(memory_format=torch.channels_last)
    torch.testing.assert_close(moved(x), expected)
    stock = low.to_layer()
    moved.set_weight(stock.weight)  # the factors' memory in another order
    torch.testing.assert_close(moved.weight, stock.weight)
    moved.reset_parameters()
    assert not torch.allclose(moved.weight, stock.weight)


def test_deepcopy_pickle_state_dict_double_and_compile_work():
    low = layer(dtype=torch.float32)
    x = rows(2, torch.float32)
    low(x).sum().backward()
    for copied in (copy.deepcopy(low), pickle.loads(pickle.dumps(low))):
        assert torch.equal(copied(x), low(x))
    other = layer(dtype=torch.float32)
    other.reset_parameters()
    other.load_state_dict(low.state_dict())
    assert torch.equal(other(x), low(x))
    assert set(low.state_dict()) == {"A", "B", "bias"}
    assert low.double()(x.double()).dtype == torch.float64
    torch._dynamo.reset()
    compiled = torch.compile(low, backend="aot_eager")
    torch.testing.assert_close(compiled(x.double()), low(x.double()))


# Bad input


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_a_rank_above_the_smaller_side_is_an_error_that_names_it(dims):
    with pytest.raises(ValueError, match=rf"LowRankConv{dims}d: rank 7 is outside 1\.\.6"):
        layer(dims, rank=7)


def test_a_rank_that_saves_nothing_is_warned_of():
    with pytest.warns(UserWarning, match="LowRankConv2d: rank 5 saves no parameters for a 6 x 24 weight"):
        LowRankConv2d(4, 6, (3, 2), 5)


def test_a_depthwise_convolution_is_refused_with_the_reason():
    for make in (
        lambda: LowRankConv2d(4, 8, 3, 2, groups=4),
        lambda: LowRankConv2d.from_layer(nn.Conv2d(4, 8, 3, groups=4), 2),
    ):
        with pytest.raises(ValueError, match=r"one input channel \(a depthwise convolution\).*Keep Conv2d"):
            make()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"groups": 3}, "divisible by groups"),
        ({"padding": "same", "stride": 2}, "padding='same' is not supported for strided"),
        ({"padding": "full"}, "padding"),
        ({"padding_mode": "mirror"}, "padding_mode"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_what_torch_refuses_is_refused_as_torch_says_it(options, words):
    with pytest.raises(ValueError, match=words):
        layer(**options)


@pytest.mark.usefixtures("unchecked")
def test_another_kind_of_convolution_is_not_replaced():
    for stock in (nn.Conv1d(4, 6, 3), nn.ConvTranspose2d(4, 6, 3), nn.Linear(3, 3)):
        with pytest.raises(TypeError, match=r"replaces nn\.Conv2d, got"):
            LowRankConv2d.from_layer(stock, 2)
    with pytest.raises(TypeError, match="use LowRankConv1d, 2d or 3d"):
        LowRankConv(4, 6, 3, 2)


def test_weights_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"shape \(6, 4, 2, 3\), this layer needs \(6, 4, 3, 2\)"):
        layer().set_weight(torch.ones(6, 4, 2, 3))
    with pytest.raises(ValueError, match="has no bias"):
        layer(bias=False).set_weight(torch.ones(6, 4, 3, 2), torch.ones(6))


# Under a belief


def images() -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(5)
    y = torch.arange(40) % 3
    x = torch.randn(40, 2, 5, 4, generator=source)
    x[:, 0] += 3 * (y == 1).view(-1, 1, 1)
    x[:, 1, :2] *= 10  # badly scaled
    return x, y


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(
            LowRankConv2d(2, 6, 3, 2, padding=1, padding_mode="reflect"),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            LowRankConv2d(6, 4, 2, 2, stride=2, groups=2),
            nn.Flatten(),
            nn.Linear(16, 3),
        )


@pytest.mark.parametrize(
    "method",
    [sb.MeanField(epochs=1), sb.MAP(epochs=1), sb.DeepEnsemble(members=2, member=sb.MAP(epochs=1))],
    ids=["mean field", "point", "stored draws"],
)
def test_methods_keep_their_contract_on_a_convolutional_network(method):
    assert len(check_method(method, network=network(), likelihood=sb.Categorical(), data=images())) == 12


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_batched_draws_are_the_loop_over_draws(dims, groups):
    net = nn.Sequential(layer(dims, padding="same", padding_mode="circular", groups=groups), nn.Tanh())
    layout = Layout.of(net)
    w = layout.flatten(net)
    draws = w + 0.3 * torch.randn(4, len(w), generator=torch.Generator().manual_seed(0), dtype=w.dtype)
    assert way_for(net) is Way.VMAP
    outputs = [evaluate(net, layout, draws, rows(dims), way) for way in (Way.VMAP, Way.LOOP)]
    torch.testing.assert_close(*outputs, rtol=0, atol=1e-12)
    written = copy.deepcopy(net)
    layout.write(written, draws[2])
    torch.testing.assert_close(outputs[0][2], written(rows(dims)), rtol=0, atol=1e-12)


def test_running_statistics_lie_in_the_row_and_are_not_moved_by_prediction():
    # trap 22: SWA's first code counted BatchNorm's statistics on with every draw that it evaluated
    x, y = images()
    posterior = sb.MeanField(epochs=2).fit(sb.Model(network(), sb.Categorical()), (x, y))
    slots = {slot.name: slot for slot in posterior.layout.of_kind("statistic")}
    assert set(slots) == {"1.running_mean", "1.running_var"}
    before = {name: b.clone() for name, b in posterior.network.named_buffers()}
    once = posterior.predict(x, draws=5).mean
    assert torch.equal(once, posterior.predict(x, draws=5).mean)
    assert all(torch.equal(b, before[name]) for name, b in posterior.network.named_buffers())
    assert before["1.num_batches_tracked"] == 2  # a step each of the two epochs; draws do not count
    # and the row's statistics are the ones that count: another row, another function
    row = posterior.draw(1)
    moved = row.clone()
    slot = slots["1.running_mean"]
    moved[:, slot.start : slot.stop] += 1.0
    assert not torch.allclose(posterior.functions(row, x), posterior.functions(moved, x))


TRANSPOSED = {
    "plain": {},
    "stride": {"stride": (2, 3, 2)},
    "output padding": {"stride": (3, 2, 2), "output_padding": (2, 1, 1)},
    "groups": {"groups": 2, "bias": False},
    "dilation and padding": {"dilation": (2, 1, 3), "padding": (1, 1, 2)},
    "all": {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2, "dilation": 2},
}


@pytest.mark.parametrize("name", TRANSPOSED)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_a_stock_transposed_convolution_under_a_belief_is_torchs_own(dims, name):
    # trap 16: a peer's variational layers took groups for dilation (and output_padding for padding), so that
    # even at zero variance they gave other numbers, or other shapes
    kind = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}[dims]
    torch.manual_seed(0)
    net = nn.Sequential(kind(4, 6, KERNEL[:dims], **cut(TRANSPOSED[name], dims)), nn.Flatten())
    model = sb.Model(net, sb.Gaussian(noise=0.5))
    x = rows(dims, torch.float32)[..., *[slice(4)] * dims]
    with torch.no_grad():
        expected = net(x)
    method = sb.MeanField(epochs=1, learning_rate=1e-12)
    fitted = method.fit(model, (x, expected))
    mean = fitted.distribution.mean
    point = type(fitted.distribution)(mean, torch.zeros_like(mean))  # zero variance, sampled all the same
    exact = Posterior(fitted.network, point, fitted.likelihood, fitted.layout, fitted.info)
    assert (exact.predict(x, draws=3).mean - expected).abs().max() <= 1e-6 * (1 + expected.abs().max())
    draws = fitted.draw(4)
    assert fitted.way is Way.VMAP
    loop = evaluate(fitted.network, fitted.layout, draws, x, Way.LOOP)
    batched = evaluate(fitted.network, fitted.layout, draws, x, Way.VMAP)
    assert (loop - batched).abs().max() <= 1e-5 * (1 + loop.abs().max())
    assert (loop[0] - loop[1]).abs().max() > 1e-3  # the draws do differ


@pytest.mark.parametrize("lazy", [nn.LazyConv2d(3, 2), nn.LazyConvTranspose2d(3, 2), nn.LazyLinear(3)])
def test_a_lazy_layer_is_refused_by_name(lazy):
    # trap 15: a peer converted what it knew and skipped lazy layers silently
    with pytest.raises(ValueError, match=r"1\.weight is not initialised yet \(a lazy module\)"):
        sb.Model(nn.Sequential(nn.Conv2d(2, 2, 1), lazy), sb.Categorical())


def test_a_draws_function_is_the_low_rank_layer_at_its_weights():
    low = layer()
    new = {n: torch.randn(p.shape, dtype=p.dtype) for n, p in low.named_parameters()}
    weight = torch.einsum("or,rcpq->ocpq", new["A"], new["B"])
    want = F.conv2d(rows(2), weight, new["bias"])
    torch.testing.assert_close(functional_call(low, new, (rows(2),)), want, rtol=0, atol=1e-11)
