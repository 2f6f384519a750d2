"""The table of the UCI sets: RMSE and test log-likelihood of every method, over the published splits.

    python benchmarks/uci.py --data FOLDER --out runs/uci --jobs 2 [--sets boston yacht] [--methods mcdropout]

Boston, concrete, energy, wine and yacht have 20 splits, the four larger sets 5. Each set is a run of its
recipe in a folder of --out: finished fits are kept, so run it again after an interruption. Writes uci.csv
(one line for every fit) and prints Markdown: mean over splits +- standard error, in the units of the target.

The last table sets MC dropout and the ensemble beside their published RMSE. Dropout's +- are printed as
standard errors; the ensemble's are not said to be, and are as large as deviations between splits: the
standard error is taken as the printed number over the root of the number of splits.
"""

import argparse
import shlex
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from singularbayes.recipes import ALL, processes, run_recipe
from singularbayes.recipes.data.uci import SETS

SPLITS = {"kin8nm": 5, "naval": 5, "power": 5, "protein": 5}
PUBLISHED = {
    "MCDropout": (
        "Gal, github.com/yaringal/DropoutUncertaintyExps, grid search, 10x epochs",
        {
            "boston": (2.90, 0.18), "concrete": (4.82, 0.16), "energy": (0.54, 0.06), "kin8nm": (0.08, 0.00),
            "naval": (0.00, 0.00), "power": (4.01, 0.04), "protein": (4.27, 0.02), "wine": (0.62, 0.01),
            "yacht": (0.67, 0.05),
        },
    ),
    "DeepEnsemble": (
        "Lakshminarayanan et al. 2017, arXiv 1612.01474, table 1",
        {
            "boston": (3.28, 1.00), "concrete": (6.03, 0.58), "energy": (2.09, 0.29), "kin8nm": (0.09, 0.00),
            "naval": (0.00, 0.00), "power": (4.11, 0.17), "protein": (4.71, 0.06), "wine": (0.64, 0.04),
            "yacht": (1.58, 0.48),
        },
    ),
}  # fmt: skip
DIGITS = {"kin8nm": 3, "naval": 5, "wine": 3}  # of RMSE; 2 elsewhere


def fits(folder, name: str) -> list[dict]:
    """One line for every finished fit of one set."""
    return [
        {
            "set": name,
            "method": run.name,
            "split": run.seed,
            "rmse": run.evaluation.metrics["rmse"].value,
            "log_likelihood": -run.evaluation.metrics["negative_log_likelihood"].value,
            "crps": run.evaluation.metrics["crps"].value,
            "coverage": run.evaluation.metrics["interval_coverage"].value,
            "numbers": run.evaluation.info["numbers"],
            "seconds": run.evaluation.info["seconds"],
        }
        for run in folder.runs
    ]


def mean_and_error(values: np.ndarray) -> tuple[float, float]:
    error = values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else np.nan
    return float(values.mean()), float(error)


def shown(values: np.ndarray, digits: int) -> str:
    mean, error = mean_and_error(values)
    return f"{mean:.{digits}f}" + ("" if np.isnan(error) else f" +- {error:.{digits}f}")


def markdown(head: list[str], lines: list[list[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def table(found: pd.DataFrame, column: str) -> str:
    """Sets down, methods across."""
    methods = list(dict.fromkeys(found["method"]))
    lines = []
    for name, own in found.groupby("set", sort=False):
        digits = DIGITS.get(str(name), 2) if column == "rmse" else {"seconds": 1}.get(column, 2)
        cells = [shown(own[own["method"] == m][column].to_numpy(), digits) if m in set(own["method"]) else ""
                 for m in methods]  # fmt: skip
        lines.append([f"{name} ({own['split'].nunique()})", *cells])
    return markdown(["set (splits)", *methods], lines)


def beside_published(found: pd.DataFrame) -> str:
    """Our RMSE beside the published, and their difference in standard errors (of both)."""
    lines = []
    for method, (_, numbers) in PUBLISHED.items():
        for name, (published, printed) in numbers.items():
            own = found[(found["set"] == name) & (found["method"] == method)]["rmse"].to_numpy()
            if len(own) < 2:
                continue
            ours, error = mean_and_error(own)
            theirs = printed if method == "MCDropout" else printed / len(own) ** 0.5
            rounding = 0.005 / 3**0.5  # they print two decimals
            distance = (ours - published) / np.sqrt(error**2 + theirs**2 + rounding**2)
            verdict = "within 2" if abs(distance) <= 2 else "better" if distance < 0 else "worse"
            digits = DIGITS.get(name, 2)
            lines.append([method, name, f"{ours:.{digits}f} +- {error:.{digits}f}",
                          f"{published:.2f} +- {printed:.2f}", f"{distance:+.1f}", verdict])  # fmt: skip
    head = ["method", "set", "RMSE here +- s.e.", "published, as printed", "difference in s.e.", "verdict"]
    return markdown(head, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=1, help="fits at a time")
    parser.add_argument("--sets", nargs="*", choices=list(SETS), default=list(SETS), metavar="SET")
    parser.add_argument("--methods", nargs="*", help="plans, by name or a part of it; all by default")
    parser.add_argument("--splits", type=int, help="fewer splits, for a quick try")
    parser.add_argument("--epochs", type=int, help="for a quick try; results then stand for nothing")
    arguments = parser.parse_args()
    if arguments.jobs < 1:
        parser.error(f"--jobs must be at least 1, got {arguments.jobs}")
    torch.set_num_threads(1)
    lines = []
    with nullcontext() if arguments.jobs == 1 else processes(arguments.jobs) as executor:
        for name in arguments.sets:
            print(f"{name}:", flush=True)
            folder = run_recipe(
                ALL[f"uci-{name}"],
                arguments.out / name,
                data=arguments.data,
                seeds=min(SPLITS.get(name, 20), arguments.splits or 20),
                methods=arguments.methods,
                overrides={} if arguments.epochs is None else {"epochs": arguments.epochs},
                bootstrap=0,  # the spread is that of splits
                resume=True,
                executor=executor,
                command=shlex.join(["python", *sys.argv]),
                say=lambda text: print(f"  {text}", flush=True),
            )
            lines += fits(folder, name)
            pd.DataFrame(lines).to_csv(arguments.out / "uci.csv", index=False)
    found = pd.DataFrame(lines)
    for column, words in (
        ("rmse", "test RMSE"),
        ("log_likelihood", "test log-likelihood (nats)"),
        ("crps", "CRPS"),
        ("coverage", "coverage of 95% intervals"),
        ("seconds", "seconds of a fit"),
    ):
        print(f"\n{words}, mean over splits +- standard error\n\n{table(found, column)}")
    print(f"\n{beside_published(found)}\n")
    print("\n".join(f"{method}: {source}" for method, (source, _) in PUBLISHED.items()))


if __name__ == "__main__":
    main()
