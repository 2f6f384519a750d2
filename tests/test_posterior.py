"""A posterior: draws, predictions, calibration, files."""

import copy
import gc
import json
import math
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import singularbayes as sb
from singularbayes.distributions import DiagonalGaussian, MixtureDistribution, StoredDraws
from singularbayes.parameters import Layout
from singularbayes.posterior import Posterior, load


def gaussian_posterior(
    network: nn.Module, std: float = 0.3, likelihood=None, dtype: torch.dtype = torch.float32, **choice
) -> Posterior:
    """Independent Gaussians around a network's weights."""
    network = copy.deepcopy(network).to(dtype)
    likelihood = likelihood or sb.Categorical()
    layout = Layout.of(network, likelihood=likelihood.parameters, **choice)
    mean = layout.flatten(network, likelihood.parameters)
    scale = torch.zeros_like(mean)
    scale[: layout.belief] = std
    return Posterior(
        network,
        DiagonalGaussian(mean, scale),
        likelihood,
        layout,
        {"method": "hand", "numbers": layout.trained},
    )


def mlp(outputs: int = 3) -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, outputs))


def normed() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


X = torch.linspace(-2, 2, 41).unsqueeze(1) * torch.tensor([1.0, 10.0])


def test_draws_have_the_distributions_mean_and_variance():
    posterior = gaussian_posterior(mlp(), std=0.3, deterministic="2.bias")
    n = 4000
    draws = posterior.draw(n).double()
    believed = posterior.layout.belief
    z = (draws.mean(0) - posterior.distribution.mean) / (0.3 / math.sqrt(n))
    assert z[:believed].abs().max() < 4.5  # 96 entries: false alarm 7e-4
    ratio = draws[:, :believed].var(0, correction=0) / 0.09
    assert (ratio - 1).abs().max() < 4.5 * math.sqrt(2 / n)
    assert torch.equal(draws[:, believed:].float(), posterior.distribution.mean[believed:].expand(n, -1))
    assert not draws.requires_grad


@pytest.mark.parametrize("n", [1, 15, 16, 17, 40])
def test_draws_do_not_depend_on_how_many_are_asked_for(n):
    posterior = gaussian_posterior(mlp())
    assert torch.equal(posterior.draw(n, seed=3), posterior.draw(50, seed=3)[:n])
    assert not torch.equal(posterior.draw(n, seed=3), posterior.draw(n, seed=4))


@pytest.mark.parametrize("build", [mlp, normed])
def test_predictions_do_not_depend_on_the_batch_size_and_leave_the_global_state(build):
    posterior = gaussian_posterior(build())
    before = torch.get_rng_state()
    whole = posterior.predict(X, draws=20, seed=1)
    assert torch.equal(whole.log_probs, posterior.predict(X, draws=20, seed=1).log_probs)
    for batch_size in (1, 7, 41, 1000):
        parts = posterior.predict(X, draws=20, seed=1, batch_size=batch_size)
        assert (whole.log_probs - parts.log_probs).abs().max() < 1e-5
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("batch_size", [0, -1])
def test_a_batch_size_below_one_is_refused(batch_size):
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        gaussian_posterior(mlp()).predict(X, batch_size=batch_size)


@pytest.mark.parametrize("draws", [0, -3])
def test_fewer_than_one_draw_is_refused(draws):
    posterior = gaussian_posterior(mlp())
    with pytest.raises(ValueError, match="draws must be at least 1"):
        posterior.predict(X, draws=draws)
    with pytest.raises(ValueError, match="draws must be at least 1"):
        posterior.draw(draws)


def test_a_prediction_is_the_draws_functions_under_the_likelihood():
    posterior = gaussian_posterior(mlp())
    outputs = posterior.functions(posterior.draw(10, seed=2), X)
    expected = outputs.softmax(-1).mean(0)
    assert torch.allclose(posterior.predict(X, draws=10, seed=2).mean, expected, atol=1e-6)
    assert not torch.allclose(outputs.mean(0).softmax(-1), expected, atol=1e-3)  # the mutant: averaged logits


def test_total_variance_is_the_law_of_total_variance_with_a_noise_of_each_draw():
    network = mlp(1)
    likelihood = sb.Gaussian(initial_noise=0.5)
    posterior = gaussian_posterior(network, likelihood=likelihood)
    slot = posterior.layout.of_kind("likelihood")[0]
    mean, std = posterior.distribution.mean, posterior.distribution.std.clone()
    std[slot.start] = 0.3  # a belief about the noise too
    posterior = Posterior(posterior.network, DiagonalGaussian(mean, std), likelihood, posterior.layout, {})
    predictive = posterior.predict(X, draws=12)
    rows = posterior.draw(12)
    noise = (2 * rows[:, slot.start]).exp().double()
    means = posterior.functions(rows, X).squeeze(-1).double()
    assert torch.allclose(predictive.aleatoric.double(), noise.mean().expand(41), atol=1e-6)
    assert torch.allclose(predictive.epistemic.double(), means.var(0, correction=0), atol=1e-5)
    second_moment = (means.square() + noise.unsqueeze(1)).mean(0)
    assert torch.allclose(predictive.variance.double(), second_moment - means.mean(0).square(), atol=1e-4)


def test_one_draw_has_no_epistemic_uncertainty():
    for outputs, likelihood in ((3, sb.Categorical()), (1, sb.Bernoulli()), (1, sb.Gaussian(noise=0.1))):
        predictive = gaussian_posterior(mlp(outputs), likelihood=likelihood).predict(X, draws=1)
        assert predictive.epistemic.abs().max() < 1e-6
        assert torch.isfinite(predictive.entropy).all()


def test_the_mean_posterior_is_bit_identical_twice_and_freezes_nothing():
    posterior = gaussian_posterior(mlp())
    mean = posterior.at_mean()
    assert torch.equal(mean.predict(X, seed=0).mean, mean.predict(X, seed=9).mean)
    assert mean.predict(X).epistemic.abs().max() < 1e-6
    assert torch.allclose(mean.functions(mean.draw(1), X)[0], posterior.network(X), atol=1e-6)
    assert posterior.predict(X, draws=8).epistemic.max() > 1e-3
    assert not torch.equal(posterior.draw(1, seed=0), posterior.draw(1, seed=1))


def test_stored_draws_are_dealt_evenly():
    network = mlp()
    layout = Layout.of(network)
    atoms = torch.randn(6, layout.size)
    posterior = Posterior(network, StoredDraws(atoms), sb.Categorical(), layout, {})
    assert torch.equal(posterior.draw(6), atoms)
    assert torch.equal(posterior.draw(3), atoms[[0, 2, 4]])
    assert posterior.predict(X, draws=64).draws == 6
    many = posterior.draw(20, seed=1)
    counts = [(many == atom).all(1).sum().item() for atom in atoms]
    assert sum(counts) == 20
    assert min(counts) >= 3


@pytest.mark.parametrize(
    "x",
    [
        X.numpy(),
        X.double().numpy(),
        X.tolist(),
        X.T.contiguous().T,
        torch.stack([X, X], 2)[:, :, 0],
        X.double(),
    ],
)
def test_inputs_of_any_kind_give_the_same_prediction(x):
    posterior = gaussian_posterior(mlp())
    assert torch.allclose(posterior.predict(x, draws=4).mean, posterior.predict(X, draws=4).mean, atol=1e-6)


def test_whole_numbers_are_cast_for_a_network_of_real_inputs():
    posterior = gaussian_posterior(mlp())
    whole = np.array([[1, 20], [-1, 3]])
    assert torch.allclose(
        posterior.predict(whole, draws=3).mean, posterior.predict(whole.astype(float), draws=3).mean
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_draws_have_the_networks_dtype(dtype):
    posterior = gaussian_posterior(mlp(), dtype=dtype)
    assert posterior.draw(3).dtype == dtype
    assert torch.isfinite(posterior.predict(X.numpy(), draws=3).mean.float()).all()


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (torch.zeros(3, 5), r"failed on one row of input of shape \(5,\)"),
        (torch.zeros(0, 2), "X is empty"),
        (torch.tensor([[0.0, 1.0], [0.0, float("nan")]]), "X holds nan at row 1, column 1"),
        (np.array([["a", "b"]]), "must be numeric"),
    ],
)
def test_inputs_that_do_not_fit_are_named(x, words):
    with pytest.raises((ValueError, TypeError), match=words):
        gaussian_posterior(mlp()).predict(x)


def test_the_users_inputs_are_not_written_to():
    network = nn.Sequential(nn.ReLU(), nn.Linear(3, 2))
    x = torch.randn(4, 5, 3)
    before = x.clone()
    posterior = gaussian_posterior(network, likelihood=sb.Categorical())
    posterior.functions(posterior.draw(4), x)
    assert torch.equal(x, before)


def test_memory_is_flat_over_many_predictions():
    posterior = gaussian_posterior(mlp())
    x = torch.randn(2000, 2)

    def resident() -> int:
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    if not Path("/proc/self/statm").exists():
        pytest.skip("needs Linux's /proc")
    for _ in range(30):
        posterior.predict(x, draws=16)
    before = resident()
    for _ in range(300):
        predictive = posterior.predict(x, draws=16)
    assert not predictive.log_probs.requires_grad
    # 300 kept predictions would be 300 x 16 x 2000 x 3 x 4 bytes = 115 MB
    assert resident() - before < 16 * 2**20


def test_buffers_of_the_posteriors_network_stay_as_they_are():
    posterior = gaussian_posterior(normed())
    before = {name: tensor.clone() for name, tensor in posterior.network.state_dict().items()}
    posterior.predict(X, draws=20)
    assert all(torch.equal(tensor, before[name]) for name, tensor in posterior.network.state_dict().items())


def test_statistics_of_normalisation_follow_the_draw():
    network = normed()
    layout = Layout.of(network)
    rows = torch.stack([layout.flatten(network)] * 2)
    slot = next(slot for slot in layout.of_kind("statistic") if slot.name == "1.running_mean")
    rows[1, slot.start : slot.stop] += 5.0
    posterior = Posterior(network, StoredDraws(rows), sb.Categorical(), layout, {})
    outputs = posterior.functions(posterior.draw(2), X)
    network.eval()[1].running_mean += 5.0
    assert torch.allclose(outputs[1], network(X), atol=1e-5)
    assert not torch.allclose(outputs[0], outputs[1], atol=1e-2)


# Calibration


def test_calibration_finds_the_temperature_of_the_closed_form():
    # logits (2, 0) x 10, 7 right: T = 2 / ln(7 / 3)
    network = nn.Linear(1, 2)
    with torch.no_grad():
        network.weight.zero_()
        network.bias.copy_(torch.tensor([2.0, 0.0]))
    posterior = gaussian_posterior(network, std=0.0)
    y = torch.tensor([0] * 7 + [1] * 3)
    calibrated = posterior.calibrate((torch.zeros(10, 1), y))
    assert calibrated.info["temperature"] == pytest.approx(2.360445, abs=1e-5)
    assert posterior.likelihood.temperature == 1
    assert calibrated.calibrate((torch.zeros(10, 1), y)).info["temperature"] == pytest.approx(
        2.360445, abs=1e-5
    )


def test_calibration_warns_at_its_bound_and_stays_at_one():
    network = nn.Linear(1, 2)
    with torch.no_grad():
        network.weight.zero_()
        network.bias.copy_(torch.tensor([2.0, 0.0]))
    with pytest.warns(UserWarning, match="ran to its bound"):
        calibrated = gaussian_posterior(network, std=0.0).calibrate(
            (torch.zeros(10, 1), torch.zeros(10, dtype=torch.long))
        )
    assert calibrated.likelihood.temperature == 1


def test_calibration_of_a_regression_scales_the_variance():
    # residuals of variance 4 under unit noise and no epistemic part: T = 4
    network = nn.Linear(1, 1)
    with torch.no_grad():
        network.weight.zero_()
        network.bias.zero_()
    posterior = gaussian_posterior(network, std=0.0, likelihood=sb.Gaussian(noise=1.0))
    calibrated = posterior.calibrate((torch.zeros(4, 1), torch.tensor([2.0, -2.0, 2.0, -2.0])))
    assert calibrated.info["temperature"] == pytest.approx(4.0, abs=1e-4)
    assert calibrated.predict(torch.zeros(1, 1)).variance.item() == pytest.approx(4.0, abs=1e-3)


# Files and copies


class Positions(nn.Module):
    """A frozen parameter, a persistent and a passing buffer, and a tie."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 4, bias=False)
        self.second = nn.Linear(2, 4)
        self.second.weight = self.first.weight
        self.frozen = nn.Parameter(torch.randn(4), requires_grad=False)
        self.register_buffer("shift", torch.randn(4))
        self.register_buffer("passing", torch.ones(4), persistent=False)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.first(x) + self.second(x) + self.frozen + self.shift) * self.passing)


def zeroed(network: nn.Module) -> nn.Module:
    other = copy.deepcopy(network)
    with torch.no_grad():
        for tensor in [*other.parameters(), *(b for n, b in other.named_buffers() if n != "passing")]:
            tensor.zero_()
    return other


@pytest.mark.parametrize("build", [mlp, normed, Positions])
def test_a_saved_posterior_loads_in_a_moved_folder(tmp_path, build):
    network = build()
    posterior = gaussian_posterior(network)
    posterior.save(tmp_path / "räume 1")
    shutil.move(tmp_path / "räume 1", tmp_path / "moved")
    loaded = load(tmp_path / "moved", zeroed(network))
    assert torch.equal(loaded.draw(5), posterior.draw(5))
    assert torch.equal(loaded.predict(X).log_probs, posterior.predict(X).log_probs)
    assert loaded.info == posterior.info
    for name, tensor in posterior.network.state_dict().items():
        if "tracked" not in name:
            assert torch.equal(loaded.network.state_dict()[name], tensor), name


def test_a_mixture_loads_as_the_same_mixture(tmp_path):
    base = gaussian_posterior(mlp())
    parts = tuple(DiagonalGaussian(base.distribution.mean + i, base.distribution.std) for i in range(3))
    posterior = Posterior(base.network, MixtureDistribution(parts), base.likelihood, base.layout, {})
    posterior.save(tmp_path)
    assert torch.equal(load(tmp_path, mlp()).draw(7), posterior.draw(7))


@pytest.mark.parametrize(
    "likelihood",
    [
        sb.Categorical(2.5),
        sb.Bernoulli(0.7),
        sb.Gaussian(noise=0.3, temperature=2.0),
        sb.Gaussian(),
        sb.HeteroscedasticGaussian(beta=0.5),
    ],
)
def test_the_likelihood_is_saved_with_its_temperature(tmp_path, likelihood):
    outputs = {"categorical": 3, "bernoulli": 1, "gaussian": 2 if hasattr(likelihood, "beta") else 1}[
        likelihood.task
    ]
    posterior = gaussian_posterior(mlp(outputs), likelihood=likelihood)
    posterior.save(tmp_path)
    loaded = load(tmp_path, mlp(outputs))
    assert loaded.likelihood == likelihood
    assert torch.equal(loaded.predict(X).variance, posterior.predict(X).variance)


def test_saved_files_hold_no_pickle_and_strict_json(tmp_path):
    posterior = gaussian_posterior(mlp())
    posterior.info |= {"history": [{"nll": float("nan")}], "number": np.float32(1.5), "path": Path("x")}
    posterior.save(tmp_path)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".safetensors"]

    def refuse(name: str) -> None:
        raise AssertionError(name)

    content = json.loads((tmp_path / "posterior.json").read_text(), parse_constant=refuse)
    assert content["info"]["history"] == [{"nll": None}]
    assert content["info"]["number"] == 1.5


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 4)), "2.weight has shape"),
        (nn.Sequential(nn.Linear(2, 16)), "it has no 2.weight"),
    ],
)
def test_a_network_that_does_not_fit_is_named(tmp_path, network, words):
    gaussian_posterior(mlp()).save(tmp_path)
    with pytest.raises(ValueError, match=f"does not fit this posterior: {words}"):
        load(tmp_path, network)


def test_a_folder_of_another_version_is_refused(tmp_path):
    gaussian_posterior(mlp()).save(tmp_path)
    path = tmp_path / "posterior.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    with pytest.raises(ValueError, match="format 99"):
        load(tmp_path, mlp())


def test_an_interrupted_save_leaves_the_posterior_that_was_there(tmp_path, monkeypatch):
    old, new = gaussian_posterior(mlp()), gaussian_posterior(mlp(), std=0.9)
    old.save(tmp_path)
    monkeypatch.setattr(
        "singularbayes.checkpoint.write_json", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    with pytest.raises(KeyboardInterrupt):
        new.save(tmp_path)
    monkeypatch.undo()
    assert torch.equal(load(tmp_path, mlp()).draw(3), old.draw(3))


class Own(sb.Categorical):
    """A likelihood of the user's own."""


def test_a_likelihood_of_the_users_own_is_handed_to_load_again(tmp_path):
    network = mlp()
    posterior = gaussian_posterior(network, likelihood=Own())
    posterior.save(tmp_path)
    with pytest.raises(ValueError, match=r"likelihood of your own \(Own\); pass it"):
        sb.load(tmp_path, network)
    loaded = sb.load(tmp_path, network, likelihood=Own())
    assert torch.equal(loaded.draw(3), posterior.draw(3))
    assert isinstance(loaded.likelihood, Own)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))])
def test_copies_give_the_same_draws(copied):
    posterior = gaussian_posterior(normed())
    posterior.predict(X, draws=2)
    assert torch.equal(copied(posterior).predict(X).log_probs, posterior.predict(X).log_probs)


def test_a_distribution_of_another_size_is_refused():
    network = mlp()
    with pytest.raises(ValueError, match="the distribution has 3 entries and the layout 99"):
        Posterior(network, StoredDraws(torch.zeros(2, 3)), sb.Categorical(), Layout.of(network), {})
