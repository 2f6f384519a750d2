"""Spectral bounds against singular values of dense float64 matrices."""

import copy

import pytest
import torch
from torch import Tensor, nn

import singularbayes as sb
from singularbayes.nn.spectral import BOUNDABLE, SpectralBound, add_vector, drop_vector

LAYERS = {
    "linear": (lambda: nn.Linear(7, 5), (7,)),
    "low rank": (lambda: sb.nn.LowRankLinear(7, 5, 2), (7,)),
    "diagonal": (lambda: sb.nn.LowRankLinear(7, 5, 2, diagonal=True), (7,)),
    "convolution": (lambda: nn.Conv2d(2, 3, 3, padding=1), (2, 6, 5)),
    "strided": (
        lambda: nn.Conv2d(2, 3, 3, stride=2, groups=1, padding_mode="circular", padding=1),
        (2, 6, 6),
    ),
    "signals": (lambda: nn.Conv1d(2, 3, 4, dilation=2), (2, 12)),
    "low-rank convolution": (lambda: sb.nn.LowRankConv2d(2, 3, 3, 2, padding=1), (2, 6, 5)),
}
each = pytest.mark.parametrize("name", LAYERS)


def layer(name: str, scale: float) -> tuple[nn.Module, tuple[int, ...]]:
    torch.manual_seed(2)
    build, shape = LAYERS[name]
    made = build().double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(scale)
    add_vector(made, shape)
    return made, shape


def dense(module: nn.Module, shape: tuple[int, ...]) -> Tensor:
    """The matrix of the linear map, column by column."""
    units = torch.eye(torch.Size(shape).numel(), dtype=torch.float64).view(-1, *shape)
    with torch.no_grad():
        return (module(units) - module(torch.zeros_like(units[:1]))).flatten(1).T


def norm(module: nn.Module, shape: tuple[int, ...]) -> float:
    return torch.linalg.svdvals(dense(module, shape))[0].item()


@each
def test_repeated_steps_bring_the_norm_down_to_the_bound(name):
    module, shape = layer(name, 5.0)
    assert norm(module, shape) > 2
    bound = SpectralBound(module, 0.95)
    for _ in range(300):
        bound.apply()
    assert norm(module, shape) == pytest.approx(0.95, rel=1e-3)


@each
def test_a_layer_below_the_bound_is_left_as_it_is(name):
    module, shape = layer(name, 0.05)
    before = copy.deepcopy(module.state_dict())
    bound = SpectralBound(module, 0.95)
    for _ in range(5):
        bound.apply()
    assert bound.enforce(drop_vector(module)) == pytest.approx(norm(module, shape), rel=2e-3)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


@each
def test_after_enforcing_no_singular_value_is_above_the_bound(name):
    module, shape = layer(name, 5.0)
    bias = getattr(module, "bias").clone()  # noqa: B009
    direction = dense(module, shape) / norm(module, shape)
    held = SpectralBound(module, 0.95).enforce(drop_vector(module))
    assert held == 0.95
    largest = norm(module, shape)
    assert 0.95 * (1 - 2e-3) <= largest <= 0.95 * (1 + 1e-12)
    assert torch.allclose(dense(module, shape) / largest, direction)  # scaled, nothing else
    assert torch.equal(getattr(module, "bias"), bias)  # noqa: B009
    assert not [n for n, _ in module.named_buffers() if "spectral" in n]


def test_the_norm_of_a_convolutions_weight_as_a_matrix_is_another_number():
    module, shape = layer("convolution", 5.0)
    as_matrix = torch.linalg.matrix_norm(module.get_parameter("weight").flatten(1), ord=2).item()
    assert norm(module, shape) > 1.3 * as_matrix  # so bounding that would not bound the layer


def test_the_vector_follows_training_so_that_one_iteration_a_step_is_enough():
    module, shape = layer("linear", 5.0)
    bound = SpectralBound(module, 0.95)
    source = torch.Generator().manual_seed(0)
    for _ in range(100):
        with torch.no_grad():
            noise = torch.randn(5, 7, generator=source, dtype=torch.float64)
            module.get_parameter("weight").add_(noise, alpha=0.02)
        bound.apply()
    assert norm(module, shape) < 1.0


def test_a_layer_of_zeros_is_no_trouble():
    module, _ = layer("linear", 0.0)
    SpectralBound(module, 0.95).apply()
    assert torch.isfinite(drop_vector(module)).all()


def test_the_boundable_layers_are_those_that_are_tested():
    assert {type(build()) for build, _ in LAYERS.values()} <= set(BOUNDABLE)
