"""Laplace's approximation: the contract, exact regression, both predictives, validation, laplace-torch."""

import functools
import math

import pytest
import torch
from torch import Tensor, nn

import singularbayes as sb
from singularbayes.distributions import DiagonalGaussian, FullGaussian, KroneckerGaussian
from singularbayes.testing import check_method

SOURCE = torch.Generator().manual_seed(0)
X = torch.randn(60, 3, generator=SOURCE) * torch.tensor([1.0, 5.0, 0.2])
Y = (X[:, 0] > 0).long() + (X[:, 1] > 3).long()
STRUCTURES = {
    "diagonal": sb.DiagonalCurvature(),
    "kronecker": sb.KroneckerCurvature(),
    "full": sb.FullCurvature(),
}
EXEMPT = ("another seed, another fit",)  # nothing in the fit is random


def mlp() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 3))


def train(model: sb.Model, y: Tensor = Y) -> sb.Model:
    fitted = sb.MAP(epochs=40, learning_rate=0.02, batch_size=60).fit(model, (X.to(model.dtype), y))
    return model.started_at(fitted)


@functools.cache
def trained() -> sb.Model:
    return train(sb.Model(mlp(), sb.Categorical()))


@pytest.mark.parametrize("structure", STRUCTURES.values(), ids=STRUCTURES)
def test_the_contract_holds(structure):
    check_method(sb.LaplaceApproximation(structure=structure), exempt=EXEMPT)


def test_the_contract_holds_for_drawn_weights():
    check_method(sb.LaplaceApproximation(linearized=False), exempt=EXEMPT)


def low_rank() -> nn.Module:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh())
    return sb.factorize(nn.Sequential(*network, nn.Linear(6, 3)), rank={"3": 2, "5": 1})


@pytest.mark.parametrize("subset", ["*", sb.LastLayer()], ids=["all", "last layer"])
def test_the_contract_holds_on_factors(subset):
    method = sb.LaplaceApproximation(subset=subset)
    check_method(method, network=low_rank(), data=(X, Y), exempt=EXEMPT)
    posterior = method.fit(sb.Model(low_rank(), sb.Categorical()), (X, Y))
    body = {"0.weight", "0.bias", "3.A", "3.B", "3.bias"} if subset == "*" else set()
    assert set(posterior.info["subset"]) == {"5.A", "5.B", "5.bias"} | body
    assert posterior.info["last_layer"] == (None if subset == "*" else "5")


@pytest.mark.parametrize(
    ("structure", "kind"),
    list(zip(STRUCTURES.values(), (DiagonalGaussian, KroneckerGaussian, FullGaussian), strict=True)),
)
def test_what_the_subset_leaves_out_is_a_point(structure, kind):
    network = low_rank()
    model = train(sb.Model(network, sb.Categorical(), deterministic="3.bias"))
    posterior = sb.LaplaceApproximation(structure=structure, subset=["0.*", "5.A"]).fit(model, (X, Y))
    assert isinstance(posterior.distribution, kind)
    chosen = {"0.weight", "0.bias", "5.A"}
    for slot in posterior.layout.slots:
        variance = posterior.distribution.variance[slot.start : slot.stop]
        assert (variance > 0).all() if slot.name in chosen else (variance == 0).all(), slot.name
    mean = model.layout.flatten(model.network)
    assert torch.equal(posterior.distribution.mean, mean)  # weights and running statistics of the start


# Exact regression


def conjugate() -> tuple[sb.Model, Tensor, Tensor]:
    x = torch.tensor([[-1.0], [-0.5], [0.5], [1.5], [2.0], [3.0]], dtype=torch.float64)
    network = nn.Linear(1, 1).double()
    with torch.no_grad():
        network.weight.fill_(0.853125)
        network.bias.fill_(-0.31875)
    y = torch.tensor([-1.1, -1.0, 0.2, 0.9, 1.4, 2.3], dtype=torch.float64)
    return sb.Model(network, sb.Gaussian(noise=0.5)), x, y


def test_laplace_is_exact_on_the_conjugate_regression():
    model, x, y = conjugate()
    posterior = sb.LaplaceApproximation(structure=sb.FullCurvature()).fit(model, (x, y))
    expected = torch.tensor([[0.020559, -0.018092], [-0.018092, 0.055921]], dtype=torch.float64)
    torch.testing.assert_close(posterior.distribution.covariance, expected, rtol=0, atol=1e-6)
    assert posterior.info["log_marginal_likelihood"] == pytest.approx(-5.492971647, abs=1e-8)
    at = torch.tensor([[-5.0]], dtype=torch.float64)
    found, n = posterior.predict(at, draws=4000, seed=2).epistemic.item(), 4000
    # 4 standard errors of a variance, sqrt(2 / n); false alarm 6e-5
    assert abs(found - 0.750822) < 4 * 0.750822 * math.sqrt(2 / n)
    diagonal = sb.LaplaceApproximation(structure=sb.DiagonalCurvature()).fit(model, (x, y))
    wrong = diagonal.predict(at, draws=4000, seed=2).epistemic.item()
    assert abs(wrong - 0.407647) < 4 * 0.407647 * math.sqrt(2 / n)


# The two predictives


@pytest.mark.parametrize("structure", STRUCTURES.values(), ids=STRUCTURES)
def test_the_linearised_predictive_has_the_variance_of_its_jacobian(structure):
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    x, y = X.double(), X[:, 0].double()
    model = train(sb.Model(network, sb.Gaussian(noise=0.3)), y)
    posterior = sb.LaplaceApproximation(structure=structure).fit(model, (x, y))
    names = [slot.name for slot in model.layout.of_kind("belief")]
    values = tuple(dict(model.network.named_parameters())[name].detach() for name in names)
    test = 2 * x[:3]

    def f(*given: Tensor) -> Tensor:
        return torch.func.functional_call(model.network, dict(zip(names, given, strict=True)), (test,))

    slope = torch.cat([j.flatten(2)[:, 0] for j in torch.autograd.functional.jacobian(f, values)], 1)
    unit = torch.eye(posterior.distribution.noise_size, dtype=torch.float64)
    rows = posterior.distribution.sample(unit)  # mean + each column of a root of the covariance
    steps = rows - posterior.distribution.mean
    exact = (slope @ steps.T @ steps @ slope.T).diagonal()
    centre = model.network(test)[:, 0].detach()
    found = (posterior.functions(rows, test)[:, :, 0] - centre).square().sum(0)
    torch.testing.assert_close(found, exact, rtol=1e-8, atol=1e-12)
    sampled = sb.LaplaceApproximation(structure=structure, linearized=False).fit(model, (x, y))
    spread = (sampled.functions(rows, test)[:, :, 0] - centre).square().sum(0)
    assert not torch.allclose(spread, exact, rtol=0.01)
    assert torch.equal(sampled.draw(3), posterior.draw(3))


def test_a_stock_last_layer_needs_no_linearisation():
    model = trained()
    methods = [sb.LaplaceApproximation(subset=sb.LastLayer(), linearized=flag) for flag in (True, False)]
    one, two = (method.fit(model, (X, Y)) for method in methods)
    assert type(one.network) is nn.Sequential
    assert torch.equal(one.predict(X, draws=5).mean, two.predict(X, draws=5).mean)
    everywhere = sb.LaplaceApproximation().fit(model, (X, Y))
    assert type(everywhere.network) is not nn.Sequential


# Settings, data, errors


def test_batches_and_forms_of_data_do_not_change_the_result():
    model = trained()
    one = sb.LaplaceApproximation(batch_size=7).fit(model, (X, Y))
    two = sb.LaplaceApproximation().fit(model, [(X[:25], Y[:25]), (X[25:], Y[25:])])
    three = sb.LaplaceApproximation().fit(model, torch.utils.data.TensorDataset(X, Y), seed=9)
    for other in (two, three):
        torch.testing.assert_close(one.distribution.variance, other.distribution.variance, rtol=1e-4, atol=0)
        assert one.info["log_marginal_likelihood"] == pytest.approx(
            other.info["log_marginal_likelihood"], rel=1e-5
        )


def test_dropout_and_batch_norm_are_in_eval_mode():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Tanh(), nn.Linear(6, 3))
    model = train(sb.Model(network, sb.Categorical()))
    model.network.train()
    before = {name: tensor.clone() for name, tensor in model.network.state_dict().items()}
    one, two = (sb.LaplaceApproximation(structure=s).fit(model, (X, Y)) for s in (sb.FullCurvature(),) * 2)
    assert torch.equal(one.distribution.factor, two.distribution.factor)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.network.state_dict().items())
    assert model.network.training


def test_a_wider_prior_leaves_a_wider_posterior():
    network = trained().network
    fits = [
        sb.LaplaceApproximation(subset="2.weight").fit(
            sb.Model(
                network, sb.Categorical(), prior=sb.PerParameter({"2.*": sb.Normal(std), "*": sb.Laplace()})
            ),
            (X, Y),
        )
        for std in (0.1, 1.0)
    ]
    assert fits[0].info["prior_precision"] == pytest.approx({"2.weight": 100.0})
    assert (fits[1].distribution.variance >= fits[0].distribution.variance).all()
    assert (fits[0].distribution.variance < 0.1**2).all()


def test_a_prior_that_is_not_normal_is_named():
    model = sb.Model(mlp(), sb.Categorical(), prior=sb.ScaleMixture())
    with pytest.raises(ValueError, match=r"needs the prior Normal\(std\) on 0.weight, got ScaleMixture"):
        sb.LaplaceApproximation().fit(model, (X, Y))


def test_a_linearised_network_is_named():
    model = sb.Model(sb.linearize(mlp()), sb.Categorical())
    with pytest.raises(ValueError, match="linearised already"):
        sb.LaplaceApproximation().fit(model, (X, Y))


def test_bad_settings_are_named(unchecked):
    with pytest.raises(TypeError, match="structure must be an object such as KroneckerCurvature"):
        sb.LaplaceApproximation(structure=sb.FullCurvature)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"prior_precision must be None .* a number is Normal\(std\)"):
        sb.LaplaceApproximation(prior_precision=3.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="subset must be patterns or an object such as LastLayer"):
        sb.LaplaceApproximation(subset=sb.LastLayer)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="batch_size must be a whole number"):
        sb.LaplaceApproximation(batch_size=0)
    with pytest.raises(TypeError, match=r"a method fits an sb\.Model"):
        sb.LaplaceApproximation().fit(mlp(), (X, Y))  # type: ignore[arg-type]


class Curved(sb.Gaussian):
    """Errors of a Student t: its NLL is not convex."""

    def log_prob(self, outputs: Tensor, y: Tensor, parameters) -> Tensor:
        return -2 * torch.log1p((outputs.reshape(y.shape) - y).square())


class Own:
    """A likelihood of the user's own."""

    def __init__(self) -> None:
        self.like = Curved(noise=1.0)

    def __getattr__(self, name: str):
        if name == "like":
            raise AttributeError(name)
        return getattr(self.like, name)


def test_an_indefinite_likelihood_is_mended_and_told():
    torch.manual_seed(0)
    model = sb.Model(nn.Linear(3, 1), Own())
    with pytest.warns(UserWarning, match=r"Hessian is indefinite at \d+ of 60 rows"):
        posterior = sb.LaplaceApproximation(structure=sb.FullCurvature()).fit(model, (X, 5 * X[:, 0]))
    assert 0 < posterior.info["projected_rows"] <= 60
    assert torch.isfinite(posterior.distribution.factor).all()


# Validation


def test_validation_takes_the_best_of_its_grid():
    source = torch.Generator().manual_seed(1)
    x = torch.randn(8, 3, generator=source) * torch.tensor([1.0, 5.0, 0.2])
    far = torch.randn(40, 3, generator=source) * torch.tensor([1.0, 5.0, 4.0])
    torch.manual_seed(0)
    network = nn.Linear(3, 1)
    y, held = network(x)[:, 0].detach(), network(far)[:, 0].detach()
    held = held + 0.6 * torch.randn(40, generator=source)
    choice = sb.Validation(grid=(0.01, 0.1, 1.0, 10.0, 100.0))
    method = sb.LaplaceApproximation(prior_precision=choice)
    posterior = method.fit(sb.Model(network, sb.Gaussian(noise=0.3)), (x, y), (far, held), seed=3)
    scores = {}
    for p in choice.grid:
        fixed = sb.Model(network, sb.Gaussian(noise=0.3), prior=sb.Normal(p**-0.5))
        predictive = sb.LaplaceApproximation().fit(fixed, (x, y)).predict(far, draws=64, seed=3)
        scores[p] = predictive.log_prob(held).mean().item()
    best = max(scores, key=scores.get)
    assert best in choice.grid[1:-1]
    assert posterior.info["prior_precision"] == pytest.approx({"weight": best, "bias": best})


def test_validation_without_data_and_at_the_grids_end_is_told():
    model = trained()
    method = sb.LaplaceApproximation(prior_precision=sb.Validation(grid=(1e6, 1e7)))
    with pytest.raises(ValueError, match=r"Validation\(\) needs validation data"):
        method.fit(model, (X, Y))
    with pytest.warns(UserWarning, match="the grid's end"):
        method.fit(model, (X, Y), (X, Y))
    for grid in ((), (1.0, 0.5), (0.0, 1.0)):
        with pytest.raises(ValueError, match="grid must be positive precisions in ascending order"):
            sb.Validation(grid=grid)
    with pytest.raises(ValueError, match="draws must be a whole number"):
        sb.Validation(draws=0)


# laplace-torch


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_laplace_torch_gives_the_same(structure, task):
    laplace = pytest.importorskip("laplace")
    torch.manual_seed(1)
    width = 3 if task == "classification" else 2
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, width)).double()
    x = X.double()
    y, likelihood = (Y, sb.Categorical()) if width == 3 else (x[:, :2] * 0.3, sb.Gaussian(noise=0.4))
    model = sb.Model(network, likelihood, prior=sb.Normal(0.5))
    ours = sb.LaplaceApproximation(structure=STRUCTURES[structure]).fit(model, (x, y))
    kinds = {"diagonal": laplace.DiagLaplace, "kronecker": laplace.KronLaplace, "full": laplace.FullLaplace}
    theirs = kinds[structure](
        model.copy_network(), task, sigma_noise=1.0 if width == 3 else 0.4, prior_precision=4.0,
        backend=laplace.curvature.CurvlinopsGGN, backend_kwargs={"stochastic": False},
    )  # fmt: skip
    theirs.fit(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=60))
    if structure == "full":
        exact = theirs.posterior_covariance  # they keep prior and noise in float32
        torch.testing.assert_close(ours.distribution.covariance, exact, rtol=1e-3, atol=1e-6)
    if structure == "diagonal":
        torch.testing.assert_close(
            ours.distribution.variance, theirs.posterior_variance, rtol=1e-5, atol=1e-9
        )
    expected = theirs.log_marginal_likelihood().item()
    assert ours.info["log_marginal_likelihood"] == pytest.approx(expected, rel=1e-5)


def test_info_is_plain_and_survives_a_file(tmp_path):
    model = trained()
    posterior = sb.LaplaceApproximation(subset=sb.LastLayer(), structure=sb.FullCurvature()).fit(
        model, (X, Y)
    )
    posterior.save(tmp_path)
    loaded = sb.load(tmp_path, mlp())
    assert loaded.info["log_marginal_likelihood"] == posterior.info["log_marginal_likelihood"]
    assert loaded.info["subset"] == ["2.weight", "2.bias"]
    assert loaded.info["jitter"] == 0
    assert posterior.info["numbers"] == sum(t.numel() for t in posterior.distribution.tensors().values())
    assert torch.equal(loaded.predict(X, draws=3).mean, posterior.predict(X, draws=3).mean)


@pytest.mark.parametrize("structure", [sb.FullCurvature(), sb.DiagonalCurvature(), sb.KroneckerCurvature()])
def test_weights_that_are_not_finite_are_named(structure):
    """The full one looked for the end of a search without end; the diagonal one spoke of scales."""
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    with torch.no_grad():
        net[0].bias[1] = torch.nan
    data = torch.ones(6, 3), torch.tensor([0, 1] * 3)
    with pytest.raises(ValueError, match=r"0\.bias of the network has entries that are nan.*finite weights"):
        sb.LaplaceApproximation(structure=structure).fit(sb.Model(net, sb.Categorical()), data)


def test_a_network_that_overflows_on_the_data_is_named():
    """It was a posterior whose predictions are nan."""
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    with torch.no_grad():
        net[2].weight.fill_(3e38)
    data = torch.linspace(-2, 2, 18).view(6, 3), torch.tensor([0, 1] * 3)
    method = sb.LaplaceApproximation(structure=sb.DiagonalCurvature())
    with pytest.raises(ValueError, match="training rows 0 to 5 or its curvature is not finite"):
        method.fit(sb.Model(net, sb.Categorical()), data)


def test_a_learned_noise_that_no_training_has_moved_is_warned_of():
    """A network of one's own, trained on squared errors of 0.1, was predicted with a noise of 1."""
    x = torch.linspace(-1, 1, 32, dtype=torch.float64).unsqueeze(1)
    y = x + 0.1 * torch.randn(32, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    net = nn.Linear(1, 1).double()
    with torch.no_grad():
        net.weight.fill_(1.0)
        net.bias.zero_()
    model = sb.Model(net, sb.Gaussian())
    with pytest.warns(
        UserWarning, match=r"stands where learning would start.*MarginalLikelihood\(noise=True"
    ):
        sb.LaplaceApproximation().fit(model, (x, y))
    found = sb.LaplaceApproximation(prior_precision=sb.MarginalLikelihood(noise=True)).fit(model, (x, y))
    assert 0.07 < found.info["noise"] < 0.13
    trained = model.started_at(sb.MAP(epochs=1).fit(model, (x, y)))
    sb.LaplaceApproximation().fit(trained, (x, y))  # a warning would be an error
