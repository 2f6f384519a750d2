"""Ranks by energy, by the bound, by validation and by a certificate; the halving behind the last two."""

import itertools
from typing import ClassVar

import pytest
import torch
from torch import nn

import singularbayes as sb
from singularbayes.methods.training import TrainingDiverged
from singularbayes.theory import (
    AbsoluteError,
    ByBound,
    ByCertificate,
    ByEnergy,
    ByValidation,
    SoftmaxCrossEntropy,
    select_rank,
)
from singularbayes.theory.halving import stages


def trained(seed: int = 0) -> nn.Sequential:
    """Layers of known spectra: 4, 2, 1, then 1e-3; and a head."""
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    for layer in (network[0], network[2]):
        u, v = (torch.linalg.qr(torch.randn(8, 8))[0] for _ in range(2))
        values = torch.tensor([4.0, 2.0, 1.0] + [1e-3] * 5)
        layer.weight.data = u * values @ v.T
    return network


def test_by_energy_is_the_smallest_rank_of_each_layer_that_keeps_the_share():
    choice = select_rank(trained(), ByEnergy(0.94))  # squares 16, 4, 1: .762, .952
    assert choice.rank["0"] == choice.rank["2"] == 2
    assert choice.fits == 0.0
    low = sb.factorize(trained(), choice.rank, init="svd", only_where_smaller=True)
    assert low[0].rank == 2
    assert choice.table["saves"].tolist() == [64 - 2 * 16, 64 - 2 * 16, 24 - 11 * choice.rank["4"]]
    assert set(select_rank(trained(), ByEnergy(1.0, cap=1)).rank.values()) == {1}


def test_by_energy_takes_attention_recurrent_and_bare_layers_and_posteriors(words):
    for network in (nn.LSTM(5, 6), nn.MultiheadAttention(8, 2), nn.Linear(9, 7)):
        choice = select_rank(network, ByEnergy(0.5))
        low = sb.factorize(network, choice.rank, init="svd", only_where_smaller=True)
        assert isinstance(low, nn.Module)
    choice = select_rank(words, ByEnergy(0.999))
    assert max(choice.rank.values()) <= 3  # the posterior's layers have rank 3


@pytest.mark.filterwarnings("ignore:the rank saves no parameters")
def test_by_bound_keeps_its_promise_and_takes_no_more_than_it_needs():
    network, x, y = trained(), torch.randn(200, 8), torch.randint(0, 3, (200,))
    loss = SoftmaxCrossEntropy()
    ranks = []
    for tolerance in (1e-6, 0.5, 500.0):
        choice = select_rank(network, ByBound(loss=loss, tolerance=tolerance), (x, y))
        cut = sb.factorize(network, choice.rank, init="svd")
        low = sb.merge(cut)
        change = abs(loss(low(x), y).mean() - loss(network(x), y).mean()).item()
        assert change <= tolerance
        ranks.append(choice.rank["0"])
    assert ranks[0] == 8
    assert ranks == sorted(ranks, reverse=True)
    assert ranks[1] == 3  # 1e-3 is free, 1 is not
    assert ranks[2] == 1


def test_by_bound_gives_each_layer_its_share_and_the_rest_to_those_behind():
    network = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    for layer in network:
        layer.weight.data = torch.diag(torch.tensor([1.0, 0.9]))
    x = torch.tensor([[1.0, 0.0]])  # a cut costs .9 in either layer: more than half of the tolerance
    choice = select_rank(network, ByBound(loss=AbsoluteError(), tolerance=1.0), (x, torch.zeros(1)))
    assert choice.rank == {"0": 2, "1": 1}
    network[0].weight.data[1, 1] = 0.4  # a cut costs .4: it is made, and less than .9 is left
    choice = select_rank(network, ByBound(loss=AbsoluteError(), tolerance=1.0), (x, torch.zeros(1)))
    assert choice.rank == {"0": 1, "1": 2}


def test_stages_end_at_one_whole_fit_within_the_budget():
    for count, epochs, budget in (
        (6, 150, 1.5),
        (5, 100, 1.5),
        (8, 100, 1.5),
        (2, 10, 1.5),
        (3, 7, 2.0),
        (5, 30, 9.0),
    ):
        plan = stages(count, epochs, budget)
        assert plan[0][0] == count
        assert plan[-1] == (1, epochs)
        assert all(one[1] <= other[1] for one, other in itertools.pairwise(plan))
        lost = sum((n - m) * e for (n, e), (m, _) in itertools.pairwise(plan))
        assert lost + epochs <= budget * epochs
    assert stages(1, 20, 1.0) == [(1, 20)]
    with pytest.raises(ValueError, match=r"less than one epoch before the first choice; it takes 1\.45 fits"):
        stages(6, 20, 1.2)
    with pytest.raises(ValueError, match=r"halved 3 times.*it takes 4 epochs"):
        stages(5, 3, 9.0)
    assert stages(5, 4, 9.0)[0] == (5, 1)
    for budget in (0.5, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="budget must be finite and at least 1"):
            stages(1, 20, budget)


class Noted(sb.MAP):
    """MAP, beside a note of every fit that was asked for."""

    asked: ClassVar[list[tuple[int, int, object]]] = []

    def fit(self, model, train, validation=None, **settings):
        self.asked.append((model.network[0].rank, self.epochs, settings["checkpoint"]))
        return super().fit(model, train, validation, **settings)


def rank_two() -> tuple:
    """A model whose truth has rank two, train and validation."""
    source = torch.Generator().manual_seed(0)
    w = torch.randn(12, 2, generator=source) @ torch.randn(10, 2, generator=source).T
    x = torch.randn(600, 10, generator=source)
    y = x @ w.T + 2.0 * torch.randn(600, 12, generator=source)
    torch.manual_seed(0)
    model = sb.Model(
        nn.Sequential(nn.Linear(10, 12, bias=False)), sb.Gaussian(noise=2.0), prior=sb.Normal(10.0)
    )
    return model, (x[:40], y[:40]), (x[40:], y[40:])


def test_by_validation_finds_the_rank_of_the_truth_within_its_budget_and_hands_over_the_fit():
    model, train, validation = rank_two()
    Noted.asked.clear()
    method = Noted(epochs=400, learning_rate=0.03)
    rule = ByValidation(method=method, ranks=(1, 2, 5), budget=1.6)
    choice = select_rank(model, rule, train, validation)
    assert choice.rank == 2
    assert 1 < choice.fits <= 1.6
    # the winner goes on from its checkpoint, stage by stage, and ends where one go would have ended
    assert [epochs for rank, epochs, _ in Noted.asked if rank == 2] == [80, 160, 400]
    folders = {rank: {folder for r, _, folder in Noted.asked if r == rank} for rank in (1, 2, 5)}
    assert None not in set().union(*folders.values())
    assert [len(own) for own in folders.values()] == [1, 1, 1]
    low = sb.Model(sb.factorize(model.network, 2, seed=0), model.likelihood, prior=model.prior)
    alone = sb.MAP(epochs=400, learning_rate=0.03).fit(low, train)
    torch.testing.assert_close(choice.posterior.distribution.mean, alone.distribution.mean)
    # one that took the worst would choose rank 1 or 5
    assert list(choice.table.sort_values("epochs")["rank"])[-1] == "2"


def test_a_candidate_that_diverges_drops_out_and_the_last_one_may_not():
    model, train, validation = rank_two()

    class Breaks(sb.MAP):
        def fit(self, model, train, validation=None, **settings):
            posterior = super().fit(model, train, validation, **settings)
            if model.network[0].rank in broken:
                raise TrainingDiverged("the loss became nan", posterior)
            return posterior

    rule = ByValidation(method=Breaks(epochs=16), ranks=(1, 2, 5), budget=1.5)
    broken = {1, 2}
    choice = select_rank(model, rule, train, validation)
    assert choice.rank == 5
    assert choice.table["log density"].isna().tolist() == [True, True, False]
    broken = {1, 2, 5}
    with pytest.raises(TrainingDiverged):
        select_rank(model, rule, train, validation)


def test_fits_see_the_validation_data_where_they_stop_early_and_only_there():
    model, train, validation = rank_two()
    seen = []

    class Sees(sb.MAP):
        def fit(self, model, train, validation=None, **settings):
            seen.append(validation is not None)
            return super().fit(model, train, validation, **settings)

    for patience in (None, 3):
        seen.clear()
        rule = ByValidation(method=Sees(epochs=16, patience=patience), ranks=(1, 2), budget=1.5)
        select_rank(model, rule, train, validation)
        assert set(seen) == {patience is not None}
    seen.clear()
    with pytest.raises(ValueError, match="labels"):
        select_rank(model, rule, train, torch.utils.data.TensorDataset(validation[0]))
    assert not seen  # before any fit


def test_a_function_from_a_rank_to_a_model_makes_the_candidates_of_other_beliefs():
    model, train, validation = rank_two()
    halves = sb.Model(nn.Sequential(nn.Linear(10, 12)), sb.Gaussian(noise=2.0), deterministic="*bias")
    rule = ByValidation(method=sb.MAP(epochs=16), ranks=(1, 2), budget=1.5)
    with pytest.raises(ValueError, match="believes in some parameters only"):
        select_rank(halves, rule, train, validation)

    def of(rank):
        return sb.Model(sb.factorize(model.network, rank), sb.Gaussian(noise=2.0), deterministic="0.A")

    assert select_rank(of, rule, train, validation).posterior.layout.of_kind("point")


def test_by_certificate_shares_delta_and_takes_the_lowest_bound():
    model, train, _ = rank_two()
    seen = []

    def certify(posterior, data, delta):
        seen.append(delta)
        return {1: 0.9, 2: 0.3, 5: 0.7}[posterior.network[0].rank]

    rule = ByCertificate(method=sb.MAP(epochs=16), certify=certify, ranks=(1, 2, 5), delta=0.03, budget=1.5)
    choice = select_rank(model, rule, train)
    assert choice.rank == 2
    assert set(seen) == {0.01}  # a bound at delta itself would not hold for the best of three
    assert "delta = 0.03 / 3" in str(choice)
    assert choice.table["bound"].tolist() == [0.9, 0.3, 0.7]


BAD = [
    (lambda: ByEnergy(1.5), "must lie in"),
    (lambda: ByBound(loss=SoftmaxCrossEntropy(), tolerance=0.0), "tolerance must be positive"),
    (lambda: ByValidation(method=sb.MAP(), ranks=()), "ranks is empty"),
    (lambda: ByValidation(method=sb.MAP(), ranks=(2, 2)), "candidate twice"),
    (lambda: ByValidation(method=sb.MAP(schedule=sb.Schedule.COSINE)), "looks ahead"),
    (lambda: ByValidation(method=sb.MAP(epochs=2)), "less than one epoch"),
    (lambda: ByValidation(method=sb.MAP(), draws=0), "draws must be at least 1"),
    (lambda: ByCertificate(method=sb.MAP(), certify=lambda *_: 0.0, delta=1.0), "delta must lie in"),
    (lambda: ByCertificate(method=sb.MAP(patience=3), certify=lambda *_: 0.0), "patience needs validation"),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("make", "message"), BAD)
def test_rules_that_cannot_work_are_refused_when_they_are_made(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.usefixtures("unchecked")
def test_what_a_rule_does_not_look_at_and_what_it_lacks_is_refused():
    data = torch.randn(4, 8), torch.tensor([0, 1, 2, 0])
    by_validation = ByValidation(method=sb.MAP(epochs=100))
    certificate = ByCertificate(method=sb.MAP(epochs=100), certify=lambda *_: 0.0)
    for rule, source, train, validation, message in (
        (ByEnergy(0.9), trained(), data, None, "does not look at train data"),
        (ByBound(loss=SoftmaxCrossEntropy(), tolerance=1.0), trained(), None, None, "ByBound needs inputs"),
        (
            ByBound(loss=SoftmaxCrossEntropy(), tolerance=1.0),
            trained(),
            data,
            data,
            "does not look at validation",
        ),
        (by_validation, trained(), data, None, "needs train and validation"),
        (certificate, trained(), data, data, "ByCertificate does not look at validation"),
    ):
        with pytest.raises(ValueError, match=message):
            select_rank(source, rule, train, validation)
    with pytest.raises(TypeError, match="must be an object such as ByEnergy"):
        select_rank(trained(), ByEnergy)
    with pytest.raises(TypeError, match="needs a model, or a function"):
        select_rank(trained(), by_validation, data, data)
    with pytest.raises(TypeError, match="method must be one that trains"):
        ByValidation(method=sb.HMC())
    with pytest.raises(TypeError, match="reads a trained network"):
        select_rank(lambda _rank: None, ByEnergy(0.9))
