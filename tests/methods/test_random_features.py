"""Random features: closed forms on frozen features, the variational optimum and its KL, and the contract."""

import math
from typing import Any

import pytest
import torch
from sklearn.gaussian_process.kernels import RBF
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import singularbayes as sb
from singularbayes.distributions import KroneckerGaussian
from singularbayes.nn import RandomFeatureHead
from singularbayes.posterior import Posterior
from singularbayes.testing import check_method

DOUBLE = torch.float64
X = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 5.0, 0.1, 1.0])
LABELS = (X[:, 0] > 0).long() + (X[:, 1] > 4).long()
VALUES = X[:, 0].sin() + 0.1 * torch.randn(60, generator=torch.Generator().manual_seed(1))
NEW = torch.randn(9, 4, generator=torch.Generator().manual_seed(2), dtype=DOUBLE)
GIVEN: dict[str, Any] = {"features": 24, "length_scale": 1.5, "std": 0.8}
METHOD = sb.RandomFeatures(**GIVEN)


def mlp(outputs: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 16), nn.Tanh(), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, outputs)
    )


def head_of(posterior: Posterior, path: str = "4") -> RandomFeatureHead:
    head = posterior.network.get_submodule(path)
    assert isinstance(head, RandomFeatureHead)
    return head


def phi_of(posterior: Posterior, x: Tensor) -> Tensor:
    return head_of(posterior).phi(posterior.network[:4](x))  # type: ignore[index]


def regression(**settings: Any) -> tuple[Posterior, Tensor, Tensor]:
    x, y = X.double(), VALUES.double()
    model = sb.Model(mlp(1).double(), sb.Gaussian(noise=0.3))
    return sb.RandomFeatures(**{**GIVEN, **settings}).fit(model, (x, y)), x, y


def test_it_passes_the_contract():
    check_method(METHOD)


def test_it_passes_the_contract_on_a_factorised_network():
    network = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    check_method(METHOD, network=sb.factorize(network, rank={"0": 2, "2": 2}), data=(X, LABELS))


def test_it_passes_the_contract_with_variational_inference_and_a_noise_that_is_searched():
    method = sb.RandomFeatures(**GIVEN, inference=sb.MeanField(epochs=1))
    check_method(method, network=nn.Linear(4, 1), likelihood=sb.Gaussian(), data=(X, VALUES))


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_regression_is_bayesian_linear_regression_on_the_features(temperature):
    posterior, x, y = regression(inference=sb.ExactInference(temperature=temperature))
    phi, phi_new = phi_of(posterior, x), phi_of(posterior, NEW)
    precision = torch.eye(24, dtype=DOUBLE) / 0.8**2 + phi.T @ phi / 0.3**2 / temperature
    beta = torch.linalg.solve(precision, phi.T @ y) / 0.3**2 / temperature
    moments = sb.moments(posterior, NEW)
    assert torch.allclose(moments.mean[:, 0], phi_new @ beta, atol=1e-8)
    variance = (phi_new * torch.linalg.solve(precision, phi_new.T).T).sum(1)
    assert torch.allclose(moments.variance[:, 0], variance, atol=1e-8)
    # the noise's standard deviation for its variance; the covariance added to itself
    wrong = torch.eye(24, dtype=DOUBLE) / 0.8**2 + phi.T @ phi / 0.3 / temperature
    assert not torch.allclose(
        moments.variance[:, 0], (phi_new * torch.linalg.solve(wrong, phi_new.T).T).sum(1), rtol=0.05
    )
    assert not torch.allclose(moments.variance[:, 0], 2 * variance, rtol=0.05)


def test_the_evidence_is_that_of_the_labels_under_the_prior_on_functions():
    posterior, x, y = regression()
    phi = phi_of(posterior, x)
    covariance = 0.8**2 * phi @ phi.T + 0.3**2 * torch.eye(60, dtype=DOUBLE)
    exact = torch.distributions.MultivariateNormal(torch.zeros(60, dtype=DOUBLE), covariance).log_prob(y)
    assert posterior.info["log_evidence"] == pytest.approx(exact.item(), abs=1e-6)


def line(noise: float | None) -> tuple[sb.Model, Tensor, Tensor]:
    x = torch.cat([torch.linspace(-3, -1, 20), torch.linspace(1, 3, 20)]).unsqueeze(1).double()
    y = (2 * x[:, 0]).sin() + 0.1 * torch.randn(40, generator=torch.Generator().manual_seed(3), dtype=DOUBLE)
    return sb.Model(nn.Linear(1, 1).double(), sb.Gaussian(noise=noise)), x, y


def test_many_features_on_inputs_are_the_exact_process():
    model, x, y = line(0.1)
    new = torch.linspace(-4, 4, 41, dtype=DOUBLE).unsqueeze(1)
    exact = sb.kernels.GaussianProcess(1.3**2 * RBF(0.9), noise=0.1).fit(x, y).predict(new)
    gaps = []
    for features in (60, 960):
        squares = []
        for seed in range(4):
            method = sb.RandomFeatures(features=features, length_scale=0.9, std=1.3)
            moments = sb.moments(method.fit(model, (x, y), seed=seed), new)
            squares.append(((moments.variance.sqrt() - exact.variance.sqrt()).square().mean()).item())
        gaps.append(math.sqrt(sum(squares) / 4))
    assert gaps[1] < gaps[0] / 2  # as 1 / sqrt(m): by 4
    assert gaps[1] < 0.06


def test_the_variance_grows_in_a_gap_and_is_the_priors_far_away():
    model, x, y = line(0.1)
    posterior = sb.RandomFeatures(features=1000, length_scale=0.5, std=1.3).fit(model, (x, y))
    places = torch.tensor([[-2.0], [0.0], [30.0]], dtype=DOUBLE)
    inside, gap, far = sb.moments(posterior, places).variance[:, 0].sqrt().tolist()
    assert 5 * inside < gap < far
    assert far == pytest.approx(1.3, rel=0.1)  # without sqrt(2 / m) it would be 29


def test_the_variational_posterior_reaches_its_closed_form():
    method = sb.MeanField(
        epochs=1200, batch_size=60, learning_rate=0.02, schedule=sb.Schedule.COSINE, initial_std=0.5
    )
    posterior, x, y = regression(features=6, length_scale=3.0, inference=method)
    phi = phi_of(posterior, x)
    precision = torch.eye(6, dtype=DOUBLE) / 0.8**2 + phi.T @ phi / 0.3**2
    mean = torch.linalg.solve(precision, phi.T @ y) / 0.3**2
    # of a Gaussian: the inverse of the precision's diagonal, below the diagonal of its inverse
    assert torch.allclose(posterior.distribution.variance[:6], 1 / precision.diagonal(), rtol=0.2)
    assert not torch.allclose(
        posterior.distribution.variance[:6], torch.linalg.inv(precision).diagonal(), rtol=0.5
    )
    gap = phi_of(posterior, NEW) @ (posterior.distribution.mean[:6] - mean)
    assert gap.abs().max() < 0.05


@pytest.mark.parametrize("std", [1.0, 0.4])
def test_its_kl_is_the_closed_one_summed_over_features_and_outputs(std):
    method = sb.RandomFeatures(
        features=24, length_scale=1.5, std=std, inference=sb.MeanField(epochs=2, temperature=0.5)
    )
    posterior = method.fit(sb.Model(mlp(), sb.Categorical()), (X, LABELS))
    n = 3 * 24
    mu, s = posterior.distribution.mean[:n] / std, posterior.distribution.variance[:n].sqrt() / std
    kl = 0.5 * (s.square() + mu.square() - 1 - s.square().log()).sum().item()
    last = posterior.info["history"][-1]
    assert last["objective"] - last["nll"] == pytest.approx(
        0.5 / 60 * kl, rel=1e-4
    )  # not a mean over features
    wrong = 0.5 * (s.square() + mu.square() - 1 - s.log()).sum().item()  # a log term at half weight
    assert last["objective"] - last["nll"] != pytest.approx(0.5 / 60 * wrong, rel=1e-2)


def test_a_noise_that_is_learned_is_trained_by_a_method_and_starts_at_the_evidences():
    model = sb.Model(mlp(1), sb.Gaussian())
    method = sb.RandomFeatures(features=24, inference=sb.MeanField(epochs=1, learning_rate=1e-6))
    posterior = method.fit(model, (X, VALUES))
    log_noise = posterior.layout.likelihood_views(posterior.distribution.mean)["log_noise"]
    assert log_noise.exp().item() == pytest.approx(posterior.info["noise"], rel=1e-3)
    assert posterior.likelihood.noise is None
    exact = sb.RandomFeatures(**GIVEN).fit(model, (X, VALUES))
    assert exact.likelihood.noise == exact.info["noise"]  # a fixed number from then on


def test_the_network_before_the_head_is_frozen_at_the_users_weights_and_statistics():
    network = mlp()
    network(X)  # moves the running statistics
    for inference in (sb.ExactInference(), sb.MeanField(epochs=2)):
        posterior = sb.RandomFeatures(**GIVEN, inference=inference).fit(
            sb.Model(network, sb.Categorical()), (X, LABELS)
        )
        for name, tensor in network[:4].state_dict().items():
            assert torch.equal(posterior.network.state_dict()[name], tensor)
        assert {slot.name for slot in posterior.layout.of_kind("belief", "point")} == {"4.weight"}
        draws = posterior.functions(posterior.draw(3), X)
        assert torch.equal(draws, posterior.functions(posterior.draw(3), X))  # dropout is off


def test_classes_are_at_the_mode_with_a_root_each():
    model = sb.Model(mlp().double(), sb.Categorical())
    posterior = METHOD.fit(model, (X.double(), LABELS))
    assert isinstance(posterior.distribution, KroneckerGaussian)
    assert posterior.distribution.blocks[:, 1:].tolist() == [[1, 24]] * 3
    phi = phi_of(posterior, X.double())
    beta = posterior.distribution.mean[: 3 * 24].view(3, 24)
    p = (phi @ beta.T).softmax(1)
    gradient = beta / 0.8**2 + (p - nn.functional.one_hot(LABELS, 3)).T @ phi
    assert gradient.abs().max() < 1e-4
    covariance = torch.linalg.inv(torch.eye(24, dtype=DOUBLE) / 0.8**2 + phi.T @ ((p * (1 - p))[:, :1] * phi))
    found = sb.moments(posterior, NEW).variance[:, 0]
    new = phi_of(posterior, NEW)
    assert torch.allclose(found, (new @ covariance * new).sum(1), rtol=1e-5)


def test_the_batch_size_and_a_loader_change_nothing():
    data = [(X, VALUES), (X, VALUES.unsqueeze(1)), DataLoader(TensorDataset(X, VALUES), batch_size=7)]
    fits = [METHOD.fit(sb.Model(mlp(1), sb.Gaussian(noise=0.3)), each) for each in data]
    small = sb.RandomFeatures(**GIVEN, batch_size=11, inference=sb.ExactInference(batch_size=13))
    fits.append(small.fit(sb.Model(mlp(1), sb.Gaussian(noise=0.3)), data[0]))
    for other in fits[1:]:
        assert torch.allclose(other.distribution.mean, fits[0].distribution.mean, atol=1e-4)


def test_a_saved_posterior_loads_into_the_users_network(tmp_path):
    posterior = METHOD.fit(sb.Model(mlp(), sb.Categorical()), (X, LABELS))
    posterior.save(tmp_path)
    loaded = sb.load(tmp_path, mlp())
    assert torch.equal(loaded.predict(X, draws=5).mean, posterior.predict(X, draws=5).mean)
    assert torch.equal(sb.moments(loaded, X).covariance, sb.moments(posterior, X).covariance)


def test_a_killed_variational_run_goes_on_to_the_same_numbers(tmp_path):
    model, data = sb.Model(mlp(), sb.Categorical()), (X, LABELS)
    short, long = (sb.RandomFeatures(**GIVEN, inference=sb.MeanField(epochs=epochs)) for epochs in (2, 4))
    whole = long.fit(model, data, seed=2)
    short.fit(model, data, seed=2, checkpoint=tmp_path)
    rest = long.fit(model, data, seed=2, checkpoint=tmp_path)
    assert torch.equal(whole.draw(3), rest.draw(3))


def test_early_stop_sees_the_features_of_the_validation_data():
    held = (X[:20], LABELS[:20])
    method = sb.RandomFeatures(**GIVEN, inference=sb.MeanField(epochs=3, patience=2))
    posterior = method.fit(sb.Model(mlp(), sb.Categorical()), (X[20:], LABELS[20:]), held)
    assert len([record["validation_nll"] for record in posterior.info["history"]]) == 3
    with pytest.raises(ValueError, match="patience=2 needs validation data"):
        method.fit(sb.Model(mlp(), sb.Categorical()), (X, LABELS))


@pytest.mark.parametrize(("likelihood", "outputs", "y"), [
    (sb.Bernoulli(), 1, LABELS.clamp(max=1)), (sb.HeteroscedasticGaussian(), 2, VALUES),
    (sb.Gaussian(), 2, torch.stack([VALUES, 2 * VALUES], 1)),
])  # fmt: skip
def test_other_likelihoods_search_infer_and_predict(likelihood, outputs, y):
    method = sb.RandomFeatures(features=12, length_scale=2.0)
    posterior = method.fit(sb.Model(mlp(outputs), likelihood), (X, y))
    assert torch.isfinite(posterior.predict(X, draws=8).log_prob(y)).all()
    assert posterior.info["std"] > 0


def test_it_takes_part_in_ensembles_each_with_its_own_features():
    member = sb.Pretrained(point=sb.MAP(epochs=1), member=METHOD)
    ensemble = sb.DeepEnsemble(members=2, member=member).fit(sb.Model(mlp(), sb.Categorical()), (X, LABELS))
    assert ensemble.predict(X, draws=8).mean.shape == (60, 3)
    one, two = (m.network[4].frequencies for m in ensemble.members)  # type: ignore[union-attr,index]
    assert not torch.equal(one, two)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.last.weight = self.first.weight

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": self.last(self.first(x).tanh())}


def test_a_tied_last_layer_leaves_its_other_place_as_it_is():
    network = Tied()
    posterior = METHOD.fit(sb.Model(network, sb.Categorical()), (X, LABELS))
    assert torch.equal(posterior.network.get_parameter("first.weight"), network.first.weight)
    assert isinstance(posterior.network.get_submodule("last"), RandomFeatureHead)


class Squeezed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x).squeeze(-1)


def test_a_network_that_drops_the_axis_of_its_one_output_is_fine():
    posterior = METHOD.fit(sb.Model(Squeezed(), sb.Gaussian(noise=0.3)), (X, VALUES))
    assert posterior.predict(X, draws=3).mean.shape == (60,)


class Followed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x).mul_(2)  # in place


CONVOLUTION = nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 3, 4), nn.Flatten())
SEQUENCE = nn.Sequential(nn.Unflatten(1, (4, 1)), nn.Linear(1, 1), nn.Flatten())
BAD = {
    "no linear layer": (CONVOLUTION, "end it with nn.Linear"),
    "operations after it": (Followed(), "head, whose outputs must be the network's, but operations follow"),
    "a sequence": (SEQUENCE, r"gives \(2, 4, 1\)"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_layer_that_cannot_be_replaced_is_named(name):
    network, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        METHOD.fit(sb.Model(network, sb.Categorical()), (X, LABELS))


def test_an_inference_that_changes_the_head_is_named():
    method = sb.RandomFeatures(**GIVEN, inference=sb.LaplaceApproximation(structure=sb.FullCurvature()))
    with pytest.raises(ValueError, match="posterior is of the head itself"):
        method.fit(sb.Model(mlp(), sb.Categorical()), (X, LABELS))


def test_exact_inference_names_what_it_has_no_formula_for(unchecked):
    head = RandomFeatureHead(4, 1, 8)
    with pytest.raises(TypeError, match="the model's network is a Linear"):
        sb.ExactInference().fit(sb.Model(nn.Linear(4, 1), sb.Gaussian(noise=0.1)), (X, VALUES))
    with pytest.raises(ValueError, match="the likelihood learns log_noise"):
        sb.ExactInference().fit(sb.Model(head, sb.Gaussian()), (X, VALUES))
    with pytest.raises(ValueError, match=r"needs the prior Normal\(std\)"):
        sb.ExactInference().fit(sb.Model(head, sb.Gaussian(noise=0.1), prior=sb.Laplace(1.0)), (X, VALUES))


@pytest.mark.parametrize(("settings", "message"), [
    ({"features": 0}, "features must be a whole number"), ({"length_scale": -1.0}, "length_scale must be"),
    ({"std": 0.0}, "std must be positive"), ({"search_rows": 0}, "search_rows must be"),
    ({"batch_size": 0}, "batch_size must be"),
])  # fmt: skip
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        sb.RandomFeatures(**settings)


def test_bad_inference_settings_are_named(unchecked):
    with pytest.raises(TypeError, match="inference must be an object"):
        sb.RandomFeatures(inference=sb.MeanField)
    with pytest.raises(ValueError, match="temperature must be positive"):
        sb.ExactInference(temperature=0.0)
    with pytest.raises(ValueError, match="steps must be"):
        sb.ExactInference(steps=0)
