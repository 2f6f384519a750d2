"""SNGP: the closed form on its own features, the bounds after training, and the contract."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import singularbayes as sb
from singularbayes.distributions import KroneckerGaussian
from singularbayes.nn import RandomFeatureHead
from singularbayes.nn.spectral import SpectralBound
from singularbayes.posterior import Posterior
from singularbayes.testing import check_method

X = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 5.0, 0.1, 1.0])
LABELS = (X[:, 0] > 0).long() + (X[:, 1] > 4).long()
VALUES = X[:, 0].sin() + 0.1 * torch.randn(60, generator=torch.Generator().manual_seed(1))
METHOD = sb.SNGP(epochs=2, features=32)
FACTORS = {"0": 3, "2": 4, "4": 2}  # the head is one that was factorised


def mlp(outputs: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, outputs))


def head_of(posterior: Posterior, path: str = "4") -> RandomFeatureHead:
    head = posterior.network.get_submodule(path)
    assert isinstance(head, RandomFeatureHead)
    return head


def test_it_passes_the_contract():
    check_method(METHOD)


def test_it_passes_the_contract_on_a_factorised_network():
    check_method(METHOD, network=sb.factorize(mlp(), rank=FACTORS), data=(X, LABELS))


def regression(**settings: Any) -> tuple[Posterior, Tensor, Tensor]:
    x, y = X.double(), VALUES.double()
    method = sb.SNGP(**{"epochs": 3, "features": 20, "prior_precision": 0.7, **settings})
    return method.fit(sb.Model(mlp(1).double(), sb.Gaussian(noise=0.3)), (x, y)), x, y


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_regression_is_bayesian_linear_regression_on_the_features(temperature):
    posterior, x, y = regression(temperature=temperature)
    head = head_of(posterior)
    new = torch.randn(9, 4, dtype=torch.float64)
    phi, phi_new = (head.phi(posterior.network[:4](inputs)) for inputs in (x, new))  # type: ignore[index]
    precision = 0.7 * torch.eye(20, dtype=torch.float64) + phi.T @ phi / 0.3**2 / temperature
    beta = torch.linalg.solve(precision, phi.T @ y) / 0.3**2 / temperature
    variance = (phi_new * torch.linalg.solve(precision, phi_new.T).T).sum(1)
    moments = sb.moments(posterior, new)
    assert torch.allclose(moments.mean[:, 0], phi_new @ beta, atol=1e-8)
    assert torch.allclose(moments.variance[:, 0], variance, atol=1e-8)


def test_draws_move_the_head_alone_with_its_covariance():
    posterior, x, _ = regression()
    n = 4000
    draws = posterior.draw(n)
    moved = draws.std(0) > 0
    slot = next(slot for slot in posterior.layout.slots if slot.name == "4.weight")
    assert moved[slot.start : slot.stop].all()
    assert moved.sum() == slot.size
    outputs = posterior.functions(draws[:1000], x).squeeze(-1)
    variance = sb.moments(posterior, x).variance[:, 0]
    ratio = outputs.var(0) / variance
    assert ((ratio - 1).abs() < 4.5 * (2 / 1000) ** 0.5).all()  # 60 numbers: false alarm 4e-4
    assert not ((outputs.var(0) / variance.sqrt() - 1).abs() < 4.5 * (2 / 1000) ** 0.5).all()


def test_classes_have_a_root_each_and_regression_one_for_all_outputs():
    classes = METHOD.fit(sb.Model(mlp(), sb.Categorical()), (X, LABELS)).distribution
    assert isinstance(classes, KroneckerGaussian)
    assert classes.blocks[:, 1:].tolist() == [[1, 32]] * 3
    values = torch.stack([VALUES, -VALUES, VALUES], 1)
    shared = METHOD.fit(sb.Model(mlp(), sb.Gaussian(noise=0.5)), (X, values)).distribution
    assert shared.blocks[:, 1:].tolist() == [[3, 32]]


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm, self.head = nn.BatchNorm2d(4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = self.stem(x)
        return {"logits": self.head((h + self.norm(self.block(h).relu())).mean((2, 3)))}


def dense(module: nn.Module, shape: tuple[int, ...]) -> Tensor:
    units = torch.eye(torch.Size(shape).numel(), dtype=torch.float64).view(-1, *shape)
    return (module(units) - module(torch.zeros_like(units[:1]))).flatten(1).T


@torch.no_grad()
def norms(network: nn.Module, shapes: dict[str, tuple[int, ...]]) -> list[float]:
    wide = network.double()
    return [
        torch.linalg.svdvals(dense(wide.get_submodule(p), shape))[0].item() for p, shape in shapes.items()
    ]


BIG = {"epochs": 5, "features": 16, "learning_rate": 0.05, "newton_steps": 0}
CASES = {
    "dense": (mlp, X, {"0": (4,), "2": (16,)}),
    "factors": (lambda: sb.factorize(mlp(), rank=FACTORS), X, {"0": (4,), "2": (16,)}),
    "images": (Residual, torch.randn(60, 1, 5, 5), {"stem": (1, 5, 5), "block": (4, 5, 5)}),
}


@pytest.mark.parametrize("name", CASES)
def test_after_training_no_singular_value_is_above_the_bound(name):
    build, x, shapes = CASES[name]
    torch.manual_seed(0)
    model = sb.Model(build(), sb.Categorical())
    labels = (x.flatten(1)[:, 0] > 0).long()
    posterior = sb.SNGP(norm_bound=0.5, **BIG).fit(model, (x, labels))  # type: ignore[arg-type]
    found = norms(posterior.network, shapes)
    assert max(found) <= 0.5 * (1 + 1e-6)
    assert max(found) > 0.45  # the bound was met
    assert posterior.info["spectral_norms"].keys() == shapes.keys()
    free = sb.SNGP(norm_bound=0.5, bounded=(), **BIG).fit(model, (x, labels))  # type: ignore[arg-type]
    assert max(norms(free.network, shapes)) > 0.8
    assert not [name for name, _ in posterior.network.named_buffers() if "spectral" in name]


def test_the_bound_holds_during_training_not_only_at_its_end(monkeypatch):
    monkeypatch.setattr(SpectralBound, "enforce", lambda _self, _vector: 0.0)
    build, x, shapes = CASES["dense"]
    settings: dict[str, Any] = {**BIG, "learning_rate": 0.01, "epochs": 20}
    data = (x, LABELS)
    held = sb.SNGP(norm_bound=0.5, **settings).fit(sb.Model(build(), sb.Categorical()), data)
    free = sb.SNGP(norm_bound=0.5, bounded=(), **settings).fit(sb.Model(build(), sb.Categorical()), data)
    assert max(norms(held.network, shapes)) < 0.65  # one step of Adam after the last projection
    assert max(norms(free.network, shapes)) > 1.0


def test_training_pulls_the_head_by_its_own_prior():
    sizes = []
    for precision in (1e4, 1e-4):
        method = sb.SNGP(
            epochs=30, features=16, newton_steps=0, prior_precision=precision, learning_rate=0.01
        )
        fitted = method.fit(sb.Model(mlp(), sb.Categorical()), (X, LABELS))
        sizes.append(head_of(fitted).weight.square().mean().sqrt().item())
    assert sizes[0] < 0.02 < 0.1 < sizes[1]


def test_parameters_that_no_pattern_chose_stay_as_they_are():
    network = mlp()
    posterior = METHOD.fit(sb.Model(network, sb.Categorical(), bayesian=["2.*", "4.*"]), (X, LABELS))
    assert torch.equal(posterior.network.get_parameter("0.weight"), network[0].weight)
    assert not torch.equal(posterior.network.get_parameter("2.weight"), network[2].weight)
    assert posterior.info["spectral_norms"].keys() == {"2"}


def test_far_from_the_data_the_variance_is_the_priors():
    posterior, x, _ = regression(epochs=20, features=512, length_scale=1.0)
    near = sb.moments(posterior, x).variance
    far = sb.moments(posterior, x + 40).variance
    assert (near < 0.6).all()
    assert (far > 0.75 / 0.7).all()  # |phi|^2 / s is about 1 / .7, less what far features share


def test_ensembles_of_it_keep_each_members_features():
    data = (X, LABELS)
    ensemble = sb.DeepEnsemble(members=2, member=METHOD).fit(sb.Model(mlp(), sb.Categorical()), data)
    draws = ensemble.draw(2)
    slot = next(slot for slot in ensemble.layout.slots if slot.name == "4.frequencies")
    assert not torch.equal(draws[0, slot.start : slot.stop], draws[1, slot.start : slot.stop])
    assert ensemble.predict(X, draws=8).mean.shape == (60, 3)


def test_a_saved_posterior_loads_into_the_users_network(tmp_path):
    posterior = METHOD.fit(sb.Model(mlp(), sb.Categorical()), (X, LABELS))
    posterior.save(tmp_path)
    state = torch.get_rng_state()
    loaded = sb.load(tmp_path, mlp())
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(loaded.predict(X, draws=5).mean, posterior.predict(X, draws=5).mean)
    assert torch.equal(sb.moments(loaded, X).covariance, sb.moments(posterior, X).covariance)


def test_a_killed_run_goes_on_to_the_same_numbers(tmp_path):
    model, data = sb.Model(mlp(), sb.Categorical()), (X, LABELS)
    whole = sb.SNGP(epochs=4, features=16).fit(model, data, seed=2)
    sb.SNGP(epochs=2, features=16).fit(model, data, seed=2, checkpoint=tmp_path)
    rest = sb.SNGP(epochs=4, features=16).fit(model, data, seed=2, checkpoint=tmp_path)
    assert torch.equal(whole.draw(3), rest.draw(3))


def test_priors_points_and_frozen_parameters_stay_what_they_are():
    network = mlp()
    network[0].requires_grad_(False)
    prior = sb.PerParameter({"2.weight": sb.Laplace(0.5), "*": sb.Normal(3.0)})
    model = sb.Model(network, sb.Categorical(), prior=prior, deterministic="2.bias")
    posterior = METHOD.fit(model, (X, LABELS))
    assert torch.equal(posterior.network.get_parameter("0.weight"), network[0].weight)
    kinds = {slot.name: slot.kind for slot in posterior.layout.slots}
    assert kinds["2.bias"] == "point"
    assert kinds["2.weight"] == kinds["4.weight"] == "belief"
    assert "0.weight" not in kinds


def test_a_frozen_matrix_is_not_bounded():
    network = mlp()
    with torch.no_grad():
        network[0].weight.mul_(5)
    network[0].weight.requires_grad_(False)  # its bias is trained
    posterior = METHOD.fit(sb.Model(network, sb.Categorical()), (X, LABELS))
    assert torch.equal(posterior.network.get_parameter("0.weight"), network[0].weight)
    assert posterior.info["spectral_norms"].keys() == {"2"}


def test_rows_that_count_as_one_let_the_variance_grow_with_the_distance():
    posteriors = [
        sb.SNGP(epochs=30, features=128, learning_rate=0.03, weighted=weighted).fit(
            sb.Model(mlp(), sb.Categorical()), (X, LABELS)
        )
        for weighted in (True, False)
    ]
    assert torch.equal(posteriors[0].distribution.mean, posteriors[1].distribution.mean)
    near, far = ([sb.moments(p, x).variance.mean() for p in posteriors] for x in (X, X + 30))
    assert far[1] / near[1] > 3 * far[0] / near[0]  # by p (1 - p) sure rows hardly count
    with pytest.raises(ValueError, match=r"weighted=False.*Gaussian labels is in units of its noise"):
        sb.SNGP(epochs=1, weighted=False).fit(sb.Model(mlp(1), sb.Gaussian()), (X, VALUES))


@pytest.mark.parametrize("noise", [0.01, 0.001])
def test_small_noise_leaves_the_precision_definite(noise):
    # in float32 the sum of phi phi^T / noise^2 had negative eigenvalues below its rounding
    x = torch.randn(600, 4, generator=torch.Generator().manual_seed(3))
    model = sb.Model(nn.Linear(4, 1), sb.Gaussian(noise=noise))
    posterior = sb.SNGP(epochs=1, features=128, prior_precision=1e-3, length_scale=9.0).fit(
        model, (x, x[:, 0])
    )
    assert torch.isfinite(posterior.distribution.right).all()
    assert posterior.info["jitter"] == 0


def test_learned_noise_enters_the_precision():
    model = sb.Model(mlp(1), sb.Gaussian())
    posterior = sb.SNGP(epochs=20, features=16, learning_rate=0.05).fit(model, (X, VALUES))
    predictive = sb.moments(posterior, X).predictive(sb.Exact())
    log_noise = posterior.layout.likelihood_views(posterior.distribution.mean)["log_noise"]
    assert torch.allclose(predictive.variance - sb.moments(posterior, X).variance[:, 0],
                          (2 * log_noise).exp().expand(60), atol=1e-5)  # fmt: skip


def test_a_network_that_is_one_layer_becomes_features_of_the_inputs():
    posterior = METHOD.fit(sb.Model(nn.Linear(4, 3), sb.Categorical()), (X, LABELS))
    assert isinstance(posterior.network, RandomFeatureHead)
    assert posterior.predict(X, draws=3).mean.shape == (60, 3)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.last.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).tanh())


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.only = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.only(self.only(x).tanh())


CONVOLUTION = nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 4, 4), nn.Flatten())
SEQUENCE = nn.Sequential(nn.Unflatten(1, (4, 1)), nn.Linear(1, 1), nn.Flatten())
BAD = {
    "no linear layer": (CONVOLUTION, "end it with nn.Linear"),
    "tied": (Tied(), r"last\.weight is tied to first\.weight"),
    "twice": (Twice(), "it runs 2 times"),
    "a sequence": (SEQUENCE, r"gives \(2, 4, 1\)"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_head_that_cannot_be_replaced_is_named(name):
    network, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        METHOD.fit(sb.Model(network, sb.Categorical()), (X, LABELS))


@pytest.mark.parametrize(("settings", "message"), [
    ({"features": 0}, "features must be a whole number"), ({"norm_bound": 0.0}, "norm_bound must be"),
    ({"length_scale": -1.0}, "length_scale must be positive"), ({"prior_precision": 0.0}, "prior_precision"),
    ({"newton_steps": -1}, "newton_steps"), ({"temperature": 0.0}, "temperature above 0"),
])  # fmt: skip
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        sb.SNGP(**settings)


def test_a_pattern_that_matches_no_layer_is_named():
    with pytest.raises(ValueError, match="bounded pattern 'conv' matches no"):
        sb.SNGP(epochs=1, bounded="conv").fit(sb.Model(mlp(), sb.Categorical()), (X, LABELS))
