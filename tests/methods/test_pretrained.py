"""A method that begins with a trained network, and the training before it, as one."""

from pathlib import Path

import pytest
import torch
from torch import nn

import singularbayes as sb
from singularbayes.random import derive
from singularbayes.testing import check_method

X = torch.linspace(-1, 1, 48).unsqueeze(1)


def model() -> sb.Model:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(1, 6), nn.Tanh(), nn.Linear(6, 1))
    return sb.Model(network, sb.Gaussian())


METHOD = sb.Pretrained(point=sb.MAP(epochs=8, learning_rate=0.02), member=sb.LaplaceApproximation())


def test_it_meets_the_contract() -> None:
    check_method(sb.Pretrained(point=sb.MAP(epochs=1), member=sb.LaplaceApproximation()))


def test_the_second_method_begins_where_the_first_one_ended() -> None:
    point = METHOD.point.fit(model(), (X, X.square()), seed=derive(3, "point"))
    by_hand = METHOD.member.fit(model().started_at(point), (X, X.square()), seed=3)
    together = METHOD.fit(model(), (X, X.square()), seed=3)
    assert torch.equal(together.draw(4), by_hand.draw(4))
    assert together.info["seconds"] > point.info["seconds"] * 0.01
    with pytest.warns(UserWarning, match="stands where learning would start"):
        untrained = METHOD.member.fit(model(), (X, X.square()), seed=3)
    assert not torch.allclose(together.distribution.mean, untrained.distribution.mean)


def test_an_ensemble_of_it_has_members_of_its_own() -> None:
    posterior = sb.DeepEnsemble(members=2, member=METHOD).fit(model(), (X, X.square()))
    one, two = (member.distribution.mean for member in posterior.members)
    assert not torch.allclose(one, two)


def test_it_goes_on_from_its_checkpoints(tmp_path: Path) -> None:
    whole = METHOD.fit(model(), (X, X.square()))
    METHOD.fit(model(), (X, X.square()), checkpoint=tmp_path)
    assert (tmp_path / "point").is_dir()
    again = METHOD.fit(model(), (X, X.square()), checkpoint=tmp_path)
    assert torch.equal(again.draw(3), whole.draw(3))


def test_what_is_no_method_is_refused() -> None:
    with pytest.raises(TypeError, match="member must be a method such as"):
        sb.Pretrained(member=sb.MAP)
    with pytest.raises(TypeError, match="point must be a method such as"):
        sb.Pretrained(member=sb.MAP(), point=3)


def test_separate_networks_are_no_start() -> None:
    method = sb.Pretrained(point=sb.DeepEnsemble(members=2, member=sb.MAP(epochs=1)), member=sb.SWAG())
    with pytest.raises(ValueError, match="separate networks"):
        method.fit(model(), (X, X))
