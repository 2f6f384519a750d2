"""What the loop does with what a learner collects: held for the last good state, copied for the best."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import singularbayes as sb
from singularbayes.methods.collection import BuildCollection
from singularbayes.methods.learner import Collecting, prepare
from singularbayes.methods.training import Run, fit_learner
from singularbayes.methods.trajectory import Trajectory

X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 5.0, 0.2])
Y = (X[:, 0] > 0).long()


def model() -> sb.Model:
    torch.manual_seed(1)
    return sb.Model(nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2)), sb.Categorical())


def run(settings: sb.SWA, trajectory: Trajectory) -> Run:
    own = model()
    data = prepare(own, None, (X, Y), None, torch.device("cpu"))
    return Run(own, settings, BuildCollection(settings, trajectory), data, torch.device("cpu"), 0)


def after(run: Run, epochs: int) -> None:
    for _ in range(epochs):
        run.epoch()
        run.state.epoch += 1
        assert run.collecting is not None
        run.collecting.end_of_epoch(run.state.epoch)


def test_only_learners_that_collect_are_asked_to():
    trajectory = Trajectory(3)
    assert isinstance(run(sb.SWA(), trajectory).learner, Collecting)
    own = model()
    posterior = sb.MAP(epochs=1).fit(own, (X, Y))
    assert "collected" not in posterior.info


def test_a_snapshot_holds_the_columns_themselves_and_the_best_one_copies():
    trajectory = Trajectory(3)
    walk = run(sb.SWA(start_epoch=1, epochs=9), trajectory)
    after(walk, 3)
    place = trajectory.tensors()["columns"].data_ptr()
    good, best = walk.snapshot(), walk.kept()
    assert good["collected.columns"].data_ptr() == place
    assert best["collected.columns"].data_ptr() != place
    before = {name: tensor.clone() for name, tensor in best.items()}
    after(walk, 4)
    assert all(torch.equal(tensor, before[name]) for name, tensor in best.items())
    walk.restore(best)
    assert trajectory.count == 2
    for name, tensor in trajectory.tensors().items():
        assert torch.equal(tensor, before[f"collected.{name}"]), name


def test_the_start_put_back_has_collected_nothing():
    trajectory = Trajectory(3)
    walk = run(sb.SWA(start_epoch=0, epochs=9), trajectory)
    after(walk, 2)
    walk.restore(walk.start)
    assert trajectory.count == 0
    again = Trajectory(3)
    fresh = run(sb.SWA(start_epoch=0, epochs=9), again)
    after(fresh, 1)
    trajectory.add(fresh.learner.vector)
    assert torch.equal(trajectory.mean, again.mean)


class Patient:
    """A build whose loop may stop early, which SWA's own settings refuse."""

    def __init__(self, trajectory: Trajectory) -> None:
        self.inner = BuildCollection(sb.SWA(start_epoch=0, collect_rate=0.5), trajectory)

    def size(self, model: sb.Model) -> int:
        return self.inner.size(model)

    def __call__(self, bound: object, start: Tensor, gradient: Tensor) -> object:
        return self.inner(bound, start, gradient)


@pytest.mark.parametrize("resumed", [False, True])
def test_an_early_stop_puts_back_what_the_best_epoch_had_collected(tmp_path: Path, resumed):
    trajectory = Trajectory(2)
    held = (X[:10], 1 - Y[:10])  # the opposite labels: the fit only gets worse
    options = {"seed": 0, "checkpoint": tmp_path, "progress": False, "facts": {"method": "own"}}
    method = sb.MAP(epochs=30, patience=4, batch_size=8)
    posterior = fit_learner(model(), method, Patient(trajectory), (X, Y), held, **options)
    if resumed:
        trajectory = Trajectory(2)
        posterior = fit_learner(model(), method, Patient(trajectory), (X, Y), held, **options)
    best = posterior.info["kept_epoch"]
    assert posterior.info["epochs"] == best + 4
    assert trajectory.count == best
    exact = Trajectory(2)
    fit_learner(
        model(),
        sb.MAP(epochs=best, batch_size=8),
        Patient(exact),
        (X, Y),
        held,
        **options | {"checkpoint": None},
    )
    for name, tensor in exact.tensors().items():
        assert torch.equal(tensor, trajectory.tensors()[name]), name


def test_a_fit_that_diverges_gives_the_last_good_iterate():
    with pytest.raises(sb.TrainingDiverged) as caught:
        sb.SWAG(epochs=6, start_epoch=1, learning_rate=0.01, collect_rate=1e30).fit(model(), (X, Y))
    assert torch.isfinite(caught.value.posterior.distribution.mean).all()
    assert caught.value.posterior.distribution.support == 1
