"""Choose a recipe's settings on validation data alone: a grid over one plan's fields.

    python benchmarks/choose.py icu --data FOLDER --plan "MeanField, low rank" \\
        --grid temperature=1,8,32 --grid initial_std=.1,.3

Test and scored OOD sets are never read. Calibration is fitted on one half of the validation set and judged on
the other; AUROCs are of the OOD sets for choices. Prints one line per setting, mean over seeds.
``prior.std2=.01`` reaches into the prior, ``trajectory.collect_rate=.01`` into a part of the method; a field
that the method lacks is looked for in its member.
"""

import argparse
import functools
import itertools
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import singularbayes as sb
from singularbayes.cli import parse_value
from singularbayes.metrics import auroc
from singularbayes.random import forked
from singularbayes.recipes import ALL
from singularbayes.recipes.recipe import Plan


def set_at(part: Any, path: list[str], value: Any) -> Any:
    """The dataclass with one field, or a field of a field, at another value."""
    if path[0] not in part.__dataclass_fields__ and hasattr(part, "member"):
        path = ["member", *path]
    first, *rest = path
    return replace(part, **{first: set_at(getattr(part, first), rest, value) if rest else value})


def changed(plan: Plan, setting: dict[str, Any]) -> Plan:
    for key, value in setting.items():
        if key.startswith("prior."):
            plan = replace(plan, prior=replace(plan.prior, **{key.removeprefix("prior."): value}))
        elif key == "rank":
            plan = replace(plan, network=functools.partial(plan.network, rank=value))
        elif key == "uses_validation":
            plan = replace(plan, uses_validation=value)
        else:
            plan = replace(plan, method=set_at(plan.method, key.split("."), value))
    return plan


def judge(
    recipe_name: str, plan_name: str, data: Path | None, setting: dict[str, Any], seed: int
) -> dict[str, float]:
    torch.set_num_threads(1)
    recipe = ALL[recipe_name]
    splits = recipe.load(data, seed if recipe.varies_data else 0)
    plan = changed(recipe.plans[plan_name], setting)
    with forked(seed, "start"):
        network = plan.network()
    x, y = splits.validation
    order = np.random.default_rng(seed).permutation(len(y))
    half, other = order[: len(y) // 2], order[len(y) // 2 :]
    held = (x[half], y[half]) if plan.uses_validation else None
    posterior = plan.method.fit(plan.model(network, recipe.likelihood), splits.train, held, seed=seed)
    calibrated = posterior.calibrate((x[half], y[half]), draws=recipe.draws)
    row: dict[str, float] = {"seconds": posterior.info["seconds"], "T": calibrated.likelihood.temperature}
    for state, fitted in (("", calibrated), ("raw_", posterior)):
        pred = fitted.predict(x[other], draws=recipe.draws)
        labels = torch.as_tensor(y[other])
        row[f"{state}nll"] = -pred.log_prob(labels.reshape(pred.mean.shape[:1])).mean().item()
        if isinstance(pred, sb.CategoricalPredictive):
            row["accuracy"] = (pred.mean.argmax(1) == labels).float().mean().item()
        elif isinstance(pred, sb.BernoulliPredictive):
            row["auroc"] = auroc(pred.mean.numpy(), y[other])
        elif not state:  # calibration leaves a regression's mean as it is
            row["rmse"] = (pred.mean.reshape(-1) - labels.reshape(-1)).square().mean().sqrt().item()
        names = [sb.scores.default(recipe.likelihood.task), "entropy"]
        for score in names[: 1 if recipe.likelihood.task == "gaussian" else 2]:
            measure = sb.scores.for_task(recipe.likelihood.task)[score]
            inside = measure(pred).numpy().ravel()
            for name, (far, _) in splits.ood_validation.items():
                outside = measure(fitted.predict(far, draws=recipe.draws)).numpy().ravel()
                scores = np.concatenate([inside, outside])
                positive = np.concatenate([np.zeros(len(inside), int), np.ones(len(outside), int)])
                row[f"{state}{name}_{'mi' if score != 'entropy' else 'entropy'}"] = auroc(scores, positive)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", choices=list(ALL))
    parser.add_argument("--plan", required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--grid", action="append", default=[], help="field=value,value,...")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    axes = {
        name: [parse_value(v) for v in values.split(",")]
        for name, _, values in (item.partition("=") for item in arguments.grid)
    }
    settings = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    with ProcessPoolExecutor(int(os.environ.get("WORKERS", "2"))) as pool:
        jobs = {
            (i, seed): pool.submit(judge, arguments.recipe, arguments.plan, arguments.data, setting, seed)
            for i, setting in enumerate(settings)
            for seed in range(arguments.seeds)
        }
        rows = [{**settings[i], "seed": seed, **job.result()} for (i, seed), job in jobs.items()]
    table = pd.DataFrame(rows)
    if axes:
        table = (
            table.groupby(list(axes), sort=False).mean(numeric_only=True).drop(columns="seed").reset_index()
        )
    print(table.to_string(index=False, float_format=lambda value: f"{value:.3f}"))
    if arguments.out:
        pd.DataFrame(rows).to_csv(arguments.out, index=False)


if __name__ == "__main__":
    main()
