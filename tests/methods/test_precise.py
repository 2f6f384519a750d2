"""Precise: the KL against exact von Mises-Fisher, a draw against the training noise, gradients, contract."""

import math

import numpy as np
import pytest
import torch
from scipy.special import gammaln, ive
from torch import nn

import singularbayes as sb
from singularbayes.methods import precise
from singularbayes.methods.learner import Bound
from singularbayes.methods.precise import (
    BuildPrecise,
    PreciseLearner,
    concentration,
    direction_kl,
    resultant_length,
)
from singularbayes.nn import DirectionalLinear
from singularbayes.priors import Normal, PerParameter
from singularbayes.testing import CLAUSES, check_method

X = torch.randn(60, 5, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 3.0, 0.3, 1.0, 2.0])
Y = (X[:, 0] + X[:, 1] / 3 > 0).long()


def network(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(3)
    layers = DirectionalLinear(5, 12), nn.ReLU(), DirectionalLinear(12, 8), nn.Tanh(), nn.Linear(8, 2)
    return nn.Sequential(*layers).to(dtype)


def learner_of(method: sb.Precise, model: sb.Model) -> PreciseLearner:
    start = model.layout.flatten(model.network, model.likelihood.parameters)
    build = BuildPrecise(method)
    gradient = torch.zeros(build.size(model), dtype=start.dtype)
    return build(Bound(model, torch.device("cpu"), gradient, start, num_data=60), start, gradient)


# The closed forms


def exact_resultant(kappa: float, dimension: int) -> float:
    return ive(dimension / 2, kappa) / ive(dimension / 2 - 1, kappa)


def exact_kl(kappa: float, dimension: int) -> float:
    """KL of a von Mises-Fisher distribution to the uniform one on the sphere."""
    half = dimension / 2
    log_bessel = math.log(ive(half - 1, kappa)) + kappa
    log_constant = (half - 1) * math.log(kappa) - half * math.log(2 * math.pi) - log_bessel
    log_area = math.log(2) + half * math.log(math.pi) - gammaln(half)
    return kappa * exact_resultant(kappa, dimension) + log_constant + log_area


def solved(length: float, dimension: int) -> float:
    """The kappa whose exact mean resultant length this is, by bisection."""
    low, high = 1e-3, 1e7
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if exact_resultant(middle, dimension) < length else (low, middle)
    return low


@pytest.mark.parametrize(("dimension", "room"), [(576, 0.003), (64, 0.02), (10, 0.11)])
@pytest.mark.parametrize("noise", [0.1, 0.5, 1.0, 3.0])
def test_the_kl_is_nearly_the_exact_one_and_below_it(dimension, room, noise):
    exact = exact_kl(solved(resultant_length(noise), dimension), dimension)
    assert (1 - room) * exact < direction_kl(noise, dimension) < exact


@pytest.mark.parametrize(("dimension", "error"), [(576, 0.0003), (64, 0.0024), (10, 0.017)])
def test_at_the_start_the_kl_falls_short_by_little(dimension, error):
    # methods.md: .03%, .24% and 1.7% at s_eff = .1
    exact = exact_kl(solved(resultant_length(0.1), dimension), dimension)
    assert 1 - direction_kl(0.1, dimension) / exact == pytest.approx(error, rel=0.2)


@pytest.mark.parametrize("dimension", [64, 576])
@pytest.mark.parametrize("noise", [0.1, 0.5, 2.0])
def test_the_concentration_gives_that_resultant_length(dimension, noise):
    assert exact_resultant(concentration(noise, dimension), dimension) == pytest.approx(
        resultant_length(noise), rel=0.01
    )
    kappa = concentration(noise, dimension)  # and the other relation of methods.md
    length = kappa / ((dimension - 1) / 2 + math.sqrt(kappa**2 + ((dimension + 1) / 2) ** 2))
    assert length == pytest.approx(resultant_length(noise), rel=0.02)


# The step


def test_the_gradient_of_a_step_is_autograds():
    prior = PerParameter({"4.weight": Normal(0.5), "*": Normal(2.0)})
    model = sb.Model(network(torch.float64), sb.Categorical(), prior=prior)
    learner = learner_of(sb.Precise(initial_noise=0.3), model)
    weight, x = 0.37, X.double()
    learner.draw(torch.Generator())
    learner.gradient.zero_()
    torch.manual_seed(5)
    model.likelihood.loss(learner.bound.network(x), Y, {}).backward()
    learner.finish(weight, 0.0)

    vector = learner.vector.detach().clone().requires_grad_()
    trained = model.layout.trained
    rest = model.layout.size - trained
    row = model.layout.views(torch.cat([vector[:trained], torch.zeros(rest).double()]))
    torch.manual_seed(5)
    h = x
    for number, path in enumerate(("0", "2")):
        z = h @ row[f"{path}.weight"].T
        z = (z - z.mean(0)) / (z.var(0, correction=0) + 1e-5).sqrt()
        z = z + vector[trained + number].exp() * torch.randn_like(z)
        z = row[f"{path}.gain"] * z + row[f"{path}.bias"]
        h = torch.relu(z) if path == "0" else torch.tanh(z)
    loss = nn.functional.cross_entropy(h @ row["4.weight"].T + row["4.bias"], Y)
    s1, s2 = vector[trained:].exp()
    loss = loss + weight * (12 * 2 * torch.log(1 + 1 / s1**2) + 8 * 5.5 * torch.log(1 + 1 / s2**2))
    loss = loss + weight * 0.5 * ((row["4.weight"] / 0.5).square().sum() + (row["4.bias"] / 2).square().sum())
    exact = torch.autograd.grad(loss, vector)[0]
    torch.testing.assert_close(learner.gradient, exact, rtol=1e-7, atol=1e-9)
    assert learner.gradient[trained:].abs().min() > 0


def test_the_kl_is_a_sum_over_neurons_and_layers():
    model = sb.Model(network(), sb.Categorical(), deterministic="4.*")
    learner = learner_of(sb.Precise(initial_noise=0.1), model)
    expected = 12 * direction_kl(0.1, 5) + 8 * direction_kl(0.1, 12)
    assert learner.regulariser() == pytest.approx(expected, rel=1e-5)
    assert learner.regulariser() == pytest.approx((12 * 2 + 8 * 5.5) * math.log(101), rel=1e-5)


def test_without_data_the_noise_grows_and_under_a_strong_likelihood_it_stays_small():
    def noise(temperature: float) -> float:
        posterior = sb.Precise(epochs=25, learning_rate=0.03, temperature=temperature).fit(
            sb.Model(network(), sb.Categorical()), (X, Y), seed=1
        )
        return posterior.info["noise"]["0"]

    assert noise(1.0) > 0.12 > noise(1e-4)


def test_a_wrong_sign_of_the_kl_shrinks_the_noise(monkeypatch):
    # the mutant
    finish = PreciseLearner.finish
    monkeypatch.setattr(
        PreciseLearner, "finish", lambda self, weight, progress: finish(self, -weight, progress)
    )
    posterior = sb.Precise(epochs=25, learning_rate=0.03).fit(
        sb.Model(network(), sb.Categorical()), (X, Y), seed=1
    )
    assert posterior.info["noise"]["0"] < 0.1


# A draw


def trained_layer() -> tuple[DirectionalLinear, torch.Tensor]:
    """A layer with settled statistics of correlated inputs off centre."""
    torch.manual_seed(6)
    mix = torch.eye(30, dtype=torch.float64) + 0.2 * torch.randn(30, 30, dtype=torch.float64)
    x = torch.randn(4000, 30, dtype=torch.float64) @ mix + 2.0
    layer = DirectionalLinear(30, 3, momentum=1.0, dtype=torch.float64)
    layer(x)
    return layer.eval(), x


def normalised_draws(layer: DirectionalLinear, x: torch.Tensor, noise: float, draws: int) -> torch.Tensor:
    """``(draws, B, out)`` before gain and bias (1 and 0)."""
    torch.manual_seed(7)
    w, std = layer.weight.detach().clone(), layer.weight_std(noise)
    found = []
    for _ in range(draws):
        layer.weight.data = w + std.unsqueeze(1) * torch.randn_like(w)
        found.append(layer(x).detach())
    layer.weight.data = w
    return torch.stack(found)


def test_a_draws_noise_is_the_training_noise_on_the_training_inputs():
    layer, x = trained_layer()
    plain, noise = layer(x).detach(), 0.4
    moved = normalised_draws(layer, x[:1000], noise, 400) - plain[:1000]
    # variance over inputs and draws; 1200 independent rows of w: relative error sqrt(2 / 1200 / 30) or more;
    # inputs are correlated, so an effective dimension of 10: 4 standard errors are .05
    assert moved.square().mean().item() == pytest.approx(noise**2, rel=0.05)
    assert abs(moved.mean().item()) < 4 * noise / math.sqrt(1200)
    assert plain.var(0).mean().item() == pytest.approx(1, abs=0.01)


def test_a_draw_keeps_the_outputs_centred_where_a_stale_mean_would_not():
    layer, x = trained_layer()
    shift = normalised_draws(layer, x, 0.4, 50).mean(1)
    assert shift.abs().max() < 1e-6
    stale = []  # the mutant: the running mean of w x, as BatchNorm keeps it, beside drawn weights
    w, std = layer.weight.detach(), layer.weight_std(0.4)
    for _ in range(50):
        drawn = w + std.unsqueeze(1) * torch.randn_like(w)
        stale.append(
            ((x @ drawn.T - (x @ w.T).mean(0)) / (layer.output_var + layer.eps).sqrt()).mean(0).detach()
        )
    assert torch.stack(stale).abs().max() > 0.2


def test_noise_grows_with_the_distance_from_the_training_mean():
    layer, x = trained_layer()
    far = layer.input_mean + 10 * (x[:50] - layer.input_mean)
    near, away = (normalised_draws(layer, inputs, 0.4, 60).std(0).mean() for inputs in (x[:50], far))
    assert away / near == pytest.approx(10, rel=0.01)


def test_a_draw_is_one_function():
    posterior = sb.Precise(epochs=2).fit(sb.Model(network(), sb.Categorical()), (X, Y))
    twice = posterior.functions(posterior.draw(10), torch.cat([X, X]))
    assert torch.allclose(twice[:, :60], twice[:, 60:], atol=1e-6)
    assert twice.std(0).min() > 0


def test_only_believed_directions_are_noisy():
    model = sb.Model(network(), sb.Categorical(), deterministic="2.weight")
    posterior = sb.Precise(epochs=2).fit(model, (X, Y))
    std = {s.name: posterior.distribution.std[s.start : s.stop] for s in posterior.layout.slots}
    assert (std["0.weight"] > 0).all()
    assert all((part == 0).all() for name, part in std.items() if name != "0.weight")
    assert list(posterior.info["noise"]) == ["0"]


# The contract


@pytest.mark.parametrize("where", ["hidden", "inside"])
def test_it_keeps_the_contract(where):
    net = network() if where == "hidden" else nn.Sequential(nn.Sequential(network()[:4]), nn.Linear(8, 2))
    options = {"network": net, "likelihood": sb.Categorical(), "data": (X, Y)}
    assert check_method(sb.Precise(epochs=2), **options) == list(CLAUSES)


def test_an_ensemble_of_it_keeps_every_members_statistics():
    method = sb.DeepEnsemble(members=2, member=sb.Precise(epochs=2))
    posterior = method.fit(sb.Model(network(), sb.Categorical()), (X, Y))  # a warning would be an error
    slot = next(s for s in posterior.layout.slots if s.name == "2.input_mean")
    rows = posterior.draw(4)[:, slot.start : slot.stop]
    assert len(rows.unique(dim=0)) == 2


def test_it_counts_one_number_a_layer():
    net = network()
    posterior = sb.Precise(epochs=1).fit(sb.Model(net, sb.Categorical()), (X, Y))
    assert posterior.info["numbers"] == sum(p.numel() for p in net.parameters()) + 2


def test_a_network_without_a_normalisation_is_refused():
    plain = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))
    with pytest.raises(ValueError, match="valid only after a normalisation"):
        sb.Precise().fit(sb.Model(plain, sb.Categorical()), (X, Y))
    with pytest.raises(ValueError, match="whose weight is Bayesian"):
        sb.Precise().fit(sb.Model(network(), sb.Categorical(), bayesian="4.*"), (X, Y))


def test_a_directional_head_is_refused():
    net = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), DirectionalLinear(8, 2))
    with pytest.raises(ValueError, match=r"the last layer \(2\) is a DirectionalLinear"):
        sb.Precise().fit(sb.Model(net, sb.Categorical()), (X, Y))


@pytest.mark.parametrize(
    "settings", [{"initial_noise": 0.0}, {"initial_noise": np.inf}, {"validation_draws": 0}]
)
def test_settings_are_checked(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        sb.Precise(**settings)


def test_its_closed_forms_are_documented_examples():
    assert precise.resultant_length(0.75) == pytest.approx(0.8)


def test_every_row_has_its_own_width():
    # rows of very different lengths: widths laid out along the other axis are wrong
    torch.manual_seed(0)
    network = nn.Sequential(sb.nn.DirectionalLinear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    with torch.no_grad():
        network.get_parameter("0.weight").mul_(torch.tensor([[0.1], [1.0], [10.0]]))
    x = torch.randn(40, 4)
    posterior = sb.Precise(epochs=2).fit(sb.Model(network, sb.Categorical()), (x, (x[:, 0] > 0).long()))
    layer = posterior.network.get_submodule("0")
    assert isinstance(layer, sb.nn.DirectionalLinear)
    widths = posterior.layout.views(posterior.distribution.std)["0.weight"]
    expected = layer.weight_std(posterior.info["noise"]["0"]).unsqueeze(1).expand(3, 4)
    torch.testing.assert_close(widths, expected)
    assert widths[2, 0] > 1.5 * widths[1, 0]
