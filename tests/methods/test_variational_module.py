"""The module for users' own loops: MeanField's gradients, its draws, and what torch does with modules."""

import copy
import dataclasses
import gc
import math
import pickle
import weakref

import pytest
import torch
import torch.distributions as td
import torch.multiprocessing
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

import singularbayes as sb
from singularbayes.divergence import KL, Family
from singularbayes.methods import variational_module
from singularbayes.methods.learner import Bound
from singularbayes.methods.mean_field import BuildMeanField
from singularbayes.priors import Laplace, Normal, PerParameter, ScaleMixture
from singularbayes.random import generator

MIXTURE = ScaleMixture(pi=0.3, std1=0.8, std2=0.1)
LEARNED = dataclasses.replace(MIXTURE, learned=True)


def small(outputs: int = 1) -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, outputs)).double()


def module_of(network: nn.Module, prior=MIXTURE, likelihood=None, choice=None, **settings):
    model = sb.Model(network, likelihood or sb.Gaussian(noise=0.4), prior=prior, **(choice or {}))
    return sb.VariationalModule(model, num_data=50, **settings)


def batch(features: int = 2, rows: int = 6, dtype=torch.float64) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(9)
    x = (
        torch.randn(rows, features, generator=source, dtype=torch.float64)
        * torch.tensor([3.0, 0.2])[:features]
    )
    return x.to(dtype), torch.randn(rows, generator=source, dtype=torch.float64).to(dtype)


# Gradients and the KL against MeanField and torch.distributions

STEPS = {
    "normal closed": (Normal(0.7), None, {}),
    "normal monte carlo": (Normal(0.7), KL.MONTE_CARLO, {}),
    "laplace closed": (Laplace(0.4), None, {}),
    "mixture monte carlo": (MIXTURE, None, {}),
    "mixture bound": (MIXTURE, KL.BOUND, {}),
    "two learned": (
        PerParameter({"0.weight": LEARNED, "0.bias": Normal(), "*": dataclasses.replace(LEARNED, pi=0.6)}),
        None,
        {},
    ),
    "points": (MIXTURE, None, {"deterministic": "*bias"}),
    "some frozen": (MIXTURE, None, {"bayesian": ["0.*", "2.bias"]}),
}


@pytest.mark.parametrize("family", list(Family))
@pytest.mark.parametrize("name", STEPS)
def test_gradients_are_those_of_mean_field_at_the_same_noise(name, family):
    prior, kl, choice = STEPS[name]
    model = sb.Model(small(), sb.Gaussian(initial_noise=0.6), prior=prior, **choice)
    module = sb.VariationalModule(model, num_data=50, kl=kl, family=family, temperature=0.7, seed=3)
    x, y = batch()
    loss = module.loss(x, y)
    loss.backward()

    build = BuildMeanField(sb.MeanField(kl=kl, family=family))
    start = model.layout.flatten(model.network, model.likelihood.parameters)
    gradient = torch.zeros(build.size(model), dtype=start.dtype)
    learner = build(Bound(model, torch.device("cpu"), gradient, start), start, gradient)
    learner.draw(generator(3, "noise", 0, 1))
    bound = learner.bound
    nll = model.likelihood.loss(bound.network(x)[:, 0], y, bound.likelihood_numbers)
    nll.backward()
    learner.finish(0.7 / 50, 1.0)

    parameters = (module.mean, module.point, module.rho, module.prior_numbers)
    ours = torch.cat([p.grad for p in parameters if p is not None])
    torch.testing.assert_close(ours, gradient, rtol=1e-11, atol=1e-12)
    expected = nll.item() + 0.7 / 50 * learner.regulariser()
    assert loss.item() == pytest.approx(expected, rel=1e-12)


class Words(nn.Module):
    """A table that is looked up, and a head."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.table, self.head = nn.Embedding(9, 3), nn.Linear(3, 9)
        if tied:
            self.head.weight = self.table.weight
        self.double()

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.table(ids).mean(1)))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    ("prior", "kl"),
    [(MIXTURE, None), (MIXTURE, KL.BOUND), (MIXTURE, KL.MONTE_CARLO), (Normal(0.7), None), (LEARNED, None)],
)
def test_tables_have_the_estimator_of_mean_field(prior, kl, tied):
    # by default the bound under a mixture; the module had Monte Carlo there
    model = sb.Model(Words(tied), sb.Categorical(), prior=prior)
    module = sb.VariationalModule(model, num_data=50, kl=kl, seed=3)
    ids, y = torch.tensor([[0, 4], [4, 7]]), torch.tensor([1, 2])
    loss = module.loss(ids, y)
    loss.backward()

    build = BuildMeanField(sb.MeanField(kl=kl, compile=True))  # draws all rows, as the module does
    start = model.layout.flatten(model.network)
    gradient = torch.zeros(build.size(model), dtype=start.dtype)
    learner = build(Bound(model, torch.device("cpu"), gradient, start), start, gradient)
    learner.draw(generator(3, "noise", 0, 1))
    nll = nn.functional.cross_entropy(learner.bound.network(ids), y)
    nll.backward()
    learner.finish(1 / 50, 1.0)
    ours = torch.cat([p.grad for p in (module.mean, module.rho, module.prior_numbers) if p is not None])
    torch.testing.assert_close(ours, gradient, rtol=1e-11, atol=1e-12)
    assert loss.item() == pytest.approx(nll.item() + learner.regulariser() / 50, rel=1e-12)


def kl_by_torch(module, noise: Tensor) -> Tensor:
    """One-sample KL to MIXTURE."""
    q = td.Normal(module.mean, nn.functional.softplus(module.rho))
    w = q.loc + q.scale * noise
    mixing = td.Categorical(torch.tensor([MIXTURE.pi, 1 - MIXTURE.pi], dtype=w.dtype))
    stds = torch.tensor([MIXTURE.std1, MIXTURE.std2], dtype=w.dtype)
    p = td.MixtureSameFamily(mixing, td.Normal(torch.zeros_like(stds), stds))
    return (q.log_prob(w) - p.log_prob(w)).sum()


def test_the_monte_carlo_kl_is_at_the_draw_of_the_last_forward_pass():
    module = module_of(small(), seed=5)
    x, _ = batch()
    for number in (0, 1, 2):  # 0: before the first forward pass
        noise = torch.empty_like(module.mean).normal_(generator=generator(5, "noise", 0, number))
        assert module.kl().item() == pytest.approx(kl_by_torch(module, noise).item(), rel=1e-12)
        module(x)
    module.eval()(x)  # the mean is no draw
    noise.normal_(generator=generator(5, "noise", 0, 3))
    assert module.kl().item() == pytest.approx(kl_by_torch(module, noise).item(), rel=1e-12)


@pytest.mark.parametrize("kl", [KL.BOUND, KL.MONTE_CARLO])
def test_the_kl_exists_before_the_first_pass_and_is_equal_in_every_mode(kl):
    # trap 4. bayesian-torch: AttributeError before the first forward pass, as the KL is stashed there.
    module = module_of(small(), kl=kl)
    values = [module.kl().item(), module.eval().kl().item(), module.train().kl().item()]
    with torch.no_grad():
        values.append(module.kl().item())
    assert len(set(values)) == 1
    assert values[0] > 0


@pytest.mark.parametrize("name", ["mean", "rho"])
def test_the_kl_and_the_outputs_use_the_same_parameters(name):
    # trap 3. PyTorch-BayesianCNN: the KL took a tensor that the forward pass did not, and stayed the same.
    module = module_of(small())
    x, _ = batch()
    outputs, kl, state = module(x), module.kl(), copy.deepcopy(module.state_dict())
    for entry in range(len(module.mean)):
        module.load_state_dict(state)
        module.drawn_count.fill_(0)
        with torch.no_grad():
            getattr(module, name)[entry] += 0.1
        assert not torch.equal(module(x), outputs), (name, entry)
        assert module.kl() != kl, (name, entry)


def test_a_scale_that_underflows_keeps_a_finite_kl_and_the_pull_of_mean_field():
    module = module_of(small().float(), prior=Normal(1.0))
    with torch.no_grad():
        module.rho.fill_(-150.0)
    module.kl().backward()
    assert math.isfinite(module.kl().item())
    # autograd through softplus gives 0 (or nan) here; the entropy pulls with 1 nat a unit of rho
    torch.testing.assert_close(module.rho.grad, torch.full_like(module.rho, -1.0))


def test_the_monte_carlo_kl_draws_its_noise_again_after_a_cast():
    module = module_of(small().float(), seed=5)
    module(batch(dtype=torch.float32)[0])
    module.double()
    noise = torch.empty_like(module.mean).normal_(generator=generator(5, "noise", 0, 1))
    assert module.kl().item() == pytest.approx(kl_by_torch(module, noise).item(), rel=1e-12)


# Draws


def test_a_draw_follows_from_seed_rank_and_number_and_leaves_the_global_state_alone(monkeypatch):
    # trap 28. Trainers that seed every process alike: the ranks' noise is equal, and averages nothing.
    x, _ = batch()
    before = torch.get_rng_state()
    module = module_of(small(), seed=7)
    outputs = [module(x), module(x)]
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(*outputs)
    for number, got in enumerate(outputs, 1):
        noise = torch.empty_like(module.mean).normal_(generator=generator(7, "noise", 0, number))
        w = module.mean + nn.functional.softplus(module.rho) * noise
        expected = functional_call(small(), module.model.layout.views(w), (x,))
        torch.testing.assert_close(got, expected, rtol=1e-13, atol=1e-13)
    again = module_of(small(), seed=7)
    assert torch.equal(again(x), outputs[0])
    monkeypatch.setattr(variational_module, "_rank", lambda: 1)
    other = module_of(small(), seed=7)
    assert not torch.equal(other(x), outputs[0])
    assert not torch.equal(module_of(small(), seed=8)(x), outputs[0])


def test_eval_mode_uses_the_mean_twice_the_same_and_nothing_stays_frozen():
    # trap 9. blitz: after freeze() the layers went on without noise.
    module = module_of(small())
    x, _ = batch()
    drawn = module(x)
    module.eval()
    first = module(x)
    assert torch.equal(first, module(x))
    torch.testing.assert_close(first, small()(x), rtol=0, atol=0)
    module.train()
    assert not torch.equal(module(x), first)
    assert not torch.equal(module(x), drawn)


def test_means_that_are_assigned_loaded_or_cast_reach_the_draws():
    # trap 8. blitz: an assigned mean never reached the sampler, which kept a tensor of its own.
    x, _ = batch()
    module = module_of(small())
    with torch.no_grad():
        module.rho.fill_(-60.0)
        module.mean.zero_()
    assert module(x).abs().max() < 1e-20
    module.mean = nn.Parameter(torch.ones_like(module.mean))
    ones = module(x)
    assert ones.abs().min() > 0.1
    module.float()
    torch.testing.assert_close(module(x.float()), ones.float(), rtol=1e-5, atol=1e-6)
    other = module_of(small())
    other.float().load_state_dict(module.state_dict())
    torch.testing.assert_close(other(x.float()), ones.float(), rtol=1e-5, atol=1e-6)
    other.load_state_dict({k: 2 * v for k, v in module.state_dict().items()}, assign=True)
    assert (other.eval()(x.float()) > ones.float().abs().min()).any()
    assert torch.equal(other.mean, 2 * module.mean)


# State


class Tied(nn.Module):
    """An embedding tied to the output projection."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.table(x)))


class Sequence(nn.Module):
    """A recurrent network that asks for its own dtype as many do."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.lstm = nn.LSTM(2, 4, num_layers=2, batch_first=True, bidirectional=False)
        self.head = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(next(self.parameters()).dtype).unsqueeze(1).expand(-1, 3, -1)
        return self.head(self.norm(self.lstm(x)[0][:, -1]))


def trained(module, steps: int, optimizer=None, x=None, y=None):
    optimizer = optimizer or torch.optim.Adam(module.parameters(), lr=0.02)
    if x is None:
        x, y = batch(dtype=module.mean.dtype)
    for _ in range(steps):
        optimizer.zero_grad()
        module.loss(x, y).backward()
        optimizer.step()
    return optimizer


NETWORKS = {"chain": small, "sequence": lambda: Sequence().double()}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_resumed_run_equals_an_unbroken_one_bitwise(name):
    torch.manual_seed(1)
    network = NETWORKS[name]()
    choice = {"bayesian": "*"} if name == "sequence" else {"bayesian": ["0.*"]}
    whole = module_of(network, choice=choice)
    trained(whole, 6)
    first = module_of(network, choice=choice)
    optimizer = trained(first, 3)
    saved = pickle.loads(pickle.dumps((first.state_dict(), optimizer.state_dict())))
    second = module_of(network, choice=choice)
    with torch.no_grad():
        for tensor in (*second.parameters(), *second.buffers()):
            tensor.zero_()  # everything must come from the state
    second.load_state_dict(saved[0])
    optimizer = torch.optim.Adam(second.parameters(), lr=0.02)
    optimizer.load_state_dict(saved[1])
    trained(second, 3, optimizer)
    expected = whole.state_dict()
    assert set(saved[0]) == set(expected)
    for key, value in second.state_dict().items():
        assert torch.equal(value, expected[key]), key
    x, _ = batch()
    assert torch.equal(second.eval()(x), whole.eval()(x))
    # without the counter the noise starts again, and the numbers are others
    third = module_of(network, choice=choice)
    third.load_state_dict({**saved[0], "drawn_count": torch.zeros((), dtype=torch.int64)})
    optimizer = torch.optim.Adam(third.parameters(), lr=0.02)
    optimizer.load_state_dict(saved[1])
    trained(third, 3, optimizer)
    assert not torch.equal(third.mean, whole.mean)


def _loss_in_another_process(module, x, y, queue) -> None:
    queue.put(module.loss(x, y).item())


def test_copies_and_pickles_after_forward_and_backward_go_on_to_the_same_numbers():
    # trap 24. Layers that keep their sample: "Only Tensors created explicitly by the user support deepcopy".
    torch.manual_seed(1)
    module = module_of(Sequence().double())
    trained(module, 1)
    x, y = batch()
    kept = module.loss(x, y)  # a graph that is still to be used
    copies = [
        copy.deepcopy(module),
        pickle.loads(pickle.dumps(module)),
        copy.deepcopy(nn.ModuleList([module]))[0],
    ]
    kept.backward()  # copying took nothing away
    loss = module.loss(x, y).item()
    for other in copies:
        assert other.loss(x, y).item() == loss
        assert {id(t) for t in other.network.parameters()}.isdisjoint(
            id(t) for t in module.network.parameters()
        )
        other.double()
        trained(other, 1)
        assert not torch.equal(other.mean, module.mean)
        assert other.network.norm.running_mean is other.kept.norm.running_mean


@pytest.mark.slow  # a second process imports everything again; the quick tests pickle
def test_a_module_in_a_spawned_process_draws_the_same():
    module = module_of(small())
    trained(module, 1)
    x, y = batch()
    module.loss(x, y)
    context = torch.multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    loss = copy.deepcopy(module).loss(x, y).item()
    process = context.Process(target=_loss_in_another_process, args=(module, x, y, queue))
    process.start()
    assert queue.get() == loss
    process.join()


def test_casts_reach_every_tensor():
    # trap 26. blitz: eps was a plain attribute; .double() and .to() left it behind, and forward failed.
    torch.manual_seed(1)
    module = module_of(Sequence(), choice={"bayesian": ["lstm*"]})
    x, y = batch(dtype=torch.float32)
    trained(module, 1)
    module.double()
    tensors = [
        *module.parameters(),
        *module.buffers(),
        *module.network.parameters(),
        *module.network.buffers(),
    ]
    assert {t.dtype for t in tensors} == {torch.float64, torch.int64}
    assert not any(t.is_leaf and t.requires_grad for t in module.network.parameters())
    trained(module, 1)
    module.loss(x.double(), y.double()).backward()
    assert module.posterior().dtype == torch.float64
    assert nn.Sequential(module).to("meta")[0].network.head.weight.device.type == "meta"


def test_the_state_dict_holds_buffers_and_frozen_parameters_once():
    module = module_of(Sequence(), choice={"bayesian": ["lstm*"]})
    frozen = {"kept.norm.weight", "kept.norm.bias", "kept.head.weight", "kept.head.bias"}
    buffers = {"kept.norm.running_mean", "kept.norm.running_var", "kept.norm.num_batches_tracked"}
    assert set(module.state_dict()) == {"mean", "rho", "drawn_count"} | frozen | buffers
    assert {n for n, p in module.named_parameters() if p.requires_grad} == {"mean", "rho"}
    other = module_of(Sequence(), choice={"bayesian": ["lstm*"]})
    state = {name: value + 1 for name, value in module.state_dict().items()}
    for assign in (False, True):
        other.load_state_dict(copy.deepcopy(state), assign=assign)
        assert torch.equal(other.network.head.weight, state["kept.head.weight"])
        assert torch.equal(other.network.norm.running_var, state["kept.norm.running_var"])


def test_a_module_is_freed_with_its_last_graph():
    module = module_of(small())
    x, y = batch()
    module.loss(x, y)
    gone, weight = weakref.ref(module), weakref.ref(module.network[0].weight)
    del module
    gc.collect()
    assert gone() is None
    assert weight() is None


# Networks


def by_functional_call(module, x: Tensor) -> Tensor:
    noise = torch.empty_like(module.mean).normal_(generator=generator(0, "noise", 0, int(module.drawn_count)))
    w = module.mean + nn.functional.softplus(module.rho) * noise
    row = w if module.point is None else torch.cat([w, module.point])
    slots = module.model.layout.of_kind("belief", "point")
    views = {alias: row[s.start : s.stop].view(s.shape) for s in slots for alias in s.aliases}
    return functional_call(module.model.copy_network(), views, (x,), tie_weights=False)


@pytest.mark.parametrize("name", ["lstm", "tied", "attention", "weight norm"])
def test_every_gradient_equals_functional_call(name):
    torch.manual_seed(2)
    x = batch()[0]
    networks = {
        "lstm": Sequence,
        "tied": Tied,
        "attention": lambda: nn.Sequential(
            nn.Unflatten(1, (2, 1)),
            nn.Linear(1, 4),
            nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True),
        ),
        "weight norm": lambda: nn.Sequential(
            nn.utils.parametrizations.weight_norm(nn.Linear(2, 3)), nn.Tanh()
        ),
    }
    x = torch.arange(5) if name == "tied" else x
    module = module_of(networks[name]().double(), choice={"normalization": True})
    outputs = module(x)
    weights = torch.linspace(-1, 1, outputs.numel(), dtype=torch.float64).view_as(outputs)
    inputs = (module.mean, module.rho)
    ours = torch.autograd.grad((outputs * weights).sum(), inputs)
    expected = torch.autograd.grad((by_functional_call(module, x) * weights).sum(), inputs)
    for got, wanted in zip(ours, expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-12)
        assert bool((got != 0).any())


def test_batch_norm_moves_once_a_call_and_its_statistics_come_along():
    torch.manual_seed(1)
    module = module_of(Sequence().double())
    x, _ = batch()
    trained(module, 2)
    assert int(module.network.norm.num_batches_tracked) == 2
    posterior = module.posterior()
    assert torch.equal(posterior.network.norm.running_var, module.network.norm.running_var)
    assert torch.equal(
        posterior.at_mean().functions(posterior.distribution.mean[None], x)[0], module.eval()(x)
    )


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first, self.second, self.reentrant = nn.Linear(2, 4), nn.Linear(4, 1), reentrant

    def forward(self, x: Tensor) -> Tensor:
        if self.reentrant is None:
            return self.second(torch.tanh(self.first(x)))
        return self.second(checkpoint(lambda x: torch.tanh(self.first(x)), x, use_reentrant=self.reentrant))


def gradient_of(network: nn.Module) -> Tensor:
    module = module_of(network.double())
    x, y = batch()
    module.loss(x.requires_grad_(), y).backward()
    return torch.cat([module.mean.grad, module.rho.grad])


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradients_under_activation_checkpointing_are_exact(reentrant):
    exact = gradient_of(Checkpointed(None))
    torch.testing.assert_close(gradient_of(Checkpointed(reentrant)), exact, rtol=1e-12, atol=1e-14)


def test_functional_call_under_activation_checkpointing_is_wrong_without_a_word():
    """The mutant: weights that are there for the call alone; the backward pass finds the old ones."""
    x, _ = batch()
    gradients = []
    for reentrant in (None, False):
        module = module_of(Checkpointed(reentrant).double())
        module.drawn_count += 1
        (gradient,) = torch.autograd.grad(by_functional_call(module, x).sum(), module.mean)
        gradients.append(gradient)
    assert (gradients[0] - gradients[1]).abs().max() > 0.01 * gradients[0].abs().max()


def test_checkpointing_that_cannot_be_exact_is_refused():
    x, y = batch()
    module = module_of(small())
    loss = checkpoint(module, x, use_reentrant=False).sum()
    with pytest.raises(RuntimeError, match="checkpoint layers inside the network"):
        loss.backward()
    module = module_of(Checkpointed(False).double())
    two = module.loss(x, y) + module.loss(x, y)
    with pytest.raises(RuntimeError, match="weights of a later draw"):
        two.backward()
    plain = module_of(small())
    (plain.loss(x, y) + plain.loss(x, y)).backward()  # without checkpointing both draws have their graphs


def test_two_draws_under_one_autocast_use_their_own_weights():
    torch.manual_seed(1)
    module = module_of(nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 1)))
    x, y = batch(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        together = [module(x), module(x)]
        loss = module.loss(x, y)
    module.drawn_count.zero_()
    for got in together:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(module(x), got)
    assert together[0].dtype == torch.bfloat16
    assert not torch.equal(*together)
    assert loss.dtype == torch.float32
    loss.backward()
    assert bool((module.mean.grad != 0).all())
    # the mutant: leaves that are overwritten under one autocast, whose cache keeps the first draw's cast
    layer = nn.Linear(2, 64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        first = layer(x)
        layer.weight.data = 2 * layer.weight.data
        layer.bias.data = 2 * layer.bias.data
        assert torch.equal(layer(x), first)


# dynamo looks at .grad of the drawn weights and hides the warning, unless warnings are errors
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_a_compiled_module_gives_the_same_numbers_from_one_graph():
    torch._dynamo.reset()
    network = small().float()
    module, plain = module_of(network), module_of(network)
    x, y = batch(dtype=torch.float32)
    compiled = torch.compile(module, backend="aot_eager")
    torch._dynamo.utils.counters.clear()
    for _ in range(3):
        module.objective(compiled(x), y).backward()
        plain.loss(x, y).backward()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    torch.testing.assert_close(module.mean.grad, plain.mean.grad, rtol=1e-5, atol=1e-6)
    assert int(module.drawn_count) == 3


# The posterior


def test_the_posterior_predicts_saves_and_leaves_the_users_network_alone(tmp_path):
    network = small()
    before = copy.deepcopy(network.state_dict())
    module = module_of(network, likelihood=sb.Gaussian(), choice={"deterministic": "*bias"})
    trained(module, 3)
    posterior = module.posterior()
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    x, _ = batch()
    layout, std = module.model.layout, nn.functional.softplus(module.rho)
    torch.testing.assert_close(posterior.distribution.std[: layout.belief], std.detach())
    assert torch.equal(posterior.distribution.mean, torch.cat([module.mean, module.point]))
    posterior.save(tmp_path)
    loaded = sb.load(tmp_path, small())
    assert torch.equal(loaded.predict(x, draws=4).mean, posterior.predict(x, draws=4).mean)
    assert posterior.info["numbers"] == 2 * layout.belief + layout.trained - layout.belief
    trained(module, 1)
    assert torch.equal(loaded.draw(2), posterior.draw(2))  # a posterior is no view of the module


def test_learned_priors_are_in_the_posteriors_facts():
    module = module_of(small(), prior=LEARNED)
    trained(module, 3)
    (prior,) = module.posterior().info["learned_priors"]
    assert prior["std1"] != LEARNED.std1
    assert prior["std1"] == pytest.approx(math.exp(module.prior_numbers[1].item()))


def test_dict_batches_go_to_the_network_by_name():
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(7, 4), nn.Linear(4, 3)

        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
            rows = self.table(input_ids) * attention_mask.unsqueeze(-1)
            return {"logits": self.head(rows.sum(1))}

    module = module_of(Named(), likelihood=sb.Categorical())
    x = {"input_ids": torch.arange(6).view(2, 3), "attention_mask": torch.ones(2, 3)}
    loss = module.loss(x, torch.tensor([0, 2]))
    module.drawn_count.zero_()
    assert torch.equal(module.objective(module(**x), torch.tensor([0, 2])), loss)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_data": 0}, "num_data is the number of training examples"),
        ({"num_data": 2.5}, "num_data is the number of training examples"),
        ({"num_data": 5, "temperature": -1.0}, "temperature must be 0 or positive"),
        ({"num_data": 5, "initial_std": 0.0}, "initial_std must be positive"),
        ({"num_data": 5, "kl": KL.CLOSED}, "no closed form"),
    ],
)
def test_bad_settings_are_refused(settings, message, unchecked):
    with pytest.raises(ValueError, match=message):
        sb.VariationalModule(sb.Model(small(), sb.Gaussian(noise=1.0), prior=MIXTURE), **settings)


def test_half_precision_parameters_and_wrong_labels_are_refused():
    with pytest.raises(ValueError, match="too coarse"):
        module_of(small().bfloat16())
    x, y = batch()
    with pytest.raises(ValueError, match="labels have shape"):
        module_of(small()).loss(x, y[:3])


def test_a_network_with_time_before_the_batch_is_refused_at_the_first_loss():
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.LSTM(3, 4), nn.Linear(4, 1)  # batch_first forgotten

        def forward(self, x):
            return self.head(self.rnn(x)[0][:, -1])

    module = sb.VariationalModule(sb.Model(Last(), sb.Gaussian(noise=1.0)), num_data=6)
    with pytest.raises(ValueError, match="batch_first=True"):
        module.loss(torch.randn(6, 5, 3), torch.randn(6))


def test_a_bare_network_is_no_model(unchecked):
    with pytest.raises(TypeError, match=r"fits an sb\.Model, got Linear; write sb\.Model"):
        sb.VariationalModule(nn.Linear(2, 1), num_data=3)
    for method in (sb.MAP(), sb.MeanField(), sb.IVON(), sb.RankOne(), sb.Precise(), sb.DirectionPrecision(),
                   sb.MCDropout(), sb.DeepEnsemble()):  # fmt: skip
        with pytest.raises(TypeError, match=r"fits an sb\.Model, got Linear; write sb\.Model"):
            method.fit(nn.Linear(2, 1), (torch.randn(3, 2), torch.randn(3)))
