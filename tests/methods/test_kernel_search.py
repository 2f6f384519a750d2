"""The kernel that the evidence chooses, against the dense density of the labels around it."""

import math

import pytest
import torch
from torch import Tensor, nn

import singularbayes as sb
from singularbayes.nn import RandomFeatureHead

DOUBLE = torch.float64
X = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 5.0, 0.1, 1.0])
LABELS = (X[:, 0] > 0).long() + (X[:, 1] > 4).long()


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))


def line(noise: float | None) -> tuple[sb.Model, Tensor, Tensor]:
    x = torch.cat([torch.linspace(-3, -1, 20), torch.linspace(1, 3, 20)]).unsqueeze(1).double()
    y = (2 * x[:, 0]).sin() + 0.1 * torch.randn(40, generator=torch.Generator().manual_seed(3), dtype=DOUBLE)
    return sb.Model(nn.Linear(1, 1).double(), sb.Gaussian(noise=noise)), x, y


def test_what_is_not_given_is_found_where_the_evidence_is_highest():
    model, x, y = line(None)
    method = sb.RandomFeatures(features=300)
    posterior = method.fit(model, (x, y))
    found = [posterior.info[name] for name in ("length_scale", "std", "noise")]
    assert posterior.likelihood.noise == found[2]
    assert "likelihood.log_noise" not in {slot.name for slot in posterior.layout.slots}
    best = posterior.info["log_evidence"]
    assert best == pytest.approx(posterior.info["search_log_evidence"], abs=1e-6)
    head = posterior.network
    assert isinstance(head, RandomFeatureHead)
    unit = head.frequencies * found[0]

    def evidence(length_scale: float, std: float, noise: float) -> float:
        phi = math.sqrt(2 / 300) * (x @ (unit / length_scale).T + head.phases).cos()
        covariance = std**2 * phi @ phi.T + noise**2 * torch.eye(40, dtype=DOUBLE)
        zero = torch.zeros(40, dtype=DOUBLE)
        return torch.distributions.MultivariateNormal(zero, covariance).log_prob(y).item()

    assert evidence(*found) == pytest.approx(best, abs=1e-5)
    for place in range(3):
        for factor in (0.8, 0.95, 1.05, 1.25):
            moved = list(found)
            moved[place] *= factor
            assert evidence(*moved) < best + 1e-3
    assert 0.07 < found[2] < 0.14  # the data's is .1


def test_the_search_sees_some_rows_alone_and_says_when_the_evidence_has_no_end():
    x = torch.linspace(-1, 1, 200, dtype=DOUBLE).unsqueeze(1)
    y = x[:, 0].clone()
    y[::2] += 50  # even rows are of another line
    method = sb.RandomFeatures(features=20, length_scale=1.0, search_rows=40)
    model = sb.Model(nn.Linear(1, 1).double(), sb.Gaussian())
    infos = [method.fit(model, (x, y), seed=seed).info for seed in (0, 0, 1)]
    assert infos[0]["noise"] == infos[1]["noise"] != infos[2]["noise"]  # other rows
    assert abs(infos[0]["search_log_evidence"]) < 0.5 * abs(
        infos[0]["log_evidence"]
    )  # of 40 rows, not of 200
    with pytest.warns(UserWarning, match="no maximum over noise"):
        constant = sb.RandomFeatures(features=20, length_scale=1.0, std=1.0).fit(model, (x, 0 * y))
    assert constant.info["at_bound"] == ["noise"]


def test_a_given_number_is_kept():
    model, x, y = line(None)
    info = sb.RandomFeatures(features=100, length_scale=0.7).fit(model, (x, y)).info
    assert info["length_scale"] == 0.7
    assert info["std"] != 1
    other = sb.RandomFeatures(features=100, std=3.0).fit(line(0.2)[0], (x, y))
    assert other.info["std"] == 3.0
    assert other.likelihood == sb.Gaussian(noise=0.2)
    assert "noise" not in other.info


def test_the_search_for_classes_raises_laplaces_evidence():
    posterior = sb.RandomFeatures(features=24).fit(sb.Model(mlp(), sb.Categorical()), (X, LABELS))
    best = posterior.info["log_evidence"]
    for factor in (0.7, 1.4):
        for name in ("length_scale", "std"):
            given = {key: posterior.info[key] for key in ("length_scale", "std")}
            given[name] *= factor
            other = sb.RandomFeatures(features=24, **given).fit(
                sb.Model(mlp(), sb.Categorical()), (X, LABELS)
            )
            assert other.info["log_evidence"] < best + 1e-3
