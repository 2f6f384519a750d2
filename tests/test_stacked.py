"""Chains evaluated for many draws at once equal a loop over draws, whatever the layers."""

import pytest
import torch
from torch import nn

import singularbayes as sb
from singularbayes.functions import Way, evaluate, way_for
from singularbayes.nn import LowRankLinear, MaskedDropout, RankOneLinear
from singularbayes.parameters import Layout
from singularbayes.stacked import Workspace, differentiable_chain, evaluate_chain, is_chain


def chain(first: nn.Module, *rest: nn.Module) -> nn.Sequential:
    return nn.Sequential(first, *rest).eval()


CHAINS = {
    "low rank": lambda: chain(
        LowRankLinear(6, 9, 2), nn.ReLU(), LowRankLinear(9, 9, 3), nn.ReLU(), nn.Linear(9, 4)
    ),
    "no biases": lambda: chain(LowRankLinear(6, 9, 2, bias=False), nn.Tanh(), nn.Linear(9, 4, bias=False)),
    "activation first": lambda: chain(nn.ReLU(), nn.Linear(6, 4)),
    "elementwise": lambda: chain(
        nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 8), nn.Sigmoid(), nn.LeakyReLU(), nn.Linear(8, 2)
    ),
    "nested": lambda: chain(
        nn.Sequential(nn.Linear(6, 5), nn.ReLU()), nn.Sequential(nn.Dropout(0.3), LowRankLinear(5, 4, 2))
    ),
    "masks": lambda: chain(
        MaskedDropout((6,), 0.5), nn.Linear(6, 5), nn.ReLU(), MaskedDropout((5,), 0.5), nn.Linear(5, 3)
    ),
    "identity": lambda: chain(nn.Identity(), nn.Linear(6, 3), nn.Identity()),
}


def rows(layout: Layout, count: int) -> torch.Tensor:
    return torch.randn(count, layout.size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("draws", [1, 2, 5])
def test_stacked_equals_loop_and_vmap(name: str, draws: int):
    network = CHAINS[name]().double()
    layout = Layout.of(network)
    shapes = {key: tuple(b.shape) for key, b in network.named_buffers() if key.endswith("mask")}
    layout = layout.with_masks(shapes) if shapes else layout
    w, x = rows(layout, draws), torch.randn(7, 6, dtype=torch.float64)
    kept = x.clone()
    assert way_for(network) is Way.STACKED
    stacked = evaluate(network, layout, w, x, Way.STACKED)
    torch.testing.assert_close(stacked, evaluate(network, layout, w, x, Way.LOOP), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(stacked, evaluate(network, layout, w, x, Way.VMAP), rtol=1e-10, atol=1e-10)
    assert torch.equal(x, kept), "the input was overwritten"


DERIVED = {
    **CHAINS,
    "diagonal": lambda: chain(LowRankLinear(6, 9, 2, diagonal=True), nn.Tanh(), nn.Linear(9, 4)),
    "rank one": lambda: chain(RankOneLinear(6, 5), nn.Tanh(), RankOneLinear(5, 2, bias=False)),
}


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("name", DERIVED)
def test_the_differentiable_chain_has_the_values_and_gradients_of_vmap(name: str, frozen: bool):
    """A layer that is not drawn is the network's own, for all draws."""
    network = DERIVED[name]().double()
    first = next(iter(network.parameters()))
    first.requires_grad_(not frozen)
    layout = Layout.of(network)
    shapes = {key: tuple(b.shape) for key, b in network.named_buffers() if key.endswith("mask")}
    layout = layout.with_masks(shapes) if shapes else layout
    w, x = rows(layout, 3).requires_grad_(), torch.randn(7, 6, dtype=torch.float64)
    found = differentiable_chain(network, layout.views(w), x)
    right = evaluate(network, layout, w, x, Way.VMAP)
    torch.testing.assert_close(found, right, rtol=1e-10, atol=1e-10)
    pull = torch.randn_like(right)
    (slope,) = torch.autograd.grad(found, w, pull)
    (expected,) = torch.autograd.grad(right, w, pull)
    torch.testing.assert_close(slope, expected, rtol=1e-9, atol=1e-9)


def test_frozen_layers_are_shared_by_all_draws():
    network = CHAINS["low rank"]().double()
    layout = Layout.of(network, bayesian="4.*")
    w, x = rows(layout, 4), torch.randn(5, 6, dtype=torch.float64)
    torch.testing.assert_close(
        evaluate(network, layout, w, x, Way.STACKED), evaluate(network, layout, w, x, Way.LOOP)
    )


def test_blocks_share_a_workspace_without_reading_each_other():
    network = CHAINS["low rank"]().double()
    layout = Layout.of(network)
    w, x, shared = rows(layout, 6), torch.randn(5, 6, dtype=torch.float64), Workspace()
    parts = [evaluate_chain(network, layout.views(block), x, shared) for block in w.split(2)]
    torch.testing.assert_close(torch.cat(parts), evaluate(network, layout, w, x, Way.LOOP))


def test_a_layer_that_stands_twice_is_applied_twice():
    layer = nn.Linear(6, 6)
    network = chain(layer, nn.ReLU(), layer).double()
    layout = Layout.of(network)
    w, x = rows(layout, 3), torch.randn(4, 6, dtype=torch.float64)
    torch.testing.assert_close(
        evaluate(network, layout, w, x, Way.STACKED), evaluate(network, layout, w, x, Way.LOOP)
    )


@pytest.mark.parametrize(
    "network",
    [
        nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)),
        nn.Sequential(nn.Linear(3, 3), nn.Softmax(-1)),
        nn.Sequential(nn.Flatten(), nn.Linear(3, 3)),
        nn.LSTM(3, 3),
        nn.ModuleList([nn.Linear(3, 3)]),
    ],
)
def test_other_modules_are_no_chain(network: nn.Module):
    assert not is_chain(network)


def test_a_hook_makes_a_network_no_chain():
    network = nn.Sequential(nn.Linear(3, 3))
    network[0].register_forward_hook(lambda module, inputs, output: output + 1)
    assert not is_chain(network)


def test_sequences_through_a_chain_fall_back_to_vmap():
    network = chain(nn.Linear(6, 4), nn.ReLU())
    posterior = sb.MAP(epochs=1).fit(
        sb.Model(nn.Sequential(nn.Linear(6, 4)), sb.Categorical()), (torch.randn(8, 6), torch.arange(8) % 4)
    )
    layout = Layout.of(network)
    x = torch.randn(5, 3, 6)
    assert evaluate(network, layout, torch.randn(2, layout.size), x, Way.STACKED).shape == (2, 5, 3, 4)
    assert posterior.functions(posterior.draw(1), x).shape == (1, 5, 3, 4)
