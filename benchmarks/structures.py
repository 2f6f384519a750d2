"""Structures and beliefs side by side: one table and one JSON file from a recipe's run.

    python benchmarks/structures.py digits-structures --seeds 3 --out runs/structures [--data FOLDER]

Finished jobs in ``--out`` are kept, a fit that was cut short goes on from its checkpoint: run it again after
an interruption. Each number is a mean over seeds, in brackets the standard deviation between them. A: AUROC
of OOD against test by the task's score; B: ratio of the median scores; C: calibration error of the test set.
Settings are the recipe's, chosen on validation data with ``benchmarks/choose.py``: nothing is chosen here.
"""

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

import singularbayes as sb
from singularbayes.recipes import ALL, run_recipe
from singularbayes.recipes.folder import RunFolder
from singularbayes.recipes.recipe import Run

_INSIDE = {
    "accuracy": "accuracy",
    "auroc": "AUROC",
    "mae": "MAE",
    "negative_log_likelihood": "NLL",
    "expected_calibration_error": "ECE",
    "regression_calibration_error": "calibration",
}


def measured(run: Run) -> dict[str, float]:
    """One job's numbers, by column."""
    evaluation = run.evaluation
    row = {
        words: evaluation.metrics[key].value for key, words in _INSIDE.items() if key in evaluation.metrics
    }
    diagnosis = sb.diagnose(evaluation)
    for name, by_score in evaluation.ood.items():
        row[f"A {name}"] = by_score[evaluation.score]["auroc"].value
        row[f"B {name}"] = diagnosis.median_ratio[name].value
    for criterion in diagnosis.in_distribution:
        if criterion.key == "C":
            row[f"C {criterion.name}"] = criterion.value
    return {**row, "seconds": evaluation.info["seconds"]}


def table(folder: RunFolder) -> list[dict[str, Any]]:
    lines = []
    for name in folder.names:
        runs = folder.of(name)
        rows = [measured(run) for run in runs]
        values = {key: np.array([row[key] for row in rows]) for key in rows[0]}
        line: dict[str, Any] = {
            "method": name,
            "numbers": runs[0].evaluation.info["numbers"],
            "seeds": len(runs),
        }
        for key, of_seeds in values.items():
            line[key] = {
                "mean": float(of_seeds.mean()),
                "std": float(of_seeds.std(ddof=1)) if len(of_seeds) > 1 else None,
            }
        lines.append(line)
    return lines


def finite(value: Any) -> Any:
    """JSON has no nan."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def cell(entry: Any) -> str:
    if not isinstance(entry, dict):
        return f"{entry:,}" if isinstance(entry, int) else str(entry)
    digits = 1 if abs(entry["mean"]) >= 100 else 3
    spread = "" if entry["std"] is None else f" ({entry['std']:.{digits}f})"
    return f"{entry['mean']:.{digits}f}{spread}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", choices=list(ALL))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--bootstrap", type=int, default=200)
    parser.add_argument("--methods", nargs="*", help="plans, by name or a part of it; all by default")
    parser.add_argument("--epochs", type=int, help="for a quick try; results then stand for nothing")
    arguments = parser.parse_args()
    recipe = ALL[arguments.recipe]
    torch.set_num_threads(recipe.threads)
    folder = run_recipe(
        recipe,
        arguments.out,
        data=arguments.data,
        seeds=arguments.seeds,
        methods=arguments.methods,
        overrides={} if arguments.epochs is None else {"epochs": arguments.epochs},
        bootstrap=arguments.bootstrap,
        resume=True,
        command=shlex.join(["python", *sys.argv]),
        say=lambda text: print(text, flush=True),
    )
    lines = table(folder)
    columns = list(dict.fromkeys(key for line in lines for key in line))
    print("\n| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
    for line in lines:
        print("| " + " | ".join(cell(line.get(key, "")) for key in columns) + " |")
    content = {"recipe": recipe.name, "about": dict(folder.about), "rows": finite(lines)}
    path = arguments.out / "structures.json"
    path.write_text(json.dumps(content, indent=1, allow_nan=False), encoding="utf-8")
    print(f"\n{path}")


if __name__ == "__main__":
    main()
