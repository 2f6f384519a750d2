"""The knee: what does a subspace gain with its dimension? AUROC, NLL and cost on the digits recipe.

    python benchmarks/subspace_knee.py --out build/bench/knee [--seeds 3]
    python benchmarks/subspace_knee.py --choose          # settings, on the sets for choices alone

One run of SGD a seed; its last iterates give every basis. Elliptical slice sampling inside. Rows ``SWA`` (the
centre of the subspaces, one network) and ``SWAG`` (the same iterates, rank 20) stand beside. AUROC is of the
mutual information on the recipe's OOD sets, ``entropy`` the AUROC of the predictive entropy. ``seconds`` is
the inference alone; ``evaluations`` are passes over the training data. Writes ``knee.csv`` (one row a seed)
and ``knee.md`` (mean +- standard error).
"""

import argparse
import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import singularbayes as sb
from singularbayes.distributions import StoredDraws
from singularbayes.methods.collection import BuildCollection
from singularbayes.methods.swag import gaussian
from singularbayes.methods.training import fit_learner
from singularbayes.methods.trajectory import Trajectory
from singularbayes.metrics import auroc
from singularbayes.posterior import Posterior
from singularbayes.random import forked
from singularbayes.recipes import ALL

DIMENSIONS = (1, 2, 5, 10, 20, 50)
KEPT = 100
RUN = sb.Collection(
    epochs=150, start_epoch=50, learning_rate=0.05, collect_rate=0.02, temperature=0.1, batch_size=64
)
BASES = {"PCA": sb.PCA, "random": sb.RandomProjection}
# (prior_std, temperature). Chosen: the lowest NLL of the validation digits, mean over the dimensions 2, 10
# and 50, by --choose --seeds 1. Wide: fixed before the run, so that the data set the width, not the prior.
SETTINGS = {
    "chosen": {"PCA": (10.0, 1.0), "random": (30.0, 10.0)},
    "wide": {"PCA": (100.0, 1.0), "random": (100.0, 1.0)},
}
RECIPE = ALL["digits"]


def walk(seed: int, splits: Any) -> tuple[sb.Model, Posterior, Trajectory]:
    with forked(seed, "start"):
        network = RECIPE.plans["MAP"].network()
    model = sb.Model(network, RECIPE.likelihood, prior=sb.Normal(1.0))
    trajectory = Trajectory(rank=KEPT, spread=model.layout.belief)
    build = BuildCollection(RUN, trajectory)
    settings: dict[str, Any] = {"seed": seed, "checkpoint": None, "progress": False}
    last = fit_learner(model, RUN, build, splits.train, None, facts={"method": "SGD"}, **settings)
    return model, last, trajectory


def subspace(kind: str, dimension: int, setting: tuple[float, float], trajectory: Trajectory) -> sb.Subspace:
    prior_std, temperature = setting
    inference = sb.EllipticalSlice(draws=64, chains=4, burn_in=20, temperature=temperature)
    return sb.Subspace(
        trajectory=trajectory, basis=BASES[kind](dimension), inference=inference, prior_std=prior_std
    )


def judged(posterior: Posterior, inside: Any, outside: dict[str, Any]) -> dict[str, float]:
    x, y = inside
    predictive = posterior.predict(x)
    labels = torch.as_tensor(y)
    row = {
        "NLL": -predictive.log_prob(labels).mean().item(),
        "accuracy": (predictive.mean.argmax(1) == labels).double().mean().item(),
    }
    far = {name: posterior.predict(x) for name, (x, _) in outside.items()}
    for name, score in {"AUROC": sb.scores.mutual_information, "entropy": sb.scores.entropy}.items():
        known = score(predictive).numpy()
        for where, other in far.items():
            scores = np.concatenate([known, score(other).numpy()])
            positive = np.r_[np.zeros(len(known), int), np.ones(len(scores) - len(known), int)]
            row[f"{name} {where}"] = auroc(scores, positive)
    return row


def beside(last: Posterior, trajectory: Trajectory) -> dict[str, Posterior]:
    """SWA and SWAG of the same iterates."""
    narrow = Trajectory(rank=20, spread=trajectory.spread)
    state = trajectory.tensors()
    order = state["columns"].roll(-(trajectory.count % trajectory.rank), 0)[-20:]
    narrow.load({**{name: t.clone() for name, t in state.items()}, "columns": order.clone()})
    parts = {
        "SWA": StoredDraws(trajectory.mean.clone().unsqueeze(0)),
        "SWAG": gaussian(narrow, 1.0, last.distribution.mean[last.layout.trained :]),
    }
    return {name: Posterior(last.network, d, last.likelihood, last.layout, {}) for name, d in parts.items()}


def choose(seeds: int) -> None:
    splits, rows = RECIPE.load(None, 0), []
    for seed in range(seeds):
        model, _, trajectory = walk(seed, splits)
        for kind in BASES:
            for dimension in (2, 10, 50):
                for prior_std, temperature in itertools.product((3.0, 10.0, 30.0, 100.0), (1.0, 10.0, 100.0)):
                    method = subspace(kind, dimension, (prior_std, temperature), trajectory)
                    posterior = method.fit(model, splits.train, seed=seed)
                    row = judged(posterior, splits.validation, splits.ood_validation)
                    row["AUROC"] = (row["AUROC near"] + row["AUROC far"]) / 2
                    row["width of z"] = float(np.mean(posterior.info["z_std"]))
                    row["evaluations"] = posterior.info["evaluations"]
                    setting = {"prior_std": prior_std, "temperature": temperature}
                    rows.append({"basis": kind, **setting, "dimension": dimension, **row})
    table = pd.DataFrame(rows)
    settings = ["basis", "prior_std", "temperature"]
    print(table.groupby(settings).mean().drop(columns="dimension").round(4).to_string())
    print(table.groupby([*settings, "dimension"]).mean().round(4).to_string())


def measure(seeds: int) -> pd.DataFrame:
    splits, rows = RECIPE.load(None, 0), []
    for seed in range(seeds):
        model, last, trajectory = walk(seed, splits)
        for name, posterior in beside(last, trajectory).items():
            rows.append({"basis": name, "seed": seed, **judged(posterior, splits.test, splits.ood)})
        for width, kind in itertools.product(SETTINGS, BASES):
            for dimension in DIMENSIONS:
                method = subspace(kind, dimension, SETTINGS[width][kind], trajectory)
                began = time.perf_counter()
                posterior = method.fit(model, splits.train, seed=seed)
                seconds = time.perf_counter() - began
                info = posterior.info
                rows.append(
                    {
                        "basis": f"{kind}, {width}",
                        "dimension": dimension,
                        "seed": seed,
                        **judged(posterior, splits.test, splits.ood),
                        "seconds": seconds,
                        "evaluations": info["evaluations"],
                        "width of z": float(np.mean(info["z_std"])),
                        "draws": len(posterior.distribution.draws),
                    }
                )
    return pd.DataFrame(rows)


def markdown(table: pd.DataFrame) -> str:
    """Mean +- standard error over seeds."""
    columns = [c for c in table.columns if c not in ("basis", "dimension", "seed")]
    lines = ["| " + " | ".join(["basis", "dimension", *columns]) + " |", "|" + "---|" * (len(columns) + 2)]
    for (basis, dimension), group in table.groupby(["basis", "dimension"], sort=False, dropna=False):
        cells = [basis, "" if np.isnan(dimension) else f"{dimension:.0f}"]
        for column in columns:
            mean, error = group[column].mean(), group[column].sem()
            digits = 0 if column in ("evaluations", "draws") else 1 if column == "seconds" else 3
            spread = "" if column in ("draws", "seconds", "evaluations") else f" +- {error:.{digits}f}"
            cells.append("" if np.isnan(mean) else f"{mean:.{digits}f}{spread}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/bench/knee"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--choose", action="store_true", help="grid of settings on the sets for choices")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.choose:
        choose(arguments.seeds)
        return
    table = measure(arguments.seeds)
    arguments.out.mkdir(parents=True, exist_ok=True)
    table.to_csv(arguments.out / "knee.csv", index=False)
    text = markdown(table)
    (arguments.out / "knee.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
