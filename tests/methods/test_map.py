"""Maximum a posteriori: closed forms, and an atom without epistemic uncertainty."""

import pytest
import torch
from torch import nn

import singularbayes as sb
from singularbayes.priors import Laplace, Normal, PerParameter

X = torch.tensor([[-1.0], [-0.5], [0.5], [1.5], [2.0], [3.0]], dtype=torch.float64)
Y = torch.tensor([-1.1, -1.0, 0.2, 0.9, 1.4, 2.3], dtype=torch.float64)


def fit(prior=None, deterministic=(), **settings) -> sb.Posterior:
    torch.manual_seed(0)
    model = sb.Model(
        nn.Linear(1, 1).double(), sb.Gaussian(noise=0.5), prior=prior, deterministic=deterministic
    )
    defaults = {"epochs": 600, "learning_rate": 0.05, "schedule": sb.Schedule.COSINE}
    return sb.MAP(**{**defaults, **settings}).fit(model, (X, Y))


def ridge(*precisions: float) -> torch.Tensor:
    """``(weight, bias)`` that minimises squared error / (2 x .25) + precision / 2 w^2."""
    design = torch.cat([X, torch.ones_like(X)], 1)
    return torch.linalg.solve(
        design.T @ design / 0.25 + torch.diag(torch.tensor(precisions, dtype=torch.float64)),
        design.T @ Y / 0.25,
    )


def test_map_reaches_the_posterior_mean_of_the_conjugate_regression():
    draw = fit(Normal(1.0)).draw(1)[0]
    assert draw.tolist() == pytest.approx([0.853125, -0.31875], abs=1e-5)
    assert ridge(1.0, 1.0).tolist() == pytest.approx([0.853125, -0.31875], abs=1e-9)


def test_temperature_zero_is_maximum_likelihood():
    assert fit(temperature=0.0).draw(1)[0].tolist() == pytest.approx(ridge(0.0, 0.0).tolist(), abs=1e-5)


@pytest.mark.parametrize("temperature", [0.1, 10.0])
def test_the_temperature_multiplies_the_priors_precision(temperature):
    assert fit(temperature=temperature).draw(1)[0].tolist() == pytest.approx(
        ridge(temperature, temperature).tolist(), abs=1e-4
    )


def test_the_optimum_does_not_depend_on_the_batch_size():
    # the mutant that divides the prior by the number of batches lands at ridge(1/3, 1/3): .866, not .853
    found = fit(batch_size=2, epochs=700, learning_rate=0.02).draw(1)[0]
    assert found.tolist() == pytest.approx(ridge(1.0, 1.0).tolist(), abs=3e-3)
    assert abs(found[0].item() - ridge(1 / 3, 1 / 3)[0].item()) > 6e-3


def test_priors_of_single_parameters_are_used():
    found = fit(PerParameter({"weight": Normal(0.2), "bias": Normal(5.0)})).draw(1)[0]
    assert found.tolist() == pytest.approx(ridge(25.0, 0.04).tolist(), abs=1e-5)


def test_point_estimates_have_no_prior():
    assert fit(Normal(1.0), "bias").draw(1)[0].tolist() == pytest.approx(ridge(1.0, 0.0).tolist(), abs=1e-5)


def test_a_strong_laplace_prior_holds_the_weights_at_zero():
    assert fit(Laplace(1e-3), epochs=500).draw(1).abs().max() < 2e-2


def test_a_learned_noise_is_the_residuals_standard_deviation():
    torch.manual_seed(0)
    model = sb.Model(nn.Linear(1, 1).double(), sb.Gaussian())
    posterior = sb.MAP(epochs=600, learning_rate=0.05, temperature=0.0, schedule=sb.Schedule.COSINE).fit(
        model, (X, Y)
    )
    residual = (posterior.predict(X).mean - Y).square().mean()
    assert posterior.predict(X).aleatoric[0].item() == pytest.approx(residual.item(), rel=1e-3)


def test_one_atom_has_no_epistemic_uncertainty():
    posterior = fit(epochs=2)
    assert posterior.distribution.support == 1
    assert posterior.predict(X, draws=64).draws == 1
    assert posterior.predict(X).epistemic.max() == 0


def test_batch_norm_statistics_are_those_of_training():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4, momentum=None), nn.Linear(4, 1)).double()
    posterior = sb.MAP(epochs=1, batch_size=6, learning_rate=1e-12).fit(
        sb.Model(network, sb.Gaussian(noise=1.0)), (X, Y)
    )
    hidden = network[0](X).detach()
    statistics = {
        slot.name: posterior.draw(1)[0, slot.start : slot.stop]
        for slot in posterior.layout.of_kind("statistic")
    }
    assert torch.allclose(statistics["1.running_mean"], hidden.mean(0), atol=1e-9)
    assert torch.allclose(statistics["1.running_var"], hidden.var(0), atol=1e-9)
    assert torch.equal(network[1].running_mean, torch.zeros(4, dtype=torch.float64))
