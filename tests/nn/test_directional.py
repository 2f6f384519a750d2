"""DirectionalLinear: BatchNorm after a linear layer, blind to lengths; drawn rows are drawn directions."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from scipy.stats import vonmises_fisher
from torch import nn

import singularbayes as sb
from singularbayes.nn import DirectionalLinear
from singularbayes.parameters import Layout

X = torch.randn(40, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
X = X * torch.tensor([1.0, 10.0, 0.1, 1.0, 2.0, 5.0]).double() + 3.0  # badly scaled, off centre


def pair(**options) -> tuple[DirectionalLinear, nn.Sequential]:
    """The layer, and torch's two with the same values."""
    torch.manual_seed(1)
    layer = DirectionalLinear(6, 4, dtype=torch.float64, **options)
    stock = nn.Sequential(
        nn.Linear(6, 4, bias=False),
        nn.BatchNorm1d(4, eps=layer.eps, momentum=layer.momentum, affine=layer.affine),
    ).double()
    with torch.no_grad():
        stock[0].weight.copy_(layer.weight)
        if layer.affine:
            for own, theirs in ((layer.gain, stock[1].weight), (layer.bias, stock[1].bias)):
                own.normal_()
                theirs.copy_(own)
    return layer, stock


@pytest.mark.parametrize("options", [{}, {"affine": False}, {"eps": 0.1, "momentum": 0.4}])
def test_in_training_it_is_linear_and_batch_norm(options):
    layer, stock = pair(**options)
    inputs = [X.clone().requires_grad_() for _ in range(2)]
    outputs = [module(x) for module, x in zip((layer, stock), inputs, strict=True)]
    torch.testing.assert_close(*outputs, rtol=1e-10, atol=1e-10)
    push = torch.randn(40, 4, dtype=torch.float64)
    for output in outputs:
        output.backward(push)
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(layer.weight.grad, stock[0].weight.grad, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(layer.output_var, stock[1].running_var, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("options", [{}, {"affine": False}])
def test_with_the_same_running_statistics_it_is_theirs_in_eval_mode(options):
    layer, stock = pair(**options)
    for start in range(0, 40, 8):
        layer(X[start : start + 8])
        stock(X[start : start + 8])  # weights stay: then the running means agree too
    torch.testing.assert_close(layer.eval()(X), stock.eval()(X), rtol=1e-10, atol=1e-10)
    once = layer(X[3:4])
    torch.testing.assert_close(once[0], layer(X)[3], rtol=1e-10, atol=1e-12)


def test_a_rows_length_does_not_matter():
    layer, _ = pair(eps=1e-12)
    before = layer(X)
    with torch.no_grad():
        layer.weight.mul_(torch.tensor([[0.1], [3.0], [20.0], [1.0]]))
    torch.testing.assert_close(layer(X), before, rtol=1e-6, atol=1e-8)


def test_sequences_are_normalised_over_all_positions():
    layer, stock = pair()
    torch.testing.assert_close(layer(X.view(8, 5, 6)).reshape(40, 4), stock(X), rtol=1e-10, atol=1e-10)


def test_statistics_belong_to_the_row_and_gains_are_points():
    network = nn.Sequential(DirectionalLinear(6, 4), nn.ReLU(), nn.Linear(4, 2))
    layout = Layout.of(network)
    kinds = {slot.name: slot.kind for slot in layout.slots}
    assert {n for n, k in kinds.items() if k == "statistic"} == {
        "0.input_mean",
        "0.input_var",
        "0.output_var",
    }
    assert {n for n, k in kinds.items() if k == "point"} == {"0.gain", "0.bias"}
    believed = Layout.of(network, normalization=True)
    assert not believed.of_kind("point")


def test_copies_and_state_dicts_keep_it():
    layer, _ = pair()
    layer(X).sum().backward()
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other.eval()(X), layer.eval()(X))
    fresh = DirectionalLinear(6, 4, dtype=torch.float64)
    fresh.load_state_dict(layer.state_dict())
    assert torch.equal(fresh.eval()(X), layer.eval()(X))
    assert layer.float()(X.float()).dtype == torch.float32


def test_reset_starts_statistics_anew():
    layer, _ = pair()
    layer(X)
    layer.reset_parameters()
    assert (layer.output_var == 1).all()
    assert layer.input_var == 1
    assert (layer.input_mean == 0).all()
    wide = DirectionalLinear(400, 50)
    assert wide.weight.norm(dim=1).mean().item() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("sizes", [(1, 3), (0, 3), (4, 0)])
def test_sizes_without_a_direction_are_refused(sizes):
    with pytest.raises(ValueError, match="at least 2 inputs"):
        DirectionalLinear(*sizes)


@pytest.mark.parametrize("options", [{"eps": 0.0}, {"momentum": 0.0}, {"momentum": 1.5}])
def test_options_are_checked(options):
    with pytest.raises(ValueError, match="eps must be positive and momentum"):
        DirectionalLinear(4, 3, **options)


def test_one_row_has_no_statistics():
    with pytest.raises(ValueError, match="at least 2 rows"):
        DirectionalLinear(6, 4).double()(X[:1])


def test_every_other_method_takes_it_as_a_structure():
    network = nn.Sequential(DirectionalLinear(6, 5), nn.ReLU(), nn.Linear(5, 2))
    data = (X, (X[:, 0] > 3).long())
    for method in (sb.MAP(epochs=1), sb.MeanField(epochs=1)):
        assert method.fit(sb.Model(network, sb.Categorical()), data).predict(X, draws=3).mean.shape == (40, 2)


# What a drawn row is


def drawn(dimension: int, noise: float, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines between a neuron's direction and its draws', for unit inputs; the draws ``(rows, D)``."""
    torch.manual_seed(2)
    layer = DirectionalLinear(dimension, 1, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.mul_(7.0)  # a length: it must not matter
        layer.output_var.copy_(layer.weight.square().sum(1))  # E[x x^T] = I
    std = layer.weight_std(noise)
    w = layer.weight.detach()[0]
    draws = w + std * torch.randn(rows, dimension, dtype=torch.float64)
    return (draws @ w) / draws.norm(dim=1) / w.norm(), draws


@pytest.mark.parametrize(("dimension", "room"), [(576, 0.002), (64, 0.01), (10, 0.06)])
@pytest.mark.parametrize("noise", [0.1, 1.0])
def test_a_drawn_direction_has_the_resultant_length_of_the_exact_von_mises_fisher(dimension, room, noise):
    ours, _ = drawn(dimension, noise, 4000)
    kappa = sb.methods.precise.concentration(noise, dimension)
    mean = np.zeros(dimension)
    mean[0] = 1.0
    exact = vonmises_fisher(mean, kappa).rvs(4000, random_state=np.random.default_rng(0))[:, 0]
    length = 1 / math.sqrt(1 + noise**2)
    error = 4 * math.sqrt(ours.var().item() / 4000 + exact.var() / 4000)  # false alarm below 1e-4 each
    assert abs(ours.mean().item() - exact.mean()) < error + room * length
    assert abs(ours.mean().item() - length) < error + room * length


def test_noise_that_forgets_the_dimension_is_no_such_direction():
    # the mutant: std noise |w| for each entry, without 1 / sqrt(D)
    torch.manual_seed(2)
    w = torch.randn(64, dtype=torch.float64)
    draws = w + 0.5 * w.norm() * torch.randn(4000, 64, dtype=torch.float64)
    cosine = (draws @ w / draws.norm(dim=1) / w.norm()).mean().item()
    assert abs(cosine - 1 / math.sqrt(1.25)) > 0.5
