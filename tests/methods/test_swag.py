"""SWAG: draws have the documented covariance and its mutants have not; statistics of each draw's own."""

import copy
import gc
import math

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

import singularbayes as sb
from singularbayes.distributions import DiagonalGaussian, LowRankGaussian, MixtureDistribution, StoredDraws
from singularbayes.methods import collection, training
from singularbayes.testing import check_method

SOURCE = torch.Generator().manual_seed(0)
X = torch.randn(60, 4, generator=SOURCE) * torch.tensor([1.0, 10.0, 0.1, 1.0])
Y = (X[:, 0] + X[:, 1] / 10 > 0).long()
FIT = {"learning_rate": 0.02, "collect_rate": 0.01, "batch_size": 16}
DRAWS = 20_000


def small() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(2, 2, bias=False), nn.Tanh(), nn.Linear(2, 1))


def snapshots(count: int, seed: int = 0) -> Tensor:
    """Draws ``(count, 7)`` of a correlated, badly scaled Gaussian: four weights, two, and a bias."""
    source = torch.Generator().manual_seed(seed)
    mix = torch.randn(7, 7, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    scales = torch.tensor([1.0, 20.0, 0.05, 3.0, 1.0, 8.0, 0.2], dtype=torch.float64)
    noise = torch.randn(count, 7, generator=source, dtype=torch.float64)
    return noise @ mix * scales + 2 * scales


def collected(method: sb.SWAG, vectors: Tensor) -> sb.Posterior:
    network = small().double()
    collector = method.collector(sb.Model(network, sb.Gaussian(noise=1.0)))
    for w in vectors:
        parts = w.split([4, 2, 1])
        names = ("0.weight", "2.weight", "2.bias")
        shapes = ((2, 2), (1, 2), (1,))
        collector.collect({n: p.view(s) for n, p, s in zip(names, parts, shapes, strict=True)})
    return collector.posterior()


def documented(vectors: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Mean and covariance by the formula, with loops, in float64."""
    columns = [vectors[n - 1] - vectors[:n].mean(0) for n in range(1, len(vectors) + 1)][-rank:]
    low_rank = sum(torch.outer(c, c) for c in columns) / (len(columns) - 1)
    mean = vectors.mean(0)
    variance = (vectors - mean).square().mean(0)
    return mean, 0.5 * (torch.diag(variance) + low_rank)


def misses(draws: Tensor, mean: Tensor, covariance: Tensor) -> float:
    """Largest deviation of a mean, variance or covariance, in standard errors."""
    centred, n = draws.double() - mean, len(draws)
    by_mean = (centred.mean(0).abs() / (covariance.diagonal() / n).sqrt()).max().item()
    error = ((covariance**2 + torch.outer(covariance.diagonal(), covariance.diagonal())) / n).sqrt()
    return max(by_mean, ((centred.T @ centred / n - covariance).abs() / error).max().item())


# 7 means and 28 moments: 4 standard errors are a false alarm of .2 %; the seeds are fixed


@pytest.mark.parametrize(("count", "rank"), [(2, 20), (6, 20), (40, 20), (40, 5)])
def test_draws_have_the_documented_mean_and_covariance(count, rank):
    vectors = snapshots(count)
    posterior = collected(sb.SWAG(rank=rank), vectors)
    assert isinstance(posterior.distribution, LowRankGaussian)
    assert posterior.distribution.factor.shape == (7, min(count, rank))
    assert misses(posterior.draw(DRAWS), *documented(vectors, rank)) < 4


def mutant(kind: str, vectors: Tensor, rank: int) -> Tensor:
    """Draws of samplers that are wrong as public code is."""
    posterior = collected(sb.SWAG(rank=rank), vectors)
    own: LowRankGaussian = posterior.distribution
    source = torch.Generator().manual_seed(2)
    z1 = torch.randn(DRAWS, 7, generator=source, dtype=torch.float64)
    z2 = torch.randn(DRAWS, own.factor.shape[1], generator=source, dtype=torch.float64)
    kept = own.factor.shape[1]
    match kind:
        case "right":
            return own.mean + own.std * z1 + z2 @ own.factor.T
        case "scale for sqrt(scale)":
            return own.mean + math.sqrt(0.5) * (own.std * z1 + z2 @ own.factor.T)
        case "divided by the maximal rank":
            return own.mean + own.std * z1 + z2 @ own.factor.T * math.sqrt((kept - 1) / (rank - 1))
        case "divided by k":
            return own.mean + own.std * z1 + z2 @ own.factor.T * math.sqrt((kept - 1) / kept)
        case "a low-rank noise for each tensor":
            parts = [
                torch.randn(DRAWS, kept, generator=source, dtype=torch.float64) @ block.T
                for block in own.factor.split([4, 2, 1])
            ]
            return own.mean + own.std * z1 + torch.cat(parts, 1)
        case "the sample's variance":
            return own.mean + own.std * math.sqrt(len(vectors) / (len(vectors) - 1)) * z1 + z2 @ own.factor.T
    raise ValueError(kind)


@pytest.mark.parametrize(
    "kind",
    [
        "scale for sqrt(scale)",
        "divided by the maximal rank",
        "divided by k",
        "a low-rank noise for each tensor",
        "the sample's variance",
    ],
)
def test_wrong_samplers_miss_the_documented_covariance(kind):
    vectors = snapshots(6)
    exact = documented(vectors, 20)
    assert misses(mutant("right", vectors, 20), *exact) < 4
    assert misses(mutant(kind, vectors, 20), *exact) > 8


def test_fed_a_posteriors_draws_it_has_half_their_covariances_and_their_variances():
    vectors = snapshots(3000)
    distribution = collected(sb.SWAG(rank=1500), vectors).distribution
    ours = torch.diag(distribution.std**2) + distribution.factor @ distribution.factor.T
    mix = torch.randn(7, 7, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    scales = torch.tensor([1.0, 20.0, 0.05, 3.0, 1.0, 8.0, 0.2], dtype=torch.float64)
    true = (mix.T @ mix) * torch.outer(scales, scales)
    exact = 0.5 * (true + torch.diag(true.diagonal()))
    # half of a covariance from 1500 draws, beside half of a variance from 3000 that hold them: 28 statistics
    # within 4 standard errors of the first, twice that of the diagonal
    error = 0.5 * ((true**2 + torch.outer(true.diagonal(), true.diagonal())) / 1500).sqrt()
    error += torch.diag(error.diagonal())
    assert ((ours - exact).abs() < 4 * error).all()
    assert not ((ours - true).abs() < 4 * error).all()


def test_rank_0_is_the_variances_at_full_scale():
    vectors = snapshots(12)
    posterior = collected(sb.SWAG(rank=0), vectors)
    assert isinstance(posterior.distribution, DiagonalGaussian)
    exact = torch.diag(vectors.var(0, correction=0))
    assert misses(posterior.draw(DRAWS), vectors.mean(0), exact) < 4
    assert posterior.info["numbers"] == 14


@pytest.mark.parametrize("rank", [0, 20])
def test_scale_is_a_factor_on_the_covariance(rank):
    one, four = (collected(sb.SWAG(rank=rank, scale=s), snapshots(6)).distribution for s in (1.0, 4.0))
    assert torch.allclose(four.variance, 4 * one.variance, rtol=1e-12)
    assert torch.equal(four.mean, one.mean)


def test_one_snapshot_divides_by_nothing_and_says_that_there_is_no_width():
    with pytest.warns(UserWarning, match="collapsed to its mean.*collect more"):
        posterior = collected(sb.SWAG(), snapshots(1))
    assert torch.allclose(posterior.draw(3), snapshots(1).expand(3, -1))
    assert posterior.predict(torch.ones(2, 2).double(), draws=5).epistemic.max() == 0


def test_a_fit_collects_once_an_epoch_after_the_start():
    model = sb.Model(small_net(), sb.Categorical())
    posterior = sb.SWAG(epochs=9, start_epoch=3, rank=4, **FIT).fit(model, (X, Y))
    assert posterior.info["collected"] == 6
    assert posterior.distribution.factor.shape[1] == 4
    layout = model.layout
    assert posterior.info["numbers"] == layout.trained + layout.belief * (1 + 4)
    assert posterior.distribution.variance[: layout.belief].min() > 0


def small_net() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 2))


def test_parameters_without_a_belief_are_averaged_and_have_no_spread():
    model = sb.Model(small_net(), sb.Categorical(), deterministic="*bias")
    posterior = sb.SWAG(epochs=6, start_epoch=1, **FIT).fit(model, (X, Y))
    layout, distribution = posterior.layout, posterior.distribution
    assert distribution.std[: layout.belief].min() > 0
    assert not distribution.variance[layout.belief :].any()
    start = layout.flatten(model.network)
    assert (distribution.mean[layout.belief :] != start[layout.belief :]).all()


def test_a_learned_noise_is_averaged():
    model = sb.Model(nn.Linear(4, 1), sb.Gaussian())
    posterior = sb.SWAG(epochs=6, start_epoch=1, **FIT).fit(model, (X / 10, X[:, 0]))
    assert posterior.predict(X).aleatoric.max() < 1


# BatchNorm


def normalised() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))


def gap_to_own_statistics(posterior: sb.Posterior) -> float:
    """Largest relative gap of a draw's statistics to those that torch finds at its weights."""
    layout, worst = posterior.layout, 0.0
    for row in posterior.draw(posterior.distribution.support):
        network = copy.deepcopy(posterior.network)
        network[3].p = 0.0
        layout.write(network, row)
        update_bn([X], network)
        exact = layout.flatten(network)[layout.trained :]
        gap = (row[layout.trained :] - exact).abs() / (exact.abs() + 1e-2)
        worst = max(worst, gap.max().item())
    return worst


@pytest.fixture(scope="module")
def with_batch_norm() -> sb.Posterior:
    method = sb.SWAG(epochs=6, start_epoch=1, stored_draws=7, batch_size=60, collect_rate=0.3)
    return method.fit(sb.Model(normalised(), sb.Categorical(), normalization=True), (X, Y))


def test_statistics_follow_each_stored_draw(with_batch_norm):
    assert isinstance(with_batch_norm.distribution, StoredDraws)
    assert with_batch_norm.distribution.support == 7
    assert gap_to_own_statistics(with_batch_norm) < 1e-3
    assert with_batch_norm.info["numbers"] == 7 * with_batch_norm.layout.trained


def test_statistics_shared_by_the_draws_are_noticed(with_batch_norm):
    draws, trained = with_batch_norm.distribution.draws.clone(), with_batch_norm.layout.trained
    draws[:, trained:] = draws[0, trained:]  # re-estimated once, or never
    shared = sb.Posterior(
        with_batch_norm.network, StoredDraws(draws), sb.Categorical(), with_batch_norm.layout, {}
    )
    assert gap_to_own_statistics(shared) > 0.05


def test_the_stored_draws_are_those_of_the_gaussian(with_batch_norm):
    model = sb.Model(normalised(), sb.Categorical(), normalization=True)
    method = sb.SWAG(epochs=6, start_epoch=1, stored_draws=400, batch_size=60, collect_rate=0.3)
    draws = method.fit(model, (X, Y)).distribution.draws[:, : model.layout.trained]
    mean = sb.SWA(epochs=6, start_epoch=1, batch_size=60, collect_rate=0.3).fit(model, (X, Y))
    error = draws.std(0) / math.sqrt(400)
    gap = (draws.mean(0) - mean.distribution.mean[: model.layout.trained]).abs()
    assert (gap < 4 * error + 1e-6).all()  # 74 statistics that few directions tie together: below .5 %


def test_without_running_statistics_draws_do_not_run_out():
    model = sb.Model(small_net(), sb.Categorical())
    posterior = sb.SWAG(epochs=6, start_epoch=1, **FIT).fit(model, (X, Y))
    assert posterior.distribution.support is None
    assert posterior.predict(X, draws=50).draws == 50


# MultiSWAG


def test_multiswag_is_a_mixture_of_gaussians():
    ensemble = sb.DeepEnsemble(members=3, member=sb.SWAG(epochs=6, start_epoch=2, **FIT))
    posterior = ensemble.fit(sb.Model(small_net(), sb.Categorical()), (X, Y))
    assert isinstance(posterior.distribution, MixtureDistribution)
    parts = posterior.distribution.components
    assert all(isinstance(part, LowRankGaussian) for part in parts)
    means = torch.stack([part.mean for part in parts])
    inside = torch.stack([part.variance for part in parts])
    assert torch.allclose(posterior.distribution.variance, inside.mean(0) + means.var(0, correction=0))
    assert (means.var(0) > inside.mean(0)).float().mean() > 0.8  # different basins
    draws = posterior.draw(6)
    for number, part in enumerate(parts):  # in turn
        assert ((draws[number::3] - part.mean).abs() < 6 * part.variance.sqrt() + 1e-6).all()


def test_multiswag_with_batch_norm_pools_the_stored_draws():
    member = sb.SWAG(epochs=5, start_epoch=1, stored_draws=4, batch_size=60, collect_rate=0.3)
    model = sb.Model(normalised(), sb.Categorical(), normalization=True)
    posterior = sb.DeepEnsemble(members=2, member=member).fit(model, (X, Y))
    assert posterior.distribution.support == 8
    assert gap_to_own_statistics(posterior) < 1e-3


# State


class Killed(BaseException):
    """Stands for a kill."""


@pytest.mark.parametrize("step", [6, 18, 27])  # before the start, within the first rank, after it
@pytest.mark.parametrize("network", [small_net, normalised])
def test_a_killed_run_goes_on_to_the_same_numbers(tmp_path, monkeypatch, network, step):
    method = sb.SWAG(epochs=9, start_epoch=2, rank=3, **FIT)
    model = sb.Model(network(), sb.Categorical())
    unbroken = method.fit(model, (X, Y), seed=4)
    kill(monkeypatch, method, model, tmp_path, step)
    resumed = method.fit(model, (X, Y), seed=4, checkpoint=tmp_path)
    assert torch.equal(unbroken.draw(6), resumed.draw(6))
    assert unbroken.info["history"] == resumed.info["history"]
    finished = method.fit(model, (X, Y), seed=4, checkpoint=tmp_path)  # nothing left to do
    assert torch.equal(unbroken.draw(6), finished.draw(6))
    assert finished.info["collected"] == 7


def kill(monkeypatch, method: sb.SWAG, model: sb.Model, folder, step: int) -> None:
    original, calls = training.Run.step, 0

    def die(self, *args, **options):
        nonlocal calls
        calls += 1
        if calls == step:
            raise Killed
        return original(self, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(training, "_CHECKPOINT_SECONDS", -1.0)
        patch.setattr(training.Run, "step", die)
        with pytest.raises(Killed):
            method.fit(model, (X, Y), seed=4, checkpoint=folder)


def test_a_resumption_that_forgets_what_was_collected_gives_other_numbers(tmp_path, monkeypatch):
    method = sb.SWAG(epochs=9, start_epoch=2, rank=3, **FIT)
    model = sb.Model(small_net(), sb.Categorical())
    unbroken = method.fit(model, (X, Y), seed=4)
    kill(monkeypatch, method, model, tmp_path, 27)
    monkeypatch.setattr(collection.CollectionLearner, "recollect", lambda *_: None)
    resumed = method.fit(model, (X, Y), seed=4, checkpoint=tmp_path)
    assert not torch.equal(unbroken.draw(6), resumed.draw(6))


def test_a_fit_goes_on_to_more_epochs_than_it_was_asked_for(tmp_path):
    model = sb.Model(small_net(), sb.Categorical())
    short, long = (sb.SWAG(epochs=n, start_epoch=2, rank=3, **FIT) for n in (5, 8))
    short.fit(model, (X, Y), checkpoint=tmp_path)
    resumed = long.fit(model, (X, Y), checkpoint=tmp_path)
    assert torch.equal(resumed.draw(4), long.fit(model, (X, Y)).draw(4))


def test_stored_tensors_are_detached_and_predictions_leave_nothing_behind(with_batch_norm):
    continuous = collected(sb.SWAG(), snapshots(6))
    few, many = (with_batch_norm, X[:4], 100), (continuous, torch.ones(4, 2).double(), 1000)
    for posterior, x, count in (few, many):
        for tensor in posterior.distribution.tensors().values():
            assert not tensor.requires_grad
            assert tensor.grad_fn is None
        with torch.enable_grad():
            alive = []
            for number in range(count):
                posterior.predict(x, draws=2, seed=number)
                if number in (10, count - 1):
                    gc.collect()
                    alive.append(sum(type(item) is Tensor for item in gc.get_objects()))
        assert alive[0] == alive[1]


@pytest.mark.parametrize("draws", [1, 3, 8, 20])
def test_a_saved_posterior_draws_the_same_bits(tmp_path, draws):
    posterior = sb.SWAG(epochs=6, start_epoch=1, **FIT).fit(sb.Model(small_net(), sb.Categorical()), (X, Y))
    posterior.save(tmp_path)
    assert torch.equal(sb.load(tmp_path, small_net()).draw(draws), posterior.draw(draws))


# Contract and errors


def factorised() -> nn.Module:
    torch.manual_seed(1)
    return sb.factorize(
        nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)), rank={"2": 2}
    )


@pytest.mark.parametrize(
    "network", [None, factorised, normalised], ids=["default", "factorised", "batch norm"]
)
def test_the_contract(network):
    method = sb.SWAG(epochs=5, start_epoch=1, rank=3, stored_draws=5, **FIT)
    if network is None:
        check_method(method)
    else:
        check_method(method, network=network(), likelihood=sb.Categorical(), data=(X, Y))


def test_settings_that_make_no_posterior_are_refused(unchecked):
    with pytest.raises(ValueError, match=r"start_epoch=161, but epochs=20.*nothing would be collected"):
        sb.SWAG(epochs=20)
    for rank in (1, -2, 2.5, True):
        with pytest.raises(
            ValueError, match=r"rank must be 0 \(diagonal only\) or a whole number of at least 2"
        ):
            sb.SWAG(rank=rank)
    for scale in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="scale is a factor on the covariance"):
            sb.SWAG(scale=scale)
    with pytest.raises(ValueError, match="stored_draws must be a whole number"):
        sb.SWAG(stored_draws=0)


def test_a_learned_prior_is_refused():
    model = sb.Model(small(), sb.Gaussian(noise=1.0), prior=sb.ScaleMixture(learned=True))
    with pytest.raises(ValueError, match="needs MeanField"):
        sb.SWAG(epochs=2, start_epoch=0).fit(model, (X[:, :2], X[:, 0]))
