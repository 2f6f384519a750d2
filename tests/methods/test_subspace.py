"""Subspaces: the exact posterior of a linear model in them, by slice sampling and by VI; where they start."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

import singularbayes as sb
from singularbayes.methods.learner import Bound
from singularbayes.methods.plane import Plane
from singularbayes.methods.subspace_vi import BuildPlane, PlaneLearner
from singularbayes.methods.trajectory import Trajectory
from singularbayes.normalization import refreshed
from singularbayes.testing import CLAUSES, check_method

SOURCE = torch.Generator().manual_seed(1)
X = torch.randn(40, 4, generator=SOURCE, dtype=torch.float64) * torch.tensor([1.0, 4.0, 0.3, 1.0])
Y = X @ torch.tensor([0.5, -0.3, 1.0, 0.0], dtype=torch.float64) + 0.4 * torch.randn(
    40, generator=SOURCE, dtype=torch.float64
)
NOISE, T = 0.4, 3.0


def linear() -> sb.Model:
    torch.manual_seed(0)
    return sb.Model(nn.Linear(4, 1).double(), sb.Gaussian(noise=NOISE))


def snapshots(count: int = 9) -> list[nn.Module]:
    """Networks around the optimum; what they span is correlated and badly scaled."""
    source, found = torch.Generator().manual_seed(2), []
    scale = torch.tensor([0.3, 0.02, 0.5, 0.1], dtype=torch.float64)
    for _ in range(count):
        network = nn.Linear(4, 1).double()
        with torch.no_grad():
            drawn = torch.randn(4, generator=source, dtype=torch.float64) * scale
            network.weight.copy_(torch.tensor([0.4, -0.2, 0.6, 0.1]) + drawn + 0.5 * drawn.roll(1))
            network.bias.copy_(0.1 * torch.randn(1, generator=source, dtype=torch.float64))
        found.append(network)
    return found


def exact(k: int, prior_std: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and covariance of w in the subspace, by linear algebra; and its columns."""
    rows = torch.stack([torch.cat([n.weight[0], n.bias]).detach() for n in snapshots()])
    center = rows.mean(0)
    _, s, v = torch.linalg.svd((rows - center) / math.sqrt(len(rows) - 1), full_matrices=False)
    P = prior_std * (s[:k, None] * v[:k]).T
    features = torch.cat([X, torch.ones(40, 1, dtype=torch.float64)], 1)
    precision = torch.eye(k, dtype=torch.float64) + (features @ P).T @ (features @ P) / NOISE**2 / T
    covariance = torch.linalg.inv(precision)
    mean = covariance @ (features @ P).T @ (Y - features @ center) / NOISE**2 / T
    return center + P @ mean, P @ covariance @ P.T, P


def test_slice_sampling_gives_the_exact_posterior_in_the_subspace():
    """Means of 48 independent chains: 5 means and 5 variances of w within 4 standard errors (6e-4)."""
    inference = sb.EllipticalSlice(draws=48 * 20, chains=48, burn_in=15, temperature=T)
    method = sb.Subspace(trajectory=snapshots(), basis=sb.PCA(3), inference=inference, prior_std=2.0)
    draws = method.fit(linear(), (X, Y), seed=1).draw(48 * 20).view(20, 48, 5)
    mean, covariance, _ = exact(3, prior_std=2.0)
    found = torch.cat([draws, (draws - mean).square()], -1).mean(0)
    right = torch.cat([mean, covariance.diagonal()])
    errors = found.std(0) / math.sqrt(48)
    assert ((found.mean(0) - right).abs() / errors).max() < 4
    narrow = torch.cat([exact(3)[0], exact(3)[1].diagonal()])
    assert ((found.mean(0) - narrow).abs() / errors).max() > 6, "prior_std was left out"


@pytest.mark.parametrize("diagonal", [False, True])
def test_vi_reaches_the_closed_form_optimum(diagonal):
    """Full: the exact Gaussian. Diagonal: exact mean, and variances 1 / precision_ii in the coordinates."""
    inference = sb.SubspaceVI(
        epochs=400, batch_size=40, learning_rate=0.05, schedule="cosine", temperature=T, diagonal=diagonal
    )
    method = sb.Subspace(trajectory=snapshots(), basis=sb.PCA(3), inference=inference)
    distribution = method.fit(linear(), (X, Y)).distribution
    mean, covariance, P = exact(3)
    if diagonal:
        full = covariance
        inverse = torch.linalg.inv(torch.linalg.pinv(P) @ covariance @ torch.linalg.pinv(P).T)
        covariance = P @ torch.diag(1 / inverse.diagonal()) @ P.T
        assert (full - covariance).abs().max() > 0.5 * covariance.abs().max(), "the two are told apart"
    found = distribution.factor @ distribution.factor.T
    assert torch.equal(distribution.std, torch.zeros(5, dtype=torch.float64))
    assert ((distribution.mean - mean).abs() / covariance.diagonal().sqrt()).max() < 0.1
    # 400 noisy steps: what is seen is .12 and .03
    assert (found - covariance).abs().max() < 0.15 * covariance.abs().max()


def learner_of(diagonal: bool) -> tuple[PlaneLearner, sb.Model]:
    torch.manual_seed(4)
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    model = sb.Model(network, sb.Categorical(), deterministic="2.bias")
    start = model.layout.flatten(network)
    directions = torch.randn(model.layout.belief, 3, dtype=torch.float64)
    build = BuildPlane(Plane(start, directions), sb.SubspaceVI(diagonal=diagonal, initial_std=0.5))
    gradient = torch.zeros(build.size(model), dtype=torch.float64)
    learner = build(Bound(model, torch.device("cpu"), gradient, start), start, gradient)
    learner.vector += 0.3 * torch.randn(len(learner.vector), dtype=torch.float64)
    return learner, model


@pytest.mark.parametrize("diagonal", [False, True])
def test_vis_gradient_is_autograds(diagonal):
    """Of mean NLL + (T/N) KL at one draw of the noise, with torch.distributions' KL; twice, for leftovers."""
    learner, model = learner_of(diagonal)
    x = torch.randn(9, 3, dtype=torch.float64)
    y, weight = (x[:, 0] > 0).long(), 0.3
    for _ in range(2):
        learner.draw(torch.Generator().manual_seed(5))
        learner.gradient.zero_()
        F.cross_entropy(learner.bound.network(x), y).backward()
        learner.finish(weight, 0.0)

    vector = learner.vector.detach().clone().requires_grad_()
    L = torch.diag(F.softplus(vector[3:6]))
    if not diagonal:
        L = L.index_put(tuple(learner.below), vector[6:])
    w = learner.plane.center.clone()
    beliefs = model.layout.belief
    w = torch.cat([w[:beliefs] + learner.plane.directions @ (vector[:3] + L @ learner.noise), w[beliefs:]])
    q = torch.distributions.MultivariateNormal(vector[:3], scale_tril=L)
    p = torch.distributions.MultivariateNormal(torch.zeros(3).double(), torch.eye(3).double())
    kl = torch.distributions.kl_divergence(q, p)
    loss = F.cross_entropy(functional_call(model.network, model.layout.views(w), x), y) + weight * kl
    loss.backward()
    assert torch.allclose(learner.gradient, vector.grad, rtol=1e-10, atol=1e-14)
    assert math.isclose(learner.regulariser(), kl.item(), rel_tol=1e-12)


# Where snapshots come from

RUN = sb.Collection(epochs=12, start_epoch=2, collect_rate=0.05, batch_size=16)
SLICE = sb.EllipticalSlice(draws=8, burn_in=2)
XC = torch.randn(48, 3, generator=SOURCE) * torch.tensor([1.0, 10.0, 0.1])
YC = (XC[:, 0] > 0).long()


def classifier(**choice) -> sb.Model:
    torch.manual_seed(3)
    network = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 2))
    return sb.Model(network, sb.Categorical(), **choice)


def test_only_what_is_believed_about_moves():
    model = classifier(deterministic="3.bias")
    draws = sb.Subspace(trajectory=RUN, basis=sb.PCA(2), inference=SLICE).fit(model, (XC, YC)).draw(8)
    for slot in model.layout.slots:
        spread = draws[:, slot.start : slot.stop].std(0).max()
        assert (spread > 0) == (slot.kind in ("belief", "statistic")), slot.name


@pytest.mark.parametrize("inference", [SLICE, sb.SubspaceVI(epochs=2, stored_draws=6)])
def test_every_draw_has_statistics_of_its_own_weights(inference):
    """Trap 22. With the centre's statistics for all, the draws' would be equal: the last assertion."""
    model = classifier()
    posterior = sb.Subspace(trajectory=RUN, basis=sb.PCA(2), inference=inference).fit(model, (XC, YC))
    draws = posterior.draw(6)
    whole = [(XC, YC)]  # batches of 64 rows take all 48 at once, so the order does not matter
    assert torch.allclose(refreshed(posterior.network, model.layout, draws, whole), draws, atol=1e-5)
    statistics = draws[:, model.layout.trained :]
    assert statistics.std(0).max() > 1e-4
    assert posterior.info["numbers"] == posterior.support * model.layout.trained


def test_vis_log_has_statistics_from_along_the_way():
    """The centre's are the mean of three networks': at the centre's weights off by .15 nats here."""
    model = classifier()
    point = sb.MAP(epochs=20, learning_rate=0.03)
    modes = sb.DeepEnsemble(members=3, member=point).fit(model, (XC, YC))
    inference = sb.SubspaceVI(epochs=20, batch_size=16, initial_std=0.02)
    method = sb.Subspace(trajectory=modes, basis=sb.PCA(1), inference=inference)
    posterior = method.fit(model, (XC, YC), (XC, YC))
    logged = posterior.info["inference_history"][-1]["validation_nll"]
    assert logged == pytest.approx(-posterior.predict(XC, draws=64).log_prob(YC).mean().item(), abs=0.02)


def test_a_collected_trajectory_gives_what_the_run_gives():
    """From the method's run, from a trajectory handed over, and from a loop of the user's own."""
    model = sb.Model(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), sb.Categorical())
    method = sb.Subspace(basis=sb.PCA(2), inference=SLICE)
    collector, trajectory = method.collector(model), Trajectory(rank=20)
    source = torch.Generator().manual_seed(0)
    networks = []
    for _ in range(8):
        network = model.copy_network()
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=source))
        collector.collect(network)
        trajectory.add(model.layout.flatten(network))
        networks.append(network)
    from_loop = collector.posterior((XC, YC), seed=3)
    for given in (trajectory, networks):
        other = dataclasses.replace(method, trajectory=given).fit(model, (XC, YC), seed=3)
        # the sign of a column may differ, and rounding decides whether a point lies on the slice
        assert torch.allclose(other.network[0].weight, from_loop.network[0].weight, atol=1e-6)
        assert other.info["lengths"] == pytest.approx(from_loop.info["lengths"], rel=1e-4)
    assert from_loop.info["dimension"] == 2


def test_a_killed_fit_goes_on_to_the_same_numbers(tmp_path):
    model = classifier()
    method = sb.Subspace(trajectory=RUN, basis=sb.PCA(2), inference=sb.SubspaceVI(epochs=2, stored_draws=4))
    whole = method.fit(model, (XC, YC), checkpoint=tmp_path / "a").draw(4)
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["inference", "run"]
    again = method.fit(model, (XC, YC), checkpoint=tmp_path / "a").draw(4)
    assert torch.equal(whole, again)
    other = dataclasses.replace(method, prior_std=2.0)
    with pytest.raises(ValueError, match="checkpoint of another fit"):
        other.fit(model, (XC, YC), checkpoint=tmp_path / "a")


def test_a_higher_temperature_is_wider():
    found = []
    for temperature in (1.0, 100.0):
        inference = sb.EllipticalSlice(draws=80, chains=8, burn_in=4, temperature=temperature)
        method = sb.Subspace(trajectory=snapshots(), basis=sb.PCA(2), inference=inference, prior_std=3.0)
        found.append(method.fit(linear(), (X, Y)).info["z_std"][0])
    assert found[1] > 2 * found[0]


@pytest.mark.parametrize("inference", [SLICE, sb.SubspaceVI(epochs=2)])
def test_the_contract_holds_on_factorised_networks(inference):
    torch.manual_seed(3)
    mlp = nn.Sequential(nn.Linear(3, 12), nn.ReLU(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 2))
    run = sb.Collection(epochs=5, start_epoch=1, collect_rate=0.05, batch_size=32)
    method = sb.Subspace(trajectory=run, basis=sb.RandomProjection(3), inference=inference)
    network = sb.factorize(mlp, rank={"0": 2, "2": 3})
    found = check_method(method, network=network, likelihood=sb.Categorical(), data=(XC, YC))
    assert found == list(CLAUSES)


# Errors


def test_too_few_snapshots_are_named_before_any_work():
    with pytest.raises(
        ValueError, match=r"the run would collect 5 snapshots, .* dimension=10 needs at least 11"
    ):
        sb.Subspace(trajectory=sb.Collection(epochs=6, start_epoch=1))
    with pytest.raises(ValueError, match="the trajectory keeps zero snapshots"):
        sb.Subspace(trajectory=Trajectory())
    with pytest.raises(
        ValueError, match=r"the networks given are 9 snapshots.*dimension=9 needs at least 10"
    ):
        sb.Subspace(trajectory=snapshots(), basis=sb.PCA(9)).fit(linear(), (X, Y))
    with pytest.raises(ValueError, match="got no snapshot; expected trained networks"):
        sb.Subspace(trajectory=[]).fit(linear(), (X, Y))


def test_other_architectures_are_named():
    with pytest.raises(
        ValueError, match=r"snapshot 2 has another layout than the model: weight is belief of"
    ):
        sb.Subspace(trajectory=[*snapshots(2), nn.Linear(3, 1)]).fit(linear(), (X, Y))
    walk = Trajectory()
    for number in range(12):
        walk.add(torch.full((7,), float(number)))
    with pytest.raises(ValueError, match="vectors have 7 entries, the model trains 5"):
        sb.Subspace(trajectory=walk, basis=sb.PCA(1)).fit(linear(), (X, Y))


def test_frozen_parts_must_be_the_models():
    def body(bias: float) -> nn.Module:
        network = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)).double()
        nn.init.constant_(network[0].bias, bias)
        network[0].weight.requires_grad_(False).fill_(0.3)
        network[0].bias.requires_grad_(False)
        return network

    model = sb.Model(body(0.0), sb.Gaussian(noise=1.0))
    with pytest.raises(
        ValueError, match=r"0\.bias is frozen, and differs between the model's network and snapshot 1"
    ):
        sb.Subspace(trajectory=[body(0.0), body(1.0), body(0.0)], basis=sb.PCA(1)).fit(model, (X, Y))


def test_a_collected_subspace_needs_the_data():
    collector = sb.Subspace(basis=sb.PCA(1)).collector(linear())
    with pytest.raises(ValueError, match="zero snapshots were collected"):
        collector.posterior((X, Y))
    for network in snapshots(4):
        collector.collect(network)
    with pytest.raises(ValueError, match="needs the training data"):
        collector.posterior()


@pytest.mark.usefixtures("unchecked")
def test_settings_are_checked():
    with pytest.raises(TypeError, match=r"basis must be an object such as PCA\(10\)"):
        sb.Subspace(basis=sb.PCA)
    with pytest.raises(TypeError, match=r"inference must be an object such as EllipticalSlice\(\)"):
        sb.Subspace(inference=3)
    with pytest.raises(ValueError, match="prior_std must be positive"):
        sb.Subspace(prior_std=0.0)
    with pytest.raises(ValueError, match="takes no trajectory"):
        sb.Subspace(basis=sb.CurvePlane(sb.ModeCurve()), trajectory=RUN)
    with pytest.raises(ValueError, match="not made of a trajectory"):
        sb.Subspace(basis=sb.CurvePlane(sb.ModeCurve())).collector(linear())
    with pytest.raises(ValueError, match="temperature must be above 0"):
        sb.SubspaceVI(temperature=0.0)
    with pytest.raises(ValueError, match="works where the subspace lies"):
        sb.SubspaceVI(device="cpu")
    with pytest.raises(ValueError, match="initial_std must be positive"):
        sb.SubspaceVI(initial_std=-1.0)
    with pytest.raises(TypeError, match="snapshot 1 is a int"):
        sb.Subspace(trajectory=[nn.Linear(4, 1).double(), 3]).fit(linear(), (X, Y))
