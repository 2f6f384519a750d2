"""Layers that a network also reaches by plain attributes: replaced, they would be trained in vain."""

import functools
from collections import deque

import pytest
import torch
from torch import nn

import singularbayes as sb
from singularbayes.nn.references import plain_references

pytestmark = pytest.mark.filterwarnings("ignore:.*saves no parameters")

HOLDERS = {
    "list": lambda layer: [layer],
    "tuple": lambda layer: (0, layer),
    "dict": lambda layer: {"a": [layer]},
    "deque": lambda layer: deque([layer]),
    "method": lambda layer: layer.forward,
    "partial": lambda layer: functools.partial(layer.forward),
}


class Listed(nn.Module):
    """Calls its first layer by a plain attribute."""

    def __init__(self, hold) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 6)
        self.plain = hold(self.one)

    def forward(self, x):
        held = self.plain
        while not callable(held):
            held = held["a"] if isinstance(held, dict) else held[-1]
        return self.two(held(x).tanh())


@pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS)
@pytest.mark.parametrize("convert", [lambda net: sb.factorize(net, 2), sb.nn.rank_one])
def test_a_layer_that_a_plain_attribute_holds_stays_and_every_parameter_is_trained(hold, convert):
    # replaced, the copy went on calling the old layer: the factors got no gradient, and nobody was told
    new = convert(Listed(hold))
    assert type(new.one) is nn.Linear
    assert type(new.two) is not nn.Linear
    report = new.factorization if hasattr(new, "factorization") else new.rank_one_layers
    assert "plain, a plain attribute, refers to it" in str(report)
    new(torch.ones(3, 6)).sum().backward()
    assert [name for name, p in new.named_parameters() if p.grad is None] == []


def test_parts_of_attention_count_and_registered_modules_do_not():
    net = nn.Sequential(nn.MultiheadAttention(8, 2), nn.Linear(8, 8))
    assert plain_references(net) == {}
    net.projections = [net[0].out_proj]
    table = sb.nn.plan(net, 2)
    reason = next(change.reason for change in table.changes if change.name == "0")
    assert reason.startswith("projections, a plain attribute, refers to it")


def test_a_reference_to_the_whole_network_harms_nothing():
    net = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    net[1].parent = [net]
    assert len(sb.factorize(net, 2).factorization.changes[0].ranks) == 1
