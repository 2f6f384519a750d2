"""Do shared factors prevent local memorising? The share of wrong labels fitted, full against low rank.

    python benchmarks/memorisation.py --out runs/memorisation [--seeds 3] [--epochs 400]

The digits recipe's classes 0 to 7 with 0, 20 and 50% of the training labels replaced by another class. Every
network (64-128-128-8: full, ranks 15, 8, 4; each as a point and as mean field) is looked at after 5, 10, 20,
... epochs: clean accuracy on the test digits, and the share of the replaced labels that it predicts on its
own training rows. (A network that has learned the rule and nothing else predicts none of them, one that
guesses an eighth.) "At equal clean accuracy": by linear interpolation along each curve, at its first passage
through the highest clean accuracy that ALL networks of that noise reach (less .005); and at the last epoch.

Looks go on from a checkpoint; finished fits are kept in --out: run it again after an interruption. About 25
minutes on one core with the defaults.
"""

import argparse
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from kept import kept

import singularbayes as sb
from singularbayes.random import forked
from singularbayes.recipes import ALL
from singularbayes.recipes.digits import full, low

RANKS = (None, 15, 8, 4)
NOISE = (0.0, 0.2, 0.5)
RECIPE = ALL["digits"]
METHODS = {"MAP": RECIPE.plans["MAP"], "MeanField": RECIPE.plans["MeanField, low rank"]}
CLASSES = 8


def noisy(labels: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels of which this share is replaced by another class, and which."""
    source = np.random.default_rng(seed)
    wrong = np.zeros(len(labels), bool)
    wrong[source.choice(len(labels), round(share * len(labels)), replace=False)] = True
    shifted = (labels + source.integers(1, CLASSES, len(labels))) % CLASSES
    return np.where(wrong, shifted, labels), wrong


def curve(kind: str, rank: int | None, share: float, seed: int, epochs: int) -> dict[str, Any]:
    """Clean accuracy and wrong labels fitted, look by look."""
    splits, plan = RECIPE.load(None, 0), METHODS[kind]
    x, clean = (np.asarray(part) for part in splits.train)
    labels, wrong = noisy(clean, share, seed)
    with forked(seed, "start"):
        network = full() if rank is None else low(rank)
    model = sb.Model(network, RECIPE.likelihood, prior=plan.prior)
    looks = [e for e in (5 * 2**i for i in range(20)) if e < epochs] + [epochs]
    lines: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        for look in looks:
            method = replace(plan.method, epochs=look)
            posterior = method.fit(model, (x, labels), seed=seed, checkpoint=folder, progress=False)
            test_x, test_y = splits.test
            guess = posterior.predict(x).mean.argmax(1).numpy()
            lines.append({
                "epochs": look,
                "clean accuracy": float((posterior.predict(test_x).mean.argmax(1).numpy() == test_y).mean()),
                "wrong fitted": float((guess == labels)[wrong].mean()) if wrong.any() else float("nan"),
                "right kept": float((guess == labels)[~wrong].mean()),
            })  # fmt: skip
    return {"lines": lines}


def at_accuracy(lines: list[dict[str, float]], accuracy: float) -> float:
    """Wrong labels fitted where the clean accuracy first reaches a level, interpolated between looks."""
    before = None
    for line in lines:
        if line["clean accuracy"] >= accuracy:
            if before is None:
                return line["wrong fitted"]
            gained = line["clean accuracy"] - before["clean accuracy"]
            share = (accuracy - before["clean accuracy"]) / gained
            return before["wrong fitted"] + share * (line["wrong fitted"] - before["wrong fitted"])
        before = line
    return float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/memorisation"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=400)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for share in NOISE:
        for seed in range(arguments.seeds):
            found = {}
            for kind in METHODS:
                for rank in RANKS:
                    size = "full" if rank is None else rank
                    name = f"{kind.lower()}-{size}-noise-{round(100 * share)}-seed-{seed}"
                    settings = {"epochs": arguments.epochs}
                    make = partial(curve, kind, rank, share, seed, arguments.epochs)
                    lines = kept(arguments.out / "jobs", name, settings, make)["lines"]
                    found[kind, rank] = [{k: float("nan") if v is None else v for k, v in line.items()}
                                         for line in lines]  # fmt: skip
            best = [max(line["clean accuracy"] for line in lines) for lines in found.values()]
            common = min(best) - 0.005
            rows += [
                {"noise": share, "seed": seed, "method": kind, "rank": "full" if rank is None else rank,
                 "common accuracy": common, "fitted there": at_accuracy(lines, common),
                 "best accuracy": max(line["clean accuracy"] for line in lines),
                 "last accuracy": lines[-1]["clean accuracy"], "fitted at last": lines[-1]["wrong fitted"],
                 "right kept at last": lines[-1]["right kept"]}
                for (kind, rank), lines in found.items()
            ]  # fmt: skip
    table = pd.DataFrame(rows)
    table.to_csv(arguments.out / "memorisation.csv", index=False)
    groups = table.drop(columns="seed").groupby(["noise", "method", "rank"], sort=False)
    both = pd.concat({"mean": groups.mean(), "se": groups.sem()}, axis=1).swaplevel(axis=1)
    both = both.sort_index(axis=1, level=0, sort_remaining=False)
    print(both.to_string(float_format=lambda value: f"{value:.3f}"))


if __name__ == "__main__":
    main()
