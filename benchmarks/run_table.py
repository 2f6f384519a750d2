"""A finished run as a Markdown table: mean over seeds +- standard error, before and after calibration.

    python benchmarks/run_table.py runs/icu [--against DeepEnsemble]

With ``--against`` each other method's calibrated test NLL minus that one's, paired by row: mean over seeds
and a 95% bootstrap interval over the rows of the test set (the same rows in every seed).
"""

import argparse
from pathlib import Path

import numpy as np

from singularbayes.metrics import bootstrap_interval
from singularbayes.recipes import ALL, open_folder
from singularbayes.recipes.folder import RunFolder, results_table

_INSIDE = {"accuracy": "accuracy", "auroc": "AUROC", "negative_log_likelihood": "NLL",
           "expected_calibration_error": "ECE", "error_average_precision": "AUPR-Err"}  # fmt: skip


def cell(values: np.ndarray) -> str:
    spread = f" +- {values.std(ddof=1) / len(values) ** 0.5:.3f}" if len(values) > 1 else ""
    return f"{values.mean():.3f}{spread}"


def rows(folder: RunFolder, state: str) -> list[list[str]]:
    table = results_table(folder)
    table = table[table["calibration"] == state]
    score = folder.runs[0].evaluation.score
    lines = []
    for name in folder.names:
        own = table[table["method"] == name]
        line = [name, f"{int(own['numbers'].iloc[0]):,}"]
        test = own[(own["set"] == "test") & (own["score"] == "")]
        for measure in _INSIDE:
            values = test[test["measure"] == measure].sort_values("seed")["value"].to_numpy()
            if len(values):
                line.append(cell(values))
        for unfamiliar in folder.runs[0].evaluation.ood:
            far = own[own["set"] == unfamiliar]
            for by in (score, "entropy"):
                ranked = far[(far["score"] == by) & (far["measure"] == "auroc")]
                line.append(cell(ranked.sort_values("seed")["value"].to_numpy()))
        temperatures = np.array([run.temperature for run in folder.of(name)])
        line += [f"{temperatures.mean():.2f}", f"{own['seconds'].iloc[0]:.1f}"]
        lines.append(line)
    return lines


def paired(folder: RunFolder, against: str) -> list[str]:
    def nll(name: str) -> np.ndarray:
        return np.mean(
            [run.evaluation.sets["test"].rows["negative_log_likelihood"] for run in folder.of(name)], 0
        )

    base, lines = nll(against), []
    for name in folder.names:
        if name != against:
            found = bootstrap_interval(np.mean, nll(name) - base, replicates=2000, seed=0)
            lines.append(f"- {name}: {found.value:+.4f} [{found.low:+.4f}, {found.high:+.4f}]")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--against")
    arguments = parser.parse_args()
    folder = open_folder(arguments.folder, ALL)
    present = {m for m in _INSIDE if m in folder.runs[0].evaluation.metrics}
    head = ["method", "numbers", *(words for key, words in _INSIDE.items() if key in present)]
    for name in folder.runs[0].evaluation.ood:
        head += [f"{name} MI", f"{name} entropy"]
    head += ["temperature", "seconds"]
    for state in dict.fromkeys(results_table(folder)["calibration"]):
        print(f"\n{state}, {folder.about['seeds']} seeds\n")
        print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
        for line in rows(folder, state):
            print("| " + " | ".join(line) + " |")
    if arguments.against:
        print(f"\ncalibrated test NLL minus {arguments.against}'s, paired by row:\n")
        print("\n".join(paired(folder, arguments.against)))


if __name__ == "__main__":
    main()
