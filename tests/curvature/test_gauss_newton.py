"""Gauss-Newton products and leading directions against dense float64 matrices."""

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.functional import hessian, jacobian
from torch.func import functional_call

import singularbayes as sb
from singularbayes.curvature import GaussNewton, leading_directions

SOURCE = torch.Generator().manual_seed(0)
X = torch.randn(30, 3, generator=SOURCE, dtype=torch.float64) * torch.tensor([1.0, 5.0, 0.2]).double()


def problem(task: str) -> tuple[sb.Model, Tensor]:
    torch.manual_seed(1)
    outputs = {"categorical": 3, "bernoulli": 1, "gaussian": 1, "learned": 1, "heteroscedastic": 2}[task]
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs)).double()
    if task == "categorical":
        return sb.Model(network, sb.Categorical()), (X[:, 0] > 0).long() + (X[:, 1] > 3).long()
    if task == "bernoulli":
        return sb.Model(network, sb.Bernoulli(), deterministic="0.bias"), (X[:, 0] > 0).long()
    likelihood = {
        "gaussian": sb.Gaussian(noise=0.3),
        "learned": sb.Gaussian(initial_noise=0.7),
        "heteroscedastic": sb.HeteroscedasticGaussian(),
    }[task]
    return sb.Model(network, likelihood), X[:, 0] * 2


TASKS = ["categorical", "bernoulli", "gaussian", "learned", "heteroscedastic"]


def dense(model: sb.Model, y: Tensor, name: str) -> Tensor:
    """One block, row by row: slow and obvious."""
    start = dict(model.network.named_parameters())[name].detach()
    total = torch.zeros(start.numel(), start.numel(), dtype=torch.float64)
    for row in range(len(X)):
        x, label = X[row : row + 1], y[row : row + 1]

        def f(w: Tensor, x: Tensor = x) -> Tensor:
            return functional_call(model.network, {name: w}, (x,))

        outputs = f(start).detach()
        label = model.likelihood.labels(outputs.shape, label)

        def nll(out: Tensor, label: Tensor = label) -> Tensor:
            return model.likelihood.loss(out, label, model.likelihood.parameters)

        slope = jacobian(f, start).reshape(outputs.numel(), -1)
        total += slope.T @ hessian(nll, outputs).reshape(outputs.numel(), outputs.numel()) @ slope
    return total.detach()


def curvature_of(model: sb.Model, y: Tensor) -> GaussNewton:
    return GaussNewton(model, [(X[:12], y[:12]), (X[12:], y[12:])])  # the batches' sums add up


@pytest.mark.parametrize("task", TASKS)
def test_products_are_the_dense_blocks(task):
    model, y = problem(task)
    curvature = curvature_of(model, y)
    for block, slot in enumerate(curvature.slots):
        exact = dense(model, y, slot.name)
        found = curvature.product(block, torch.eye(slot.size, dtype=torch.float64))
        torch.testing.assert_close(found, exact, rtol=1e-9, atol=1e-10)
        assert exact.abs().max() > 1e-3


def test_the_mean_in_place_of_the_sum_is_another_matrix():
    # the mutant
    model, y = problem("categorical")
    slot = curvature_of(model, y).slots[0]
    found = curvature_of(model, y).product(0, torch.eye(slot.size, dtype=torch.float64)) / len(X)
    assert not torch.allclose(found, dense(model, y, slot.name), rtol=0.1)


@pytest.mark.parametrize("task", ["categorical", "gaussian"])
def test_leading_directions_are_the_dense_eigenvectors(task):
    model, y = problem(task)
    curvature = curvature_of(model, y)
    for block, (u, values) in enumerate(leading_directions(curvature, 2, 60, seed=0)):
        exact_values, exact = torch.linalg.eigh(dense(model, y, curvature.slots[block].name))
        kept = min(2, len(exact))
        torch.testing.assert_close(values, exact_values.flip(0)[:kept], rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(u.T @ u, torch.eye(kept, dtype=torch.float64), rtol=0, atol=1e-10)
        for column in range(kept):
            if exact_values.flip(0)[column] > 1e-6:
                cosine = (u[:, column] @ exact.flip(1)[:, column]).abs().item()
                assert cosine == pytest.approx(1, abs=1e-6)


def test_without_iterations_to_speak_of_they_are_not():
    model, y = problem("categorical")
    curvature = curvature_of(model, y)
    (u, _), *_ = leading_directions(curvature, 1, 0, seed=0)
    exact = torch.linalg.eigh(dense(model, y, curvature.slots[0].name))[1][:, -1]
    assert (u[:, 0] @ exact).abs().item() < 0.99


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.1, batch_first=True, norm_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x).mean(1))


@pytest.mark.parametrize(("kind", "width"), [(Recurrent, 3), (Encoder, 4)])
def test_recurrent_and_attention_networks_have_products(kind, width):
    torch.manual_seed(2)
    network = kind().double().eval()
    x, y = torch.randn(6, 5, width, dtype=torch.float64), torch.arange(6) % 2
    curvature = GaussNewton(sb.Model(network, sb.Categorical()), [(x, y)])
    block = next(i for i, size in enumerate(curvature.sizes) if size > 8)
    slot = curvature.slots[block]
    start = dict(network.named_parameters())[slot.name].detach()
    slope = jacobian(lambda w: functional_call(network, {slot.name: w}, (x,)), start).reshape(6, 2, -1)
    p = network(x).softmax(1).detach()
    curved = torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)
    exact = torch.einsum("nki,nkl,nlj->ij", slope, curved, slope)
    found = curvature.product(block, torch.eye(slot.size, dtype=torch.float64))
    torch.testing.assert_close(found, exact, rtol=1e-8, atol=1e-10)


def test_low_rank_factors_are_blocks_and_the_network_is_untouched():
    torch.manual_seed(0)
    layers = nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 2)
    network = sb.factorize(nn.Sequential(*layers), rank={"2": 2})
    model = sb.Model(network, sb.Categorical())
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    found = leading_directions(GaussNewton(model, [(X.float(), (X[:, 0] > 0).long())]), 3, 2, seed=1)
    assert [u.shape for u, _ in found] == [(s.size, min(3, s.size)) for s in model.layout.slots]
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    assert all(p.requires_grad and p.grad is None for p in network.parameters())
