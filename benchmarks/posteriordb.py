"""HMC and NUTS on targets whose expectations are known: eleven posteriors of posteriordb, three Gaussians.

    python benchmarks/posteriordb.py --data FOLDER/posteriordb --out runs/posteriordb

Every target has the library's default settings, 32 chains of 250 draws. A run writes a file to --out; a
run whose file is there is not repeated: the same command goes on after an interrupt. The last thing is
a Markdown table of all files. --target and --method select.

A row *agrees* when means and mean squares of all parameters are within 4 combined Monte Carlo standard errors
of the reference and no split R-hat exceeds 1.05. ESS is the smallest of bulk and tail ESS over parameters; a
gradient is that of one chain, warm-up counted.
"""

import argparse
import json
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from reference_posteriors import POSTERIORS, compare, correlated_gaussian, expectations, false_alarm

import singularbayes as sb

CHAINS, DRAWS = 32, 250
GAUSSIANS = (2, 20, 200)
METHODS = {"HMC": sb.HMC, "NUTS": sb.NUTS}
SEED = 0
COLUMNS = ("target", "method", "worst z, mean", "worst z, mean square", "R-hat", "agrees", "divergences")
COLUMNS = (*COLUMNS, "acceptance", "ESS", "ESS / 1000 gradients", "CPU seconds")


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one run came to."""

    target: str
    method: str
    settings: str
    comparisons: int
    worst_mean: float
    worst_square: float
    where: str
    r_hat: float
    agrees: bool
    divergences: int
    acceptance: float
    ess: float
    gradients: int
    seconds: float


def targets(folder: Path) -> dict[str, tuple]:
    """Name to (density, start, values that are compared, what they should be)."""
    found = {}
    for dimension in GAUSSIANS:
        gaussian = correlated_gaussian(dimension)
        found[f"Gaussian, {dimension}"] = (gaussian, gaussian.expectations)
    for name, make in POSTERIORS.items():
        posterior = make(folder)
        found[name] = (posterior, lambda posterior=posterior: expectations(posterior, folder))
    return found


def run(name: str, target: object, known: object, method: str) -> Row:
    settings = METHODS[method](chains=CHAINS, draws=DRAWS)
    start = target.start(CHAINS, torch.Generator().manual_seed(SEED + 1))
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # divergences and acceptance are in the table
        samples = sb.sample(target.log_density, start, settings, seed=SEED)
    seconds = time.process_time() - began
    found = compare(target.values(samples.draws), known())
    worst = max(
        (abs(z), f"{kind} of {label}")
        for kind, all_z in (("mean", found.mean), ("square", found.square))
        for label, z in zip(found.names, all_z, strict=True)
    )
    return Row(
        target=name,
        method=method,
        settings=f"{CHAINS} chains, {settings.warm_up} + {DRAWS} steps, seed {SEED}",
        comparisons=found.count,
        worst_mean=found.worst_mean,
        worst_square=found.worst_square,
        where=worst[1],
        r_hat=float(found.r_hat.max()),
        agrees=found.agrees,
        divergences=int(samples.divergences.sum()),
        acceptance=float(samples.acceptance.mean()),
        ess=float(found.ess.min()),
        gradients=int(samples.gradients.sum() + samples.warm_up.gradients.sum()),
        seconds=seconds,
    )


def table(rows: list[Row]) -> str:
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    for row in rows:
        cells = (
            row.target, row.method, f"{row.worst_mean:.2f}", f"{row.worst_square:.2f}", f"{row.r_hat:.3f}",
            "yes" if row.agrees else "no", f"{row.divergences}", f"{row.acceptance:.2f}", f"{row.ess:,.0f}",
            f"{1000 * row.ess / row.gradients:.2f}", f"{row.seconds:.0f}",
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    lines.append("")
    for method in METHODS:
        for kind, own in (
            ("Gaussians", [r for r in rows if r.method == method and r.target.startswith("Gaussian")]),
            ("posteriordb", [r for r in rows if r.method == method and not r.target.startswith("Gaussian")]),
        ):
            count = sum(row.comparisons for row in own)
            lines.append(
                f"{method}, {kind}: {count} comparisons in {len(own)} runs; a right sampler has one beyond 4 "
                f"standard errors with probability {false_alarm(count):.2%}."
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="posteriordb's folder")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--target", default="", help="only targets whose name contains this")
    parser.add_argument("--method", choices=list(METHODS), action="append")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for name, (target, known) in targets(arguments.data).items():
        for method in METHODS:
            path = arguments.out / f"{name.replace(', ', '-')}.{method}.json"
            wanted = arguments.target in name and method in (arguments.method or METHODS)
            if wanted and not path.exists():
                row = run(name, target, known, method)
                path.write_text(json.dumps(asdict(row), indent=1))
                print(f"{name}, {method}: {row.seconds:.0f} s", flush=True)
            if path.exists():
                rows.append(Row(**json.loads(path.read_text())))
    print(table(rows))


if __name__ == "__main__":
    main()
