"""How the ICU result of the low-rank posterior depends on each setting: one at a time, five seeds, test set.

    python benchmarks/icu_sensitivity.py --data FOLDER --out build/bench/icu_sensitivity.json

For information only: no setting was chosen from this table. Finished rows are kept: a killed run goes on.
"""

import argparse
import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch

import singularbayes as sb
from singularbayes import checkpoint
from singularbayes.random import forked
from singularbayes.recipes import icu

BASE: dict[str, Any] = {
    "pi": 0.5,
    "std1": 0.5,
    "std2": math.exp(-6),
    "temperature": 2.0,
    "initial_std": 0.2,
    "rank": 15,
}
VARIANTS: dict[str, tuple[Any, ...]] = {
    "pi": (0.25, 0.75),
    "std1": (0.25, 1.0, 2.0),
    "std2": (math.exp(-4), 0.1),
    "temperature": (0.1, 1.0, 8.0, 32.0),
    "initial_std": (0.05, 0.4),
    "rank": (4, 8, 30),
}


def measure(data: Path, setting: dict[str, Any], seed: int) -> dict[str, float]:
    recipe, plan = icu.RECIPE, icu.RECIPE.plans["MeanField, low rank"]
    splits = recipe.load(data, 0)
    with forked(seed, "start"):
        network = icu.low(setting["rank"])
    prior = sb.ScaleMixture(pi=setting["pi"], std1=setting["std1"], std2=setting["std2"])
    method = replace(plan.method, temperature=setting["temperature"], initial_std=setting["initial_std"])
    fitted = method.fit(sb.Model(network, recipe.likelihood, prior=prior), splits.train, seed=seed)
    calibrated = fitted.calibrate(splits.validation, draws=recipe.draws, seed=seed)
    ood = {name: x for name, (x, _) in splits.ood.items()}
    result = sb.evaluate(calibrated, splits.test, ood=ood, draws=recipe.draws, bootstrap=0, seed=seed)
    row = {"AUROC": result.metrics["auroc"].value, "NLL": result.metrics["negative_log_likelihood"].value}
    for name in ood:
        row[f"{name} MI"] = result.ood[name]["mutual_information"]["auroc"].value
        row[f"{name} entropy"] = result.ood[name]["entropy"]["auroc"].value
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("build/bench/icu_sensitivity.json"))
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    settings: dict[str, dict[str, Any]] = {"as chosen": BASE}
    for key, values in VARIANTS.items():
        settings |= {f"{key} = {value:.4g}": {**BASE, key: value} for value in values}
    kept = json.loads(arguments.out.read_text())["rows"] if arguments.out.is_file() else []
    done = {(row["setting"], row["seed"]) for row in kept}
    run = partial(measure, arguments.data)
    for name, setting in settings.items():
        for seed in range(arguments.seeds):
            if (name, seed) not in done:
                kept.append({"setting": name, "seed": seed, **run(setting, seed)})
                checkpoint.write_json(arguments.out, {"torch": torch.__version__, "rows": kept})
    table = pd.DataFrame(kept).drop(columns="seed").groupby("setting", sort=False)
    print((table.mean().round(3).astype(str) + " +- " + table.sem().round(3).astype(str)).to_string())


if __name__ == "__main__":
    main()
