"""Diagonal and full curvature against the dense matrix, on every likelihood and kind of network."""

import pytest
import torch
from torch import Tensor, nn

import singularbayes as sb
from singularbayes.curvature.diagonal import Diagonal
from singularbayes.curvature.expansion import Measured
from singularbayes.curvature.full import Full
from singularbayes.curvature.subset import choose, expand

SOURCE = torch.Generator().manual_seed(0)
X = torch.randn(12, 3, generator=SOURCE, dtype=torch.float64) * torch.tensor([1.0, 5.0, 0.2]).double()
CLASSES = (X[:, 0] > 0).long() + (X[:, 1] > 3).long()


def measured(structure, model: sb.Model, y: Tensor, x=X, subset="*") -> Measured:
    network = model.copy_network().eval()
    chosen = choose(model, network, subset, x[:2])

    def batches():
        return iter([(x[:5], y[:5]), (x[5:], y[5:])])  # the batches' sums add up

    expansion = expand(model, network, chosen, batches)
    structure.check(expansion)
    return structure.measure(expansion)


def mlp(outputs: int) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs)).double()


def problem(task: str) -> tuple[sb.Model, Tensor]:
    if task == "categorical":
        return sb.Model(mlp(3), sb.Categorical()), CLASSES
    if task == "bernoulli":
        return sb.Model(mlp(1), sb.Bernoulli(), deterministic="0.bias"), (X[:, 0] > 0).long()
    if task == "gaussian":
        return sb.Model(mlp(2), sb.Gaussian(noise=0.3)), X[:, :2] * 2
    if task == "learned noise":
        return sb.Model(mlp(1), sb.Gaussian(initial_noise=0.7)), X[:, 0] * 2
    torch.manual_seed(0)
    factorised = sb.factorize(mlp(3), rank=1)
    return sb.Model(factorised, sb.Categorical()), CLASSES


TASKS = ["categorical", "bernoulli", "gaussian", "learned noise", "factorised"]


@pytest.mark.parametrize("task", TASKS)
def test_both_are_the_dense_matrix(task, dense):
    model, y = problem(task)
    names = [slot.name for slot in model.layout.of_kind("belief")]
    exact = dense(model, X, y, names)
    full = measured(sb.FullCurvature(), model, y).curvature
    diagonal = measured(sb.DiagonalCurvature(), model, y).curvature
    torch.testing.assert_close(full.H, exact, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(diagonal.h, exact.diagonal(), rtol=1e-8, atol=1e-10)
    assert exact.abs().max() > 1e-2
    assert not torch.allclose(full.H / len(X), exact, rtol=0.1)  # the mutant: H of the mean NLL


def test_the_log_likelihood_of_the_pass_is_that_of_the_data():
    model, y = problem("categorical")
    tally = measured(sb.DiagonalCurvature(), model, y).tally
    exact = model.likelihood.log_prob(model.network(X), y, {}).sum().item()
    assert tally.log_likelihood == pytest.approx(exact, rel=1e-10)
    assert (tally.rows, tally.entries) == (12, 12)


@pytest.mark.parametrize("subset", ["2.*", "2.weight", "2.bias", sb.LastLayer()])
def test_a_last_layer_needs_no_derivative_and_gives_the_dense_block(subset, dense, monkeypatch):
    model, y = problem("categorical")
    chosen = choose(model, model.network, subset, X[:2])
    exact = dense(model, X, y, [slot.name for slot in chosen.slots])
    for name in ("diagonal", "full"):  # the way by features alone
        monkeypatch.setattr(f"singularbayes.curvature.{name}.bent_jacobians", None)
    full = measured(sb.FullCurvature(), model, y, subset=subset).curvature
    diagonal = measured(sb.DiagonalCurvature(), model, y, subset=subset).curvature
    torch.testing.assert_close(full.H, exact, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(diagonal.h, exact.diagonal(), rtol=1e-9, atol=1e-10)
    assert full.positions.tolist() == [i for s in chosen.slots for i in range(s.start, s.stop)]


class Steps(nn.Module):
    """A recurrent network, whose kernels have no batching rule."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(1, 2, batch_first=True), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x.unsqueeze(2))[0][:, -1])


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(2, 1, 3, dropout=0.1, batch_first=True, norm_first=True)
        self.widen, self.head = nn.Linear(1, 2), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.widen(x.unsqueeze(2))).mean(1))


@pytest.mark.parametrize("kind", [Steps, Attends])
def test_recurrent_and_attention_networks_have_both(kind, dense):
    torch.manual_seed(3)
    model = sb.Model(kind().double(), sb.Categorical())
    y = CLASSES.clamp(max=1)
    names = [slot.name for slot in model.layout.of_kind("belief")]
    exact = dense(model, X, y, names)
    flags = [p.requires_grad for p in model.network.parameters()]
    full = measured(sb.FullCurvature(), model, y).curvature
    torch.testing.assert_close(full.H, exact, rtol=1e-7, atol=1e-9)
    diagonal = measured(sb.DiagonalCurvature(), model, y).curvature
    torch.testing.assert_close(diagonal.h, exact.diagonal(), rtol=1e-7, atol=1e-9)
    assert flags == [p.requires_grad for p in model.network.parameters()]


def precisions(model: sb.Model) -> Tensor:
    return torch.linspace(0.5, 3.0, len(model.layout.of_kind("belief")), dtype=torch.float64)


def posterior_precision(exact: Tensor, model: sb.Model, scale: float) -> Tensor:
    slots = model.layout.of_kind("belief")
    prior = torch.cat([p.expand(s.size) for p, s in zip(precisions(model), slots, strict=True)])
    return scale * exact + torch.diag(prior)


@pytest.mark.parametrize("task", ["categorical", "factorised"])
def test_the_gaussians_invert_the_precision(task, dense):
    model, y = problem(task)
    exact = dense(model, X, y, [slot.name for slot in model.layout.of_kind("belief")])
    precision = posterior_precision(exact, model, 0.5)
    row, scale = model.layout.flatten(model.network), torch.tensor(0.5, dtype=torch.float64)
    full = measured(sb.FullCurvature(), model, y).curvature
    gaussian = full.gaussian(row, precisions(model), scale)
    torch.testing.assert_close(gaussian.covariance, precision.inverse(), rtol=1e-8, atol=1e-10)
    assert full.log_determinant(precisions(model), scale).item() == pytest.approx(precision.logdet().item())
    assert full.jitter(precisions(model), scale) == 0
    one = torch.tensor([1.7], dtype=torch.float64)  # one precision for all, by eigenvalues
    alike = one.expand(len(precisions(model)))
    assert full.log_determinant(one, scale).item() == pytest.approx(full.log_determinant(alike, scale).item())
    diagonal = measured(sb.DiagonalCurvature(), model, y).curvature
    independent = diagonal.gaussian(row, precisions(model), scale)
    torch.testing.assert_close(independent.variance, 1 / precision.diagonal(), rtol=1e-9, atol=1e-12)
    expected = precision.diagonal().log().sum().item()
    assert diagonal.log_determinant(precisions(model), scale).item() == pytest.approx(expected)
    found, same = (diagonal.log_determinant(p, scale).item() for p in (one, alike))
    assert found == pytest.approx(same)
    assert torch.equal(gaussian.mean, row)


def test_draws_use_the_cholesky_factors_inverse_on_the_right_side():
    # Laplace#268: draws by L^-1 in place of L^-T had the covariance [[.04, -.0352], [., .0365]]-like
    model = sb.Model(nn.Linear(1, 1).double(), sb.Gaussian(noise=0.5))
    slots = model.layout.of_kind("belief")
    matrix = torch.tensor([[24.0, 22.0], [22.0, 67.0]], dtype=torch.float64)
    full = Full(matrix, slots, torch.arange(2))
    ones = torch.ones(2, dtype=torch.float64), torch.ones((), dtype=torch.float64)
    gaussian = full.gaussian(torch.zeros(2).double(), *ones)
    expected = torch.tensor([[0.055921, -0.018092], [-0.018092, 0.020559]], dtype=torch.float64)
    torch.testing.assert_close(gaussian.covariance, expected, rtol=0, atol=1e-6)
    noise = torch.randn(200_000, 2, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    n = len(noise)
    drawn = torch.cov(gaussian.sample(noise).T)
    # 4 standard errors of each entry: sqrt((C_ii C_jj + C_ij^2) / n); false alarms 2e-4 for the three
    room = 4 * ((expected.diagonal().outer(expected.diagonal()) + expected.square()) / n).sqrt()
    assert ((drawn - expected).abs() < room).all()
    wrong = torch.linalg.cholesky(matrix + torch.eye(2)).inverse()  # the mutant
    assert ((torch.cov((noise @ wrong.T).T) - expected).abs() > room).any()


def test_a_singular_matrix_gets_jitter_that_is_told():
    model = sb.Model(nn.Linear(2, 1, bias=False).double(), sb.Gaussian(noise=1.0))
    v = torch.tensor([3.0, 1.0], dtype=torch.float64)
    full = Full(1e8 * torch.outer(v, v), model.layout.of_kind("belief"), torch.arange(2))
    tiny, one = torch.tensor([1e-20], dtype=torch.float64), torch.ones((), dtype=torch.float64)
    with pytest.warns(UserWarning, match="singular to rounding"):
        gaussian = full.gaussian(torch.zeros(2).double(), tiny, one)
    assert 0 < full.jitter(tiny, one) < 1e-3
    assert torch.isfinite(gaussian.factor).all()


def test_an_indefinite_matrix_gets_jitter_too():
    model = sb.Model(nn.Linear(2, 1, bias=False).double(), sb.Gaussian(noise=1.0))
    matrix = torch.diag(torch.tensor([4.0, -0.1], dtype=torch.float64))
    full = Full(matrix, model.layout.of_kind("belief"), torch.arange(2))
    prior, one = torch.tensor([0.01], dtype=torch.float64), torch.ones((), dtype=torch.float64)
    with pytest.warns(UserWarning, match="singular to rounding"):
        full.gaussian(torch.zeros(2).double(), prior, one)
    assert full.jitter(prior, one) > 0.09


STRUCTURES = [sb.FullCurvature(), sb.DiagonalCurvature(), sb.KroneckerCurvature()]


@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
def test_outputs_that_overflow_are_named(structure):
    # FullCurvature searched a jitter without end; the others failed in eigh, or in a check of scales
    torch.manual_seed(0)
    model = sb.Model(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), sb.Categorical())
    with torch.no_grad():
        model.network[0].weight.mul_(100)
    x = X.float()
    x[9] = 3e38
    with pytest.raises(ValueError, match=r"training rows 5 to 11 .* is not finite: .* train it again"):
        measured(structure, model, (X[:, 0] > 0).long(), x)


class Root(nn.Module):
    """Its output at 0 is finite, its derivative is not."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return (x.square() * self.w.sqrt()).sum(1)


@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
def test_derivatives_that_overflow_are_named(structure):
    network, x = Root(), X
    if isinstance(
        structure, sb.KroneckerCurvature
    ):  # which knows layers alone: a product of inputs overflows
        network, x = nn.Linear(3, 1), torch.full((12, 3), 1e25)
    model = sb.Model(network, sb.Gaussian(noise=1.0))
    with pytest.raises(ValueError, match="the curvature is not finite: derivatives"):
        measured(structure, model, torch.zeros(12), x)


def test_full_refuses_what_it_cannot_hold():
    model, y = problem("categorical")
    with pytest.raises(ValueError, match=r"FullCurvature of 31 entries .* above limit=30 entries; use Kron"):
        measured(sb.FullCurvature(limit=30), model, y)
    with pytest.raises(ValueError, match="limit must be a whole number"):
        sb.FullCurvature(limit=0)


def test_frozen_rest_and_named_subsets_are_the_same_block(dense):
    model, y = problem("categorical")
    found = measured(sb.FullCurvature(), model, y, subset=["0.weight", "2.bias"]).curvature
    torch.testing.assert_close(found.H, dense(model, X, y, ["0.weight", "2.bias"]), rtol=1e-8, atol=1e-10)
    model.network[2].requires_grad_(False)
    part = sb.Model(model.network, sb.Categorical())
    found = measured(sb.DiagonalCurvature(), part, y).curvature
    assert isinstance(found, Diagonal)
    exact = dense(part, X, y, ["0.weight", "0.bias"]).diagonal()
    torch.testing.assert_close(found.h, exact, rtol=1e-8, atol=1e-10)


def test_how_many_rows_are_taken_at_a_time_changes_nothing(dense, monkeypatch):
    monkeypatch.setattr("singularbayes.curvature.jacobian._ENTRIES", 3 * 31 * 2)  # two rows, then one
    model, y = problem("categorical")
    exact = dense(model, X, y, [slot.name for slot in model.layout.of_kind("belief")])
    torch.testing.assert_close(
        measured(sb.FullCurvature(), model, y).curvature.H, exact, rtol=1e-8, atol=1e-10
    )
