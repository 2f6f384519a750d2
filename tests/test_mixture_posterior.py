"""Mixtures of posteriors: the law of total variance by brute force, calibration, files, what they refuse."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

import singularbayes as sb
from singularbayes.distributions import DiagonalGaussian, StoredDraws
from singularbayes.gaussians import FullGaussian
from singularbayes.mixture_posterior import MixturePosterior, pooled, shared_out
from singularbayes.parameters import Layout
from singularbayes.posterior import Posterior
from singularbayes.random import derive

X = torch.linspace(-2, 2, 8).unsqueeze(1) * torch.tensor([1.0, 10.0, 0.1, -3.0])  # correlated, badly scaled


class Rows(nn.Module):
    """A small CNN on the four features as a sequence."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv1d(1, 3, 2), nn.Linear(9, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.conv(x.unsqueeze(1))).flatten(1))


def networks(outputs: int) -> list[nn.Module]:
    torch.manual_seed(3)
    mlp = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, outputs))
    wide = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, outputs))
    return [mlp, sb.factorize(wide, rank={"0": 2}), Rows(outputs)]


def around(network: nn.Module, likelihood, std: float = 0.3, method: str = "hand") -> Posterior:
    """Independent Gaussians around a network's weights."""
    layout = Layout.of(network, likelihood=likelihood.parameters)
    mean = layout.flatten(network, likelihood.parameters)
    scale = torch.zeros_like(mean)
    scale[: layout.belief] = std
    info = {"method": method, "numbers": layout.trained, "num_data": 8}
    return Posterior(copy.deepcopy(network), DiagonalGaussian(mean, scale), likelihood, layout, info)


def classes() -> MixturePosterior:
    parts = [around(net, sb.Categorical(t)) for net, t in zip(networks(3), (1.0, 2.0, 0.5), strict=True)]
    return MixturePosterior(parts, [0.5, 0.3, 0.2], {"method": "Mixture"})


def numbers() -> MixturePosterior:
    one, two, _ = networks(1)
    wide = networks(2)[2]
    likelihoods = (
        sb.Gaussian(noise=0.3),
        sb.Gaussian(noise=2.0, temperature=1.7),
        sb.HeteroscedasticGaussian(),
    )
    parts = [around(net, its) for net, its in zip((one, two, wide), likelihoods, strict=True)]
    return MixturePosterior(parts, [0.5, 0.3, 0.2], {"method": "Mixture"})


def pool(mixture: MixturePosterior, draws: int, seed: int) -> list[tuple[float, object]]:
    """Weight and predictive of every single draw of every member, by a loop over functions."""
    found = []
    counts = shared_out(draws, [None] * len(mixture.members))
    for number, (member, weight) in enumerate(zip(mixture.members, mixture.weights, strict=True)):
        own = member.predict(X, counts[number], derive(seed, "member", number))
        for s in range(counts[number]):
            fields = [value[s : s + 1].double() for key, value in vars(own).items() if key != "weights"]
            found.append((weight / counts[number], type(own)(*fields)))
    return found


# The law of total variance


def test_numbers_of_other_networks_and_likelihoods_pool_by_the_law_of_total_variance():
    mixture, draws = numbers(), 20
    predictive, parts = mixture.predict(X, draws, seed=4), pool(mixture, draws, 4)
    assert predictive.draws == draws
    mean = sum(w * p.means[0] for w, p in parts)
    square = sum(w * (p.means[0] ** 2 + p.variances[0]) for w, p in parts)  # E y^2
    torch.testing.assert_close(predictive.mean.double(), mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(predictive.variance.double(), square - mean**2, rtol=1e-5, atol=1e-5)
    noise = sum(w * p.variances[0] for w, p in parts)
    torch.testing.assert_close(predictive.aleatoric.double(), noise, rtol=1e-5, atol=1e-5)
    spread = sum(w * (p.means[0] - mean) ** 2 for w, p in parts)
    torch.testing.assert_close(predictive.epistemic.double(), spread, rtol=1e-5, atol=1e-5)
    y = torch.linspace(-3, 3, 8)
    density = sum(w * p.log_prob(y.double()).exp() for w, p in parts)
    torch.testing.assert_close(predictive.log_prob(y).double(), density.log(), rtol=1e-4, atol=1e-4)
    # mutants: mean of standard deviations, of variances without the members' disagreement, equal weights
    own = [member.predict(X, 7, derive(4, "member", n)) for n, member in enumerate(mixture.members)]
    for wrong in (
        sum(w * p.variance.sqrt() for w, p in zip(mixture.weights, own, strict=True)) ** 2,
        sum(w * p.variance for w, p in zip(mixture.weights, own, strict=True)),
        torch.cat([p.means for p in own]).var(0, correction=0) + noise,
    ):
        assert ((wrong.double() - predictive.variance).abs() > 1e-3).all()


def test_classes_of_other_networks_pool_as_probabilities_each_at_its_own_temperature():
    mixture, draws = classes(), 21
    predictive, parts = mixture.predict(X, draws, seed=1), pool(mixture, draws, 1)
    mean = sum(w * p.log_probs[0].exp() for w, p in parts)
    torch.testing.assert_close(predictive.mean.double(), mean, rtol=1e-5, atol=1e-6)
    total = -(mean * mean.log()).sum(-1)
    expected = -sum(w * (p.log_probs[0].exp() * p.log_probs[0]).sum(-1) for w, p in parts)
    torch.testing.assert_close(predictive.entropy.double(), total, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(predictive.aleatoric.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(predictive.epistemic.double(), total - expected, rtol=1e-4, atol=1e-5)
    logits = sum(w * p.log_probs[0] for w, p in parts).softmax(-1)  # mutant: averaged logits
    assert (logits - mean).abs().amax(1).min() > 1e-3
    for member, temperature in zip(mixture.members, (1.0, 2.0, 0.5), strict=True):
        assert member.likelihood.temperature == temperature
    plain = [around(net, sb.Categorical()) for net in networks(3)]
    without = MixturePosterior(plain, mixture.weights).predict(X, draws, seed=1)  # mutant: temperatures lost
    assert (without.mean - predictive.mean).abs().amax(1).min() > 1e-3


def test_two_conjugate_posteriors_mix_to_the_closed_form():
    x = torch.tensor([-1.0, -0.5, 0.5, 1.5, 2.0, 3.0], dtype=torch.float64)
    y = torch.tensor([-1.1, -1.0, 0.2, 0.9, 1.4, 2.3], dtype=torch.float64)
    design = torch.stack([x, torch.ones_like(x)], 1)
    weights, members, means, variances = [0.15, 0.85], [], [], []
    at = torch.tensor([[-5.0], [0.0], [4.0]], dtype=torch.float64)
    features = torch.cat([at, torch.ones_like(at)], 1)
    for noise, prior in ((0.5, 1.0), (2.0, 0.4)):
        precision = design.T @ design / noise**2 + torch.eye(2, dtype=torch.float64) / prior**2
        mean = torch.linalg.solve(precision, design.T @ y / noise**2)
        factor = torch.linalg.inv(torch.linalg.cholesky(precision)).T
        layer, likelihood = nn.Linear(1, 1, dtype=torch.float64), sb.Gaussian(noise=noise)
        members.append(Posterior(layer, FullGaussian(mean, factor, torch.arange(2)), likelihood,
                                 Layout.of(layer), {}))  # fmt: skip
        means.append(features @ mean)
        variances.append((features @ torch.linalg.inv(precision) * features).sum(1) + noise**2)
    centre = sum(w * m for w, m in zip(weights, means, strict=True))
    within = sum(w * v for w, v in zip(weights, variances, strict=True))
    between = sum(w * (m - centre) ** 2 for w, m in zip(weights, means, strict=True))
    n = 20_000  # an even split: 10,000 of each, also of the one whose weight is .15
    predictive = MixturePosterior(members, weights).predict(at, n)
    parts = [predictive.means[: n // 2], predictive.means[n // 2 :]]
    error = sum(w**2 * p.var(0) / (n // 2) for w, p in zip(weights, parts, strict=True)).sqrt()
    assert ((predictive.mean - centre).abs() < 4 * error).all()  # 3 inputs: false alarm 2e-4
    squares = [(p - centre).square() for p in parts]
    error = sum(w**2 * s.var(0) / (n // 2) for w, s in zip(weights, squares, strict=True)).sqrt()
    assert ((predictive.variance - within - between).abs() < 4 * error + 1e-4).all()
    assert ((predictive.variance - within).abs() > 4 * error + 1e-4).any()  # mutant: no disagreement of means


def test_the_members_of_an_ensemble_with_equal_weights_are_the_ensemble_bit_for_bit():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    ensemble = sb.DeepEnsemble(members=5, member=sb.MAP(epochs=2)).fit(
        sb.Model(network, sb.Categorical()), (X, torch.arange(8) % 3)
    )
    members = [
        Posterior(copy.deepcopy(ensemble.network), StoredDraws(row.unsqueeze(0)), ensemble.likelihood,
                  ensemble.layout, {}) for row in ensemble.draw(5)
    ]  # fmt: skip
    mixture = MixturePosterior(members, [0.2] * 5)
    assert mixture.support == ensemble.support == 5
    one, two = mixture.predict(X), ensemble.predict(X)
    assert one.weights is None
    torch.testing.assert_close(one.log_probs, two.log_probs, rtol=0, atol=1e-6)
    torch.testing.assert_close(one.epistemic, two.epistemic, rtol=0, atol=1e-6)


def test_a_mixture_of_mixtures_is_the_mixture_of_all():
    flat = MixturePosterior(numbers().members, [0.1, 0.54, 0.36])
    inner = MixturePosterior(flat.members[1:], [0.6, 0.4])
    outer = MixturePosterior([flat.members[0], inner], [0.1, 0.9])
    predictive = outer.predict(X, 30)
    assert predictive.weights.sum().item() == pytest.approx(1, abs=1e-12)
    assert predictive.weights[15:].sum().item() == pytest.approx(0.9, abs=1e-12)
    n = 1200
    gap = (outer.predict(X, n).mean - flat.predict(X, n).mean).abs()
    error = (2 * flat.predict(X, n).epistemic / (n / 4)).sqrt()
    assert (gap < 4 * error).all()  # 8 inputs: false alarm below 5e-4


# How draws are dealt


def test_draws_are_split_evenly_and_what_a_finite_posterior_leaves_goes_to_the_others():
    assert shared_out(64, [None, None]) == [32, 32]
    assert shared_out(65, [None, None]) == [33, 32]
    assert shared_out(64, [None, 1, None]) == [32, 1, 31]
    assert shared_out(64, [5, 1]) == [5, 1]
    assert shared_out(1, [None, 3, None]) == [1, 1, 1]  # at least one each
    for draws in (1, 7, 100):
        for supports in ([None, 4, 9], [2, 2], [None]):
            counts = shared_out(draws, supports)
            assert min(counts) >= 1
            assert sum(counts) == max(
                len(supports), min(draws, sum(s if s is not None else draws for s in supports))
            )


def test_a_small_weight_still_gets_its_draws():
    mixture = numbers()
    rare = MixturePosterior(mixture.members[:2], [0.001, 0.999])
    predictive = rare.predict(X, 40)
    assert predictive.draws == 40
    np.testing.assert_allclose(predictive.weights[:20], 0.001 / 20)
    np.testing.assert_allclose(predictive.weights[20:], 0.999 / 20)


def test_a_member_without_weight_is_kept_and_not_predicted_with():
    mixture = numbers()
    broken = around(nn.Sequential(nn.Linear(99, 1)), sb.Gaussian(noise=1.0))
    with_it = MixturePosterior([broken, *mixture.members[:2]], [0.0, 0.4, 0.6])
    assert len(with_it.members) == 3
    assert with_it.predict(X, 10).draws == 10


def test_predictions_follow_the_seed_alone_whatever_the_batch():
    mixture = classes()
    one = mixture.predict(X, 9, seed=3)
    torch.testing.assert_close(one.log_probs, mixture.predict(X, 9, seed=3, batch_size=3).log_probs)
    assert not torch.equal(one.log_probs, mixture.predict(X, 9, seed=4).log_probs)
    twice = MixturePosterior([mixture.members[0]] * 2, [0.5, 0.5]).predict(X, 6)
    assert not torch.allclose(twice.log_probs[:3], twice.log_probs[3:])  # each member has draws of its own


# Calibration


def test_calibration_of_classes_divides_every_logit_by_one_temperature():
    mixture = classes()
    x = torch.randn(200, 4, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 3.0, 0.1, 1.0])
    predictive = mixture.predict(x, 12, seed=2)
    cold = predictive.tempered(0.3).mean  # what the labels follow
    y = torch.multinomial(cold, 1, generator=torch.Generator().manual_seed(1))[:, 0]
    calibrated = mixture.calibrate((x, y), draws=12, seed=2)

    def nll(log_t: float) -> float:
        log_probs = (predictive.log_probs.double() / math.exp(log_t)).log_softmax(-1)
        weights = predictive.weights.view(-1, 1, 1)
        density = (weights * log_probs.exp()).sum(0).gather(1, y.unsqueeze(1))
        return -density.log().mean().item()

    best = minimize_scalar(nll, bounds=(-3, 3), method="bounded", options={"xatol": 1e-10}).x
    assert calibrated.likelihood.temperature == pytest.approx(math.exp(best), rel=1e-5)
    assert calibrated.likelihood.temperature != pytest.approx(1, abs=0.05)
    assert calibrated.info["temperature"] == calibrated.likelihood.temperature
    assert calibrated.weights == mixture.weights
    assert [m.likelihood.temperature for m in calibrated.members] == [1.0, 2.0, 0.5]
    assert -calibrated.predict(x, 12, seed=2).log_prob(y).mean().item() == pytest.approx(nll(best), rel=1e-5)
    averaged = (calibrated.predict(x, 12, seed=2).mean - (
        (predictive.mean.log() / math.exp(best)).softmax(-1))).abs()  # fmt: skip
    assert averaged.max() > 1e-3  # mutant: the mixture's own probabilities are tempered
    again = calibrated.calibrate((x, y), draws=12, seed=2)
    assert again.likelihood.temperature == pytest.approx(calibrated.likelihood.temperature, rel=1e-6)


def test_calibration_of_numbers_scales_the_total_variance_about_the_mixtures_mean():
    mixture = numbers()
    plain = mixture.predict(X, 30, seed=2)
    y = plain.mean + 3 * plain.variance.sqrt() * torch.tensor([1.0, -1, 1, -1, 1, -1, 1, -1])
    hot = mixture.calibrate((X, y), draws=30, seed=2)
    temperature = hot.likelihood.temperature
    assert temperature > 2
    scaled = hot.predict(X, 30, seed=2)
    torch.testing.assert_close(scaled.mean, plain.mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(scaled.variance, temperature * plain.variance, rtol=1e-4, atol=1e-4)
    members = [m.predict(X, 10, derive(2, "member", n)).tempered(temperature)
               for n, m in enumerate(mixture.members)]  # fmt: skip
    alone = pooled(members, mixture.weights).variance  # mutant: each member about its own mean
    assert ((alone - scaled.variance).abs() > 1e-3).all()


def test_a_mixture_is_calibrated_by_a_temperature_alone():
    mixture = classes()
    y = mixture.predict(X, 12).mean.argmax(1)
    y[2] = (y[2] + 1) % 3  # one label of eight is predicted wrong
    default = mixture.calibrate((X, y), draws=12)
    named = mixture.calibrate((X, y), by=sb.Temperature(), draws=12)
    assert named.likelihood == default.likelihood
    assert named.info["calibration"] == "Temperature"
    for by in (sb.VectorScaling(), sb.IsotonicIntervals()):
        with pytest.raises(TypeError, match=rf"by Temperature\(\), got {type(by).__name__}\("):
            mixture.calibrate((X, y), by=by)
    with pytest.raises(ValueError, match="temperature must be positive"):
        MixturePosterior(mixture.members, mixture.weights, temperature=0.0)


def test_calibration_needs_labels():
    with pytest.raises(ValueError, match=r"labels|must be"):
        classes().calibrate([{"x": X}])


# The rest of what a posterior does


def test_a_mixture_is_evaluated_and_diagnosed_as_any_posterior():
    y = torch.arange(8) % 3
    evaluation = sb.evaluate(classes(), (X, y), ood={"far": X + 9}, draws=12, bootstrap=20)
    predictive = classes().predict(X, 12)
    expected = -predictive.log_prob(y).mean().item()
    assert evaluation.metrics["negative_log_likelihood"].value == pytest.approx(expected, rel=1e-5)
    assert evaluation.name == "Mixture"
    assert isinstance(sb.diagnose(evaluation), sb.Diagnosis)
    target = torch.linspace(-1, 1, 8)
    evaluation = sb.evaluate(numbers(), (X, target), ood={"far": X + 9}, draws=12, bootstrap=20)
    predictive = numbers().predict(X, 12)
    crps = sb.metrics.crps(predictive.means, predictive.variances, target, predictive.weights)
    assert evaluation.metrics["crps"].value == pytest.approx(crps, rel=1e-5)


def test_copies_and_another_device_keep_the_predictions():
    mixture = classes()
    expected = mixture.predict(X, 6).log_probs
    for other in (copy.deepcopy(mixture), pickle.loads(pickle.dumps(mixture)), mixture.to("cpu")):
        assert torch.equal(other.predict(X, 6).log_probs, expected)


def test_it_has_no_vector_and_says_what_to_ask_instead():
    mixture = classes()
    for name in ("draw", "functions", "distribution", "layout", "network", "at_mean", "merged"):
        assert not hasattr(mixture, name)
        with pytest.raises(AttributeError, match=rf"no {name}: its members may be different.*members\[0\]"):
            getattr(mixture, name)
    with pytest.raises(AttributeError, match="has no attribute 'mean'"):
        _ = mixture.mean
    assert repr(numbers().calibrate((X, torch.zeros(8)))).startswith("MixturePosterior(0.5 hand, 0.3 hand, ")


def test_a_float64_member_makes_the_mixture_read_float64():
    one = around(networks(1)[0], sb.Gaussian(noise=1.0))
    two = around(networks(1)[2].double(), sb.Gaussian(noise=1.0))
    mixture = MixturePosterior([one, two], [0.5, 0.5])
    assert mixture.dtype == torch.float64
    assert mixture.predict(X.numpy(), 4).means.dtype == torch.float64


# Files


def same(one: MixturePosterior, two: MixturePosterior) -> bool:
    return torch.equal(one.predict(X, 9).log_probs, two.predict(X, 9).log_probs)


def test_a_mixture_loads_with_one_network_a_member(tmp_path):
    torch.manual_seed(1)
    dropped = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.3), nn.Tanh(), nn.Linear(6, 3))
    dropout = sb.MCDropout(epochs=1).fit(sb.Model(dropped, sb.Categorical()), (X, torch.arange(8) % 3))
    inner = MixturePosterior([dropout, classes().members[2]], [0.25, 0.75], {"method": "Mixture"}, 1.5)
    mixture = MixturePosterior([*classes().members[:2], inner], [0.5, 0.3, 0.2], {"seconds": 2.0}, 0.7)
    mixture.save(tmp_path / "run")
    files = {path.name.split("-")[0] for path in (tmp_path / "run").iterdir()}
    assert files == {"mixture.json", "member"}
    (tmp_path / "run").rename(tmp_path / "moved")
    again = sb.load(tmp_path / "moved", [*networks(3)[:2], [copy.deepcopy(dropped), Rows(3)]])
    assert same(mixture, again)
    assert again.weights == mixture.weights
    assert again.info == {"seconds": 2.0}
    assert again.likelihood == mixture.likelihood


def test_one_network_serves_members_that_all_have_its_architecture(tmp_path):
    net = networks(3)[0]
    mixture = MixturePosterior(
        [around(net, sb.Categorical()), around(net, sb.Categorical(), 0.1)], [0.5, 0.5]
    )
    mixture.save(tmp_path)
    assert same(mixture, sb.load(tmp_path, networks(3)[0]))


@pytest.mark.filterwarnings("ignore:the network that was saved")
def test_networks_that_do_not_fit_are_named(tmp_path):
    classes().save(tmp_path / "mixture")
    with pytest.raises(ValueError, match="3 members, got 2 networks; expected one each"):
        sb.load(tmp_path / "mixture", networks(3)[:2])
    with pytest.raises(ValueError, match="member 1 of the mixture: the network does not fit"):
        sb.load(tmp_path / "mixture", networks(3)[0])
    with pytest.raises(ValueError, match="member 0 of the mixture: the network does not fit"):
        sb.load(tmp_path / "mixture", networks(4))
    with pytest.raises(ValueError, match="give likelihood as a list"):
        sb.load(tmp_path / "mixture", networks(3), sb.Categorical())
    classes().members[0].save(tmp_path / "single")
    with pytest.raises(ValueError, match="holds no mixture, so it needs one network"):
        sb.load(tmp_path / "single", networks(3))
    with pytest.raises(ValueError, match="takes one likelihood"):
        sb.load(tmp_path / "single", networks(3)[0], [None])
    with pytest.raises(FileNotFoundError):
        sb.load(tmp_path / "nothing", networks(3)[0])


class Own(sb.Categorical):
    """A likelihood of the user's own."""


def test_a_likelihood_of_ones_own_is_handed_over_in_a_list(tmp_path):
    one, two, _ = networks(3)
    mixture = MixturePosterior([around(one, Own()), around(two, sb.Categorical(2.0))], [0.5, 0.5])
    mixture.save(tmp_path)
    with pytest.raises(ValueError, match=r"member 0.*likelihood of your own \(Own\)"):
        sb.load(tmp_path, networks(3)[:2])
    assert same(mixture, sb.load(tmp_path, networks(3)[:2], [Own(), None]))


def test_a_save_that_is_killed_leaves_the_mixture_of_before(tmp_path, monkeypatch):
    old = classes()
    old.save(tmp_path)
    new = MixturePosterior(list(old.members[::-1]), [0.1, 0.1, 0.8])
    original, saved = Posterior.save, []

    def killed(self, folder):
        saved.append(folder)
        if len(saved) == 3:
            raise KeyboardInterrupt
        original(self, folder)

    monkeypatch.setattr(Posterior, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        new.save(tmp_path)
    monkeypatch.undo()
    assert same(old, sb.load(tmp_path, networks(3)))
    new.save(tmp_path)
    assert same(new, sb.load(tmp_path, networks(3)[::-1]))
    assert len(list(tmp_path.iterdir())) == 4  # nothing of the old one, nothing half-written
    new.save(tmp_path)  # the same once more
    assert same(new, sb.load(tmp_path, networks(3)[::-1]))


def test_a_folder_holds_one_kind_of_posterior_so_that_the_last_one_saved_is_the_one_loaded(tmp_path):
    mixture = classes()
    mixture.save(tmp_path / "mixture")
    with pytest.raises(ValueError, match=r"holds a mixture already .*this is a posterior"):
        mixture.members[0].save(tmp_path / "mixture")
    mixture.members[0].save(tmp_path / "single")
    with pytest.raises(ValueError, match=r"holds a posterior already .*this is a mixture"):
        mixture.save(tmp_path / "single")
    assert same(mixture, sb.load(tmp_path / "mixture", networks(3)))


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"library": "other"}',
        '{"library": "singularbayes", "format": 9}',
        '{"library": "singularbayes", "format": 1}',
    ],
)
def test_damaged_files_are_told(tmp_path, text):
    classes().save(tmp_path)
    (tmp_path / "mixture.json").write_text(text)
    with pytest.raises(ValueError, match=r"damaged|this version reads"):
        sb.load(tmp_path, networks(3))


# What is refused


def test_members_that_do_not_fit_together_are_refused():
    one, other = around(networks(3)[0], sb.Categorical()), around(networks(1)[0], sb.Gaussian())
    with pytest.raises(
        ValueError, match="tasks are categorical, gaussian; a mixture is of posteriors of one"
    ):
        MixturePosterior([one, other], [0.5, 0.5])
    with pytest.raises(ValueError, match=r"member 1 predicts 4 classes .* member 0 3 classes"):
        MixturePosterior([one, around(networks(4)[0], sb.Categorical())], [0.5, 0.5]).predict(X)
    plain = around(networks(1)[0], sb.Gaussian(noise=1.0))
    isotonic = plain.calibrate((X, torch.linspace(-2, 2, 8)), by=sb.IsotonicIntervals())
    with pytest.raises(ValueError, match=r"member 1 has isotonic intervals.*Temperature\(\)"):
        MixturePosterior([plain, isotonic], [0.5, 0.5])
    with pytest.raises(ValueError, match="member 1 has isotonic intervals"):  # before a method is fitted
        sb.Mixture(members=(sb.MAP(), isotonic))
    with pytest.raises(ValueError, match="at least one member"):
        MixturePosterior([], [])
    with pytest.raises(ValueError, match="draws must be at least 1"):
        classes().predict(X, draws=0)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ([0.5, 0.6], r"sum to 1\.1, expected 1"),
        ([1.5, -0.5], "0 or more"),
        ([math.nan, 1.0], "finite"),
        ([1.0], "1 weights for 2 members"),
    ],
)
def test_weights_that_are_none_are_named(weights, words):
    with pytest.raises(ValueError, match=words):
        MixturePosterior(classes().members[:2], weights)
