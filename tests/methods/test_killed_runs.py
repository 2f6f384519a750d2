"""A fit that is killed in the middle goes on from its checkpoint to the numbers of an unbroken one."""

import pytest
import torch
from torch import nn

import singularbayes as sb
from singularbayes.methods import training

X = torch.randn(60, 5, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 5.0, 0.2, 1.0, 1.0])
Y = (X[:, 0] + X[:, 1] / 5 > 0).long()


def low_rank() -> nn.Module:
    torch.manual_seed(1)
    return sb.factorize(nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2)), rank={"0": 2})


def directional() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(sb.nn.DirectionalLinear(5, 8), nn.ReLU(), nn.Linear(8, 2))


class Killed(BaseException):
    """Stands for a kill."""


@pytest.mark.parametrize("step", [6, 11])  # in the middle of an epoch, and near its end
@pytest.mark.parametrize("patience", [None, 3])
@pytest.mark.parametrize(
    ("network", "method", "settings"),
    [
        (low_rank, sb.IVON, {"learning_rate": 0.05, "beta2": 0.99, "draws": 2}),
        (low_rank, sb.DirectionPrecision, {"directions": sb.RandomDirections(3)}),
        (low_rank, sb.DirectionPrecision, {"directions": sb.GGNDirections(k=2, iterations=2)}),
        (directional, sb.Precise, {}),
    ],
    ids=["IVON", "random directions", "GGN directions", "Precise"],
)
def test_a_killed_run_goes_on_to_the_same_numbers(
    tmp_path, monkeypatch, network, method, settings, patience, step
):
    method = method(epochs=5, batch_size=16, patience=patience, **settings)
    model, held = sb.Model(network(), sb.Categorical(), deterministic="0.bias"), (X[:20], Y[:20])
    unbroken = method.fit(model, (X, Y), held, seed=4)
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
            method.fit(model, (X, Y), held, seed=4, checkpoint=tmp_path)
    resumed = method.fit(model, (X, Y), held, seed=4, checkpoint=tmp_path)
    assert torch.equal(unbroken.draw(6), resumed.draw(6))
    assert unbroken.info["history"] == resumed.info["history"]
