"""Subsets by pattern, and the last layer by what it returns."""

import pytest
import torch
from torch import Tensor, nn

import singularbayes as sb
from singularbayes.curvature.subset import choose, expand
from singularbayes.nn import LowRankLinear

X = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))


def names(model: sb.Model, subset) -> list[str]:
    return [slot.name for slot in choose(model, model.copy_network().eval(), subset, X[:2]).slots]


class Branches(nn.Module):
    """The layer that makes the output is neither last by name nor by place."""

    def __init__(self, how: str = "plain") -> None:
        super().__init__()
        self.head, self.body, self.aside = nn.Linear(4, 2), nn.Linear(3, 4), nn.Linear(3, 2)
        self.how = how
        if how == "tied":
            self.body = nn.Linear(3, 4)
            self.head = nn.Linear(4, 4)
            self.again = self.head

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.body(x))
        if self.how == "called twice":
            return self.head(torch.cat([self.head(h), self.head(h)], 1))
        if self.how == "scaled":
            return 2 * self.head(h)
        if self.how.startswith("rectified"):
            return nn.ReLU(inplace=self.how.endswith("in place"))(self.head(h))
        if self.how == "squeezed":
            return self.head(h).reshape(len(x), 2, 1)
        out = self.head(h)
        self.aside(x)
        return out


def test_the_last_layer_is_the_one_whose_result_is_the_output():
    torch.manual_seed(0)
    model = sb.Model(Branches(), sb.Categorical())
    assert names(model, sb.LastLayer()) == ["head.weight", "head.bias"]
    chosen = choose(model, model.network.eval(), sb.LastLayer(), X[:2])
    assert (chosen.last, chosen.event) == ("head", (2,))
    assert chosen.linear(model.network)


def test_a_factorised_last_layer_is_its_factors():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), LowRankLinear(8, 6, 2))
    model = sb.Model(network, sb.Categorical())
    assert names(model, sb.LastLayer()) == ["2.A", "2.B", "2.bias"]
    both = choose(model, network.eval(), sb.LastLayer(), X[:2])
    assert not both.linear(network)  # bilinear in A and B
    assert choose(model, network, ["2.A", "2.bias"], X[:2]).linear(network)


def test_without_a_last_layer_the_reason_is_given():
    torch.manual_seed(0)
    scaled = sb.Model(Branches("scaled"), sb.Categorical())
    with pytest.raises(ValueError, match=r"no layer's result is the network's output \(called last: head\)"):
        names(scaled, sb.LastLayer())
    assert names(scaled, "head.*") == ["head.weight", "head.bias"]
    assert choose(scaled, scaled.network.eval(), "head.*", X[:2]).last is None
    twice = Branches("called twice")
    twice.head = nn.Linear(4, 2)
    with pytest.raises(ValueError, match="head makes the output, but is called several times"):
        names(sb.Model(twice, sb.Categorical()), sb.LastLayer())


@pytest.mark.parametrize("how", ["rectified", "rectified in place"])
def test_a_rectifier_after_a_layer_is_seen_where_it_changes_no_value_too(how):
    torch.manual_seed(0)
    network = Branches(how)
    with torch.no_grad():
        network.head.bias.fill_(5.0)
    assert (network(X) > 1).all()
    with pytest.raises(ValueError, match="no layer's result is the network's output"):
        names(sb.Model(network, sb.Categorical()), sb.LastLayer())


def test_a_frozen_last_layer_is_named():
    torch.manual_seed(0)
    network = Branches()
    network.head.requires_grad_(False)
    with pytest.raises(ValueError, match="head makes the output, and none of its parameters is believed"):
        names(sb.Model(network, sb.Categorical()), sb.LastLayer())


def test_a_tied_last_layer_is_refused():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
            self.head.weight = self.first.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.tanh(self.first(x)))

    with pytest.raises(ValueError, match=r"head makes the output, but its weight is tied to first\.weight"):
        names(sb.Model(Tied(), sb.Categorical()), sb.LastLayer())


def test_a_reshaped_output_keeps_its_shape():
    torch.manual_seed(0)
    model = sb.Model(Branches("squeezed").double(), sb.Gaussian(noise=1.0))
    network, x = model.copy_network().eval(), X.double()
    chosen = choose(model, network, sb.LastLayer(), x[:2])
    expansion = expand(model, network, chosen, lambda: [(x, torch.zeros(4, 2, 1).double())])
    features, _ = next(iter(expansion.batches()))
    assert features.shape == (4, 4)
    torch.testing.assert_close(expansion.network(features), network(x))


def normalized() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2))


def test_batch_normalisation_stays_a_point_by_default():
    # Laplace#18: a BatchNorm inside a Laplace subset failed, or gave a curvature of no function
    assert names(sb.Model(normalized(), sb.Categorical()), "*") == [
        "0.weight",
        "0.bias",
        "3.weight",
        "3.bias",
    ]


def test_batch_normalisation_in_a_subset_is_an_error_that_says_what_to_do():
    model = sb.Model(normalized(), sb.Categorical(), normalization=True)
    with pytest.raises(ValueError, match=r"1\.weight belongs to a BatchNorm1d.*Model\(normalization=False\)"):
        names(model, "*")
    assert names(model, ["0.*", "3.*"]) == ["0.weight", "0.bias", "3.weight", "3.bias"]
    with pytest.raises(ValueError, match=r"pattern '1\.\*' matches 1.bias, 1.weight alone.*point estimates"):
        names(sb.Model(normalized(), sb.Categorical()), "1.*")


def test_patterns_that_match_nothing_are_named():
    model = sb.Model(normalized(), sb.Categorical())
    with pytest.raises(ValueError, match=r"subset pattern '3\.wieght' matches no parameter; nearest"):
        names(model, "3.wieght")
    with pytest.raises(ValueError, match="subset names no parameter"):
        names(model, ())
