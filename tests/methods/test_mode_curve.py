"""Mode connectivity: barriers fall, the ends stay, statistics follow the weights, networks are compared."""

import copy
import dataclasses
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

import singularbayes as sb
from singularbayes.methods import full_data
from singularbayes.methods.curves import slerp
from singularbayes.methods.full_data import FullData
from singularbayes.methods.given import given_rows
from singularbayes.normalization import refreshed
from singularbayes.testing import CLAUSES, check_method

SOURCE = torch.Generator().manual_seed(1)
X = torch.randn(100, 2, generator=SOURCE)
Y = (X[:, 0] * X[:, 1] > 0).long()  # no straight line divides it: independent networks solve it their own way


def model_of(norm: bool = False) -> sb.Model:
    torch.manual_seed(0)
    layers = [nn.Linear(2, 8), nn.BatchNorm1d(8)] if norm else [nn.Linear(2, 8)]
    network = nn.Sequential(*layers, nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
    return sb.Model(network, sb.Categorical())


def ensemble(model: sb.Model, members: int = 2) -> sb.DeepEnsemble:
    point = sb.MAP(epochs=60, learning_rate=0.02, temperature=0.1)
    return sb.DeepEnsemble(members=members, member=point).fit(model, (X, Y))


MODEL = model_of()
MODES = ensemble(MODEL)
METHOD = sb.ModeCurve(
    modes=MODES, epochs=60, learning_rate=0.02, temperature=0.1, draws=12, grid=41, points=11
)


@pytest.mark.parametrize("curve", [sb.Bezier(), sb.Polychain()], ids=repr)
def test_a_trained_curve_lowers_the_barrier_of_two_independent_networks(curve):
    connection = dataclasses.replace(METHOD, curve=curve).connect(MODEL, (X, Y))
    profile = connection.profile(0)
    assert max(profile.line[0], profile.line[-1]) < 0.2, "both networks have learned the task"
    assert profile.barriers["line"] > 0.5
    assert profile.barriers["curve"] < 0.5 * profile.barriers["line"]
    assert profile.curve[0] == profile.line[0] == profile.sphere[0]
    assert profile.curve[-1] == profile.line[-1] == profile.sphere[-1]


def test_the_ends_stay_and_the_way_goes_through_them():
    connection = METHOD.connect(MODEL, (X, Y))
    ends = connection.rows(0, torch.tensor([0.0, 1.0]))
    assert torch.equal(ends, MODES.distribution.draws)
    middle = connection.rows(0, torch.tensor([0.5]))[0]
    assert (middle - ends.mean(0)).norm() > 0.5, "the bend has moved"


def test_losses_along_the_ways_are_the_networks_own():
    """A profile's loss is the mean NLL of the network that stands there, on the data that were given."""
    connection, (x, y) = METHOD.connect(MODEL, (X, Y)), (X[:30] * 1.5, Y[:30])
    profile = connection.profile(0, (x, y), points=5)
    first, last = MODES.distribution.draws.double()
    coefficients = slerp(torch.tensor([0.25]).double(), torch.stack([first, last]))[0]
    ways = {
        "line": 0.75 * first + 0.25 * last,
        "sphere": coefficients[0] * first + coefficients[1] * last,
        "curve": connection.rows(0, torch.tensor([0.25]))[0],
    }
    for name, row in ways.items():
        network = MODEL.copy_network()
        MODEL.layout.write(network, row)
        loss = nn.functional.cross_entropy(network(x), y).item()
        assert getattr(profile, name)[1] == pytest.approx(loss, rel=1e-5), name


def test_all_pairs_are_connected():
    method = dataclasses.replace(METHOD, modes=ensemble(MODEL, 3), epochs=2, weights=sb.BetaWeights())
    posterior = method.fit(MODEL, (X, Y), (X[:20], Y[:20]))
    assert [c["pair"] for c in posterior.info["curves"]] == [[0, 1], [0, 2], [1, 2]]
    assert posterior.info["modes"] == 3
    assert all(len(c["validation"]["curve"]) == 11 for c in posterior.info["curves"])
    assert len(posterior.distribution.draws) == 12


def test_profiles_are_read_back_from_a_saved_posterior(tmp_path):
    posterior = METHOD.fit(MODEL, (X, Y))
    posterior.save(tmp_path)
    entry = sb.load(tmp_path, MODEL.network).info["curves"][0]
    profile = sb.CurveProfile.from_dict(entry)
    assert profile.barriers == pytest.approx(entry["barriers"])
    table = profile.table()
    assert list(table.index) == ["line", "sphere", "curve"]
    assert table.loc["line", "barrier"] == pytest.approx(entry["barriers"]["line"])
    assert entry["length"] > (MODES.distribution.draws[0] - MODES.distribution.draws[1]).norm().item()


def test_statistics_are_those_of_each_place(monkeypatch):
    """Trap 22: with the first network's statistics the middle of the way would have another loss."""
    model = model_of(norm=True)
    method = dataclasses.replace(METHOD, modes=ensemble(model), epochs=5, batch_size=100)
    connection = method.connect(model, (X, Y))
    rows = connection.rows(0, torch.tensor([0.2, 0.6]))
    assert torch.allclose(refreshed(model.network, model.layout, rows, [(X, Y)]), rows, atol=1e-5)
    fresh = connection.profile(0, points=3)
    posterior = method.fit(model, (X, Y))
    assert posterior.info["numbers"] == 12 * model.layout.trained
    draws = posterior.draw(12)
    assert torch.allclose(refreshed(model.network, model.layout, draws, [(X, Y)]), draws, atol=1e-5)
    monkeypatch.setattr(FullData, "settled", lambda self, rows: rows)
    assert abs(connection.profile(0, points=3).curve[1] - fresh.curve[1]) > 0.005


def test_networks_and_posteriors_are_taken_alike():
    """An ensemble's posterior, a list of posteriors, and a list of networks (not split into layers)."""
    rows, networks, posteriors = MODES.distribution.draws, [], []
    for row in rows:
        network = MODEL.copy_network()
        MODEL.layout.write(network, row)
        networks.append(network)
        atom = type(MODES.distribution)(row.unsqueeze(0))
        posteriors.append(sb.Posterior(copy.deepcopy(network), atom, MODES.likelihood, MODES.layout, {}))
    for given in (tuple(networks), posteriors):
        connection = dataclasses.replace(METHOD, modes=given, epochs=1).connect(MODEL, (X, Y))
        assert torch.equal(connection.modes, rows)


def test_a_mixtures_components_are_its_networks():
    modes = sb.DeepEnsemble(members=2, member=sb.MeanField(epochs=1)).fit(MODEL, (X, Y))
    connection = dataclasses.replace(METHOD, modes=modes, epochs=1).connect(MODEL, (X, Y))
    assert torch.equal(connection.modes[1], modes.distribution.components[1].mean)


def test_the_networks_of_ensembles_of_ensembles_are_taken_one_by_one():
    """Not the means of the inner ensembles, which are no networks."""
    inner = sb.DeepEnsemble(members=2, member=sb.MeanField(epochs=1))
    modes = sb.DeepEnsemble(members=2, member=inner).fit(MODEL, (X, Y))
    rows = given_rows(MODEL, modes, "mode")
    parts = [part for ensemble in modes.distribution.components for part in ensemble.components]
    assert torch.equal(rows, torch.stack([part.mean for part in parts]))


def test_rows_of_a_posterior_are_read_by_name():
    """Two layers of one shape, registered in the other order: the same function, another place in the row."""

    class Two(nn.Module):
        def __init__(self, names: tuple[str, str]) -> None:
            super().__init__()
            for name in names:
                setattr(self, name, nn.Linear(2, 2))

        def forward(self, x):
            return self.second(self.first(x).tanh())

    model, other = (sb.Model(Two(n), sb.Categorical()) for n in (("first", "second"), ("second", "first")))
    posterior = sb.MAP(epochs=1).fit(other, (X, Y))
    (row,) = given_rows(model, posterior, "mode")
    network = model.copy_network()
    model.layout.write(network, row)
    assert torch.equal(network(X), posterior.network(X))


def test_learned_noise_lies_on_the_curve():
    torch.manual_seed(0)
    model = sb.Model(nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)), sb.Gaussian())
    modes = sb.DeepEnsemble(members=2, member=sb.MAP(epochs=5, learning_rate=0.05))
    method = sb.ModeCurve(modes=modes, epochs=5, draws=6, grid=5, points=3, weights=sb.BetaWeights())
    posterior = method.fit(model, (X, X[:, 0]))
    noise = posterior.layout.likelihood_views(posterior.draw(6))["log_noise"]
    assert noise.std() > 0
    assert posterior.predict(X).aleatoric.min() > 0


def test_a_killed_fit_goes_on_to_the_same_numbers(tmp_path):
    modes = sb.DeepEnsemble(members=2, member=sb.MAP(epochs=3))
    method = sb.ModeCurve(modes=modes, epochs=3, draws=4, grid=5, points=3, weights=sb.BetaWeights())
    one = method.fit(MODEL, (X, Y), checkpoint=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curve-0-1", "modes"]
    assert torch.equal(method.fit(MODEL, (X, Y), checkpoint=tmp_path).draw(4), one.draw(4))
    # what does not bear on the training may change: another pool of processes, other draws, another grid
    with ProcessPoolExecutor(1) as pool:
        modes = dataclasses.replace(modes, executor=pool)
        again = dataclasses.replace(method, modes=modes, draws=6, grid=7).connect(
            MODEL, (X, Y), checkpoint=tmp_path
        )
    assert torch.equal(again.control, method.connect(MODEL, (X, Y)).control)
    for other in ({"temperature": 0.5}, {"curve": sb.Polychain()}):
        with pytest.raises(ValueError, match="checkpoint of another fit"):
            dataclasses.replace(method, **other).connect(MODEL, (X, Y), checkpoint=tmp_path)


def test_the_contract_holds_on_factorised_networks():
    torch.manual_seed(3)
    mlp = nn.Sequential(nn.Linear(2, 12), nn.ReLU(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 2))
    modes = sb.DeepEnsemble(members=2, member=sb.MAP(epochs=2))
    method = sb.ModeCurve(modes=modes, epochs=2, draws=6, grid=5, points=3, weights=sb.LikelihoodWeights(100))
    network = sb.factorize(mlp, rank={"0": 1, "2": 3})
    found = check_method(method, network=network, likelihood=sb.Categorical(), data=(X, Y))
    assert found == list(CLAUSES)


def test_the_likelihood_of_all_data_does_not_depend_on_the_chunks(monkeypatch):
    data = FullData(MODEL, (X, Y), MODEL.device)
    rows = MODES.distribution.draws.repeat(3, 1)
    whole = data.log_likelihood(rows)
    monkeypatch.setattr(full_data, "_ROWS", 7)
    monkeypatch.setattr(full_data, "_DRAWS", 2)
    assert torch.allclose(data.log_likelihood(rows), whole, rtol=1e-6)
    loader = FullData(MODEL, [(X[:60], Y[:60]), (X[60:], Y[60:])], MODEL.device)
    assert torch.allclose(loader.log_likelihood(rows), whole, rtol=1e-6)
    log_prob = nn.functional.log_softmax(MODES.functions(rows[:1], X)[0].double(), -1)
    assert whole[0].item() == pytest.approx(log_prob[torch.arange(100), Y].sum().item(), rel=1e-6)


# Errors


def test_one_network_is_refused():
    one = ensemble(MODEL, 1)
    with pytest.raises(ValueError, match="a curve leads from one network to another, got 1"):
        dataclasses.replace(METHOD, modes=one).fit(MODEL, (X, Y))
    with pytest.raises(ValueError, match="got no mode"):
        dataclasses.replace(METHOD, modes=[]).fit(MODEL, (X, Y))


def test_equal_networks_are_refused():
    same = [MODEL.network, copy.deepcopy(MODEL.network)]
    with pytest.raises(ValueError, match="networks 0 and 1 are equal"):
        dataclasses.replace(METHOD, modes=same).fit(MODEL, (X, Y))


def test_networks_of_another_layout_are_named():
    wide = nn.Sequential(nn.Linear(2, 9), nn.Tanh(), nn.Linear(9, 8), nn.Tanh(), nn.Linear(8, 2))
    with pytest.raises(
        ValueError, match=r"mode 1 has another layout than the model: 0\.weight is belief of shape \(9, 2\)"
    ):
        dataclasses.replace(METHOD, modes=[MODEL.network, wide]).fit(MODEL, (X, Y))
    factorised = sb.factorize(MODEL.network, rank={"2": 2})
    with pytest.raises(ValueError, match=r"mode 1 has another layout .*: 2\.weight is missing"):
        dataclasses.replace(METHOD, modes=[MODEL.network, factorised]).fit(MODEL, (X, Y))
    points = sb.Model(MODEL.network, sb.Categorical(), deterministic="*bias")
    fitted = sb.MAP(epochs=1).fit(points, (X, Y))
    with pytest.raises(ValueError, match=r"mode 0 has another layout .*: 0\.bias is point"):
        dataclasses.replace(METHOD, modes=[fitted, fitted]).fit(MODEL, (X, Y))


def test_a_learned_prior_is_refused():
    model = sb.Model(MODEL.network, sb.Categorical(), prior=sb.ScaleMixture(learned=True))
    with pytest.raises(ValueError, match="a learned ScaleMixture needs MeanField"):
        METHOD.fit(model, (X, Y))


@pytest.mark.usefixtures("unchecked")
def test_settings_are_checked():
    with pytest.raises(TypeError, match=r"curve must be an object such as Bezier\(\)"):
        sb.ModeCurve(curve=sb.Bezier)
    with pytest.raises(TypeError, match=r"weights must be an object such as LikelihoodWeights\(\)"):
        sb.ModeCurve(weights="beta")
    with pytest.raises(ValueError, match="grid must be at least 3 places"):
        sb.ModeCurve(grid=2)
    with pytest.raises(ValueError, match="leave patience=None"):
        sb.ModeCurve(patience=3)
    with pytest.raises(TypeError, match="mode is a int; expected a posterior or a network"):
        dataclasses.replace(METHOD, modes=3).fit(MODEL, (X, Y))


def test_barriers_are_above_the_line_between_the_ends():
    t = np.array([0.0, 0.25, 1.0])
    profile = sb.CurveProfile(pair=(0, 1), t=t, line=t, sphere=np.array([0.0, 1.0, 0.4]), curve=-t * (1 - t))
    assert profile.barriers == pytest.approx({"line": 0.0, "sphere": 0.9, "curve": 0.0})
