"""``select_rank`` against the best rank of a full sweep: how far its log density lies below, and its cost.

    python benchmarks/rank_choice.py --data FOLDER --out runs/rank_choice [--sets digits icu beijing]

For every set and seed: a whole fit at each rank (the sweep), then the rules:

- ``validation``: successive halving over the same ranks, all fits together at most 1.5 whole ones;
- ``energy``: the ranks that keep 90% of a trained full network's energy (one point fit), then one fit;
- ``pruned``: the fit at the largest rank, its components turned into order and pruned, no further fit.

Choices look at validation data; what is printed is the test log density, with the paired standard error over
test rows of the difference to the rank that is best on the test rows, and the standard error of the best's
own mean. A rule passes where the difference is within one of them. FOLDER holds the folders of the sets.
Finished jobs are kept in --out: run it again after an interruption. --epochs makes a quick try whose results
stand for nothing. One core, three seeds: digits 2 minutes, icu 6, beijing 4 hours (80 minutes with --seeds
1).
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from kept import kept

import singularbayes as sb
from singularbayes.metrics import Interval
from singularbayes.nn.factors import quiet_ranks
from singularbayes.random import forked
from singularbayes.recipes import ALL
from singularbayes.report import loss_against_rank
from singularbayes.theory import ByEnergy, ByValidation, prune, select_rank

SHARE, RELEVANCE = 0.9, 1e-2


@dataclass(frozen=True)
class Task:
    """One set: whose recipe, the plan of the method, the ranks that are compared."""

    recipe: str
    low: str
    ranks: Sequence[int]


TASKS = {
    "digits": Task("digits", "MeanField, low rank", (1, 2, 4, 8, 15, 30)),
    "icu": Task("icu", "MeanField, low rank", (1, 2, 4, 8, 15, 22)),
    "beijing": Task("beijing", "MeanField, low rank", (1, 2, 4, 8, 15, 22)),
}


class Bench:
    """The models and data of one set and seed."""

    def __init__(self, task: Task, data: Path | None, seed: int, epochs: int | None) -> None:
        recipe = ALL[task.recipe]
        self.task, self.seed = task, seed
        folder = data / "icu_physionet2012" if task.recipe == "icu" else data
        self.splits = recipe.load(folder if recipe.needs_data else None, 0)
        plan, self.point = recipe.plans[task.low], recipe.plans["MAP"]
        # early stopping would make whole fits of different length: the sweep and the halving have the same
        self.method = replace(plan.method, patience=None, **({} if epochs is None else {"epochs": epochs}))
        self.epochs, self.recipe, self.prior = epochs, recipe, plan.prior
        with forked(seed, "start"):
            self.network = self.point.network()

    def model(self, rank: Any) -> sb.Model:
        with quiet_ranks():
            low = sb.factorize(self.network, rank, seed=self.seed)
        return sb.Model(low, self.recipe.likelihood, prior=self.prior)

    def rows(self, posterior: sb.Posterior, which: str) -> list[float]:
        """Log density of every row, in nats."""
        x, y = getattr(self.splits, which)
        x = torch.as_tensor(x)
        return posterior.predict(x, draws=64).log_prob(torch.as_tensor(y)).double().reshape(-1).tolist()

    def judged(self, posterior: sb.Posterior) -> dict[str, Any]:
        return {"test": self.rows(posterior, "test"), "validation": self.rows(posterior, "validation"),
                "numbers": posterior.info["numbers"]}  # fmt: skip

    def whole(self, rank: int) -> dict[str, Any]:
        posterior = self.method.fit(self.model(rank), self.splits.train, seed=self.seed, progress=False)
        pruned = {}
        if rank == self.task.ranks[-1]:
            smaller = prune(posterior, RELEVANCE)
            pruned = {"pruned": self.judged(smaller.posterior) | {"rank": str(smaller.ranks)}}
        return self.judged(posterior) | {"seconds": posterior.info["seconds"]} | pruned

    def by_validation(self) -> dict[str, Any]:
        rule = ByValidation(method=self.method, ranks=self.task.ranks, budget=1.5)
        choice = select_rank(self.model, rule, self.splits.train, self.splits.validation, seed=self.seed)
        return self.judged(choice.posterior) | {"rank": choice.rank, "fits": choice.fits}

    def by_energy(self) -> dict[str, Any]:
        method = self.point.method if self.epochs is None else replace(self.point.method, epochs=self.epochs)
        method = replace(method, patience=None)
        model = sb.Model(self.network, self.recipe.likelihood, prior=self.point.prior)
        trained = method.fit(model, self.splits.train, seed=self.seed, progress=False)
        choice = select_rank(trained, ByEnergy(SHARE, cap=self.task.ranks[-1]))
        posterior = self.method.fit(
            self.model(choice.rank), self.splits.train, seed=self.seed, progress=False
        )
        return self.judged(posterior) | {
            "rank": str(choice.rank),
            "fits": 1 + method.epochs / self.method.epochs,
        }


@dataclass
class Jobs:
    """The kept jobs of one set and seed; data and network are made when the first fresh job needs them."""

    task: Task
    data: Path | None
    seed: int
    epochs: int | None
    folder: Path

    @cached_property
    def bench(self) -> Bench:
        return Bench(self.task, self.data, self.seed, self.epochs)

    def __call__(self, key: str, make: Callable[[Bench], dict[str, Any]]) -> dict[str, Any]:
        return kept(self.folder, key, {"epochs": self.epochs}, lambda: make(self.bench))


def standard_error(rows: np.ndarray) -> float:
    """Of the mean over rows."""
    return float(rows.std(ddof=1)) / len(rows) ** 0.5


def run(name: str, data: Path | None, out: Path, seeds: int, epochs: int | None) -> pd.DataFrame:
    """All jobs of one set; one line for every seed and rule."""
    task, lines = TASKS[name], []
    for seed in range(seeds):
        job = Jobs(task, data, seed, epochs, out / name / f"seed-{seed}")
        sweep = {rank: job(f"rank-{rank}", lambda b, rank=rank: b.whole(rank)) for rank in task.ranks}
        rules = {
            "validation": job("validation", Bench.by_validation),
            "energy": job("energy", Bench.by_energy),
        }
        rules["pruned"] = sweep[task.ranks[-1]]["pruned"] | {"fits": 1.0}
        best = max(sweep, key=lambda rank: np.mean(sweep[rank]["test"]))
        by_sweep = max(sweep, key=lambda rank: np.mean(sweep[rank]["validation"]))
        rules["sweep"] = sweep[by_sweep] | {"rank": by_sweep, "fits": float(len(sweep))}
        top = np.array(sweep[best]["test"])
        own = standard_error(top)
        for rule, found in rules.items():
            apart = np.array(found["test"]) - top
            error = standard_error(apart)
            below = -apart.mean()
            about = {"set": name, "seed": seed, "rule": rule, "rank": str(found["rank"]), "best": best}
            density = {"log density": top.mean() - below, "below": below, "se": own, "paired se": error}
            passes = {"passes": bool(below <= own), "passes paired": bool(below <= error)}
            lines.append({**about, **density, **passes, "fits": found["fits"], "numbers": found["numbers"]})
        if seed == 0:
            picture(name, sweep, rules["validation"]["rank"], out)
    return pd.DataFrame(lines)


def picture(name: str, sweep: dict[int, Any], chosen: int, out: Path) -> None:
    """NLL against rank, the chosen one ringed (first seed)."""
    by_rank = {}
    for rank, found in sweep.items():
        loss = -np.array(found["test"])
        half = 1.96 * standard_error(loss)
        by_rank[rank] = Interval(loss.mean(), loss.mean() - half, loss.mean() + half)
    figure = loss_against_rank({name: by_rank}, chosen={name: chosen}, label="test NLL (nats)")
    figure.savefig(out / f"{name}.png", dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/rank_choice"))
    parser.add_argument("--sets", nargs="*", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, help="for a quick try; results then stand for nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    parts = []
    for name in arguments.sets:
        print(f"{name}:", flush=True)
        parts.append(run(name, arguments.data, arguments.out, arguments.seeds, arguments.epochs))
        pd.concat(parts, ignore_index=True).to_csv(arguments.out / "rank_choice.csv", index=False)
    print(pd.concat(parts).to_string(index=False, float_format=lambda value: f"{value:.4f}"))


if __name__ == "__main__":
    main()
