"""Images: accuracy, NLL, ECE and AUROC side by side, uncalibrated and calibrated, and three regularities.

    python benchmarks/images.py images --data FOLDER --out runs/images --seeds 3 --jobs 2
    python benchmarks/images.py images-cifar --data FOLDER --out runs/images-cifar --seeds 3 --jobs 2

Finished fits in --out are kept: run it again after an interruption. Numbers are means over seeds, in brackets
the standard deviation between them. Settings are the recipe's: nothing is chosen here.

The regularities are read off paired differences on the same test rows (and OOD rows): the mean over seeds,
and in how many seeds the 95% interval of the paired bootstrap lies above or below 0.
"""

import argparse
import shlex
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch

from singularbayes.evaluation import Evaluation, paired_difference
from singularbayes.recipes import ALL, RunFolder, processes, run_recipe, slug

MEASURES = {"accuracy": "accuracy", "negative_log_likelihood": "NLL", "expected_calibration_error": "ECE"}
STATES = ("uncalibrated", "calibrated")
VARIATIONAL, LOW = "MeanField, full rank", "MeanField, low rank"


def evaluations(folder: RunFolder, name: str) -> dict[str, list[Evaluation]]:
    """State -> the evaluations of one method, by seed."""
    runs = folder.of(name)
    before = [Evaluation.load(folder.path / slug(name) / f"seed-{run.seed}" / "uncalibrated") for run in runs]
    return {"uncalibrated": before, "calibrated": [run.evaluation for run in runs]}


def cell(values: list[float]) -> str:
    spread = f" ({np.std(values, ddof=1):.3f})" if len(values) > 1 else ""
    return f"{np.mean(values):.3f}{spread}"


def side_by_side(folder: RunFolder) -> str:
    """Every method twice: before and after calibration."""
    first = folder.runs[0].evaluation
    by = {"MI": first.score, "entropy": "entropy"}
    head = ["method", "numbers", "state", *MEASURES.values()]
    head += [f"AUROC {far}, {word}" for far in first.ood for word in by]
    head += ["temperature", "seconds"]
    lines = []
    for name in folder.names:
        for state, found in evaluations(folder, name).items():
            line = [name, f"{found[0].info['numbers']:,}", state]
            line += [cell([each.metrics[key].value for each in found]) for key in MEASURES]
            line += [
                cell([each.ood[far][score]["auroc"].value for each in found])
                for far in first.ood
                for score in by.values()
            ]
            runs = folder.of(name)
            temperature = cell([run.temperature for run in runs]) if state == "calibrated" else "1"
            lines.append([*line, temperature, f"{np.mean([each.info['seconds'] for each in found]):.0f}"])
    return markdown(head, lines)


def markdown(head: list[str], lines: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *lines])


def difference(pairs: list[tuple[Evaluation, Evaluation]], metric: str, on: str, score: str | None) -> str:
    """First minus second: mean over seeds, and the number of seeds whose interval leaves 0 out."""
    found = [paired_difference(a, b, metric, on=on, score=score) for a, b in pairs]
    below, above = sum(each.high < 0 for each in found), sum(each.low > 0 for each in found)
    return f"{np.mean([each.value for each in found]):+.4f} ({below} below, {above} above 0)"


def compared(
    folder: RunFolder,
    names: list[tuple[str, str]],
    of: Callable[[str, str], list[tuple[Evaluation, Evaluation]]],
) -> str:
    """A table of paired differences; ``of`` gives the pairs of two names."""
    first = folder.runs[0].evaluation
    head = ["first minus second", *MEASURES.values()]
    head += [f"AUROC {far}, {word}" for far in first.ood for word in ("MI", "entropy")]
    lines = []
    for one, other in names:
        pairs = of(one, other)
        line = [f"{one} - {other}", *(difference(pairs, key, "test", None) for key in MEASURES)]
        for far in first.ood:
            line += [difference(pairs, "auroc", far, score) for score in (first.score, "entropy")]
        lines.append(line)
    return markdown(head, lines)


def regularities(folder: RunFolder) -> str:
    found = {name: evaluations(folder, name) for name in folder.names}
    present = set(folder.names)
    parts = []
    rivals = [name for name in ("DeepEnsemble", "MCDropout") if name in present]
    if VARIATIONAL in present and rivals:
        for state in STATES:
            table = compared(
                folder,
                [(VARIATIONAL, rival) for rival in rivals],
                lambda a, b, state=state: list(zip(found[a][state], found[b][state], strict=True)),
            )
            parts.append(f"1. Diagonal VI against the ensemble and dropout, {state}\n\n{table}")
    table = compared(
        folder,
        [(name, "before calibration") for name in folder.names],
        lambda a, _b: list(zip(found[a]["calibrated"], found[a]["uncalibrated"], strict=True)),
    )
    parts.append(f"2. What the temperature changes: calibrated minus uncalibrated\n\n{table}")
    # every low-rank or subspace posterior against the plan it is compared with
    pairs = [(name, VARIATIONAL) for name in folder.names if "low rank" in name or "Subspace" in name]
    if VARIATIONAL in present and pairs:
        table = compared(
            folder, pairs, lambda a, b: list(zip(found[a]["calibrated"], found[b]["calibrated"], strict=True))
        )
        cost = [
            f"{name}: {np.mean([e.info['seconds'] for e in found[name]['calibrated']]):.0f} s, "
            f"{found[name]['calibrated'][0].info['numbers']:,} numbers"
            for name in dict.fromkeys(name for pair in pairs for name in pair)
        ]
        parts.append(
            f"3. Low-rank and subspace posteriors against diagonal VI, calibrated\n\n{table}\n\n"
            f"Cost: {'; '.join(cost)}"
        )
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", choices=["images", "images-cifar"])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="fits at a time")
    parser.add_argument("--bootstrap", type=int, default=200)
    parser.add_argument("--methods", nargs="*", help="plans, by name or a part of it; all by default")
    parser.add_argument("--epochs", type=int, help="for a quick try; results then stand for nothing")
    arguments = parser.parse_args()
    if arguments.jobs < 1:
        parser.error(f"--jobs must be at least 1, got {arguments.jobs}")
    torch.set_num_threads(1)
    with nullcontext() if arguments.jobs == 1 else processes(arguments.jobs) as executor:
        folder = run_recipe(
            ALL[arguments.recipe],
            arguments.out,
            data=arguments.data,
            seeds=arguments.seeds,
            methods=arguments.methods,
            overrides={} if arguments.epochs is None else {"epochs": arguments.epochs},
            bootstrap=arguments.bootstrap,
            resume=True,
            executor=executor,
            command=shlex.join(["python", *sys.argv]),
            say=lambda text: print(f"  {text}", flush=True),
        )
    text = f"{side_by_side(folder)}\n\n{regularities(folder)}\n"
    (arguments.out / "images.md").write_text(text, encoding="utf-8")
    print(f"\n{text}\n{arguments.out / 'images.md'}, {arguments.out / 'results.csv'}")


if __name__ == "__main__":
    main()
