"""Gradients of plain chains, written out, equal autograd's; the memory behind them is never returned."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from singularbayes.methods.chain_gradient import ChainGradient, is_plain
from singularbayes.methods.output_gradients import Autograd, gradients_for
from singularbayes.nn import LowRankLinear, RankOneLinear
from singularbayes.parameters import Layout

CHAINS, B = 3, 7


def tied() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.ReLU(), nn.Linear(4, 2))


def tied_weights() -> nn.Module:
    network = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4, bias=False), nn.Linear(4, 1))
    network[2].weight = network[0].weight
    return network


def frozen() -> nn.Module:
    network = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 5), nn.Sigmoid(), nn.Linear(5, 2))
    network[0].requires_grad_(False)
    network[2].bias.requires_grad_(False)
    return network


def low_rank(diagonal: bool, bias: bool) -> nn.Module:
    return nn.Sequential(
        LowRankLinear(4, 6, 2, bias=bias, diagonal=diagonal), nn.Tanh(),
        LowRankLinear(6, 5, 2, bias=bias, diagonal=diagonal), nn.GELU(), nn.Linear(5, 2),
    )  # fmt: skip


NETWORKS = {
    "tanh": lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 1)),
    "relu in place": lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 2)),
    "no biases": lambda: nn.Sequential(
        nn.Linear(4, 5, bias=False), nn.Tanh(), nn.Linear(5, 5, bias=False), nn.Sigmoid(),
        nn.Linear(5, 2, bias=False),
    ),
    "other functions": lambda: nn.Sequential(
        nn.Linear(4, 5), nn.ELU(inplace=True), nn.Linear(5, 5), nn.SiLU(), nn.Linear(5, 2), nn.Softplus(),
    ),
    "one after another": lambda: nn.Sequential(
        nn.Tanh(), nn.Linear(4, 5), nn.Tanh(), nn.Sigmoid(), nn.Tanh(), nn.Linear(5, 2), nn.Tanh(),
    ),
    "nested, with what does nothing": lambda: nn.Sequential(
        nn.Sequential(nn.Identity(), nn.Linear(4, 5), nn.Dropout(0.5)), nn.Tanh(),
        nn.Linear(5, 2), nn.Sigmoid(),
    ),
    "two products in a row": lambda: nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1), nn.Linear(1, 2)),
    "one layer": lambda: nn.Linear(4, 2),
    "tied layers": tied,
    "tied weights": tied_weights,
    "frozen": frozen,
    "factors": lambda: low_rank(False, True),
    "factors with a diagonal": lambda: low_rank(True, True),
    "factors without biases": lambda: low_rank(True, False),
}  # fmt: skip


def both(name: str, dtype: torch.dtype = torch.float64) -> tuple[ChainGradient, Autograd, Tensor, Tensor]:
    torch.manual_seed(5)
    network = NETWORKS[name]().to(dtype).eval()
    layout = Layout.of(network)
    rows = layout.flatten(network).repeat(CHAINS, 1)
    rows = rows + 0.5 * torch.randn_like(rows)
    x = torch.randn(B, 4, dtype=dtype) * torch.tensor([1.0, 10.0, 0.1, 1.0], dtype=dtype)
    slots = layout.of_kind("belief")
    return ChainGradient(network, layout, slots), Autograd(network, layout, slots), rows, x


def found(way: Any, rows: Tensor, x: Tensor, seed: int = 0) -> tuple[Tensor, Tensor]:
    outputs, pullback = way(rows, x)
    source = torch.Generator().manual_seed(seed)
    slope = torch.randn(outputs.shape, generator=source, dtype=outputs.dtype)
    return outputs, pullback(slope)


@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_and_gradients_are_autograds(name: str):
    ours, autograd, rows, x = both(name)
    for part, right in zip(found(ours, rows, x), found(autograd, rows, x), strict=True):
        assert part.shape == right.shape
        torch.testing.assert_close(part, right, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["tanh", "factors with a diagonal"])
def test_float32_is_as_near_to_float64_as_autograd(name: str):
    ours, _, rows, x = both(name, torch.float32)
    _, autograd, _, _ = both(name)
    outputs, pullback = ours(rows, x)
    assert outputs.dtype == torch.float32
    slope = torch.randn_like(outputs)
    right, exact = autograd(rows.double(), x.double())
    torch.testing.assert_close(outputs.double(), right, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(pullback(slope).double(), exact(slope.double()), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["tanh", "tied layers", "factors with a diagonal"])
def test_some_slots_get_their_own_gradient_in_their_order(name: str):
    ours, autograd, rows, x = both(name)
    for start in range(len(ours.slots)):
        slots = ours.slots[start:][::-1]
        layout, network = autograd.layout, autograd.network
        few = ChainGradient(network, layout, slots)
        outputs, gradient = found(few, rows, x)
        right = found(Autograd(network, layout, slots), rows, x)
        torch.testing.assert_close(outputs, right[0], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(gradient, right[1], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", NETWORKS)
def test_later_calls_change_nothing_that_was_returned_or_given(name: str):
    ours, autograd, rows, x = both(name)
    outputs, pullback = ours(rows, x)
    slope = torch.randn(outputs.shape, dtype=outputs.dtype)
    given = [tensor.clone() for tensor in (rows, x, slope)]
    gradient = pullback(slope)
    held = outputs.clone(), gradient.clone()
    for chains, batch in ((CHAINS, B), (2, 3), (5, 11), (CHAINS, B)):  # smaller and larger memory
        more, points = torch.randn(chains, rows.shape[1]).double(), torch.randn(batch, 4).double()
        for part, right in zip(found(ours, more, points), found(autograd, more, points), strict=True):
            torch.testing.assert_close(part, right, rtol=1e-10, atol=1e-10)
    assert torch.equal(outputs, held[0])
    assert torch.equal(gradient, held[1])
    for tensor, before in zip((rows, x, slope), given, strict=True):
        assert torch.equal(tensor, before)


def test_a_pullback_whose_memory_was_used_again_is_an_error():
    ours, _, rows, x = both("tanh")
    outputs, pullback = ours(rows, x)
    ours(rows, x)
    with pytest.raises(RuntimeError, match="used again"):
        pullback(outputs)
    _, pullback = ours(rows, x)
    pullback(outputs)
    with pytest.raises(RuntimeError, match="used again"):
        pullback(outputs)


def test_no_global_state_is_touched():
    ours, _, rows, x = both("other functions")
    state, grad = torch.get_rng_state(), torch.is_grad_enabled()
    outputs, gradient = found(ours, rows.requires_grad_(), x)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled() is grad
    assert not outputs.requires_grad
    assert not gradient.requires_grad


def test_memory_from_inference_mode_serves_outside_of_it():
    ours, _, rows, x = both("other functions")
    right = found(ours, rows, x)
    fresh, _, _, _ = both("other functions")
    with torch.inference_mode():
        within = found(fresh, rows, x)
    after = found(fresh, rows, x)
    for a, b, c in zip(within, after, right, strict=True):
        assert torch.equal(a, c)
        assert torch.equal(b, c)
        assert not a.is_inference()


@pytest.mark.parametrize(
    ("network", "plain"),
    [
        (nn.Sequential(nn.Linear(2, 2), nn.Tanh()), True),
        (nn.Sequential(LowRankLinear(4, 4, 1), nn.Hardtanh()), True),
        (nn.Sequential(RankOneLinear(2, 2), nn.Tanh()), False),
        (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), False),
        (nn.LSTM(2, 2), False),
    ],
)
def test_only_plain_chains_are_taken(network: nn.Module, plain: bool):
    assert is_plain(network) is plain
    layout = Layout.of(network)
    way = gradients_for(network.eval(), layout, layout.of_kind("belief"), torch.ones(1, 2))
    assert isinstance(way, ChainGradient if plain else Autograd)
    if not plain:
        with pytest.raises(ValueError, match="not a plain chain"):
            ChainGradient(network, layout, layout.of_kind("belief"))


def test_half_precision_and_inputs_that_are_no_rows_are_autograds():
    network = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
    layout = Layout.of(network)
    slots = layout.of_kind("belief")
    assert isinstance(gradients_for(network, layout, slots, torch.ones(2, 4)), ChainGradient)
    assert isinstance(gradients_for(network, layout, slots, torch.ones(2, 5, 4)), Autograd)
    half = network.to(torch.bfloat16)
    assert isinstance(gradients_for(half, layout, slots, torch.ones(2, 4)), Autograd)
