"""Chains from an ensemble, against cold chains and the ensemble alone, on UCI energy, concrete and yacht.

    python benchmarks/ensemble_chains.py --data FOLDER --out build/bench/chains [--sets yacht] [--splits 3]

One hidden layer of 50 (tanh), two outputs (mean and log variance of y), prior N(0, 1) on every weight, so
that everything is sampled and nothing has to be known. 12 networks are trained (the members of the ensemble);
a chain starts at each of them, or, cold, at an initialisation; 1000 draws of each are kept. Both kinds of
chains have the same sampler, warm-up and thinning. ``cold + training`` are cold chains whose warm-up is
longer by the gradients that training took (an epoch is one pass over the data).

Everything sees the train part of the published split; the validation part decides which chains are worse than
a linear model, and how many draws and chains would have been enough. Log predictive density (nats) and RMSE
are in the units of y, on the test rows; coverage is of 95% intervals. ``minutes`` are of the process, on one
thread: training is in those of the chains that start there. Every row is written when it is done, chains go
on where they were cut short: run it again after an interruption. Writes chains.csv and prints Markdown.
"""

import argparse
import dataclasses
import json
import shutil
import time
import warnings
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

import singularbayes as sb
from singularbayes.methods.chains_fit import fit_chains
from singularbayes.random import derive, forked
from singularbayes.recipes.data import uci

SETS = ("energy", "concrete", "yacht")
HIDDEN = 50
MEMBERS = 12
MEMBER = sb.MAP(epochs=300, batch_size=64, learning_rate=0.01)
KERNELS = {
    "mclmc": sb.MCLMC(warm_up=1000, draws=1000, thin=2),
    "hmc": sb.HMC(warm_up=100, draws=1000, max_steps=8),
    "nuts": sb.NUTS(warm_up=100, draws=1000),
}
ROWS = ("ensemble", "ensemble chains", "cold chains", "cold + training")


def model_of(features: int, seed: int) -> sb.Model:
    with forked(seed, "start"):
        network = nn.Sequential(nn.Linear(features, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 2))
    return sb.Model(network, sb.HeteroscedasticGaussian(), prior=sb.Normal(1.0))


def fitted(row: str, setting: dict[str, Any], splits: Any, seed: int, folder: Path) -> Any:
    """The posterior of one row."""
    members, member, kernel = setting["members"], setting["member"], setting["kernel"]
    model = model_of(splits.train[0].shape[1], seed)
    if row == "ensemble":
        return sb.DeepEnsemble(members=members, member=member).fit(model, splits.train, seed=seed)
    if row == "ensemble chains":
        method = sb.DeepEnsembleMCMC(members=members, member=member, sampler=kernel)
        return method.fit(model, splits.train, splits.validation, seed=seed, checkpoint=folder)
    longer = 0
    if row == "cold + training":  # in steps: MCLMC takes 2 gradients, HMC max_steps at most
        longer = member.epochs // (2 if isinstance(kernel, sb.MCLMC) else getattr(kernel, "max_steps", 8))
    cold = dataclasses.replace(kernel, chains=members, warm_up=kernel.warm_up + longer)
    own = derive(seed, "cold")
    return fit_chains(cold, model, splits.train, seed=own, checkpoint=folder, progress=None)


def judged(posterior: Any, splits: Any) -> dict[str, float]:
    x, y = splits.test[0], torch.as_tensor(splits.test[1])
    unit = splits.label_units.one
    predictive = posterior.predict(x, draws=posterior.support)
    low, high = predictive.interval(0.95)
    return {
        "log density": (predictive.log_prob(y).double().mean() - torch.tensor(unit).log()).item(),
        "coverage": ((y >= low) & (y <= high)).double().mean().item(),
        "RMSE": unit * (predictive.mean - y).square().mean().sqrt().item(),
    }


def of_chains(posterior: Any, splits: Any) -> dict[str, Any]:
    """What the diagnostics say."""
    table = sb.chains.overview(posterior, splits.test[0], most=300).loc["predictions"]
    curve = sb.chains.cumulative_log_density(posterior, splits.validation)
    return {
        "R-hat": table["rhat_median"],
        "R-hat <= 1.01": table["mixed"],
        "R-hat of a chain": table["rhat_by_chain_max"],
        "least ESS": table["ess_bulk_min"],
        "draws enough": curve.enough(0.02),
        "chains enough": curve.enough_chains(0.02),
        "dropped": len(posterior.info.get("dropped", [])),
        "gradients": sum(posterior.info["gradients"]),
        "acceptance": float(torch.tensor(posterior.info["acceptance"]).mean()),
    }


def measured(row: str, setting: dict[str, Any], splits: Any, seed: int, folder: Path) -> dict[str, Any]:
    began = time.process_time()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        posterior = fitted(row, setting, splits, seed, folder)
    found = {"minutes": (time.process_time() - began) / 60, **judged(posterior, splits)}
    if row != "ensemble":
        found |= of_chains(posterior, splits)
    return {**found, "warnings": [str(warning.message) for warning in said]}


def study(arguments: argparse.Namespace, setting: dict[str, Any]) -> pd.DataFrame:
    rows = []
    for name in arguments.sets:
        for split in range(arguments.splits):
            splits = uci.load(arguments.data, name, split)
            for row in ROWS:
                folder = arguments.out / name / f"split-{split}" / row.replace(" ", "-")
                file = folder.with_suffix(".json")
                if not file.exists():
                    found = measured(row, setting, splits, split, folder)
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_text(json.dumps(found, indent=1), encoding="utf-8")
                    shutil.rmtree(folder, ignore_errors=True)
                rows.append({"set": name, "split": split, "row": row, **json.loads(file.read_text("utf-8"))})
                print(f"{name}, split {split}, {row}: {rows[-1]['log density']:.3f} nats", flush=True)
    return pd.DataFrame(rows)


def markdown(table: pd.DataFrame) -> str:
    """Mean over splits, with its standard error where there are several."""
    columns = [c for c in table.columns if c not in ("set", "split", "row", "warnings")]
    lines = ["| " + " | ".join(["set", "row", *columns]) + " |", "|" + "---|" * (len(columns) + 2)]
    for (name, row), group in table.groupby(["set", "row"], sort=False):
        cells = [str(name), str(row)]
        for column in columns:
            values = pd.to_numeric(group[column]).dropna()
            digits = 0 if column in ("gradients", "draws enough", "least ESS") else 3
            error = f" +- {values.sem():.{digits}f}" if len(values) > 1 and digits else ""
            cells.append(f"{values.mean():,.{digits}f}{error}" if len(values) else "")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("build/bench/chains"))
    parser.add_argument("--sets", nargs="*", choices=SETS, default=SETS, metavar="SET")
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--kernel", choices=list(KERNELS), default="mclmc")
    parser.add_argument("--quick", action="store_true", help="to see that it runs; the numbers mean nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    kernel = KERNELS[arguments.kernel]
    setting = {"members": MEMBERS, "member": MEMBER, "kernel": kernel}
    if arguments.quick:
        kernel = dataclasses.replace(kernel, warm_up=20, draws=20)
        setting = {"members": 2, "member": dataclasses.replace(MEMBER, epochs=5), "kernel": kernel}
    arguments.out.mkdir(parents=True, exist_ok=True)
    mark = arguments.out / "settings.json"
    if mark.exists() and json.loads(mark.read_text("utf-8")) != repr(setting):
        parser.error(f"{arguments.out} holds rows of other settings ({mark}); choose another --out")
    mark.write_text(json.dumps(repr(setting)), encoding="utf-8")
    table = study(arguments, setting)
    table.to_csv(arguments.out / "chains.csv", index=False)
    text = markdown(table)
    (arguments.out / "chains.md").write_text(text, encoding="utf-8")
    print(f"\n{text}")


if __name__ == "__main__":
    main()
