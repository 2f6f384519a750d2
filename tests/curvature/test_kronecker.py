"""KFAC against its definition by loops, the exact blocks where it is exact, and curvlinops."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.functional import hessian, jacobian

import singularbayes as sb
from singularbayes.curvature.kronecker import Kronecker
from singularbayes.curvature.kronecker_sides import _patches
from singularbayes.curvature.subset import choose, expand
from singularbayes.nn import LowRankConv1d, LowRankConv2d, LowRankConv3d, LowRankLinear

SOURCE = torch.Generator().manual_seed(0)
ONE = torch.ones((), dtype=torch.float64)


def data(*shape: int, classes: int = 3) -> tuple[Tensor, Tensor]:
    x = torch.randn(*shape, generator=SOURCE, dtype=torch.float64)
    x[:, 0] *= 4
    return x, torch.arange(len(x)) % classes


def kfac(model: sb.Model, x: Tensor, y: Tensor, subset: Any = "*") -> Kronecker:
    network = model.copy_network().eval()
    chosen = choose(model, network, subset, x[:2])

    def batches():
        return iter([(x[:2], y[:2]), (x[2:], y[2:])] if len(x) > 2 else [(x, y)])

    structure, expansion = sb.KroneckerCurvature(), expand(model, network, chosen, batches)
    structure.check(expansion)
    found = structure.measure(expansion)
    assert found.tally.rows == len(x)
    return found.curvature


def dense_block(found: Kronecker, slot: Any) -> Tensor:
    """One tensor's block as a dense matrix; several groups stand on the diagonal."""
    parts = []
    for block in found.blocks:
        if slot.start <= block.start < slot.stop:
            left = block.left_vectors * block.left_values @ block.left_vectors.T
            right = block.right_vectors * block.right_values @ block.right_vectors.T
            parts.append(torch.kron(left, right))
    return torch.block_diag(*parts)


def uneven(network: nn.Module) -> nn.Module:
    """Diagonals ``s`` that are not their start, 1."""
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.rpartition(".")[2] == "s":
                parameter.copy_(torch.linspace(-2, 0.5, len(parameter)))
    return network.double()


def slots_of(model: sb.Model) -> dict[str, Any]:
    return {slot.name: slot for slot in model.layout.of_kind("belief")}


def pulled(model: sb.Model, layer: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One row: a layer's input, the Jacobian ``(K, *shape)`` at its output, the Hessian of the outputs."""
    seen: dict[str, Tensor] = {}

    def f(push: Tensor) -> Tensor:
        def add(_layer: nn.Module, inputs: Any, output: Tensor) -> Tensor:
            seen["input"], seen["shape"] = inputs[0].detach(), torch.zeros_like(output)
            return output + push

        handle = layer.register_forward_hook(add)
        try:
            return model.network(x)
        finally:
            handle.remove()

    f(torch.zeros((), dtype=torch.float64))
    slope = jacobian(f, seen["shape"])
    outputs = model.network(x).detach()
    label = model.likelihood.labels(outputs.shape, y)
    bent = hessian(lambda out: -model.likelihood.log_prob(out, label, {}).sum(), outputs)
    k = outputs.numel()
    return seen["input"], slope.reshape(k, *seen["shape"].shape), bent.reshape(k, k)


def by_loops(model: sb.Model, layer: nn.Module, x: Tensor, y: Tensor, unfold: Any) -> Tensor:
    """The definition: ``(1 / P) sum a a^T`` and ``sum g^T H g`` over rows and positions, one at a time."""
    inputs = outputs = torch.zeros(1, 1, dtype=torch.float64)
    positions = 0
    for row in range(len(x)):
        seen, slope, bent = pulled(model, layer, x[row : row + 1], y[row : row + 1])
        sides, gradients = unfold(seen, slope)
        for a, g in zip(sides, gradients, strict=True):
            inputs = inputs + a.outer(a)
            outputs = outputs + g.T @ bent @ g
            positions += 1
    return torch.kron(outputs, inputs / positions).detach()


def sequence_sides(seen: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    return seen.reshape(-1, seen.shape[-1]), slope.reshape(len(slope), -1, slope.shape[-1]).transpose(0, 1)


class Sequence(nn.Module):
    """A linear layer that acts at each of several steps."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(2, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.inner(x)).mean(1))


def test_a_linear_layer_is_the_definition():
    torch.manual_seed(1)
    x, y = data(6, 3)
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    model = sb.Model(network, sb.Categorical())
    found = kfac(model, x, y)
    for name in ("0", "2"):
        exact = by_loops(model, network.get_submodule(name), x, y, sequence_sides)
        block = dense_block(found, slots_of(model)[f"{name}.weight"])
        torch.testing.assert_close(block, exact, rtol=1e-8, atol=1e-11)
        m, n = network.get_submodule(name).weight.shape
        sides_swapped = exact.view(m, n, m, n).permute(1, 0, 3, 2).reshape(m * n, m * n)  # the mutant
        assert not torch.allclose(block, sides_swapped, rtol=0.1)
        assert not torch.allclose(block / len(x), exact, rtol=0.1)  # the mutant: the mean NLL


def test_a_layer_over_a_sequence_has_the_expand_setting():
    torch.manual_seed(1)
    x, y = data(5, 4, 2)
    network = Sequence().double()
    model = sb.Model(network, sb.Categorical())
    exact = by_loops(model, network.inner, x, y, sequence_sides)
    block = dense_block(kfac(model, x, y), slots_of(model)["inner.weight"])
    torch.testing.assert_close(block, exact, rtol=1e-8, atol=1e-11)


def test_biases_are_exact_over_a_sequence_too(dense):
    torch.manual_seed(1)
    x, y = data(5, 4, 2)
    model = sb.Model(Sequence().double(), sb.Categorical())
    block = dense_block(kfac(model, x, y), slots_of(model)["inner.bias"])
    torch.testing.assert_close(block, dense(model, x, y, ["inner.bias"]), rtol=1e-8, atol=1e-11)


class Rows(Sequence):
    """The same, with the steps of all data as rows, or the steps first."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "rows":
            return self.head(torch.tanh(self.inner(x.reshape(-1, 2))).view(len(x), -1, 3).mean(1))
        return self.head(torch.tanh(self.inner(x.transpose(0, 1))).mean(0))


@pytest.mark.parametrize("how", ["rows", "steps first"])
def test_without_the_data_first_a_bias_has_the_positions_products(how):
    torch.manual_seed(1)
    x, y = data(4, 2, 2)  # batches of 2 rows with 2 steps: lengths do not tell which axis is the data
    network = Rows(how).double()
    model = sb.Model(network, sb.Categorical())
    exact = torch.zeros(3, 3, dtype=torch.float64)
    for row in range(len(x)):
        _, slope, bent = pulled(model, network.inner, x[row : row + 1], y[row : row + 1])
        for g in slope.reshape(len(bent), -1, 3).unbind(1):
            exact += g.T @ bent @ g
    block = dense_block(kfac(model, x, y), slots_of(model)["inner.bias"])
    torch.testing.assert_close(block, exact, rtol=1e-8, atol=1e-11)


class Unequal(nn.Module):
    """One layer, used at each step and once more for each datum."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(2, 2), nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.inner(x.reshape(-1, 2))).view(*x.shape).mean(1)
        return self.head(torch.tanh(self.inner(h)))


def test_uses_of_unequal_length_add_up():
    torch.manual_seed(1)
    x, y = data(4, 3, 2)
    found = kfac(sb.Model(Unequal().double(), sb.Categorical()), x, y)
    assert [len(block.left_values) for block in found.blocks] == [2, 2, 3, 3]
    assert all((block.left_values > 0).any() for block in found.blocks)


class Picture(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.act, self.head = layer, nn.ReLU(inplace=True), nn.Linear(layer.out_channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.act(self.layer(x)).flatten(2).mean(2))


@pytest.mark.parametrize("options", [{}, {"stride": 2, "padding": 1}, {"dilation": 2, "padding": "same"}])
def test_a_convolution_is_the_definition(options):
    torch.manual_seed(1)
    x, y = data(4, 2, 5, 6)
    layer = nn.Conv2d(2, 4, (3, 2), **options).double()
    model = sb.Model(Picture(layer).double(), sb.Categorical())

    def sides(seen: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
        padding = options.get("padding", 0)
        if padding == "same":  # dilated sizes 5 and 3
            seen, padding = F.pad(seen, (1, 1, 2, 2)), 0
        patches = F.unfold(seen, (3, 2), options.get("dilation", 1), padding, options.get("stride", 1))
        return patches[0].T, slope.flatten(3)[:, 0].permute(2, 0, 1)

    exact = by_loops(model, layer, x, y, sides)
    block = dense_block(kfac(model, x, y), slots_of(model)["layer.weight"])
    torch.testing.assert_close(block, exact, rtol=1e-8, atol=1e-11)


CONVOLUTIONS = {
    "1d, circular": nn.Conv1d(2, 4, 3, padding=1, padding_mode="circular"),
    "1d, reflect, even, same": nn.Conv1d(2, 4, 4, padding="same", padding_mode="reflect"),
    "2d, groups": nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2),
    "2d, depthwise": nn.Conv2d(3, 6, (3, 1), dilation=(2, 1), groups=3),
    "3d": nn.Conv3d(2, 3, (1, 2, 3), padding=(0, 1, 1)),
}


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_patches_are_what_the_kernel_sees(case):
    layer = CONVOLUTIONS[case].double()
    dims = len(layer.kernel_size)
    x = torch.randn(2, layer.in_channels, *[6, 5, 4][:dims], generator=SOURCE, dtype=torch.float64)
    patches = _patches(layer, x)  # (groups, P, n)
    weight = layer.weight.flatten(1).unflatten(0, (layer.groups, -1))
    made = torch.einsum("gpn,gon->gpo", patches, weight)
    expected = (layer(x) - layer.bias.view(-1, *[1] * dims)).flatten(2).unflatten(1, (layer.groups, -1))
    torch.testing.assert_close(made, expected.permute(1, 0, 3, 2).flatten(1, 2), rtol=1e-9, atol=1e-12)


def exact_blocks(model: sb.Model, x: Tensor, y: Tensor, dense: Any, rtol: float = 1e-8) -> None:
    found = kfac(model, x, y)
    for name, slot in slots_of(model).items():
        exact = dense(model, x, y, [name])
        torch.testing.assert_close(dense_block(found, slot), exact, rtol=rtol, atol=1e-10, msg=name)
        assert exact.abs().max() > 1e-6, name


def test_every_block_is_exact_for_one_datum(dense):
    torch.manual_seed(1)
    x, y = data(1, 3)
    network = nn.Sequential(
        nn.Linear(3, 4), nn.Tanh(), LowRankLinear(4, 5, 2, diagonal=True), nn.Tanh(), nn.Linear(5, 3)
    )
    exact_blocks(sb.Model(uneven(network), sb.Categorical()), x, y, dense)


def test_every_block_of_a_linear_network_with_gaussian_noise_is_exact(dense):
    torch.manual_seed(1)
    x, _ = data(7, 3)
    network = nn.Sequential(nn.Linear(3, 4), LowRankLinear(4, 5, 2), nn.Linear(5, 2)).double()
    exact_blocks(sb.Model(network, sb.Gaussian(noise=0.3)), x, x[:, :2], dense)


ONE_POSITION = [
    nn.Conv1d(2, 3, 4),
    nn.Conv2d(4, 6, 3, groups=2),
    LowRankConv1d(2, 4, 4, rank=2, diagonal=True),
    LowRankConv2d(4, 6, (2, 3), rank=2),
    LowRankConv3d(2, 4, (2, 2, 1), rank=2, diagonal=True),
]


@pytest.mark.parametrize("layer", ONE_POSITION, ids=lambda layer: type(layer).__name__)
def test_convolutions_at_one_position_are_exact_for_one_datum(layer, dense):
    torch.manual_seed(1)
    x, y = data(1, layer.in_channels, *layer.kernel_size)
    model = sb.Model(uneven(Picture(layer)), sb.Categorical())
    found = kfac(model, x, y)
    for name, slot in slots_of(model).items():
        exact = dense(model, x, y, [name])
        block = dense_block(found, slot)
        if getattr(layer, "groups", 1) > 1 and name in ("layer.weight", "layer.A"):  # a block for each group
            keep = torch.block_diag(*[torch.ones(slot.size // layer.groups, slot.size // layer.groups)] * 2)
            exact = exact * keep
        torch.testing.assert_close(block, exact, rtol=1e-8, atol=1e-10, msg=name)


@pytest.mark.parametrize("diagonal", [False, True])
def test_vectors_of_low_rank_convolutions_are_exact(diagonal, dense):
    torch.manual_seed(1)
    x, y = data(4, 4, 5, 4)
    layer = LowRankConv2d(4, 6, 3, rank=2, padding=1, groups=2, diagonal=diagonal)
    model = sb.Model(uneven(Picture(layer)), sb.Categorical())
    found = kfac(model, x, y)
    for name in ["layer.bias", *(["layer.s"] if diagonal else [])]:
        exact = dense(model, x, y, [name])
        torch.testing.assert_close(dense_block(found, slots_of(model)[name]), exact, rtol=1e-8, atol=1e-10)


def test_factors_are_those_of_two_stock_layers():
    torch.manual_seed(1)
    x, y = data(5, 3, 4)
    low = LowRankLinear(4, 5, 2).double()
    first, second = nn.Linear(4, 2, bias=False).double(), nn.Linear(2, 5).double()
    with torch.no_grad():
        first.weight.copy_(low.B.T)
        second.weight.copy_(low.A)
        second.bias.copy_(low.bias)
    head = nn.Sequential(nn.Tanh(), nn.Flatten(), nn.Linear(15, 3)).double()
    one = sb.Model(nn.Sequential(low, *head), sb.Categorical())
    two = sb.Model(nn.Sequential(first, second, *head), sb.Categorical())
    ours, stock = kfac(one, x, y), kfac(two, x, y)
    a = dense_block(stock, slots_of(two)["1.weight"])
    torch.testing.assert_close(dense_block(ours, slots_of(one)["0.A"]), a, rtol=1e-8, atol=1e-10)
    b = dense_block(stock, slots_of(two)["0.weight"]).view(2, 4, 2, 4).permute(1, 0, 3, 2).reshape(8, 8)
    torch.testing.assert_close(dense_block(ours, slots_of(one)["0.B"]), b, rtol=1e-8, atol=1e-10)


class Twice(nn.Module):
    """One layer called twice, through two names."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(3, 3)
        self.again, self.head = self.one, nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.again(torch.tanh(self.one(x)))))


def test_uses_of_one_layer_are_positions_of_one_block(dense):
    torch.manual_seed(1)
    x, y = data(5, 3)
    model = sb.Model(Twice().double(), sb.Categorical())
    found = kfac(model, x, y)
    assert [b.slot for b in found.blocks] == [0, 1, 2, 3]
    bias = dense(model, x, y, ["one.bias"])
    torch.testing.assert_close(dense_block(found, slots_of(model)["one.bias"]), bias, rtol=1e-8, atol=1e-10)


def precision_of(found: Kronecker, model: sb.Model, prior: Tensor, scale: float) -> Tensor:
    slots = slots_of(model).values()
    parts = [
        scale * dense_block(found, slot) + p * torch.eye(slot.size)
        for slot, p in zip(slots, prior, strict=True)
    ]
    return torch.block_diag(*parts)


def test_the_gaussian_inverts_the_precision_block_by_block():
    torch.manual_seed(1)
    x, y = data(6, 4, 5, 4)
    layer = LowRankConv2d(4, 6, 3, rank=2, groups=2, diagonal=True)
    model = sb.Model(uneven(Picture(layer)), sb.Categorical())
    found = kfac(model, x, y)
    prior = torch.linspace(0.5, 3, len(slots_of(model)), dtype=torch.float64)
    exact = precision_of(found, model, prior, 0.5)
    gaussian = found.gaussian(model.layout.flatten(model.network), prior, 0.5 * ONE)
    torch.testing.assert_close(gaussian.variance, exact.inverse().diagonal(), rtol=1e-8, atol=1e-10)
    basis = torch.cat([torch.zeros(1, gaussian.noise_size), torch.eye(gaussian.noise_size)]).double()
    root = gaussian.sample(basis)[1:] - gaussian.mean
    torch.testing.assert_close(root.T @ root, exact.inverse(), rtol=1e-8, atol=1e-10)
    assert found.log_determinant(prior, 0.5 * ONE).item() == pytest.approx(exact.logdet().item(), rel=1e-9)
    single, alike = (found.log_determinant(p, ONE).item() for p in (prior[:1], prior[:1].expand(len(prior))))
    assert single == pytest.approx(alike)


def test_curvlinops_gives_the_same_factors():
    curvlinops = pytest.importorskip("curvlinops")
    torch.manual_seed(1)
    x, y = data(6, 2, 6, 5)
    network = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 4, 2, stride=2), nn.Tanh(), nn.Flatten(),
        nn.Linear(24, 3),
    ).double()  # fmt: skip
    model = sb.Model(network, sb.Categorical())
    weights = [network[0].weight, network[2].weight, network[5].weight]
    kind, setting = curvlinops.FisherType.TYPE2, curvlinops.KFACType.EXPAND
    operator = curvlinops.KFACLinearOperator(
        network, nn.CrossEntropyLoss(reduction="sum"), weights, [(x[:3], y[:3]), (x[3:], y[3:])],
        fisher_type=kind, kfac_approx=setting, separate_weight_and_bias=True, check_deterministic=False,
    )  # fmt: skip
    size = sum(w.numel() for w in weights)
    theirs = operator @ torch.eye(size, dtype=torch.float64)
    theirs = torch.as_tensor(theirs)
    found = kfac(model, x, y)
    ours = torch.block_diag(*[dense_block(found, slots_of(model)[f"{i}.weight"]) for i in (0, 2, 5)])
    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(2, 3, batch_first=True), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class Raw(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain, self.head = nn.Parameter(torch.ones(4, 2)), nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((x * self.gain).sum(1))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(9, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.table(x).mean(1))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attend, self.head = nn.MultiheadAttention(2, 1, batch_first=True), nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attend(x, x, x, need_weights=False)[0].mean(1))


REFUSED = {
    "LSTM": (Recurrent, "lstm.weight_ih_l0, a parameter of LSTM"),
    "raw": (Raw, "gain, a parameter of Raw"),
    "embedding": (Words, "table.weight, a parameter of Embedding"),
    "attention": (Attention, "attend.in_proj_weight, a parameter of MultiheadAttention"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_factors_is_named_with_what_to_do(case):
    kind, words = REFUSED[case]
    x = torch.arange(12).view(3, 4) % 9 if case == "embedding" else data(3, 4, 2)[0]
    model = sb.Model(kind().double(), sb.Categorical())
    with pytest.raises(ValueError, match=f"{words}.*DiagonalCurvature") as caught:
        kfac(model, x, torch.arange(3))
    assert "LastLayer()" in str(caught.value)


def test_a_layer_whose_weight_another_module_reads_is_refused():
    model = sb.Model(Attention().double(), sb.Categorical())
    with pytest.raises(ValueError, match="never calls its NonDynamicallyQuantizableLinear"):
        kfac(model, data(3, 4, 2)[0], torch.arange(3), subset="*out_proj*")


def test_layers_that_are_covered_inside_a_network_with_others_are_fine(dense):
    torch.manual_seed(1)
    x, y = data(1, 4, 2)
    model = sb.Model(Recurrent().double(), sb.Categorical())
    found = kfac(model, x, y, subset="head.*")
    for name in ("head.weight", "head.bias"):
        exact = dense(model, x, y, [name])
        torch.testing.assert_close(dense_block(found, slots_of(model)[name]), exact, rtol=1e-8, atol=1e-10)


def test_user_layers_that_compute_otherwise_are_not_taken_for_linear():
    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    model = sb.Model(nn.Sequential(Doubled(3, 3), nn.Tanh(), nn.Linear(3, 3)).double(), sb.Categorical())
    with pytest.raises(ValueError, match=r"0.weight, a parameter of Doubled \(0\)"):
        kfac(model, *data(3, 3))


def test_no_number_is_lost_in_the_eigenvalues():
    torch.manual_seed(1)
    x, y = data(8, 3)
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    found = kfac(sb.Model(network, sb.Categorical()), x, y)
    assert all((b.left_values >= 0).all() and (b.right_values >= 0).all() for b in found.blocks)
    assert math.isfinite(found.log_determinant(torch.full((4,), 1e-8).double(), ONE).item())
