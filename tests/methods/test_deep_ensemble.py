"""Deep ensembles: members from starts of their own, equal weights, the same numbers in any executor."""

import itertools
import multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import singularbayes as sb
from singularbayes.distributions import MixtureDistribution, StoredDraws
from singularbayes.methods.ensembles import reinitialized
from singularbayes.random import derive

SOURCE = torch.Generator().manual_seed(1)
X = torch.randn(40, 3, generator=SOURCE) * torch.tensor([1.0, 10.0, 0.1])
Y = (X[:, 0] > 0).long()


def model_of(network: nn.Module | None = None, **choice) -> sb.Model:
    torch.manual_seed(2)
    default = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))
    return sb.Model(network or default, sb.Categorical(), **choice)


ENSEMBLE = sb.DeepEnsemble(members=3, member=sb.MAP(epochs=2, batch_size=16))


def test_members_differ_in_start_and_in_order():
    draws = ENSEMBLE.fit(model_of(), (X, Y)).draw(3)
    for one, two in ((0, 1), (0, 2), (1, 2)):
        assert (draws[one] - draws[two]).abs().max() > 0.05
    torch.manual_seed(0)
    same_start = sb.DeepEnsemble(members=2, member=sb.MAP(epochs=2, batch_size=16), reinitialize=False)
    one, two = same_start.fit(model_of(nn.Sequential(nn.Linear(3, 2))), (X, Y)).draw(2)
    assert not torch.equal(one, two), "orders differ"
    assert (one - two).abs().max() < 0.05


@dataclass(frozen=True)
class Noting:
    """A member that notes how it starts, and the order of the rows in each of its steps."""

    starts: list[Tensor]
    orders: list[list[float]]
    seed: int | None = None  # in place of the ensemble's

    def fit(self, model: sb.Model, data, validation=None, *, seed, checkpoint=None, progress=None):
        self.starts.append(model.network[0].weight.detach().clone())
        order: list[float] = []
        self.orders.append(order)
        watched = nn.Sequential(Watch(order), *model.network)
        seed = seed if self.seed is None else self.seed
        return sb.MAP(epochs=2, batch_size=8).fit(sb.Model(watched, model.likelihood), data, seed=seed)


class Watch(nn.Module):
    """Notes the first column of what it sees in training; copies note in the same list."""

    def __init__(self, order: list[float]) -> None:
        super().__init__()
        self.order = order

    def __deepcopy__(self, memo: dict) -> "Watch":
        return Watch(self.order)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.order.extend(x[:, 0].tolist())
        return x


def starts_and_orders(**settings) -> tuple[bool, bool]:
    """Whether all members of an ensemble of four start apart, and whether all see another order."""
    seed, reinitialize = settings.get("seed"), settings.get("reinitialize", True)
    member = Noting([], [], seed)
    network = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
    sb.DeepEnsemble(members=4, member=member, reinitialize=reinitialize).fit(model_of(network), (X, Y))
    rows = sorted(X[:, 0].tolist())
    for order in member.orders:  # each epoch holds every row once
        assert sorted(order[:40]) == sorted(order[40:80]) == pytest.approx(rows)
    pairs = list(itertools.combinations(range(4), 2))
    apart = all((member.starts[i] - member.starts[j]).abs().max() > 0.05 for i, j in pairs)
    shuffled = all(member.orders[i] != member.orders[j] for i, j in pairs)
    return apart, shuffled


def test_all_members_have_starts_and_data_orders_of_their_own():
    assert starts_and_orders() == (True, True)
    assert starts_and_orders(seed=0) == (True, False)  # mutant: one data order for all
    assert starts_and_orders(reinitialize=False) == (False, True)  # mutant: one start for all


def test_the_prediction_is_the_mean_over_members_of_their_own_networks():
    posterior = ENSEMBLE.fit(model_of(), (X, Y))
    assert isinstance(posterior.distribution, StoredDraws)
    parts = []
    for row in posterior.draw(3):
        network = model_of().copy_network().eval()
        posterior.layout.write(network, row)
        parts.append(network(X).softmax(-1))
    predictive = posterior.predict(X)
    assert predictive.draws == 3
    assert torch.allclose(predictive.mean, torch.stack(parts).mean(0), atol=1e-5)
    assert predictive.epistemic.min() >= 0


def test_a_process_pool_gives_the_same_numbers():
    alone = ENSEMBLE.fit(model_of(), (X, Y), (X[:10], Y[:10]), seed=5)
    spawn = multiprocessing.get_context("spawn")
    # the last bits depend on the number of threads, so the worker has one as this process has
    with ProcessPoolExecutor(1, mp_context=spawn, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        method = sb.DeepEnsemble(members=3, member=ENSEMBLE.member, executor=pool)
        pooled = method.fit(model_of(), (X, Y), (X[:10], Y[:10]), seed=5)
    assert torch.equal(alone.draw(3), pooled.draw(3))
    assert alone.info["history"] == pooled.info["history"]


def test_threads_are_refused():
    with (
        ThreadPoolExecutor(1) as pool,
        pytest.raises(TypeError, match="threads share torch's global random state"),
    ):
        sb.DeepEnsemble(executor=pool)


def test_members_of_any_method_are_one_mixture():
    method = sb.DeepEnsemble(members=2, member=sb.MeanField(epochs=1))
    posterior = method.fit(model_of(), (X, Y))
    assert isinstance(posterior.distribution, MixtureDistribution)
    parts = [part.mean for part in posterior.distribution.components]
    draws = posterior.draw(200)
    for number, mean in enumerate(parts):
        gap = (draws[number::2].mean(0) - mean).abs()
        assert (gap < 5 * posterior.distribution.components[number].variance.sqrt() / 10 + 1e-5).all()


LAPLACE = sb.Pretrained(point=sb.MAP(epochs=10, learning_rate=0.03), member=sb.LaplaceApproximation())


def test_members_that_are_linearised_each_at_its_own_weights_keep_their_networks(tmp_path):
    # read with the first one's network and noise, as all once were, the mean is off by .1 and more
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1))
    model = sb.Model(network, sb.Gaussian(noise=1.0))
    y = (X[:, 0] * X[:, 2]).tanh()
    posterior = sb.DeepEnsemble(members=2, member=LAPLACE).fit(model, (X, y))
    assert isinstance(posterior, sb.MixturePosterior)
    assert posterior.info["method"] == "DeepEnsemble"
    alone = []
    for number in range(2):
        seed = derive(0, "member", number)
        alone.append(LAPLACE.fit(reinitialized(model, seed), (X, y), seed=seed))
    parts = [member.predict(X, draws=16, seed=derive(0, "member", n)) for n, member in enumerate(alone)]
    found = posterior.predict(X, draws=32)
    torch.testing.assert_close(found.mean, torch.stack([p.mean for p in parts]).mean(0))
    first = alone[0]
    wrong = [first.functions(member.draw(16), X)[..., 0].mean(0) for member in alone]
    assert (torch.stack(wrong).mean(0) - found.mean).abs().max() > 0.1
    posterior.save(tmp_path)
    again = sb.load(tmp_path, network)
    torch.testing.assert_close(again.predict(X, draws=32).mean, found.mean)


class Noise(sb.MAP):
    """Members that each find a noise level, as a likelihood of their own."""

    def fit(self, model, data, validation=None, *, seed, checkpoint=None, progress=None):
        found = super().fit(model, data, seed=seed)
        likelihood = sb.Gaussian(noise=1.0 + seed % 7)
        return sb.Posterior(found.network, found.distribution, likelihood, found.layout, found.info)


def test_members_of_other_noise_levels_keep_them():
    model = sb.Model(nn.Linear(3, 1), sb.Gaussian(noise=1.0))
    posterior = sb.DeepEnsemble(members=3, member=Noise(epochs=1)).fit(model, (X, X[:, 0]))
    levels = [1.0 + derive(0, "member", n) % 7 for n in range(3)]
    assert len(set(levels)) > 1
    aleatoric = posterior.predict(X).aleatoric
    assert aleatoric[0].item() == pytest.approx(sum(level**2 for level in levels) / 3, rel=1e-6)


def test_a_learned_noise_level_is_part_of_the_vector_wherever_it_started():
    member = sb.Pretrained(point=sb.MAP(epochs=2), member=sb.SWAG(epochs=4, start_epoch=0))
    posterior = sb.DeepEnsemble(members=2, member=member).fit(
        sb.Model(nn.Linear(3, 1), sb.Gaussian()), (X, X[:, 0])
    )
    assert isinstance(posterior.distribution, MixtureDistribution)


class Body(nn.Module):
    """A frozen body under a trained head, with a buffer of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).requires_grad_(False)
        self.register_buffer("shift", torch.randn(4))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x) + self.shift))


@pytest.mark.filterwarnings("ignore:nothing in body is trained")  # its statistics move, on purpose
def test_a_frozen_body_is_the_same_in_every_member():
    network = Body()
    with torch.no_grad():
        network.body[1].running_mean += 2.0
    fresh = reinitialized(model_of(network), 3).network
    for name, tensor in network.state_dict().items():
        assert torch.equal(fresh.state_dict()[name], tensor) == (not name.startswith("head")), name
    posterior = ENSEMBLE.fit(model_of(network), (X, Y))
    assert torch.equal(posterior.network.body[0].weight, network.body[0].weight)


def test_parameters_that_are_not_chosen_keep_their_values():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    fresh = reinitialized(model_of(network, bayesian="2.weight"), 3).network
    assert torch.equal(fresh[0].weight, network[0].weight)
    assert torch.equal(fresh[2].bias, network[2].bias)
    assert not torch.equal(fresh[2].weight, network[2].weight)


def test_new_starts_follow_the_seed_alone_and_leave_the_network():
    model = model_of()
    before = {name: tensor.clone() for name, tensor in model.network.state_dict().items()}
    state = torch.get_rng_state()
    one, two, other = (reinitialized(model, seed).network.state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(one["0.weight"], two["0.weight"])
    assert not torch.equal(one["0.weight"], other["0.weight"])
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.network.state_dict().items())


def test_ties_stay_tied_in_every_member():
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    fresh = reinitialized(model_of(nn.Sequential(nn.Linear(3, 4), first, second, nn.Linear(4, 2))), 1).network
    assert fresh[1].weight is fresh[2].weight


def test_attention_starts_as_torch_starts_it():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    fresh = reinitialized(sb.Model(nn.Sequential(layer), sb.Categorical()), 1).network[0]
    assert torch.equal(fresh.self_attn.out_proj.bias, torch.zeros(8))
    assert not torch.equal(fresh.self_attn.in_proj_weight, layer.self_attn.in_proj_weight)


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(3))
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x * self.gain)


def test_modules_that_cannot_be_reset_are_named():
    with pytest.warns(UserWarning, match="^Own cannot be drawn anew"):
        reinitialized(model_of(Own()), 1)
    normed = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)))
    with pytest.warns(UserWarning, match="^0 cannot be drawn anew"):
        reinitialized(model_of(normed), 1)


def test_every_member_has_a_checkpoint_of_its_own(tmp_path):
    one = ENSEMBLE.fit(model_of(), (X, Y), checkpoint=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["member-0", "member-1", "member-2"]
    assert torch.equal(ENSEMBLE.fit(model_of(), (X, Y), checkpoint=tmp_path).draw(3), one.draw(3))


def test_info_sums_the_members():
    posterior = ENSEMBLE.fit(model_of(), (X, Y))
    parameters = sum(p.numel() for p in model_of().network.parameters())
    assert posterior.info["numbers"] == 3 * parameters
    assert posterior.info["settings"]["members"] == 3
    assert len(posterior.info["history"]) == 3


@pytest.mark.parametrize("members", [0, -1, True])
def test_the_number_of_members_is_checked(members):
    with pytest.raises(ValueError, match="members must be a whole number"):
        sb.DeepEnsemble(members=members)


def test_a_member_that_is_no_method_is_refused():
    with pytest.raises(TypeError, match="member must be a method"):
        sb.DeepEnsemble(member=3)
