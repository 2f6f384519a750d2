"""A network as a density: value and gradient equal a loop over chains, whatever the layers and the data."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import singularbayes as sb
from singularbayes.methods import network_density
from singularbayes.methods.network_density import NetworkDensity
from singularbayes.methods.output_gradients import Autograd
from singularbayes.nn import LowRankLSTM
from singularbayes.sampling import Target
from singularbayes.sampling.trees import Divisible

CHAINS, N = 3, 23


class Recurrent(nn.Module):
    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell, self.head = cell, nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, -1])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.1, batch_first=True, norm_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.block(self.table(ids)).mean(1))


def tied() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), nn.Linear(4, 3))


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))


def factors() -> nn.Module:
    return sb.factorize(mlp(), rank={"0": 2, "2": 2}, diagonal=True)


def partly_fixed() -> nn.Module:
    network = mlp()
    network[2].weight.requires_grad_(False)
    bias = network[4].bias.detach().clone()
    del network[4].bias
    network[4].register_buffer("bias", bias)
    return network


def convolutional() -> nn.Module:
    network = nn.Sequential(
        nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 3, 3, padding=1), nn.BatchNorm1d(3), nn.ReLU(),
        nn.Flatten(), nn.Linear(12, 3),
    )  # fmt: skip
    network(5 * torch.randn(40, 4) + 1)  # statistics that are not the initial ones
    return network


def wide_inputs() -> Tensor:
    return torch.randn(N, 4, dtype=torch.float64) * torch.tensor([1.0, 10.0, 0.1, 1.0], dtype=torch.float64)


def classes() -> Tensor:
    return torch.arange(N) % 3


PROBLEMS = {
    "chain": lambda: (mlp(), sb.Categorical(), wide_inputs(), classes()),
    "factors": lambda: (factors(), sb.Categorical(temperature=2.0), wide_inputs(), classes()),
    "tied": lambda: (tied(), sb.Categorical(), wide_inputs(), classes()),
    "a frozen weight, a bias that is a buffer": lambda: (
        partly_fixed(), sb.Categorical(), wide_inputs(), classes(),
    ),
    "one logit": lambda: (nn.Linear(4, 1), sb.Bernoulli(), wide_inputs(), classes() % 2),
    "sequences through a chain": lambda: (
        nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)), sb.Gaussian(noise=0.5),
        torch.randn(N, 3, 4).double(), torch.randn(N, 3, 2).double(),
    ),
    "several outputs": lambda: (mlp(), sb.Gaussian(noise=0.3), wide_inputs(), torch.randn(N, 3).double()),
    "noise of each input": lambda: (
        nn.Linear(4, 2), sb.HeteroscedasticGaussian(), wide_inputs(), torch.randn(N).double(),
    ),
    "convolution with BatchNorm": lambda: (convolutional(), sb.Categorical(), wide_inputs(), classes()),
    "LSTM": lambda: (
        Recurrent(nn.LSTM(2, 4, batch_first=True)), sb.Gaussian(noise=0.5),
        torch.randn(N, 5, 2, dtype=torch.float64), torch.randn(N, 1).double(),
    ),
    "low-rank LSTM": lambda: (
        Recurrent(LowRankLSTM(2, 4, batch_first=True, rank=1)), sb.Gaussian(noise=0.5),
        torch.randn(N, 5, 2, dtype=torch.float64), torch.randn(N, 1).double(),
    ),
    "attention on tokens": lambda: (
        Attention(), sb.Categorical(), torch.randint(0, 7, (N, 5)), classes(),
    ),
}  # fmt: skip

PRIORS = {
    "chain": sb.ScaleMixture(pi=0.3, std1=0.7, std2=0.05),
    "factors": sb.PerParameter({"*.B": sb.Laplace(0.3), "*bias": sb.Normal(3.0), "*": sb.Normal(0.5)}),
    "tied": sb.Laplace(0.2),
}


def problem(
    name: str, dtype: torch.dtype = torch.float64, **choices: object
) -> tuple[sb.Model, Tensor, Tensor]:
    torch.manual_seed(3)
    network, likelihood, x, y = PROBLEMS[name]()
    model = sb.Model(network.to(dtype), likelihood, prior=PRIORS.get(name), **choices)
    x = x.to(dtype) if x.is_floating_point() else x
    return model, x, y.to(dtype) if y.is_floating_point() else y


def some_rows(model: sb.Model) -> Tensor:
    """Rows that differ in the belief and the point estimates; statistics are the network's."""
    row = model.layout.flatten(model.network, model.likelihood.parameters)
    rows = row.repeat(CHAINS, 1)
    moved = model.layout.trained
    rows[:, :moved] += 0.3 * torch.randn(CHAINS, moved, dtype=torch.float64).to(rows)
    return rows


def oracle(model: sb.Model, rows: Tensor, x: Tensor, y: Tensor, t: float = 1.0) -> tuple[Tensor, Tensor]:
    """One chain, one row of the data at a time: plain copies of the network, in float64."""
    values, gradients = [], []
    for row in rows.double():
        network = copy.deepcopy(model.network).double().eval()
        model.layout.write(network, row)
        inputs = x.double() if x.is_floating_point() else x
        numbers = model.layout.likelihood_views(row)
        total = torch.zeros((), dtype=torch.float64)
        for i in range(len(y)):
            outputs = network(inputs[i : i + 1])
            labels = model.likelihood.labels(outputs.shape, y[i : i + 1])
            total = total + model.likelihood.log_prob(outputs, labels, numbers).sum()
        belief = row[: model.layout.belief].clone().requires_grad_()
        prior = sum(p.log_prob(belief[block]).sum() for block, p in model.prior_blocks)
        (pull,) = torch.autograd.grad(prior, belief)
        parameters = dict(network.named_parameters())
        slots = model.layout.of_kind("belief")
        likelihood = torch.autograd.grad(total, [parameters[slot.name] for slot in slots])
        values.append((total / t + prior).detach())
        gradients.append(torch.cat([g.flatten() for g in likelihood]) / t + pull)
    return torch.stack(values), torch.stack(gradients)


@pytest.mark.parametrize("name", PROBLEMS)
def test_value_and_gradient_equal_a_loop_over_chains_and_data(name: str):
    model, x, y = problem(name)
    rows = some_rows(model)
    density = NetworkDensity(model, (x, y), rows, temperature=2.5)
    assert isinstance(density, Target)
    value, gradient = density(density.start)
    right, slope = oracle(model, rows, x, y, 2.5)
    torch.testing.assert_close(value, right, rtol=1e-10, atol=1e-9)
    torch.testing.assert_close(gradient, slope, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", ["chain", "convolution with BatchNorm", "LSTM", "attention on tokens"])
def test_pieces_of_the_data_give_what_the_whole_gives(name: str, monkeypatch: pytest.MonkeyPatch):
    model, x, y = problem(name)
    rows = some_rows(model)
    whole = NetworkDensity(model, (x, y), rows)
    assert len(list(whole._pieces(CHAINS))) == 1
    value, gradient = whole(whole.start)
    monkeypatch.setattr(network_density, "_BYTES", 5 * CHAINS * whole._bytes_per_row)
    assert [len(y) for _, y in whole._pieces(CHAINS)] == [5, 5, 5, 5, 3]
    for data in ((x, y), DataLoader(TensorDataset(x, y), batch_size=7), TensorDataset(x, y)):
        again, slope = NetworkDensity(model, data, rows)(whole.start)
        torch.testing.assert_close(again, value, rtol=1e-12, atol=1e-10)
        torch.testing.assert_close(slope, gradient, rtol=1e-10, atol=1e-10)


def test_memory_of_graphs_does_not_grow_with_the_data(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(network_density, "gradients_for", lambda *given: Autograd(*given[:3]))
    model, x, y = problem("chain", torch.float32)
    rows = some_rows(model)
    x, y = x.repeat(20_000, 1), y.repeat(20_000)
    density = NetworkDensity(model, (x, y), rows)
    graphs, of_pieces = [], density.gradients

    def pack(tensor: Tensor) -> Tensor:
        graphs[-1] += tensor.numel() * tensor.element_size()
        return tensor

    def watched(rows: Tensor, x: Tensor) -> tuple[Tensor, object]:
        graphs.append(0)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            return of_pieces(rows, x)

    density.gradients = watched
    density(density.start)
    assert max(graphs) < 65 * 2**20 < sum(graphs)


@pytest.mark.parametrize("name", ["chain", "factors", "tied", "convolution with BatchNorm", "LSTM"])
def test_a_subset_has_the_same_value_and_its_part_of_the_gradient(name: str):
    model, x, y = problem(name)
    rows = some_rows(model)
    whole = NetworkDensity(model, (x, y), rows)
    value, gradient = whole(whole.start)
    free = torch.randperm(model.layout.belief)[: model.layout.belief // 2]  # in any order
    part = NetworkDensity(model, (x, y), rows, free)
    assert part.dimension == len(free)
    again, slope = part(part.start)
    torch.testing.assert_close(again, value, rtol=1e-12, atol=1e-10)
    torch.testing.assert_close(slope, gradient[:, free], rtol=1e-10, atol=1e-10)


def test_what_is_not_free_stays_bitwise_as_it_was():
    model, x, y = problem("convolution with BatchNorm", torch.float32, deterministic="5.bias")
    rows = some_rows(model)
    free = torch.tensor([4, 1])
    density = NetworkDensity(model, (x, y), rows, free)
    moved = density.rows(density.start + torch.tensor([[1.0, 2.0]]))
    assert torch.equal(moved[:, free], rows[:, free] + torch.tensor([[1.0, 2.0]]))
    rest = torch.ones(rows.shape[1], dtype=torch.bool)
    rest[free] = False
    assert torch.equal(moved[:, rest], rows[:, rest])
    assert rest[model.layout.belief :].any(), "the row has no point estimate or statistic: a test of nothing"


def test_point_estimates_and_learned_noise_stay_and_count_for_each_chain():
    """Every chain has a noise level of its own: one noise for all would give other values."""
    torch.manual_seed(0)
    x, y = torch.randn(N, 4).double(), torch.randn(N).double()
    model = sb.Model(nn.Linear(4, 1).double(), sb.Gaussian(), deterministic="bias")
    rows = some_rows(model)
    assert len(rows[:, -1].unique()) == CHAINS
    density = NetworkDensity(model, (x, y), rows)
    assert density.dimension == 4
    value, gradient = density(density.start)
    right, slope = oracle(model, rows, x, y)
    torch.testing.assert_close(value, right)
    torch.testing.assert_close(gradient, slope)
    same = rows.clone()
    same[:, -1] = rows[0, -1]
    torch.testing.assert_close(
        NetworkDensity(model, (x, y), same)(density.start)[0], oracle(model, same, x, y)[0]
    )


def test_the_value_is_the_sum_and_not_the_mean_with_the_prior_once():
    """Conjugate regression of methods.md, section 9: log joint at 0, by hand."""
    x = torch.tensor([-1, -0.5, 0.5, 1.5, 2, 3], dtype=torch.float64).unsqueeze(1)
    y = torch.tensor([-1.1, -1, 0.2, 0.9, 1.4, 2.3], dtype=torch.float64)
    model = sb.Model(nn.Linear(1, 1).double(), sb.Gaussian(noise=0.5))
    value, gradient = NetworkDensity(model, (x, y), torch.zeros(1, 2).double())(torch.zeros(1, 2).double())
    normal = torch.distributions.Normal
    right = normal(0.0, 0.5).log_prob(y).sum() + 2 * normal(0.0, 1.0).log_prob(torch.zeros(())).double()
    torch.testing.assert_close(value[0], right, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(gradient[0], torch.stack([(x[:, 0] * y).sum(), y.sum()]) / 0.25)


def test_differences_of_energy_in_float32_are_those_of_float64():
    """20,000 rows, 30,000 nats: sums in float32 would be off by .002 a unit in the last place alone."""
    model, x, y = problem("chain", torch.float32)
    x, y = x.repeat(1000, 1), y.repeat(1000)
    rows = some_rows(model)
    single = NetworkDensity(model, (x, y), rows)
    wide = copy.deepcopy(model)
    wide = sb.Model(wide.network.double(), wide.likelihood, prior=wide.prior)
    double = NetworkDensity(wide, (x.double(), y), rows.double())
    near = single.start + 1e-3 * torch.randn(single.start.shape)
    found = single(near)[0] - single(single.start)[0]
    right = double(near.double())[0] - double(single.start.double())[0]
    assert found.dtype == torch.float64
    assert single(near)[0].abs().min() > 2e4
    assert (found - right).abs().max() < 0.01


def test_the_mean_of_estimates_from_batches_is_the_exact_value():
    """All pairs of 5 rows; with the prior weighed like the data it would be off by 1.5 log p(w)."""
    model, x, y = problem("chain")
    rows = some_rows(model)
    density = NetworkDensity(model, (x[:5], y[:5]), rows, temperature=2.0)
    pairs = torch.combinations(torch.arange(5))
    values, gradients = zip(*(density.estimate(density.start, pair) for pair in pairs), strict=True)
    value, gradient = density(density.start)
    torch.testing.assert_close(torch.stack(values).mean(0), value)
    torch.testing.assert_close(torch.stack(gradients).mean(0), gradient)
    assert not torch.allclose(values[0], value)
    streamed = NetworkDensity(model, DataLoader(TensorDataset(x, y), batch_size=7), rows)
    with pytest.raises(ValueError, match="data in memory"):
        streamed.estimate(density.start, pairs[0])


def test_chains_do_not_touch_each_other():
    """A chain of nan gives nan for itself alone, and a chain by itself what it gives among others."""
    model, x, y = problem("chain")
    rows = some_rows(model)
    density = NetworkDensity(model, (x, y), rows)
    value, gradient = density(density.start)
    broken = density.start.clone()
    broken[1, 0] = float("nan")
    again, slope = density(broken)
    assert again.isnan().tolist() == [False, True, False]
    assert bool(slope[1].isnan().any())
    for kept in (0, 2):
        torch.testing.assert_close(again[kept], value[kept])
        torch.testing.assert_close(slope[kept], gradient[kept])
    alone = NetworkDensity(model, (x, y), rows[2:])
    torch.testing.assert_close(alone(alone.start)[1][0], gradient[2])


@pytest.mark.parametrize("chains", [[2, 0], [1]])
def test_some_of_the_chains_have_the_numbers_that_they_have_among_all(chains: list[int]):
    """Noise, point estimates and entries that are not free are each chain's own."""
    torch.manual_seed(0)
    x, y = torch.randn(N, 4).double(), torch.randn(N).double()
    network = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    model = sb.Model(network, sb.Gaussian(), deterministic="2.bias")
    density = NetworkDensity(model, (x, y), some_rows(model), torch.tensor([7, 2, 12]))
    assert isinstance(density, Divisible)
    value, gradient = density(density.start)
    part = density.of(torch.tensor(chains))
    assert torch.equal(part.start, density.start[chains])
    again, slope = part(part.start)
    torch.testing.assert_close(again, value[chains], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(slope, gradient[chains], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(value[[0, 1]], value[[2, 0]])
    torch.testing.assert_close(density(density.start)[0], value)  # the whole one is as it was


def test_one_row_serves_any_number_of_chains():
    model, x, y = problem("chain")
    row = some_rows(model)[:1]
    density = NetworkDensity(model, (x, y), row)
    assert density(density.start.repeat(5, 1))[0].unique().numel() == 1
    assert density.of(torch.tensor([4, 2]))(density.start.repeat(2, 1))[0].unique().numel() == 1


def test_networks_and_positions_are_left_alone_whatever_the_grad_mode():
    model, x, y = problem("chain")
    rows = some_rows(model)
    density = NetworkDensity(model, (x, y), rows)
    position = density.start.requires_grad_()
    with torch.no_grad():
        value, gradient = density(position)
    assert not value.requires_grad
    assert not gradient.requires_grad
    assert position.grad is None
    again, slope = density(position)
    assert torch.equal(value, again), "gradients or values add up from call to call"
    assert torch.equal(gradient, slope)
    assert all(p.grad is None for p in model.network.parameters())


class Detached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).detach()


def test_bad_rows_and_settings_are_named():
    model, x, y = problem("chain")
    rows = some_rows(model)
    with pytest.raises(ValueError, match=r"rows have shape \(3, 92\), expected \(chains, 93\)"):
        NetworkDensity(model, (x, y), rows[:, 1:])
    with pytest.raises(ValueError, match="expected"):
        NetworkDensity(model, (x, y), rows[:0])
    broken = rows.clone()
    broken[1, 25] = float("nan")
    with pytest.raises(ValueError, match=r"0\.bias of the network that chain 1 starts at holds nan"):
        NetworkDensity(model, (x, y), broken)
    for free, said in (([93], r"0\.\.92"), ([2, 2], "twice"), ([], "at least one")):
        with pytest.raises(ValueError, match=said):
            NetworkDensity(model, (x, y), rows, torch.tensor(free, dtype=torch.long))
    with pytest.raises(ValueError, match="temperature must be positive"):
        NetworkDensity(model, (x, y), rows, temperature=0.0)
    density = NetworkDensity(model, (x, y), rows)
    with pytest.raises(ValueError, match="positions of 2 chains; this density holds 3 rows"):
        density(density.start[:2])
    learned = sb.Model(model.network, sb.Categorical(), prior=sb.ScaleMixture(learned=True))
    with pytest.raises(ValueError, match="needs MeanField"):
        NetworkDensity(learned, (x, y), rows)
    detached = sb.Model(Detached().double(), sb.Categorical())
    with pytest.raises(ValueError, match=r"no gradient in layer\.weight, layer\.bias"):
        NetworkDensity(detached, (x, y), some_rows(detached))
