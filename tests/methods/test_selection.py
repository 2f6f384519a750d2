"""Rules that select parameters: against brute force in float64; the errors of other code must fail."""

import itertools
import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.functional import jacobian
from torch.func import functional_call

import singularbayes as sb
from singularbayes.curvature import jacobian as jacobian_module
from singularbayes.distributions import DiagonalGaussian
from singularbayes.methods import Candidates
from singularbayes.posterior import Posterior

DOUBLE = torch.float64
NOISE, PRIOR = 0.5, 2.0


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def fitted(model: sb.Model, std: Tensor) -> Posterior:
    """A variational posterior around the network's own weights."""
    layout = model.layout
    mean = layout.flatten(model.network, model.likelihood.parameters)
    whole = torch.zeros_like(mean)
    whole[: len(std)] = std
    return Posterior(model.copy_network(), DiagonalGaussian(mean, whole), model.likelihood, layout, {})


def filled(network: nn.Module, seed: int = 1) -> nn.Module:
    network = network.double()
    with torch.no_grad():
        for number, parameter in enumerate(network.parameters()):
            parameter.copy_(normal(*parameter.shape, seed=seed + number))
    return network


def six() -> tuple[sb.Model, Tensor, tuple[Tensor, Tensor]]:
    """1-2-1 tanh without the last bias: 6 parameters, standard deviations from .003 to 3."""
    network = filled(nn.Sequential(nn.Linear(1, 2), nn.Tanh(), nn.Linear(2, 1, bias=False)))
    std = torch.tensor([0.3, 0.003, 3.0, 0.1, 0.02, 1.0], dtype=DOUBLE)
    x = normal(9, 1, seed=5) * 3
    return sb.Model(network, sb.Gaussian(noise=NOISE)), std, (x, x.sin())


def brute_force(model: sb.Model, std: Tensor, x: Tensor) -> Tensor:
    """``s_i^2`` times the mean squared derivative, a row of inputs at a time."""
    names = [slot.name for slot in model.layout.of_kind("belief")]
    values = tuple(dict(model.network.named_parameters())[name].detach() for name in names)
    squares = []
    for row in x:

        def f(*given: Tensor, row: Tensor = row) -> Tensor:
            tensors = dict(zip(names, given, strict=True))
            return functional_call(model.network, tensors, (row[None],)).flatten()

        slopes = jacobian(f, values)
        squares.append(torch.cat([slope.flatten(1) for slope in slopes], 1).square())
    return torch.cat(squares).mean(0) * std.square()


def test_sensitivity_equals_brute_force():
    model, std, data = six()
    found = sb.Sensitivity().scores(Candidates.of(model, fitted(model, std), data))
    torch.testing.assert_close(found, brute_force(model, std, data[0]), rtol=1e-12, atol=0)


@pytest.mark.parametrize("share", [0.05, 0.5, 0.9, 0.99, 0.9999, 1.0])
def test_sensitivity_chooses_the_smallest_set_that_holds_the_share(share):
    """Of all 63 subsets; a cut one short, ``searchsorted`` without ``+ 1``, holds less than the share."""
    model, std, data = six()
    scores = brute_force(model, std, data[0])
    chosen = sb.Sensitivity(share).select(Candidates.of(model, fitted(model, std), data))
    total = scores.sum()
    enough = [
        subset
        for size in range(1, 7)
        for subset in itertools.combinations(range(6), size)
        if scores[list(subset)].sum() >= share * total * (1 - 1e-12)
    ]
    smallest = min(len(subset) for subset in enough)
    best = max((s for s in enough if len(s) == smallest), key=lambda s: scores[list(s)].sum().item())
    assert chosen.tolist() == list(best)
    if len(chosen) > 1:
        one_short = chosen[scores[chosen].argsort(descending=True)][:-1]
        assert scores[one_short].sum() < share * total


def test_a_tiny_share_still_chooses_one_entry_not_tensors_by_their_weight():
    """Importance by ``|w|`` of whole tensors keeps ``int(share * tensors) = 0`` of 3 here, and would have put
    the tensor first whose outputs hardly move."""
    model, std, data = six()
    with torch.no_grad():
        model.network[0].weight.mul_(100)  # saturated: large weights, no derivative
    candidates = Candidates.of(model, fitted(model, std), data)
    heaviest = max(
        model.layout.of_kind("belief"), key=lambda slot: candidates.mean[slot.start : slot.stop].abs().mean()
    )
    assert heaviest.name == "0.weight"
    assert int(0.3 * 3) == 0
    chosen = sb.Sensitivity(0.3).select(candidates)
    assert len(chosen) == 1
    assert int(chosen) >= heaviest.stop


def test_sensitivity_averages_over_outputs_of_factorised_and_tied_layers(monkeypatch):
    twice = nn.Linear(4, 4)
    network = filled(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), twice, nn.Tanh(), twice, nn.Linear(4, 3)))
    network = sb.factorize(network, rank={"2": 1})
    assert network[2] is network[4]
    model = sb.Model(network, sb.Categorical())
    std = normal(model.layout.belief, seed=3).abs() * torch.logspace(-2, 1, model.layout.belief, dtype=DOUBLE)
    x, y = normal(7, 3, seed=4), torch.arange(7) % 3
    monkeypatch.setattr(
        jacobian_module, "_CHUNK_BYTES", 3 * model.layout.belief * 8 * 2
    )  # two rows at a time
    found = sb.Sensitivity().scores(
        Candidates.of(model, fitted(model, std), [(x[:4], y[:4]), (x[4:], y[4:])])
    )
    torch.testing.assert_close(found, brute_force(model, std, x), rtol=1e-10, atol=1e-14)


def test_sensitivity_of_a_recurrent_network_is_found_row_by_row():
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(2, 3, batch_first=True), nn.Linear(3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.lstm(x)[0][:, -1])

    model = sb.Model(filled(Last()), sb.Gaussian(noise=NOISE))
    std = normal(model.layout.belief, seed=3).abs()
    x = normal(4, 5, 2, seed=4)
    found = sb.Sensitivity().scores(Candidates.of(model, fitted(model, std), (x, x[:, 0, 0])))
    torch.testing.assert_close(found, brute_force(model, std, x), rtol=1e-10, atol=1e-14)


def linear() -> tuple[sb.Model, Tensor, tuple[Tensor, Tensor]]:
    """Linear regression with correlated, badly scaled columns, and one that is orthogonal to all others."""
    x = (
        normal(40, 4, seed=2)
        @ torch.tensor([[3.0, 0, 0, 0], [2.5, 0.5, 0, 0], [0, -0.3, 0.2, 0], [0, 0, 0, 1]], dtype=DOUBLE).T
    )
    x[:, 3] -= x[:, :3] @ torch.linalg.lstsq(x[:, :3], x[:, 3]).solution
    model = sb.Model(filled(nn.Linear(4, 1, bias=False)), sb.Gaussian(noise=NOISE), prior=sb.Normal(PRIOR))
    precision = x.T @ x / NOISE**2 + torch.eye(4, dtype=DOUBLE) / PRIOR**2
    return model, precision, (x, normal(40, 1, seed=6))


def worst_ratio(rule: sb.GradientVariance, right: Tensor, candidates: Candidates) -> float:
    """In standard errors: a variance of ``n`` normal residuals is known to ``sqrt(2 / (n - 2))`` of it."""
    found = rule.scores(candidates)
    known = right > 1e-9 * right.max()
    assert bool((found[~known] < 1e-9 * right.max()).all())
    return ((found / right - 1).abs()[known] / math.sqrt(2 / (rule.draws - 2))).max().item()


def test_gradient_variance_is_what_mean_field_leaves_unexplained():
    """Under a Gaussian posterior ``s_i^2 sum_{j != i} L_ij^2 s_j^2``: 3 numbers within 4 standard errors,
    false alarm 2e-4; 0 for the entry that is independent of all others. With ``j = i`` in the sum it is
    wrong."""
    model, precision, data = linear()
    std = precision.diagonal().rsqrt()
    coupling = (precision * std * std[:, None]).square()
    candidates = Candidates.of(model, fitted(model, std), data)
    rule = sb.GradientVariance(draws=2000)
    assert worst_ratio(rule, coupling.sum(1) - coupling.diagonal(), candidates) < 4
    assert 3 not in rule.select(candidates)
    with pytest.raises(AssertionError):
        assert worst_ratio(rule, coupling.sum(1), candidates) < 4


def test_gradient_variance_follows_the_temperature():
    model, precision, data = linear()
    std, temperature = precision.diagonal().rsqrt(), 4.0
    prior = torch.eye(4, dtype=DOUBLE) / PRIOR**2
    tempered = (precision - prior) / temperature + prior
    coupling = (tempered * std * std[:, None]).square()
    candidates = Candidates.of(model, fitted(model, std), data, temperature=temperature)
    assert worst_ratio(sb.GradientVariance(draws=2000), coupling.sum(1) - coupling.diagonal(), candidates) < 4


def test_random_selection_keeps_the_share_or_the_count_by_the_seed():
    model, std, data = six()
    posterior = fitted(model, std)
    one, same, other = (Candidates.of(model, posterior, data, seed=seed) for seed in (1, 1, 5))
    assert [len(sb.RandomSelection(share).select(one)) for share in (0.01, 0.5, 0.51, 1.0)] == [1, 3, 4, 6]
    rule = sb.RandomSelection(count=3)
    assert rule.select(one).tolist() == rule.select(same).tolist() != rule.select(other).tolist()
    assert len(rule.select(one)) == 3


def test_a_count_takes_the_place_of_a_share():
    model, std, data = six()
    candidates = Candidates.of(model, fitted(model, std), data)
    order = brute_force(model, std, data[0]).argsort(descending=True)
    for count in (1, 4, 6):
        chosen = sb.Sensitivity(count=count).select(candidates)
        assert chosen.tolist() == sorted(order[:count].tolist())


def test_entries_are_chosen_by_name_or_all():
    model, std, data = six()
    candidates = Candidates.of(model, fitted(model, std), data)
    assert sb.NamedParameters("2.*").select(candidates).tolist() == [4, 5]
    assert sb.NamedParameters(("0.bias", "2.*")).select(candidates).tolist() == [2, 3, 4, 5]
    assert sb.AllParameters().select(candidates).tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(ValueError, match=r"select pattern 'head\.\*' matches no parameter"):
        sb.NamedParameters("head.*").select(candidates)


def test_point_estimates_are_not_chosen():
    model = sb.Model(filled(nn.Linear(2, 1)), sb.Gaussian(noise=NOISE), deterministic="bias")
    x = normal(5, 2)
    candidates = Candidates.of(model, fitted(model, torch.ones(2, dtype=DOUBLE)), (x, x[:, :1]))
    assert len(sb.Sensitivity().scores(candidates)) == 2
    assert sb.AllParameters().select(candidates).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"share": 0.0}, r"share must lie in \(0, 1\], got 0.0"),
        ({"share": 1.5}, r"share must lie in \(0, 1\], got 1.5"),
        ({"share": True}, r"share must lie in \(0, 1\], got True"),
        ({"count": 0}, "count must be a whole number of at least 1, got 0"),
        ({"share": 0.5, "count": 3}, "a share or a count"),
    ],
)
@pytest.mark.parametrize("rule", [sb.Sensitivity, sb.GradientVariance, sb.RandomSelection])
def test_wrong_shares_and_counts_are_refused(rule, wrong, message):
    with pytest.raises(ValueError, match=message):
        rule(**wrong)


def test_scores_that_choose_nothing_are_refused():
    model, std, data = six()
    posterior = fitted(model, torch.zeros_like(std))
    with pytest.raises(ValueError, match="every score is 0"):
        sb.Sensitivity().select(Candidates.of(model, posterior, data))
    with pytest.raises(ValueError, match="the score of entry 1 is nan"):
        sb.Sensitivity().largest(torch.tensor([1.0, math.nan]))
    with pytest.raises(ValueError, match="count=7 is more than the 6 entries"):
        sb.Sensitivity(count=7).select(Candidates.of(model, fitted(model, std), data))


def test_separate_networks_have_no_spread_to_choose_by():
    model, _, data = six()
    ensemble = sb.DeepEnsemble(members=2, member=sb.MAP(epochs=1)).fit(model, data)
    with pytest.raises(ValueError, match="separate networks"):
        Candidates.of(model, ensemble, data)


def test_a_rule_may_be_written_by_a_user():
    @dataclass(frozen=True)
    class Widest:
        count: int

        def select(self, candidates: Candidates) -> Tensor:
            return candidates.std.topk(self.count).indices

    model, std, data = six()
    posterior = sb.HybridHMC(
        vi=fitted(model, std),
        select=Widest(2),
        sampler=sb.HMC(chains=2, warm_up=0, draws=4, step_size=0.01, trajectory=0.02),
    ).fit(model, data)
    assert (posterior.distribution.variance > 0).nonzero()[:, 0].tolist() == [2, 5]
