"""Embedding tables in MeanField: rows drawn when looked up, one draw a step, the KL on every row."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import singularbayes as sb
from singularbayes import divergence
from singularbayes.divergence import KL, Family
from singularbayes.methods import diagonal, training
from singularbayes.methods.learner import Bound
from singularbayes.methods.mean_field import BuildMeanField, MeanFieldLearner
from singularbayes.methods.rows import Table
from singularbayes.nn.embedding import LowRankEmbedding
from singularbayes.priors import Laplace, Normal, PerParameter, ScaleMixture
from singularbayes.testing import check_method

VOCABULARY, WIDTH = 40, 3
IDS = torch.tensor([[3, 7, 7, 30], [3, 12, 30, 31], [5, 5, 5, 5]])
SEEN = [3, 5, 7, 12, 30, 31]
Y = torch.tensor([0, 1, 1])
MIXTURE = ScaleMixture(pi=0.3, std1=0.8, std2=0.1)


class Words(nn.Module):
    """Mean of the tokens' embeddings, and a head."""

    def __init__(self, table: nn.Module) -> None:
        super().__init__()
        self.before, self.table, self.head = nn.Linear(1, WIDTH), table, nn.Linear(WIDTH, 2)

    def features(self, ids: Tensor) -> Tensor:
        return torch.tanh(self.table(ids).mean(1) + self.before(ids[:, :1].to(self.head.weight) / 40))

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.features(ids))


class Twice(Words):
    """The table is called for the ids and for others that overlap with them."""

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.table(ids).sum(1) * self.table((ids + 2) % VOCABULARY).mean(1)))


class Named(Words):
    """Calls the table with its argument's name."""

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.table(input=ids).mean(1)))


class Reader(Words):
    """Reads the whole table beside its forward, as a tie without a shared parameter does."""

    def forward(self, ids: Tensor) -> Tensor:
        return F.linear(self.features(ids), self.table.weight)[:, :2]


class Tied(Words):
    """A head that shares the table, as language models have it."""

    def __init__(self, table: nn.Module) -> None:
        super().__init__(table)
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.head.weight = table.weight


class Scaled(nn.Embedding):
    """A table with a forward of its own, which may read anything."""

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) / self.weight.norm()


class Checkpointed(Words):
    """Calls the table again in the backward pass."""

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(checkpoint(self.features, ids, use_reentrant=False))


TABLES: dict[str, Callable[[], nn.Module]] = {
    "full": lambda: nn.Embedding(VOCABULARY, WIDTH, padding_idx=0),
    "low rank": lambda: LowRankEmbedding(VOCABULARY, WIDTH, 2, padding_idx=0),
    "low rank, diagonal": lambda: LowRankEmbedding(VOCABULARY, WIDTH, 1, diagonal=True),
}


def network(kind: type[Words] = Words, table: Callable[[], nn.Module] = TABLES["full"]) -> nn.Module:
    torch.manual_seed(3)
    return kind(table()).double()


def learner_of(method: sb.MeanField, model: sb.Model) -> MeanFieldLearner:
    start = model.layout.flatten(model.network)
    build = BuildMeanField(method)
    gradient = torch.zeros(build.size(model), dtype=start.dtype)
    return build(Bound(model, torch.device("cpu"), gradient, start), start, gradient)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def step(learner: MeanFieldLearner, weight: float = 0.37, seed: int = 0) -> None:
    learner.draw(seeded(seed))
    learner.gradient.zero_()
    F.cross_entropy(learner.bound.network(IDS), Y).backward()
    learner.finish(weight, 1.0)


def slot_of(learner: MeanFieldLearner):
    return next(s for s in learner.bound.layout.slots if s.name in ("table.weight", "table.A"))


def table_of(learner: MeanFieldLearner, flat: Tensor) -> Tensor:
    slot = slot_of(learner)
    return flat[slot.start : slot.stop].view(slot.shape)


# The step


def exact(learner: MeanFieldLearner, make: Callable[[], nn.Module], weight: float = 0.37) -> Tensor:
    """Autograd's gradient with the step's noise in the drawn rows and some other noise in all the rest."""
    model, layout = learner.bound.model, learner.bound.layout
    noise = learner.noise.clone()
    unseen = (table_of(learner, noise) == 0).all(1)
    table_of(learner, noise)[unseen] = torch.randn(int(unseen.sum()), slot_of(learner).shape[1]).double()
    vector = learner.vector.detach().clone().requires_grad_()
    scale = F.softplus(vector[layout.trained : layout.trained + layout.belief])
    w = vector[: layout.belief] + scale * noise
    outputs = torch.func.functional_call(make(), layout.views(w), (IDS,))
    loss = F.cross_entropy(outputs, Y)
    for block, prior in model.prior_blocks:
        kl = divergence.bound(learner.family, prior, vector[block], scale[block])
        loss = loss + weight * kl.sum()
    return torch.autograd.grad(loss, vector)[0]


STEPS = {
    "normal": (Words, "full", Normal(0.7), Family.GAUSSIAN),
    "mixture": (Words, "full", MIXTURE, Family.GAUSSIAN),
    "laplace": (Words, "full", Laplace(0.5), Family.LAPLACE),
    "low rank": (Words, "low rank", MIXTURE, Family.GAUSSIAN),
    "diagonal": (Words, "low rank, diagonal", MIXTURE, Family.LAPLACE),
    "per parameter": (
        Words,
        "low rank",
        PerParameter({"table.A": MIXTURE, "*": Normal(2.0)}),
        Family.GAUSSIAN,
    ),
    "called twice": (Twice, "full", MIXTURE, Family.GAUSSIAN),
    "called twice, low rank": (Twice, "low rank", MIXTURE, Family.GAUSSIAN),
    "called by name": (Named, "full", MIXTURE, Family.GAUSSIAN),
    "recomputed in the backward pass": (Checkpointed, "full", MIXTURE, Family.GAUSSIAN),
}


def distance(name: str) -> float:
    """Largest deviation of a step from drawing every row, relative."""
    kind, table, prior, family = STEPS[name]
    model = sb.Model(network(kind, TABLES[table]), sb.Categorical(), prior=prior)
    learner = learner_of(sb.MeanField(kl=KL.BOUND, family=family), model)
    torch.manual_seed(8)
    learner.vector.add_(0.3 * torch.randn_like(learner.vector))
    step(learner, seed=1)  # its rows are forgotten
    step(learner)
    plain = Words if kind is Checkpointed else kind  # functional_call forgets the weights in a recomputation
    oracle = exact(learner, lambda: network(plain, TABLES[table]))
    return ((learner.gradient - oracle).abs().max() / oracle.abs().max()).item()


@pytest.mark.parametrize("name", STEPS)
def test_a_step_equals_one_that_draws_every_row(name):
    assert distance(name) < 1e-12


def of_the_table(change: Callable[[Tensor, Tensor], Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    """Change the KL's gradient in the table, given the drawn rows."""
    tables: list[Table] = []
    begin = Table.begin

    def spy(self, generator):
        tables[:] = [self]
        begin(self, generator)

    def mutant(family, prior, mean, scale):
        parts = divergence.bound_gradient(family, prior, mean, scale)
        if mean.data_ptr() != tables[0].mean.data_ptr():
            return parts
        return tuple(change(part.view_as(tables[0].mean), tables[0].drawn).reshape(-1) for part in parts)

    monkeypatch.setattr(Table, "begin", spy)
    monkeypatch.setattr(diagonal, "bound_gradient", mutant)


@pytest.mark.parametrize(
    "change",
    [
        lambda part, drawn: part * drawn.unsqueeze(1),  # lazy: unseen rows are not regularised
        lambda part, drawn: part * drawn.unsqueeze(1) / drawn.double().mean(),  # rows weighted by 1 / P
    ],
    ids=["lazy", "row-weighted"],
)
def test_a_kl_on_the_seen_rows_alone_is_another_step(change, monkeypatch):
    of_the_table(change, monkeypatch)
    assert distance("mixture") > 1e-3


def test_a_fresh_draw_at_the_second_call_is_another_step(monkeypatch):
    look_up = Table.look_up

    def forgets(self, ids):
        self.drawn.zero_()
        look_up(self, ids)

    monkeypatch.setattr(Table, "look_up", forgets)
    assert distance("called twice") > 1e-3


# What is drawn


@pytest.mark.parametrize("family", Family)
def test_a_step_draws_the_numbers_of_the_batchs_rows_and_of_the_rest(family):
    model = sb.Model(network(), sb.Categorical(), prior=MIXTURE)
    learner = learner_of(sb.MeanField(family=family, kl=KL.BOUND), model)
    drawn: list[int] = []
    fill = learner._fill

    def count(noise: Tensor, generator: torch.Generator) -> None:
        drawn.append(noise.numel())
        fill(noise, generator)

    learner._fill = count  # type: ignore[method-assign]
    learner.specials[0].fill = count
    rest = learner.beliefs - VOCABULARY * WIDTH
    for _ in range(2):
        drawn.clear()
        step(learner)
        assert sum(drawn) == rest + len(SEEN) * WIDTH
    rows = table_of(learner, learner.noise)
    assert rows.abs().amin(1).nonzero().squeeze(1).tolist() == SEEN
    assert rows[[r for r in range(VOCABULARY) if r not in SEEN]].abs().max() == 0
    weights, sigma = table_of(learner, learner.weights), table_of(learner, learner.sigma)
    expected = table_of(learner, learner.mean) + sigma * rows
    torch.testing.assert_close(weights[SEEN], expected[SEEN])


def drawn_rows(model: sb.Model, **settings) -> int:
    learner = learner_of(sb.MeanField(**settings), model)
    learner.draw(seeded())
    out = learner.bound.network(IDS)
    F.cross_entropy(out, Y).backward()
    weights = table_of(learner, learner.weights)
    rows = table_of(learner, learner.noise).abs().amin(1) > 0
    expected = table_of(learner, learner.mean) + table_of(learner, learner.sigma) * table_of(
        learner, learner.noise
    )
    torch.testing.assert_close(weights[rows], expected[rows])
    return int(rows.sum())


@pytest.mark.parametrize(
    ("kind", "table", "settings", "prior", "rows"),
    [
        (Words, TABLES["full"], {}, MIXTURE, len(SEEN)),
        (Words, TABLES["full"], {"kl": KL.BOUND}, MIXTURE, len(SEEN)),
        (Words, TABLES["full"], {"kl": KL.CLOSED}, Normal(), len(SEEN)),
        (Words, TABLES["full"], {"kl": KL.MONTE_CARLO}, MIXTURE, VOCABULARY),
        (Words, TABLES["full"], {}, ScaleMixture(learned=True), VOCABULARY),
        (Words, TABLES["full"], {"compile": True}, MIXTURE, VOCABULARY),
        (Reader, TABLES["full"], {}, MIXTURE, VOCABULARY),
        (Tied, TABLES["full"], {}, MIXTURE, VOCABULARY),
        (Words, lambda: Scaled(VOCABULARY, WIDTH), {}, MIXTURE, VOCABULARY),
    ],
    ids=[
        "default",
        "bound",
        "closed",
        "Monte Carlo",
        "learned",
        "compiled",
        "read",
        "tied",
        "a forward of its own",
    ],
)
def test_all_rows_are_drawn_where_something_reads_them_all(kind, table, settings, prior, rows):
    assert drawn_rows(sb.Model(network(kind, table), sb.Categorical(), prior=prior), **settings) == rows


@pytest.mark.parametrize("prior", [MIXTURE, Normal(0.7), PerParameter({"table*": MIXTURE, "*": Normal()})])
def test_the_objective_is_the_same_when_compiled(prior):
    # only how many rows are drawn differs, not the estimator: it was Monte Carlo where compile=True
    model = sb.Model(network(), sb.Categorical(), prior=prior)
    eager, compiled = (
        [(each.block, each.kl) for each in learner_of(sb.MeanField(compile=choice), model).stretches]
        for choice in (False, True)
    )
    assert eager == compiled
    table = next(slot for slot in model.layout.of_kind("belief") if slot.name == "table.weight")
    own = [kl for block, kl in compiled if block.start == table.start]
    assert own == [KL.CLOSED if isinstance(prior, Normal) else KL.BOUND]


def test_a_module_is_a_table_to_others_whatever_watches_it():
    learner = learner_of(sb.MeanField(), sb.Model(network(), sb.Categorical()))
    table = learner.bound.network.get_submodule("table")
    assert isinstance(table, nn.Embedding)
    assert type(table).__name__ == "Embedding"
    assert type(network().get_submodule("table")) is nn.Embedding  # the user's is untouched


# The KL on every row


def test_unseen_rows_move_to_the_prior_as_the_kl_alone_has_it():
    model = sb.Model(network(), sb.Categorical(), prior=Normal(0.5))
    method = sb.MeanField(learning_rate=0.02)
    learner = learner_of(method, model)
    learner.vector.grad = learner.gradient
    optimizer = learner.optimizer(0.02)
    mean = table_of(learner, learner.mean).clone().requires_grad_()
    rho = table_of(learner, learner.rho).clone().requires_grad_()
    oracle = torch.optim.Adam([mean, rho], lr=0.02)
    for number in range(300):
        step(learner, weight=0.01, seed=number)
        optimizer.step()
        oracle.zero_grad()
        scale = F.softplus(rho)
        kl = 0.5 * ((mean.square() + scale.square()) / 0.25 - 1 - 2 * (scale / 0.5).log())
        (0.01 * kl.sum()).backward()
        oracle.step()
    unseen = [row for row in range(VOCABULARY) if row not in SEEN]
    torch.testing.assert_close(
        table_of(learner, learner.mean)[unseen], mean.detach()[unseen], atol=1e-9, rtol=0
    )
    torch.testing.assert_close(
        table_of(learner, learner.rho)[unseen], rho.detach()[unseen], atol=1e-9, rtol=0
    )
    start = model.network.get_submodule("table").weight.detach()[unseen].abs().mean()
    assert table_of(learner, learner.mean)[unseen].abs().mean() < 0.1 * start
    assert (table_of(learner, learner.mean)[SEEN] - mean.detach()[SEEN]).abs().max() > 0.01


def test_the_reported_kl_has_every_row():
    learner = learner_of(sb.MeanField(kl=KL.BOUND), sb.Model(network(), sb.Categorical(), prior=MIXTURE))
    step(learner)
    expected = divergence.bound(Family.GAUSSIAN, MIXTURE, learner.mean, learner.sigma).sum().item()
    assert learner.regulariser() == pytest.approx(expected, rel=1e-9)


# The whole fit


def data() -> tuple[Tensor, Tensor]:
    source = seeded(5)
    x = torch.randint(0, VOCABULARY, (60, 6), generator=source)
    return x, (x < 12).any(1).long()


@pytest.mark.parametrize("table", ["full", "low rank"])
def test_the_contract_holds_with_a_table(table):
    net = network(Twice, TABLES[table]).float()
    check_method(sb.MeanField(epochs=2), network=net, likelihood=sb.Categorical(), data=data())


class Killed(BaseException):
    """Stands for a kill."""


def test_a_killed_fit_with_a_table_goes_on_to_the_same_numbers(tmp_path, monkeypatch):
    method = sb.MeanField(epochs=4, batch_size=16)
    model = sb.Model(network().float(), sb.Categorical(), prior=MIXTURE)
    unbroken = method.fit(model, data(), seed=2)
    calls, original = [], training.Run.step

    def die(self, *args, **options):
        calls.append(1)
        if len(calls) == 10:
            raise Killed
        return original(self, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(training, "_CHECKPOINT_SECONDS", -1.0)
        patch.setattr(training.Run, "step", die)
        with pytest.raises(Killed):
            method.fit(model, data(), seed=2, checkpoint=tmp_path)
    resumed = method.fit(model, data(), seed=2, checkpoint=tmp_path)
    assert torch.equal(unbroken.draw(3), resumed.draw(3))
    assert unbroken.info["history"] == resumed.info["history"]


def test_a_fit_learns_the_words_that_matter():
    model = sb.Model(network().float(), sb.Categorical(), prior=sb.Normal(3.0))
    posterior = sb.MeanField(epochs=150, learning_rate=0.05, temperature=0.1).fit(model, data())
    x, y = data()
    assert (posterior.predict(x).mean.argmax(1) == y).double().mean() > 0.9
