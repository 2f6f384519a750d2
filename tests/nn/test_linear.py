"""LowRankLinear: the moments of ``W = A B^T``, draws axes, the SVD start, ranks."""

import copy
import math
import pickle
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, jvp, vmap

from singularbayes.nn import LowRankLinear

A_MEAN, A_SD = torch.tensor([[1, 0.5], [-0.5, 2]]).double(), torch.tensor([[0.1, 0.2], [0.3, 0.4]]).double()
B_MEAN = torch.tensor([[0.5, -1], [1.5, 0.25], [0, 1]]).double()
B_SD = torch.tensor([[0.2, 0.1], [0.3, 0.2], [0.5, 0.1]]).double()
VARIANCE = torch.tensor([[0.0858, 0.1275, 0.2954], [0.2377, 0.4095, 0.2866]]).double()


def layer(**settings) -> LowRankLinear:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LowRankLinear(9, 7, 3, **settings)


@pytest.mark.filterwarnings("ignore:LowRankLinear. rank 2 saves")
def test_draws_of_the_factors_give_the_moments_of_the_product():
    n = 200_000
    source = torch.Generator().manual_seed(0)
    network = LowRankLinear(3, 2, 2, bias=False, dtype=torch.float64)
    a = A_MEAN + A_SD * torch.randn(n, 2, 2, generator=source, dtype=torch.float64)
    b = B_MEAN + B_SD * torch.randn(n, 3, 2, generator=source, dtype=torch.float64)
    eye = torch.eye(3, dtype=torch.float64)
    with torch.no_grad():
        w = functional_call(network, {"A": a, "B": b}, (eye,)).mT  # row j of x = e_j is column j of W
    mean = torch.tensor([[0, 1.625, 0.5], [-2.25, -0.25, 2]]).double()
    centred = w - mean

    def off(values: torch.Tensor, target: torch.Tensor | float) -> float:
        return float(((values.mean(0) - target).abs() / (values.std(0) / math.sqrt(n))).max())

    assert off(w, mean) < 4  # false alarm 6e-5 an entry
    assert off(centred.square(), VARIANCE) < 4.5  # the reference has four digits
    assert off(centred[:, 0, 0] * centred[:, 0, 1], -0.0025) < 4
    assert off(centred[:, 0, 0] * centred[:, 1, 0], -0.01) < 4
    assert off(centred[:, 0, 0] * centred[:, 1, 1], 0.0) < 4  # different row and column
    assert off(centred[:, 0, 0] * centred[:, 1, 0], 0.0) > 4  # mutant: independent entries of W
    without_product = A_MEAN.square() @ B_SD.square().T + A_SD.square() @ B_MEAN.square().T
    assert off(centred.square(), without_product) > 8  # mutant: the term sA^2 sB^2 left out


def test_the_closed_variance_has_the_reference_values():
    a2, b2 = A_SD.square(), B_SD.square()
    variance = A_MEAN.square() @ b2.T + a2 @ B_MEAN.square().T + a2 @ b2.T
    torch.testing.assert_close(variance, VARIANCE, rtol=0, atol=6e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
def test_forward_is_the_dense_layer_of_its_weight(dtype, bias):
    low = layer(bias=bias, dtype=dtype)
    x = torch.randn(5, 4, 9).to(dtype)
    coarse = dtype is torch.bfloat16
    dense = nn.functional.linear(x, low.weight, low.bias)
    torch.testing.assert_close(low(x), dense, rtol=1e-2 if coarse else 1e-5, atol=5e-2 if coarse else 1e-5)
    assert low(x).dtype == dtype


@pytest.mark.parametrize(
    "names", [("A", "B", "bias"), ("A", "B"), ("A",), ("B",), ("bias",), ("A", "bias"), ("B", "bias")]
)
@pytest.mark.parametrize(
    "batch", [7, 4]
)  # 7 is also the number of outputs: a bias must not land on the batch axis
def test_a_draws_axis_on_any_tensor_is_the_map_over_draws(names, batch):
    low = layer(dtype=torch.float64)
    stacks = {n: torch.randn(4, *getattr(low, n).shape, dtype=torch.float64) for n in names}
    x = torch.randn(batch, 9, dtype=torch.float64)
    expected = vmap(lambda one: functional_call(low, one, (x,)))(stacks)
    torch.testing.assert_close(functional_call(low, stacks, (x,)), expected)
    xs = torch.randn(4, batch, 9, dtype=torch.float64)
    expected = vmap(lambda one, row: functional_call(low, one, (row,)))(stacks, xs)
    torch.testing.assert_close(functional_call(low, stacks, (xs,)), expected)


def test_draws_without_a_bias_map_too():
    low = layer(bias=False)
    stacks = {"A": torch.randn(4, 7, 3), "B": torch.randn(4, 9, 3)}
    assert functional_call(low, stacks, (torch.randn(5, 9),)).shape == (4, 5, 7)


def test_the_start_has_he_variance_of_the_product():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        weights = torch.stack([LowRankLinear(50, 40, 4).weight.detach() for _ in range(300)])
    squares = weights.square().mean((1, 2))
    error = squares.std().item() / math.sqrt(300)
    assert abs(squares.mean().item() - 2 / 50) < 4 * error
    assert abs(squares.mean().item() - 2 / 50 / 4) > 4 * error  # mutant: r forgotten


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_set_weight_is_the_best_approximation_split_evenly(dtype):
    low = layer(dtype=dtype)
    dense = torch.randn(7, 9, dtype=dtype) * torch.logspace(0, -3, 9).to(dtype)
    bias = torch.randn(7, dtype=dtype)
    low.set_weight(dense, bias)
    u, s, vh = np.linalg.svd(dense.double().numpy())
    best = torch.from_numpy((u[:, :3] * s[:3]) @ vh[:3])
    torch.testing.assert_close(low.weight.detach().double(), best, rtol=1e-5, atol=1e-6)
    error = torch.linalg.matrix_norm(low.weight.detach().double() - dense.double()).item()
    assert error == pytest.approx(math.sqrt((s[3:] ** 2).sum()), rel=1e-4)  # Eckart-Young
    torch.testing.assert_close(low.A.square().sum(0), low.B.square().sum(0))
    assert torch.equal(low.bias.detach(), bias)


def test_set_weight_refuses_what_it_cannot_hold():
    with pytest.raises(ValueError, match=r"shape \(1, 9\), this layer needs \(7, 9\)"):
        layer().set_weight(torch.ones(1, 9))
    with pytest.raises(ValueError, match="has no bias"):
        layer(bias=False).set_weight(torch.ones(7, 9), torch.ones(7))


@pytest.mark.parametrize("rank", [0, -1, 8])
def test_a_rank_outside_its_limits_is_an_error_that_names_them(rank):
    with pytest.raises(ValueError, match=rf"rank {rank} is outside 1\.\.7"):
        LowRankLinear(9, 7, rank)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("rank", [2.0, True, "2", None])
def test_a_rank_that_is_no_integer_is_an_error(rank):
    with pytest.raises(TypeError, match="rank must be an integer"):
        LowRankLinear(9, 7, rank)


@pytest.mark.usefixtures("unchecked")
def test_a_numpy_integer_is_a_rank():
    low = LowRankLinear(9, 7, np.int64(2))
    assert type(low.rank) is int


def test_a_rank_that_saves_nothing_is_warned_of_at_the_exact_limit():
    with pytest.warns(UserWarning, match=r"rank 32 saves no parameters .* below 32\.0"):
        LowRankLinear(64, 64, 32)
    LowRankLinear(64, 64, 31)  # no warning
    with pytest.warns(UserWarning, match="saves no parameters"):
        LowRankLinear(128, 1, 1)  # the paper's own head: warned of, not refused


def test_deepcopy_pickle_and_double_work_after_a_backward_pass():
    low = layer()
    x = torch.randn(4, 9)
    low(x).sum().backward()
    for copied in (copy.deepcopy(low), pickle.loads(pickle.dumps(low))):
        assert torch.equal(copied(x), low(x))
    assert low.double()(x.double()).dtype == torch.float64
    assert set(low.state_dict()) == {"A", "B", "bias"}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # torch's own, at the first forward derivative
@pytest.mark.parametrize("bias", [True, False])
def test_a_wide_layer_has_the_values_and_derivatives_of_its_dense_layer(bias):
    low = LowRankLinear(300, 280, 3, bias=bias, dtype=torch.float64)  # wide enough for the reordered products
    x = torch.randn(6, 300, dtype=torch.float64, requires_grad=True)
    direction = torch.randn(6, 280, dtype=torch.float64)
    inputs = [x, *low.parameters()]
    dense = nn.functional.linear(x, low.A @ low.B.T, low.bias)
    torch.testing.assert_close(low(x), dense)
    got = torch.autograd.grad((low(x) * direction).sum(), inputs)
    for value, target in zip(got, torch.autograd.grad((dense * direction).sum(), inputs), strict=True):
        torch.testing.assert_close(value, target)
    tangents = {name: torch.randn_like(p) for name, p in low.named_parameters()}
    primal = {name: p.detach() for name, p in low.named_parameters()}
    _, slope = torch.func.jvp(lambda p: functional_call(low, p, (x.detach(),)), (primal,), (tangents,))
    step = 1e-6
    ahead, behind = ({n: primal[n] + s * tangents[n] for n in primal} for s in (step, -step))
    change = functional_call(low, ahead, (x.detach(),)) - functional_call(low, behind, (x.detach(),))
    torch.testing.assert_close(slope, change / (2 * step), rtol=1e-5, atol=1e-6)


def test_a_wide_layer_trains_under_autocast():
    low, x = LowRankLinear(300, 280, 3), torch.randn(6, 300, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        output = low(x)
    output.float().sum().backward()
    assert output.dtype == torch.bfloat16
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in low.parameters())


@pytest.mark.usefixtures("unchecked")  # dynamo does not follow the checks of annotations
def test_a_wide_layer_compiles_into_one_graph():
    # dynamo does not trace custom functions with a forward derivative: each layer was a break in the graph
    low, x = LowRankLinear(300, 280, 3), torch.randn(6, 300)
    compiled = torch.compile(low, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x), low(x))
    compiled(x).square().sum().backward()
    assert all(p.grad is not None for p in low.parameters())


def test_no_component_starts_near_the_saddle_at_zero():
    # a head with one output has one number in each column of A; Gaussian, it is often next to 0
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rank 1 saves nothing here
        starts = torch.stack([LowRankLinear(128, 1, 1).A.detach().flatten() for _ in range(300)])
    expected = (2 / 128) ** 0.25
    torch.testing.assert_close(starts.abs(), torch.full_like(starts, expected))
    assert 0.35 < (starts > 0).float().mean().item() < 0.65


def test_a_diagonal_between_the_factors_scales_its_components():
    plain, scaled = layer(dtype=torch.float64), layer(dtype=torch.float64, diagonal=True)
    x = torch.randn(5, 9, dtype=torch.float64)
    torch.testing.assert_close(scaled(x), plain(x), rtol=0, atol=0)  # s starts at 1
    with torch.no_grad():
        scaled.s.copy_(torch.tensor([3.0, -0.5, 0.0]))
    weight = sum(s * torch.outer(a, b) for s, a, b in zip(scaled.s, scaled.A.T, scaled.B.T, strict=True))
    torch.testing.assert_close(scaled.weight, weight, rtol=0, atol=1e-14)
    torch.testing.assert_close(scaled(x), x @ weight.T + scaled.bias, rtol=0, atol=1e-14)
    draws = {"A": torch.randn(4, 7, 3), "B": torch.randn(4, 9, 3), "s": torch.randn(4, 3)}
    draws = {name: value.double() for name, value in draws.items()}
    together = functional_call(scaled, draws, (x,))
    for i in range(4):
        one = functional_call(scaled, {name: value[i] for name, value in draws.items()}, (x,))
        torch.testing.assert_close(together[i], one, rtol=0, atol=1e-14)
    again = LowRankLinear.from_layer(scaled.to_layer(), 3, init="svd", diagonal=True)
    torch.testing.assert_close(again.weight, weight, rtol=0, atol=1e-13)
    assert torch.all(again.s[:-1] >= again.s[1:])


@pytest.mark.parametrize("diagonal", [False, True])
def test_a_stock_layer_is_replaced_and_given_back(diagonal):
    stock = nn.Linear(9, 7, dtype=torch.float64).eval().requires_grad_(False)
    new = LowRankLinear.from_layer(stock, 7, init="svd", diagonal=diagonal)
    assert not new.training
    assert not any(p.requires_grad for p in new.parameters())
    back = new.to_layer()
    assert type(back) is nn.Linear
    assert not back.training
    torch.testing.assert_close(back.weight, stock.weight, rtol=0, atol=1e-14)
    torch.testing.assert_close(back.bias, stock.bias, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # torch's own, at the first forward derivative
@pytest.mark.parametrize("diagonal", [False, True])
def test_second_derivatives_of_a_wide_layer_agree_whichever_way_they_are_taken(diagonal):
    # forward over forward, as for a Laplacian: torch's custom functions lose the terms across A and B
    low = LowRankLinear(300, 280, 3, dtype=torch.float64, diagonal=diagonal)
    source = torch.Generator().manual_seed(1)

    def like(tensors):
        return {n: torch.randn(p.shape, generator=source, dtype=torch.float64) for n, p in tensors.items()}

    point = {name: p.detach() for name, p in low.named_parameters()}
    one, two = like(point), like(point)
    x = torch.randn(4, 300, generator=source, dtype=torch.float64)

    def loss(p):
        return functional_call(low, p, (x,)).square().sum()

    def dense(p):
        b = p["B"] * p["s"] if diagonal else p["B"]
        return (x @ (p["A"] @ b.T).T + p["bias"]).square().sum()

    def slope(f):
        return lambda p: jvp(f, (p,), (one,))[1]

    forward_over_forward = jvp(slope(loss), (point,), (two,))[1]
    reverse = jvp(grad(loss), (point,), (two,))[1]
    forward_over_reverse = sum((one[name] * reverse[name]).sum() for name in one)
    reverse_over_forward = sum((two[n] * g).sum() for n, g in grad(slope(loss))(point).items())
    expected = jvp(slope(dense), (point,), (two,))[1]
    for value in (forward_over_forward, forward_over_reverse, reverse_over_forward):
        torch.testing.assert_close(value, expected)
