"""Gaussian complexity: by hand on small chains, above the linear network's own, labelled as no bound."""

import math

import pytest
import torch
from torch import nn

import singularbayes as sb
from singularbayes.theory import gaussian_complexity


def chain(*matrices: torch.Tensor) -> nn.Sequential:
    layers = []
    for matrix in matrices:
        layer = nn.Linear(matrix.shape[1], matrix.shape[0], bias=False)
        with torch.no_grad():
            layer.weight.copy_(matrix)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def test_it_is_the_formula_with_the_factors_of_earlier_layers():
    first, second = torch.diag(torch.tensor([3.0, 1.0])), torch.diag(torch.tensor([5.0, 2.0]))
    x = torch.tensor([[1.0, 2.0], [2.0, 0.0], [0.0, 0.0], [0.0, 4.0]])
    found = gaussian_complexity(chain(first, second), x)
    exact = 5 / 4 * (math.sqrt(10) * math.sqrt(2) * 5 + 5 * math.sqrt(2 * 2) * 3)
    assert found.value == pytest.approx(exact)
    printed = 5 / 4 * (math.sqrt(10) * math.sqrt(2) + 5 * math.sqrt(2 * 2))  # the printed form: no product
    assert found.value > 2 * printed


def test_scaling_any_layer_scales_it():
    # a linear class of two layers is as large as its product: the printed form fails this
    first, second, x = torch.randn(5, 3), torch.randn(2, 5), torch.randn(40, 3)
    plain = gaussian_complexity(chain(first, second), x).value
    assert gaussian_complexity(chain(10 * first, second), x).value == pytest.approx(10 * plain)
    assert gaussian_complexity(chain(first, 10 * second), x).value == pytest.approx(10 * plain)
    assert gaussian_complexity(chain(first, second), x.repeat(4, 1)).value == pytest.approx(plain / 2)


def test_a_lower_rank_is_less_complex_and_it_says_that_it_is_no_bound():
    torch.manual_seed(0)
    full = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    low = sb.factorize(full, rank={"2": 4}, init="svd")
    x = torch.randn(100, 20)
    found = gaussian_complexity(low, x)
    assert found.value < 0.7 * gaussian_complexity(full, x).value
    assert found.layers[1].rank == 4
    text = str(found)
    for part in ("no bound", "45.6", "19.0", "biases left out: 0.bias"):
        assert part in text


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (nn.Sequential(nn.Linear(3, 3), nn.GELU(), nn.Linear(3, 1)), "Lipschitz"),
        (nn.Sequential(nn.Linear(3, 3), nn.LeakyReLU(2.0), nn.Linear(3, 1)), "Lipschitz"),
        (nn.LSTM(3, 3), "chain of linear layers"),
    ],
)
def test_networks_outside_the_theorem_are_refused(network, message):
    with pytest.raises(TypeError, match=message):
        gaussian_complexity(network, torch.randn(4, 3))


def test_inputs_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"must be \(N, 3\)"):
        gaussian_complexity(nn.Linear(3, 1), torch.randn(4, 2))
