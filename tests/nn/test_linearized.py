"""A linearised network against dense Jacobians and finite differences, in float64."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.functional import jacobian
from torch.func import functional_call

import singularbayes as sb
from singularbayes.distributions import DiagonalGaussian
from singularbayes.functions import Way, evaluate, way_for
from singularbayes.nn import linearization_point
from singularbayes.nn.linearized import linearized_at
from singularbayes.parameters import Layout
from singularbayes.posterior import Posterior


class Recurrent(nn.Module):
    def __init__(self, kind: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.cell, self.head = kind(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][-1])


class Tied(nn.Module):
    """A weight used twice, under names in two modules; the logits come in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"hidden": x, "logits": self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))}


class NamesOfItsOwn(nn.Module):
    """Submodules called as a wrapper's attributes might be."""

    def __init__(self) -> None:
        super().__init__()
        self.original, self.at, self.network = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.network(torch.tanh(self.at(torch.tanh(self.original(x))))), x


def frozen() -> nn.Module:
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    network[0].requires_grad_(False)
    return network


def normalised() -> nn.Module:
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Dropout(0.5), nn.Linear(4, 2))
    statistics = dict(network[1].named_buffers())
    statistics["running_mean"].normal_()
    statistics["running_var"].uniform_(0.5, 2)
    return network


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "chain": (lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), (5, 3)),
    "one layer": (lambda: nn.Linear(3, 2), (5, 3)),
    "frozen": (frozen, (5, 3)),
    "normalised": (normalised, (5, 3)),
    "tied": (Tied, (5, 3)),
    "names": (NamesOfItsOwn, (5, 3)),
    "low rank": (lambda: sb.factorize(nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2)), 1), (5, 3)),
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.GELU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 2)),
        (3, 1, 6, 6),
    ),
    "attention": (lambda: nn.TransformerEncoderLayer(4, 2, 8, 0.1, batch_first=True), (2, 3, 4)),
    "lstm": (lambda: Recurrent(nn.LSTM), (4, 5, 3)),
    "gru": (lambda: Recurrent(nn.GRU), (4, 5, 3)),
    "low-rank lstm": (lambda: Recurrent(lambda m, n: sb.nn.LowRankLSTM(m, n, 1)), (4, 5, 3)),
}
each = pytest.mark.parametrize("name", NETWORKS)


def problem(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(1)
    build, shape = NETWORKS[name]
    return build().double().eval(), torch.randn(shape, dtype=torch.float64)


def one(output: Any) -> Tensor:
    return (
        output["logits"] if isinstance(output, dict) else output[0] if isinstance(output, tuple) else output
    )


def moved(network: nn.Module, seed: int = 0, scale: float = 0.5) -> dict[str, Tensor]:
    """Values away from the network's; frozen parameters stay."""
    source = torch.Generator().manual_seed(seed)
    return {
        name: p.detach() + p.requires_grad * scale * torch.randn(p.shape, generator=source, dtype=p.dtype)
        for name, p in network.named_parameters()
    }


def by_dense_jacobian(network: nn.Module, values: dict[str, Tensor], x: Tensor) -> Tensor:
    """``f(m) + J (w - m)`` with ``J`` by reverse mode, entry for entry."""
    start = {name: p.detach() for name, p in network.named_parameters()}

    def function(*tensors: Tensor) -> Tensor:
        return one(functional_call(network, dict(zip(start, tensors, strict=True)), (x,)))

    jacobians = jacobian(function, tuple(start.values()))
    output = function(*start.values())
    for block, name in zip(jacobians, start, strict=True):
        step = (values[name] - start[name]).flatten()
        output = output + block.reshape(*output.shape, -1) @ step
    return output


@each
def test_it_is_the_value_plus_the_dense_jacobian_times_the_step(name):
    network, x = problem(name)
    values = moved(network)
    with torch.no_grad():
        linear = functional_call(sb.linearize(network), values, (x,))
    expected = by_dense_jacobian(network, values, x)
    assert torch.allclose(linear, expected, atol=1e-10)
    far = one(functional_call(network, values, (x,)))  # the network itself is another function
    assert name == "one layer" or (far - expected).abs().max() > 1e-3


@each
def test_it_agrees_with_finite_differences(name):
    network, x = problem(name)
    values, start = moved(network), dict(network.named_parameters())

    def at(t: float) -> Tensor:
        return one(functional_call(network, {n: p.detach() + t * (values[n] - p.detach())
                                             for n, p in start.items()}, (x,)))  # fmt: skip

    with torch.no_grad():
        h = 1e-4
        expected = at(0.0) + (at(h) - at(-h)) / (2 * h)
        assert torch.allclose(functional_call(sb.linearize(network), values, (x,)), expected, atol=1e-6)


@each
def test_at_its_point_it_is_the_network_and_its_names_are_the_same(name):
    network, x = problem(name)
    linear = sb.linearize(network)
    assert torch.allclose(linear(x), one(network(x)), atol=1e-12)
    for kind in ("named_parameters", "named_buffers"):
        ours, theirs = (dict(getattr(net, kind)(remove_duplicate=False)) for net in (linear, network))
        assert list(ours) == list(theirs)
        assert all(torch.equal(ours[n], theirs[n]) for n in theirs)
        assert all(ours[n].requires_grad == theirs[n].requires_grad for n in theirs)
    assert linear.state_dict().keys() == network.state_dict().keys()
    assert Layout.of(linear) == Layout.of(network)


@each
def test_many_draws_at_once_are_the_draws_one_by_one(name):
    network, x = problem(name)
    linear = sb.linearize(network)
    layout = Layout.of(linear)
    start = layout.flatten(linear)
    std = torch.zeros_like(start)
    std[: layout.trained] = 0.3
    posterior = Posterior(linear, DiagonalGaussian(start, std), sb.Categorical(), layout, {})
    assert posterior.way is (Way.LOOP if way_for(network) is Way.LOOP else Way.VMAP)
    draws = posterior.draw(5)
    together, each_alone = (evaluate(linear, layout, draws, x, way) for way in (posterior.way, Way.LOOP))
    assert torch.allclose(together, each_alone, atol=1e-10)
    values = {slot.name: draws[0, slot.start : slot.stop].view(slot.shape) for slot in layout.slots}
    chosen = {n: values.get(n, p.detach()) for n, p in network.named_parameters()}
    assert torch.allclose(together[0], by_dense_jacobian(network, chosen, x), atol=1e-10)


@each
def test_copies_files_and_casts_keep_the_point(name):
    network, x = problem(name)
    linear, values = sb.linearize(network), moved(network)
    before = functional_call(linear, values, (x,))
    linear.load_state_dict(values, strict=False)
    for twin in (copy.deepcopy(linear), pickle.loads(pickle.dumps(linear)), sb.linearize(linear)):
        assert torch.allclose(twin(x), before, atol=1e-10)
        with torch.no_grad():
            next(p for p in twin.parameters() if p.requires_grad).add_(1.0)
        assert torch.allclose(linear(x), before, atol=1e-10)
    single = copy.deepcopy(linear).float()
    assert all(tensor.dtype == torch.float32 for tensor in linearization_point(single).values())
    assert torch.allclose(single(x.float()).double(), before, atol=1e-3)


def test_the_users_network_is_untouched_and_train_mode_changes_nothing():
    network, x = problem("normalised")
    network.train()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    linear = sb.linearize(network).train()
    assert torch.equal(linear(x), linear(x))
    assert torch.allclose(linear(x), copy.deepcopy(network).eval()(x), atol=1e-12)
    assert network.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


@pytest.mark.parametrize("name", ["chain", "normalised", "lstm"])
def test_its_gradient_in_w_is_the_jacobians_transpose_wherever_w_is(name):
    network, x = problem(name)
    linear = sb.linearize(network)
    linear.load_state_dict(moved(network), strict=False)
    cotangent = torch.randn_like(linear(x))
    ours = torch.autograd.grad((linear(x) * cotangent).sum(), list(linear.parameters()))
    theirs = torch.autograd.grad((one(network(x)) * cotangent).sum(), list(network.parameters()))
    assert all(torch.allclose(a, b, atol=1e-10) for a, b in zip(ours, theirs, strict=True))


def test_buffers_enter_as_they_are_passed():
    network, x = problem("normalised")
    linear, values = sb.linearize(network), moved(network)
    other = {"1.running_mean": torch.randn(4, dtype=torch.float64)}
    shifted = copy.deepcopy(network)
    shifted.load_state_dict(other, strict=False)
    ours = functional_call(linear, {**values, **other}, (x,))
    assert torch.allclose(ours, by_dense_jacobian(shifted, values, x), atol=1e-10)


def test_frozen_parameters_enter_as_they_are_passed():
    network, x = problem("frozen")
    linear, values = sb.linearize(network), moved(network)
    assert not [name for name in linearization_point(linear) if name.startswith("0.")]
    other = {"0.weight": torch.randn(4, 3, dtype=torch.float64)}
    shifted = copy.deepcopy(network)
    shifted.load_state_dict(other, strict=False)
    ours = functional_call(linear, {**values, **other}, (x,))
    assert torch.allclose(ours, by_dense_jacobian(shifted, {**values, **other}, x), atol=1e-10)


def test_a_network_without_trainable_parameters_is_linear_in_all():
    network, x = problem("chain")
    network.requires_grad_(False)
    values = {name: p + 0.5 for name, p in network.named_parameters()}
    ours = functional_call(sb.linearize(network), values, (x,))
    assert torch.allclose(ours, by_dense_jacobian(network, values, x), atol=1e-10)


def test_it_can_be_linearised_around_other_values_than_its_own():
    network, x = problem("chain")
    point = moved(network, seed=1)
    there = copy.deepcopy(network)
    there.load_state_dict(point)
    ours = linearized_at(network, point)(x)
    values = {name: p.detach() for name, p in network.named_parameters()}
    assert torch.allclose(ours, by_dense_jacobian(there, values, x), atol=1e-10)
    with pytest.raises(ValueError, match=r"no parameter 9\.weight of shape \(4, 3\)"):
        linearized_at(network, {"9.weight": point["0.weight"]})


class WithoutJvp(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        return None

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return 2 * gradient


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return 2 * gradient


class Homemade(nn.Module):
    def __init__(self, operation: type[torch.autograd.Function]) -> None:
        super().__init__()
        self.first, self.operation = nn.Linear(3, 2), operation

    def forward(self, x: Tensor) -> Tensor:
        return self.operation.apply(self.first(x))


@pytest.mark.parametrize("operation", [Doubled, WithoutJvp])
def test_an_operation_without_forward_mode_is_refused_by_name(operation):
    with pytest.raises(NotImplementedError, match=r"Homemade cannot be linearised.*freeze"):
        sb.linearize(Homemade(operation))(torch.zeros(1, 3))


def test_an_error_of_the_networks_own_is_passed_on():
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        sb.linearize(nn.Linear(3, 2))(torch.zeros(1, 4))


def test_what_replaces_layers_refuses_a_linearised_network():
    linear = sb.linearize(problem("low rank")[0])
    for convert in (sb.merge, lambda net: sb.factorize(net, rank=1)):
        with pytest.raises(ValueError, match="then linearise it"):
            convert(linear)
    posterior = sb.MAP(epochs=1).fit(sb.Model(linear.float(), sb.Gaussian(noise=1.0)),
                                     (torch.randn(8, 3), torch.randn(8, 2)))  # fmt: skip
    with pytest.raises(ValueError, match=r"posterior\.functions"):
        sb.merge(posterior)


def test_no_module_is_an_error(unchecked):
    with pytest.raises(TypeError, match=r"torch\.nn\.Module, got str"):
        sb.linearize("network")  # type: ignore[arg-type]
