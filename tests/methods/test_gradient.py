"""Cheaper gradients of MeanField: the same mean, less variance, finite everywhere, refused where invalid."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import singularbayes as sb
from singularbayes import Gradient
from singularbayes.divergence import KL, Family
from singularbayes.methods import local
from singularbayes.methods.learner import prepare
from singularbayes.methods.mean_field import BuildMeanField
from singularbayes.methods.training import Run
from singularbayes.nn import LowRankLinear
from singularbayes.priors import Normal, ScaleMixture
from singularbayes.testing import check_method

SOURCE = torch.Generator().manual_seed(1)
X = torch.randn(12, 4, generator=SOURCE).double() * torch.tensor([1.0, 3.0, 0.1, 1.0])
Y = (X[:, 0] + X[:, 1] / 3 > 0).long()
DRAWS = 600


def dense() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).double()


def low_rank(diagonal: bool = False) -> nn.Module:
    torch.manual_seed(2)
    layers = LowRankLinear(4, 6, 2, diagonal=diagonal), nn.Tanh(), LowRankLinear(6, 2, 1, diagonal=diagonal)
    return nn.Sequential(*layers).double()


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "dense": dense,
    "low rank": low_rank,
    "diagonal": lambda: low_rank(diagonal=True),
}


def run_of(network: nn.Module, gradient: Gradient, x=X, y=Y, std: float = 0.5, **choice) -> Run:
    method = sb.MeanField(gradient=gradient, kl=KL.BOUND, initial_std=std)
    model = sb.Model(network, sb.Categorical(), prior=Normal(), **choice)
    data = prepare(model, None, (x, y), None, model.device)
    return Run(model, method, BuildMeanField(method), data, model.device, 0)


def gradients(run: Run, draws: int = DRAWS, x=X, y=Y, seed: int = 0) -> Tensor:
    """One row a draw: what a step leaves, without moving."""
    run.optimizer.step = lambda *_: None  # type: ignore[method-assign]
    run.bound.network.train()
    noise = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(draws):
        run.step(x, y, 0.01, 1.0, noise)
        rows.append(run.learner.gradient.clone())
    return torch.stack(rows)


def deviation(one: Tensor, two: Tensor) -> float:
    """Largest difference of the means in their standard error."""
    error = (one.var(0) / len(one) + two.var(0) / len(two)).sqrt()
    return ((one.mean(0) - two.mean(0)).abs() / error.clamp_min(1e-12)).max().item()


# 4 standard errors, two-sided, normal (600 draws): 6.3e-5 a number. Up to 208 numbers are compared at once:
# in each comparison a false alarm at most once in 75 seeds; the seeds are fixed.
LIMIT = 4.0


@pytest.mark.parametrize("network", NETWORKS)
def test_every_estimator_has_the_same_mean_and_less_variance(network):
    drawn = gradients(run_of(NETWORKS[network](), Gradient.DRAW))
    for gradient in (Gradient.LOCAL, Gradient.ANTITHETIC):
        other = gradients(run_of(NETWORKS[network](), gradient), seed=1)
        assert deviation(drawn, other) < LIMIT, gradient
        assert other.var(0).sum() < 0.7 * drawn.var(0).sum(), gradient


def test_points_get_the_same_gradient_from_every_estimator():
    drawn = gradients(run_of(dense(), Gradient.DRAW, deterministic="*bias"))
    for gradient in (Gradient.LOCAL, Gradient.ANTITHETIC):
        other = gradients(run_of(dense(), gradient, deterministic="*bias"), seed=1)
        assert deviation(drawn, other) < LIMIT, gradient


def shared_row(self: local.LocalLayer, mean: Tensor, variance: Tensor | None) -> Tensor:
    """One noise for all outputs of an example."""
    noise = torch.empty(len(mean), 1, dtype=mean.dtype).normal_(generator=self.generator)
    return mean if variance is None else mean + noise * variance.clamp_min(1e-30).sqrt()


def std_for_variance(self: local.LocalLayer, mean: Tensor, variance: Tensor | None) -> Tensor:
    noise = torch.empty_like(mean).normal_(generator=self.generator)
    return mean if variance is None else mean + noise * variance


@pytest.mark.parametrize("wrong", [shared_row, std_for_variance])
def test_wrong_noise_has_another_mean(wrong, monkeypatch):
    drawn = gradients(run_of(low_rank(), Gradient.DRAW, std=1.5))
    monkeypatch.setattr(local.LocalLayer, "_noisy", wrong)
    assert deviation(drawn, gradients(run_of(low_rank(), Gradient.LOCAL, std=1.5), seed=1)) > 2 * LIMIT


@pytest.mark.parametrize("network", NETWORKS)
def test_outputs_have_the_beliefs_mean_and_variance_given_the_stage_before(network):
    # one layer, many equal examples: each is a draw of its own
    layer = NETWORKS[network]()[0]
    x = X[:1].expand(20_000, -1)
    run = run_of(layer, Gradient.LOCAL, x=X[:, :4], y=Y)
    learner = run.learner
    learner.draw(torch.Generator().manual_seed(0))
    outputs = run.bound.network(x).detach()
    distribution = learner.distribution()
    model = sb.Model(NETWORKS[network]()[0], sb.Categorical())
    noise = torch.randn(20_000, model.layout.size, generator=torch.Generator().manual_seed(1)).double()
    views = model.layout.views(distribution.mean + distribution.std * noise)
    if network == "dense":
        drawn = torch.einsum("soi,i->so", views["weight"], X[0])
    else:
        h = torch.einsum("sir,i->sr", views["B"], X[0]) * views.get("s", 1.0)
        drawn = torch.einsum("sor,sr->so", views["A"], h)
    drawn = drawn + views["bias"]
    # 12 comparisons at 4 standard errors: a false alarm once in 1,300 seeds
    assert deviation(outputs, drawn) < 4
    assert deviation((outputs - outputs.mean(0)).square(), (drawn - drawn.mean(0)).square()) < 4


@pytest.mark.parametrize("network", NETWORKS)
def test_an_example_of_zeros_has_finite_gradients(network):
    # trap 11: the root of a variance of 0 gave nan gradients
    x = X.clone()
    x[0] = 0
    net = NETWORKS[network]()
    net = nn.Sequential(*[nn.ReLU() if isinstance(layer, nn.Tanh) else layer for layer in net])
    for each in (x, torch.zeros_like(x)):
        rows = gradients(run_of(net, Gradient.LOCAL, deterministic="*bias"), draws=3, x=each)
        assert torch.isfinite(rows).all()


class Shared(nn.Module):
    """A layer called twice, a tie, a layer on tokens, and one that every example passes once."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.twice, self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.two.weight = self.one.weight
        self.tokens, self.head = nn.Linear(1, 3), nn.Linear(7, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.twice(torch.tanh(self.twice(x))))
        h = torch.tanh(self.two(torch.tanh(self.one(h))))
        return self.head(torch.cat([h, torch.tanh(self.tokens(x.unsqueeze(-1))).mean(1)], 1))


def test_shared_weights_keep_their_draws():
    run = run_of(Shared().double(), Gradient.LOCAL)
    assert {layer.name for layer in run.learner.specials} == {"head"}
    rows = gradients(run)
    drawn = gradients(run_of(Shared().double(), Gradient.DRAW), seed=1)
    assert deviation(drawn, rows) < LIMIT


class Later(nn.Module):
    """Calls its layer again once it trains for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.again = nn.Linear(4, 4), False

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.layer(x)) if self.again else self.layer(x)


def test_a_layer_that_is_suddenly_called_twice_is_an_error():
    run = run_of(Later().double(), Gradient.LOCAL)
    run.bound.network.again = True  # type: ignore[assignment]
    with pytest.raises(RuntimeError, match=r"layer layer was called once .* again in one step.*DRAW"):
        gradients(run, draws=1)


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)), "1, a batch normalisation"),
        (nn.Sequential(nn.Unflatten(1, (4, 1)), nn.Linear(1, 2), nn.Flatten()), "has none"),
    ],
)
def test_networks_without_a_place_for_it_are_refused(network, words):
    with pytest.raises(ValueError, match=words):
        run_of(network.double(), Gradient.LOCAL)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"gradient": Gradient.LOCAL, "kl": KL.MONTE_CARLO}, "MONTE_CARLO"),
        ({"gradient": Gradient.ANTITHETIC, "kl": KL.MONTE_CARLO}, "MONTE_CARLO"),
        ({"gradient": Gradient.LOCAL, "family": Family.LAPLACE}, "gaussian"),
        ({"gradient": Gradient.LOCAL, "compile": True}, "compile=False"),
    ],
)
def test_settings_that_exclude_each_other_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        sb.MeanField(**settings)


@pytest.mark.parametrize("gradient", [Gradient.LOCAL, Gradient.ANTITHETIC])
def test_a_learned_prior_is_refused_and_a_mixture_takes_the_bound(gradient):
    method = sb.MeanField(gradient=gradient)
    assert method.estimator(ScaleMixture()) is KL.BOUND
    assert method.estimator(Normal()) is KL.CLOSED
    with pytest.raises(ValueError, match=r"gradient=sb.Gradient.DRAW"):
        method.estimator(ScaleMixture(learned=True))


@pytest.mark.parametrize("gradient", [Gradient.LOCAL, Gradient.ANTITHETIC])
def test_the_contract_holds(gradient):
    check_method(sb.MeanField(epochs=2, gradient=gradient))


@pytest.mark.parametrize(
    ("gradient", "epochs", "copies"), [(Gradient.LOCAL, 600, 50), (Gradient.ANTITHETIC, 2000, 1)]
)
def test_the_closed_form_optimum_is_reached(gradient, epochs, copies):
    # The conjugate regression of tests/methods/test_mean_field.py, trap 5. Each point fifty times with fifty
    # times the noise variance has the same posterior; local draws, one for each, then average out. Over seeds
    # the variances scatter by .5% (local) and some 6% (antithetic: one draw a step).
    x = torch.tensor([[-1.0], [-0.5], [0.5], [1.5], [2.0], [3.0]]).repeat(copies, 1)
    y = torch.tensor([-1.1, -1.0, 0.2, 0.9, 1.4, 2.3]).repeat(copies)
    torch.manual_seed(0)
    model = sb.Model(nn.Linear(1, 1), sb.Gaussian(noise=0.5 * copies**0.5), prior=Normal(1.0))
    settings = {"epochs": epochs, "batch_size": len(x), "learning_rate": 0.02, "initial_std": 0.3}
    posterior = sb.MeanField(**settings, schedule=sb.Schedule.COSINE, gradient=gradient).fit(model, (x, y))
    weight, bias = posterior.distribution.mean.tolist()
    variances = posterior.distribution.variance.tolist()
    assert (weight, bias) == pytest.approx((0.853125, -0.31875), abs=0.02)
    assert variances == pytest.approx([0.0147058824, 0.04], rel=0.1)


def test_antithetic_rows_of_a_table_are_mirrored():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Embedding(30, 3), nn.Flatten(), nn.Linear(6, 2)).double()
    ids, y = torch.tensor([[1, 2], [2, 5], [1, 9]]), torch.tensor([0, 1, 1])
    one = gradients(run_of(network, Gradient.DRAW, x=ids, y=y), x=ids, y=y)
    two = gradients(run_of(network, Gradient.ANTITHETIC, x=ids, y=y), x=ids, y=y, seed=1)
    assert deviation(one, two) < LIMIT
    assert two.var(0).sum() < 0.5 * one.var(0).sum()


@pytest.mark.parametrize("gradient", [Gradient.ANTITHETIC, Gradient.DRAW])
def test_an_antithetic_step_of_a_quadratic_has_no_noise_in_its_means(gradient):
    # With loss 1/2 (w - w*)^T H (w - w*) the gradients at mean +- sigma eps are H (mean - w*) +- H sigma eps:
    # their mean has no noise, half their difference times eps is the gradient for sigma.
    network = nn.Linear(4, 1).double()
    model = sb.Model(network, sb.Gaussian(noise=1.0), prior=Normal())
    y = X[:, 0] - X[:, 1]
    method = sb.MeanField(gradient=gradient, initial_std=0.5)
    data = prepare(model, None, (X, y), None, model.device)
    run = Run(model, method, BuildMeanField(method), data, model.device, 0)
    design = torch.cat([X, torch.ones(len(X), 1).double()], 1)
    hessian = design.T @ design / len(X)
    learner = run.learner
    for seed in range(5):
        (row,) = gradients(run, draws=1, y=data.train.y, seed=seed)
        mean, sigma, noise = learner.mean, learner.sigma, learner.noise
        by_mean = design.T @ (design @ mean - y) / len(X) + 0.01 * mean
        by_sigma = noise * (hessian @ (sigma * noise)) + 0.01 * (sigma - 1 / sigma)
        expected = torch.cat([by_mean, by_sigma * -torch.expm1(-sigma)])
        right = torch.isclose(row, expected, rtol=1e-10, atol=1e-12)
        assert right.all() if gradient is Gradient.ANTITHETIC else not right.any()
