"""Step and prediction time of our methods, as multiples of the deterministic full-rank network's in that run.

    python benchmarks/steps.py --out steps.json

Three MLPs, batch 256, rank 15, mixture prior. ``floor`` is the deterministic factorised network: what the
low-rank posterior costs when its randomness is free. Medians of interleaved rounds; the quartiles say how
quiet the machine was.
"""

import argparse
import itertools
import json
import platform
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from timing import interleave, ratio
from torch import nn

import singularbayes as sb
from singularbayes.distributions import DiagonalGaussian
from singularbayes.methods.learner import prepare
from singularbayes.methods.mean_field import BuildMeanField
from singularbayes.methods.training import Run

NETS = {
    "44-128-128-2": (44, 128, 128, 2),
    "784-512-512-10": (784, 512, 512, 10),
    "1024-2048-2048-10": (1024, 2048, 2048, 10),
}
BATCH, RANK, DRAWS = 256, 15, 32


def mlp(sizes: tuple[int, ...]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for m, n in itertools.pairwise(sizes):
        layers += [nn.Linear(m, n), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def deterministic(net: nn.Module, x: torch.Tensor, y: torch.Tensor, fused: bool) -> Callable[[], Any]:
    adam = torch.optim.Adam(net.parameters(), lr=1e-3, fused=fused)

    def step() -> None:
        adam.zero_grad()
        F.cross_entropy(net(x), y).backward()
        adam.step()

    return step


def variational(net: nn.Module, x: torch.Tensor, y: torch.Tensor, **settings: Any) -> Callable[[], Any]:
    method = sb.MeanField(batch_size=BATCH, **settings)
    model = sb.Model(net, sb.Categorical(), prior=sb.ScaleMixture())
    run = Run(
        model,
        method,
        BuildMeanField(method),
        prepare(model, None, (x, y), None, model.device),
        model.device,
        0,
    )
    noise = torch.Generator().manual_seed(0)
    return lambda: run.step(x, y, 1 / 10_000, 1.0, noise).item()


def measure(name: str, rounds: int, seconds: float) -> dict[str, Any]:
    torch.manual_seed(0)
    sizes = NETS[name]
    x, y = torch.randn(BATCH, sizes[0]), torch.randint(sizes[-1], (BATCH,))
    full = mlp(sizes)
    low = sb.factorize(full, rank=RANK)
    steps = {
        "deterministic": deterministic(mlp(sizes), x, y, fused=False),
        "deterministic, fused Adam": deterministic(mlp(sizes), x, y, fused=True),
        "floor": deterministic(sb.factorize(full, rank=RANK), x, y, fused=False),
        "low rank": variational(low, x, y),
        "low rank, bound": variational(low, x, y, kl=sb.KL.BOUND),
        "full rank": variational(full, x, y),
    }
    times = interleave(steps, rounds, seconds=seconds)
    unit = sorted(times["deterministic"])
    return {
        "net": name,
        "what": "training step",
        "milliseconds": 1e3 * unit[rounds // 2 if len(unit) > rounds // 2 else -1],
        "ratios": {key: vars(ratio(times, key, "deterministic")) for key in steps},
    }


def predictions(name: str, rounds: int, seconds: float) -> dict[str, Any]:
    torch.manual_seed(0)
    sizes = NETS[name]
    x, y = torch.randn(BATCH, sizes[0]), torch.randint(sizes[-1], (BATCH,))
    full = mlp(sizes).eval()
    fits = {
        key: sb.MeanField(epochs=1, batch_size=BATCH).fit(
            sb.Model(net, sb.Categorical(), prior=sb.ScaleMixture()), (x, y)
        )
        for key, net in {"low rank": sb.factorize(full, rank=RANK), "full rank": full}.items()
    }

    def once() -> torch.Tensor:
        with torch.no_grad():
            return full(x)

    low = fits["low rank"]
    buffer, generator = torch.empty(DRAWS, low.layout.size), torch.Generator().manual_seed(0)
    stored = low.draw(DRAWS)
    calls: dict[str, Callable[[], Any]] = {
        "one pass": once,
        "low rank": lambda: low.predict(x, draws=DRAWS).mean,
        "low rank, draws at hand": lambda: low.functions(stored, x),
        "noise alone": lambda: buffer.normal_(generator=generator),
        "full rank": lambda: fits["full rank"].predict(x, draws=DRAWS).mean,
    }
    times = interleave(calls, rounds, seconds=seconds)
    command = [sys.executable, __file__, "--memory", name]
    growth = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    unit = sorted(times["one pass"])
    return {
        "net": name,
        "what": f"prediction, {DRAWS} draws",
        "milliseconds": 1e3 * unit[len(unit) // 2],
        "ratios": {key: vars(ratio(times, key, "one pass")) for key in calls},
        "peak_growth_mb": growth,
    }


def memory(name: str) -> float:
    """Peak resident MB that one prediction adds to a fresh process (Linux)."""
    sizes = NETS[name]
    x = torch.randn(BATCH, sizes[0])
    network = sb.factorize(mlp(sizes), rank=RANK)
    model = sb.Model(network, sb.Categorical())
    mean = model.layout.flatten(network)
    posterior = sb.Posterior(
        model.copy_network(), DiagonalGaussian(mean, 0.1 * mean.abs()), model.likelihood, model.layout, {}
    )
    with torch.no_grad():
        network(x)  # what one plain pass needs is there already

    def status(key: str) -> int:
        line = next(row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith(key))
        return int(line.split()[1])

    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = status("VmRSS")
    posterior.predict(x, draws=DRAWS)
    return (status("VmHWM") - before) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=40, help="longest time for one net and table")
    parser.add_argument("--nets", nargs="*", default=list(NETS), choices=list(NETS))
    parser.add_argument("--memory", choices=list(NETS), help="print the memory of one prediction, and stop")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    warnings.filterwarnings("ignore", "the rank saves no parameters")  # the heads, on purpose
    if arguments.memory:
        print(memory(arguments.memory))
        return
    rows = []
    for name in arguments.nets:
        for table in (measure, predictions):
            row = table(name, arguments.rounds, arguments.seconds)
            rows.append(row)
            print(f"\n{row['net']}: {row['what']}; unit {row['milliseconds']:.3f} ms")
            if "peak_growth_mb" in row:
                print(f"  memory above the inputs: {row['peak_growth_mb']:.1f} MB")
            for key, value in row["ratios"].items():
                print(f"  {key:28s} {value['value']:8.2f}   ({value['low']:.2f} - {value['high']:.2f})")
    if arguments.out:
        content = {
            "torch": torch.__version__,
            "machine": platform.processor() or platform.machine(),
            "threads": 2,
            "rows": rows,
        }
        arguments.out.write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()
