"""Jobs in other processes: the numbers of one after another, whole folders, failures that are named."""

import json
import pickle
import warnings
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn

import singularbayes as sb
from singularbayes.recipes import Plan, Recipe, open_folder, processes, run_recipe
from singularbayes.recipes.data.splits import Splits
from singularbayes.recipes.recipe import mlp


def load(folder, seed):
    rng = np.random.default_rng(seed)

    def part(n):
        x = rng.normal(size=(n, 3)).astype(np.float32)
        return x, (x[:, 0] + rng.normal(size=n) > 0).astype(np.int64)

    return Splits(
        train=part(60),
        validation=part(40),
        test=part(40),
        ood={"far": (part(30)[0] + 5, None)},
        feature_names=("a", "b", "c"),
    )


def dropped() -> nn.Module:
    return mlp(3, 8, 2, dropout=0.5)


TRAINED = {"epochs": 5, "batch_size": 20, "learning_rate": 0.03}
RECIPE = Recipe(
    name="tiny",
    title="Tiny",
    what="a test",
    load=load,
    likelihood=sb.Categorical(),
    draws=8,
    varies_data=True,
    plans={
        "MAP": Plan(network=lambda: mlp(3, 8, 2), prior=sb.Normal(), method=sb.MAP(**TRAINED)),
        "Dropout": Plan(network=dropped, prior=sb.Normal(), method=sb.MCDropout(**TRAINED)),
        "Field": Plan(network=lambda: mlp(3, 8, 2), prior=sb.Normal(), method=sb.MeanField(**TRAINED)),
    },
)


class Elsewhere(Executor):
    """The first jobs are pickled, done at once, and the answer pickled back; the others stay in the queue."""

    def __init__(self, most: int = 100, error: Exception | None = None) -> None:
        self.most, self.error, self.futures = most, error, []

    def submit(self, function, /, *arguments):
        future = Future()
        self.futures.append(future)
        if len(self.futures) <= self.most:
            future.set_running_or_notify_cancel()
            try:
                if self.error:
                    raise self.error
                again, others = pickle.loads(pickle.dumps((function, arguments)))
                future.set_result(pickle.loads(pickle.dumps(again(*others))))
            except Exception as error:  # noqa: BLE001 - as an executor does
                future.set_exception(error)
        return future


@dataclass(frozen=True, kw_only=True)
class Failing:
    """A method that warns, or fails."""

    warns: bool = False
    epochs: int = 1

    def fit(self, model, train, validation=None, *, seed=0, checkpoint=None, progress=None):
        if not self.warns:
            raise ValueError("no fit today")
        warnings.warn("a bound was reached", UserWarning, stacklevel=2)
        return sb.MAP(**TRAINED).fit(model, train, seed=seed)


def with_plan(name: str, method) -> Recipe:
    """The recipe with one method changed."""
    return replace(RECIPE, plans={**RECIPE.plans, name: replace(RECIPE.plans[name], method=method)})


@pytest.fixture(scope="module")
def one_by_one(tmp_path_factory):
    return run_recipe(RECIPE, tmp_path_factory.mktemp("jobs") / "out", seeds=2, bootstrap=5)


def equal(one, other) -> bool:
    """Bit for bit."""
    return [(r.name, r.seed) for r in one.runs] == [(r.name, r.seed) for r in other.runs] and all(
        torch.equal(a.posterior.draw(3), b.posterior.draw(3))
        and a.evaluation.metrics == b.evaluation.metrics
        and a.evaluation.ood == b.evaluation.ood
        for a, b in zip(one.runs, other.runs, strict=True)
    )


def test_two_processes_give_the_numbers_of_one_job_after_another(one_by_one, tmp_path):
    said = []
    with processes(2) as pool:
        folder = run_recipe(
            RECIPE, tmp_path, bootstrap=5, executor=pool, command="the command", say=said.append
        )
    first = replace(one_by_one, runs=one_by_one.runs[:3])
    assert equal(folder, first)
    assert not equal(replace(folder, runs=folder.runs[::-1]), first), "mutant"
    assert sorted(line.split(":")[0] for line in said) == sorted(
        f"{r.name}, seed {r.seed}" for r in folder.runs
    )
    job = json.loads((tmp_path / "map" / "seed-0" / "job.json").read_text(encoding="utf-8"))
    assert job["made"]["command"] == "the command"
    assert job["made"]["machine"].endswith(" 1 threads")
    assert not list(tmp_path.glob("*/*/checkpoint"))


def test_seeds_with_data_of_their_own_travel_with_them(one_by_one, tmp_path):
    folder = run_recipe(RECIPE, tmp_path, seeds=2, bootstrap=5, executor=Elsewhere())
    assert equal(folder, one_by_one)


def test_a_run_goes_on_in_processes_and_does_nothing_again(one_by_one):
    said, executor = [], Elsewhere()
    again = run_recipe(
        RECIPE, one_by_one.path, seeds=2, bootstrap=5, resume=True, executor=executor, say=said.append
    )
    assert executor.futures == []
    assert all(line.endswith("finished before") for line in said)
    assert equal(again, one_by_one)


def test_after_a_failure_what_is_under_way_is_kept_and_nothing_new_begun(tmp_path):
    executor, recipe = Elsewhere(most=3), with_plan("Dropout", Failing())
    with pytest.raises(ValueError, match="no fit today"):
        run_recipe(recipe, tmp_path / "out", seeds=2, bootstrap=5, executor=executor)
    assert [future.cancelled() for future in executor.futures] == [False, False, False, True, True, True]
    kept = open_folder(tmp_path / "out", {"tiny": recipe})
    assert [(run.name, run.seed) for run in kept.runs] == [("MAP", 0), ("Field", 0)]
    assert not (tmp_path / "out" / "dropout").exists()
    said = []
    rest = run_recipe(RECIPE, tmp_path / "out", seeds=1, bootstrap=5, resume=True, say=said.append)
    assert rest.names == ("MAP", "Dropout", "Field")
    assert sum(line.endswith("finished before") for line in said) == 2


def test_a_failure_of_the_first_job_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match="no fit today"):
        run_recipe(with_plan("MAP", Failing()), tmp_path / "out", bootstrap=5, executor=Elsewhere(most=1))
    assert not (tmp_path / "out").exists()


def test_a_killed_process_is_named_with_its_job(tmp_path):
    executor = Elsewhere(most=1, error=BrokenProcessPool("terminated abruptly"))
    with pytest.raises(ChildProcessError, match="while MAP, seed 0 was under way"):
        run_recipe(RECIPE, tmp_path / "out", bootstrap=5, executor=executor)


def test_warnings_come_back_with_the_name_of_the_job(tmp_path):
    with pytest.warns(UserWarning, match="Dropout, seed 0: a bound was reached") as caught:
        folder = run_recipe(
            with_plan("Dropout", Failing(warns=True)),
            tmp_path,
            methods=["dropout"],
            bootstrap=5,
            executor=Recording(),
        )
    assert len(caught) == 1
    assert folder.names == ("Dropout",)


class Recording(Elsewhere):
    """As a process of its own, which does not make errors of warnings."""

    def submit(self, function, /, *arguments):
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            return super().submit(function, *arguments)


@pytest.mark.usefixtures("unchecked")
def test_threads_are_refused(tmp_path):
    with ThreadPoolExecutor(1) as pool, pytest.raises(TypeError, match="threads share torch's global random"):
        run_recipe(RECIPE, tmp_path / "out", executor=pool)
    assert not (tmp_path / "out").exists()


def test_a_plan_may_join_the_validation_set_where_nothing_is_chosen_or_calibrated(tmp_path):
    joined = replace(RECIPE.plans["MAP"], joins_validation=True)
    recipe = replace(RECIPE, calibrate=False, plans={"MAP": joined})
    folder = run_recipe(recipe, tmp_path, bootstrap=5)
    assert folder.runs[0].posterior.info["num_data"] == 100
    with pytest.raises(ValueError, match="set calibrate=False"):
        replace(RECIPE, plans={"MAP": joined})
    with pytest.raises(ValueError, match="needs held out"):
        run_recipe(recipe, tmp_path / "other", bootstrap=5, overrides={"patience": 2})
    with pytest.raises(ValueError, match="other settings"):
        run_recipe(replace(recipe, plans=RECIPE.plans), tmp_path, methods=["map"], bootstrap=5, resume=True)


def test_a_plan_may_have_a_likelihood_of_its_own(tmp_path):
    def regression(folder, seed):
        splits = load(folder, seed)
        return replace(
            splits,
            **{
                name: (x, x[:, 1])
                for name, (x, _) in splits.named_sets().items()
                if name in ("train", "validation", "test")
            },
        )

    wide = Plan(
        network=lambda: mlp(3, 8, 2),
        prior=sb.Normal(),
        method=sb.MAP(epochs=1),
        likelihood=sb.HeteroscedasticGaussian(),
    )
    narrow = replace(wide, network=lambda: mlp(3, 8, 1), likelihood=None)
    recipe = replace(
        RECIPE,
        load=regression,
        likelihood=sb.Gaussian(),
        calibrate=False,
        plans={"wide": wide, "narrow": narrow},
    )
    folder = run_recipe(recipe, tmp_path, bootstrap=5)
    kinds = [type(run.posterior.likelihood).__name__ for run in folder.runs]
    assert kinds == ["HeteroscedasticGaussian", "Gaussian"]
    changed = replace(
        recipe, plans={**recipe.plans, "wide": replace(wide, likelihood=sb.Gaussian(noise=0.5))}
    )
    with pytest.raises(ValueError, match="other settings"):
        run_recipe(changed, tmp_path, methods=["wide"], bootstrap=5, resume=True)
